//! The tasks of a batch: one per server, with its state and what it waits for.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeMap;

use domain::rollout::{self, Phase, TaskCounts, TaskStatus, WaitReason};
use jiff::Timestamp;
use store::batches::ServerName;
use store::rollout_tasks::{self, TaskResult};
use store::rollouts::{self, Counts};
use store::{Conn, Page, Paged, StoreError};
use vocab::{BatchId, ServerId, Stage, Status, TaskId};
use wire::v1::{Options, Task, TaskState};

use super::{Scope, batches, convert, freezes};
use crate::{App, Result};

/// The tasks of a batch in start order, in any of these API states. Without states, all tasks.
#[boxed]
pub async fn list(
    app: &App,
    scope: &Scope,
    batch: BatchId,
    states: &[&'static str],
    page: Page,
) -> Result<Paged<Task>> {
    let mut reader = app.db.snapshot().await?;
    let row = batches::find_in(&mut reader, scope, batch).await?;
    let scheduled = row.head.phase == Phase::Scheduled;
    // Both API states are stored as `waiting`; the phase of the batch distinguishes them.
    let stored = states.iter().filter_map(|state| match *state {
        "pending" => scheduled.then_some("waiting"),
        "waiting" => (!scheduled).then_some("waiting"),
        other => Some(other),
    });
    let stored: Vec<&str> = stored.collect();
    match (stored.is_empty(), states.is_empty()) {
        (true, false) => Ok(Paged { items: Vec::new(), total: 0 }),
        _ => of_batch(app, &mut reader, &row, &stored, page).await,
    }
}

/// When a task ran, for a timeline.
#[derive(Debug, Clone, Copy)]
pub struct TaskSpan {
    pub state: TaskState,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
}

/// When each task of this part of a batch ran, in start order.
#[boxed]
pub async fn spans(app: &App, scope: &Scope, batch: BatchId, part: Page) -> Result<Vec<TaskSpan>> {
    let mut reader = app.db.snapshot().await?;
    let row = batches::find_in(&mut reader, scope, batch).await?;
    let states = rollout_tasks::states(&mut reader, batch, part.offset, part.limit).await?;
    Ok(states.into_iter().map(|status| convert::task_span(status, row.head.phase)).collect())
}

#[boxed]
pub async fn get(app: &App, scope: &Scope, batch: BatchId, id: TaskId) -> Result<Task> {
    let mut reader = app.db.snapshot().await?;
    let row = batches::find_in(&mut reader, scope, batch).await?;
    let target = find_task(&mut reader, scope, batch, id).await?;
    let shown = to_tasks(app, &mut reader, &row, vec![target]).await?.pop();
    shown.ok_or_else(|| StoreError::not_found("task", id).into())
}

pub(crate) async fn find_task(
    conn: &mut Conn,
    scope: &Scope,
    batch: BatchId,
    id: TaskId,
) -> Result<TaskResult> {
    let found = rollout_tasks::get(conn, scope.org, id).await?;
    match found.rollout_id == batch {
        true => Ok(found),
        false => Err(StoreError::not_found("task", id).into()),
    }
}

/// A batch that a server took part in: its id, when it was created, its options, and the server's
/// task.
pub type PastTask = (BatchId, Timestamp, Options, Task);

/// The batches that a server took part in, newest first. Does not determine what a task waits for,
/// because the batch shows that.
#[boxed]
pub async fn history_of_server(app: &App, server: ServerId, page: Page) -> Result<Paged<PastTask>> {
    let conn = &mut *app.db.snapshot().await?;
    let found = rollout_tasks::list_by_server(conn, server, page).await?;
    let mut names = None;
    let mut items = Vec::with_capacity(found.items.len());
    for target in found.items {
        let row = rollouts::load(conn, target.rollout_id).await?;
        if names.is_none() {
            names = Some(store::batches::names(conn, row.org_id, &[server]).await?);
        }
        let named = names.as_ref().and_then(|names| names.get(&server));
        let (_, options) = convert::stored_options("rollouts", row.id, &row.options)?;
        let task = convert::task(target, named, row.head.phase, None);
        items.push((row.id, row.created_at, options, task));
    }
    Ok(Paged { items, total: found.total })
}

/// A page of the tasks of a batch, in start order.
#[boxed]
pub async fn of_batch(
    app: &App,
    conn: &mut Conn,
    row: &rollouts::Rollout,
    states: &[&str],
    page: Page,
) -> Result<Paged<Task>> {
    let paged = rollout_tasks::list(conn, row, states, page).await?;
    let items = to_tasks(app, conn, row, paged.items).await?;
    Ok(Paged { items, total: paged.total })
}

pub(crate) async fn to_tasks(
    app: &App,
    conn: &mut Conn,
    row: &rollouts::Rollout,
    targets: Vec<TaskResult>,
) -> Result<Vec<Task>> {
    let servers: Vec<ServerId> = targets.iter().map(|target| target.server_id).collect();
    let names = store::batches::names(conn, row.org_id, &servers).await?;
    let waiting: Vec<(ServerId, u32)> = targets
        .iter()
        .filter(|target| target.target == TaskStatus::Waiting)
        .map(|target| (target.server_id, target.position))
        .collect();
    let why = waiting_reasons(app, conn, row, &names, &waiting).await?;
    let phase = row.head.phase;
    let show = |target: TaskResult| {
        let server = target.server_id;
        convert::task(target, names.get(&server), phase, why.get(&server).copied())
    };
    Ok(targets.into_iter().map(show).collect())
}

/// Why each of these servers waits, given its position in the start order.
async fn waiting_reasons(
    app: &App,
    conn: &mut Conn,
    row: &rollouts::Rollout,
    names: &BTreeMap<ServerId, ServerName>,
    waiting: &[(ServerId, u32)],
) -> Result<BTreeMap<ServerId, WaitReason>> {
    if waiting.is_empty() {
        return Ok(BTreeMap::new());
    }
    let tally = to_tally(&rollout_tasks::counts(conn, row).await?);
    let mut by_wave = rollout_tasks::wave_counts(conn, row).await?;
    let in_wave = to_tally(&by_wave.remove(&row.head.waves.number()).unwrap_or_default());
    let now = app.clock.now();
    let servers: Vec<ServerId> = waiting.iter().map(|(server, _)| *server).collect();
    let elsewhere: BTreeMap<ServerId, BatchId> = rollout_tasks::active_by_servers(conn, &servers)
        .await?
        .into_iter()
        .map(|busy| (busy.server_id, busy.rollout_id))
        .collect();
    let frozen = match row.head.pace.override_freeze {
        Some(_) => BTreeMap::new(),
        None => freezes::frozen_servers(conn, row.org_id, &servers, now).await?,
    };
    let why = |(server, place): &(ServerId, u32)| {
        let whole = rollout::wait_reason_at(&row.head, &tally, &in_wave, *place, now);
        let last_seen = names.get(server).and_then(|named| named.last_seen_at);
        let own = match (convert::status(app, last_seen), elsewhere.get(server)) {
            (Status::Offline, _) => Some(WaitReason::Offline),
            (Status::Online, Some(batch)) => Some(WaitReason::BusyElsewhere(*batch)),
            (Status::Online, None) => {
                frozen.get(server).map(|until| WaitReason::Freeze { until: *until })
            }
        };
        let running = matches!(row.head.phase, Phase::Running);
        let reason = if running { own.or(whole) } else { whole };
        reason.map(|reason| (*server, reason))
    };
    Ok(waiting.iter().filter_map(why).collect())
}

/// The counts that the planner uses. The planner does not distinguish why a task was skipped or
/// canceled, or what a running task is doing.
fn to_tally(counts: &Counts) -> TaskCounts {
    let count = |word: &str| counts.get(word).map_or(0, |n| u32::try_from(*n).unwrap_or(u32::MAX));
    TaskCounts {
        waiting: count("waiting"),
        busy: std::array::from_fn(|nth| count(Stage::ALL[nth].as_str())),
        succeeded: count("succeeded"),
        no_change: count("no_change"),
        failed: count("failed"),
        timed_out: count("timed_out"),
        not_applicable: count("skipped"),
        canceled: count("canceled"),
        expired: 0,
        removed: 0,
    }
}
