//! The tasks of a batch: one a server, where it stands, and why it waits.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use domain::rollout::{self, Held, Phase, Tally, Target};
use jiff::Timestamp;
use store::batches::Named;
use store::rollout_targets::{self, TargetResult};
use store::rollouts::{self, Counts};
use store::{Conn, Page, Paged};
use utoipa_axum::routes as handlers;
use vocab::{BatchId, Role, ServerId, Stage, Status, TaskId};
use wire::v1::{List, Options, Task};

use crate::app::App;
use crate::http::batches::find;
use crate::http::read::{Commas, known};
use crate::http::{
    ApiError, Caller, Here, Id, Ids, Limit, NoQuery, Offset, Query, Routes, logs, page, show,
};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .add(Role::Viewer, handlers!(list))
        .add(Role::Viewer, handlers!(get))
        .merge(logs::routes())
}

/// Where a task may stand, as a filter says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word(&'static str);

/// All of these words.
pub(crate) const STATES: [&str; 15] = [
    "pending",
    "waiting",
    "dispatched",
    "preflight",
    "downloading",
    "installing",
    "restarting_services",
    "rebooting",
    "verifying",
    "succeeded",
    "no_change",
    "failed",
    "timed_out",
    "skipped",
    "canceled",
];

impl std::str::FromStr for Word {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        known("a state of a task", text, &STATES).map(Word)
    }
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Where they stand: one state, or several with commas between them.
    #[serde(default)]
    #[param(value_type = Option<String>, required = false, example = "failed,timed_out")]
    state: Commas<Word>,
    /// How many at the most.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    limit: Limit,
    /// How many to pass over.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

/// List the tasks of a batch
///
/// In the order of their turns.
#[utoipa::path(get, path = "/v1/batches/{batch_id}/tasks", tag = "Batches", operation_id = "list_tasks",
    params(("batch_id" = BatchId, Path, description = "Which batch."), Filter),
    responses((status = 200, description = "A page of tasks.", body = List<Task>)))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    here: Here,
    Id(id): Id<BatchId>,
    Query(filter): Query<Filter>,
) -> Result<Json<List<Task>>, ApiError> {
    let page = page::page(filter.limit, filter.offset);
    let mut reader = app.db.snapshot().await?;
    let row = find(&mut reader, &caller, id).await?;
    let scheduled = row.head.phase == Phase::Scheduled;
    // Stored alike, and told apart by whether the batch has started.
    let words = filter.state.0.iter().filter_map(|word| match word.0 {
        "pending" => scheduled.then_some("waiting"),
        "waiting" => (!scheduled).then_some("waiting"),
        other => Some(other),
    });
    let states: Vec<&str> = words.collect();
    let paged = match (states.is_empty(), filter.state.0.is_empty()) {
        (true, false) => Paged { items: Vec::new(), total: 0 },
        _ => of_batch(&app, &mut reader, &row, &states, page).await?,
    };
    Ok(page::list(&here, page, paged, |task| task))
}

/// Get a task
#[utoipa::path(get, path = "/v1/batches/{batch_id}/tasks/{task_id}", tag = "Batches", operation_id = "get_task",
    params(("batch_id" = BatchId, Path, description = "Which batch."),
        ("task_id" = TaskId, Path, description = "Which task.")),
    responses((status = 200, description = "The task.", body = Task)))]
