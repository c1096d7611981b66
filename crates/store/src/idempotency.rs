//! Idempotency keys: a repeated request gets the first response again.
//!
//! [`claim`], the effect and [`finish`] belong in one transaction. A repetition then waits for the
//! first commit and sees its response, and a crash leaves nothing behind. Work that cannot run
//! inside one transaction commits the claim first; until it finishes or its lock expires, a
//! repetition learns that it is in progress. Such work runs [`during`] its ticket: every commit
//! that changes anything then records that next to the key. After a crash, a repetition learns that
//! the work was done, and a worker whose lock expired cannot commit what another one is doing.
//!
//! On PostgreSQL the claim names the process that works on it, so that the claims of a dead process
//! need not expire first: see `bell::Holder`. A process that only lost its connection may look
//! dead; it cannot commit either.

use async_recursion::async_recursion as boxed;
use jiff::{SignedDuration, Timestamp};
use vocab::OrgId;

use crate::db::{Conn, on};
use crate::error::{Result, guarded};
use crate::row::{put, row};
use crate::sql::join;
use crate::tx::Tx;

/// A request that carries a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<'a> {
    /// Whose key it is.
    pub org: OrgId,
    /// Who uses it.
    pub caller: &'a str,
    /// The key, as the caller chose it.
    pub key: &'a str,
    /// A digest of method, path and body: the same key with another one is a mistake.
    pub fingerprint: [u8; 32],
}

/// What a key was answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// The headers that must come again, as JSON.
    pub headers: String,
    /// The body.
    pub body: Vec<u8>,
}

/// What a key says about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// Nobody used it: do the work, then [`finish`] with this ticket.
    Fresh(Ticket),
    /// The first request with it is under way.
    InProgress,
    /// It was answered: answer so again.
    Replay(Response),
    /// It was used for another request.
    Mismatch,
    /// The work was done, and its answer was lost.
    Unanswered {
        /// What was done, as the audit log names it.
        subject: String,
    },
}

/// The right to answer a key. Void once the lock ran out and somebody else claimed the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
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
    static TICKET: Ticket;
}

/// Does `work` under a ticket: what it commits is noted beside the key.
pub async fn during<T>(ticket: Ticket, work: impl Future<Output = T>) -> T {
    TICKET.scope(ticket, work).await
}

/// Notes, in the transaction that does it, what the current request has done. `Stale`: the lock ran out.
pub(crate) async fn note_effect(conn: &mut Conn, subject: &str) -> Result<()> {
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
    guarded(noted)
}

/// Claims the key at `now`. It is remembered until `expires_at`; a request that neither finished nor gave the key back
/// counts as dead from `locked_until` on.
#[boxed]
pub async fn claim(
    tx: &mut Tx,
    request: &Request<'_>,
    now: Timestamp,
    locked_until: Timestamp,
    expires_at: Timestamp,
) -> Result<Claim> {
    let holder = tx.holder();
    // An upsert, because on PostgreSQL it waits for a transaction that is just inserting the same
    // key, and a `select` before it would not.
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
        return Ok(fresh(request, locked_until));
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
        None if stored.locked_until > now && !is_dead(tx, &stored).await? => Claim::InProgress,
        None => match stored.subject {
            Some(subject) => Claim::Unanswered { subject },
            None => take_over(tx, request, &stored, locked_until, expires_at).await?,
        },
        Some(status) => Claim::Replay(Response {
            status,
            headers: stored.headers.unwrap_or_default(),
            body: stored.body.unwrap_or_default(),
        }),
    })
}

fn fresh(request: &Request<'_>, locked_until: Timestamp) -> Claim {
    Claim::Fresh(Ticket { org: request.org, key: request.key.to_owned(), locked_until })
}

/// Whether the process that claimed a key is gone. Until the end of this transaction nobody else finds
/// out: of several that repeat a request, one takes over.
async fn is_dead(tx: &mut Tx, stored: &Stored) -> Result<bool> {
    let (Some(_), Some(holder)) = (tx.holder(), stored.holder) else { return Ok(false) };
    Ok(on!(tx, |c| {
        sqlx::query_scalar("select pg_try_advisory_xact_lock($1)").bind(holder).fetch_one(c).await
    })?)
}

/// Claims a key from a process that died before it did anything.
async fn take_over(
    tx: &mut Tx,
    request: &Request<'_>,
    stored: &Stored,
    locked_until: Timestamp,
    expires_at: Timestamp,
) -> Result<Claim> {
    // Never the time of the claim before: the ticket is told apart by it.
    let locked_until = locked_until.max(stored.locked_until + SignedDuration::from_micros(1));
    let holder = tx.holder();
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
    Ok(if taken { fresh(request, locked_until) } else { Claim::InProgress })
}

/// Answers the key. `Stale`: the lock ran out and somebody else does the work: do not commit.
#[boxed]
pub async fn finish(tx: &mut Tx, ticket: &Ticket, response: &Response) -> Result<()> {
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
    guarded(saved)
}

/// Answers the key if the request changed anything, and gives it back if it did not: repeating a
/// request that changed nothing is harmless, so its answer need not be stored. Without a `response`
/// (one too large to store) a repetition is told what was done. `Stale` as in [`finish`].
#[boxed]
pub async fn finish_effect(
    tx: &mut Tx,
    ticket: &Ticket,
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

/// How many keys of this caller are stored, counted up to `limit`.
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

/// Gives the key back unanswered, after a failure that the caller may repeat.
#[boxed]
pub async fn forget(tx: &mut Tx, ticket: &Ticket) -> Result<()> {
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

/// Ends the locks of all requests under way. For a service that has just started and is the only one on
/// its database: the process that held them is gone.
#[boxed]
pub async fn end_locks(tx: &mut Tx, now: Timestamp) -> Result<u64> {
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

/// Forgets what has expired, and says how many keys it were.
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
