//! API keys.
//!
//! Only the hash of a key is stored, never the key itself. The caller decides whether a key is
//! still valid.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use vocab::{Environment, KeyId, OrgId, Role};

use crate::db::{Conn, on};
use crate::error::{Result, StoreError, already_exists, expect_one_row};
use crate::row::{put, row};
use crate::sql::{ROWS_MAX, Text, join};
use crate::tx::Tx;
use crate::{Page, Paged};

row! {
    /// An API key; only its hash is stored.
    pub struct ApiKey in "api_keys" by "id" {
        pub id: KeyId,
        pub org_id: OrgId,
        pub name: String,
        pub hash: Vec<u8>,
        pub role: Role,
        /// The environments that it is limited to; `None` means no limit.
        pub environments: Option<Vec<Environment>>,
        pub created_at: Timestamp,
        pub created_by: String,
        pub expires_at: Option<Timestamp>,
        pub revoked_at: Option<Timestamp>,
        /// When it was last used. Written with a delay.
        pub last_used_at: Option<Timestamp>,
        /// Incremented by every change.
        pub generation: i64,
    }
}

/// Inserts a key. The caller sets its `generation`.
#[boxed]
pub async fn create(tx: &mut Tx, key: &ApiKey) -> Result<()> {
    let root_key = tx.seal().key_id();
    on!(tx, |c| {
        sqlx::query(join(&[
            "insert into api_keys (",
            ApiKey::COLUMNS,
            ", root_key_id) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
        ]))
        .bind(put(&key.id))
        .bind(put(&key.org_id))
        .bind(put(&key.name))
        .bind(put(&key.hash))
        .bind(put(&key.role))
        .bind(put(&key.environments))
        .bind(put(&key.created_at))
        .bind(put(&key.created_by))
        .bind(put(&key.expires_at))
        .bind(put(&key.revoked_at))
        .bind(put(&key.last_used_at))
        .bind(key.generation)
        .bind(&root_key)
        .execute(c)
        .await
        .map(drop)
    })
    .map_err(already_exists("this API key"))
}

#[boxed]
pub async fn get(conn: &mut Conn, org: OrgId, id: KeyId) -> Result<ApiKey> {
    let found = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            ApiKey::COLUMNS,
            " from api_keys where id = $1 and org_id = $2",
        ]))
        .bind(put(&id))
        .bind(put(&org))
        .fetch_optional(c)
        .await
    })?;
    found.ok_or_else(|| StoreError::not_found("API key", id))
}

/// The key with this hash in any organization, even if revoked or expired. `None` if the
/// organization was removed.
#[boxed]
pub async fn by_hash(conn: &mut Conn, hash: &[u8]) -> Result<Option<ApiKey>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            ApiKey::COLUMNS,
            " from api_keys where hash = $1 and not exists
                (select 1 from organizations o where o.id = org_id and o.removed_at is not null)",
        ]))
        .bind(hash)
        .fetch_optional(c)
        .await
    })?)
}

/// Returns a page of this organization's keys, newest first.
#[boxed]
pub async fn list(conn: &mut Conn, org: OrgId, page: Page) -> Result<Paged<ApiKey>> {
    let select = [
        "select ",
        ApiKey::COLUMNS,
        " from api_keys where org_id = $1 order by id desc limit $2 offset $3",
    ];
    let count = "select count(*) from api_keys where org_id = $1";
    Paged::for_org(conn, org, page, (&select, count)).await
}

/// Revokes a key.
#[boxed]
pub async fn revoke(tx: &mut Tx, seen: &ApiKey, now: Timestamp) -> Result<()> {
    let saved = on!(tx, |c| {
        sqlx::query(
            "update api_keys set revoked_at = $1, generation = generation + 1
              where id = $2 and generation = $3 and revoked_at is null",
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

/// Records when keys were used. The caller collects uses, so that a request does not write. A
/// recorded time never decreases.
#[boxed]
pub async fn record_uses(tx: &mut Tx, uses: &[(KeyId, Timestamp)]) -> Result<()> {
    let mut uses = uses.to_vec();
    // Sorted by id, so that two replicas lock the rows in the same order; each key once, with its
    // latest use.
    uses.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
    uses.dedup_by_key(|(id, _)| *id);
    for chunk in uses.chunks(ROWS_MAX) {
        on!(tx, |c| {
            Text::new("with v (key_id, used_at) as (")
                .rows(chunk, |row, (id, at)| {
                    row.bind(put(id)).bind(put(at));
                })
                .add(
                    ") update api_keys set last_used_at = v.used_at from v
                        where id = v.key_id and (last_used_at is null or last_used_at < v.used_at)",
                )
                .build()
                .execute(c)
                .await
                .map(drop)
        })?;
    }
    Ok(())
}
