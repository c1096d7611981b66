//! Enrollment tokens, which allow new servers to enroll.
//!
//! Only the hash of a token is stored, never the token itself.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use vocab::{Environment, OrgId, Tag, TokenId};

use crate::db::{Conn, on};
use crate::error::{Result, StoreError, already_exists};
use crate::row::{put, row};
use crate::sql::join;
use crate::tx::Tx;
use crate::{Page, Paged};

row! {
    /// An enrollment token; only its hash is stored.
    pub struct EnrollmentToken in "enrollment_tokens" by "id" {
        pub id: TokenId,
        pub org_id: OrgId,
        pub name: String,
        pub hash: Vec<u8>,
        /// The environment of servers that enroll with it.
        pub environment: Option<Environment>,
        /// The tags of servers that enroll with it.
        pub tags: Vec<Tag>,
        /// How many times it was used.
        pub uses: u32,
        /// How many times it may be used; `None` means no limit.
        pub uses_max: Option<u32>,
        pub created_at: Timestamp,
        pub created_by: String,
        pub expires_at: Option<Timestamp>,
        pub revoked_at: Option<Timestamp>,
    }
}

/// The result of [`take_use`].
#[derive(Debug, Clone, PartialEq)]
pub enum UseResult {
    /// The token is valid. When the transaction commits, one of its uses is consumed.
    Taken(Box<EnrollmentToken>),
    /// There is no such token.
    Unknown,
    Revoked,
    Expired,
    /// It reached its maximum number of uses.
    UsedUp,
}

/// Inserts a token.
#[boxed]
pub async fn create(tx: &mut Tx, token: &EnrollmentToken) -> Result<()> {
    let root_key = tx.seal().key_id();
    on!(tx, |c| {
        sqlx::query(join(&[
            "insert into enrollment_tokens (",
            EnrollmentToken::COLUMNS,
            ", root_key_id) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
        ]))
        .bind(put(&token.id))
        .bind(put(&token.org_id))
        .bind(put(&token.name))
        .bind(put(&token.hash))
        .bind(put(&token.environment))
        .bind(put(&token.tags))
        .bind(put(&token.uses))
        .bind(put(&token.uses_max))
        .bind(put(&token.created_at))
        .bind(put(&token.created_by))
        .bind(put(&token.expires_at))
        .bind(put(&token.revoked_at))
        .bind(&root_key)
        .execute(c)
        .await
        .map(drop)
    })
    .map_err(already_exists("this enrollment token"))
}

/// Takes one use of the token with this hash. The limit is checked in the same statement, because
/// between a read and a write a hundred servers of one image may enroll.
#[boxed]
pub async fn take_use(tx: &mut Tx, hash: &[u8], now: Timestamp) -> Result<UseResult> {
    let taken: Option<EnrollmentToken> = on!(tx, |c| {
        sqlx::query_as(join(&[
            "update enrollment_tokens set uses = uses + 1
              where hash = $1 and revoked_at is null
                and (expires_at is null or expires_at > $2)
                and (uses_max is null or uses < uses_max)
                and not exists (select 1 from organizations o
                                 where o.id = org_id and o.removed_at is not null)
              returning ",
            EnrollmentToken::COLUMNS,
        ]))
        .bind(hash)
        .bind(put(&now))
        .fetch_optional(c)
        .await
    })?;
    if let Some(token) = taken {
        return Ok(UseResult::Taken(Box::new(token)));
    }
    let found: Option<EnrollmentToken> = on!(tx, |c| {
        sqlx::query_as(join(&[
            "select ",
            EnrollmentToken::COLUMNS,
            " from enrollment_tokens where hash = $1 and not exists
                (select 1 from organizations o where o.id = org_id and o.removed_at is not null)",
        ]))
        .bind(hash)
        .fetch_optional(c)
        .await
    })?;
    Ok(match found {
        None => UseResult::Unknown,
        Some(token) if token.revoked_at.is_some() => UseResult::Revoked,
        Some(token) if token.expires_at.is_some_and(|at| at <= now) => UseResult::Expired,
        Some(_) => UseResult::UsedUp,
    })
}

#[boxed]
pub async fn get(conn: &mut Conn, org: OrgId, id: TokenId) -> Result<EnrollmentToken> {
    let found = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            EnrollmentToken::COLUMNS,
            " from enrollment_tokens where id = $1 and org_id = $2",
        ]))
        .bind(put(&id))
        .bind(put(&org))
        .fetch_optional(c)
        .await
    })?;
    found.ok_or_else(|| StoreError::not_found("enrollment token", id))
}

/// Returns a page of this organization's tokens, newest first.
#[boxed]
pub async fn list(conn: &mut Conn, org: OrgId, page: Page) -> Result<Paged<EnrollmentToken>> {
    let select = [
        "select ",
        EnrollmentToken::COLUMNS,
        " from enrollment_tokens where org_id = $1 order by id desc limit $2 offset $3",
    ];
    let count = "select count(*) from enrollment_tokens where org_id = $1";
    Paged::for_org(conn, org, page, (&select, count)).await
}

/// Revokes a token. If it was revoked already, the first time stays.
#[boxed]
pub async fn revoke(tx: &mut Tx, org: OrgId, id: TokenId, now: Timestamp) -> Result<()> {
    let saved = on!(tx, |c| {
        sqlx::query(
            "update enrollment_tokens set revoked_at = coalesce(revoked_at, $1)
              where id = $2 and org_id = $3",
        )
        .bind(put(&now))
        .bind(put(&id))
        .bind(put(&org))
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?;
    if saved == 1 { Ok(()) } else { Err(StoreError::not_found("enrollment token", id)) }
}

/// The organization of the token with this hash, unless it was revoked. Ignores expiry and the
/// limit of uses.
#[boxed]
pub async fn org_by_hash(conn: &mut Conn, hash: &[u8]) -> Result<Option<OrgId>> {
    let found: Option<EnrollmentToken> = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            EnrollmentToken::COLUMNS,
            " from enrollment_tokens where hash = $1 and revoked_at is null",
        ]))
        .bind(hash)
        .fetch_optional(c)
        .await
    })?;
    Ok(found.map(|token| token.org_id))
}
