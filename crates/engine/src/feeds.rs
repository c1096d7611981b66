//! Feeds that are followed: fetched when their time has come.

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

/// How many times as long as usual nothing is fetched once the database did not take what was: it would be for nothing.
const DISAPPOINTED: u32 = 12;

/// Fetches what is due, while this process leads. Until it is aborted.
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

/// Fetches everything that is due, one after the other. Answers with when to come again.
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
            Ok(Updated::Unchanged { name }) => tracing::debug!(feed = name, "unchanged"),
            Ok(Updated::Imported(done)) => tracing::info!(
                feed = done.name,
                records = done.records,
                changed = done.changed,
                "updated"
            ),
            Err(ImportError::Store(error)) => return Err(error),
            Err(error) => tracing::warn!(
                feed = source.name,
                error = &error as &dyn std::error::Error,
                "the feed stays as it was"
            ),
        }
    }
}
