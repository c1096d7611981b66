//! What must happen before a restored database is served: nothing of it may be carried out once more.
//!
//! Between the backup and now things were done of which this database knows nothing. Agents remember them: an order is known
//! to its host by its id for ever, and a counter that is ahead of ours is no sign of a clone. What they cannot
//! know is what we would decide a second time under another id, so nothing is left undecided here.

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

/// Who stands in for a person here.
const BY: &str = "restore";
/// How many schedules are moved on at once.
const TOGETHER: u32 = 500;

/// What was done about the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// How often a backup was restored into this installation.
    pub epoch: u64,
    /// Batches that were unfinished and are called off.
    pub batches: usize,
    /// Schedules whose instants since the backup were passed over.
    pub schedules: usize,
}

/// Makes a database that was restored fit to be served, as it is `now`. It holds what was so at `taken_at`.
#[boxed]
pub async fn settle(tx: &mut Tx, taken_at: Timestamp, now: Timestamp) -> store::Result<Settled> {
    // Before anything is told: events get the numbers of the new epoch.
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

/// Nobody else starts in a batch that was unfinished: who has started since is known to the hosts alone. What was in
/// work is asked after anew.
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
        // One that is being called off already goes on with that.
        if rollout.change(Change::Cancel, now).is_ok() && rollout.head() != &seen.head {
            rollouts::save_head(tx, &seen, rollout.head(), None).await?;
        }
        let told = json!({"batch_id": id, "state": rollouts::phase_word(rollout.head().phase)});
        record(tx, seen.org_id, now, BY, "batch.cancel", id, &told);
        emit(tx, seen.org_id, "batch.changed", now, told);
    }
    // What had not begun is over as well.
    for run in store::runs::without_batch(tx, u32::MAX).await? {
        store::runs::finish(tx, &run, End::Canceled, now).await?;
        let told = json!({"run_id": run.id, "schedule_id": run.schedule_id,
            "state": rollouts::phase_word(Phase::Ended(End::Canceled))});
        record(tx, run.org_id, now, BY, "run.cancel", run.id, &told);
        emit(tx, run.org_id, "run.finished", now, told);
    }
    Ok(open.len())
}

/// No instant until now starts any more, also where its window is still open: it may have run.
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
            // A window that is shorter than nothing: what is due this very moment is missed as well.
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
