//! The audit log: who did what, in a hash chain that shows tampering.
//!
//! Each organization has a chain. An entry holds the hash of the previous entry and its own,
//! computed by the [`Seal`] that the caller passes in. The key of the seal is not in the database,
//! so someone who can write to the database can break the chain but not forge it. Entries are
//! appended and never changed; only their hashes are recomputed when the key is rotated
//! ([`reseal`]).

use async_recursion::async_recursion as boxed;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use vocab::OrgId;

use crate::db::{Conn, on};
use crate::error::{Result, StoreError};
use crate::row::{put, row};
use crate::sql::{Text, in_chunks, join};
use crate::tx::Tx;

/// An entry that has no place in the chain yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEntry {
    pub org_id: OrgId,
    /// When it happened. Stored in microseconds.
    pub at: Timestamp,
    /// Who did it: a key, a user, a schedule or the engine.
    pub actor: String,
    pub action: String,
    /// The resource that was changed.
    pub subject: String,
    /// The details, as JSON. As text, because the hash covers exactly these characters.
    pub detail: String,
}

row! {
    /// An entry in the chain.
    pub struct Entry in "audit_entries" by "subject" {
        pub org_id: OrgId,
        /// Its position, from 1.
        pub seq: i64,
        pub at: Timestamp,
        pub actor: String,
        pub action: String,
        pub subject: String,
        /// The details, as JSON.
        pub detail: String,
        /// The hash of the previous entry; empty for the first.
        pub previous: Vec<u8>,
        /// Its own hash.
        pub hash: Vec<u8>,
    }
}

impl Entry {
    /// The content that was hashed, to compute the hash again and compare.
    pub fn to_new_entry(&self) -> NewEntry {
        NewEntry {
            org_id: self.org_id,
            at: self.at,
            actor: self.actor.clone(),
            action: self.action.clone(),
            subject: self.subject.clone(),
            detail: self.detail.clone(),
        }
    }
}

/// Computes the hash of an entry from the previous hash, its position and its content.
#[derive(Clone)]
pub struct Seal {
    entry_hash: Arc<EntryHashFn>,
    row_mac: Arc<RowMacFn>,
    /// The id of its key.
    key_id: Option<Arc<str>>,
    /// The seal with the key that is being rotated out. What it sealed is still accepted.
    old: Option<Arc<Seal>>,
}

