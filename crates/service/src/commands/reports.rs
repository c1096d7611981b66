//! Stores what agents report about their orders. The replica that received the report writes it.
//! Writes are guarded by the target's generation, so that concurrent replicas do not overwrite each
//! other.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, BTreeSet};

use domain::rollout::{Event, Phase, Target, Verdict};
use jiff::Timestamp;
use serde_json::json;
use store::refreshes::{self, State};
use store::rollout_targets::{self, Move, TargetResult, TargetRow};
use store::{StoreError, Tx, rollouts};
use vocab::{BatchId, FailureCode, OrgId, ServerId, TaskId};
use wire::agent::{OrderProgress, OrderResult, Outcome};

use crate::clock::dice;
use crate::commands::batches::{correct_end, task_moved};
use crate::commands::refreshes as refresh;
use crate::{emit, record};

/// A task with more state changes than this is assumed to be in a loop.
const MOVES_MAX: i64 = 200;

/// The server that sent a report. A report about another server's task is ignored as if that task
/// did not exist.
#[derive(Debug, Clone, Copy)]
pub struct Reporter {
    pub org: OrgId,
    pub server: ServerId,
}

/// The reports of one agent in one message.
pub struct Told<'a> {
    pub who: Reporter,
    pub progress: &'a [OrderProgress],
    pub results: &'a [OrderResult],
    pub now: Timestamp,
}

