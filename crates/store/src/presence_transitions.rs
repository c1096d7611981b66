//! Presence changes that were announced, and servers that must not get orders.
//!
//! Offline servers are found by `presence.last_seen_at`. A row of `presence_transitions` records that a server
//! was announced as offline, so that it is announced once and its return can be announced too.
//! Removed and quarantined servers get no orders. This module decides nothing: `engine::presence`
//! compares and announces.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use vocab::{OrgId, ServerId};

use crate::Topic;
use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::{parse, put, row};
use crate::sql::{ROWS_MAX, Text, join};
use crate::tx::Tx;

row! {
    /// A server that was not seen lately.
    pub struct OfflineServer in "presence" by "server_id" {
        pub org: OrgId,
        pub server_id: ServerId,
        pub last_seen_at: Timestamp,
    }
}

row! {
    /// A server that was announced as offline.
    pub struct AnnouncedOffline in "presence_transitions" by "server_id" {
        pub org_id: OrgId,
        pub server_id: ServerId,
        /// When it was last seen.
        pub since: Timestamp,
    }
}

row! {
    /// A server that gets no orders.
    pub struct BlockedServer in "servers" by "id" {
        pub id: ServerId,
        pub removed_at: Option<Timestamp>,
        /// Why it gets no orders until a user decides.
        pub quarantine: Option<String>,
    }
}

/// The servers not seen since `since`, and those whose last contact is at `until` or later, which
/// only a wrong clock can have recorded. Reads the index of each organization: few servers are
/// offline, and this query runs whenever a server changed.
#[boxed]
pub async fn list_offline(
    conn: &mut Conn,
    since: Timestamp,
    until: Timestamp,
) -> Result<Vec<OfflineServer>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            OfflineServer::COLUMNS,
            " from organizations cross join presence where org = id and last_seen_at <= $1
             union all
             select ",
            OfflineServer::COLUMNS,
            " from organizations cross join presence where org = id and last_seen_at >= $2
              order by server_id",
        ]))
        .bind(put(&since))
        .bind(put(&until))
        .fetch_all(c)
        .await
    })?)
}

/// The servers whose agents report that they are carrying out an order.
#[boxed]
pub async fn list_busy(conn: &mut Conn) -> Result<Vec<ServerId>> {
    let found: Vec<(String,)> = on!(conn, |c| {
        sqlx::query_as(
            "select id from servers
              where activity in ('patching', 'rebooting') and removed_at is null order by id",
        )
        .fetch_all(c)
        .await
    })?;
    found.into_iter().map(|(id,)| parse("servers", id)).collect()
}

/// Returns which of these servers cannot get an order now: removed or quarantined (`true`), or busy
/// with an order (`false`).
#[boxed]
pub async fn filter_unavailable(
    conn: &mut Conn,
    ids: &[ServerId],
) -> Result<Vec<(ServerId, bool)>> {
    let mut unable = Vec::new();
    for chunk in ids.chunks(ROWS_MAX) {
        let found: Vec<(String, bool)> = on!(conn, |c| {
            let mut text = Text::new(
                "select id, removed_at is not null or quarantine is not null from servers
                  where (removed_at is not null or quarantine is not null
                         or activity in ('patching', 'rebooting')) and id in ",
            );
            text.list(chunk.iter().map(put)).build_as().fetch_all(c).await
        })?;
        for (id, barred) in found {
            unable.push((parse("servers", id)?, barred));
        }
    }
    Ok(unable)
}

/// The servers that were announced as offline.
#[boxed]
pub async fn list_announced(conn: &mut Conn) -> Result<Vec<AnnouncedOffline>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            AnnouncedOffline::COLUMNS,
            " from presence_transitions order by server_id",
        ]))
        .fetch_all(c)
        .await
    })?)
}

/// Records that these servers were announced as offline.
#[boxed]
pub async fn record_offline(tx: &mut Tx, offline: &[AnnouncedOffline]) -> Result<()> {
    for chunk in offline.chunks(ROWS_MAX) {
        on!(tx, |c| {
            Text::new("insert into presence_transitions (org_id, server_id, since) ")
                .rows(chunk, |row, absence| {
                    row.bind(put(&absence.org_id)).bind(put(&absence.server_id));
                    row.bind(put(&absence.since));
                })
                .add(" on conflict do nothing")
                .build()
                .execute(c)
                .await
                .map(drop)
        })?;
    }
    tx.notify(Topic::Presence);
    Ok(())
}

/// Records that these servers are online again or were removed.
#[boxed]
pub async fn record_online(tx: &mut Tx, servers: &[ServerId]) -> Result<()> {
    for chunk in servers.chunks(ROWS_MAX) {
        on!(tx, |c| {
            let mut text = Text::new("delete from presence_transitions where server_id in ");
            text.list(chunk.iter().map(put));
            text.build().execute(c).await.map(drop)
        })?;
    }
    tx.notify(Topic::Presence);
    Ok(())
}

/// Every server that gets no orders because it is removed or quarantined. The agent registry
/// compares its cache with this list.
#[boxed]
pub async fn list_blocked(conn: &mut Conn) -> Result<Vec<BlockedServer>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            BlockedServer::COLUMNS,
            " from servers where removed_at is not null or quarantine is not null order by id",
        ]))
        .fetch_all(c)
        .await
    })?)
}
