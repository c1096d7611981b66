//! Errors of this crate: one variant for each reaction of the caller.
//!
//! `sqlx::Error` leaves this crate only as a `source`. A row that does not parse is a bug, or was
//! edited by hand; the error names its table and id, so that someone can look at it.

use std::sync::atomic::{AtomicU64, Ordering};

use sqlx::error::ErrorKind;

/// What a store function answers.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// The cause of a [`StoreError::Corrupt`].
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such row in this organization. Answered with 404.
    #[error("no {kind} `{id}`")]
    NotFound {
        /// What was looked for, as the API calls it.
        kind: &'static str,
        /// The id that was asked for.
        id: String,
    },
    /// Somebody else changed the row since it was read: reload and decide again.
    #[error("changed since it was read")]
    Stale,
    /// The lease ran out and somebody else may hold it: stop working under it.
    #[error("the lease `{name}` is no longer held")]
    LeaseLost {
        /// The lease's name.
        name: String,
    },
    /// Another process uses a newer root key: what this one would write could not be verified.
    /// Answered with 503.
    #[error("root.key was rotated: restart this replica with the new key files")]
    RootKeyRotated,
    /// Something that must be unique is taken. Answered with 409.
    #[error("{what} is already taken")]
    AlreadyExists {
        /// What is taken, as the API calls it.
        what: &'static str,
    },
    /// A row does not parse: a bug, or a hand in the database.
    #[error("{table} row `{id}` does not parse")]
    Corrupt {
        /// The table.
        table: &'static str,
        /// The row's id, as far as it can be read.
        id: String,
        /// What exactly does not parse.
        source: Cause,
    },
    /// A newer release has written this database: start that release, or restore a backup.
    #[error(
        "the database has schema version {found}, this release knows only up to {known}: \
         start the newer release again, or restore a backup"
    )]
    NewerDatabase {
        /// The version found in the database.
        found: i64,
        /// The newest version that this binary knows.
        known: i64,
    },
    /// A migration that this database has already seen was edited afterwards.
    #[error("migration {version} ({name}) is not the one that this database was made with")]
    MigrationChanged {
        /// Its number.
        version: i64,
        /// Its name.
        name: String,
    },
    /// The database's address cannot be used. The address itself is not repeated: it may hold a
    /// password.
    #[error("cannot use this database address: {why}")]
    BadAddress {
        /// What is wrong with it.
        why: String,
    },
    /// A file of a backup cannot be read or written.
    #[error("cannot use {}", path.display())]
    File {
        /// Which one.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Two writers got in each other's way and the database gave this one up: run the transaction
    /// again.
    #[error("the database asks to try again")]
    Busy(#[source] sqlx::Error),
    /// The database could not write because its disk is full. Nothing was changed. Answered with
    /// 503; writes work again as soon as there is space.
    #[error("the database's disk is full")]
    DiskFull(#[source] sqlx::Error),
    /// Anything else that the database or the way to it said. Answered with 503.
    #[error("the database did not answer")]
    Database(#[source] sqlx::Error),
}

/// How often a database had no space, in this process.
static DISK_FULL_ERRORS: AtomicU64 = AtomicU64::new(0);

/// How often any database has refused a write of this process because its disk was full.
pub fn disk_full_errors() -> u64 {
    DISK_FULL_ERRORS.load(Ordering::Relaxed)
}

impl StoreError {
    /// Whether the database's disk is full.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, StoreError::DiskFull(_))
    }

    /// There is no such thing here.
    pub fn not_found(kind: &'static str, id: impl ToString) -> Self {
        Self::NotFound { kind, id: id.to_string() }
    }
}

/// A row that did not decode, on its way through `sqlx`'s own error type.
#[derive(Debug, thiserror::Error)]
#[error("{table} row `{id}` does not parse")]
pub(crate) struct CorruptRow {
    pub(crate) table: &'static str,
    pub(crate) id: String,
    pub(crate) source: Cause,
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Decode(cause) => match cause.downcast::<CorruptRow>() {
                Ok(row) => Self::Corrupt { table: row.table, id: row.id, source: row.source },
                Err(cause) => Self::Database(sqlx::Error::Decode(cause)),
            },
            error if asks_to_retry(&error) => Self::Busy(error),
            error if is_disk_full(&error) => {
                DISK_FULL_ERRORS.fetch_add(1, Ordering::Relaxed);
                Self::DiskFull(error)
            }
            error => Self::Database(error),
        }
    }
}

/// Deadlocks, serialization failures and lock timeouts of PostgreSQL; SQLITE_BUSY in its three
/// forms (another process, say a command on the data directory, holds the write lock).
fn asks_to_retry(error: &sqlx::Error) -> bool {
    has_code(error, &["40001", "40P01", "55P03", "5", "261", "517"])
}

/// `disk_full` of PostgreSQL; SQLITE_FULL and SQLITE_IOERR_SHMSIZE, which is what a full disk does
/// to the index of SQLite's log.
fn is_disk_full(error: &sqlx::Error) -> bool {
    has_code(error, &["53100", "13", "4874"])
}

fn has_code(error: &sqlx::Error, codes: &[&str]) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| codes.contains(&code.as_ref()))
}

/// Turns a unique violation into the word that a user understands.
pub(crate) fn taken(what: &'static str) -> impl Fn(sqlx::Error) -> StoreError {
    move |error| match error.as_database_error().map(sqlx::error::DatabaseError::kind) {
        Some(ErrorKind::UniqueViolation) => StoreError::AlreadyExists { what },
        _ => error.into(),
    }
}

/// A guarded write: exactly one row, or somebody was faster.
pub(crate) fn guarded(rows: u64) -> Result<()> {
    if rows == 1 { Ok(()) } else { Err(StoreError::Stale) }
}
