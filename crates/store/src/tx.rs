//! Write transactions, and what is written at commit.
//!
//! Audit entries and events are collected and written at the end of the transaction. Both are
//! numbered under a lock that every writer needs. It is held for two statements only, and since it
//! is always taken last, two transactions cannot deadlock over it. The counts of servers are
//! written at the end too, because many writers share their rows; a count that is read inside the
//! transaction does not include its changes.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};

use crate::audit;
use crate::audit::{NewEntry, Seal};
use crate::counts;
use crate::counts::{CountKey, TagKey};
use crate::db::{Conn, Db, Wire, on};
use crate::error::Result;
use crate::events;
use crate::events::NewEvent;
use crate::idempotency;
use crate::notify::{NOTIFY, Topic};

/// A transaction that writes. Dropping it without [`Tx::commit`] rolls it back.
#[must_use = "a transaction that is not committed is rolled back"]
pub struct Tx {
    conn: Conn,
    db: Db,
    seal: Seal,
    pending: PendingWrites,
}

#[derive(Default)]
struct PendingWrites {
    entries: Vec<NewEntry>,
    events: Vec<NewEvent>,
    counts: Vec<(CountKey, i64)>,
    tag_counts: Vec<(TagKey, i64)>,
    topics: BTreeSet<Topic>,
}

impl Tx {
    pub(crate) fn new(conn: Conn, db: Db) -> Self {
        let seal = db.seal().clone();
        Self { conn, db, seal, pending: PendingWrites::default() }
    }

    /// Writes `event` at commit, with the next number.
    pub fn emit(&mut self, event: NewEvent) {
        self.pending.events.push(event);
        self.notify(Topic::Events);
    }

    /// Writes `entry` to its organization's audit log at commit.
    pub fn record(&mut self, entry: NewEntry) {
        self.pending.entries.push(entry);
    }

    /// Adds `more` to the number of servers of this kind at commit. It may be negative.
    pub(crate) fn adjust_count(&mut self, kind: CountKey, more: i64) {
        self.pending.counts.push((kind, more));
    }

    /// Adds `more` to the number of servers with this tag at commit. It may be negative.
    pub(crate) fn adjust_tag_count(&mut self, key: TagKey, more: i64) {
        self.pending.tag_counts.push((key, more));
    }

    /// See [`Db::liveness_lock`].
    pub(crate) fn liveness_lock(&self) -> Option<i64> {
        self.db.liveness_lock()
    }

    /// The seal for rows that make hosts act.
    pub(crate) fn seal(&self) -> &Seal {
        &self.seal
    }

    /// Seals with `seal` instead of the one that the database was opened with.
    pub fn use_seal(&mut self, seal: Seal) {
        self.seal = seal;
    }

    /// Whether this installation wrote the row, and nothing changed it since.
    pub fn is_authentic(&self, row: &impl crate::seals::Sealed) -> bool {
        row.is_authentic(&self.seal)
    }

    /// Notifies the subscribers of this topic after the commit, in every replica.
    pub fn notify(&mut self, topic: Topic) {
        self.pending.topics.insert(topic);
    }

    /// Makes all changes durable and visible, or none of them.
    #[boxed]
    pub async fn commit(mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        let PendingWrites { entries, events, counts, tag_counts, topics } = pending;
        // Every change writes an audit entry; its subject is the resource that was changed.
        if let Some(entry) = entries.first() {
            idempotency::record_effect(&mut self.conn, &entry.subject).await?;
        }
        counts::write(&mut self.conn, counts).await?;
        counts::write_tags(&mut self.conn, tag_counts).await?;
        audit::append(&mut self.conn, &self.seal, entries).await?;
        events::append(&mut self.conn, events).await?;
        if let Wire::Pg(c) = self.conn.wire() {
            for topic in &topics {
                sqlx::query(NOTIFY).bind(topic.word()).execute(&mut *c).await?;
            }
        }
        match self.conn {
            Conn::SqliteTx(tx) => tx.commit().await?,
            Conn::PgTx(tx) => tx.commit().await?,
            Conn::SqliteRead(_) | Conn::PgRead(_) => {}
        }
        topics.into_iter().for_each(|topic| self.db.notifier().notify(topic));
        Ok(())
    }

    /// Discards all changes. Dropping the transaction does the same a little later.
    #[boxed]
    pub async fn rollback(self) -> Result<()> {
        match self.conn {
            Conn::SqliteTx(tx) => tx.rollback().await?,
            Conn::PgTx(tx) => tx.rollback().await?,
            Conn::SqliteRead(_) | Conn::PgRead(_) => {}
        }
        Ok(())
    }

    /// Runs `part`. If it fails, only the changes of that part are rolled back and the transaction
    /// continues. This lets many requests share one commit, and one of them fail without the
    /// others. Parts may be nested.
    pub async fn attempt<T>(
        &mut self,
        part: impl AsyncFnOnce(&mut Tx) -> Result<T>,
    ) -> Result<Result<T>> {
        let PendingWrites { entries, events, counts, tag_counts, .. } = &self.pending;
        let kept = (entries.len(), events.len(), counts.len(), tag_counts.len());
        on!(self, |c| sqlx::query("savepoint part").execute(c).await.map(drop))?;
        let done = part(self).await;
        if let Err(cause) = &done {
            let undone = on!(self, |c| {
                sqlx::query("rollback to savepoint part").execute(c).await.map(drop)
            });
            if let Err(error) = undone {
                // SQLite aborted the whole transaction when the part failed, for example because
                // the disk is full. The first error shows the cause.
                tracing::warn!(%error, %cause, "a failed savepoint aborted the whole transaction");
                return done.map(Ok);
            }
            self.pending.entries.truncate(kept.0);
            self.pending.events.truncate(kept.1);
            self.pending.counts.truncate(kept.2);
            self.pending.tag_counts.truncate(kept.3);
        }
        on!(self, |c| sqlx::query("release savepoint part").execute(c).await.map(drop))?;
        Ok(done)
    }
}

impl Deref for Tx {
    type Target = Conn;
    fn deref(&self) -> &Conn {
        &self.conn
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut Conn {
        &mut self.conn
    }
}
