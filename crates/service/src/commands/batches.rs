//! Commands on batches: create, pause, resume, cancel and retry. The engine executes them; the
//! rules are in `domain::rollout`.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeSet;
use std::sync::Arc;

use domain::rollout::{
    Change, EndedTask, HaltReason, Phase, Plan, RetryError, Rollout, RolloutOutcome, TaskEvent,
    TaskOutcome, TaskStatus, plan,
};
use jiff::Timestamp;
use serde_json::json;
use store::rollout_tasks::{self, StateChange, TaskRow, state_name};
use store::rollouts::{self, phase_name};
use store::server_list::{self, Filter};
use store::{Conn, StoreError, Topic, Tx, refreshes, runs};
use vocab::{BatchId, Line, OrgId, Role, RunId, ServerId, TaskId};
use wire::v1::HaltCode;

use crate::audit::Action;
use crate::batch_name::BatchServers;
use crate::clock::random_u128;
use crate::queries::preview;
use crate::{
    ATTEMPTS_MAX, Actor, App, EventKind, FieldError, PatchOptions, Result, ServiceError,
    batch_name, emit, integrity, record,
};

/// How a batch was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The REST API or the command line.
    Api,
    Schedule,
    Dashboard,
}

impl Origin {
    /// The text form, as stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Origin::Api => "api",
            Origin::Schedule => "schedule",
            Origin::Dashboard => "dashboard",
        }
    }
}

/// A batch to create.
#[derive(Debug, Clone)]
pub struct NewRollout {
    pub org: OrgId,
    /// What to do on each server, and how fast.
    pub options: PatchOptions,
    /// The servers in the order in which they are patched; duplicates are ignored.
    pub servers: Vec<ServerId>,
    pub starts_at: Timestamp,
    pub origin: Origin,
    pub started_by: String,
    /// The run of a schedule that this batch executes.
    pub run_id: Option<RunId>,
    /// The batch that this one retries. A batch has at most one unfinished retry.
    pub retry_of: Option<BatchId>,
    /// Derived from the options and the servers if it is not given.
    pub name: Option<Line>,
}

/// Creates a batch. Unknown servers are rejected by name; then nothing starts.
#[boxed]
pub async fn create(app: &App, new: NewRollout) -> Result<rollouts::Rollout> {
    let mut tx = app.db.begin().await?;
    reject_unknown_servers(&mut tx, &new).await?;
    let now = app.clock.now();
    let created = create_in(&mut tx, BatchId::new(now, random_u128()), new, now).await?;
    tx.commit().await?;
    Ok(created)
}

/// Like [`create`], in the caller's transaction and for servers that are known to exist.
#[boxed]
pub async fn create_in(
    tx: &mut Tx,
    id: BatchId,
    new: NewRollout,
    now: Timestamp,
) -> store::Result<rollouts::Rollout> {
    let mut created = create_all_in(tx, vec![(id, new)], now).await?;
    Ok(created.remove(0))
}

