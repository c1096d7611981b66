//! Policies: by when servers must install their fixes. [`crate::compliance`] stores where each
//! server stands.
//!
//! The rows carry no authentication code ([`crate::seals`]): a policy makes no host do anything.

use async_recursion::async_recursion as boxed;
use domain::policy::Rule;
use jiff::Timestamp;
use vocab::{OrgId, PolicyId, Selector};

use crate::db::{Conn, on};
use crate::error::{Result, StoreError, already_exists, expect_one_row};
use crate::row::{put, row};
use crate::sql::join;
use crate::tx::Tx;

row! {
    /// A policy.
    pub struct Policy in "policies" by "id" {
        pub id: PolicyId,
        pub org_id: OrgId,
        /// Its name, unique in the organization.
        pub name: String,
        pub description: String,
        /// The servers that it applies to.
        pub targets: Selector,
        pub rules: Vec<Rule>,
        pub created_at: Timestamp,
        /// The id of the key or user that created it.
        pub created_by: String,
        /// When a user last changed it.
        pub updated_at: Timestamp,
        /// Incremented by every change.
        pub generation: i64,
    }
}

const NAME: &str = "a policy with this name";

/// Adds a policy. The caller sets its `generation`.
#[boxed]
pub async fn create(tx: &mut Tx, policy: &Policy) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(join(&[
            "insert into policies (",
            Policy::COLUMNS,
            ") values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        ]))
        .bind(put(&policy.id))
        .bind(put(&policy.org_id))
        .bind(put(&policy.name))
        .bind(put(&policy.description))
        .bind(put(&policy.targets))
        .bind(put(&policy.rules))
        .bind(put(&policy.created_at))
        .bind(put(&policy.created_by))
        .bind(put(&policy.updated_at))
        .bind(policy.generation)
        .execute(c)
        .await
        .map(drop)
    })
    .map_err(already_exists(NAME))
}

#[boxed]
pub async fn get(conn: &mut Conn, org: OrgId, id: PolicyId) -> Result<Policy> {
    let found: Option<Policy> = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Policy::COLUMNS,
            " from policies where id = $1 and org_id = $2",
        ]))
        .bind(put(&id))
        .bind(put(&org))
        .fetch_optional(c)
        .await
    })?;
    found.ok_or_else(|| StoreError::not_found("policy", id))
}

/// All policies of this organization, by name.
#[boxed]
pub async fn list(conn: &mut Conn, org: OrgId) -> Result<Vec<Policy>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Policy::COLUMNS,
            " from policies where org_id = $1 order by name, id",
        ]))
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?)
}

/// Saves `next`, unless the policy changed since it was read. `next.generation` is the one that was
/// read.
#[boxed]
pub async fn save(tx: &mut Tx, next: &Policy) -> Result<()> {
    let saved = on!(tx, |c| {
        sqlx::query(
            "update policies
                set name = $1, description = $2, targets = $3, rules = $4, updated_at = $5,
                    generation = generation + 1
              where id = $6 and org_id = $7 and generation = $8",
        )
        .bind(put(&next.name))
        .bind(put(&next.description))
        .bind(put(&next.targets))
        .bind(put(&next.rules))
        .bind(put(&next.updated_at))
        .bind(put(&next.id))
        .bind(put(&next.org_id))
        .bind(next.generation)
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })
    .map_err(already_exists(NAME))?;
    expect_one_row(saved)
}

/// Deletes a policy and its trend, unless it changed since it was read. The states of its servers
/// are deleted when the servers are judged again.
#[boxed]
pub async fn delete(tx: &mut Tx, seen: &Policy) -> Result<()> {
    let gone = on!(tx, |c| {
        sqlx::query("delete from policies where id = $1 and org_id = $2 and generation = $3")
            .bind(put(&seen.id))
            .bind(put(&seen.org_id))
            .bind(seen.generation)
            .execute(c)
            .await
            .map(|done| done.rows_affected())
    })?;
    expect_one_row(gone)?;
    Ok(on!(tx, |c| {
        sqlx::query("delete from compliance_days where org_id = $1 and policy_id = $2")
            .bind(put(&seen.org_id))
            .bind(put(&seen.id))
            .execute(c)
            .await
            .map(drop)
    })?)
}
