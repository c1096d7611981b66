//! Scheduled feed updates: fetches each configured feed when it is due.

use std::time::Duration;

use jiff::Timestamp;
use store::leases::Lease;
use store::{StoreError, Topic, feed_sources};
use tokio::sync::watch;

use crate::{Lead, complain, until, until_leading};
use service::App;
use service::commands::feeds::follow;
use service::commands::feeds::follow::Updated;
use service::commands::feeds::{Desk, ImportError};
use service::fetch::Limits;

/// After a failed database write, fetching pauses this many times longer than usual: another
/// download would be wasted.
const DISAPPOINTED: u32 = 12;

/// Fetches due feeds while this process leads. Runs until it is aborted.
pub(super) async fn update(app: App, look: Duration, mut lead: watch::Receiver<Lead>) {
    let mut changed = app.db.bell(Topic::Feeds);
    loop {
        let lease = until_leading(&mut lead).await;
        match update_due(&app, &lease).await {
            Ok(next) => tokio::select! {
                () = changed.rung() => {}
                () = tokio::time::sleep(until(next, app.clock.now(), look)) => {}
            },
            Err(error) => {
                let lost = matches!(error, StoreError::LeaseLost { .. });
                complain("feeds", &error);
                tokio::time::sleep(if lost { look } else { look * DISAPPOINTED }).await;
            }
        }
    }
}

/// Fetches every due feed, one after the other. Returns when the next one is due.
async fn update_due(app: &App, lease: &Lease) -> store::Result<Option<Timestamp>> {
    loop {
        let now = app.clock.now();
        let first = feed_sources::first_due(&mut *app.db.read().await?).await?;
        let Some(source) = first else { return Ok(None) };
        let due_at = follow::due_at(&source, now);
        if due_at > now {
            return Ok(Some(due_at));
        }
        let desk = Desk::leading(&app.db, lease);
        match follow::update(&desk, &source, Limits::default(), now, |_| {}).await {
            Ok(Updated::Unchanged { name }) => tracing::debug!(feed = name, "feed is unchanged"),
            Ok(Updated::Imported(done)) => tracing::info!(
                feed = done.name,
                records = done.records,
                changed = done.changed,
                "feed updated"
            ),
            Err(ImportError::Store(error)) => return Err(error),
            Err(error) => tracing::warn!(
                feed = source.name,
                error = &error as &dyn std::error::Error,
                "feed update failed; keeping the previous import"
            ),
        }
    }
}