/// Creates many batches in a few SQL statements.
#[boxed]
pub async fn create_all_in(
    tx: &mut Tx,
    all: Vec<(BatchId, NewRollout)>,
    now: Timestamp,
) -> store::Result<Vec<rollouts::Rollout>> {
    let mut rows = Vec::with_capacity(all.len());
    let mut targets: Vec<Vec<(TaskId, ServerId)>> = Vec::with_capacity(all.len());
    for (id, new) in all {
        let NewRollout {
            org,
            options,
            servers,
            starts_at,
            origin,
            started_by,
            run_id,
            retry_of,
            name,
        } = new;
        let name = match name {
            Some(name) => name,
            None => batch_name::derive(&options.order, &describe_servers(tx, org, &servers).await?),
        };
        let (servers, expected) = preview::start_order(tx, &options, servers).await?;
        let rollout = Rollout::new(id, options.pace.clone(), starts_at, servers, now);
        let rollout = match expected {
            Some(count) => rollout.with_expected_changes(count),
            None => rollout,
        };
        let tasks = rollout.tasks().map(|(server, _)| (TaskId::new(now, random_u128()), server));
        targets.push(tasks.collect());
        let total = u32::try_from(rollout.tasks().count()).unwrap_or(u32::MAX);
        let mut detail = json!({"batch_id": id, "name": name, "run_id": run_id, "servers": total, "starts_at": starts_at});
        if let Some(reason) = &options.pace.override_freeze {
            detail["override_freeze"] = json!(reason);
        }
        record(tx, org, now, &started_by, Action::BatchCreate, id, &detail);
        emit(tx, org, now, &started_by, EventKind::BatchCreated, id, detail);
        rows.push(rollouts::Rollout {
            id,
            org_id: org,
            name: name.to_string(),
            head: rollout.head().clone(),
            options: options.to_json(),
            origin: origin.as_str().to_owned(),
            started_by,
            run_id,
            retry_of,
            total,
            created_at: now,
            ended_at: None,
            generation: 1,
            revision: 1,
            counts: Some(rollouts::initial_counts(u64::from(total))),
            wave_counts: Some(rollouts::WaveCounts::new()),
            counted: 1,
            seal: store::seals::SealCode::default(),
            head_seal: store::seals::SealCode::default(),
        });
    }
    let new: Vec<_> = rows.iter().zip(targets.iter().map(Vec::as_slice)).collect();
    rollouts::create_all(tx, &new).await?;
    Ok(rows)
}

/// The servers of a new batch, for its name.
async fn describe_servers(
    tx: &mut Tx,
    org: OrgId,
    servers: &[ServerId],
) -> store::Result<BatchServers> {
    if let [one] = servers {
        let names = store::batches::names(tx, org, servers).await?;
        let name = names.get(one).map(|it| match &it.display_name {
            Some(display_name) => display_name.clone(),
            None => it.hostname.to_string(),
        });
        return Ok(BatchServers::One(name.unwrap_or_else(|| one.to_string())));
    }
    let by_environment = store::batches::count_by_environment(tx, org, servers).await?;
    let mut found = by_environment.into_iter();
    let (Some((Some(environment), count)), None) = (found.next(), found.next()) else {
        let unique: BTreeSet<&ServerId> = servers.iter().collect();
        return Ok(BatchServers::Several(unique.len() as u64));
    };
    let filter = Filter { environment: Some(environment.clone()), ..Filter::default() };
    match server_list::count(tx, org, &filter).await? == count {
        true => Ok(BatchServers::WholeEnvironment(environment)),
        false => Ok(BatchServers::InEnvironment(count, environment)),
    }
}

async fn reject_unknown_servers(tx: &mut Tx, new: &NewRollout) -> Result<()> {
    const CHUNK: usize = 500;
    let wrong = |pointer: String, code, detail| FieldError { pointer, code, detail };
    if new.servers.is_empty() {
        let detail = "at least one server is required".to_owned();
        return Err(ServiceError::Invalid(vec![wrong("/server_ids".into(), "empty", detail)]));
    }
    let mut known = BTreeSet::new();
    for chunk in new.servers.chunks(CHUNK) {
        let filter = Filter { ids: chunk.to_vec(), ..Filter::default() };
        known.extend(server_list::ids(tx, new.org, &filter).await?);
    }
    let unknown = new.servers.iter().enumerate().filter(|(_, id)| !known.contains(id));
    let errors: Vec<_> = unknown
        .map(|(place, id)| {
            wrong(format!("/server_ids/{place}"), "not_found", format!("no server `{id}`"))
        })
        .collect();
    if errors.is_empty() { Ok(()) } else { Err(ServiceError::Invalid(errors)) }
}

/// What a user decides about a wave that needs an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Approve,
    /// Cancel everything that has not started.
    Reject,
}

