//! Which replica owns the session of an agent, and the last syncs that it received.
//!
//! A replica claims a session when it receives a sync of an agent whose session it does not own,
//! and then counts the syncs in memory. They are written together with the contacts, guarded by the
//! ownership: a replica whose write changes nothing has lost the session and must claim it again.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeMap;

use vocab::ServerId;

use crate::db::on;
use crate::error::{Result, StoreError};
use crate::row::{parse, put, row};
use crate::sql::{Text, in_chunks, join};
use crate::tx::Tx;

row! {
    /// A session as its last owner wrote it.
    pub struct SyncSession in "sync_sessions" by "server_id" {
        pub server_id: ServerId,
        /// The replica that owns it; empty if none does.
        pub owner: String,
        /// The counter that the next sync should have.
        pub counter: i64,
        /// The counters and nonces of the last syncs, 16 bytes each.
        pub recent: Vec<u8>,
        /// The counters and nonces of a replica that received syncs after it had lost the session.
        pub contested: Vec<u8>,
    }
}

/// Makes `owner` the owner of a session, and returns its previous state. `counter` is used if
/// the session does not exist yet.
///
/// Fails with `NotFound` if the server was removed. The row of the server stays locked until the
/// transaction ends, so that a removal at the same time cannot leave a session behind.
#[boxed]
pub async fn claim(
    tx: &mut Tx,
    server: ServerId,
    owner: &str,
    counter: i64,
) -> Result<SyncSession> {
    let known = on!(tx, |c, d| {
        sqlx::query(join(&[
            "select 1 from servers where id = $1 and removed_at is null",
            d.for_share,
        ]))
        .bind(put(&server))
        .fetch_optional(c)
        .await
        .map(|row| row.is_some())
    })?;
    if !known {
        return Err(StoreError::not_found("server", server));
    }
    Ok(on!(tx, |c| {
        sqlx::query_as(join(&[
            "insert into sync_sessions (server_id, owner, counter, recent, contested)
             values ($1, $2, $3, $4, $4)
             on conflict (server_id) do update set owner = excluded.owner returning ",
            SyncSession::COLUMNS,
        ]))
        .bind(put(&server))
        .bind(owner)
        .bind(counter)
        .bind(Vec::<u8>::new())
        .fetch_one(c)
        .await
    })?)
}

/// Writes the syncs that `owner` received. Returns the servers whose sessions it still owns, with
/// the syncs of replicas that had lost these sessions.
#[boxed]
pub async fn write(
    tx: &mut Tx,
    owner: &str,
    sessions: &[(ServerId, i64, Vec<u8>)],
) -> Result<BTreeMap<ServerId, Vec<u8>>> {
    let found: Vec<(String, Vec<u8>)> = on!(tx, |c| {
        in_chunks(c, sessions, |chunk| {
            let mut text = Text::new("with v (server, syncs, heard) as (");
            text.rows(chunk, |row, (server, counter, recent)| {
                row.bind(put(server)).bind(*counter).bind(recent.clone());
            });
            text.add(
                ") update sync_sessions
                      set counter = case when v.syncs > counter then v.syncs else counter end,
                          recent = v.heard
                     from v where server_id = v.server and owner = ",
            );
            text.bind(owner.to_owned()).add(" returning server_id, contested");
            text
        })
        .await
    })?;
    found.into_iter().map(|(id, heard)| Ok((parse("sync_sessions", id)?, heard))).collect()
}

/// Writes the syncs of a replica that has lost the session, for its owner to read, and returns the
/// owner's. Whichever of the two writes last sees what the other wrote.
#[boxed]
pub async fn contest(
    tx: &mut Tx,
    server: ServerId,
    recent: Vec<u8>,
) -> Result<Option<SyncSession>> {
    Ok(on!(tx, |c| {
        sqlx::query_as(join(&[
            "update sync_sessions set contested = $2 where server_id = $1 returning ",
            SyncSession::COLUMNS,
        ]))
        .bind(put(&server))
        .bind(recent)
        .fetch_optional(c)
        .await
    })?)
}

/// Deletes every session, when no replica runs.
#[boxed]
pub async fn delete_all(tx: &mut Tx) -> Result<()> {
    on!(tx, |c| sqlx::query("delete from sync_sessions").execute(c).await.map(drop))?;
    Ok(())
}

/// Deletes the session of a server: a user decided which of two copies is the real one, or the
/// server was removed.
#[boxed]
pub async fn delete(tx: &mut Tx, server: ServerId) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("delete from sync_sessions where server_id = $1")
            .bind(put(&server))
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}
