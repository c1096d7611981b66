//! Package sets, stored by content: once per organization, however many servers have the same one.
//!
//! The bytes are those of `vocab::listing`, compressed. The digest is computed here from the bytes
//! and checked when they are read, so a row can never hold other content than its digest says.
//!
//! [`delete_unused`] deletes sets that no server has used for a while. [`mark_used`] prevents it
//! from deleting a set that a server just starts to use: it updates `last_used_at`, unless that is
//! recent, and so makes the deleting statement check the row again.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use vocab::{Digest, OrgId};

use crate::db::{Conn, on};
use crate::error::{Result, StoreError};
use crate::row::{put, row};
use crate::sql::{ROWS_MAX, Text, join};
use crate::tx::Tx;

/// The content of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SetKind {
    /// Installed packages.
    Packages,
    /// Pending updates.
    Updates,
}

impl SetKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            SetKind::Packages => "packages",
            SetKind::Updates => "updates",
        }
    }
}

/// How old `last_used_at` may be before it is written again. Ten thousand servers with one set must
/// not queue up to write one row.
const LAST_USED_PRECISION: SignedDuration = SignedDuration::from_hours(1);

/// The minimum time for which an unused set is kept. It is much longer than `LAST_USED_PRECISION`,
/// so that a set for which [`mark_used`] did not write `last_used_at` is never old enough to be
/// deleted.
pub const RETENTION_MIN: SignedDuration = SignedDuration::from_hours(24);

const COMPRESSION_LEVEL: i32 = 3;

/// A compressed set, ready to be stored. Created outside the transaction, because compressing takes
/// a millisecond.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedSet {
    digest: Digest,
    entries: u32,
    size_bytes: u64,
    compressed: Vec<u8>,
}

impl PackedSet {
    /// Compresses the bytes of a package set with this many entries.
    pub fn new(entries: u32, bytes: &[u8]) -> Self {
        let compressed = zstd::bulk::compress(bytes, COMPRESSION_LEVEL)
            .expect("compressing into memory does not fail");
        Self { digest: Digest::compute(bytes), entries, size_bytes: bytes.len() as u64, compressed }
    }

    /// For a set that was read as a stream. `compressed` must be zstd frames of exactly the
    /// `size_bytes` bytes that have this digest.
    pub fn from_stream(digest: Digest, entries: u32, size_bytes: u64, compressed: Vec<u8>) -> Self {
        Self { digest, entries, size_bytes, compressed }
    }

    pub fn digest(&self) -> Digest {
        self.digest
    }
}

row! {
    struct Stored in "package_sets" by "kind" {
        kind: String,
        size_bytes: u64,
        compressed: Vec<u8>,
    }
}

/// Stores a set, unless it is stored already. Returns whether it was new.
#[boxed]
pub async fn store(
    tx: &mut Tx,
    org: OrgId,
    kind: SetKind,
    list: &PackedSet,
    now: Timestamp,
) -> Result<bool> {
    Ok(store_all(tx, &[(org, kind, list)], now).await? == 1)
}

/// Stores many sets. Returns how many were new.
#[boxed]
pub async fn store_all(
    tx: &mut Tx,
    lists: &[(OrgId, SetKind, &PackedSet)],
    now: Timestamp,
) -> Result<u64> {
    // Each set once, and sorted, so that replicas which store the same sets do so in the same
    // order.
    let lists: BTreeMap<_, _> =
        lists.iter().map(|(org, kind, list)| ((*org, *kind, list.digest), *list)).collect();
    let lists: Vec<_> = lists.into_iter().collect();
    let mut new = 0;
    for chunk in lists.chunks(ROWS_MAX) {
        new += on!(tx, |c| {
            Text::new(
                "insert into package_sets (org_id, kind, digest, entries, size_bytes, compressed,
                    created_at, last_used_at) ",
            )
            .rows(chunk, |row, ((org, kind, digest), list)| {
                row.bind(put(org)).bind(kind.as_str()).bind(put(digest)).bind(put(&list.entries));
                row.bind(put(&list.size_bytes)).bind(list.compressed.clone());
                row.bind(put(&now)).bind(put(&now));
            })
            .add(" on conflict do nothing")
            .build()
            .execute(c)
            .await
            .map(|done| done.rows_affected())
        })?;
    }
    Ok(new)
}

/// Returns which of `digests` are not stored for this organization: agents must upload them.
#[boxed]
pub async fn missing(
    conn: &mut Conn,
    org: OrgId,
    kind: SetKind,
    digests: &[Digest],
) -> Result<Vec<Digest>> {
    let mut known = BTreeSet::new();
    for chunk in digests.chunks(ROWS_MAX) {
        let found: Vec<(Vec<u8>,)> = on!(conn, |c| {
            let mut text = Text::new("select digest from package_sets where org_id = ");
            text.bind(put(&org)).add(" and kind = ").bind(kind.as_str());
            text.add(" and digest").equals_any(chunk.iter().map(put));
            text.build_as().fetch_all(c).await
        })?;
        known.extend(found.into_iter().map(|(digest,)| digest));
    }
    let missing = digests.iter().filter(|digest| !known.contains(digest.as_bytes().as_slice()));
    Ok(missing.copied().collect())
}

