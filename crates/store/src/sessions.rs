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
    /// A session.
    pub struct Session in "sessions" by "user_id" {
        /// The hash of its token.
        pub hash: Vec<u8>,
        /// Whose it is.
        pub user_id: UserId,
        /// When they signed in.
        pub created_at: Timestamp,
        /// When it ends.
        pub expires_at: Timestamp,
    }
}

/// Writes a new one down.
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

/// Who has the session with this hash, if it has not ended by `now`; nobody who was removed, nor
/// anyone of an organization that was.
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

/// Ends one.
#[boxed]
pub async fn end(tx: &mut Tx, hash: &[u8]) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("delete from sessions where hash = $1").bind(hash).execute(c).await.map(drop)
    })?;
    Ok(())
}

/// Ends all of one person.
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

/// Forgets those that ended before `now`.
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
