//! The id of the root key in use, and what still depends on the previous one.
//!
//! The keys themselves are files and never stored here. Every process compares the ids with those
//! of its key files: with other keys it would reject authentic rows as forged.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use vocab::{KeyId, ServerId, TokenId};

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::{parse, put, row};
use crate::sql::join;
use crate::tx::Tx;
use crate::{audit, migrate};

row! {
    /// The root key in use.
    pub struct RootKeyRecord in "root_keys" by "id" {
        pub id: String,
        /// The id of the previous key, while the key is rotated.
        pub old_id: Option<String>,
        /// When a service first used it.
        pub since: Timestamp,
        /// When everything was resealed with it.
        pub resealed_at: Option<Timestamp>,
    }
}

/// The recorded key; `None` before the first start.
#[boxed]
pub async fn get(conn: &mut Conn) -> Result<Option<RootKeyRecord>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            RootKeyRecord::COLUMNS,
            " from root_keys where place = 1",
        ]))
        .fetch_optional(c)
        .await
    })?)
}

/// Lets only one process at a time change the record, until its transaction ends.
#[boxed]
pub async fn lock(tx: &mut Tx) -> Result<()> {
    migrate::lock(tx).await
}

async fn save(tx: &mut Tx, record: &RootKeyRecord) -> Result<()> {
    on!(tx, |c| {
        sqlx::query(
            "insert into root_keys (place, id, old_id, since, resealed_at)
                values (1, $1, $2, $3, $4)
             on conflict (place) do update set id = excluded.id, old_id = excluded.old_id,
                since = excluded.since, resealed_at = excluded.resealed_at",
        )
        .bind(put(&record.id))
        .bind(put(&record.old_id))
        .bind(put(&record.since))
        .bind(put(&record.resealed_at))
        .execute(c)
        .await
        .map(drop)
    })?;
    Ok(())
}

/// Records the first key. From now on, only processes that seal with it can write.
#[boxed]
pub async fn record_first(tx: &mut Tx, id: &str, now: Timestamp) -> Result<()> {
    let first = RootKeyRecord { id: id.into(), old_id: None, since: now, resealed_at: None };
    save(tx, &first).await?;
    audit::set_head_keys(tx).await
}

/// Records that `id` replaces `old_id`. The transaction must seal with the new key. From now on,
/// processes that have only the old key cannot write audit entries, and therefore cannot cancel
/// batches.
#[boxed]
pub async fn record_rotation(tx: &mut Tx, id: &str, old_id: &str, now: Timestamp) -> Result<()> {
    let next =
        RootKeyRecord { id: id.into(), old_id: Some(old_id.into()), since: now, resealed_at: None };
    save(tx, &next).await?;
    audit::begin_reseal(tx).await
}

/// Records that everything is sealed with the new key.
#[boxed]
pub async fn set_resealed(tx: &mut Tx, id: &str, now: Timestamp) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("update root_keys set resealed_at = $1 where id = $2 and resealed_at is null")
            .bind(put(&now))
            .bind(id)
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// Records that the old key is no longer accepted.
#[boxed]
pub async fn retire(tx: &mut Tx) -> Result<()> {
    on!(tx, |c| sqlx::query("update root_keys set old_id = null").execute(c).await.map(drop))?;
    Ok(())
}

/// Credentials of one type that were not created with the current key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependents<Id> {
    pub count: u64,
    /// The name and id of the first of them.
    pub first: Vec<(String, Id)>,
}

macro_rules! dependents {
    ($($(#[$meta:meta])* $name:ident: $id:ty, $table:literal, $select:literal, $from:literal;)*) => {$(
        $(#[$meta])*
        pub async fn $name(
            conn: &mut Conn,
            key_id: &str,
            now: Timestamp,
            limit: u32,
        ) -> Result<Dependents<$id>> {
            let (count,): (i64,) = on!(conn, |c| {
                sqlx::query_as(join(&["select count(*)", $from]))
                    .bind(key_id)
                    .bind(put(&now))
                    .fetch_one(c)
                    .await
            })?;
            let rows: Vec<(String, String)> = on!(conn, |c| {
                sqlx::query_as(join(&[$select, $from, " order by id limit $3"]))
                    .bind(key_id)
                    .bind(put(&now))
                    .bind(i64::from(limit))
                    .fetch_all(c)
                    .await
            })?;
            let first = rows.into_iter().map(|(name, id)| Ok((name, parse($table, id)?)));
            Ok(Dependents { count: count.unsigned_abs(), first: first.collect::<Result<_>>()? })
        }
    )*};
}

dependents! {
    /// Valid API keys that were not created with this key.
    api_keys: KeyId, "api_keys", "select name, id",
        " from api_keys where (root_key_id is null or root_key_id <> $1) and revoked_at is null
            and (expires_at is null or expires_at > $2) and org_id in
                (select id from organizations where removed_at is null)";
    /// Valid enrollment tokens that were not created with this key.
    enrollment_tokens: TokenId, "enrollment_tokens", "select name, id",
        " from enrollment_tokens where (root_key_id is null or root_key_id <> $1)
            and revoked_at is null and (expires_at is null or expires_at > $2)
            and (uses_max is null or uses < uses_max) and org_id in
                (select id from organizations where removed_at is null)";
    /// Servers whose agents have not used an identity that was created with this key.
    servers: ServerId, "servers", "select hostname, id",
        " from servers where (root_key_id is null or root_key_id <> $1)
            and (removed_at is null or removed_at > $2)";
}
