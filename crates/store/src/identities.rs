//! Links between users and their accounts at an identity provider.
//!
//! A link stays when its user is removed, so that the person is recognized and refused.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use vocab::{OrgId, UserId};

use crate::db::{Conn, on};
use crate::error::{Result, already_exists};
use crate::row::{put, row};
use crate::sql::join;
use crate::tx::Tx;

row! {
    /// A user's account at an identity provider.
    pub struct LinkedIdentity in "identities" by "user_id" {
        /// The issuer URL of the identity provider.
        pub issuer: String,
        /// The provider's id for the user (`sub`), which never changes.
        pub subject: String,
        pub user_id: UserId,
        pub created_at: Timestamp,
    }
}

/// Links a user to an account. Fails with `AlreadyExists` if the user is linked to another account
/// of this provider.
#[boxed]
pub async fn link(tx: &mut Tx, identity: &LinkedIdentity) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(join(&[
            "insert into identities (",
            LinkedIdentity::COLUMNS,
            ") values ($1, $2, $3, $4)
             on conflict (issuer, subject)
             do update set user_id = excluded.user_id, created_at = excluded.created_at",
        ]))
        .bind(put(&identity.issuer))
        .bind(put(&identity.subject))
        .bind(put(&identity.user_id))
        .bind(put(&identity.created_at))
        .execute(c)
        .await
        .map(drop)
    })
    .map_err(already_exists("a link of this user to the identity provider"))
}

/// The link of an account, even if the user was removed.
#[boxed]
pub async fn find(conn: &mut Conn, issuer: &str, subject: &str) -> Result<Option<LinkedIdentity>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            LinkedIdentity::COLUMNS,
            " from identities where issuer = $1 and subject = $2",
        ]))
        .bind(issuer)
        .bind(subject)
        .fetch_optional(c)
        .await
    })?)
}

/// The links of all users in an organization.
#[boxed]
pub async fn list_by_org(conn: &mut Conn, org: OrgId) -> Result<Vec<LinkedIdentity>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            LinkedIdentity::COLUMNS,
            " from identities where user_id in (select id from users where org_id = $1)
              order by user_id, issuer",
        ]))
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?)
}

/// Deletes all links of a user.
#[boxed]
pub async fn unlink(tx: &mut Tx, user: UserId) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("delete from identities where user_id = $1")
            .bind(put(&user))
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}
