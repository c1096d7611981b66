//! How often a backup was restored into this installation.
//!
//! [`begin_epoch`] also raises event numbers and fencing tokens, so that numbers which were given
//! out after the backup are never given out again.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::put;
use crate::tx::Tx;

/// How far numbers leap at a restore: further than any installation comes between a backup and its restore. Whoever has
/// seen the events, or held the leases, that are forgotten now must not find their numbers given to others.
const LEAP: i64 = 1_000_000_000;

/// Begins another epoch, and answers with its number: how often a backup was restored.
#[boxed]
pub async fn begin_epoch(tx: &mut Tx, now: Timestamp) -> Result<u64> {
    on!(tx, |c| {
        sqlx::query("update counters set value = value + $1 where name = 'events'")
            .bind(LEAP)
            .execute(c)
            .await
            .map(drop)
    })?;
    on!(tx, |c| {
        sqlx::query("update leases set token = token + $1, until = $2")
            .bind(LEAP)
            .bind(put(&now))
            .execute(c)
            .await
            .map(drop)
    })?;
    let (epoch,): (i64,) = on!(tx, |c| {
        sqlx::query_as(
            "insert into counters (name, value) values ('restores', 1)
             on conflict (name) do update set value = counters.value + 1
             returning value",
        )
        .fetch_one(c)
        .await
    })?;
    Ok(epoch.unsigned_abs())
}

/// How often a backup was restored.
#[boxed]
pub async fn epoch(conn: &mut Conn) -> Result<u64> {
    let found: Option<(i64,)> = on!(conn, |c| {
        sqlx::query_as("select value from counters where name = 'restores'").fetch_optional(c).await
    })?;
    Ok(found.map_or(0, |(epoch,)| epoch.unsigned_abs()))
}
