//! Sessions of signed-in users.
//!
//! Only the hash of a session token is stored, never the token itself. A session also has an id, so
//! that a page can name it without the hash.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use vocab::{SessionId, UserId};

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::{put, row};
use crate::sql::join;
use crate::tx::Tx;
use crate::users::{self, User};

row! {
    pub struct Session in "sessions" by "id" {
        /// The hash of its token.
        pub hash: Vec<u8>,
        pub id: SessionId,
        pub user_id: UserId,
        pub created_at: Timestamp,
        pub expires_at: Timestamp,
        /// When it was last used, to within some minutes.
        pub used_at: Timestamp,
        /// The address that signed in; empty if unknown.
        pub address: String,
        /// The browser that signed in, as it names itself; empty if unknown.
        pub user_agent: String,
    }
}

/// Inserts a session.
#[boxed]
pub async fn create(tx: &mut Tx, session: &Session) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(join(&[
            "insert into sessions (",
            Session::COLUMNS,
            ") values ($1, $2, $3, $4, $5, $6, $7, $8)",
        ]))
        .bind(put(&session.hash))
        .bind(put(&session.id))
        .bind(put(&session.user_id))
        .bind(put(&session.created_at))
        .bind(put(&session.expires_at))
        .bind(put(&session.used_at))
        .bind(put(&session.address))
        .bind(put(&session.user_agent))
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// The session with this hash and its user, if it has not expired at `now`. `None` if the user or
/// the organization was removed.
#[boxed]
pub async fn find(conn: &mut Conn, hash: &[u8], now: Timestamp) -> Result<Option<(Session, User)>> {
    let found: Option<Session> = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Session::COLUMNS,
            " from sessions where hash = $1 and expires_at > $2",
        ]))
        .bind(hash)
        .bind(put(&now))
        .fetch_optional(c)
        .await
    })?;
    let Some(session) = found else { return Ok(None) };
    Ok(users::by_id(conn, session.user_id).await?.map(|user| (session, user)))
}

/// The newest `limit` sessions of a user that have not expired at `now`, newest first.
#[boxed]
pub async fn list(
    conn: &mut Conn,
    user: UserId,
    now: Timestamp,
    limit: u32,
) -> Result<Vec<Session>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Session::COLUMNS,
            " from sessions where user_id = $1 and expires_at > $2
              order by created_at desc, id desc limit $3",
        ]))
        .bind(put(&user))
        .bind(put(&now))
        .bind(i64::from(limit))
        .fetch_all(c)
        .await
    })?)
}

/// Records that a session was used at `now`, unless a later use is recorded.
#[boxed]
pub async fn touch(tx: &mut Tx, id: SessionId, now: Timestamp) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("update sessions set used_at = $1 where id = $2 and used_at < $1")
            .bind(put(&now))
            .bind(put(&id))
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// Ends a session.
#[boxed]
pub async fn end(tx: &mut Tx, hash: &[u8]) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("delete from sessions where hash = $1").bind(hash).execute(c).await.map(drop)
    })?;
    Ok(())
}

/// Ends the session with this id if it belongs to this user. Returns whether there was one.
#[boxed]
pub async fn end_by_id(tx: &mut Tx, user: UserId, id: SessionId) -> Result<bool> {
    let ended = on!(tx, |c| {
        sqlx::query("delete from sessions where id = $1 and user_id = $2")
            .bind(put(&id))
            .bind(put(&user))
            .execute(c)
            .await
            .map(|done| done.rows_affected())
    })?;
    Ok(ended > 0)
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

/// Ends all sessions of a user except one. Returns how many there were.
#[boxed]
pub async fn end_others(tx: &mut Tx, user: UserId, kept: SessionId) -> Result<u64> {
    Ok(on!(tx, |c| {
        sqlx::query("delete from sessions where user_id = $1 and id <> $2")
            .bind(put(&user))
            .bind(put(&kept))
            .execute(c)
            .await
            .map(|done| done.rows_affected())
    })?)
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
