//! Feeds that are downloaded automatically: the URL, the next download, and the last version.
//!
//! [`crate::feeds`] records imports.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::{put, row};
use crate::sql::join;
use crate::tx::Tx;

row! {
    /// A feed that is downloaded automatically.
    pub struct FeedSource in "feed_sources" by "name" {
        pub name: String,
        pub url: String,
        /// The format of its content; `None` if it is detected.
        pub kind: Option<String>,
        pub every_seconds: u32,
        /// When it is downloaded next.
        pub next_at: Timestamp,
        /// The number of failed downloads in a row.
        pub failures: u32,
        /// The `ETag` of the last imported version.
        pub etag: Option<String>,
        /// The `Last-Modified` of the last imported version.
        pub last_modified: Option<String>,
        /// Whether the service follows it because servers need it, and no operator added it.
        pub automatic: bool,
    }
}

/// All sources, by name.
#[boxed]
pub async fn list(conn: &mut Conn) -> Result<Vec<FeedSource>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&["select ", FeedSource::COLUMNS, " from feed_sources order by name"]))
            .fetch_all(c)
            .await
    })?)
}

/// Adds a source, or replaces the one with the same name.
#[boxed]
pub async fn save(tx: &mut Tx, source: &FeedSource) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(
            "insert into feed_sources
                (name, url, kind, every_seconds, next_at, failures, etag, last_modified, automatic)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
             on conflict (name) do update
                set url = excluded.url, kind = excluded.kind, every_seconds = excluded.every_seconds,
                    next_at = excluded.next_at, failures = excluded.failures, etag = excluded.etag,
                    last_modified = excluded.last_modified, automatic = excluded.automatic",
        )
        .bind(put(&source.name))
        .bind(put(&source.url))
        .bind(put(&source.kind))
        .bind(put(&source.every_seconds))
        .bind(put(&source.next_at))
        .bind(put(&source.failures))
        .bind(put(&source.etag))
        .bind(put(&source.last_modified))
        .bind(source.automatic)
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// Records the result of a download, unless the source was deleted or its URL changed. Returns
/// whether it was recorded.
#[boxed]
pub async fn record_fetch(tx: &mut Tx, source: &FeedSource) -> Result<bool> {
    let noted = on!(tx, |c| {
        sqlx::query(
            "update feed_sources
                set next_at = $1, failures = $2, etag = $3, last_modified = $4
              where name = $5 and url = $6",
        )
        .bind(put(&source.next_at))
        .bind(put(&source.failures))
        .bind(put(&source.etag))
        .bind(put(&source.last_modified))
        .bind(put(&source.name))
        .bind(put(&source.url))
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?;
    Ok(noted == 1)
}

/// Makes a source due at this time. Returns whether it exists.
#[boxed]
pub async fn set_due(tx: &mut Tx, name: &str, at: Timestamp) -> Result<bool> {
    let changed = on!(tx, |c| {
        sqlx::query("update feed_sources set next_at = $1 where name = $2")
            .bind(put(&at))
            .bind(name)
            .execute(c)
            .await
            .map(|done| done.rows_affected())
    })?;
    Ok(changed == 1)
}

/// Deletes a source. The imported data stays. Returns whether the source existed.
#[boxed]
pub async fn delete(tx: &mut Tx, name: &str) -> Result<bool> {
    let gone = on!(tx, |c| {
        sqlx::query("delete from feed_sources where name = $1")
            .bind(name)
            .execute(c)
            .await
            .map(|done| done.rows_affected())
    })?;
    Ok(gone == 1)
}
