//! Requests to an agent outside of batches, and the state of each: to scan its server now (a
//! refresh), or to upgrade itself.

use async_recursion::async_recursion as boxed;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use vocab::{Environment, OrgId, ServerId, TaskId};

use crate::db::{Conn, on};
use crate::error::{Result, StoreError};
use crate::row::{put, row, via};
use crate::sql::join;
use crate::tx::Tx;
use crate::{Topic, seals};

/// The state of a refresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefreshState {
    /// The agent has not reported a result yet.
    Requested,
    /// The agent scanned the server.
    Succeeded,
    /// The agent could not scan the server.
    Failed,
    /// The agent did not report a result in time.
    TimedOut,
    /// The server was removed.
    Canceled,
}

const STATES: [(RefreshState, &str); 5] = [
    (RefreshState::Requested, "requested"),
    (RefreshState::Succeeded, "succeeded"),
    (RefreshState::Failed, "failed"),
    (RefreshState::TimedOut, "timed_out"),
    (RefreshState::Canceled, "canceled"),
];

/// A text in the column that is not the name of a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a state of a refresh")]
pub struct UnknownState(String);

impl RefreshState {
    pub fn as_str(self) -> &'static str {
        STATES.iter().find(|(known, _)| *known == self).map_or("?", |(_, word)| word)
    }
}

impl fmt::Display for RefreshState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for RefreshState {
    type Err = UnknownState;
    fn from_str(text: &str) -> std::result::Result<Self, UnknownState> {
        let known = STATES.iter().find(|(_, word)| *word == text);
        known.map(|(known, _)| *known).ok_or_else(|| UnknownState(text.to_owned()))
    }
}
via!(RefreshState);

row! {
    pub struct Refresh in "refreshes" by "id" {
        /// Its id, which is also the id of the agent's order.
        pub id: TaskId,
        pub org_id: OrgId,
        pub server_id: ServerId,
        pub state: RefreshState,
        pub requested_by: String,
        pub requested_at: Timestamp,
        /// When it times out.
        pub deadline: Timestamp,
        pub ended_at: Option<Timestamp>,
        /// Details for users about how it ended.
        pub message: Option<String>,
        /// The agent's program to upgrade to, as JSON; `None` for a scan.
        pub upgrade: Option<String>,
        /// Its authentication code; see [`crate::seals`]. Set by this module.
        pub seal: crate::seals::SealCode,
    }
}

/// Creates a request, unless one of the same kind and server is still open: then returns that one.
#[boxed]
pub async fn request(tx: &mut Tx, refresh: &Refresh) -> Result<Refresh> {
    let code = seals::refresh(tx.seal(), refresh);
    let new = on!(tx, |c| {
        sqlx::query(join(&[
            "insert into refreshes (",
            Refresh::COLUMNS,
            ") values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) on conflict do nothing",
        ]))
        .bind(put(&refresh.id))
        .bind(put(&refresh.org_id))
        .bind(put(&refresh.server_id))
        .bind(put(&refresh.state))
        .bind(put(&refresh.requested_by))
        .bind(put(&refresh.requested_at))
        .bind(put(&refresh.deadline))
        .bind(put(&refresh.ended_at))
        .bind(put(&refresh.message))
        .bind(put(&refresh.upgrade))
        .bind(code.to_vec())
        .execute(c)
        .await
        .map(|done| done.rows_affected() == 1)
    })?;
    tx.notify(Topic::Refreshes);
    if new {
        return Ok(refresh.clone());
    }
    let under_way = on!(tx, |c| {
        sqlx::query_as(join(&[
            "select ",
            Refresh::COLUMNS,
            " from refreshes where server_id = $1 and (upgrade is null) = $2 and ended_at is null",
        ]))
        .bind(put(&refresh.server_id))
        .bind(refresh.upgrade.is_none())
        .fetch_optional(c)
        .await
    })?;
    // The open refresh ended between the two statements: decide again.
    under_way.ok_or(StoreError::Stale)
}