type EntryHashFn = dyn Fn(&[u8], i64, &NewEntry) -> Vec<u8> + Send + Sync;
type RowMacFn = dyn Fn(&'static str, &[u8]) -> [u8; 32] + Send + Sync;

impl Seal {
    /// Creates a seal from a keyed hash for entries.
    pub fn new(stamp: impl Fn(&[u8], i64, &NewEntry) -> Vec<u8> + Send + Sync + 'static) -> Self {
        // Row codes without a key. An installation always sets a keyed hash (`with_rows`).
        let rows = |purpose: &'static str, values: &[u8]| {
            let framed = [purpose.as_bytes(), &[0], values].concat();
            *vocab::Digest::compute(&framed).as_bytes()
        };
        Self { entry_hash: Arc::new(stamp), row_mac: Arc::new(rows), key_id: None, old: None }
    }

    /// Sets the id of the key. After another process has switched to a newer key, writes then fail.
    #[must_use]
    pub fn with_key_id(self, id: &str) -> Self {
        Self { key_id: Some(id.into()), ..self }
    }

    /// Also accepts what was sealed with `old`.
    #[must_use]
    pub fn with_old(self, old: Seal) -> Self {
        Self { old: Some(Arc::new(old)), ..self }
    }

    pub(crate) fn key_id(&self) -> Option<String> {
        self.key_id.as_deref().map(str::to_owned)
    }

    /// The seal with the key that is being rotated out.
    pub(crate) fn old(&self) -> Option<&Seal> {
        self.old.as_deref()
    }

    /// Sets the keyed hash for the rows that make hosts act ([`crate::seals`]).
    #[must_use]
    pub fn with_rows(
        self,
        rows: impl Fn(&'static str, &[u8]) -> [u8; 32] + Send + Sync + 'static,
    ) -> Self {
        Self { row_mac: Arc::new(rows), ..self }
    }

    /// The authentication code of a row's values. `purpose` separates the codes of different
    /// tables.
    pub(crate) fn row_code(&self, purpose: &'static str, values: &[u8]) -> [u8; 32] {
        (self.row_mac)(purpose, values)
    }

    /// The hash of `entry` at position `seq` after an entry with the hash `previous`.
    pub fn entry_hash(&self, previous: &[u8], seq: i64, entry: &NewEntry) -> Vec<u8> {
        (self.entry_hash)(previous, seq, entry)
    }
}

/// Adds entries to their chains. The chains are locked in the order of the organizations' ids, so
/// that two transactions cannot deadlock.
pub(crate) async fn append(conn: &mut Conn, seal: &Seal, entries: Vec<NewEntry>) -> Result<()> {
    let mut chains = BTreeMap::<OrgId, Vec<NewEntry>>::new();
    for entry in entries {
        chains.entry(entry.org_id).or_default().push(entry);
    }
    for (org, entries) in chains {
        let head = lock_head(conn, seal, org).await?;
        let links = chain_entries(seal, head, entries)?;
        insert(conn, &links).await?;
        if let Some(last) = links.last() {
            save_head(conn, last).await?;
        }
    }
    Ok(())
}

fn chain_entries(seal: &Seal, head: (i64, Vec<u8>), entries: Vec<NewEntry>) -> Result<Vec<Entry>> {
    let (mut seq, mut previous) = head;
    let mut links = Vec::with_capacity(entries.len());
    for mut entry in entries {
        seq += 1;
        // A column stores microseconds. The hash must cover the value that will be read.
        entry.at = Timestamp::from_microsecond(entry.at.as_microsecond()).unwrap_or(entry.at);
        let hash = seal.entry_hash(&previous, seq, &entry);
        let NewEntry { org_id, at, actor, action, subject, detail } = entry;
        let link = Entry { org_id, seq, at, actor, action, subject, detail, previous, hash };
        previous = link.hash.clone();
        links.push(link);
    }
    Ok(links)
}

/// Locks the chain and returns its end. Fails if another process uses a newer root key.
async fn lock_head(conn: &mut Conn, seal: &Seal, org: OrgId) -> Result<(i64, Vec<u8>)> {
    let head: Option<(i64, Vec<u8>, Option<String>)> = on!(conn, |c, d| {
        sqlx::query_as(join(&[
            "select seq, hash, root_key_id from audit_heads where org_id = $1",
            d.for_update,
        ]))
        .bind(put(&org))
        .fetch_optional(c)
        .await
    })?;
    let (seq, hash, wanted) = head.ok_or_else(|| StoreError::not_found("organization", org))?;
    match (wanted, seal.key_id.as_deref()) {
        (Some(wanted), Some(ours)) if wanted != ours => Err(StoreError::RootKeyRotated),
        _ => Ok((seq, hash)),
    }
}

async fn insert(conn: &mut Conn, links: &[Entry]) -> Result<()> {
    let _: Vec<()> = on!(conn, |c| {
        in_chunks(c, links, |chunk| {
            let mut text = Text::new(
                "insert into audit_entries
                    (org_id, seq, at, actor, action, subject, detail, previous, hash) ",
            );
            text.rows(chunk, |row, link| {
                row.bind(put(&link.org_id)).bind(link.seq).bind(put(&link.at));
                row.bind(put(&link.actor)).bind(put(&link.action)).bind(put(&link.subject));
                row.bind(put(&link.detail)).bind(put(&link.previous)).bind(put(&link.hash));
            });
            text
        })
        .await
    })?;
    Ok(())
}

async fn save_head(conn: &mut Conn, last: &Entry) -> Result<()> {
    on!(conn, |c| {
        sqlx::query("update audit_heads set seq = $1, hash = $2 where org_id = $3")
            .bind(last.seq)
            .bind(put(&last.hash))
            .bind(put(&last.org_id))
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// The entries of one organization after position `seq`, oldest first.
#[boxed]
pub async fn after(conn: &mut Conn, org: OrgId, seq: i64, limit: u32) -> Result<Vec<Entry>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Entry::COLUMNS,
            " from audit_entries where org_id = $1 and seq > $2 order by seq limit $3",
        ]))
        .bind(put(&org))
        .bind(seq)
        .bind(i64::from(limit))
        .fetch_all(c)
        .await
    })?)
}

/// An index of the audit log, and the key to look up in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKey {
    All,
    Actor(String),
    Action(&'static str),
    Subject(String),
}