pub(crate) async fn get(
    State(app): State<App>,
    caller: Caller,
    Ids(batch, id): Ids<BatchId, TaskId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Json<Task>, ApiError> {
    let mut reader = app.db.snapshot().await?;
    let row = find(&mut reader, &caller, batch).await?;
    let target = find_task(&mut reader, &caller, batch, id).await?;
    let shown = shown(&app, &mut reader, &row, vec![target]).await?.pop();
    shown.map(Json).ok_or_else(|| ApiError::not_found("task", &id.to_string()))
}

/// A task of this batch.
pub(crate) async fn find_task(
    conn: &mut Conn,
    caller: &Caller,
    batch: BatchId,
    id: TaskId,
) -> Result<TargetResult, ApiError> {
    let found = rollout_targets::of_task(conn, caller.org, id).await?;
    match found.rollout_id == batch {
        true => Ok(found),
        false => Err(ApiError::not_found("task", &id.to_string())),
    }
}

/// A batch that a server took part in: which, when it was ordered and what, and the server's task.
pub(crate) type Past = (BatchId, Timestamp, Options, Task);

/// What a server took part in, the newest first. Why it waits is not asked: its batch says that.
pub(crate) async fn of_server(
    conn: &mut Conn,
    server: ServerId,
    page: Page,
) -> Result<Paged<Past>, ApiError> {
    let found = rollout_targets::of_server(conn, server, page).await?;
    let mut names = None;
    let mut items = Vec::with_capacity(found.items.len());
    for target in found.items {
        let row = rollouts::load(conn, target.rollout_id).await?;
        if names.is_none() {
            names = Some(store::batches::names(conn, row.org_id, &[server]).await?);
        }
        let named = names.as_ref().and_then(|names| names.get(&server));
        let (_, options) = show::stored_options("rollouts", row.id, &row.options)?;
        let task = show::task(target, named, row.head.phase, None);
        items.push((row.id, row.created_at, options, task));
    }
    Ok(Paged { items, total: found.total })
}

/// Some tasks of a batch, in the order of their turns.
pub(crate) async fn of_batch(
    app: &App,
    conn: &mut Conn,
    row: &rollouts::Rollout,
    states: &[&str],
    page: Page,
) -> Result<Paged<Task>, ApiError> {
    let paged = rollout_targets::list(conn, row, states, page).await?;
    let items = shown(app, conn, row, paged.items).await?;
    Ok(Paged { items, total: paged.total })
}

async fn shown(
    app: &App,
    conn: &mut Conn,
    row: &rollouts::Rollout,
    targets: Vec<TargetResult>,
) -> Result<Vec<Task>, ApiError> {
    let servers: Vec<ServerId> = targets.iter().map(|target| target.server_id).collect();
    let names = store::batches::names(conn, row.org_id, &servers).await?;
    let waiting: Vec<(ServerId, u32)> = targets
        .iter()
        .filter(|target| target.target == Target::Waiting)
        .map(|target| (target.server_id, target.position))
        .collect();
    let why = reasons(app, conn, row, &names, &waiting).await?;
    let phase = row.head.phase;
    let show = |target: TargetResult| {
        let server = target.server_id;
        show::task(target, names.get(&server), phase, why.get(&server).copied())
    };
    Ok(targets.into_iter().map(show).collect())
}

/// Why each of these servers waits, given its place in the order of turns.
async fn reasons(
    app: &App,
    conn: &mut Conn,
    row: &rollouts::Rollout,
    names: &BTreeMap<ServerId, Named>,
    waiting: &[(ServerId, u32)],
) -> Result<BTreeMap<ServerId, Held>, ApiError> {
    if waiting.is_empty() {
        return Ok(BTreeMap::new());
    }
    let tally = tally(&rollout_targets::counts(conn, row).await?);
    let now = app.clock.now();
    let servers: Vec<ServerId> = waiting.iter().map(|(server, _)| *server).collect();
    let elsewhere: BTreeMap<ServerId, BatchId> = rollout_targets::in_work(conn, &servers)
        .await?
        .into_iter()
        .map(|busy| (busy.server_id, busy.rollout_id))
        .collect();
    let why = |(server, place): &(ServerId, u32)| {
        let whole = rollout::held_back(&row.head, &tally, *place, now);
        let last_seen = names.get(server).and_then(|named| named.last_seen_at);
        let own = match (show::status(app, last_seen), elsewhere.get(server)) {
            (Status::Offline, _) => Some(Held::Offline),
            (Status::Online, Some(batch)) => Some(Held::Elsewhere(*batch)),
            (Status::Online, None) => None,
        };
        let running = matches!(row.head.phase, Phase::Running);
        let reason = if running { own.or(whole) } else { whole };
        reason.map(|reason| (*server, reason))
    };
    Ok(waiting.iter().filter_map(why).collect())
}

/// What the planner decides by: it does not tell apart why one was skipped or called off, nor what one in work does.
fn tally(counts: &Counts) -> Tally {
    let count = |word: &str| counts.get(word).map_or(0, |n| u32::try_from(*n).unwrap_or(u32::MAX));
    Tally {
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
