//! Leases: at most one holder may do a piece of work, for a limited time.
//!
//! Time alone protects nothing: clocks differ, and a process may be suspended for longer than its
//! lease. So every lease has a fencing token that grows with each new holder. Work under a lease
//! must call [`fence`] in the same transaction; the holder of an old token gets
//! [`StoreError::LeaseLost`] instead of a commit.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;

use crate::db::{Conn, on};
use crate::error::{Result, StoreError};
use crate::row::{put, row};
use crate::sql::join;
use crate::tx::Tx;

row! {
    /// A lease and its holder.
    pub struct Lease in "leases" by "name" {
        pub name: String,
        pub holder: String,
        /// The fencing token; it grows with each new holder.
        pub token: i64,
        /// When it expires, by the clock of its holder.
        pub until: Timestamp,
    }
}

/// Takes the lease until `until` if it is free at `now`.
///
/// A lease that expires later than twice the requested duration from now was written by a wrong
/// clock, because no holder requests more than that duration. It counts as expired: otherwise no
/// process could take it until the time of the wrong clock. If its holder is still alive, [`fence`]
/// stops it.
#[boxed]
pub async fn acquire(
    tx: &mut Tx,
    name: &str,
    holder: &str,
    now: Timestamp,
    until: Timestamp,
) -> Result<Option<Lease>> {
    let latest = until.saturating_add(until.duration_since(now)).unwrap_or(Timestamp::MAX);
    Ok(on!(tx, |c| {
        sqlx::query_as(join(&[
            "insert into leases (name, holder, token, until) values ($1, $2, 1, $3)
             on conflict (name) do update
                set holder = excluded.holder, token = leases.token + 1, until = excluded.until
              where leases.until <= $4 or leases.until > $5
             returning ",
            Lease::COLUMNS,
        ]))
        .bind(name)
        .bind(holder)
        .bind(put(&until))
        .bind(put(&now))
        .bind(put(&latest))
        .fetch_optional(c)
        .await
    })?)
}

/// Extends the lease; also after it expired, if no other process took it.
#[boxed]
pub async fn renew(tx: &mut Tx, lease: &Lease, until: Timestamp) -> Result<Lease> {
    set_until(tx, lease, until).await?;
    Ok(Lease { until, ..lease.clone() })
}

/// Releases the lease: another process may take it at `now`.
#[boxed]
pub async fn release(tx: &mut Tx, lease: &Lease, now: Timestamp) -> Result<()> {
    set_until(tx, lease, now).await
}

/// Ends every lease at `now`, when no process that could hold one runs. Fencing tokens keep
/// growing.
#[boxed]
pub async fn expire_all(tx: &mut Tx, now: Timestamp) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("update leases set until = $1 where until > $1")
            .bind(put(&now))
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}

async fn set_until(tx: &mut Tx, lease: &Lease, until: Timestamp) -> Result<()> {
    let saved = on!(tx, |c| {
        sqlx::query("update leases set until = $1 where name = $2 and token = $3")
            .bind(put(&until))
            .bind(&lease.name)
            .bind(lease.token)
            .execute(c)
            .await
            .map(|done| done.rows_affected())
    })?;
    if saved == 1 { Ok(()) } else { Err(lease_lost(lease)) }
}

/// Lets this transaction commit only if the lease is still held: no other process can take it
/// before the commit.
#[boxed]
pub async fn fence(tx: &mut Tx, lease: &Lease) -> Result<()> {
    let held = on!(tx, |c, d| {
        sqlx::query(join(&["select 1 from leases where name = $1 and token = $2", d.for_share]))
            .bind(&lease.name)
            .bind(lease.token)
            .fetch_optional(c)
            .await
            .map(|row| row.is_some())
    })?;
    if held { Ok(()) } else { Err(lease_lost(lease)) }
}

/// The lease with its current or last holder.
#[boxed]
pub async fn get(conn: &mut Conn, name: &str) -> Result<Option<Lease>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&["select ", Lease::COLUMNS, " from leases where name = $1"]))
            .bind(name)
            .fetch_optional(c)
            .await
    })?)
}

fn lease_lost(lease: &Lease) -> StoreError {
    StoreError::LeaseLost { name: lease.name.clone() }
}
