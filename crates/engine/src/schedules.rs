//! Starts the runs of schedules: exactly one run for each instant.
//!
//! This takes two steps, because ten thousand schedules may be due in one second. The first claims
//! every due instant: it moves the schedule to its next instant and starts a run. The second
//! creates the batches of the runs. A new leader looks for runs without a batch, because the
//! previous leader may have died between the two steps.

use std::time::Duration;

use domain::schedule::{self, Due, LATE_WINDOW, Progress};
use jiff::{SignedDuration, Timestamp};
use store::leases::{self, Lease};
use store::schedules::{self, Schedule};
use store::{StoreError, Topic, Tx};
use tokio::sync::watch;

use crate::{LeaderLease, WriteLock, log_error, sleep_time, wait_for_lead};
use service::App;
use service::PatchOptions;
use service::commands::runs;
use service::integrity;

/// Number of schedules in one transaction: enough to share its cost, few enough that other writers
/// do not wait for long.
const SCHEDULES_PER_TRANSACTION: usize = 2_500;
/// How long before a run is due its schedule is read, so that only the writes remain at that time.
const READ_AHEAD: SignedDuration = SignedDuration::from_secs(2);
/// Maximum number of schedules that are read ahead.
const READ_AHEAD_MAX: u32 = 10_000;

/// Starts due schedules while this process leads. Runs until it is aborted.
pub(super) async fn run(
    app: App,
    poll: Duration,
    mut lead: watch::Receiver<LeaderLease>,
    write_lock: WriteLock,
) {
    let mut changed = app.db.subscribe(Topic::Schedules);
    let mut ahead = Vec::new();
    // The lease under which every run has a batch.
    let mut batches_complete_under = None;
    // The lease under which no schedule waits for an instant that a wrong clock set.
    let mut clock_checked_under = None;
    let mut clock = app.clock.watch();
    loop {
        let lease = wait_for_lead(&mut lead).await;
        let batches_missing = batches_complete_under != Some(lease.token);
        if clock.clock_change().is_some() {
            clock_checked_under = None;
        }
        // Everything below uses this one reading of the clock. With a second reading, a wrong clock
        // could move schedules without being detected.
        let now = clock.last_time();
        let done = async {
            if clock_checked_under != Some(lease.token) {
                reset_after_clock_change(&app, &lease, now).await?;
                clock_checked_under = Some(lease.token);
                ahead.clear();
            }
            start_due(&app, &lease, &write_lock, &mut ahead, batches_missing, now).await
        };
        let done = done.await;
        batches_complete_under = done.is_ok().then_some(lease.token);
        let sleep = match done {
            Ok(next) => sleep_time(next, app.clock.now(), poll),
            Err(StoreError::Stale | StoreError::Busy(_)) => Duration::ZERO,
            Err(error) => {
                log_error("schedules", &error);
                poll
            }
        };
        tokio::select! {
            () = changed.notified() => {}
            () = tokio::time::sleep(sleep) => {}
        }
    }
}

/// Starts everything that is due, and reads ahead what is due soon. Returns the time of the next
/// call.
///
/// Schedules that were read ahead may be outdated. That is safe: a schedule advances only from the
/// instant and the generation that were read, and a schedule that did not advance is read again.
async fn start_due(
    app: &App,
    lease: &Lease,
    write_lock: &WriteLock,
    ahead: &mut Vec<Schedule>,
    mut owes_batches: bool,
    now: Timestamp,
) -> store::Result<Option<Timestamp>> {
    let mut lock = None;
    loop {
        let ready = ahead.iter().take_while(|one| one.next_run_at <= Some(now));
        let due = match ready.count() {
            0 => {
                schedules::due(
                    &mut *app.db.read().await?,
                    now,
                    2 * SCHEDULES_PER_TRANSACTION as u32,
                )
                .await?
            }
            ready => ahead.drain(..ready).collect(),
        };
        if due.is_empty() && !owes_batches {
            return read_ahead(app, now, ahead).await;
        }
        if lock.is_none() {
            lock = Some(write_lock.lock().await);
        }
        if due.is_empty() {
            owes_batches = create_batches(app, lease).await?;
            continue;
        }
        owes_batches = true;
        // Two transactions in parallel if there are many schedules. Where one must wait for the
        // other, as in SQLite, that costs nothing.
        let (one, other) =
            due.split_at(SCHEDULES_PER_TRANSACTION.max(due.len() / 2).min(due.len()));
        tokio::try_join!(
            claim_instants(app, lease, one, now),
            claim_instants(app, lease, other, now)
        )?;
    }
}