/// Approves or rejects the wave that waits for it. The creator of a batch may not approve its waves.
/// `reviewed` is the number of the wave that the user saw.
#[boxed]
pub async fn decide(
    app: &App,
    actor: &Actor,
    org: OrgId,
    id: BatchId,
    decision: Decision,
    reviewed: Option<u32>,
    comment: Option<&str>,
) -> Result<rollouts::Rollout> {
    for _ in 0..ATTEMPTS_MAX {
        let now = app.clock.now();
        let mut tx = app.db.begin().await?;
        let seen = rollouts::get(&mut tx, org, id).await?;
        let approves = decision == Decision::Approve;
        if approves && !integrity::is_authentic(&app.db, &seen) {
            return Err(integrity::tampered_error("batch"));
        }
        let wave = seen.head.waves.number();
        if reviewed.is_some_and(|reviewed| reviewed != wave) {
            let detail = format!("wave {wave} is current by now. Review it and decide again.");
            return Err(ServiceError::conflict("changed_meanwhile", detail));
        }
        let mut rollout = Rollout::restore(seen.head.clone(), []);
        let (changed, word, action, kind) = match decision {
            Decision::Approve => (
                rollout.approve(actor.id.clone(), comment.map(str::to_owned), now),
                "approve",
                Action::BatchApprove,
                EventKind::BatchApproved,
            ),
            Decision::Reject => (
                rollout.apply_change(Change::Reject, now),
                "reject",
                Action::BatchReject,
                EventKind::BatchRejected,
            ),
        };
        changed.map_err(|refused| {
            let state = phase_name(refused.phase);
            let detail = format!("cannot {word} a wave of a batch that is {state}");
            ServiceError::conflict("batch_state", detail)
        })?;
        if approves && seen.started_by == actor.id {
            return Err(ServiceError::OwnBatch);
        }
        let saved = match rollouts::save_head(&mut tx, &seen, rollout.head(), None).await {
            Err(StoreError::Stale) => continue,
            saved => saved?,
        };
        let detail = json!({"batch_id": id, "state": phase_name(saved.head.phase), "wave": wave,
            "comment": comment});
        record(&mut tx, org, now, &actor.id, action, id, &detail);
        emit(&mut tx, org, now, &actor.id, kind, id, detail);
        tx.commit().await?;
        return Ok(saved);
    }
    Err(ServiceError::Stale)
}

/// Pauses a batch: no further server starts. Running tasks continue.
#[boxed]
pub async fn pause(app: &App, actor: &Actor, org: OrgId, id: BatchId) -> Result<rollouts::Rollout> {
    change(app, actor, org, id, (Change::Pause, "pause", Action::BatchPause), None).await
}

/// Resumes a batch. Resuming a halted batch accepts its failures so far.
#[boxed]
pub async fn resume(
    app: &App,
    actor: &Actor,
    org: OrgId,
    id: BatchId,
) -> Result<rollouts::Rollout> {
    change(app, actor, org, id, (Change::Resume, "resume", Action::BatchResume), None).await
}

/// What a user saw of a batch before deciding about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenBatch {
    /// The name of its state.
    pub state: String,
    /// The number of servers that failed or timed out.
    pub failures: u32,
}

/// Resumes a batch unless it has changed since the user saw it. Resuming a halted batch accepts its
/// failures, so it must not accept failures that the user has not seen.
#[boxed]
pub async fn resume_seen(
    app: &App,
    actor: &Actor,
    org: OrgId,
    id: BatchId,
    seen: &SeenBatch,
) -> Result<rollouts::Rollout> {
    change(app, actor, org, id, (Change::Resume, "resume", Action::BatchResume), Some(seen)).await
}

/// Cancels the tasks that have not started.
#[boxed]
pub async fn cancel(
    app: &App,
    actor: &Actor,
    org: OrgId,
    id: BatchId,
) -> Result<rollouts::Rollout> {
    change(app, actor, org, id, (Change::Cancel, "cancel", Action::BatchCancel), None).await
}

