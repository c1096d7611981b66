//! Deletes old data, in small transactions so that other writers do not have to wait.
//!
//! Default retention: batches and runs one year, events and task logs 90 days, refreshes one week,
//! package sets that no server uses 30 days, daily statistics one year. The audit log is kept
//! forever.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use store::leases::{self, Lease};
use store::{
    Tx, compliance, daily_stats, events, idempotency, package_sets, refreshes, rollouts, runs,
    task_logs, webhooks,
};
use tokio::sync::watch;

use crate::{LeaderLease, log_error, wait_for_lead};
use service::App;
use service::projections::daily_stats::utc_day;

/// Retention of batches and schedule runs after their end.
const ROLLOUT_RETENTION: SignedDuration = SignedDuration::from_hours(365 * 24);
/// Retention of events.
const EVENT_RETENTION: SignedDuration = SignedDuration::from_hours(90 * 24);
/// How long the log of deliveries to webhooks is kept.
const DELIVERY_RETENTION: SignedDuration = SignedDuration::from_hours(30 * 24);
/// How many deliveries of a webhook are kept of those that succeeded, and of those that failed.
const DELIVERIES_KEPT: u32 = 20_000;
/// Retention of task logs.
const LOG_RETENTION: SignedDuration = SignedDuration::from_hours(90 * 24);
/// Retention of refreshes.
const REFRESH_RETENTION: SignedDuration = SignedDuration::from_hours(7 * 24);
/// Retention of package sets that no server uses.
const LISTING_RETENTION: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Retention of daily statistics.
const DAILY_STATS_RETENTION: SignedDuration = SignedDuration::from_hours(365 * 24);

/// Number of rows deleted in one transaction.
const ROWS_PER_TRANSACTION: u32 = 500;

/// Deletes old data while this process leads. Runs until it is aborted.
pub(super) async fn run(app: App, every: Duration, mut lead: watch::Receiver<LeaderLease>) {
    loop {
        let lease = wait_for_lead(&mut lead).await;
        loop {
            match delete_once(&app, &lease).await {
                Ok(true) => tokio::task::yield_now().await,
                Ok(false) => break,
                Err(error) => {
                    log_error("retention", &error);
                    break;
                }
            }
        }
        tokio::time::sleep(every).await;
    }
}

/// Runs one round of deletions. Returns whether there may be more to delete.
async fn delete_once(app: &App, lease: &Lease) -> store::Result<bool> {
    let now = app.clock.now();
    let mut more = false;
    macro_rules! delete_expired {
        ($limit:expr, $what:expr) => {{
            let mut tx: Tx = app.db.begin().await?;
            leases::fence(&mut tx, lease).await?;
            let gone: u64 = $what(&mut tx, $limit).await?;
            tx.commit().await?;
            more |= gone >= u64::from($limit);
        }};
    }
    let runs_until = cutoff(now, ROLLOUT_RETENTION);
    delete_expired!(ROWS_PER_TRANSACTION, async |tx: &mut Tx, n| runs::purge(tx, runs_until, n)
        .await);
    // Deleting a rollout deletes its tasks, of which there may be many.
    delete_expired!(1_u32, async |tx: &mut Tx, n| rollouts::purge(tx, runs_until, n).await);
    delete_expired!(ROWS_PER_TRANSACTION, async |tx: &mut Tx, n| task_logs::purge(
        tx,
        cutoff(now, LOG_RETENTION),
        n
    )
    .await);
    delete_expired!(ROWS_PER_TRANSACTION, async |tx: &mut Tx, n| events::purge(
        tx,
        cutoff(now, EVENT_RETENTION),
        n
    )
    .await);
    let sent_until = cutoff(now, DELIVERY_RETENTION);
    delete_expired!(ROWS_PER_TRANSACTION, async |tx: &mut Tx, n| webhooks::purge(
        tx, sent_until, n
    )
    .await);
    delete_expired!(ROWS_PER_TRANSACTION, async |tx: &mut Tx, n| webhooks::purge_excess(
        tx,
        DELIVERIES_KEPT,
        n
    )
    .await);
    delete_expired!(ROWS_PER_TRANSACTION, async |tx: &mut Tx, n| webhooks::purge_deleted(tx, n)
        .await);
    delete_expired!(ROWS_PER_TRANSACTION, async |tx: &mut Tx, n| webhooks::give_up_disabled(tx, n)
        .await);
    let asked_until = cutoff(now, REFRESH_RETENTION);
    delete_expired!(ROWS_PER_TRANSACTION, async |tx: &mut Tx, n| refreshes::purge(
        tx,
        asked_until,
        n
    )
    .await);
    let used_until = cutoff(now, LISTING_RETENTION);
    delete_expired!(ROWS_PER_TRANSACTION, async |tx: &mut Tx, n| package_sets::delete_unused(
        tx, now, used_until, n
    )
    .await);
    let mut tx = app.db.begin().await?;
    leases::fence(&mut tx, lease).await?;
    idempotency::purge(&mut tx, now).await?;
    let first_day = utc_day(cutoff(now, DAILY_STATS_RETENTION));
    daily_stats::purge(&mut tx, first_day).await?;
    compliance::purge_days(&mut tx, first_day).await?;
    tx.commit().await?;
    Ok(more)
}

fn cutoff(now: Timestamp, kept: SignedDuration) -> Timestamp {
    now.checked_sub(kept).unwrap_or(Timestamp::MIN)
}
