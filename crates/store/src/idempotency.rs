//! Idempotency keys: a repeated request gets the first response again.
//!
//! [`claim`], the effect and [`finish`] belong in one transaction. A retry then waits for the
//! first commit and sees its response, and a crash leaves nothing behind. Work that cannot run
//! inside one transaction commits the claim first; until it finishes or its lock expires, a
//! retry learns that it is in progress. Such work runs under its ticket ([`with_ticket`]): every
//! commit that changes anything then records that next to the key. After a crash, a retry
//! learns that the work was done, and a worker whose lock expired cannot commit what another one is
//! doing.
//!
//! On PostgreSQL the claim names the process that works on it, so that the claims of a dead process
//! are released before they expire: see `notify::LivenessLock`. A process that only lost its
//! connection may look dead; it cannot commit either.

use async_recursion::async_recursion as boxed;
use jiff::{SignedDuration, Timestamp};
use vocab::OrgId;

use crate::db::{Conn, on};
use crate::error::{Result, expect_one_row};
use crate::row::{put, row};
use crate::sql::join;
use crate::tx::Tx;

/// A request with an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<'a> {
    pub org: OrgId,
    /// The API key or user that sent it.
    pub caller: &'a str,
    /// The key, as the caller chose it.
    pub key: &'a str,
    /// A digest of method, path and body. The same key with another digest is an error of the
    /// caller.
    pub fingerprint: [u8; 32],
}

/// The stored response to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    /// The headers to send again, as JSON.
    pub headers: String,
    pub body: Vec<u8>,
}

/// The result of [`claim`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// The key is new: do the work, then [`finish`] with this ticket.
    New(ResponseClaim),
    /// The first request with this key is in progress.
    InProgress,
    /// The request was answered: send this response again.
    Replay(Response),
    /// The key was used for another request.
    Mismatch,
    /// The work was done, but its response was lost.
    ResponseLost {
        /// The resource that was changed, as the audit log names it.
        subject: String,
    },
}

/// Allows its holder to store the response for an idempotency key. Invalid after the lock has
/// expired and another request has claimed the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseClaim {
    org: OrgId,
    key: String,
    locked_until: Timestamp,
}

row! {
    struct Stored in "idempotency_keys" by "idempotency_key" {
        fingerprint: Vec<u8>,
        status: Option<u16>,
        headers: Option<String>,
        body: Option<Vec<u8>>,
        idempotency_key: String,
        locked_until: Timestamp,
        subject: Option<String>,
        holder: Option<i64>,
    }
}

tokio::task_local! {
    static TICKET: ResponseClaim;
}

/// Runs `work` under a ticket: what it commits is recorded next to the key.
pub async fn with_ticket<T>(ticket: ResponseClaim, work: impl Future<Output = T>) -> T {
    TICKET.scope(ticket, work).await
}

