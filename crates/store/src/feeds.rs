//! Imported feeds, and the revision that grows whenever any advisory data changes.
//!
//! [`crate::advisories`] stores what a feed contains; [`crate::feed_sources`] says where it is
//! downloaded from.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::{put, row};
use crate::sql::join;
use crate::tx::Tx;

row! {
    /// A feed, as of its last import.
    pub struct Feed in "feeds" by "name" {
        pub name: String,
        /// The format of its content.
        pub kind: String,
        /// Where it was read from.
        pub source: String,
        pub records: u64,
        pub size_bytes: u64,
        /// The date of its content.
        pub as_of: Option<Timestamp>,
        /// When it was last imported; `None` if it never was.
        pub imported_at: Option<Timestamp>,
        /// Why the last attempt failed.
        pub last_error: Option<String>,
        /// When it was last attempted.
        pub tried_at: Timestamp,
        /// When it was last known to be up to date: imported, or unchanged at its publisher.
        pub checked_at: Option<Timestamp>,
    }
}

#[boxed]
pub async fn list(conn: &mut Conn) -> Result<Vec<Feed>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&["select ", Feed::COLUMNS, " from feeds order by name"]))
            .fetch_all(c)
            .await
    })?)
}

/// The feeds whose first import has not ended: it runs, or it was interrupted.
pub(crate) const INCOMPLETE: &str = "select name from feeds where imported_at is null
     union
     select name from feed_progress
      where name not in (select name from feeds where imported_at is not null)";

/// The names of the feeds whose first import has not ended, in order.
#[boxed]
pub async fn incomplete(conn: &mut Conn) -> Result<Vec<String>> {
    let found: Vec<(String,)> = on!(conn, |c| {
        sqlx::query_as(join(&[INCOMPLETE, " order by name"])).fetch_all(c).await
    })?;
    Ok(found.into_iter().map(|(name,)| name).collect())
}

/// Records a successful import.
#[boxed]
pub async fn record_import(tx: &mut Tx, feed: &Feed) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(
            "insert into feeds (name, kind, source, records, size_bytes, as_of, imported_at, last_error, tried_at,
                checked_at)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
             on conflict (name) do update
                set kind = excluded.kind, source = excluded.source, records = excluded.records,
                    size_bytes = excluded.size_bytes, as_of = excluded.as_of,
                    imported_at = excluded.imported_at, last_error = excluded.last_error,
                    tried_at = excluded.tried_at, checked_at = excluded.checked_at",
        )
        .bind(put(&feed.name))
        .bind(put(&feed.kind))
        .bind(put(&feed.source))
        .bind(put(&feed.records))
        .bind(put(&feed.size_bytes))
        .bind(put(&feed.as_of))
        .bind(put(&feed.imported_at))
        .bind(put(&feed.last_error))
        .bind(put(&feed.tried_at))
        .bind(put(&feed.checked_at))
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// Records a failed import. The data and date of the last successful one stay.
#[boxed]
pub async fn record_failure(
    tx: &mut Tx,
    (name, kind, source): (&str, &str, &str),
    why: &str,
    at: Timestamp,
) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(
            "insert into feeds (name, kind, source, records, size_bytes, last_error, tried_at)
             values ($1, $2, $3, 0, 0, $4, $5)
             on conflict (name) do update
                set last_error = excluded.last_error, tried_at = excluded.tried_at",
        )
        .bind(name)
        .bind(kind)
        .bind(source)
        .bind(why)
        .bind(put(&at))
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// Records that a feed has not changed at its publisher.
#[boxed]
pub async fn record_unchanged(tx: &mut Tx, name: &str, at: Timestamp) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(
            "update feeds set last_error = null, tried_at = $1, checked_at = $1 where name = $2",
        )
        .bind(put(&at))
        .bind(name)
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// Deletes the record of a feed, but not its advisories.
#[boxed]
pub async fn delete(tx: &mut Tx, name: &str) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("delete from feeds where name = $1").bind(name).execute(c).await.map(drop)
    })?;
    Ok(())
}

/// Grows whenever any advisory data changes.
#[boxed]
pub async fn revision(conn: &mut Conn) -> Result<i64> {
    let (revision,) =
        on!(conn, |c| { sqlx::query_as("select revision from feed_revision").fetch_one(c).await })?;
    Ok(revision)
}

/// Starts a change and returns its revision. Other transactions that change advisory data wait
/// until this one ends. [`revert_revision`] reverts the number if nothing changed.
#[boxed]
pub async fn next_revision(tx: &mut Tx) -> Result<i64> {
    let (revision,) = on!(tx, |c| {
        sqlx::query_as("update feed_revision set revision = revision + 1 returning revision")
            .fetch_one(c)
            .await
    })?;
    Ok(revision)
}

/// Reverts [`next_revision`], because nothing changed.
#[boxed]
pub async fn revert_revision(tx: &mut Tx) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("update feed_revision set revision = revision - 1").execute(c).await.map(drop)
    })?;
    Ok(())
}
