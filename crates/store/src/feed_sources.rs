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
    /// A feed that is kept up to date.
    pub struct Source in "feed_sources" by "name" {
        /// What the feed is called.
        pub name: String,
        /// Where it is published.
        pub url: String,
        /// What it holds; nothing where its beginning tells.
        pub kind: Option<String>,
        /// How often it is fetched.
        pub every_seconds: u32,
        /// When it is fetched next.
        pub next_at: Timestamp,
        /// How many times in a row it could not be had.
        pub failures: u32,
        /// What its publisher calls the copy that was last taken in.
        pub etag: Option<String>,
        /// Of when its publisher says that copy is.
        pub last_modified: Option<String>,
    }
}

/// All of them, by name.
#[boxed]
pub async fn list(conn: &mut Conn) -> Result<Vec<Source>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&["select ", Source::COLUMNS, " from feed_sources order by name"]))
            .fetch_all(c)
            .await
    })?)
}

/// The one that is due first.
#[boxed]
pub async fn first_due(conn: &mut Conn) -> Result<Option<Source>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Source::COLUMNS,
            " from feed_sources order by next_at, name limit 1",
        ]))
        .fetch_optional(c)
        .await
    })?)
}

/// Keeps a feed up to date from now on, or otherwise than until now.
#[boxed]
pub async fn put_source(tx: &mut Tx, source: &Source) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(
            "insert into feed_sources
                (name, url, kind, every_seconds, next_at, failures, etag, last_modified)
             values ($1, $2, $3, $4, $5, $6, $7, $8)
             on conflict (name) do update
                set url = excluded.url, kind = excluded.kind, every_seconds = excluded.every_seconds,
                    next_at = excluded.next_at, failures = excluded.failures, etag = excluded.etag,
                    last_modified = excluded.last_modified",
        )
        .bind(put(&source.name))
        .bind(put(&source.url))
        .bind(put(&source.kind))
        .bind(put(&source.every_seconds))
        .bind(put(&source.next_at))
        .bind(put(&source.failures))
        .bind(put(&source.etag))
        .bind(put(&source.last_modified))
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// Notes what came of a fetch, unless the feed is fetched from elsewhere by now, or no longer. Says whether it was noted.
#[boxed]
pub async fn fetched(tx: &mut Tx, source: &Source) -> Result<bool> {
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

/// Fetches a feed no more. What was taken in of it stays. Says whether it was fetched until now.
#[boxed]
pub async fn forget(tx: &mut Tx, name: &str) -> Result<bool> {
    let gone = on!(tx, |c| {
        sqlx::query("delete from feed_sources where name = $1")
            .bind(name)
            .execute(c)
            .await
            .map(|done| done.rows_affected())
    })?;
    Ok(gone == 1)
}