/// Records what the current request changed, in the same transaction. Fails with `Stale` if the
/// lock expired.
pub(crate) async fn record_effect(conn: &mut Conn, subject: &str) -> Result<()> {
    let Ok(ticket) = TICKET.try_with(Clone::clone) else { return Ok(()) };
    let noted = on!(conn, |c| {
        sqlx::query(
            "update idempotency_keys set subject = coalesce(subject, $1)
              where org_id = $2 and idempotency_key = $3 and locked_until = $4 and status is null",
        )
        .bind(subject)
        .bind(put(&ticket.org))
        .bind(&ticket.key)
        .bind(put(&ticket.locked_until))
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?;
    expect_one_row(noted)
}

/// Claims the key at `now`. It is remembered until `expires_at`. From `locked_until` on, a request
/// that has neither finished nor released the key counts as dead.
#[boxed]
pub async fn claim(
    tx: &mut Tx,
    request: &Request<'_>,
    now: Timestamp,
    locked_until: Timestamp,
    expires_at: Timestamp,
) -> Result<Claim> {
    let holder = tx.liveness_lock();
    // An upsert, because on PostgreSQL it waits for a transaction that is inserting the same key. A
    // `select` would not wait.
    let claimed = on!(tx, |c| {
        sqlx::query(
            "insert into idempotency_keys
                (org_id, idempotency_key, fingerprint, locked_until, expires_at, caller, holder)
             values ($1, $2, $3, $4, $5, $7, $8)
             on conflict (org_id, idempotency_key) do update
                set fingerprint = excluded.fingerprint, locked_until = excluded.locked_until,
                    expires_at = excluded.expires_at, caller = excluded.caller, status = null,
                    headers = null, body = null, subject = null, holder = excluded.holder
              where idempotency_keys.expires_at <= $6
                 or (idempotency_keys.status is null and idempotency_keys.locked_until <= $6
                     and idempotency_keys.subject is null
                     and idempotency_keys.fingerprint = excluded.fingerprint)",
        )
        .bind(put(&request.org))
        .bind(request.key)
        .bind(request.fingerprint.to_vec())
        .bind(put(&locked_until))
        .bind(put(&expires_at))
        .bind(put(&now))
        .bind(request.caller)
        .bind(holder)
        .execute(c)
        .await
        .map(|done| done.rows_affected() == 1)
    })?;
    if claimed {
        return Ok(new_claim(request, locked_until));
    }
    let stored: Stored = on!(tx, |c| {
        sqlx::query_as(join(&[
            "select ",
            Stored::COLUMNS,
            " from idempotency_keys where org_id = $1 and idempotency_key = $2",
        ]))
        .bind(put(&request.org))
        .bind(request.key)
        .fetch_one(c)
        .await
    })?;
    Ok(match stored.status {
        _ if stored.fingerprint != request.fingerprint => Claim::Mismatch,
        None if stored.locked_until > now && !is_holder_dead(tx, &stored).await? => {
            Claim::InProgress
        }
        None => match stored.subject {
            Some(subject) => Claim::ResponseLost { subject },
            None => take_over(tx, request, &stored, locked_until, expires_at).await?,
        },
        Some(status) => Claim::Replay(Response {
            status,
            headers: stored.headers.unwrap_or_default(),
            body: stored.body.unwrap_or_default(),
        }),
    })
}

fn new_claim(request: &Request<'_>, locked_until: Timestamp) -> Claim {
    Claim::New(ResponseClaim { org: request.org, key: request.key.to_owned(), locked_until })
}

/// Whether the process that claimed a key is gone. Takes that process's lock until this transaction
/// ends, so of several retries of a request only one takes over.
async fn is_holder_dead(tx: &mut Tx, stored: &Stored) -> Result<bool> {
    let (Some(_), Some(holder)) = (tx.liveness_lock(), stored.holder) else { return Ok(false) };
    Ok(on!(tx, |c| {
        sqlx::query_scalar("select pg_try_advisory_xact_lock($1)").bind(holder).fetch_one(c).await
    })?)
}

/// Claims a key from a process that died before it changed anything.
async fn take_over(
    tx: &mut Tx,
    request: &Request<'_>,
    stored: &Stored,
    locked_until: Timestamp,
    expires_at: Timestamp,
) -> Result<Claim> {
    // Never the same time as in the previous claim, because it identifies the ticket.
    let locked_until = locked_until.max(stored.locked_until + SignedDuration::from_micros(1));
    let holder = tx.liveness_lock();
    let taken = on!(tx, |c| {
        sqlx::query(
            "update idempotency_keys
                set locked_until = $1, expires_at = $2, caller = $3, holder = $4
              where org_id = $5 and idempotency_key = $6 and locked_until = $7
                and status is null and subject is null",
        )
        .bind(put(&locked_until))
        .bind(put(&expires_at))
        .bind(request.caller)
        .bind(holder)
        .bind(put(&request.org))
        .bind(request.key)
        .bind(put(&stored.locked_until))
        .execute(c)
        .await
        .map(|done| done.rows_affected() == 1)
    })?;
    Ok(if taken { new_claim(request, locked_until) } else { Claim::InProgress })
}

/// Stores the response. Fails with `Stale` if the lock expired and another request does the work:
/// do not commit.
#[boxed]
pub async fn finish(tx: &mut Tx, ticket: &ResponseClaim, response: &Response) -> Result<()> {
    let saved = on!(tx, |c| {
        sqlx::query(
            "update idempotency_keys set status = $1, headers = $2, body = $3
              where org_id = $4 and idempotency_key = $5 and locked_until = $6 and status is null",
        )
        .bind(i64::from(response.status))
        .bind(&response.headers)
        .bind(&response.body)
        .bind(put(&ticket.org))
        .bind(&ticket.key)
        .bind(put(&ticket.locked_until))
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?;
    expect_one_row(saved)
}

/// Stores the response if the request changed anything, and releases the key if not: repeating a
/// request that changed nothing is harmless, so its response is not stored. Without a
/// `response` (one too large to store), a retry learns what was done. Fails with `Stale` as
/// [`finish`] does.
#[boxed]
pub async fn finish_effect(
    tx: &mut Tx,
    ticket: &ResponseClaim,
    response: Option<&Response>,
) -> Result<()> {
    let idle = on!(tx, |c| {
        sqlx::query(
            "delete from idempotency_keys
              where org_id = $1 and idempotency_key = $2 and locked_until = $3
                and status is null and subject is null",
        )
        .bind(put(&ticket.org))
        .bind(&ticket.key)
        .bind(put(&ticket.locked_until))
        .execute(c)
        .await
        .map(|done| done.rows_affected() == 1)
    })?;
    match response {
        Some(response) if !idle => finish(tx, ticket, response).await,
        _ => Ok(()),
    }
}

/// The number of keys of this caller that are stored, counted up to `limit`.
#[boxed]
pub async fn count(conn: &mut Conn, org: OrgId, caller: &str, limit: u32) -> Result<u32> {
    let (count,): (i64,) = on!(conn, |c| {
        sqlx::query_as(
            "select count(*) from (select 1 from idempotency_keys
                where org_id = $1 and caller = $2 limit $3) as stored",
        )
        .bind(put(&org))
        .bind(caller)
        .bind(i64::from(limit))
        .fetch_one(c)
        .await
    })?;
    Ok(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Releases the key without a response, after a failure that the caller may retry.
#[boxed]
pub async fn release(tx: &mut Tx, ticket: &ResponseClaim) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(
            "delete from idempotency_keys
              where org_id = $1 and idempotency_key = $2 and locked_until = $3 and status is null",
        )
        .bind(put(&ticket.org))
        .bind(&ticket.key)
        .bind(put(&ticket.locked_until))
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// Ends the locks of all requests in progress. For a service that has just started and is the only
/// one on its database: the process that held the locks is gone.
#[boxed]
pub async fn expire_locks(tx: &mut Tx, now: Timestamp) -> Result<u64> {
    Ok(on!(tx, |c| {
        sqlx::query(
            "update idempotency_keys set locked_until = $1 where status is null and locked_until > $1",
        )
        .bind(put(&now))
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?)
}

/// Deletes expired keys. Returns their number.
#[boxed]
pub async fn purge(tx: &mut Tx, now: Timestamp) -> Result<u64> {
    Ok(on!(tx, |c| {
        sqlx::query("delete from idempotency_keys where expires_at <= $1")
            .bind(put(&now))
            .execute(c)
            .await
            .map(|done| done.rows_affected())
    })?)
}
