//! Opens the database and hands out connections.
//!
//! [`Db`] is SQLite or PostgreSQL. Functions of this crate take a [`Conn`] to read or a [`Tx`] to
//! write. [`Reader`] and `Tx` both dereference to `Conn`, so every function that reads also works
//! inside a transaction. The `on!` macro runs one SQL text on either driver. This module must not
//! know any table.

use async_recursion::async_recursion as boxed;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};
use sqlx::{Connection as _, Postgres, Sqlite, Transaction};

use crate::audit::Seal;
use crate::error::{Result, StoreError};
use crate::migrate;
use crate::migrate::MigrationInfo;
use crate::notify;
use crate::notify::{LivenessLock, Notifier, Subscription, Topic};
use crate::tx::Tx;

/// Which failures a commit survives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// A commit survives a crash of this process. SQLite does not wait for the disk at each commit,
    /// so a power failure may lose the last commits, but never corrupts the database.
    #[default]
    Process,
    /// A commit survives a power failure.
    Full,
}

#[derive(Clone)]
pub struct Options {
    /// `postgres://…`, or a path to a SQLite file, with or without the prefix `sqlite:`.
    pub url: String,
    /// Which failures a commit survives. With `Process`, PostgreSQL uses its own settings.
    pub durability: Durability,
    /// Maximum number of connections: of readers on SQLite, of readers and writers on PostgreSQL.
    pub connections: u32,
    /// How long a caller waits for a connection, and for the result of a statement, before the call
    /// fails.
    pub timeout: Duration,
    /// How entries of the audit log are sealed.
    pub seal: Seal,
}

impl Options {
    /// The default options.
    pub fn new(url: impl Into<String>, seal: Seal) -> Self {
        Self {
            url: url.into(),
            durability: Durability::Process,
            connections: 8,
            timeout: Duration::from_secs(2),
            seal,
        }
    }
}

/// An open database of either engine, with the schema of this release. Cheap to clone.
#[derive(Clone)]
pub struct Db(Arc<Inner>);

struct Inner {
    pools: Pools,
    notifier: Notifier,
    seal: Seal,
    listener: Option<tokio::task::JoinHandle<()>>,
    liveness_lock: LivenessLock,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.abort();
        }
    }
}

enum Pools {
    /// One writer connection, because SQLite allows one writer at a time. Other writers wait in the
    /// pool's queue, which is fair; SQLite's busy handler is not.
    Sqlite {
        rw: SqlitePool,
        ro: SqlitePool,
    },
    Pg(PgPool),
}

impl Db {
    /// The number of open connections that are idle, and that are in use.
    pub fn connections(&self) -> (usize, usize) {
        let split = |size: u32, idle: usize| (idle, (size as usize).saturating_sub(idle));
        match &self.0.pools {
            Pools::Sqlite { rw, ro } => {
                let (writer, readers) =
                    (split(rw.size(), rw.num_idle()), split(ro.size(), ro.num_idle()));
                (writer.0 + readers.0, writer.1 + readers.1)
            }
            Pools::Pg(pool) => split(pool.size(), pool.num_idle()),
        }
    }

    /// Opens the database and migrates it. Creates the file if it is a SQLite database that does
    /// not exist yet.
    #[boxed]
    pub async fn open(options: &Options) -> Result<Db> {
        let db = Db::connect(options).await?;
        if let Err(refusal) = migrate::run(&db).await {
            db.close().await;
            return Err(refusal);
        }
        Ok(db)
    }

    /// Opens an existing database without migrating it, even if its schema is not that of this
    /// release.
    #[boxed]
    pub async fn open_without_migrating(options: &Options) -> Result<Db> {
        if let Address::Sqlite(path) = Address::parse(&options.url)?
            && !path.exists()
        {
            return Err(missing_file(&path));
        }
        Db::connect(options).await
    }