/// The entries of one organization with this key between two positions, both exclusive. Newest
/// first.
#[boxed]
pub async fn between(
    conn: &mut Conn,
    org: OrgId,
    key: &EntryKey,
    (after, before): (i64, i64),
    limit: u32,
) -> Result<Vec<Entry>> {
    Ok(on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(Entry::COLUMNS).add(" from audit_entries where org_id = ").bind(put(&org));
        match key {
            EntryKey::All => {}
            EntryKey::Actor(actor) => _ = text.add(" and actor = ").bind(put(actor)),
            EntryKey::Action(action) => _ = text.add(" and action = ").bind(*action),
            EntryKey::Subject(subject) => _ = text.add(" and subject = ").bind(put(subject)),
        }
        text.add(" and seq > ").bind(after).add(" and seq < ").bind(before);
        text.add(" order by seq desc limit ").bind(i64::from(limit));
        text.build_as().fetch_all(c).await
    })?)
}

/// The position of the earliest entry at or after `time`.
#[boxed]
pub async fn first_since(conn: &mut Conn, org: OrgId, time: Timestamp) -> Result<Option<i64>> {
    let found: Option<(i64,)> = on!(conn, |c| {
        sqlx::query_as(
            "select seq from audit_entries where org_id = $1 and at >= $2
              order by at, seq limit 1",
        )
        .bind(put(&org))
        .bind(put(&time))
        .fetch_optional(c)
        .await
    })?;
    Ok(found.map(|(seq,)| seq))
}

/// The position of the latest entry before `time`.
#[boxed]
pub async fn last_before(conn: &mut Conn, org: OrgId, time: Timestamp) -> Result<Option<i64>> {
    let found: Option<(i64,)> = on!(conn, |c| {
        sqlx::query_as(
            "select seq from audit_entries where org_id = $1 and at < $2
              order by at desc, seq desc limit 1",
        )
        .bind(put(&org))
        .bind(put(&time))
        .fetch_optional(c)
        .await
    })?;
    Ok(found.map(|(seq,)| seq))
}

/// The position and the hash of the last entry, with which the end of the chain must agree.
#[boxed]
pub async fn head(conn: &mut Conn, org: OrgId) -> Result<(i64, Vec<u8>)> {
    let head = on!(conn, |c| {
        sqlx::query_as("select seq, hash from audit_heads where org_id = $1")
            .bind(put(&org))
            .fetch_optional(c)
            .await
    })?;
    head.ok_or_else(|| StoreError::not_found("organization", org))
}

/// Number of entries that are read at a time.
const PAGE: u32 = 1_000;

/// The first position at which an organization's chain is broken: the entry there was changed or
/// removed. Entries may be added meanwhile. While the chain is resealed ([`reseal`]), `conn` must
/// be a snapshot.
#[boxed]
pub async fn first_broken(conn: &mut Conn, org: OrgId, seal: &Seal) -> Result<Option<i64>> {
    let mut after = 0;
    loop {
        let part = verify_part(conn, org, seal, after, PAGE).await?;
        if part.first_broken.is_some() || part.is_end {
            return Ok(part.first_broken);
        }
        after = part.verified_to;
    }
}

/// The result of the verification of a part of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifiedPart {
    /// The position of the last entry that is intact, like all before it in this part.
    pub verified_to: i64,
    /// The first position at which the chain is broken: the entry there was changed or removed.
    pub first_broken: Option<i64>,
    /// Whether there are no more entries.
    pub is_end: bool,
}

