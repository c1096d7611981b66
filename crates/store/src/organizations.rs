//! Organizations, the tenants: all other data belongs to one, and a caller sees only its own.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use vocab::OrgId;

use crate::db::{Conn, on};
use crate::error::{Result, StoreError, already_exists, expect_one_row};
use crate::root_keys;
use crate::row::{put, row};
use crate::sql::join;
use crate::tx::Tx;

row! {
    pub struct Organization in "organizations" by "id" {
        pub id: OrgId,
        /// Its name, unique among organizations that were not removed.
        pub name: String,
        pub created_at: Timestamp,
        pub removed_at: Option<Timestamp>,
        /// Incremented by every change.
        pub generation: i64,
    }
}

const NAME: &str = "an organization with this name";

/// Creates an organization with an empty audit log.
#[boxed]
pub async fn create(tx: &mut Tx, id: OrgId, name: &str, now: Timestamp) -> Result<Organization> {
    on!(tx, |c| {
        sqlx::query(
            "insert into organizations (id, name, created_at, generation) values ($1, $2, $3, 1)",
        )
        .bind(put(&id))
        .bind(name)
        .bind(put(&now))
        .execute(c)
        .await
        .map(drop)
    })
    .map_err(already_exists(NAME))?;
    let root_key = tx.seal().key_id();
    if let (Some(ours), Some(used)) = (&root_key, root_keys::get(tx).await?)
        && *ours != used.id
    {
        return Err(StoreError::RootKeyRotated);
    }
    on!(tx, |c| {
        sqlx::query(
            "insert into audit_heads (org_id, seq, hash, root_key_id) values ($1, 0, $2, $3)",
        )
        .bind(put(&id))
        .bind(Vec::<u8>::new())
        .bind(&root_key)
        .execute(c)
        .await
        .map(drop)
    })?;
    get(tx, id).await
}

/// An organization that was not removed.
#[boxed]
pub async fn get(conn: &mut Conn, id: OrgId) -> Result<Organization> {
    let found = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Organization::COLUMNS,
            " from organizations where id = $1 and removed_at is null",
        ]))
        .bind(put(&id))
        .fetch_optional(c)
        .await
    })?;
    found.ok_or_else(|| StoreError::not_found("organization", id))
}

/// An organization that was not removed, by name.
#[boxed]
pub async fn by_name(conn: &mut Conn, name: &str) -> Result<Organization> {
    let found = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Organization::COLUMNS,
            " from organizations where name = $1 and removed_at is null",
        ]))
        .bind(name)
        .fetch_optional(c)
        .await
    })?;
    found.ok_or_else(|| StoreError::not_found("organization", name))
}

/// All organizations that were not removed, by name.
#[boxed]
pub async fn list(conn: &mut Conn) -> Result<Vec<Organization>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Organization::COLUMNS,
            " from organizations where removed_at is null order by name, id",
        ]))
        .fetch_all(c)
        .await
    })?)
}

#[boxed]
pub async fn rename(tx: &mut Tx, seen: &Organization, name: &str) -> Result<()> {
    let saved = on!(tx, |c| {
        sqlx::query(
            "update organizations set name = $1, generation = generation + 1
              where id = $2 and generation = $3 and removed_at is null",
        )
        .bind(name)
        .bind(put(&seen.id))
        .bind(seen.generation)
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })
    .map_err(already_exists(NAME))?;
    expect_one_row(saved)
}

/// Removes an organization from every list; its rows stay.
#[boxed]
pub async fn remove(tx: &mut Tx, seen: &Organization, now: Timestamp) -> Result<()> {
    let saved = on!(tx, |c| {
        sqlx::query(
            "update organizations set removed_at = $1, generation = generation + 1
              where id = $2 and generation = $3 and removed_at is null",
        )
        .bind(put(&now))
        .bind(put(&seen.id))
        .bind(seen.generation)
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?;
    expect_one_row(saved)
}
