//! Follows the feeds that servers need, and fetches each feed when it is due.

use std::time::Duration;

use jiff::Timestamp;
use store::feed_sources::{self, FeedSource};
use store::leases::Lease;
use store::{StoreError, Topic};
use tokio::sync::watch;

use crate::{LeaderLease, log_error, sleep_time, wait_for_lead};
use service::App;
use service::app::FeedMode;
use service::commands::feeds::remote::{self, FetchOptions, UpdateOutcome};
use service::commands::feeds::{FeedTransactions, ImportError, automatic, manage};
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

/// Deletes removed feeds, follows the feeds that servers need, and fetches every due feed, one
/// after the other. Returns the time at which the next one is due.
async fn update_due(app: &App, lease: &Lease) -> store::Result<Option<Timestamp>> {
    let transactions = FeedTransactions::with_lease(&app.db, lease);
    let settings = &app.settings.feeds;
    loop {
        manage::finish_removals(&transactions).await?;
        if settings.offline {
            return Ok(None);
        }
        let now = app.clock.now();
        if settings.mode == FeedMode::Auto {
            for name in automatic::follow_needed(&transactions, now).await? {
                tracing::info!(feed = name, "following a feed that servers need");
            }
        }
        let mut reader = app.db.read().await?;
        let sources = feed_sources::list(&mut reader).await?;
        let systems = automatic::systems(&mut reader).await?;
        drop(reader);
        match automatic::next_due(&sources, &systems, now) {
            Some((source, due_at)) if due_at <= now => {
                update_one(app, &transactions, &source).await?;
            }
            next => return Ok(next.map(|(_, due_at)| due_at)),
        }
    }
}

/// Fetches one feed. Of a series of failures only the first is logged as a warning, and then the
/// success that ends it.
async fn update_one(
    app: &App,
    transactions: &FeedTransactions<'_>,
    source: &FeedSource,
) -> store::Result<()> {
    let now = app.clock.now();
    let mirror = app.settings.feeds.mirror.clone();
    let options = FetchOptions { limits: Limits::default(), mirror };
    let (feed, was_failing) = (&source.name, source.failures > 0);
    match remote::update(transactions, source, options, now, |_| {}).await {
        Ok(_) if was_failing => {
            tracing::info!(feed, failures = source.failures, "feed can be updated again");
        }
        Ok(UpdateOutcome::Unchanged { .. }) => tracing::debug!(feed, "feed is unchanged"),
        Ok(UpdateOutcome::Imported(done)) => {
            tracing::info!(feed, records = done.records, changed = done.changed, "feed updated");
        }
        Err(ImportError::Removed) => tracing::info!(feed, "feed was removed during its update"),
        Err(ImportError::Store(error)) => return Err(error),
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            match was_failing {
                true => tracing::debug!(feed, error, "feed update failed again"),
                false => tracing::warn!(
                    feed,
                    error,
                    "feed update failed; keeping the previous import and retrying"
                ),
            }
        }
    }
    Ok(())
}
