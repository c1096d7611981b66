//! Deletes old data, in small transactions so that other writers do not have to wait.
//!
//! Default retention: batches and runs one year, events and task logs 90 days, refreshes one week,
//! package lists that no server uses 30 days, daily statistics one year. The audit log is kept
//! forever.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use store::leases::{self, Lease};
use store::{Tx, days, events, idempotency, listings, refreshes, rollouts, runs, task_logs};
use tokio::sync::watch;

use crate::{Lead, complain, until_leading};
use service::App;
use service::projections::daily_stats::day_of;

/// Retention of batches and schedule runs after their end.
const ROLLOUTS_KEPT: SignedDuration = SignedDuration::from_hours(365 * 24);
/// Retention of events.
const EVENTS_KEPT: SignedDuration = SignedDuration::from_hours(90 * 24);
/// Retention of task logs.
const LOGS_KEPT: SignedDuration = SignedDuration::from_hours(90 * 24);
/// Retention of refreshes.
const REFRESHES_KEPT: SignedDuration = SignedDuration::from_hours(7 * 24);
/// Retention of package lists that no server uses.
const LISTINGS_KEPT: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Retention of daily statistics.
const DAYS_KEPT: SignedDuration = SignedDuration::from_hours(365 * 24);

/// Number of rows deleted in one transaction.
const AT_ONCE: u32 = 500;

/// Deletes old data while this process leads. Runs until it is aborted.
pub(super) async fn sweep(app: App, every: Duration, mut lead: watch::Receiver<Lead>) {
    loop {
        let lease = until_leading(&mut lead).await;
        loop {
            match sweep_once(&app, &lease).await {
                Ok(true) => tokio::task::yield_now().await,
                Ok(false) => break,
                Err(error) => {
                    complain("retention", &error);
                    break;
                }
            }
        }
        tokio::time::sleep(every).await;
    }
}

/// Runs one round of deletions. Returns whether there may be more to delete.
async fn sweep_once(app: &App, lease: &Lease) -> store::Result<bool> {
    let now = app.clock.now();
    let mut more = false;
    macro_rules! forget {
        ($limit:expr, $what:expr) => {{
            let mut tx: Tx = app.db.begin().await?;
            leases::fence(&mut tx, lease).await?;
            let gone: u64 = $what(&mut tx, $limit).await?;
            tx.commit().await?;
            more |= gone >= u64::from($limit);
        }};
    }
    let runs_until = before(now, ROLLOUTS_KEPT);
    forget!(AT_ONCE, async |tx: &mut Tx, n| runs::purge(tx, runs_until, n).await);
    // Deleting a rollout deletes its tasks, of which there may be many.
    forget!(1_u32, async |tx: &mut Tx, n| rollouts::purge(tx, runs_until, n).await);
    forget!(AT_ONCE, async |tx: &mut Tx, n| task_logs::purge(tx, before(now, LOGS_KEPT), n).await);
    forget!(AT_ONCE, async |tx: &mut Tx, n| events::purge(tx, before(now, EVENTS_KEPT), n).await);
    let asked_until = before(now, REFRESHES_KEPT);
    forget!(AT_ONCE, async |tx: &mut Tx, n| refreshes::purge(tx, asked_until, n).await);
    let used_until = before(now, LISTINGS_KEPT);
    forget!(AT_ONCE, async |tx: &mut Tx, n| listings::drop_unused(tx, now, used_until, n).await);
    let mut tx = app.db.begin().await?;
    leases::fence(&mut tx, lease).await?;
    idempotency::purge(&mut tx, now).await?;
    days::purge(&mut tx, day_of(before(now, DAYS_KEPT))).await?;
    tx.commit().await?;
    Ok(more)
}

fn before(now: Timestamp, kept: SignedDuration) -> Timestamp {
    now.checked_sub(kept).unwrap_or(Timestamp::MIN)
}