    /// Opens an existing database that this release can read. A SQLite file is never changed, but
    /// SQLite may create its two helper files (`-wal`, `-shm`).
    #[boxed]
    pub(crate) async fn open_read_only(options: &Options) -> Result<Db> {
        let Address::Sqlite(path) = Address::parse(&options.url)? else {
            let db = Db::connect(options).await?;
            let fit = migrate::check_compatible(&mut *db.read().await?).await;
            return fit.map(|()| db);
        };
        if !path.exists() {
            return Err(missing_file(&path));
        }
        check_file_compatible(&path, options).await?;
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .acquire_timeout(options.timeout)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_with(
                SqliteConnectOptions::new()
                    .filename(&path)
                    .read_only(true)
                    .busy_timeout(options.timeout),
            )
            .await?;
        let pools = Pools::Sqlite { rw: pool.clone(), ro: pool };
        let (notifier, liveness_lock) = (Notifier::new(), LivenessLock::default());
        let seal = options.seal.clone();
        Ok(Db(Arc::new(Inner { pools, notifier, seal, listener: None, liveness_lock })))
    }

    /// Applies the missing migrations and returns them.
    #[boxed]
    pub async fn migrate(&self) -> Result<Vec<MigrationInfo>> {
        migrate::run(self).await
    }

    /// The migrations that [`Db::migrate`] would apply.
    #[boxed]
    pub async fn pending_migrations(&self) -> Result<Vec<MigrationInfo>> {
        migrate::pending(&mut *self.writer_connection().await?).await
    }

    /// The version of the last migration that was applied to this database; 0 if none was.
    #[boxed]
    pub async fn schema_version(&self) -> Result<i64> {
        migrate::version(&mut *self.writer_connection().await?).await
    }

    pub(crate) async fn connect(options: &Options) -> Result<Db> {
        let (bells, holder) = (Notifier::new(), LivenessLock::default());
        let address = Address::parse(&options.url)?;
        let pools = match &address {
            Address::Sqlite(path) => open_sqlite_with_retry(path, options).await?,
            Address::Pg(address) => pg_pool(address, options).await?,
        };
        let listener = match address {
            Address::Sqlite(_) => None,
            Address::Pg(address) => {
                Some(notify::spawn_listener(*address, bells.clone(), holder.clone()).await?)
            }
        };
        let seal = options.seal.clone();
        Ok(Db(Arc::new(Inner { pools, notifier: bells, seal, listener, liveness_lock: holder })))
    }

    /// Whether only one service can use this database: SQLite has no replicas.
    pub fn is_exclusive(&self) -> bool {
        matches!(self.0.pools, Pools::Sqlite { .. })
    }

    /// Waits for running statements and closes every connection.
    #[boxed]
    pub async fn close(&self) {
        if let Some(listener) = &self.0.listener {
            listener.abort();
        }
        match &self.0.pools {
            Pools::Sqlite { rw, ro } => {
                // Readers first: the last connection to close copies the WAL into the database
                // file.
                ro.close().await;
                rw.close().await;
            }
            Pools::Pg(pool) => pool.close().await,
        }
    }

    /// Returns a connection for reading. Each statement sees what was committed when it started.
    #[boxed]
    pub async fn read(&self) -> Result<Reader> {
        Ok(Reader(match &self.0.pools {
            Pools::Sqlite { ro, .. } => Conn::SqliteRead(ro.acquire().await?),
            Pools::Pg(pool) => Conn::PgRead(pool.acquire().await?),
        }))
    }

    /// Returns a connection for reading on which all statements see the same snapshot.
    #[boxed]
    pub async fn snapshot(&self) -> Result<Reader> {
        const PG: &str = "begin isolation level repeatable read read only";
        Ok(Reader(match &self.0.pools {
            Pools::Sqlite { ro, .. } => Conn::SqliteTx(ro.begin().await?),
            Pools::Pg(pool) => Conn::PgTx(pg_begin(pool, PG).await?),
        }))
    }

