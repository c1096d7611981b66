//! Daily statistics: keeps today's row of every organization up to date until the day is over.

use std::time::Duration;

use store::leases::{self, Lease};
use store::{days, organizations};
use tokio::sync::watch;

use crate::{Lead, complain, until_leading};
use service::App;
use service::projections::daily_stats::{counted, day_of};

/// Once every organization has a row, the check runs this many times less often: a row may be a
/// minute late.
const LOOKS: u32 = 12;

/// Writes the daily statistics of every organization while this process leads. Runs until it is
/// aborted.
pub(super) async fn write(app: App, look: Duration, mut lead: watch::Receiver<Lead>) {
    loop {
        let lease = until_leading(&mut lead).await;
        let all_counted = write_changed(&app, &lease).await.unwrap_or_else(|error| {
            complain("days", &error);
            false
        });
        tokio::time::sleep(if all_counted { look * LOOKS } else { look }).await;
    }
}

/// Writes only rows that changed. Returns whether every organization had something to count.
async fn write_changed(app: &App, lease: &Lease) -> store::Result<bool> {
    let today = day_of(app.clock.now());
    let all = organizations::list(&mut *app.db.read().await?).await?;
    let mut all_counted = true;
    for organization in all {
        let org = organization.id;
        let mut reader = app.db.snapshot().await?;
        let Some(day) = counted(&mut reader, org, today).await? else {
            all_counted = false;
            continue;
        };
        let written = days::since(&mut reader, org, today).await?;
        drop(reader);
        if written.first() == Some(&day) {
            continue;
        }
        let mut tx = app.db.begin().await?;
        leases::fence(&mut tx, lease).await?;
        days::write(&mut tx, org, &day).await?;
        tx.commit().await?;
    }
    Ok(all_counted)
}