async fn change(
    app: &App,
    actor: &Actor,
    org: OrgId,
    id: BatchId,
    (change, word, action): (Change, &'static str, Action),
    shown: Option<&SeenBatch>,
) -> Result<rollouts::Rollout> {
    for _ in 0..ATTEMPTS_MAX {
        let now = app.clock.now();
        let mut tx = app.db.begin().await?;
        let seen = rollouts::get(&mut tx, org, id).await?;
        if change != Change::Cancel && !integrity::is_authentic(&app.db, &seen) {
            return Err(integrity::tampered_error("batch"));
        }
        // Only resuming a halted batch needs the tasks: it accepts the failures and the health of
        // their servers.
        let targets = match (seen.head.phase, change) {
            (Phase::Halted(_), Change::Resume) => rollout_tasks::all(&mut tx, id).await?,
            _ => Vec::new(),
        };
        let mut rollout = restore_rollout(&seen, &targets);
        if let Some(shown) = shown {
            let halted = matches!(seen.head.phase, Phase::Halted(_));
            let failures = rollout.counts().failures();
            if shown.state != phase_name(seen.head.phase) || (halted && shown.failures != failures)
            {
                let detail = format!(
                    "the batch changed since the page was shown: it is {}. Review it and {word} it again.",
                    phase_name(seen.head.phase)
                );
                return Err(ServiceError::conflict("changed_meanwhile", detail));
            }
        }
        rollout.apply_change(change, now).map_err(|refused| {
            let state = phase_name(refused.phase);
            ServiceError::conflict("batch_state", format!("cannot {word} a batch that is {state}"))
        })?;
        if rollout.head().phase == seen.head.phase {
            return Ok(seen);
        }
        let saved = match rollouts::save_head(&mut tx, &seen, rollout.head(), None).await {
            Err(StoreError::Stale) => continue,
            saved => saved?,
        };
        let detail = json!({"batch_id": id, "state": phase_name(saved.head.phase)});
        record(&mut tx, org, now, &actor.id, action, id, &detail);
        emit_phase(&mut tx, &saved, seen.head.phase, &actor.id, now, detail);
        tx.commit().await?;
        return Ok(saved);
    }
    Err(ServiceError::Stale)
}

/// The batch, and its servers that a retry would patch: those that failed or timed out and still
/// exist. Refused while the batch, or an earlier retry of it, is unfinished.
#[boxed]
pub async fn retryable(
    app: &App,
    conn: &mut Conn,
    org: OrgId,
    id: BatchId,
    now: Timestamp,
) -> Result<(rollouts::Rollout, Vec<ServerId>)> {
    let seen = rollouts::get(conn, org, id).await?;
    let rows = rollout_tasks::all(conn, id).await?;
    let failed = |row: &&TaskRow| matches!(state_name(row.target), "failed" | "timed_out");
    let genuine = integrity::is_authentic(&app.db, &seen)
        && rows.iter().filter(failed).all(|row| app.db.is_authentic(row));
    if !genuine {
        return Err(integrity::tampered_error("batch"));
    }
    let whole = restore_rollout(&seen, &rows);
    let again = whole.retry(id, now).map_err(|refused| match refused {
        RetryError::NotEnded => ServiceError::conflict("batch_not_ended", refused.to_string()),
        RetryError::NothingFailed => {
            ServiceError::conflict("nothing_to_retry", refused.to_string())
        }
    })?;
    if let Some(running) = rollouts::unfinished_retry(conn, id).await? {
        let detail = format!("A retry of this batch is still running: {running}.");
        return Err(ServiceError::conflict("batch_not_ended", detail));
    }
    let mut servers = Vec::new();
    for chunk in again.tasks().map(|(server, _)| server).collect::<Vec<_>>().chunks(500) {
        let filter = Filter { ids: chunk.to_vec(), ..Filter::default() };
        let there: BTreeSet<_> = server_list::ids(conn, org, &filter).await?.into_iter().collect();
        servers.extend(chunk.iter().copied().filter(|server| there.contains(server)));
    }
    if servers.is_empty() {
        let detail = "every failed server has been removed since";
        return Err(ServiceError::conflict("nothing_to_retry", detail));
    }
    Ok((seen, servers))
}

/// Patches the failed servers of an ended batch again, except those that have been removed.
#[boxed]
pub async fn retry(app: &App, actor: &Actor, org: OrgId, id: BatchId) -> Result<rollouts::Rollout> {
    retry_if(app, actor, org, id, &|_| true).await?.ok_or(ServiceError::Stale)
}

/// Retries a batch if `approve` accepts the servers that would be patched; returns `None` if not.
/// `approve` is called inside the transaction that creates the new batch.
#[boxed]
pub async fn retry_if(
    app: &App,
    actor: &Actor,
    org: OrgId,
    id: BatchId,
    approve: &(dyn Fn(&[ServerId]) -> bool + Sync),
) -> Result<Option<rollouts::Rollout>> {
    for _ in 0..ATTEMPTS_MAX {
        let now = app.clock.now();
        let mut tx = app.db.begin().await?;
        let (seen, servers) = retryable(app, &mut tx, org, id, now).await?;
        if !approve(&servers) {
            return Ok(None);
        }
        let options = PatchOptions::from_json(&seen.options).map_err(|source| {
            ServiceError::from(StoreError::Corrupt {
                table: "rollouts",
                id: id.to_string(),
                source: source.into(),
            })
        })?;
        if options.pace.override_freeze.is_some() && !actor.role.includes(Role::Admin) {
            let detail = "Only an administrator may retry a batch that ignores freezes.";
            return Err(ServiceError::Forbidden(detail.to_owned()));
        }
        let new = NewRollout {
            org,
            options,
            servers,
            starts_at: now,
            origin: Origin::Api,
            started_by: actor.id.clone(),
            run_id: None,
            retry_of: Some(id),
            name: Some(batch_name::for_retry(&seen.name)),
        };
        let created = match create_in(&mut tx, BatchId::new(now, random_u128()), new, now).await {
            // Another retry was committed after `retryable` checked. Check again, which reports
            // that retry.
            Err(StoreError::AlreadyExists { .. }) => continue,
            made => made?,
        };
        let detail = json!({"batch_id": id, "retried_as": created.id});
        record(&mut tx, org, now, &actor.id, Action::BatchRetry, id, &detail);
        tx.commit().await?;
        return Ok(Some(created));
    }
    Err(ServiceError::Stale)
}

/// Cancels all unfinished work of a server that is being removed. The caller removes the server in
/// the same transaction and must call this before it changes the server's own row: rollouts are
/// locked before servers everywhere. On `Stale`, the caller must retry the whole transaction.
#[boxed]
pub async fn cancel_tasks_of_removed_server(
    tx: &mut Tx,
    org: OrgId,
    server: ServerId,
    now: Timestamp,
) -> store::Result<()> {
    for row in rollout_tasks::unfinished_by_server(tx, server).await? {
        let Ok(next) = row.target.apply(TaskEvent::ServerRemoved, now) else { continue };
        let (from, seen) = (row.target, row.generation);
        let to = StateChange { server_id: server, from, seen, next, result: None, health: None };
        rollout_tasks::save(tx, row.rollout_id, &[to]).await?;
        record_task_transition(tx, org, &row, next, None, now);
    }
    refreshes::cancel_for_server(tx, server, now).await
}

/// Records a task's state change. The audit log gets every change; an event is emitted only when
/// the task has ended. `message` is the agent's explanation.
pub fn record_task_transition(
    tx: &mut Tx,
    org: OrgId,
    row: &TaskRow,
    next: TaskStatus,
    message: Option<&str>,
    now: Timestamp,
) {
    let mut detail = json!({
        "task_id": row.task_id,
        "batch_id": row.rollout_id,
        "server_id": row.server_id,
        "from": state_name(row.target),
        "state": state_name(next),
    });
    record(tx, org, now, "engine", Action::TaskMove, row.task_id, &detail);
    if let TaskStatus::Done(EndedTask { outcome, .. }) = next {
        let kind = match outcome {
            TaskOutcome::Failed(code) => {
                detail["failure_code"] = json!(code);
                EventKind::TaskFailed
            }
            TaskOutcome::TimedOut(_) => EventKind::TaskFailed,
            TaskOutcome::Succeeded
            | TaskOutcome::NoChange
            | TaskOutcome::Skipped(_)
            | TaskOutcome::Canceled(_) => EventKind::TaskFinished,
        };
        detail["message"] = json!(message);
        emit(tx, org, now, "engine", kind, row.server_id, detail);
    }
}

/// A late report may change the result of an ended rollout. Updates the rollout, and its run as
/// well.
#[boxed]
pub async fn correct_end(tx: &mut Tx, id: BatchId, now: Timestamp) -> store::Result<()> {
    let seen = rollouts::load(tx, id).await?;
    if !seen.head.phase.is_ended() {
        return Ok(());
    }
    let rows = rollout_tasks::all(tx, id).await?;
    let mut rollout = restore_rollout(&seen, &rows);
    let Plan { change: Some(change @ Change::End(end)), .. } = plan(&rollout, now) else {
        return Ok(());
    };
    if rollout.apply_change(change, now).is_err() {
        return Ok(());
    }
    let ended_at = seen.ended_at.unwrap_or(now);
    rollouts::save_head(tx, &seen, rollout.head(), Some(ended_at)).await?;
    record_end(tx, &seen, end, ended_at, now).await
}

/// The name of the reason for a halt in events, and the wave that it is about.
pub fn halt_code(reason: HaltReason) -> (HaltCode, Option<u32>) {
    match reason {
        HaltReason::CanaryFailed => (HaltCode::CanaryFailed, None),
        HaltReason::TooManyFailures => (HaltCode::TooManyFailures, None),
        HaltReason::HealthDegraded { wave } => (HaltCode::HealthDegraded, Some(wave)),
        HaltReason::HealthUnknown { wave } => (HaltCode::HealthUnknown, Some(wave)),
        HaltReason::FleetWideDegradation { wave } => (HaltCode::FleetWideDegradation, Some(wave)),
    }
}

/// Emits the event of a rollout that changed its phase from `before` and has not ended.
pub fn emit_phase(
    tx: &mut Tx,
    row: &rollouts::Rollout,
    before: Phase,
    actor: &str,
    now: Timestamp,
    mut data: serde_json::Value,
) {
    if let Phase::Halted(reason) = row.head.phase {
        let (code, wave) = halt_code(reason);
        data["reason"] = json!(code);
        if let Some(wave) = wave {
            data["wave"] = json!(wave);
        }
    }
    if row.head.phase == Phase::AwaitingApproval {
        data["wave"] = json!(row.head.waves.number());
    }
    data["servers"] = json!(row.total);
    let kind = match (before, row.head.phase) {
        (Phase::Scheduled, Phase::Running) => EventKind::BatchStarted,
        (Phase::Paused | Phase::Halted(_), Phase::Scheduled | Phase::Running) => {
            EventKind::BatchResumed
        }
        (_, Phase::Paused | Phase::Halted(HaltReason::FleetWideDegradation { .. })) => {
            EventKind::BatchPaused
        }
        (_, Phase::Halted(_)) => EventKind::BatchHalted,
        (_, Phase::AwaitingApproval) => EventKind::BatchAwaitingApproval,
        (_, Phase::Canceling) => EventKind::BatchCanceled,
        // The clock was set, or the end is recorded by `record_end`.
        (_, Phase::Scheduled | Phase::Running | Phase::Ended(_)) => return,
    };
    emit(tx, row.org_id, now, actor, kind, row.id, data);
}

/// Records the end of a rollout, and finishes the run that it executes.
#[boxed]
pub async fn record_end(
    tx: &mut Tx,
    row: &rollouts::Rollout,
    outcome: RolloutOutcome,
    ended_at: Timestamp,
    now: Timestamp,
) -> store::Result<()> {
    let state = phase_name(Phase::Ended(outcome));
    let detail = json!({"batch_id": row.id, "run_id": row.run_id, "state": state});
    record(tx, row.org_id, now, "engine", Action::BatchFinish, row.id, &detail);
    emit(tx, row.org_id, now, "engine", EventKind::BatchFinished, row.id, detail);
    // The run may have been deleted with its schedule.
    let Some(run) = runs::by_batch(tx, row.id).await? else { return Ok(()) };
    runs::finish(tx, &run, outcome, ended_at).await?;
    let detail = json!({"run_id": run.id, "schedule_id": run.schedule_id, "batch_id": row.id,
        "state": state});
    emit(tx, row.org_id, now, "engine", EventKind::RunFinished, run.schedule_id, detail);
    tx.notify(Topic::Schedules);
    Ok(())
}

pub fn restore_rollout(row: &rollouts::Rollout, targets: &[TaskRow]) -> Rollout {
    let tasks = targets.iter().map(|row| (row.server_id, row.target));
    let mut rollout = Rollout::restore(row.head.clone(), tasks);
    for target in targets.iter().filter(|target| target.health.is_some()) {
        rollout.set_health(target.server_id, target.health.clone().map(Arc::new));
    }
    rollout
}
