//! Users who sign in.
//!
//! A password is stored as a slow hash and a one-time link as a hash. The caller decides whether
//! either is still valid.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use vocab::{OrgId, Role, UserId};

use crate::db::{Conn, on};
use crate::error::{Result, StoreError, already_exists, expect_one_row};
use crate::row::{parse, put, row};
use crate::sql::{Text, join};
use crate::tx::Tx;
use crate::{Page, Paged};

row! {
    pub struct User in "users" by "id" {
        pub id: UserId,
        pub org_id: OrgId,
        /// The name that they sign in with, in lower case.
        pub name: String,
        pub role: Role,
        /// The hash of their password, as a PHC string; `None` until they set one.
        pub password: Option<String>,
        /// The hash of the one-time link for setting a password.
        pub link_hash: Option<Vec<u8>>,
        pub link_expires_at: Option<Timestamp>,
        /// The encrypted TOTP secret; `None` if they have no second factor.
        pub totp_secret: Option<Vec<u8>>,
        /// The time step of the last TOTP code that was used.
        pub totp_step: i64,
        pub created_at: Timestamp,
        pub created_by: String,
        pub removed_at: Option<Timestamp>,
        /// Incremented by every change.
        pub generation: i64,
    }
}

/// Excludes removed users and users of removed organizations.
const LIVE: &str = " and removed_at is null and not exists
    (select 1 from organizations o where o.id = org_id and o.removed_at is not null)";

/// Inserts a user. The caller sets the `generation`.
#[boxed]
pub async fn create(tx: &mut Tx, user: &User) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(join(&[
            "insert into users (",
            User::COLUMNS,
            ") values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
        ]))
        .bind(put(&user.id))
        .bind(put(&user.org_id))
        .bind(put(&user.name))
        .bind(put(&user.role))
        .bind(put(&user.password))
        .bind(put(&user.link_hash))
        .bind(put(&user.link_expires_at))
        .bind(put(&user.totp_secret))
        .bind(user.totp_step)
        .bind(put(&user.created_at))
        .bind(put(&user.created_by))
        .bind(put(&user.removed_at))
        .bind(user.generation)
        .execute(c)
        .await
        .map(drop)
    })
    .map_err(already_exists("this name"))
}

/// A user of this organization who was not removed.
#[boxed]
pub async fn get(conn: &mut Conn, org: OrgId, id: UserId) -> Result<User> {
    let found = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            User::COLUMNS,
            " from users where id = $1 and org_id = $2",
            LIVE,
        ]))
        .bind(put(&id))
        .bind(put(&org))
        .fetch_optional(c)
        .await
    })?;
    found.ok_or_else(|| StoreError::not_found("user", id))
}

/// A user of any organization who was not removed.
#[boxed]
pub async fn by_id(conn: &mut Conn, id: UserId) -> Result<Option<User>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&["select ", User::COLUMNS, " from users where id = $1", LIVE]))
            .bind(put(&id))
            .fetch_optional(c)
            .await
    })?)
}

/// The user with this name in this organization.
#[boxed]
pub async fn by_name(conn: &mut Conn, org: OrgId, name: &str) -> Result<Option<User>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            User::COLUMNS,
            " from users where name = $1 and org_id = $2",
            LIVE,
        ]))
        .bind(name)
        .bind(put(&org))
        .fetch_optional(c)
        .await
    })?)
}

/// All users with this name, at most one per organization. For the local command line only: sign-in
/// must not reveal users of other organizations.
#[boxed]
pub async fn all_by_name(conn: &mut Conn, name: &str) -> Result<Vec<User>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            User::COLUMNS,
            " from users where name = $1",
            LIVE,
            " order by org_id",
        ]))
        .bind(name)
        .fetch_all(c)
        .await
    })?)
}

/// The user whose one-time link has this hash.
#[boxed]
pub async fn by_link(conn: &mut Conn, hash: &[u8]) -> Result<Option<User>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&["select ", User::COLUMNS, " from users where link_hash = $1", LIVE]))
            .bind(hash)
            .fetch_optional(c)
            .await
    })?)
}

/// Returns a page of this organization's users who were not removed, by name.
#[boxed]
pub async fn list(conn: &mut Conn, org: OrgId, page: Page) -> Result<Paged<User>> {
    let select = [
        "select ",
        User::COLUMNS,
        " from users where org_id = $1 and removed_at is null order by name limit $2 offset $3",
    ];
    let count = "select count(*) from users where org_id = $1 and removed_at is null";
    Paged::for_org(conn, org, page, (&select, count)).await
}

/// Whether a user with this name was removed from this organization.
#[boxed]
pub async fn was_removed(conn: &mut Conn, org: OrgId, name: &str) -> Result<bool> {
    let (removed,): (i64,) = on!(conn, |c| {
        sqlx::query_as(
            "select count(*) from users where name = $1 and org_id = $2 and removed_at is not null",
        )
        .bind(name)
        .bind(put(&org))
        .fetch_one(c)
        .await
    })?;
    Ok(removed > 0)
}

/// Saves role, password, link, second factor and removal, unless the user changed since `user` was
/// read.
#[boxed]
pub async fn save(tx: &mut Tx, user: &User) -> Result<()> {
    let saved = on!(tx, |c| {
        sqlx::query(
            "update users set password = $1, link_hash = $2, link_expires_at = $3, removed_at = $4,
                    totp_secret = $5, totp_step = $6, role = $7, generation = generation + 1
              where id = $8 and generation = $9",
        )
        .bind(put(&user.password))
        .bind(put(&user.link_hash))
        .bind(put(&user.link_expires_at))
        .bind(put(&user.removed_at))
        .bind(put(&user.totp_secret))
        .bind(user.totp_step)
        .bind(put(&user.role))
        .bind(put(&user.id))
        .bind(user.generation)
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?;
    expect_one_row(saved)
}

/// The encrypted TOTP secrets of up to `limit` users after `after`, in the order of their ids.
/// Includes all organizations.
#[boxed]
pub async fn totp_secrets_after(
    conn: &mut Conn,
    after: Option<UserId>,
    limit: u32,
) -> Result<Vec<(UserId, Vec<u8>)>> {
    let rows: Vec<(String, Vec<u8>)> = on!(conn, |c| {
        let mut text = Text::new("select id, totp_secret from users where totp_secret is not null");
        if let Some(after) = &after {
            text.add(" and id > ").bind(put(after));
        }
        text.add(" order by id limit ").bind(i64::from(limit));
        text.build_as().fetch_all(c).await
    })?;
    rows.into_iter().map(|(id, sealed)| Ok((parse("users", id)?, sealed))).collect()
}

/// Replaces a user's TOTP secret by the same one under another key, unless it changed since it was
/// read. This is not a change of the user, so the generation stays the same.
#[boxed]
pub async fn replace_totp_secret(
    tx: &mut Tx,
    id: UserId,
    before: &[u8],
    after: &[u8],
) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("update users set totp_secret = $1 where id = $2 and totp_secret = $3")
            .bind(after)
            .bind(put(&id))
            .bind(before)
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}