/// The number of entries of a set. `NotFound` if it is not stored.
#[boxed]
pub async fn entries(conn: &mut Conn, org: OrgId, kind: SetKind, digest: Digest) -> Result<u32> {
    let found: Option<(i64,)> = on!(conn, |c| {
        sqlx::query_as(
            "select entries from package_sets where org_id = $1 and kind = $2 and digest = $3",
        )
        .bind(put(&org))
        .bind(kind.as_str())
        .bind(put(&digest))
        .fetch_optional(c)
        .await
    })?;
    let (entries,) = found.ok_or_else(|| StoreError::not_found("package set", digest))?;
    Ok(u32::try_from(entries).unwrap_or(u32::MAX))
}

/// The uncompressed bytes of a set.
#[boxed]
pub async fn get(conn: &mut Conn, org: OrgId, kind: SetKind, digest: Digest) -> Result<Vec<u8>> {
    let found: Option<Stored> = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Stored::COLUMNS,
            " from package_sets where org_id = $1 and kind = $2 and digest = $3",
        ]))
        .bind(put(&org))
        .bind(kind.as_str())
        .bind(put(&digest))
        .fetch_optional(c)
        .await
    })?;
    let stored = found.ok_or_else(|| StoreError::not_found("package set", digest))?;
    unpack(&stored, digest).map_err(|source| StoreError::Corrupt {
        table: "package_sets",
        id: digest.to_string(),
        source,
    })
}

fn unpack(stored: &Stored, digest: Digest) -> std::result::Result<Vec<u8>, crate::Cause> {
    let size = usize::try_from(stored.size_bytes)?;
    if size > vocab::listing::BYTES_MAX {
        return Err(format!("{size} bytes exceed the maximum size of a package set").into());
    }
    let bytes = zstd::bulk::decompress(&stored.compressed, size)?;
    if Digest::compute(&bytes) != digest {
        return Err("the content does not match its digest".into());
    }
    Ok(bytes)
}

/// Records that a server uses this set. `NotFound` if it is not stored, or was deleted.
#[boxed]
pub async fn mark_used(
    tx: &mut Tx,
    org: OrgId,
    kind: SetKind,
    digest: Digest,
    now: Timestamp,
) -> Result<()> {
    let unknown = mark_all_used(tx, org, kind, &[digest], now).await?;
    if unknown.is_empty() { Ok(()) } else { Err(StoreError::not_found("package set", digest)) }
}

/// Records that servers use these sets. Returns those that are not stored.
#[boxed]
pub async fn mark_all_used(
    tx: &mut Tx,
    org: OrgId,
    kind: SetKind,
    digests: &[Digest],
    now: Timestamp,
) -> Result<Vec<Digest>> {
    // Sorted, so that two transactions lock rows in the same order.
    let digests: BTreeSet<Digest> = digests.iter().copied().collect();
    let digests: Vec<Digest> = digests.into_iter().collect();
    let fresh = now.saturating_sub(LAST_USED_PRECISION).unwrap_or(Timestamp::MIN);
    for chunk in digests.chunks(ROWS_MAX) {
        on!(tx, |c| {
            let mut text = Text::new("update package_sets set last_used_at = ");
            text.bind(put(&now)).add(" where org_id = ").bind(put(&org));
            text.add(" and kind = ").bind(kind.as_str()).add(" and last_used_at < ");
            text.bind(put(&fresh)).add(" and digest").equals_any(chunk.iter().map(put));
            text.build().execute(c).await.map(drop)
        })?;
    }
    missing(tx, org, kind, &digests).await
}

/// Deletes up to `limit` sets that no server has and that were not used since `cutoff`. Returns
/// their number. If `cutoff` is later than [`RETENTION_MIN`] before `now`, that time is used
/// instead.
#[boxed]
pub async fn delete_unused(
    tx: &mut Tx,
    now: Timestamp,
    cutoff: Timestamp,
    limit: u32,
) -> Result<u64> {
    let cutoff = cutoff.min(now.saturating_sub(RETENTION_MIN).unwrap_or(Timestamp::MIN));
    // The outer condition on `last_used_at` is needed: if another transaction wrote a row while
    // this one waited for it, PostgreSQL checks the row again, but only the conditions on the row
    // itself.
    Ok(on!(tx, |c| {
        sqlx::query(
            "delete from package_sets where last_used_at < $1 and (org_id, kind, digest) in (
                select l.org_id, l.kind, l.digest from package_sets l
                 where l.last_used_at < $1
                   and not (l.kind = 'packages' and exists
                        (select 1 from servers s where s.org_id = l.org_id
                            and s.package_set = l.digest and s.removed_at is null))
                   and not (l.kind = 'updates' and exists
                        (select 1 from servers s where s.org_id = l.org_id
                            and s.update_set = l.digest and s.removed_at is null))
                 order by l.last_used_at limit $2)",
        )
        .bind(put(&cutoff))
        .bind(i64::from(limit))
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?)
}