/// Stores the reports of many agents in a few SQL statements per rollout, with the same effect as
/// [`progress`] and [`result`] for each. `Stale` means that another writer changed one of the
/// targets; then none of the reports is stored.
#[boxed]
pub async fn together(tx: &mut Tx, told: &[Told<'_>]) -> store::Result<()> {
    let mut standings = Standings::read(tx, told).await?;
    let mut corrected = BTreeSet::new();
    let mut dropped = Vec::new();
    for Told { who, progress, results, now } in told {
        for step in *progress {
            if let (Some(stage), Some(standing)) = (step.stage, standings.of(*who, step.order_id)) {
                standing.apply(tx, *who, Event::Reached(stage), None, *now);
            }
        }
        for result in *results {
            // Both are rare. The meaning of a withdrawn order depends on the rollout's phase; a
            // lost order causes a refresh.
            if matches!(result.outcome, Outcome::Withdrawn | Outcome::Unknown) {
                dropped.push((*who, result, *now));
                continue;
            }
            let Some(standing) = standings.of(*who, result.order_id) else {
                refreshed(tx, *who, result, *now).await?;
                continue;
            };
            if matches!(standing.target, Target::Done(_)) {
                corrected.insert((standing.seen.rollout_id, *now));
            }
            let report = serde_json::to_value(result).ok();
            standing.apply(tx, *who, Event::Reported(verdict(result)), report, *now);
        }
    }
    for (rollout, moves) in standings.moves() {
        rollout_targets::save(tx, rollout, &moves).await?;
    }
    for (who, told, now) in dropped {
        result(tx, who, told, now).await?;
    }
    for (rollout, now) in corrected {
        correct_end(tx, rollout, now).await?;
    }
    Ok(())
}

/// The current states of the targets that the reports are about.
struct Standings(BTreeMap<TaskId, Standing>);

struct Standing {
    seen: TargetResult,
    target: Target,
    result: Option<serde_json::Value>,
}

impl Standings {
    async fn read(tx: &mut Tx, told: &[Told<'_>]) -> store::Result<Standings> {
        let mut tasks: BTreeMap<OrgId, Vec<TaskId>> = BTreeMap::new();
        for Told { who, progress, results, .. } in told {
            let ids = progress.iter().map(|told| told.order_id);
            let ids = ids.chain(results.iter().map(|told| told.order_id));
            tasks.entry(who.org).or_default().extend(ids);
        }
        let mut standings = BTreeMap::new();
        for (org, tasks) in tasks {
            for seen in rollout_targets::of_tasks(tx, org, &tasks).await? {
                let standing = Standing { target: seen.target, result: None, seen };
                standings.insert(standing.seen.task_id, standing);
            }
        }
        Ok(Standings(standings))
    }

    /// The state of this task, if it belongs to this server.
    fn of(&mut self, who: Reporter, task: TaskId) -> Option<&mut Standing> {
        self.0.get_mut(&task).filter(|standing| standing.seen.server_id == who.server)
    }

    /// The changes by rollout, in the order in which all code locks rollouts.
    fn moves(self) -> BTreeMap<BatchId, Vec<Move>> {
        let mut moves: BTreeMap<BatchId, Vec<Move>> = BTreeMap::new();
        for Standing { seen, target, result } in self.0.into_values() {
            if target != seen.target {
                let to = Move {
                    server_id: seen.server_id,
                    from: seen.target,
                    seen: seen.generation,
                    next: target,
                    result,
                };
                moves.entry(seen.rollout_id).or_default().push(to);
            }
        }
        moves
    }
}

impl Standing {
    fn apply(
        &mut self,
        tx: &mut Tx,
        who: Reporter,
        event: Event,
        result: Option<serde_json::Value>,
        now: Timestamp,
    ) {
        // Every report of an agent is a valid event; see `domain::rollout::Target`.
        let Ok(next) = self.target.apply(event, now) else { return };
        if next == self.target {
            return;
        }
        let from = TargetResult { target: self.target, ..self.seen.clone() };
        task_moved(tx, who.org, &row(&from), next, now);
        self.target = next;
        self.result = result.or(self.result.take());
    }
}

fn row(seen: &TargetResult) -> TargetRow {
    TargetRow {
        rollout_id: seen.rollout_id,
        task_id: seen.task_id,
        server_id: seen.server_id,
        position: seen.position,
        target: seen.target,
        generation: seen.generation,
        revision: 0,
        seal: seen.seal.clone(),
    }
}

/// Stores an order's progress. An outdated report changes nothing.
#[boxed]
pub async fn progress(
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

/// Stores an order's result. A repeated report changes nothing; a late one corrects the assumed
/// result.
#[boxed]
pub async fn result(
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
    if told.outcome == Outcome::Unknown && !matches!(seen.target, Target::Done(_)) {
        // It is unknown whether the order was executed. A fresh inventory shows it.
        refresh::ask(tx, "engine", who.org, who.server, now).await?;
    }
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
        Outcome::Unknown => Verdict::Failed(FailureCode::OrderLost),
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
    // The meaning of a withdrawn order depends on the rollout's phase.
    let event = match event {
        Event::Reported(Verdict::Withdrawn) => dropped(tx, seen).await?,
        event => event,
    };
    // Every report of an agent is a valid event; see `domain::rollout::Target`.
    let Ok(next) = seen.target.apply(event, now) else { return Ok(()) };
    if next == seen.target {
        return Ok(());
    }
    let from = seen.target;
    let to = Move { server_id: who.server, from, seen: seen.generation, next, result };
    rollout_targets::save(tx, seen.rollout_id, &[to]).await?;
    // A task whose seal does not verify keeps its id and is never sent again.
    if next == Target::Waiting && tx.is_authentic(seen) {
        let another = TaskId::new(now, dice());
        rollout_targets::renew(tx, seen, another).await?;
    }
    task_moved(tx, who.org, &row(seen), next, now);
    Ok(())
}

/// How to interpret a withdrawn order. In a stopped rollout, the order was canceled before it
/// started; in a running one, the server returned its order and waits again. A server that keeps
/// returning its orders is at fault, and its task fails.
async fn dropped(tx: &mut Tx, seen: &TargetResult) -> store::Result<Event> {
    let phase = rollouts::load(tx, seen.rollout_id).await?.head.phase;
    Ok(match Event::Reported(Verdict::Withdrawn).in_phase(phase) {
        Event::GivenBack if phase == Phase::Running && seen.generation > MOVES_MAX => {
            Event::Reported(Verdict::Failed(FailureCode::RejectedByAgent))
        }
        event => event,
    })
}

async fn refreshed(
    tx: &mut Tx,
    who: Reporter,
    told: &OrderResult,
    now: Timestamp,
) -> store::Result<()> {
    let state = match told.outcome {
        Outcome::Succeeded | Outcome::NoChange | Outcome::Skipped => State::Succeeded,
        Outcome::Failed | Outcome::Withdrawn | Outcome::Unknown => State::Failed,
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
