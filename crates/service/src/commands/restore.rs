//! Prepares a restored database for service: no work in it may be executed a second time.
//!
//! Work was done between the backup and now that this database does not contain. Agents remember
//! it: a host recognizes an order by its id permanently, and an agent counter ahead of the
//! database's is not treated as a sign of a clone. Agents cannot recognize work that the service
//! would start again under a new id, so this module leaves no work pending.

use async_recursion::async_recursion as boxed;
use domain::rollout::{Change, Phase, Rollout, RolloutOutcome, TaskEvent, TaskStatus};
use domain::schedule::{self, Progress};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use store::rollout_tasks::{self, StateChange};
use store::{Topic, Tx, organizations, restores, rollouts, schedules};
use vocab::Stage;

use super::runs;
use crate::audit::Action;
use crate::commands::batches::record_task_transition;
use crate::{EventKind, emit, record};

/// The actor in audit entries.
const ACTOR: &str = "restore";
/// The number of schedules that are advanced at a time.
const SCHEDULES_PER_QUERY: u32 = 500;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoreSummary {
    /// How many times a backup has been restored into this installation.
    pub epoch: u64,
    /// Unfinished batches that were canceled.
    pub batches: usize,
    /// Schedules whose instants since the backup were skipped.
    pub schedules: usize,
}

/// Prepares a restored database for service as of `now`. The backup was taken at `taken_at`.
#[boxed]
pub async fn prepare_for_service(
    tx: &mut Tx,
    taken_at: Timestamp,
    now: Timestamp,
) -> store::Result<RestoreSummary> {
    // First, because the events below must be numbered in the new epoch.
    let epoch = restores::begin_epoch(tx, now).await?;
    let batches = cancel_open_batches(tx, now).await?;
    let schedules = skip_due_instants(tx, now).await?;
    for organization in organizations::list(tx).await? {
        let detail = json!({"taken_at": taken_at, "epoch": epoch});
        record(
            tx,
            organization.id,
            now,
            ACTOR,
            Action::InstallationRestore,
            organization.id,
            &detail,
        );
        emit(
            tx,
            organization.id,
            now,
            ACTOR,
            EventKind::InstallationRestored,
            organization.id,
            detail,
        );
    }
    Ok(RestoreSummary { epoch, batches, schedules })
}

/// Cancels unfinished batches: only the hosts know which servers have started since the backup. The
/// state of running tasks is queried again.
async fn cancel_open_batches(tx: &mut Tx, now: Timestamp) -> store::Result<usize> {
    let open = rollouts::list_open(tx).await?;
    for (id, _) in &open {
        let seen = rollouts::load(tx, *id).await?;
        let rows = rollout_tasks::all(tx, *id).await?;
        let mut moves = Vec::new();
        for row in rows {
            let forgotten =
                matches!(row.target, TaskStatus::Busy(busy) if busy.stage > Stage::Dispatched);
            let Ok(next) = row.target.apply(TaskEvent::Forgotten, now) else { continue };
            if !forgotten {
                continue;
            }
            record_task_transition(tx, seen.org_id, &row, next, None, now);
            let (server_id, from, seen) = (row.server_id, row.target, row.generation);
            moves.push(StateChange { server_id, from, seen, next, result: None, health: None });
        }
        if !moves.is_empty() {
            rollout_tasks::save(tx, *id, &moves).await?;
        }
        let mut rollout = Rollout::restore(seen.head.clone(), []);
        // A batch that is already being canceled stays in that state.
        if rollout.apply_change(Change::Cancel, now).is_ok() && rollout.head() != &seen.head {
            rollouts::save_head(tx, &seen, rollout.head(), None).await?;
        }
        let detail = json!({"batch_id": id, "state": rollouts::phase_name(rollout.head().phase)});
        record(tx, seen.org_id, now, ACTOR, Action::BatchCancel, id, &detail);
        emit(tx, seen.org_id, now, ACTOR, EventKind::BatchCanceled, id, detail);
    }
    // Runs without a batch are canceled as well.
    for run in store::runs::without_batch(tx, u32::MAX).await? {
        store::runs::finish(tx, &run, RolloutOutcome::Canceled, now).await?;
        let detail = json!({"run_id": run.id, "schedule_id": run.schedule_id,
            "state": rollouts::phase_name(Phase::Ended(RolloutOutcome::Canceled))});
        record(tx, run.org_id, now, ACTOR, Action::RunCancel, run.id, &detail);
        emit(tx, run.org_id, now, ACTOR, EventKind::RunFinished, run.schedule_id, detail);
    }
    Ok(open.len())
}

/// Skips all instants until now, even if their window is still open: they may have run already.
async fn skip_due_instants(tx: &mut Tx, now: Timestamp) -> store::Result<usize> {
    let mut moved = 0;
    loop {
        let due = schedules::due(tx, now, SCHEDULES_PER_QUERY).await?;
        if due.is_empty() {
            tx.notify(Topic::Schedules);
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