/// Verifies up to `limit` entries after the position `after`. The hash of an entry covers the one
/// of the previous entry, so a chain is intact if each of its parts is, even if they are verified
/// one after the other. While the chain is resealed ([`reseal`]), `conn` must be a snapshot.
#[boxed]
pub async fn verify_part(
    conn: &mut Conn,
    org: OrgId,
    seal: &Seal,
    after: i64,
    limit: u32,
) -> Result<VerifiedPart> {
    let (last, sealed) = head(conn, org).await?;
    let boundary = ResealBoundary::get(conn, org, false).await?;
    let broken = |verified_to: i64, position: i64| {
        Ok(VerifiedPart { verified_to, first_broken: Some(position), is_end: false })
    };
    if let Some(boundary) = boundary.as_ref().filter(|seam| !seam.is_authentic(seal)) {
        return broken(after.min(boundary.seq), boundary.seq + 1);
    }
    let (mut seq, mut previous) = (after, Vec::new());
    if after > 0 {
        let start = self::after(conn, org, after - 1, 1).await?;
        match start.into_iter().find(|entry| entry.seq == after) {
            Some(entry) => previous = entry.hash,
            None => return broken(after - 1, after),
        }
        if let Some(boundary) = boundary.as_ref().filter(|seam| seam.seq == after) {
            if boundary.resealed != previous {
                return broken(after - 1, after);
            }
            previous.clone_from(&boundary.hash);
        }
    }
    let entries = self::after(conn, org, after, limit).await?;
    let is_end = entries.len() < limit as usize;
    for entry in entries {
        let follows = entry.seq == seq + 1 && entry.previous == previous;
        let made_by = match &boundary {
            Some(boundary) => boundary.seal_for(entry.seq, seal),
            None => Some(seal),
        };
        let is_it = made_by.is_some_and(|seal| {
            entry.hash == seal.entry_hash(&previous, entry.seq, &entry.to_new_entry())
        });
        if !follows || !is_it || (entry.seq == last && entry.hash != sealed) {
            return broken(seq, seq + 1);
        }
        (seq, previous) = (entry.seq, entry.hash);
        if let Some(boundary) = boundary.as_ref().filter(|seam| seam.seq == seq) {
            if boundary.resealed != previous {
                return broken(seq - 1, seq);
            }
            previous.clone_from(&boundary.hash);
        }
    }
    if is_end && seq < last {
        return broken(seq, seq + 1);
    }
    Ok(VerifiedPart { verified_to: seq, first_broken: None, is_end })
}

row! {
    /// The boundary between new and old hashes in a chain that is being resealed. `hash` is the old
    /// hash of the last resealed entry, to which the next entry still refers, and `resealed` its
    /// new hash. The code is computed with the new key, so the boundary cannot be moved
    /// without it.
    struct ResealBoundary in "audit_reseals" by "org_id" {
        org_id: OrgId,
        seq: i64,
        hash: Vec<u8>,
        resealed: Vec<u8>,
        until_seq: i64,
        code: Vec<u8>,
    }
}

impl ResealBoundary {
    fn with_code(mut self, seal: &Seal) -> ResealBoundary {
        self.code = self.compute_code(seal).to_vec();
        self
    }

    fn is_authentic(&self, seal: &Seal) -> bool {
        self.code == self.compute_code(seal)
    }

    fn compute_code(&self, seal: &Seal) -> [u8; 32] {
        let mut values = self.org_id.to_string().into_bytes();
        for number in [self.seq, self.until_seq] {
            values.extend(number.to_be_bytes());
        }
        for hash in [&self.hash, &self.resealed] {
            values.extend((hash.len() as u64).to_be_bytes());
            values.extend(hash);
        }
        seal.row_code("audit_reseals", &values)
    }

    /// The seal with which the entry at this position must have been sealed. The old key is valid
    /// only between the resealed entries and the first one that was written with the new key.
    fn seal_for<'a>(&self, seq: i64, seal: &'a Seal) -> Option<&'a Seal> {
        match seq > self.seq && seq <= self.until_seq {
            true => seal.old(),
            false => Some(seal),
        }
    }

    async fn get(conn: &mut Conn, org: OrgId, lock: bool) -> Result<Option<ResealBoundary>> {
        Ok(on!(conn, |c, d| {
            let lock = if lock { d.for_update } else { "" };
            sqlx::query_as(join(&[
                "select ",
                ResealBoundary::COLUMNS,
                " from audit_reseals where org_id = $1",
                lock,
            ]))
            .bind(put(&org))
            .fetch_optional(c)
            .await
        })?)
    }

    async fn save(&self, tx: &mut Tx) -> Result<()> {
        on!(tx, |c| {
            sqlx::query(join(&[
                "insert into audit_reseals (",
                ResealBoundary::COLUMNS,
                ") values ($1, $2, $3, $4, $5, $6)
                 on conflict (org_id) do update set seq = excluded.seq, hash = excluded.hash,
                    resealed = excluded.resealed, until_seq = excluded.until_seq,
                    code = excluded.code",
            ]))
            .bind(put(&self.org_id))
            .bind(self.seq)
            .bind(put(&self.hash))
            .bind(put(&self.resealed))
            .bind(self.until_seq)
            .bind(put(&self.code))
            .execute(c)
            .await
            .map(drop)
        })?;
        Ok(())
    }
}

