//! Schedules: when an instant has come, its run starts, exactly once.

use std::time::Duration;

use domain::schedule::{self, Due, LATE_WINDOW, Progress, Skipped};
use jiff::{SignedDuration, Timestamp};
use store::leases::{self, Lease};
use store::runs::Trigger;
use store::schedules::{self, Schedule};
use store::{StoreError, Topic, Tx};
use tokio::sync::watch;
use vocab::SkipReason;

use super::{Lead, complain, until, until_leading};
use crate::app::App;
use crate::service::PatchOptions;
use crate::service::runs::{self, Started};

/// How many schedules go into one transaction.
const TOGETHER: u32 = 100;

/// Starts what is due, while this process leads. Until it is aborted.
pub(super) async fn fire(app: App, look: Duration, mut lead: watch::Receiver<Lead>) {
    let mut changed = app.db.bell(Topic::Schedules);
    loop {
        let lease = until_leading(&mut lead).await;
        let sleep = match fire_due(&app, &lease).await {
            Ok(next) => until(next, app.clock.now(), look),
            Err(StoreError::Stale | StoreError::Busy(_)) => Duration::ZERO,
            Err(error) => {
                complain("schedules", &error);
                look
            }
        };
        tokio::select! {
            () = changed.rung() => {}
            () = tokio::time::sleep(sleep) => {}
        }
    }
}

/// Starts everything that is due. Answers with when the next one will be.
async fn fire_due(app: &App, lease: &Lease) -> store::Result<Option<Timestamp>> {
    loop {
        let now = app.clock.now();
        let due = schedules::due(&mut *app.db.read().await?, now, TOGETHER).await?;
        if due.is_empty() {
            return schedules::next_due(&mut *app.db.read().await?).await;
        }
        let mut tx = app.db.begin().await?;
        leases::fence(&mut tx, lease).await?;
        let mut moves = Vec::with_capacity(due.len());
        for schedule in due {
            let due = what_is_due(&mut tx, &schedule, now).await?;
            moves.push((schedule, due));
        }
        let next: Vec<_> =
            moves.iter().map(|(schedule, due)| (schedule.clone(), due.wake_at)).collect();
        let moved = schedules::advance(&mut tx, &next).await?;
        for (schedule, due) in &moves {
            // One that a person changed in the meantime comes again as he left it.
            if !moved.contains(&schedule.id) {
                continue;
            }
            match carry_out(&mut tx, schedule, due, now).await {
                // One row that nobody can read must not keep all the others from running.
                Err(error @ StoreError::Corrupt { .. }) => {
                    tracing::error!(error = &error as &dyn std::error::Error, "a run is left out");
                }
                done => done?,
            }
        }
        tx.ring(Topic::Schedules);
        tx.commit().await?;
    }
}

async fn what_is_due(tx: &mut Tx, schedule: &Schedule, now: Timestamp) -> store::Result<Due> {
    // The stored instant is the first that was not dealt with.
    let handled = schedule.next_run_at.unwrap_or(now).checked_sub(SignedDuration::from_micros(1));
    let window = options(schedule).ok().and_then(|options| options.pace.window_minutes);
    let progress = Progress {
        handled: handled.unwrap_or(Timestamp::MIN),
        window: window.map_or(LATE_WINDOW, |minutes| SignedDuration::from_mins(minutes.into())),
        unfinished: store::runs::unfinished(tx, schedule.id).await?.is_some(),
    };
    Ok(schedule::due(&schedule.cron, &schedule.timezone, progress, now))
}

async fn carry_out(
    tx: &mut Tx,
    schedule: &Schedule,
    due: &Due,
    now: Timestamp,
) -> store::Result<()> {
    for skipped in &due.skipped {
        runs::skip(tx, schedule, skipped, now).await?;
    }
    let Some(instant) = due.start else { return Ok(()) };
    let options = options(schedule)?;
    let started =
        runs::start(tx, schedule, &options, Trigger::Cron, Some(instant), "schedule", now).await?;
    match started {
        // Already: the clock was set back, and this instant came around again.
        Started::Now(_) | Started::Already(_) => Ok(()),
        Started::Overlaps(_) => {
            let reason = SkipReason::Overlap;
            let skipped = Skipped { reason, first: instant, last: instant, count: 1 };
            runs::skip(tx, schedule, &skipped, now).await
        }
    }
}

fn options(schedule: &Schedule) -> store::Result<PatchOptions> {
    PatchOptions::from_json(&schedule.options).map_err(|source| StoreError::Corrupt {
        table: "schedules",
        id: schedule.id.to_string(),
        source: source.into(),
    })
}