    /// Starts a transaction for writing. Dropping it without [`Tx::commit`] rolls it back.
    #[boxed]
    pub async fn begin(&self) -> Result<Tx> {
        let conn = match &self.0.pools {
            // `begin immediate`, because a SQLite transaction that reads and then writes cannot
            // wait for the write lock: of 400 such transactions from 8 tasks, 385 failed with a
            // plain `begin`. Within this process the pool's only writer connection would be enough,
            // but a command that runs in another process does not share it.
            Pools::Sqlite { rw, .. } => Conn::SqliteTx(rw.begin_with("begin immediate").await?),
            Pools::Pg(pool) => Conn::PgTx(pg_begin(pool, "begin").await?),
        };
        Ok(Tx::new(conn, self.clone()))
    }

    /// A connection that can read even before the tables exist. A read-only connection cannot be
    /// opened then.
    pub(crate) async fn writer_connection(&self) -> Result<Reader> {
        Ok(Reader(match &self.0.pools {
            Pools::Sqlite { rw, .. } => Conn::SqliteRead(rw.acquire().await?),
            Pools::Pg(pool) => Conn::PgRead(pool.acquire().await?),
        }))
    }

    /// Subscribes to commits on this topic, in this process or another replica. There may be a
    /// notification too many, and on PostgreSQL notifications are lost while the connection is
    /// down, so the subscriber must also poll from time to time.
    pub fn subscribe(&self, topic: Topic) -> Subscription {
        self.0.notifier.subscribe(topic)
    }

    /// Checks that the database responds.
    #[boxed]
    pub async fn ping(&self) -> Result<()> {
        let mut reader = self.read().await?;
        on!(reader, |c| sqlx::query("select 1").execute(c).await.map(drop))?;
        Ok(())
    }

    /// `sqlite` or `postgres`, for logs and `fleetmend doctor`.
    pub fn engine(&self) -> &'static str {
        match &self.0.pools {
            Pools::Sqlite { .. } => "sqlite",
            Pools::Pg(_) => "postgres",
        }
    }

    pub(crate) fn notifier(&self) -> &Notifier {
        &self.0.notifier
    }

    /// The lock by which other replicas can tell whether this process is alive. See
    /// [`LivenessLock`].
    pub(crate) fn liveness_lock(&self) -> Option<i64> {
        (!self.is_exclusive()).then(|| self.0.liveness_lock.key())
    }

    pub(crate) fn seal(&self) -> &Seal {
        &self.0.seal
    }
}

fn missing_file(path: &Path) -> StoreError {
    StoreError::BadAddress { why: format!("there is no file {}", path.display()) }
}

enum Address {
    Sqlite(PathBuf),
    Pg(Box<PgConnectOptions>),
}

impl Address {
    fn parse(url: &str) -> Result<Address> {
        let refuse = |why: String| Err(StoreError::BadAddress { why });
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return match PgConnectOptions::from_str(url) {
                Ok(options) => Ok(Address::Pg(Box::new(options))),
                Err(error) => refuse(error.to_string()),
            };
        }
        let path = url.strip_prefix("sqlite:").unwrap_or(url);
        let path = path.strip_prefix("//").unwrap_or(path);
        match path {
            "" => refuse("it is empty".into()),
            ":memory:" => {
                refuse("an in-memory database would be lost when its connection closes".into())
            }
            path if path.contains("://") => {
                refuse("it is neither postgres://… nor a path to a SQLite file".into())
            }
            path => Ok(Address::Sqlite(path.into())),
        }
    }
}

