//! Sessions of signed-in users.
//!
//! Only the hash of a session token is stored, never the token itself.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use vocab::UserId;

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::{put, row};
use crate::sql::join;
use crate::tx::Tx;
use crate::users::User;

row! {
    pub struct Session in "sessions" by "user_id" {
        /// The hash of its token.
        pub hash: Vec<u8>,
        pub user_id: UserId,
        pub created_at: Timestamp,
        pub expires_at: Timestamp,
    }
}

/// Inserts a session.
#[boxed]
pub async fn create(tx: &mut Tx, session: &Session) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(join(&[
            "insert into sessions (",
            Session::COLUMNS,
            ") values ($1, $2, $3, $4)",
        ]))
        .bind(put(&session.hash))
        .bind(put(&session.user_id))
        .bind(put(&session.created_at))
        .bind(put(&session.expires_at))
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// The user of the session with this hash, if it has not expired at `now`. `None` if the user or
/// the organization was removed.
#[boxed]
pub async fn user(conn: &mut Conn, hash: &[u8], now: Timestamp) -> Result<Option<User>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            User::COLUMNS,
            " from users where removed_at is null
                and id = (select s.user_id from sessions s where s.hash = $1 and s.expires_at > $2)
                and not exists
                    (select 1 from organizations o where o.id = org_id and o.removed_at is not null)",
        ]))
        .bind(hash)
        .bind(put(&now))
        .fetch_optional(c)
        .await
    })?)
}

/// Ends a session.
#[boxed]
pub async fn end(tx: &mut Tx, hash: &[u8]) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("delete from sessions where hash = $1").bind(hash).execute(c).await.map(drop)
    })?;
    Ok(())
}

/// Ends all sessions of a user.
#[boxed]
pub async fn end_all(tx: &mut Tx, user: UserId) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("delete from sessions where user_id = $1")
            .bind(put(&user))
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// Deletes expired sessions.
#[boxed]
pub async fn purge(tx: &mut Tx, now: Timestamp) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("delete from sessions where expires_at <= $1")
            .bind(put(&now))
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}
