//! When each server was last seen.
//!
//! Written thousands of times per second. The caller collects contacts and writes them in a few
//! large statements to a narrow table, so a contact touches neither the row of the server nor its
//! indexes.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use vocab::{OrgId, ServerId};

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::{put, row};
use crate::sql::{ROWS_MAX, Text, join};
use crate::tx::Tx;

/// A sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// Whose server.
    pub org: OrgId,
    /// Which server.
    pub server_id: ServerId,
    /// When it was heard.
    pub seen_at: Timestamp,
    /// The counter of its sync.
    pub counter: i64,
}

row! {
    /// When one server was last heard from.
    pub struct Presence in "presence" by "server_id" {
        /// Which server.
        pub server_id: ServerId,
        /// When.
        pub last_seen_at: Timestamp,
        /// The counter of its last sync.
        pub counter: i64,
    }
}

/// By how much clocks of replicas may differ.
const AHEAD_MAX: SignedDuration = SignedDuration::from_secs(10);

/// Notes signs of life. The counter of a server never goes back, and neither does its time, except
/// one that lies ahead of `now`: a wrong clock wrote that, and without the exception the server would
/// count as offline for as long as that clock was wrong. Servers that were removed are passed over.
/// Returns how many rows changed.
#[boxed]
pub async fn beat(tx: &mut Tx, beats: &[Beat], now: Timestamp) -> Result<u64> {
    let latest_possible = now.saturating_add(AHEAD_MAX).unwrap_or(Timestamp::MAX);
    // Each server once, with the latest of each; sorted, so that replicas lock rows in one order.
    let mut latest = BTreeMap::new();
    for beat in beats {
        let (seen_at, counter) =
            latest.entry((beat.org, beat.server_id)).or_insert((Timestamp::MIN, beat.counter));
        *seen_at = beat.seen_at.min(now).max(*seen_at);
        *counter = beat.counter.max(*counter);
    }
    let latest: Vec<_> = latest.into_iter().collect();
    let mut moved = 0;
    for chunk in latest.chunks(ROWS_MAX) {
        moved += on!(tx, |c| {
            Text::new("with v (of_org, server, seen, syncs) as (")
                .rows(chunk, |row, ((org, server), (seen_at, counter))| {
                    row.bind(put(org)).bind(put(server)).bind(put(seen_at)).bind(*counter);
                })
                .add(
                    ") update presence
                       set last_seen_at =
                                case when v.seen > last_seen_at or last_seen_at > ",
                )
                .bind(put(&latest_possible))
                .add(
                    " then v.seen else last_seen_at end,
                           counter = case when v.syncs > counter then v.syncs else counter end
                      from v
                     where org = v.of_org and server_id = v.server
                       and (v.seen > last_seen_at or v.syncs > counter or last_seen_at > ",
                )
                .bind(put(&latest_possible))
                .add(")")
                .build()
                .execute(c)
                .await
                .map(|done| done.rows_affected())
        })?;
    }
    Ok(moved)
}

/// Counters up to a multiple of this are over once a server is released from quarantine: requests that were captured
/// before carry them. No agent gets there by counting.
pub const EPOCH: i64 = 1 << 40;

/// The first counter of the epoch after that of `counter`.
pub fn next_epoch(counter: i64) -> i64 {
    (counter / EPOCH).saturating_add(1).saturating_mul(EPOCH)
}

/// Sets the counter, also back: a person decided which of two copies is the real server.
#[boxed]
pub async fn set_counter(tx: &mut Tx, org: OrgId, id: ServerId, counter: i64) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("update presence set counter = $1 where org = $2 and server_id = $3")
            .bind(counter)
            .bind(put(&org))
            .bind(put(&id))
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// When every server of the organization was last heard from.
#[boxed]
pub async fn all(conn: &mut Conn, org: OrgId) -> Result<Vec<Presence>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Presence::COLUMNS,
            " from presence where org = $1 order by server_id",
        ]))
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?)
}
