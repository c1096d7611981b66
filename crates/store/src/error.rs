//! The errors of this crate: one variant for each way in which a caller reacts.
//!
//! `sqlx::Error` leaves this crate only as a `source`. A row that cannot be parsed is a bug, or was
//! edited by hand; the error names its table and id.

use std::sync::atomic::{AtomicU64, Ordering};

use sqlx::error::ErrorKind;

pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// The cause of a [`StoreError::Corrupt`].
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a store function failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such row in this organization. The API returns 404.
    #[error("no {kind} `{id}`")]
    NotFound {
        /// The kind of resource, as the API calls it.
        kind: &'static str,
        id: String,
    },
    /// The row changed since it was read: reload it and decide again.
    #[error("the row was changed by another writer since it was read")]
    Stale,
    /// The lease expired and another process may hold it: stop working under it.
    #[error("the lease `{name}` is no longer held")]
    LeaseLost { name: String },
    /// Another process uses a newer root key, so entries of this process could not be verified. The
    /// API returns 503.
    #[error("root.key was rotated: restart this replica with the new key files")]
    RootKeyRotated,
    /// Something that must be unique is taken. The API returns 409.
    #[error("{what} is already taken")]
    AlreadyExists {
        /// What is taken, as the API calls it.
        what: &'static str,
    },
    /// A row cannot be parsed: a bug, or the row was edited by hand.
    #[error("{table} row `{id}` cannot be parsed")]
    Corrupt {
        table: &'static str,
        /// The row's id, or `?` if it cannot be read.
        id: String,
        source: Cause,
    },
    /// A newer release has written this database: start that release, or restore a backup.
    #[error(
        "the database has schema version {found}, but this release supports versions up to {known}: \
         start the newer release again, or restore a backup"
    )]
    NewerDatabase {
        /// The version of the database.
        found: i64,
        /// The newest version that this release supports.
        known: i64,
    },
    /// A migration that was applied to this database has another text in this release.
    #[error("migration {version} ({name}) is not the one that was applied to this database")]
    MigrationChanged { version: i64, name: String },
    /// The database was not migrated to the schema of this release.
    #[error(
        "the database has schema version {found}, but this release needs {needed}: \
         run `fleetmend migrate` first"
    )]
    SchemaDiffers { found: i64, needed: i64 },
    /// A table of a copied database is not what was copied. Nothing was kept.
    #[error("the copy of the table `{table}` differs from the original")]
    CopyDiffers { table: &'static str },
    /// A table could not be copied.
    #[error("cannot copy the table `{table}`")]
    Table { table: &'static str, source: Box<StoreError> },
    /// The database's address cannot be used. The error does not repeat it, because it may contain
    /// a password.
    #[error("invalid database address: {why}")]
    BadAddress { why: String },
    /// A file of a backup cannot be read or written.
    #[error("cannot read or write {}", path.display())]
    File { path: std::path::PathBuf, source: std::io::Error },
    /// The database aborted this transaction because of a conflict with another writer: retry the
    /// transaction.
    #[error("the database is busy; try again")]
    Busy(#[source] sqlx::Error),
    /// The database could not write because its disk is full. Nothing was changed. The API returns
    /// 503; writes work again as soon as there is free space.
    #[error("the database's disk is full")]
    DiskFull(#[source] sqlx::Error),
    /// Any other error of the database or the connection to it. The API returns 503.
    #[error("the database did not answer")]
    Database(#[source] sqlx::Error),
}

static DISK_FULL_ERRORS: AtomicU64 = AtomicU64::new(0);

/// How many times a database refused a write of this process because its disk was full.
pub fn disk_full_errors() -> u64 {
    DISK_FULL_ERRORS.load(Ordering::Relaxed)
}

impl StoreError {
    pub fn is_disk_full(&self) -> bool {
        matches!(self, StoreError::DiskFull(_))
    }

    pub fn not_found(kind: &'static str, id: impl ToString) -> Self {
        Self::NotFound { kind, id: id.to_string() }
    }
}

/// A row that could not be decoded; carries the details through `sqlx::Error`.
#[derive(Debug, thiserror::Error)]
#[error("{table} row `{id}` cannot be parsed")]
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
            error if is_retryable(&error) => Self::Busy(error),
            error if is_disk_full(&error) => {
                DISK_FULL_ERRORS.fetch_add(1, Ordering::Relaxed);
                Self::DiskFull(error)
            }
            error => Self::Database(error),
        }
    }
}

/// Matches deadlocks, serialization failures and lock timeouts of PostgreSQL, and the three codes
/// of SQLITE_BUSY (another process, such as a command on the data directory, holds the write lock).
fn is_retryable(error: &sqlx::Error) -> bool {
    has_code(error, &["40001", "40P01", "55P03", "5", "261", "517"])
}

/// Matches `disk_full` of PostgreSQL, and SQLITE_FULL and SQLITE_IOERR_SHMSIZE, which SQLite
/// reports when the disk has no space for the WAL index.
fn is_disk_full(error: &sqlx::Error) -> bool {
    has_code(error, &["53100", "13", "4874"])
}

fn has_code(error: &sqlx::Error, codes: &[&str]) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| codes.contains(&code.as_ref()))
}

/// Maps a unique violation to [`StoreError::AlreadyExists`].
pub(crate) fn already_exists(what: &'static str) -> impl Fn(sqlx::Error) -> StoreError {
    move |error| match error.as_database_error().map(sqlx::error::DatabaseError::kind) {
        Some(ErrorKind::UniqueViolation) => StoreError::AlreadyExists { what },
        _ => error.into(),
    }
}

/// Checks that a conditional write changed exactly one row. If not, another writer was first.
pub(crate) fn expect_one_row(rows: u64) -> Result<()> {
    if rows == 1 { Ok(()) } else { Err(StoreError::Stale) }
}
