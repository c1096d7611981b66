//! Stores what agents report about their orders. The replica that received the report writes it.
//! Writes are guarded by the task's generation, so that concurrent replicas do not overwrite each
//! other.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, BTreeSet};

use domain::rollout::{Phase, ReportedResult, TaskEvent, TaskHealth, TaskStatus};
use jiff::Timestamp;
use serde_json::json;
use store::refreshes::{self, RefreshState};
use store::rollout_tasks::{self, StateChange, TaskResult, TaskRow};
use store::{StoreError, Tx, rollouts};
use vocab::{BatchId, FailureCode, OrgId, ServerId, TaskId};
use wire::agent::{HealthReport, OrderProgress, OrderResult, Outcome};

use crate::audit::Action;
use crate::clock::random_u128;
use crate::commands::batches::{correct_end, record_task_transition};
use crate::commands::refreshes as refresh;
use crate::commands::server_health::{self, TaskRef, WatchReport, store_watch_reports};
use crate::{EventKind, emit, record};

/// A task with more state changes than this is assumed to be in a loop.
const TASK_TRANSITIONS_MAX: i64 = 200;

/// The server that sent a report. A report about another server's task is ignored as if that task
/// did not exist.
#[derive(Debug, Clone, Copy)]
pub struct Reporter {
    pub org: OrgId,
    pub server: ServerId,
}

/// The reports of one agent in one message.
pub struct AgentReports<'a> {
    pub reporter: Reporter,
    pub progress: &'a [OrderProgress],
    pub results: &'a [OrderResult],
    /// From the watch of its host's health.
    pub health: Option<&'a HealthReport>,
    pub now: Timestamp,
}

