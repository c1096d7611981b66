//! What is old is forgotten: a little at a time, so that nobody has to wait for it.
//!
//! Kept by default: batches and runs for a year, events and logs of tasks for 90 days, refreshes for
//! a week, package lists that no server carries for 30 days, an organization's days for a year. The audit log is kept for ever.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use store::leases::{self, Lease};
use store::{Tx, days, events, idempotency, listings, refreshes, rollouts, runs, task_logs};
use tokio::sync::watch;

use crate::{Lead, complain, until_leading};
use service::App;
use service::projections::daily_stats::day_of;

/// How long batches, and the runs of schedules, are kept after their end.
const ROLLOUTS_KEPT: SignedDuration = SignedDuration::from_hours(365 * 24);
/// How long events are kept.
const EVENTS_KEPT: SignedDuration = SignedDuration::from_hours(90 * 24);
/// How long the logs of tasks are kept.
const LOGS_KEPT: SignedDuration = SignedDuration::from_hours(90 * 24);
/// How long refreshes are kept.
const REFRESHES_KEPT: SignedDuration = SignedDuration::from_hours(7 * 24);
/// How long a package list is kept that no server carries.
const LISTINGS_KEPT: SignedDuration = SignedDuration::from_hours(30 * 24);
/// How long it is known how an organization stood on a day.
const DAYS_KEPT: SignedDuration = SignedDuration::from_hours(365 * 24);

/// How many rows go with one transaction.
const AT_ONCE: u32 = 500;

/// Forgets what is old, while this process leads. Until it is aborted.
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

/// One round. Whether there may be more.
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
    // A rollout takes its targets with it, of which there may be many.
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
