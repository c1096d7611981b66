//! Prepares a restored database for service: no work in it may be executed a second time.
//!
//! Work was done between the backup and now that this database does not contain. Agents remember
//! it: a host recognizes an order by its id permanently, and an agent counter ahead of the
//! database's is not treated as a sign of a clone. Agents cannot recognize work that the service
//! would start again under a new id, so this module leaves no work pending.

use async_recursion::async_recursion as boxed;
use domain::rollout::{Change, End, Event, Phase, Rollout, Target};
use domain::schedule::{self, Progress};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use store::rollout_targets::{self, Move};
use store::{Topic, Tx, organizations, restores, rollouts, schedules};
use vocab::Stage;

use super::runs;
use crate::commands::batches::task_moved;
use crate::{emit, record};

/// The actor in audit entries.
const BY: &str = "restore";
/// The number of schedules that are advanced at a time.
const TOGETHER: u32 = 500;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// How often a backup has been restored into this installation.
    pub epoch: u64,
    /// Unfinished batches that were canceled.
    pub batches: usize,
    /// Schedules whose instants since the backup were skipped.
    pub schedules: usize,
}

/// Prepares a restored database for service as of `now`. The backup was taken at `taken_at`.
#[boxed]
pub async fn settle(tx: &mut Tx, taken_at: Timestamp, now: Timestamp) -> store::Result<Settled> {
    // First, because the events below must be numbered in the new epoch.
    let epoch = restores::begin_epoch(tx, now).await?;
    let batches = call_off(tx, now).await?;
    let schedules = pass_over(tx, now).await?;
    for organization in organizations::list(tx).await? {
        let told = json!({"taken_at": taken_at, "epoch": epoch});
        record(tx, organization.id, now, BY, "installation.restore", organization.id, &told);
        emit(tx, organization.id, "installation.restored", now, told);
    }
    Ok(Settled { epoch, batches, schedules })
}

/// Cancels unfinished batches: only the hosts know which servers have started since the backup. The
/// state of running tasks is queried again.
async fn call_off(tx: &mut Tx, now: Timestamp) -> store::Result<usize> {
    let open = rollouts::open(tx).await?;
    for (id, _) in &open {
        let seen = rollouts::load(tx, *id).await?;
        let rows = rollout_targets::all(tx, *id).await?;
        let mut moves = Vec::new();
        for row in rows {
            let forgotten =
                matches!(row.target, Target::Busy(busy) if busy.stage > Stage::Dispatched);
            let Ok(next) = row.target.apply(Event::Forgotten, now) else { continue };
            if !forgotten {
                continue;
            }
            task_moved(tx, seen.org_id, &row, next, now);
            let (server_id, from, seen) = (row.server_id, row.target, row.generation);
            moves.push(Move { server_id, from, seen, next, result: None });
        }
        if !moves.is_empty() {
            rollout_targets::save(tx, *id, &moves).await?;
        }
        let mut rollout = Rollout::restore(seen.head.clone(), []);
        // A batch that is already being canceled stays in that state.
        if rollout.change(Change::Cancel, now).is_ok() && rollout.head() != &seen.head {
            rollouts::save_head(tx, &seen, rollout.head(), None).await?;
        }
        let told = json!({"batch_id": id, "state": rollouts::phase_word(rollout.head().phase)});
        record(tx, seen.org_id, now, BY, "batch.cancel", id, &told);
        emit(tx, seen.org_id, "batch.changed", now, told);
    }
    // Runs without a batch are canceled as well.
    for run in store::runs::without_batch(tx, u32::MAX).await? {
        store::runs::finish(tx, &run, End::Canceled, now).await?;
        let told = json!({"run_id": run.id, "schedule_id": run.schedule_id,
            "state": rollouts::phase_word(Phase::Ended(End::Canceled))});
        record(tx, run.org_id, now, BY, "run.cancel", run.id, &told);
        emit(tx, run.org_id, "run.finished", now, told);
    }
    Ok(open.len())
}

/// Skips all instants until now, even if their window is still open: they may have run already.
async fn pass_over(tx: &mut Tx, now: Timestamp) -> store::Result<usize> {
    let mut moved = 0;
    loop {
        let due = schedules::due(tx, now, TOGETHER).await?;
        if due.is_empty() {
            tx.ring(Topic::Schedules);
            return Ok(moved);
        }
        let mut next = Vec::with_capacity(due.len());
        for schedule in &due {
            let first = schedule.next_run_at.unwrap_or(now);
            let handled = first.checked_sub(SignedDuration::from_micros(1)).unwrap_or(first);
            // A negative window, so that an instant due right now is skipped as well.
            let window = SignedDuration::from_secs(-1);
            let progress = Progress { handled, window, unfinished: false };
            let due = schedule::due(&schedule.cron, &schedule.timezone, progress, now);
            for skipped in &due.skipped {
                runs::skip(tx, schedule, skipped, now).await?;
            }
            next.push((schedule, due.wake_at));
        }
        moved += schedules::advance(tx, &next).await?.len();
    }
}