/// Stores the reports of many agents in a few SQL statements per rollout, with the same effect as
/// [`store_progress`] and [`store_result`] for each. `Stale` means that another writer changed one of the
/// tasks; then none of the reports is stored.
#[boxed]
pub async fn store_all(tx: &mut Tx, agent_reports: &[AgentReports<'_>]) -> store::Result<()> {
    let mut standings = TaskStates::read(tx, agent_reports).await?;
    let mut corrected = BTreeSet::new();
    let mut dropped = Vec::new();
    for AgentReports { reporter, progress, results, now, .. } in agent_reports {
        for step in *progress {
            if let (Some(stage), Some(standing)) =
                (step.stage, standings.get_mut(*reporter, step.order_id))
            {
                standing.apply(tx, *reporter, TaskEvent::Reached(stage), None, *now);
            }
        }
        for result in *results {
            // Both are rare. The meaning of a withdrawn order depends on the rollout's phase; a
            // lost order causes a refresh.
            if matches!(result.outcome, Outcome::Withdrawn | Outcome::Unknown) {
                dropped.push((*reporter, result, *now));
                continue;
            }
            let Some(standing) = standings.get_mut(*reporter, result.order_id) else {
                finish_refresh(tx, *reporter, result, *now).await?;
                continue;
            };
            match standing.status {
                TaskStatus::Done(_) => {
                    corrected.insert((standing.seen.rollout_id, *now));
                }
                TaskStatus::Waiting | TaskStatus::Busy(_) => count_finished(result),
            }
            standing.apply(
                tx,
                *reporter,
                TaskEvent::Reported(to_verdict(result)),
                Some(result),
                *now,
            );
        }
    }
    for (rollout, moves) in standings.into_moves() {
        rollout_tasks::save(tx, rollout, &moves).await?;
    }
    for (who, told, now) in dropped {
        store_result(tx, who, told, now).await?;
    }
    let watched = agent_reports.iter().filter_map(|part| {
        let report = part.health?;
        Some(WatchReport { reporter: part.reporter, report, now: part.now })
    });
    let watched: Vec<WatchReport<'_>> = watched.collect();
    if !watched.is_empty() {
        store_watch_reports(tx, &watched).await?;
    }
    for (rollout, now) in corrected {
        correct_end(tx, rollout, now).await?;
    }
    Ok(())
}

/// The current states of the tasks that the reports are about.
struct TaskStates(BTreeMap<TaskId, TaskState>);

struct TaskState {
    seen: TaskResult,
    status: TaskStatus,
    result: Option<serde_json::Value>,
    health: Option<TaskHealth>,
}

impl TaskStates {
    async fn read(tx: &mut Tx, agent_reports: &[AgentReports<'_>]) -> store::Result<TaskStates> {
        let mut tasks: BTreeMap<OrgId, Vec<TaskId>> = BTreeMap::new();
        for AgentReports { reporter: who, progress, results, .. } in agent_reports {
            let ids = progress.iter().map(|told| told.order_id);
            let ids = ids.chain(results.iter().map(|report| report.order_id));
            tasks.entry(who.org).or_default().extend(ids);
        }
        let mut standings = BTreeMap::new();
        for (org, tasks) in tasks {
            for seen in rollout_tasks::get_all(tx, org, &tasks).await? {
                let standing = TaskState { status: seen.target, result: None, health: None, seen };
                standings.insert(standing.seen.task_id, standing);
            }
        }
        Ok(TaskStates(standings))
    }

    /// The state of this task, if it belongs to this server.
    fn get_mut(&mut self, reporter: Reporter, task: TaskId) -> Option<&mut TaskState> {
        self.0.get_mut(&task).filter(|standing| standing.seen.server_id == reporter.server)
    }

    /// The changes by rollout, in the order in which all code locks rollouts.
    fn into_moves(self) -> BTreeMap<BatchId, Vec<StateChange>> {
        let mut moves: BTreeMap<BatchId, Vec<StateChange>> = BTreeMap::new();
        for TaskState { seen, status: target, result, health } in self.0.into_values() {
            if target != seen.target {
                let to = StateChange {
                    server_id: seen.server_id,
                    from: seen.target,
                    seen: seen.generation,
                    next: target,
                    result,
                    health,
                };
                moves.entry(seen.rollout_id).or_default().push(to);
            }
        }
        moves
    }
}

impl TaskState {
    fn apply(
        &mut self,
        tx: &mut Tx,
        reporter: Reporter,
        event: TaskEvent,
        result: Option<&OrderResult>,
        now: Timestamp,
    ) {
        // Every report of an agent is a valid event; see `domain::rollout::TaskStatus`.
        let Ok(next) = self.status.apply(event, now) else { return };
        if next == self.status {
            return;
        }
        let from = TaskResult { target: self.status, ..self.seen.clone() };
        record_task_transition(tx, reporter.org, &to_target_row(&from), next, None, now);
        self.status = next;
        let report = result.and_then(stored_report);
        self.result = report.or(self.result.take());
        let health = result.and_then(|result| server_health::from_result(result, now));
        if let Some(health) = health {
            let task = TaskRef {
                wave: next.wave(),
                result: self.result.as_ref(),
                ..TaskRef::from(&self.seen)
            };
            let before = self.health.as_ref().or(self.seen.health.as_ref());
            server_health::emit_degraded(tx, reporter.org, &task, before, &health, now);
            self.health = Some(health);
        }
    }
}

fn to_target_row(seen: &TaskResult) -> TaskRow {
    TaskRow {
        rollout_id: seen.rollout_id,
        task_id: seen.task_id,
        server_id: seen.server_id,
        position: seen.position,
        target: seen.target,
        generation: seen.generation,
        revision: 0,
        seal: seen.seal.clone(),
        health: seen.health.clone(),
    }
}

/// Stores an order's progress. An outdated report changes nothing.
#[boxed]
pub async fn store_progress(
    tx: &mut Tx,
    reporter: Reporter,
    progress: &OrderProgress,
    now: Timestamp,
) -> store::Result<()> {
    let Some(stage) = progress.stage else { return Ok(()) };
    match find_target(tx, reporter, progress.order_id).await? {
        Some(seen) => save_event(tx, reporter, &seen, TaskEvent::Reached(stage), None, now).await,
        None => Ok(()),
    }
}

/// Stores an order's result. A repeated report changes nothing; a late one corrects the assumed
/// result.
#[boxed]
pub async fn store_result(
    tx: &mut Tx,
    reporter: Reporter,
    result: &OrderResult,
    now: Timestamp,
) -> store::Result<()> {
    let Some(seen) = find_target(tx, reporter, result.order_id).await? else {
        return finish_refresh(tx, reporter, result, now).await;
    };
    let event = TaskEvent::Reported(to_verdict(result));
    save_event(tx, reporter, &seen, event, Some(result), now).await?;
    if !matches!(seen.target, TaskStatus::Done(_)) {
        count_finished(result);
    }
    if result.outcome == Outcome::Unknown && !matches!(seen.target, TaskStatus::Done(_)) {
        // It is unknown whether the order was executed. A fresh inventory shows it.
        refresh::request_in(tx, "engine", reporter.org, reporter.server, now).await?;
    }
    if matches!(seen.target, TaskStatus::Done(_)) {
        correct_end(tx, seen.rollout_id, now).await?;
    }
    Ok(())
}

/// Counts a finished task. In a transaction that is rolled back and retried, it may count twice,
/// which metrics allow.
fn count_finished(result: &OrderResult) {
    let outcome = match result.outcome {
        Outcome::Succeeded => "succeeded",
        Outcome::NoChange => "no_change",
        Outcome::Skipped => "skipped",
        Outcome::Failed => "failed",
        Outcome::Withdrawn => "withdrawn",
        Outcome::Unknown => "unknown",
    };
    metrics::counter!("fleetmend_tasks_finished_total", "outcome" => outcome).increment(1);
    let took = result.finished_at.duration_since(result.started_at);
    metrics::histogram!("fleetmend_task_duration_seconds", "outcome" => outcome)
        .record(took.as_secs_f64().max(0.0));
}

/// The report as it is stored. An agent of an earlier release refuses an order for exact versions
/// with a message that only names the kind of the order.
fn stored_report(result: &OrderResult) -> Option<serde_json::Value> {
    let mut report = serde_json::to_value(result).ok()?;
    let message = result.message.as_ref().map_or("", vocab::Line::as_str);
    if result.failure_code == Some(FailureCode::UnsupportedOrder)
        && message.contains("install_versions")
    {
        report["message"] = json!(
            "the agent is too old for pinned versions and installed nothing; upgrade it with \
             `fleetmend agents upgrade`, and retry"
        );
    }
    Some(report)
}

fn to_verdict(result: &OrderResult) -> ReportedResult {
    match result.outcome {
        Outcome::Succeeded => ReportedResult::Succeeded,
        Outcome::NoChange => ReportedResult::NoChange,
        Outcome::Skipped if result.failure_code == Some(FailureCode::VersionGone) => {
            ReportedResult::VersionGone
        }
        Outcome::Skipped => ReportedResult::NotApplicable,
        Outcome::Failed => {
            ReportedResult::Failed(result.failure_code.unwrap_or(FailureCode::AgentError))
        }
        Outcome::Withdrawn => ReportedResult::Withdrawn,
        Outcome::Unknown => ReportedResult::Failed(FailureCode::OrderLost),
    }
}

async fn find_target(
    tx: &mut Tx,
    reporter: Reporter,
    id: TaskId,
) -> store::Result<Option<TaskResult>> {
    match rollout_tasks::get(tx, reporter.org, id).await {
        Ok(found) => Ok((found.server_id == reporter.server).then_some(found)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn save_event(
    tx: &mut Tx,
    reporter: Reporter,
    seen: &TaskResult,
    event: TaskEvent,
    result: Option<&OrderResult>,
    now: Timestamp,
) -> store::Result<()> {
    // The meaning of a withdrawn order depends on the rollout's phase.
    let event = match event {
        TaskEvent::Reported(ReportedResult::Withdrawn) => interpret_withdrawal(tx, seen).await?,
        event => event,
    };
    // Every report of an agent is a valid event; see `domain::rollout::TaskStatus`.
    let Ok(next) = seen.target.apply(event, now) else { return Ok(()) };
    if next == seen.target {
        return Ok(());
    }
    let message = result.and_then(|result| result.message.as_ref());
    let health = result.and_then(|result| server_health::from_result(result, now));
    let result = result.and_then(stored_report);
    if let Some(health) = &health {
        let task = TaskRef { wave: next.wave(), result: result.as_ref(), ..TaskRef::from(seen) };
        let before = seen.health.as_ref();
        server_health::emit_degraded(tx, reporter.org, &task, before, health, now);
    }
    let (server_id, from, generation) = (reporter.server, seen.target, seen.generation);
    let to = StateChange { server_id, from, seen: generation, next, result, health };
    rollout_tasks::save(tx, seen.rollout_id, &[to]).await?;
    // A task whose seal does not verify keeps its id and is never sent again.
    if next == TaskStatus::Waiting && tx.is_authentic(seen) {
        let another = TaskId::new(now, random_u128());
        rollout_tasks::set_task_id(tx, seen, another).await?;
    }
    let message = message.map(vocab::Line::as_str);
    record_task_transition(tx, reporter.org, &to_target_row(seen), next, message, now);
    Ok(())
}

/// How to interpret a withdrawn order. In a stopped rollout, the order was canceled before it
/// started; in a running one, the server returned its order and waits again. A server that keeps
/// returning its orders is at fault, and its task fails.
async fn interpret_withdrawal(tx: &mut Tx, seen: &TaskResult) -> store::Result<TaskEvent> {
    let phase = rollouts::load(tx, seen.rollout_id).await?.head.phase;
    Ok(match TaskEvent::Reported(ReportedResult::Withdrawn).in_phase(phase) {
        TaskEvent::GivenBack
            if phase == Phase::Running && seen.generation > TASK_TRANSITIONS_MAX =>
        {
            TaskEvent::Reported(ReportedResult::Failed(FailureCode::RejectedByAgent))
        }
        event => event,
    })
}

async fn finish_refresh(
    tx: &mut Tx,
    reporter: Reporter,
    result: &OrderResult,
    now: Timestamp,
) -> store::Result<()> {
    let state = match result.outcome {
        Outcome::Succeeded | Outcome::NoChange | Outcome::Skipped => RefreshState::Succeeded,
        Outcome::Failed | Outcome::Withdrawn | Outcome::Unknown => RefreshState::Failed,
    };
    let message = result.message.as_ref().map(vocab::Line::as_str);
    if refreshes::finish(tx, result.order_id, reporter.server, state, message, now).await? {
        let upgrade = refreshes::get(tx, reporter.org, result.order_id).await?.upgrade.is_some();
        let (action, event) = match upgrade {
            true => (Action::AgentUpgradeFinish, EventKind::AgentUpgraded),
            false => (Action::RefreshFinish, EventKind::ServerRefreshed),
        };
        let detail = json!({"refresh_id": result.order_id, "server_id": reporter.server,
            "state": state.as_str(), "message": message});
        record(tx, reporter.org, now, "engine", action, reporter.server, &detail);
        emit(tx, reporter.org, now, "engine", event, reporter.server, detail);
    }
    Ok(())
}