/// Opens a SQLite database and retries while it is locked.
///
/// The process that creates the file switches it to WAL mode. A process that opens it at that
/// moment gets SQLITE_BUSY immediately: SQLite does not call the busy handler there, because the
/// two could wait for each other. So this function retries for as long as a statement may wait.
async fn open_sqlite_with_retry(path: &Path, options: &Options) -> Result<Pools> {
    const RETRY_DELAY: Duration = Duration::from_millis(20);
    let tries = options.timeout.as_millis() / RETRY_DELAY.as_millis();
    for _ in 0..tries {
        match sqlite_pools(path, options).await {
            Err(StoreError::Busy(_)) => tokio::time::sleep(RETRY_DELAY).await,
            opened => return opened,
        }
    }
    sqlite_pools(path, options).await
}

/// Refuses a file with an incompatible schema, through a connection that cannot write: opening the
/// writer connection would already change the file, because it switches to WAL mode.
async fn check_file_compatible(path: &Path, options: &Options) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(options.timeout)
        .connect_with(SqliteConnectOptions::new().filename(path).read_only(true))
        .await?;
    let mut reader = Reader(Conn::SqliteRead(pool.acquire().await?));
    let fit = migrate::check_compatible(&mut reader).await;
    drop(reader);
    pool.close().await;
    fit
}

async fn sqlite_pools(path: &Path, options: &Options) -> Result<Pools> {
    check_file_compatible(path, options).await?;
    let base = SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(options.timeout)
        .foreign_keys(true)
        .statement_cache_capacity(256)
        // SQLite's thread hands over rows in batches of this size. With the default of 50, loading
        // a large rollout spends most of its time passing rows between threads.
        .row_buffer_size(1024)
        .pragma("temp_store", "memory")
        .pragma("cache_size", "-16384")
        .pragma("mmap_size", "268435456")
        .optimize_on_close(true, 400);
    let synchronous = match options.durability {
        Durability::Process => SqliteSynchronous::Normal,
        Durability::Full => SqliteSynchronous::Full,
    };
    let writer = base
        .clone()
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        // The writer that fills the WAL copies it into the database file and waits for the disk.
        // With 16 MiB instead of the default 4 MiB this happens a quarter as often, and a page that
        // changes often is written once: write bursts took a fifth less time.
        .pragma("wal_autocheckpoint", "4000")
        .synchronous(synchronous);
    let rw = SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(options.timeout)
        .idle_timeout(None)
        .max_lifetime(None)
        .before_acquire(|conn, _| Box::pin(async move { Ok(is_outside_transaction(conn)) }))
        .connect_with(writer)
        .await?;
    let ro = SqlitePoolOptions::new()
        .max_connections(options.connections.max(1))
        .acquire_timeout(options.timeout)
        .idle_timeout(None)
        .max_lifetime(None)
        .before_acquire(|conn, _| Box::pin(async move { Ok(is_outside_transaction(conn)) }))
        .connect_lazy_with(base.read_only(true));
    Ok(Pools::Sqlite { rw, ro })
}

/// Whether this connection can begin a transaction. If not, the pool closes it and opens another.
///
/// SQLite ends a transaction on its own when the disk is full or a read or write fails. The
/// driver's rollback then fails, because there is nothing to roll back, and the driver counts the
/// transaction as open until the connection is closed: every later `begin` would fail.
fn is_outside_transaction(conn: &SqliteConnection) -> bool {
    let outside = !conn.is_in_transaction();
    if !outside {
        tracing::warn!("reopening a SQLite connection whose rollback failed");
    }
    outside
}

/// Begins a transaction on a separate task, so that it completes even if the caller is dropped
/// meanwhile.
///
/// The driver rolls back transactions that it has counted as begun. It seems not to count a `begin`
/// that was sent but whose response was not awaited: later requests failed after clients had
/// disconnected, and no longer do since `begin` runs to completion.
async fn pg_begin(
    pool: &PgPool,
    begin: &'static str,
) -> sqlx::Result<Transaction<'static, Postgres>> {
    let pool = pool.clone();
    let begin_task = tokio::spawn(async move { pool.begin_with(begin).await });
    // The task is aborted only when the runtime shuts down.
    begin_task.await.unwrap_or(Err(sqlx::Error::PoolClosed))
}

