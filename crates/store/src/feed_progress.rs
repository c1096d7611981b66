//! Imports in progress, so that every replica can show them.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::{put, row};
use crate::sql::join;
use crate::tx::Tx;

row! {
    /// The progress of the import of one feed.
    pub struct FeedProgress in "feed_progress" by "name" {
        pub name: String,
        /// `downloading`, `checking` or `importing`.
        pub phase: String,
        pub bytes: u64,
        /// `None` if the publisher does not say.
        pub total_bytes: Option<u64>,
        pub records: u64,
        /// `None` before the feed was checked.
        pub total_records: Option<u64>,
        pub phase_started_at: Timestamp,
        /// Old if the process that wrote it was killed.
        pub updated_at: Timestamp,
    }
}

/// All imports in progress, by name.
#[boxed]
pub async fn list(conn: &mut Conn) -> Result<Vec<FeedProgress>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            FeedProgress::COLUMNS,
            " from feed_progress order by name",
        ]))
        .fetch_all(c)
        .await
    })?)
}

#[boxed]
pub async fn save(tx: &mut Tx, progress: &FeedProgress) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(
            "insert into feed_progress
                (name, phase, bytes, total_bytes, records, total_records, phase_started_at, updated_at)
             values ($1, $2, $3, $4, $5, $6, $7, $8)
             on conflict (name) do update
                set phase = excluded.phase, bytes = excluded.bytes,
                    total_bytes = excluded.total_bytes, records = excluded.records,
                    total_records = excluded.total_records,
                    phase_started_at = excluded.phase_started_at, updated_at = excluded.updated_at",
        )
        .bind(put(&progress.name))
        .bind(put(&progress.phase))
        .bind(put(&progress.bytes))
        .bind(put(&progress.total_bytes))
        .bind(put(&progress.records))
        .bind(put(&progress.total_records))
        .bind(put(&progress.phase_started_at))
        .bind(put(&progress.updated_at))
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// Deletes the progress of an import that ended.
#[boxed]
pub async fn delete(tx: &mut Tx, name: &str) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("delete from feed_progress where name = $1")
            .bind(name)
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}
