//! The audit log: who did what, in a chain that shows when a link was changed.
//!
//! Each organization has a chain. An entry holds the hash of the one before it and its own, which
//! is made by the [`Seal`] that the caller handed in: its key is not in the database, so whoever
//! can write here can break the chain but not forge it. Entries are added, never changed; there is
//! no function that would.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use vocab::OrgId;

use crate::db::{Conn, on};
use crate::error::{Result, StoreError};
use crate::row::{put, row};
use crate::sql::{Text, in_chunks, join};

/// An entry that has no place in the chain yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEntry {
    /// Whose log it goes into.
    pub org_id: OrgId,
    /// When it happened, to the microsecond.
    pub at: Timestamp,
    /// Who did it: a key, a person, a schedule, the engine.
    pub actor: String,
    /// What was done.
    pub action: String,
    /// To what.
    pub subject: String,
    /// The rest, as JSON. Text, because the seal is over these very characters.
    pub detail: String,
}

row! {
    /// An entry in its place.
    pub struct Entry in "audit_entries" by "subject" {
        /// Whose log it is in.
        pub org_id: OrgId,
        /// Its place, from 1.
        pub seq: i64,
        /// When it happened.
        pub at: Timestamp,
        /// Who did it.
        pub actor: String,
        /// What was done.
        pub action: String,
        /// To what.
        pub subject: String,
        /// The rest, as JSON.
        pub detail: String,
        /// The hash of the entry before it; empty for the first.
        pub previous: Vec<u8>,
        /// Its own.
        pub hash: Vec<u8>,
    }
}

impl Entry {
    /// What was sealed, to be sealed again and compared.
    pub fn unsealed(&self) -> NewEntry {
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

/// Makes the hash of an entry from the hash before it, its place and its content.
#[derive(Clone)]
pub struct Seal {
    stamp: Arc<Stamp>,
    rows: Arc<RowCode>,
}

type Stamp = dyn Fn(&[u8], i64, &NewEntry) -> Vec<u8> + Send + Sync;
type RowCode = dyn Fn(&'static str, &[u8]) -> [u8; 32] + Send + Sync;

impl Seal {
    /// From a keyed hash.
    pub fn new(stamp: impl Fn(&[u8], i64, &NewEntry) -> Vec<u8> + Send + Sync + 'static) -> Self {
        // Without a key; an installation always gives one (`with_rows`).
        let rows = |purpose: &'static str, values: &[u8]| {
            let framed = [purpose.as_bytes(), &[0], values].concat();
            *vocab::Digest::of(&framed).as_bytes()
        };
        Self { stamp: Arc::new(stamp), rows: Arc::new(rows) }
    }

    /// The same, with a keyed hash for the rows that make hosts act ([`crate::seals`]).
    #[must_use]
    pub fn with_rows(
        self,
        rows: impl Fn(&'static str, &[u8]) -> [u8; 32] + Send + Sync + 'static,
    ) -> Self {
        Self { rows: Arc::new(rows), ..self }
    }

    /// The code of a row's values; `purpose` keeps the codes of different tables apart.
    pub(crate) fn row(&self, purpose: &'static str, values: &[u8]) -> [u8; 32] {
        (self.rows)(purpose, values)
    }

    /// The hash of `entry` at place `seq` after an entry with the hash `previous`.
    pub fn stamp(&self, previous: &[u8], seq: i64, entry: &NewEntry) -> Vec<u8> {
        (self.stamp)(previous, seq, entry)
    }
}

/// Adds entries to their chains. Organizations in the order of their ids, so that two transactions
/// that write into two chains never wait for each other crosswise.
pub(crate) async fn append(conn: &mut Conn, seal: &Seal, entries: Vec<NewEntry>) -> Result<()> {
    let mut chains = BTreeMap::<OrgId, Vec<NewEntry>>::new();
    for entry in entries {
        chains.entry(entry.org_id).or_default().push(entry);
    }
    for (org, entries) in chains {
        let head = lock_head(conn, org).await?;
        let links = forge(seal, head, entries)?;
        insert(conn, &links).await?;
        if let Some(last) = links.last() {
            save_head(conn, last).await?;
        }
    }
    Ok(())
}

fn forge(seal: &Seal, head: (i64, Vec<u8>), entries: Vec<NewEntry>) -> Result<Vec<Entry>> {
    let (mut seq, mut previous) = head;
    let mut links = Vec::with_capacity(entries.len());
    for mut entry in entries {
        seq += 1;
        // A column holds microseconds; what is sealed must be what will be read.
        entry.at = Timestamp::from_microsecond(entry.at.as_microsecond()).unwrap_or(entry.at);
        let hash = seal.stamp(&previous, seq, &entry);
        let NewEntry { org_id, at, actor, action, subject, detail } = entry;
        let link = Entry { org_id, seq, at, actor, action, subject, detail, previous, hash };
        previous = link.hash.clone();
        links.push(link);
    }
    Ok(links)
}

async fn lock_head(conn: &mut Conn, org: OrgId) -> Result<(i64, Vec<u8>)> {
    let head = on!(conn, |c, d| {
        sqlx::query_as(join(&["select seq, hash from audit_heads where org_id = $1", d.for_update]))
            .bind(put(&org))
            .fetch_optional(c)
            .await
    })?;
    head.ok_or_else(|| StoreError::not_found("organization", org))
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

/// The entries of one organization after place `seq`, oldest first.
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

/// The entries of one organization before place `seq`, newest first.
pub async fn before(conn: &mut Conn, org: OrgId, seq: i64, limit: u32) -> Result<Vec<Entry>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Entry::COLUMNS,
            " from audit_entries where org_id = $1 and seq < $2 order by seq desc limit $3",
        ]))
        .bind(put(&org))
        .bind(seq)
        .bind(i64::from(limit))
        .fetch_all(c)
        .await
    })?)
}

/// The place and the hash of the last entry: what the end of the chain must agree with.
pub async fn head(conn: &mut Conn, org: OrgId) -> Result<(i64, Vec<u8>)> {
    let head = on!(conn, |c| {
        sqlx::query_as("select seq, hash from audit_heads where org_id = $1")
            .bind(put(&org))
            .fetch_optional(c)
            .await
    })?;
    head.ok_or_else(|| StoreError::not_found("organization", org))
}

/// How many entries are looked at together.
const PAGE: u32 = 1_000;

/// The first place where an organization's chain does not hold: the entry there was changed, or is gone. Entries may
/// be added meanwhile.
pub async fn broken_at(conn: &mut Conn, org: OrgId, seal: &Seal) -> Result<Option<i64>> {
    let (last, sealed) = head(conn, org).await?;
    let (mut seq, mut previous) = (0, Vec::new());
    loop {
        let entries = after(conn, org, seq, PAGE).await?;
        if entries.is_empty() {
            return Ok((seq < last).then_some(seq + 1));
        }
        for entry in entries {
            let follows = entry.seq == seq + 1 && entry.previous == previous;
            let is_it = entry.hash == seal.stamp(&previous, entry.seq, &entry.unsealed());
            if !follows || !is_it || (entry.seq == last && entry.hash != sealed) {
                return Ok(Some(seq + 1));
            }
            (seq, previous) = (entry.seq, entry.hash);
        }
    }
}