async fn pg_pool(address: &PgConnectOptions, options: &Options) -> Result<Pools> {
    let patience_millis = options.timeout.as_millis().to_string();
    let mut address =
        address.clone().application_name("fleetmend").statement_cache_capacity(256).options([
            ("statement_timeout", patience_millis.as_str()),
            // A replica that is suspended in the middle of a transaction keeps its locks, and
            // blocks the other replicas, for at most 10 s. By then it has lost its lease as leader.
            ("idle_in_transaction_session_timeout", "10000"),
        ]);
    // With `Process` the setting of the PostgreSQL cluster applies: its administrator may have
    // chosen it deliberately.
    if options.durability == Durability::Full {
        address = address.options([("synchronous_commit", "on")]);
    }
    let pool = PgPoolOptions::new()
        .max_connections(options.connections.max(2))
        .acquire_timeout(options.timeout)
        .connect_with(address)
        .await?;
    Ok(Pools::Pg(pool))
}

/// A connection, inside a transaction or not.
pub enum Conn {
    #[doc(hidden)]
    SqliteRead(PoolConnection<Sqlite>),
    #[doc(hidden)]
    SqliteTx(Transaction<'static, Sqlite>),
    #[doc(hidden)]
    PgRead(PoolConnection<Postgres>),
    #[doc(hidden)]
    PgTx(Transaction<'static, Postgres>),
}

/// The driver's connection that a statement runs on.
pub(crate) enum Wire<'c> {
    Sqlite(&'c mut SqliteConnection),
    Pg(&'c mut PgConnection),
}

impl Conn {
    pub(crate) fn wire(&mut self) -> Wire<'_> {
        match self {
            Conn::SqliteRead(conn) => Wire::Sqlite(conn),
            Conn::SqliteTx(tx) => Wire::Sqlite(tx),
            Conn::PgRead(conn) => Wire::Pg(conn),
            Conn::PgTx(tx) => Wire::Pg(tx),
        }
    }
}

/// A connection for reading.
pub struct Reader(Conn);

impl Deref for Reader {
    type Target = Conn;
    fn deref(&self) -> &Conn {
        &self.0
    }
}

impl DerefMut for Reader {
    fn deref_mut(&mut self) -> &mut Conn {
        &mut self.0
    }
}

/// Expands to a `match` whose two arms contain the same tokens, so types are inferred for each
/// driver and nothing is boxed. `|c|` is the connection; `|c, d|` adds the engine's
/// [`crate::sql::Dialect`].
macro_rules! on {
    ($conn:expr, |$c:ident| $body:expr) => {
        match $conn.wire() {
            $crate::db::Wire::Sqlite($c) => $body,
            $crate::db::Wire::Pg($c) => $body,
        }
    };
    ($conn:expr, |$c:ident, $dialect:ident| $body:expr) => {
        match $conn.wire() {
            $crate::db::Wire::Sqlite($c) => {
                let $dialect = &$crate::sql::SQLITE;
                $body
            }
            $crate::db::Wire::Pg($c) => {
                let $dialect = &$crate::sql::POSTGRES;
                $body
            }
        }
    };
}
pub(crate) use on;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support;

    async fn synchronous(durability: Durability) -> i64 {
        let database = testkit::TestDatabase::sqlite();
        let db =
            Db::open(&Options { durability, ..test_support::options(&database) }).await.unwrap();
        let mut tx = db.begin().await.unwrap();
        let Wire::Sqlite(c) = tx.wire() else { panic!("a path is SQLite") };
        let (level,) = sqlx::query_as("pragma synchronous").fetch_one(c).await.unwrap();
        tx.rollback().await.unwrap();
        db.close().await;
        database.remove().await;
        level
    }

    #[tokio::test]
    async fn commit_waits_for_disk_only_with_full_durability() {
        assert_eq!(synchronous(Durability::Process).await, 1);
        assert_eq!(synchronous(Durability::Full).await, 2);
    }

    #[tokio::test]
    async fn sqlite_reader_cannot_write() {
        let database = testkit::TestDatabase::sqlite();
        let db = test_support::open(&database).await;
        let mut reader = db.read().await.unwrap();
        let Wire::Sqlite(c) = reader.wire() else { panic!("a path is SQLite") };
        let refused = sqlx::query("delete from leases").execute(c).await.unwrap_err();
        assert!(refused.to_string().contains("readonly"), "{refused}");
        drop(reader);
        db.close().await;
        database.remove().await;
    }

    /// Fills the database until SQLite fails with SQLITE_FULL. The page limit ends with the
    /// connection.
    async fn fill(db: &Db, round: u32) -> StoreError {
        for n in 0..10_000 {
            let written = async {
                let mut tx = db.begin().await?;
                let Wire::Sqlite(c) = tx.wire() else { panic!("a path is SQLite") };
                sqlx::query("pragma max_page_count = 1").fetch_one(&mut *c).await?;
                sqlx::query(
                    "insert into leases (name, holder, token, until) values ($1, $2, 1, 0)",
                )
                .bind(format!("lease {round}-{n}"))
                .bind("x".repeat(4_000))
                .execute(&mut *c)
                .await?;
                tx.commit().await
            };
            if let Err(error) = written.await {
                return error;
            }
        }
        panic!("the database never became full");
    }

    async fn count_leases(db: &Db) -> i64 {
        let mut reader = db.read().await.unwrap();
        let Wire::Sqlite(c) = reader.wire() else { panic!("a path is SQLite") };
        let (count,) = sqlx::query_as("select count(*) from leases").fetch_one(c).await.unwrap();
        count
    }

    #[tokio::test]
    async fn writes_work_again_after_a_full_disk() {
        let database = testkit::TestDatabase::sqlite();
        let db = test_support::open(&database).await;
        for round in 0..3 {
            let refused = fill(&db, round).await;
            assert!(matches!(refused, StoreError::DiskFull(_)), "{refused:?}");
            let before = count_leases(&db).await;
            let mut tx = db.begin().await.unwrap();
            let (name, now) = (format!("after {before}"), jiff::Timestamp::UNIX_EPOCH);
            crate::leases::acquire(&mut tx, &name, "a", now, now).await.unwrap().unwrap();
            tx.commit().await.unwrap();
            assert_eq!(count_leases(&db).await, before + 1, "an acknowledged write was lost");
        }
        db.close().await;
        database.remove().await;
    }

    /// `raise(rollback)` ends the transaction from inside, as a disk error does.
    #[tokio::test]
    async fn part_that_ends_the_transaction_reports_the_cause() {
        let database = testkit::TestDatabase::sqlite();
        let db = test_support::open(&database).await;
        database
            .execute_sql(
                "create trigger ends_all before insert on leases when new.name = 'bad'
                 begin select raise(rollback, 'the disk failed'); end",
            )
            .await;
        let now = jiff::Timestamp::UNIX_EPOCH;
        let mut tx = db.begin().await.unwrap();
        crate::leases::acquire(&mut tx, "first", "a", now, now).await.unwrap().unwrap();
        let failed = tx
            .attempt(async |tx| crate::leases::acquire(tx, "bad", "a", now, now).await)
            .await
            .unwrap_err();
        let StoreError::Database(cause) = failed else { panic!("{failed:?}") };
        assert!(cause.to_string().contains("the disk failed"), "{cause}");
        drop(tx);
        let mut tx = db.begin().await.unwrap();
        crate::leases::acquire(&mut tx, "second", "a", now, now).await.unwrap().unwrap();
        tx.commit().await.unwrap();
        assert_eq!(count_leases(&db).await, 1, "`first` is rolled back with its transaction");
        db.close().await;
        database.remove().await;
    }
}
