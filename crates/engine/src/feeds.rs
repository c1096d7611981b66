//! Scheduled feed updates: fetches each configured feed when it is due.

use std::time::Duration;

use jiff::Timestamp;
use store::leases::Lease;
use store::{StoreError, Topic, feed_sources};
use tokio::sync::watch;

use crate::{LeaderLease, log_error, sleep_time, wait_for_lead};
use service::App;
use service::commands::feeds::remote;
use service::commands::feeds::remote::UpdateOutcome;
use service::commands::feeds::{FeedTransactions, ImportError};
use service::fetch::Limits;

/// After a failed database write, fetching pauses this many times longer than usual: another
/// download would be wasted.
const STORE_ERROR_BACKOFF: u32 = 12;

/// Fetches due feeds while this process leads. Runs until it is aborted.
pub(super) async fn update(app: App, poll: Duration, mut lead: watch::Receiver<LeaderLease>) {
    let mut changed = app.db.subscribe(Topic::Feeds);
    loop {
        let lease = wait_for_lead(&mut lead).await;
        match update_due(&app, &lease).await {
            Ok(next) => tokio::select! {
                () = changed.notified() => {}
                () = tokio::time::sleep(sleep_time(next, app.clock.now(), poll)) => {}
            },
            Err(error) => {
                let lost = matches!(error, StoreError::LeaseLost { .. });
                log_error("feeds", &error);
                tokio::time::sleep(if lost { poll } else { poll * STORE_ERROR_BACKOFF }).await;
            }
        }
    }
}

/// Fetches every due feed, one after the other. Returns the time at which the next one is due.
async fn update_due(app: &App, lease: &Lease) -> store::Result<Option<Timestamp>> {
    loop {
        let now = app.clock.now();
        let first = feed_sources::first_due(&mut *app.db.read().await?).await?;
        let Some(source) = first else { return Ok(None) };
        let due_at = remote::due_at(&source, now);
        if due_at > now {
            return Ok(Some(due_at));
        }
        let importer = FeedTransactions::with_lease(&app.db, lease);
        match remote::update(&importer, &source, Limits::default(), now, |_| {}).await {
            Ok(UpdateOutcome::Unchanged { name }) => {
                tracing::debug!(feed = name, "feed is unchanged");
            }
            Ok(UpdateOutcome::Imported(done)) => tracing::info!(
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
