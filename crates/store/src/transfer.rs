//! Copies a whole database into an empty one, of either engine.
//!
//! Both engines present a table as the same sequence of bytes: its rows sorted by primary key, in
//! the binary format of PostgreSQL's `COPY` (`tuple`). The copy sends these bytes in pieces of
//! limited size and hashes them; [`verify`] reads the target again and compares. The target is one
//! transaction, so that a copy that was interrupted leaves nothing behind.
//!
//! The tables and columns are those of the migrations (`migrate::schema`). What must not continue
//! in another database, such as leases, is changed by the caller after the copy.

mod tuple;

use async_recursion::async_recursion as boxed;
use futures_util::{StreamExt as _, TryStreamExt as _};
use sqlx::postgres::{PgConnection, PgCopyIn};
use sqlx::sqlite::SqliteConnection;
use vocab::Digest;

use crate::db::{Conn, Db, Options, Reader, Wire, on};
use crate::error::{Result, StoreError};
use crate::migrate;
use crate::migrate::{SCHEMA_VERSION, Table};
use crate::sql::{ROWS_MAX, join};
use crate::tx::Tx;
use tuple::{Next, Splitter};

/// The number of bytes that are collected before they are written.
const CHUNK_BYTES: usize = 256 * 1024;
/// Maximum number of values in one statement of SQLite.
const SQLITE_VALUES_MAX: usize = 32_766;

/// The database that is copied. It is opened read-only.
pub struct Source {
    db: Db,
    snapshot: Reader,
    /// Changes when another connection commits. Only with SQLite: PostgreSQL's tables are locked.
    data_version: Option<i64>,
}

impl Source {
    /// Opens the database and begins to read. No other program can write to a PostgreSQL database
    /// until the source is closed.
    #[boxed]
    pub async fn open(options: &Options) -> Result<Source> {
        let db = Db::open_read_only(options).await?;
        match Source::begin(&db).await {
            Ok((snapshot, data_version)) => Ok(Source { db, snapshot, data_version }),
            Err(error) => {
                db.close().await;
                Err(error)
            }
        }
    }

    async fn begin(db: &Db) -> Result<(Reader, Option<i64>)> {
        let found = migrate::version(&mut *db.read().await?).await?;
        if found != SCHEMA_VERSION {
            return Err(StoreError::SchemaDiffers { found, needed: SCHEMA_VERSION });
        }
        let mut snapshot = db.snapshot().await?;
        let version = match snapshot.wire() {
            Wire::Sqlite(c) => Some(data_version(c).await?),
            Wire::Pg(c) => {
                // The locks come first: a snapshot that is older than they are could miss a commit.
                unlimited_time(c).await?;
                sqlx::query("set local lock_timeout = '5s'").execute(&mut *c).await?;
                let names = migrate::tables(SCHEMA_VERSION).into_iter();
                let names = names.flat_map(|name| [", ", name]).skip(1);
                let pieces: Vec<_> =
                    ["lock table "].into_iter().chain(names).chain([" in share mode"]).collect();
                sqlx::query(join(&pieces)).execute(c).await?;
                None
            }
        };
        Ok((snapshot, version))
    }

    pub fn engine(&self) -> &'static str {
        self.db.engine()
    }

    /// The snapshot that is copied.
    pub fn reader(&mut self) -> &mut Conn {
        &mut self.snapshot
    }

    /// The number of rows in each table.
    #[boxed]
    pub async fn count_rows(&mut self) -> Result<Vec<(&'static str, u64)>> {
        let mut counts = Vec::new();
        for table in migrate::tables(SCHEMA_VERSION) {
            let text = join(&["select count(*) from ", table]);
            let (rows,): (i64,) = on!(self.snapshot, |c| sqlx::query_as(text).fetch_one(c).await)?;
            counts.push((table, rows.unsigned_abs()));
        }
        Ok(counts)
    }

    /// Closes the database. Fails with [`StoreError::Stale`] if another program changed it since it
    /// was opened: the copy is then not up to date.
    #[boxed]
    pub async fn close(self) -> Result<()> {
        let Source { db, snapshot, data_version: before } = self;
        drop(snapshot);
        let now = async {
            // The pool has one connection, so this is the one that read the snapshot.
            match db.read().await?.wire() {
                Wire::Sqlite(c) => data_version(c).await.map(Some),
                Wire::Pg(_) => Ok(None),
            }
        };
        let now = now.await;
        db.close().await;
        if now? == before { Ok(()) } else { Err(StoreError::Stale) }
    }
}

async fn data_version(c: &mut SqliteConnection) -> Result<i64> {
    Ok(sqlx::query_scalar("pragma data_version").fetch_one(c).await?)
}

