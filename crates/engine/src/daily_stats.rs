//! Daily statistics: keeps today's row of every organization up to date until the day is over.

use std::time::Duration;

use store::leases::{self, Lease};
use store::{daily_stats, organizations};
use tokio::sync::watch;

use crate::{LeaderLease, log_error, wait_for_lead};
use service::App;
use service::projections::daily_stats::{current_counts, utc_day};

/// Once every organization has a row, the check runs this many times less often: a row may be a
/// minute late.
const IDLE_POLL_FACTOR: u32 = 12;

/// Writes the daily statistics of every organization while this process leads. Runs until it is
/// aborted.
pub(super) async fn run(app: App, poll: Duration, mut lead: watch::Receiver<LeaderLease>) {
    loop {
        let lease = wait_for_lead(&mut lead).await;
        let all_counted = write_changed(&app, &lease).await.unwrap_or_else(|error| {
            log_error("days", &error);
            false
        });
        tokio::time::sleep(if all_counted { poll * IDLE_POLL_FACTOR } else { poll }).await;
    }
}

/// Writes only rows that changed. Returns whether every organization had something to count.
async fn write_changed(app: &App, lease: &Lease) -> store::Result<bool> {
    let today = utc_day(app.clock.now());
    let all = organizations::list(&mut *app.db.read().await?).await?;
    let mut all_counted = true;
    for organization in all {
        let org = organization.id;
        let mut reader = app.db.snapshot().await?;
        let Some(day) = current_counts(&mut reader, org, today).await? else {
            all_counted = false;
            continue;
        };
        let written = daily_stats::since(&mut reader, org, today).await?;
        drop(reader);
        if written.first() == Some(&day) {
            continue;
        }
        let mut tx = app.db.begin().await?;
        leases::fence(&mut tx, lease).await?;
        daily_stats::write(&mut tx, org, &day).await?;
        tx.commit().await?;
    }
    Ok(all_counted)
}