/// Switches all organizations, removed ones too, to this transaction's key: new entries are sealed
/// with it, and [`reseal`] will reseal the existing ones.
pub(crate) async fn begin_reseal(tx: &mut Tx) -> Result<()> {
    let seal = tx.seal().clone();
    let heads: Vec<(String, i64)> = on!(tx, |c, d| {
        sqlx::query_as(join(&["select org_id, seq from audit_heads order by org_id", d.for_update]))
            .fetch_all(c)
            .await
    })?;
    for (org, seq) in heads.into_iter().filter(|(_, seq)| *seq > 0) {
        let boundary = ResealBoundary {
            org_id: crate::row::parse("audit_heads", org)?,
            seq: 0,
            hash: Vec::new(),
            resealed: Vec::new(),
            until_seq: seq,
            code: Vec::new(),
        };
        boundary.with_code(&seal).save(tx).await?;
    }
    set_head_keys(tx).await
}

/// Allows only this transaction's key to seal new entries.
pub(crate) async fn set_head_keys(tx: &mut Tx) -> Result<()> {
    let key_id = tx.seal().key_id();
    on!(tx, |c| {
        sqlx::query("update audit_heads set root_key_id = $1")
            .bind(&key_id)
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// The organizations whose logs are not yet completely resealed with the new key.
#[boxed]
pub async fn orgs_to_reseal(conn: &mut Conn) -> Result<Vec<OrgId>> {
    let found: Vec<(String,)> = on!(conn, |c| {
        sqlx::query_as("select org_id from audit_reseals order by org_id").fetch_all(c).await
    })?;
    found.into_iter().map(|(org,)| crate::row::parse("audit_reseals", org)).collect()
}

/// How much of a log is resealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResealStatus {
    /// All of it.
    Done,
    /// There are more entries.
    Partial,
    /// The entry at this position was changed or removed. It and the following entries stay
    /// unchanged.
    Broken(i64),
}

/// Reseals up to `limit` more entries of a log with the new key. Stops at an entry that does not
/// verify.
#[boxed]
pub async fn reseal(tx: &mut Tx, org: OrgId, limit: u32) -> Result<ResealStatus> {
    let seal = tx.seal().clone();
    let Some(boundary) = ResealBoundary::get(tx, org, true).await? else {
        return Ok(ResealStatus::Done);
    };
    if !boundary.is_authentic(&seal) {
        return Ok(ResealStatus::Broken(boundary.seq + 1));
    }
    let (last, head_hash) = lock_head(tx, &seal, org).await?;
    let entries = after(tx, org, boundary.seq, limit).await?;
    let (mut seq, mut previous, mut resealed) =
        (boundary.seq, boundary.hash.clone(), boundary.resealed.clone());
    let mut links = Vec::with_capacity(entries.len());
    for entry in entries {
        let made_by = boundary.seal_for(entry.seq, &seal);
        let is_it = made_by.is_some_and(|made_by| {
            entry.hash == made_by.entry_hash(&previous, entry.seq, &entry.to_new_entry())
        });
        if entry.seq != seq + 1 || entry.previous != previous || !is_it {
            break;
        }
        let hash = seal.entry_hash(&resealed, entry.seq, &entry.to_new_entry());
        (seq, previous) = (entry.seq, entry.hash.clone());
        links.push(Entry {
            previous: std::mem::replace(&mut resealed, hash.clone()),
            hash,
            ..entry
        });
    }
    rewrite(tx, &links).await?;
    if seq == last && previous == head_hash {
        if let Some(end) = links.last() {
            save_head(tx, end).await?;
        }
        on!(tx, |c| {
            sqlx::query("delete from audit_reseals where org_id = $1")
                .bind(put(&org))
                .execute(c)
                .await
                .map(drop)
        })?;
        return Ok(ResealStatus::Done);
    }
    let is_whole = links.len() == limit as usize;
    let next = ResealBoundary { seq, hash: previous, resealed, ..boundary };
    next.with_code(&seal).save(tx).await?;
    Ok(if is_whole { ResealStatus::Partial } else { ResealStatus::Broken(seq + 1) })
}

async fn rewrite(tx: &mut Tx, links: &[Entry]) -> Result<()> {
    let _: Vec<()> = on!(tx, |c| {
        in_chunks(c, links, |chunk| {
            let mut text = Text::new("with v (org, place, before, code) as (");
            text.rows(chunk, |cell, link| {
                cell.bind(put(&link.org_id)).bind(link.seq);
                cell.bind(put(&link.previous)).bind(put(&link.hash));
            });
            text.add(
                ") update audit_entries set previous = v.before, hash = v.code from v
                    where org_id = v.org and seq = v.place",
            );
            text
        })
        .await
    })?;
    Ok(())
}
