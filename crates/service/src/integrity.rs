//! Refuses work that this installation did not create.
//!
//! Batches, tasks, schedules, runs and refreshes have an authentication code under a key that is
//! not in the database ([`store::seals`]). Rows that do not verify are never acted on. A batch with
//! such a row is canceled as a whole, and an alarm is raised: an audit entry, an event, a log line
//! and the metric `fleetmend_tampered_rows_total`.

use async_recursion::async_recursion as boxed;

use domain::rollout::{Change, Phase, Rollout, RolloutOutcome};
use jiff::Timestamp;
use serde_json::json;
use store::refreshes::{self, Refresh, RefreshState};
use store::runs::Run;
use store::schedules::Schedule;
use store::{Db, StoreError, Tx, rollouts};
use vocab::BatchId;

use crate::App;
use crate::audit::Action;
use crate::{ATTEMPTS_MAX, EventKind, PatchOptions, ServiceError, emit, record};

/// The actor in audit entries.
const ACTOR: &str = "engine";

/// Whether this installation created the batch with these options and brought it to this phase.
pub fn is_authentic(db: &Db, row: &rollouts::Rollout) -> bool {
    let same_pace = |options: PatchOptions| options.pace == row.head.pace;
    db.is_authentic(row) && PatchOptions::from_json(&row.options).is_ok_and(same_pace)
}

/// The error for an object that was changed directly in the database.
pub fn tampered_error(what: &str) -> ServiceError {
    let detail = format!(
        "this {what} was changed in the database by something other than Fleetmend and is not \
         executed; create it again"
    );
    ServiceError::conflict("conflict", detail)
}

fn count_tampered(kind: &'static str) {
    metrics::counter!("fleetmend_tampered_rows_total", "kind" => kind).increment(1);
}

/// Cancels a batch with a row that does not verify, and raises an alarm, once.
#[boxed]
pub async fn stop_batch(app: &App, id: BatchId, reason: &str) -> store::Result<()> {
    for _ in 0..ATTEMPTS_MAX {
        let now = app.clock.now();
        let mut tx = app.db.begin().await?;
        let seen = match rollouts::load(&mut tx, id).await {
            Err(StoreError::NotFound { .. }) => return Ok(()),
            seen => seen?,
        };
        let (head, ended_at) = match seen.head.phase {
            // No further task starts.
            Phase::Canceling => return Ok(()),
            // An end is final. If the time of the end is missing, someone has reopened the batch.
            Phase::Ended(_) if seen.ended_at.is_some() => return Ok(()),
            Phase::Ended(_) => (seen.head.clone(), Some(now)),
            _ => {
                let mut rollout = Rollout::restore(seen.head.clone(), []);
                if rollout.apply_change(Change::Cancel, now).is_err() {
                    return Ok(());
                }
                (rollout.head().clone(), None)
            }
        };
        match rollouts::save_head(&mut tx, &seen, &head, ended_at).await {
            Err(StoreError::Stale | StoreError::Busy(_)) => continue,
            saved => saved?,
        };
        let detail = json!({"batch_id": id, "reason": reason,
            "state": rollouts::phase_name(head.phase)});
        record(&mut tx, seen.org_id, now, ACTOR, Action::BatchTampered, id, &detail);
        emit(&mut tx, seen.org_id, now, ACTOR, EventKind::BatchTampered, id, detail);
        tx.commit().await?;
        tracing::error!(batch = %id, reason, "the batch was changed in the database and is canceled");
        count_tampered("batch");
        return Ok(());
    }
    Err(StoreError::Stale)
}

/// Raises an alarm for a schedule that does not verify. It is not run.
pub fn refuse_schedule(tx: &mut Tx, schedule: &Schedule, now: Timestamp) {
    let (id, org) = (schedule.id, schedule.org_id);
    let detail = json!({"schedule_id": id, "name": schedule.name,
        "reason": "the schedule was changed in the database"});
    record(tx, org, now, ACTOR, Action::ScheduleTampered, id, &detail);
    emit(tx, org, now, ACTOR, EventKind::ScheduleTampered, id, detail);
    tracing::error!(schedule = %id, "the schedule was changed in the database and is not run");
    count_tampered("schedule");
}

/// Ends a run that does not verify, and raises an alarm.
#[boxed]
pub async fn refuse_run(tx: &mut Tx, run: &Run, now: Timestamp) -> store::Result<()> {
    store::runs::finish(tx, run, RolloutOutcome::Canceled, now).await?;
    let detail = json!({"run_id": run.id, "schedule_id": run.schedule_id,
        "reason": "the run was changed in the database"});
    record(tx, run.org_id, now, ACTOR, Action::RunTampered, run.id, &detail);
    emit(tx, run.org_id, now, ACTOR, EventKind::ScheduleTampered, run.schedule_id, detail);
    tracing::error!(run = %run.id, "the run was changed in the database and is canceled");
    count_tampered("run");
    Ok(())
}

/// Ends a refresh that does not verify, and raises an alarm.
#[boxed]
pub async fn refuse_refresh(app: &App, refresh: &Refresh) -> store::Result<()> {
    let now = app.clock.now();
    let mut tx = app.db.begin().await?;
    let reason = "the refresh was changed in the database";
    let (id, server) = (refresh.id, refresh.server_id);
    if !refreshes::finish(&mut tx, id, server, RefreshState::Failed, Some(reason), now).await? {
        return Ok(());
    }
    let detail = json!({"refresh_id": id, "server_id": server, "reason": reason});
    record(&mut tx, refresh.org_id, now, ACTOR, Action::RefreshTampered, server, &detail);
    emit(&mut tx, refresh.org_id, now, ACTOR, EventKind::ServerRefreshTampered, server, detail);
    tx.commit().await?;
    tracing::error!(refresh = %id, reason, "the refresh is not sent to its server");
    count_tampered("refresh");
    Ok(())
}
