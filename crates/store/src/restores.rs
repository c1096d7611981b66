//! How many times a backup was restored into this installation.
//!
//! [`begin_epoch`] also increases event numbers and fencing tokens, so that numbers which were
//! assigned after the backup are never assigned again.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::put;
use crate::tx::Tx;

/// How far numbers jump at a restore: further than any installation counts between a backup and its
/// restore. Clients that saw events, and processes that held leases, which the restore has lost
/// must not find the same numbers assigned to others.
const NUMBER_JUMP: i64 = 1_000_000_000;

/// Starts the next epoch and returns its number: how many times a backup was restored.
#[boxed]
pub async fn begin_epoch(tx: &mut Tx, now: Timestamp) -> Result<u64> {
    on!(tx, |c| {
        sqlx::query("update event_heads set sequence = sequence + $1")
            .bind(NUMBER_JUMP)
            .execute(c)
            .await
            .map(drop)
    })?;
    on!(tx, |c| {
        sqlx::query("update leases set token = token + $1, until = $2")
            .bind(NUMBER_JUMP)
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

/// How many times a backup was restored.
#[boxed]
pub async fn epoch(conn: &mut Conn) -> Result<u64> {
    let found: Option<(i64,)> = on!(conn, |c| {
        sqlx::query_as("select value from counters where name = 'restores'").fetch_optional(c).await
    })?;
    Ok(found.map_or(0, |(epoch,)| epoch.unsigned_abs()))
}
