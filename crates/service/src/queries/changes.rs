//! Detects changes that a page may show.

use async_recursion::async_recursion as boxed;
use store::feed_progress::{self, FeedProgress};
use store::{Subscription, Topic, events, rollouts};
use vocab::BatchId;

use super::{Scope, batches};
use crate::{App, Result};

/// The changes of an organization, and of one batch if a page shows one.
pub struct ChangeWatcher {
    app: App,
    scope: Scope,
    batch: Option<BatchId>,
    notifications: (Subscription, Subscription),
    seq: i64,
    revision: Option<i64>,
    /// Imports of feeds in progress: their rows when they were last read.
    imports: Vec<FeedProgress>,
}

impl ChangeWatcher {
    /// Watches for changes from now on.
    #[boxed]
    pub async fn new(app: &App, scope: Scope, batch: Option<BatchId>) -> Result<ChangeWatcher> {
        if let Some(id) = batch {
            batches::find(app, &scope, id).await?;
        }
        let notifications = (app.db.subscribe(Topic::Events), app.db.subscribe(Topic::Rollouts));
        let mut reader = app.db.read().await?;
        let seq = events::latest(&mut reader, scope.org).await?;
        let imports = feed_progress::list(&mut reader).await?;
        drop(reader);
        let (app, revision) = (app.clone(), None);
        let mut changes =
            ChangeWatcher { app, scope, batch, notifications, seq, revision, imports };
        changes.revision = changes.batch_revision().await?;
        Ok(changes)
    }

    /// Waits until something may have changed.
    #[boxed]
    pub async fn wait(&mut self) {
        tokio::select! {
            () = self.notifications.0.notified() => {}
            () = self.notifications.1.notified(), if self.batch.is_some() => {}
        }
    }

    /// The sequence number of the last event that was checked.
    pub fn seq(&self) -> i64 {
        self.seq
    }

    /// Whether anything has changed since the last call.
    #[boxed]
    pub async fn has_changed(&mut self) -> Result<bool> {
        let before = self.revision;
        let mut reader = self.app.db.read().await?;
        let latest = events::latest(&mut reader, self.scope.org).await?;
        let imports = feed_progress::list(&mut reader).await?;
        drop(reader);
        let imported = imports != self.imports;
        self.imports = imports;
        self.revision = self.batch_revision().await?;
        let happened = latest != self.seq;
        self.seq = latest;
        Ok(happened || self.revision != before || imported)
    }

    /// The revision of the batch, which increases with every change.
    async fn batch_revision(&self) -> Result<Option<i64>> {
        let Some(batch) = self.batch else { return Ok(None) };
        let mut reader = self.app.db.read().await?;
        Ok(Some(rollouts::get(&mut reader, self.scope.org, batch).await?.revision))
    }
}