/// A table is copied in one statement, and may take any time.
async fn unlimited_time(c: &mut PgConnection) -> Result<()> {
    for setting in ["statement_timeout", "idle_in_transaction_session_timeout"] {
        sqlx::query(join(&["set local ", setting, " = 0"])).execute(&mut *c).await?;
    }
    Ok(())
}

/// A table in the source and the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableContent {
    pub table: &'static str,
    pub rows: u64,
    /// The digest of its rows, sorted by primary key; the same for both engines.
    pub digest: Digest,
}

/// What a copy is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Copy,
    Verify,
}

/// How far a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub phase: Phase,
    pub table: &'static str,
    /// The rows of this table so far.
    pub rows: u64,
    /// How many more rows than in the previous report.
    pub new_rows: u64,
}

/// Begins the transaction that [`copy`] writes to, and creates the tables in it. Returns `None` if
/// the database already has one of them. Tables of other programs are not touched.
#[boxed]
pub async fn begin(target: &Db) -> Result<Option<Tx>> {
    let mut tx = target.begin().await?;
    migrate::lock(&mut tx).await?;
    let known = migrate::tables(SCHEMA_VERSION);
    let there: Vec<(String,)> = match tx.wire() {
        Wire::Sqlite(c) => sqlx::query_as("select name from sqlite_schema").fetch_all(c).await?,
        Wire::Pg(c) => {
            unlimited_time(c).await?;
            let text = "select tablename::text from pg_catalog.pg_tables
                         where schemaname = current_schema()";
            sqlx::query_as(text).fetch_all(c).await?
        }
    };
    if there.iter().any(|(name,)| known.contains(&name.as_str())) {
        tx.rollback().await?;
        return Ok(None);
    }
    migrate::create_at_version(&mut tx, SCHEMA_VERSION).await?;
    // Some migrations insert rows.
    for table in known.iter().rev() {
        let text = join(&["delete from ", table]);
        on!(tx, |c| sqlx::query(text).execute(c).await.map(drop))?;
    }
    Ok(Some(tx))
}

/// Copies every table, and returns what each of them contains.
#[boxed]
pub async fn copy(
    source: &mut Source,
    target: &mut Tx,
    observe: &mut (dyn FnMut(Progress) + Send),
) -> Result<Vec<TableContent>> {
    let mut copied = Vec::new();
    for table in migrate::schema(SCHEMA_VERSION) {
        let mut transfer = Transfer::new(&table, Phase::Copy, observe);
        let content = copy_table(&mut transfer, &mut source.snapshot, target).await;
        copied.push(content.map_err(|error| failed(&table, error))?);
    }
    if let Wire::Pg(c) = target.wire() {
        // Without statistics, the first queries of the service could be slow.
        for table in migrate::tables(SCHEMA_VERSION) {
            sqlx::query(join(&["analyze ", table])).execute(&mut *c).await?;
        }
    }
    Ok(copied)
}

async fn copy_table(
    transfer: &mut Transfer<'_>,
    source: &mut Conn,
    target: &mut Conn,
) -> Result<TableContent> {
    let table = transfer.table;
    match target.wire() {
        Wire::Sqlite(c) => transfer.read(source, &mut Sink::Sqlite(c)).await,
        Wire::Pg(c) => {
            let columns = column_list(table);
            let name = ["copy ", table.name, " ("].into_iter();
            let text: Vec<_> =
                name.chain(columns).chain([") from stdin (format binary)"]).collect();
            let mut rows = c.copy_in_raw(&join(&text).0).await?;
            rows.send(&tuple::HEADER[..]).await?;
            let mut sink = Sink::Pg(rows);
            let content = transfer.read(source, &mut sink).await;
            let Sink::Pg(mut rows) = sink else { return content };
            if content.is_ok() {
                rows.send(&tuple::TRAILER[..]).await?;
                rows.finish().await?;
            } else {
                // The first error is the cause.
                let _ = rows.abort("the source cannot be read").await;
            }
            content
        }
    }
}

/// Reads the target again, and compares it with what was copied.
#[boxed]
pub async fn verify(
    target: &mut Conn,
    copied: &[TableContent],
    observe: &mut (dyn FnMut(Progress) + Send),
) -> Result<()> {
    for table in migrate::schema(SCHEMA_VERSION) {
        let mut transfer = Transfer::new(&table, Phase::Verify, observe);
        let found = transfer.read(target, &mut Sink::Discard).await;
        let found = found.map_err(|error| failed(&table, error))?;
        if !copied.contains(&found) {
            return Err(StoreError::CopyDiffers { table: table.name });
        }
    }
    Ok(())
}