#[boxed]
pub async fn get(conn: &mut Conn, org: OrgId, id: TaskId) -> Result<Refresh> {
    let found = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Refresh::COLUMNS,
            " from refreshes where id = $1 and org_id = $2",
        ]))
        .bind(put(&id))
        .bind(put(&org))
        .fetch_optional(c)
        .await
    })?;
    found.ok_or_else(|| StoreError::not_found("refresh", id))
}

/// The last request to upgrade the agent of a server.
#[boxed]
pub async fn last_upgrade(conn: &mut Conn, server: ServerId) -> Result<Option<Refresh>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Refresh::COLUMNS,
            " from refreshes where server_id = $1 and upgrade is not null
              order by requested_at desc limit 1",
        ]))
        .bind(put(&server))
        .fetch_optional(c)
        .await
    })?)
}

/// The number of open requests to upgrade an agent, by environment of the server.
#[boxed]
pub async fn count_open_upgrades(
    conn: &mut Conn,
    org: OrgId,
) -> Result<Vec<(Option<Environment>, u64)>> {
    let found: Vec<(Option<String>, i64)> = on!(conn, |c| {
        sqlx::query_as(
            "select s.environment, count(*) from refreshes r join servers s on s.id = r.server_id
              where r.ended_at is null and r.upgrade is not null and r.org_id = $1
              group by s.environment",
        )
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?;
    let counted = |(name, count): (Option<String>, i64)| {
        (name.and_then(|name| name.parse().ok()), count.unsigned_abs())
    };
    Ok(found.into_iter().map(counted).collect())
}

/// The open refreshes of all organizations.
#[boxed]
pub async fn list_open(conn: &mut Conn) -> Result<Vec<Refresh>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Refresh::COLUMNS,
            " from refreshes where ended_at is null order by deadline",
        ]))
        .fetch_all(c)
        .await
    })?)
}

/// Ends a refresh that is open or has timed out: a late result replaces the timeout. Returns
/// whether it changed.
#[boxed]
pub async fn finish(
    tx: &mut Tx,
    id: TaskId,
    server: ServerId,
    state: RefreshState,
    message: Option<&str>,
    now: Timestamp,
) -> Result<bool> {
    let done = on!(tx, |c| {
        sqlx::query(
            "update refreshes set state = $1, message = $2, ended_at = $3
              where id = $4 and server_id = $5 and (ended_at is null or state = 'timed_out')",
        )
        .bind(put(&state))
        .bind(message)
        .bind(put(&now))
        .bind(put(&id))
        .bind(put(&server))
        .execute(c)
        .await
        .map(|done| done.rows_affected() == 1)
    })?;
    if done {
        tx.notify(Topic::Refreshes);
    }
    Ok(done)
}

/// Times out the refreshes whose deadline has passed at `now`, and returns them.
#[boxed]
pub async fn expire(tx: &mut Tx, now: Timestamp) -> Result<Vec<Refresh>> {
    let ended: Vec<Refresh> = on!(tx, |c| {
        sqlx::query_as(join(&[
            "update refreshes set state = 'timed_out', ended_at = $1
              where ended_at is null and deadline <= $1
             returning ",
            Refresh::COLUMNS,
        ]))
        .bind(put(&now))
        .fetch_all(c)
        .await
    })?;
    if !ended.is_empty() {
        tx.notify(Topic::Refreshes);
    }
    Ok(ended)
}

/// Cancels the open refresh of a server that was removed.
#[boxed]
pub async fn cancel_for_server(tx: &mut Tx, server: ServerId, now: Timestamp) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(
            "update refreshes set state = 'canceled', ended_at = $1
              where ended_at is null and server_id = $2",
        )
        .bind(put(&now))
        .bind(put(&server))
        .execute(c)
        .await
        .map(drop)
    })?;
    tx.notify(Topic::Refreshes);
    Ok(())
}

/// Deletes up to `limit` ended refreshes that were requested before `cutoff`. Returns their number.
#[boxed]
pub async fn purge(tx: &mut Tx, cutoff: Timestamp, limit: u32) -> Result<u64> {
    Ok(on!(tx, |c| {
        sqlx::query(
            "delete from refreshes where ended_at is not null and id in
                (select id from refreshes where requested_at < $1 order by requested_at limit $2)",
        )
        .bind(put(&cutoff))
        .bind(i64::from(limit))
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?)
}
