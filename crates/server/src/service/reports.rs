//! What agents report of their orders, written down: by whichever replica heard it, guarded by the
//! generation of the target, so that nobody overwrites anybody.

use domain::rollout::{Event, Target, Verdict};
use jiff::Timestamp;
use serde_json::json;
use store::refreshes::{self, State};
use store::rollout_targets::{self, Move, TargetResult, TargetRow};
use store::{StoreError, Tx};
use vocab::{FailureCode, OrgId, ServerId, TaskId};
use wire::agent::{OrderProgress, OrderResult, Outcome};

use super::rollouts::{correct_end, task_moved};
use super::{emit, record};

/// Whose words these are. A task of another server is answered as one that never was.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reporter {
    pub(crate) org: OrgId,
    pub(crate) server: ServerId,
}

/// How far an order is. Old news changes nothing.
pub(crate) async fn progress(
    tx: &mut Tx,
    who: Reporter,
    told: &OrderProgress,
    now: Timestamp,
) -> store::Result<()> {
    let Some(stage) = told.stage else { return Ok(()) };
    match target(tx, who, told.order_id).await? {
        Some(seen) => save(tx, who, &seen, Event::Reached(stage), None, now).await,
        None => Ok(()),
    }
}

/// How an order ended. Told again, it changes nothing; told late, it corrects a guess.
pub(crate) async fn result(
    tx: &mut Tx,
    who: Reporter,
    told: &OrderResult,
    now: Timestamp,
) -> store::Result<()> {
    let Some(seen) = target(tx, who, told.order_id).await? else {
        return refreshed(tx, who, told, now).await;
    };
    let event = Event::Reported(verdict(told));
    let report = serde_json::to_value(told).ok();
    save(tx, who, &seen, event, report, now).await?;
    if matches!(seen.target, Target::Done(_)) {
        correct_end(tx, seen.rollout_id, now).await?;
    }
    Ok(())
}

fn verdict(told: &OrderResult) -> Verdict {
    match told.outcome {
        Outcome::Succeeded => Verdict::Succeeded,
        Outcome::NoChange => Verdict::NoChange,
        Outcome::Skipped => Verdict::NotApplicable,
        Outcome::Failed => Verdict::Failed(told.failure_code.unwrap_or(FailureCode::AgentError)),
        Outcome::Withdrawn => Verdict::Withdrawn,
    }
}

async fn target(tx: &mut Tx, who: Reporter, id: TaskId) -> store::Result<Option<TargetResult>> {
    match rollout_targets::of_task(tx, who.org, id).await {
        Ok(found) => Ok((found.server_id == who.server).then_some(found)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn save(
    tx: &mut Tx,
    who: Reporter,
    seen: &TargetResult,
    event: Event,
    result: Option<serde_json::Value>,
    now: Timestamp,
) -> store::Result<()> {
    // An agent's words always fit; see `domain::rollout::Target`.
    let Ok(next) = seen.target.apply(event, now) else { return Ok(()) };
    if next == seen.target {
        return Ok(());
    }
    let to = Move { server_id: who.server, seen: seen.generation, next, result };
    rollout_targets::save(tx, seen.rollout_id, &[to]).await?;
    let row = TargetRow {
        rollout_id: seen.rollout_id,
        task_id: seen.task_id,
        server_id: seen.server_id,
        position: seen.position,
        target: seen.target,
        generation: seen.generation,
        revision: 0,
    };
    task_moved(tx, who.org, &row, next, now);
    Ok(())
}

async fn refreshed(
    tx: &mut Tx,
    who: Reporter,
    told: &OrderResult,
    now: Timestamp,
) -> store::Result<()> {
    let state = match told.outcome {
        Outcome::Succeeded | Outcome::NoChange | Outcome::Skipped => State::Succeeded,
        Outcome::Failed | Outcome::Withdrawn => State::Failed,
    };
    let message = told.message.as_ref().map(vocab::Line::as_str);
    if refreshes::finish(tx, told.order_id, who.server, state, message, now).await? {
        let told = json!({"refresh_id": told.order_id, "server_id": who.server,
            "state": state.as_str()});
        record(tx, who.org, now, "engine", "refresh.finish", who.server, &told);
        emit(tx, who.org, "server.refreshed", now, told);
    }
    Ok(())
}
