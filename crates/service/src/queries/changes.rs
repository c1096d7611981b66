//! Detects changes that a page may show.

use async_recursion::async_recursion as boxed;
use store::{Bell, Topic, events, rollouts};
use vocab::BatchId;

use super::{Scope, batches};
use crate::{App, Result};

/// The changes of an organization, and of one batch if a page shows one.
pub struct Changes {
    app: App,
    scope: Scope,
    batch: Option<BatchId>,
    bells: (Bell, Bell),
    seq: i64,
    revision: Option<i64>,
}

impl Changes {
    /// Watches for changes from now on.
    #[boxed]
    pub async fn new(app: &App, scope: Scope, batch: Option<BatchId>) -> Result<Changes> {
        if let Some(id) = batch {
            batches::find(app, &scope, id).await?;
        }
        let bells = (app.db.bell(Topic::Events), app.db.bell(Topic::Rollouts));
        let seq = events::latest(&mut *app.db.read().await?).await?;
        let mut changes = Changes { app: app.clone(), scope, batch, bells, seq, revision: None };
        changes.revision = changes.batch_revision().await?;
        Ok(changes)
    }

    /// Returns when something may have changed.
    #[boxed]
    pub async fn rung(&mut self) {
        tokio::select! {
            () = self.bells.0.rung() => {}
            () = self.bells.1.rung(), if self.batch.is_some() => {}
        }
    }

    /// The sequence number of the last event that was checked.
    pub fn seq(&self) -> i64 {
        self.seq
    }

    /// Whether anything has changed since the last call.
    #[boxed]
    pub async fn look(&mut self) -> Result<bool> {
        let before = self.revision;
        let mut reader = self.app.db.read().await?;
        // Read first, so that events after it are found by the next call.
        let latest = events::latest(&mut reader).await?;
        let ours = events::after(&mut reader, self.scope.org, self.seq, 1).await?;
        drop(reader);
        self.revision = self.batch_revision().await?;
        self.seq = latest;
        Ok(!ours.is_empty() || self.revision != before)
    }

    /// The revision of the batch, which increases with every change.
    async fn batch_revision(&self) -> Result<Option<i64>> {
        let Some(batch) = self.batch else { return Ok(None) };
        let mut reader = self.app.db.read().await?;
        Ok(Some(rollouts::get(&mut reader, self.scope.org, batch).await?.revision))
    }
}