fn failed(table: &Table, error: StoreError) -> StoreError {
    StoreError::Table { table: table.name, source: Box::new(error) }
}

/// Where the rows of a table go.
enum Sink<'c> {
    Discard,
    Sqlite(&'c mut SqliteConnection),
    Pg(PgCopyIn<&'c mut PgConnection>),
}

/// Reads one table from one database, and writes it to another.
struct Transfer<'t> {
    table: &'t Table,
    phase: Phase,
    observe: &'t mut (dyn FnMut(Progress) + Send),
    hasher: blake3::Hasher,
    rows: u64,
    /// Rows that are not written yet.
    chunk: Vec<u8>,
    chunk_rows: u64,
}

impl<'t> Transfer<'t> {
    fn new(table: &'t Table, phase: Phase, observe: &'t mut (dyn FnMut(Progress) + Send)) -> Self {
        let hasher = blake3::Hasher::new();
        Self { table, phase, observe, hasher, rows: 0, chunk: Vec::new(), chunk_rows: 0 }
    }

    async fn read(&mut self, source: &mut Conn, sink: &mut Sink<'_>) -> Result<TableContent> {
        let columns = column_list(self.table);
        let key = self.table.key.iter().flat_map(|name| [", ", name]).skip(1);
        let select: Vec<_> = ["select "]
            .into_iter()
            .chain(columns)
            .chain([" from ", self.table.name, " order by "])
            .chain(key)
            .collect();
        match source.wire() {
            Wire::Sqlite(c) => {
                let mut rows = sqlx::query(join(&select)).fetch(c);
                while let Some(row) = rows.try_next().await? {
                    tuple::encode(&row, self.table, &mut self.chunk)?;
                    self.chunk_rows += 1;
                    self.write_full_chunk(sink).await?;
                }
            }
            Wire::Pg(c) => {
                let text: Vec<_> = ["copy ("]
                    .into_iter()
                    .chain(select)
                    .chain([") to stdout (format binary)"])
                    .collect();
                let mut stream = c.copy_out_raw(&join(&text).0).await?;
                let mut splitter = Splitter::default();
                while let Some(piece) = stream.next().await {
                    splitter.add(&piece?);
                    while let Next::Tuple(tuple) = splitter.next() {
                        self.chunk.extend_from_slice(tuple);
                        self.chunk_rows += 1;
                        self.write_full_chunk(sink).await?;
                    }
                }
                splitter.finish(self.table.name)?;
            }
        }
        self.write_chunk(sink).await?;
        let digest = Digest::from_bytes(*self.hasher.finalize().as_bytes());
        Ok(TableContent { table: self.table.name, rows: self.rows, digest })
    }

    async fn write_full_chunk(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        if self.chunk.len() < CHUNK_BYTES {
            return Ok(());
        }
        self.write_chunk(sink).await
    }

    async fn write_chunk(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        self.hasher.update(&self.chunk);
        match sink {
            Sink::Discard => {}
            Sink::Sqlite(c) => insert(c, self.table, &self.chunk).await?,
            Sink::Pg(rows) => {
                rows.send(&self.chunk[..]).await?;
            }
        }
        self.rows += self.chunk_rows;
        let new_rows = std::mem::take(&mut self.chunk_rows);
        self.chunk.clear();
        let (phase, table, rows) = (self.phase, self.table.name, self.rows);
        (self.observe)(Progress { phase, table, rows, new_rows });
        Ok(())
    }
}

/// The names of the columns, separated by commas.
fn column_list(table: &Table) -> impl Iterator<Item = &'static str> {
    table.columns.iter().flat_map(|column| [", ", column.name]).skip(1)
}

/// Inserts the rows of a chunk into SQLite.
async fn insert(c: &mut SqliteConnection, table: &Table, chunk: &[u8]) -> Result<()> {
    let rows_max = ROWS_MAX.min(SQLITE_VALUES_MAX / table.columns.len());
    let mut rows = tuple::split(chunk).peekable();
    while rows.peek().is_some() {
        let part: Vec<_> = rows.by_ref().take(rows_max).collect();
        let mut text = vec!["insert into ", table.name, " ("];
        text.extend(column_list(table));
        text.push(") values ");
        for row in 0..part.len() {
            text.push(if row == 0 { "(?" } else { ", (?" });
            text.extend(table.columns.iter().skip(1).map(|_| ", ?"));
            text.push(")");
        }
        // Only full statements repeat.
        let mut query = sqlx::query(join(&text)).persistent(part.len() == rows_max);
        for row in part {
            query = tuple::bind(query, row, table)?;
        }
        query.execute(&mut *c).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
