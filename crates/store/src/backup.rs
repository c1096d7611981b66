//! Online backup of the whole database as of one point in time, and restore.
//!
//! SQLite copies itself into one file. PostgreSQL copies its tables within one snapshot, each into
//! a file in the text format of `COPY`; that needs no external program, whose version would have to
//! match. A restore creates the tables with the migrations that created them first.

use async_recursion::async_recursion as boxed;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read as _, Write as _};
use std::path::Path;

use futures_util::StreamExt as _;

use crate::db::{Db, Wire};
use crate::error::{Result, StoreError};
use crate::migrate;
use crate::sql::join;
use crate::tx::Tx;

/// The file name of SQLite's copy.
pub const SQLITE_FILE: &str = "database.sqlite";

/// Number of bytes that are sent to PostgreSQL at a time.
const CHUNK_BYTES: usize = 256 * 1024;

/// The result of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupFiles {
    /// The version of the last migration that was applied.
    pub schema_version: i64,
    pub files: Vec<String>,
}

/// The names of the files in a backup of this schema; empty for an unknown engine.
pub fn file_names(engine: &str, schema_version: i64) -> Vec<String> {
    match engine {
        "sqlite" => vec![SQLITE_FILE.to_owned()],
        "postgres" => {
            migrate::tables(schema_version).iter().map(|table| format!("{table}.copy")).collect()
        }
        _ => Vec::new(),
    }
}

/// Copies everything into `dir`, which must exist and be empty.
#[boxed]
pub async fn copy_out(db: &Db, dir: &Path) -> Result<BackupFiles> {
    let mut snapshot = db.snapshot().await?;
    let schema_version = migrate::version(&mut snapshot).await?;
    let mut files = Vec::new();
    match snapshot.wire() {
        Wire::Sqlite(_) => {
            // `vacuum into` takes its own snapshot and cannot run inside another.
            drop(snapshot);
            let path = dir.join(SQLITE_FILE);
            let mut reader = db.read().await?;
            let Wire::Sqlite(c) = reader.wire() else { return Err(StoreError::Stale) };
            let into = path.to_string_lossy().into_owned();
            sqlx::query("vacuum into $1").bind(into).execute(c).await?;
            files.push(SQLITE_FILE.to_owned());
        }
        Wire::Pg(c) => {
            for table in migrate::tables(schema_version) {
                let name = format!("{table}.copy");
                let path = dir.join(&name);
                let failed = |source| StoreError::File { path: path.clone(), source };
                let mut file = BufWriter::new(File::create_new(&path).map_err(failed)?);
                let statement = join(&["copy ", table, " to stdout"]).0;
                let mut rows = c.copy_out_raw(&statement).await?;
                while let Some(piece) = rows.next().await {
                    file.write_all(&piece?).map_err(failed)?;
                }
                file.flush().map_err(failed)?;
                files.push(name);
            }
        }
    }
    Ok(BackupFiles { schema_version, files })
}

/// Replaces the content of this PostgreSQL database with the backup in `dir`, and migrates it.
/// Nothing changes until the returned transaction is committed. Tables of other programs are not
/// touched.
#[boxed]
pub async fn copy_in(db: &Db, dir: &Path, schema_version: i64) -> Result<Tx> {
    let mut tx = db.begin().await?;
    migrate::lock(&mut tx).await?;
    drop_tables(&mut tx).await?;
    migrate::create_at_version(&mut tx, schema_version).await?;
    let tables = migrate::tables(schema_version);
    let Wire::Pg(c) = tx.wire() else {
        let why = "a backup of PostgreSQL can only be restored into PostgreSQL".to_owned();
        return Err(StoreError::BadAddress { why });
    };
    // Some migrations insert rows.
    for table in tables.iter().rev() {
        sqlx::query(join(&["delete from ", table])).execute(&mut *c).await?;
    }
    for table in tables {
        let path = dir.join(format!("{table}.copy"));
        let failed = |source| StoreError::File { path: path.clone(), source };
        let mut file = BufReader::new(File::open(&path).map_err(failed)?);
        let mut piece = vec![0; CHUNK_BYTES];
        let mut rows = c.copy_in_raw(&join(&["copy ", table, " from stdin"]).0).await?;
        loop {
            let length = file.read(&mut piece).map_err(failed)?;
            if length == 0 {
                break;
            }
            rows.send(&piece[..length]).await?;
        }
        rows.finish().await?;
    }
    // Also refuses a backup that was made with other migrations than ours.
    migrate::apply_missing(&mut tx).await?;
    Ok(tx)
}

/// Drops only our tables: other programs may have tables in the same schema.
async fn drop_tables(tx: &mut Tx) -> Result<()> {
    let there = migrate::version(tx).await?;
    for table in migrate::tables(there).iter().rev() {
        let Wire::Pg(c) = tx.wire() else { continue };
        sqlx::query(join(&["drop table if exists ", table])).execute(c).await?;
    }
    Ok(())
}

/// Problems in the structure of a SQLite database; empty if there are none. PostgreSQL checks its
/// own structure.
#[boxed]
pub async fn check_integrity(db: &Db) -> Result<Vec<String>> {
    let mut reader = db.read().await?;
    let Wire::Sqlite(c) = reader.wire() else { return Ok(Vec::new()) };
    let found: Vec<(String,)> = sqlx::query_as("pragma quick_check(10)").fetch_all(&mut *c).await?;
    let mut damage: Vec<String> =
        found.into_iter().map(|(line,)| line).filter(|line| line != "ok").collect();
    let orphans = sqlx::query("pragma foreign_key_check").fetch_all(c).await?;
    if !orphans.is_empty() {
        damage.push(format!("{} rows refer to rows that do not exist", orphans.len()));
    }
    Ok(damage)
}
