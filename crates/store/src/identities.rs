//! Links between users and their accounts at an identity provider.
//!
//! A link stays when its user is removed, so that the person is recognized and refused.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use vocab::{OrgId, UserId};

use crate::db::{Conn, on};
use crate::error::{Result, taken};
use crate::row::{put, row};
use crate::sql::join;
use crate::tx::Tx;

row! {
    /// One person as one provider knows them.
    pub struct Identity in "identities" by "user_id" {
        /// Which provider.
        pub issuer: String,
        /// Its word for them.
        pub subject: String,
        /// Who they are here.
        pub user_id: UserId,
        /// Since when this is known.
        pub created_at: Timestamp,
    }
}

/// Writes down who somebody is. Refused if the provider knows somebody else as this person.
#[boxed]
pub async fn link(tx: &mut Tx, identity: &Identity) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(join(&[
            "insert into identities (",
            Identity::COLUMNS,
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
    .map_err(taken("this person"))
}

/// Whom the provider means, whether they were removed or not.
#[boxed]
pub async fn find(conn: &mut Conn, issuer: &str, subject: &str) -> Result<Option<Identity>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Identity::COLUMNS,
            " from identities where issuer = $1 and subject = $2",
        ]))
        .bind(issuer)
        .bind(subject)
        .fetch_optional(c)
        .await
    })?)
}

/// Those of everyone in an organization.
#[boxed]
pub async fn of_org(conn: &mut Conn, org: OrgId) -> Result<Vec<Identity>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Identity::COLUMNS,
            " from identities where user_id in (select id from users where org_id = $1)
              order by user_id, issuer",
        ]))
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?)
}

/// Forgets who a person is elsewhere.
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
