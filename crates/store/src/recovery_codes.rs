//! One-time codes for users who lost their authenticator. Only their hashes are stored.

use async_recursion::async_recursion as boxed;
use vocab::UserId;

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::put;
use crate::tx::Tx;

/// Replaces the codes of a user by these.
#[boxed]
pub async fn replace(tx: &mut Tx, user: UserId, hashes: &[Vec<u8>]) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("delete from recovery_codes where user_id = $1")
            .bind(put(&user))
            .execute(c)
            .await
            .map(drop)
    })?;
    for hash in hashes {
        on!(tx, |c| {
            sqlx::query("insert into recovery_codes (user_id, hash) values ($1, $2)")
                .bind(put(&user))
                .bind(put(hash))
                .execute(c)
                .await
                .map(drop)
        })?;
    }
    Ok(())
}

/// Deletes a code of a user. Returns whether there was one.
#[boxed]
pub async fn take(tx: &mut Tx, user: UserId, hash: &[u8]) -> Result<bool> {
    let taken = on!(tx, |c| {
        sqlx::query("delete from recovery_codes where user_id = $1 and hash = $2")
            .bind(put(&user))
            .bind(hash)
            .execute(c)
            .await
            .map(|done| done.rows_affected())
    })?;
    Ok(taken > 0)
}

/// The number of codes that a user has left.
#[boxed]
pub async fn count(conn: &mut Conn, user: UserId) -> Result<u64> {
    let (count,): (i64,) = on!(conn, |c| {
        sqlx::query_as("select count(*) from recovery_codes where user_id = $1")
            .bind(put(&user))
            .fetch_one(c)
            .await
    })?;
    Ok(count.unsigned_abs())
}
