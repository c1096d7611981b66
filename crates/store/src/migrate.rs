//! The tables, made and brought up to date when the database is opened.
//!
//! One series, forward only, one text for both engines in which `{{time}}`, `{{bytes}}` and a few
//! more words stand for a column type. All of it happens in one transaction under a lock, so two
//! replicas that start at once make the tables once. A database that a newer release has written is
//! refused before anything is touched, and so is one made with other texts than ours.

use crate::db::{Conn, Db, Wire, on};
use crate::error::{Result, StoreError};
use crate::sql::{Dialect, POSTGRES, SQLITE};
use crate::tx::Tx;

struct Migration {
    version: i64,
    name: &'static str,
    text: &'static str,
}

macro_rules! series {
    ($($version:literal $name:literal,)*) => {
        &[$(Migration {
            version: $version,
            name: $name,
            text: include_str!(concat!("../migrations/", $name, ".sql")),
        },)*]
    };
}

const SERIES: &[Migration] = series! {
    1 "0001_foundation",
    2 "0002_fleet",
    3 "0003_work",
    4 "0004_agents",
    5 "0005_patches",
    6 "0006_effects",
    7 "0007_at_work",
    8 "0008_counts",
    9 "0009_feeds",
    10 "0010_findings",
    11 "0011_suppressions",
    12 "0012_feed_sources",
    14 "0014_users",
};

/// The newest schema that this binary knows.
pub const SCHEMA_VERSION: i64 = SERIES[SERIES.len() - 1].version;

/// What the cluster-wide lock is called: "fleetmend" has no number, so this one was drawn once.
const LOCK: i64 = 0x666c_6565_746d_6e64;

impl Migration {
    /// Of the text as we wrote it, so that it is the same in both engines.
    fn checksum(&self) -> Vec<u8> {
        vocab::Digest::of(self.text.as_bytes()).as_bytes().to_vec()
    }
}

/// Makes the database what this release expects, or says why it cannot be.
pub(crate) async fn run(db: &Db) -> Result<()> {
    // The common start finds nothing to do and takes no lock.
    let mut reader = db.writer_connection().await?;
    let applied = applied(&mut reader).await?;
    drop(reader);
    check(&applied)?;
    if applied.len() == SERIES.len() {
        return Ok(());
    }
    let mut tx = db.begin().await?;
    lock(&mut tx).await?;
    apply_missing(&mut tx).await?;
    tx.commit().await
}

/// Whether this release may open the database at all. Reads and nothing else.
pub(crate) async fn check_fit(conn: &mut Conn) -> Result<()> {
    check(&applied(conn).await?)
}

async fn lock(tx: &mut Tx) -> Result<()> {
    // SQLite's transaction is `begin immediate`: it has the lock already.
    if let Wire::Pg(c) = tx.wire() {
        sqlx::query("set local statement_timeout = 0").execute(&mut *c).await?;
        sqlx::query("select pg_advisory_xact_lock($1)").bind(LOCK).execute(c).await?;
    }
    Ok(())
}

async fn apply_missing(tx: &mut Tx) -> Result<()> {
    // Again, now under the lock: another replica may have been faster, or newer.
    let known = applied(tx).await?;
    check(&known)?;
    if known.is_empty() {
        run_text(
            tx,
            "create table if not exists schema_migrations (
                version {{int}} primary key, name {{text}} not null, checksum {{bytes}} not null
             ) {{strict}}",
        )
        .await?;
    }
    for migration in &SERIES[known.len()..] {
        run_text(tx, migration.text).await?;
        on!(tx, |c| {
            sqlx::query(
                "insert into schema_migrations (version, name, checksum) values ($1, $2, $3)",
            )
            .bind(migration.version)
            .bind(migration.name)
            .bind(migration.checksum())
            .execute(c)
            .await
            .map(drop)
        })?;
    }
    Ok(())
}

async fn run_text(tx: &mut Tx, text: &'static str) -> Result<()> {
    let spelled = |dialect: &Dialect| sqlx::raw_sql(dialect.migration(text));
    match tx.wire() {
        Wire::Sqlite(c) => spelled(&SQLITE).execute(c).await.map(drop)?,
        Wire::Pg(c) => spelled(&POSTGRES).execute(c).await.map(drop)?,
    }
    Ok(())
}

type Applied = Vec<(i64, String, Vec<u8>)>;

/// What this database has seen, in order.
async fn applied(conn: &mut Conn) -> Result<Applied> {
    let exists = match conn.wire() {
        Wire::Sqlite(c) => {
            sqlx::query("select 1 from sqlite_schema where name = 'schema_migrations'")
                .fetch_optional(c)
                .await?
                .is_some()
        }
        Wire::Pg(c) => sqlx::query(
            "select 1 from pg_catalog.pg_tables
                  where tablename = 'schema_migrations' and schemaname = current_schema()",
        )
        .fetch_optional(c)
        .await?
        .is_some(),
    };
    if !exists {
        return Ok(Vec::new());
    }
    Ok(on!(conn, |c| {
        sqlx::query_as("select version, name, checksum from schema_migrations order by version")
            .fetch_all(c)
            .await
    })?)
}

fn check(applied: &Applied) -> Result<()> {
    if let Some((found, ..)) = applied.last()
        && *found > SCHEMA_VERSION
    {
        return Err(StoreError::NewerDatabase { found: *found, known: SCHEMA_VERSION });
    }
    for ((version, name, checksum), ours) in applied.iter().zip(SERIES) {
        if *version != ours.version || *checksum != ours.checksum() {
            return Err(StoreError::MigrationChanged { version: *version, name: name.clone() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_is_numbered_without_a_gap() {
        for (place, migration) in (1..).zip(SERIES) {
            assert_eq!(migration.version, place);
            assert!(migration.name.starts_with(&format!("{place:04}_")), "{}", migration.name);
        }
    }

    #[test]
    fn every_word_in_braces_is_known_to_both_engines() {
        for migration in SERIES {
            for dialect in [&SQLITE, &POSTGRES] {
                assert!(!dialect.migration(migration.text).0.contains("{{"), "{}", migration.name);
            }
        }
    }
}