/// Moves schedules back that a wrong clock moved too far ahead: computes their next instant again
/// from `now`. Deletes runs that were recorded as skipped for future instants. An instant that was
/// started is not started again.
async fn reset_after_clock_change(app: &App, lease: &Lease, now: Timestamp) -> store::Result<()> {
    let waiting = schedules::list_future(&mut *app.db.read().await?, now).await?;
    let next = |one: &Schedule| schedule::next_after(&one.cron, &one.timezone, now);
    let too_late: Vec<_> = waiting
        .iter()
        .map(|one| (one, next(one)))
        .filter(|(one, next)| next.is_some_and(|next| one.next_run_at > Some(next)))
        .collect();
    for moves in too_late.chunks(SCHEDULES_PER_TRANSACTION) {
        let mut tx = app.db.begin().await?;
        leases::fence(&mut tx, lease).await?;
        let moved: Vec<_> = schedules::advance(&mut tx, moves).await?.into_iter().collect();
        let forgotten = store::runs::delete_future_skipped(&mut tx, &moved, now).await?;
        tx.notify(Topic::Schedules);
        tx.commit().await?;
        tracing::warn!(
            schedules = moved.len(),
            skipped_runs_deleted = forgotten,
            "the clock was ahead; rescheduled from the current time"
        );
    }
    Ok(())
}

/// Advances these schedules and starts their runs, in several transactions.
async fn claim_instants(
    app: &App,
    lease: &Lease,
    due: &[Schedule],
    now: Timestamp,
) -> store::Result<()> {
    for due in due.chunks(SCHEDULES_PER_TRANSACTION) {
        let mut tx = app.db.begin().await?;
        leases::fence(&mut tx, lease).await?;
        let ids: Vec<_> = due.iter().map(|schedule| schedule.id).collect();
        let unfinished = store::runs::filter_unfinished(&mut tx, &ids).await?;
        let what_is_due =
            |schedule: &Schedule| due_instants(schedule, unfinished.contains(&schedule.id), now);
        let dues: Vec<Due> = due.iter().map(what_is_due).collect();
        let next: Vec<_> = due.iter().zip(dues.iter().map(|due| due.wake_at)).collect();
        let moved = schedules::advance(&mut tx, &next).await?;
        // A schedule that a user changed in the meantime is read again with its new settings.
        let moves: Vec<_> =
            due.iter().zip(&dues).filter(|(schedule, _)| moved.contains(&schedule.id)).collect();
        start_and_skip_runs(&mut tx, &moves, now).await?;
        tx.notify(Topic::Schedules);
        tx.commit().await?;
    }
    Ok(())
}

/// Creates batches for some of the started runs. Returns whether any run had no batch.
async fn create_batches(app: &App, lease: &Lease) -> store::Result<bool> {
    let mut tx = app.db.begin().await?;
    leases::fence(&mut tx, lease).await?;
    let found =
        runs::create_batches(&mut tx, SCHEDULES_PER_TRANSACTION as u32, app.clock.now()).await?;
    if found {
        tx.notify(Topic::Schedules);
        tx.commit().await?;
    }
    Ok(found)
}

/// Reads the schedules that are due at the next instant, if it is near. Returns the time of the
/// next call.
async fn read_ahead(
    app: &App,
    now: Timestamp,
    ahead: &mut Vec<Schedule>,
) -> store::Result<Option<Timestamp>> {
    let mut reader = app.db.read().await?;
    let Some(at) = schedules::next_due(&mut reader).await? else { return Ok(None) };
    if at.duration_since(now) > READ_AHEAD {
        return Ok(at.checked_sub(READ_AHEAD).ok());
    }
    if ahead.first().is_none_or(|first| first.next_run_at != Some(at)) {
        *ahead = schedules::due(&mut reader, at, READ_AHEAD_MAX).await?;
    }
    Ok(Some(at))
}

fn due_instants(schedule: &Schedule, unfinished: bool, now: Timestamp) -> Due {
    // The stored instant is the first one that has not been handled.
    let handled = schedule.next_run_at.unwrap_or(now).checked_sub(SignedDuration::from_micros(1));
    let window = options(schedule).ok().and_then(|options| options.pace.window_minutes);
    let progress = Progress {
        handled: handled.unwrap_or(Timestamp::MIN),
        window: window.map_or(LATE_WINDOW, |minutes| SignedDuration::from_mins(minutes.into())),
        unfinished,
    };
    schedule::due(&schedule.cron, &schedule.timezone, progress, now)
}

async fn start_and_skip_runs(
    tx: &mut Tx,
    moves: &[(&Schedule, &Due)],
    now: Timestamp,
) -> store::Result<()> {
    let mut starts = Vec::with_capacity(moves.len());
    for (schedule, due) in moves {
        for skipped in &due.skipped {
            runs::skip(tx, schedule, skipped, now).await?;
        }
        let Some(instant) = due.start else { continue };
        if !schedule.enabled || !tx.is_authentic(*schedule) {
            integrity::refuse_schedule(tx, schedule, now);
            continue;
        }
        match options(schedule) {
            Ok(_) => starts.push((*schedule, instant)),
            // One unreadable row must not keep all other schedules from running.
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "skipped a run: the schedule's options cannot be read"
                );
            }
        }
    }
    runs::start_all(tx, &starts, now).await
}

fn options(schedule: &Schedule) -> store::Result<PatchOptions> {
    PatchOptions::from_json(&schedule.options).map_err(|source| StoreError::Corrupt {
        table: "schedules",
        id: schedule.id.to_string(),
        source: source.into(),
    })
}
