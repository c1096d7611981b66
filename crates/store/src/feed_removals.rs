//! Feeds that an operator removed.
//!
//! A row outlives the feed: it keeps the service from following a built-in feed again on its own.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::put;
use crate::tx::Tx;

/// The names of all removed feeds, in order.
#[boxed]
pub async fn list(conn: &mut Conn) -> Result<Vec<String>> {
    let found: Vec<(String,)> = on!(conn, |c| {
        sqlx::query_as("select name from feed_removals order by name").fetch_all(c).await
    })?;
    Ok(found.into_iter().map(|(name,)| name).collect())
}

/// Whether this feed was removed.
#[boxed]
pub async fn contains(conn: &mut Conn, name: &str) -> Result<bool> {
    let found = on!(conn, |c| {
        sqlx::query("select 1 from feed_removals where name = $1")
            .bind(name)
            .fetch_optional(c)
            .await
            .map(|row| row.is_some())
    })?;
    Ok(found)
}

#[boxed]
pub async fn add(tx: &mut Tx, name: &str, at: Timestamp) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(
            "insert into feed_removals (name, removed_at) values ($1, $2)
             on conflict (name) do nothing",
        )
        .bind(name)
        .bind(put(&at))
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// Allows the feed again.
#[boxed]
pub async fn delete(tx: &mut Tx, name: &str) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("delete from feed_removals where name = $1")
            .bind(name)
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}
