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

/// A contact of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contact {
    pub org: OrgId,
    pub server_id: ServerId,
    pub seen_at: Timestamp,
    /// The counter of its sync.
    pub counter: i64,
}

row! {
    /// When a server was last seen.
    pub struct Presence in "presence" by "server_id" {
        pub server_id: ServerId,
        pub last_seen_at: Timestamp,
        /// The counter of its last sync.
        pub counter: i64,
    }
}

/// The maximum difference between the clocks of replicas.
const CLOCK_SKEW_MAX: SignedDuration = SignedDuration::from_secs(10);

/// Records contacts. Neither the counter of a server nor its time of last contact ever decreases,
/// except a time that is ahead of `now`: a wrong clock wrote it, and without this exception the
/// server would count as offline until that time has passed. Removed servers are skipped. Returns
/// how many rows changed.
#[boxed]
pub async fn record_contacts(tx: &mut Tx, contacts: &[Contact], now: Timestamp) -> Result<u64> {
    let latest_possible = now.saturating_add(CLOCK_SKEW_MAX).unwrap_or(Timestamp::MAX);
    // Each server once, with its latest time and counter; sorted, so that replicas lock rows in the
    // same order.
    let mut latest = BTreeMap::new();
    for beat in contacts {
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

/// Size of a counter epoch. When a server is released from quarantine, its counter moves to the
/// next epoch: requests that were captured before carry counters of an earlier epoch and are
/// rejected. No agent gets there by counting.
pub const EPOCH: i64 = 1 << 40;

/// The first counter of the epoch after that of `counter`.
pub fn next_epoch(counter: i64) -> i64 {
    (counter / EPOCH).saturating_add(1).saturating_mul(EPOCH)
}

/// Sets the counter, even to a lower value: a user decided which of two copies is the real server.
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

/// When every server of the organization was last seen.
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
