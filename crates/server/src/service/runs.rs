//! Runs of schedules: started by the calendar or by a person, or skipped.

use domain::schedule::Skipped;
use jiff::Timestamp;
use serde_json::json;
use store::Tx;
use store::runs::{self, Run, Start, State, Trigger};
use store::schedules::Schedule;
use store::server_list::{self, Filter};
use vocab::{BatchId, RunId};

use super::rollouts::{NewRollout, Origin, create_in};
use super::{PatchOptions, emit, record};
use crate::clock::dice;

/// What came of an attempt to start a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Started {
    /// It is under way.
    Now(Box<Run>),
    /// This instant was started or skipped before, by this run.
    Already(RunId),
    /// This run of the same schedule is not finished.
    Overlaps(RunId),
}

/// Starts a run and its rollout over whom the schedule means at this moment. `scheduled_for` is the
/// instant of the calendar; none for a run that a person starts.
pub async fn start(
    tx: &mut Tx,
    schedule: &Schedule,
    options: &PatchOptions,
    trigger: Trigger,
    scheduled_for: Option<Timestamp>,
    by: &str,
    now: Timestamp,
) -> store::Result<Started> {
    let batch = BatchId::new(now, dice());
    let run = Run {
        trigger_kind: trigger,
        scheduled_for,
        batch_id: Some(batch),
        ..new_run(schedule, now)
    };
    match runs::start(tx, &run).await? {
        Start::Started => {}
        Start::AlreadyStarted(other) => return Ok(Started::Already(other)),
        Start::Overlaps(other) => return Ok(Started::Overlaps(other)),
    }
    let new = NewRollout {
        org: schedule.org_id,
        options: options.clone(),
        servers: server_list::ids(tx, schedule.org_id, &Filter::from(&schedule.targets)).await?,
        starts_at: now,
        origin: Origin::Schedule,
        started_by: by.to_owned(),
        run_id: Some(run.id),
    };
    create_in(tx, batch, new, now).await?;
    let told = json!({"run_id": run.id, "schedule_id": schedule.id, "batch_id": batch,
        "scheduled_for": scheduled_for});
    record(tx, schedule.org_id, now, by, "run.start", run.id, &told);
    emit(tx, schedule.org_id, "run.started", now, told);
    Ok(Started::Now(Box::new(run)))
}

/// Records instants that did not start, as one run.
pub(crate) async fn skip(
    tx: &mut Tx,
    schedule: &Schedule,
    skipped: &Skipped,
    now: Timestamp,
) -> store::Result<()> {
    let run = Run {
        state: State::Skipped,
        skip_reason: Some(skipped.reason),
        scheduled_for: Some(skipped.last),
        finished_at: Some(now),
        ..new_run(schedule, now)
    };
    if runs::start(tx, &run).await? != Start::Started {
        return Ok(());
    }
    let told = json!({"run_id": run.id, "schedule_id": schedule.id, "reason": skipped.reason,
        "first": skipped.first, "last": skipped.last, "count": skipped.count});
    record(tx, schedule.org_id, now, "schedule", "run.skip", run.id, &told);
    emit(tx, schedule.org_id, "run.skipped", now, told);
    Ok(())
}

fn new_run(schedule: &Schedule, now: Timestamp) -> Run {
    Run {
        id: RunId::new(now, dice()),
        org_id: schedule.org_id,
        schedule_id: schedule.id,
        trigger_kind: Trigger::Cron,
        state: State::Running,
        skip_reason: None,
        scheduled_for: None,
        started_at: now,
        finished_at: None,
        batch_id: None,
        targets: schedule.targets.clone(),
        options: schedule.options.clone(),
        generation: 1,
    }
}
