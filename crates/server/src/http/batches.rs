//! `/v1/batches`, and how any batch is answered.

use std::collections::{BTreeMap, BTreeSet};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use domain::rollout::{
    self, Busy, Cancel, Done, Head, Held, Outcome, Phase, Rollout, Skip, Target,
};
use jiff::Timestamp;
use store::batches::Named;
use store::rollout_targets::{self, TargetResult};
use store::server_list::{self, Filter};
use store::{Conn, Page, Paged, StoreError, rollouts, runs};
use utoipa_axum::routes as handlers;
use vocab::{BatchId, FailureCode, Role, ServerId, Stage, Status, TaskId};
use wire::v1::{Batch, CreateBatch, List, Task};

use crate::app::App;
use crate::http::credentials::Errors;
use crate::http::read::{self, Commas};
use crate::http::{
    ApiError, Body, Caller, ETag, Here, Id, Ids, Limit, NoBody, NoQuery, Offset, Query, Routes,
    logs, page, show,
};
use crate::service;
use crate::service::rollouts::{NewRollout, Origin};

/// How many tasks are part of a batch's own answer.
const RESULTS_MAX: u32 = 500;

pub(crate) fn routes() -> Routes {
    Routes::new()
        .add(Role::Viewer, handlers!(list))
        .add(Role::Operator, handlers!(create))
        .add(Role::Viewer, handlers!(get))
        .add(Role::Viewer, handlers!(tasks))
        .add(Role::Viewer, handlers!(task))
        .add(Role::Operator, handlers!(cancel))
        .add(Role::Operator, handlers!(pause))
        .add(Role::Operator, handlers!(resume))
        .add(Role::Operator, handlers!(retry))
        .merge(logs::routes())
}

/// Where a batch may stand, as a filter says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StateWord(&'static str);

/// Where a task may stand, as a filter says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TaskWord(&'static str);

const STATES: [&str; 10] = [
    "scheduled",
    "running",
    "paused",
    "halted",
    "canceling",
    "succeeded",
    "completed_with_errors",
    "failed",
    "canceled",
    "expired",
];

const TASK_STATES: [&str; 15] = [
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

fn known(what: &str, text: &str, words: &'static [&'static str]) -> Result<&'static str, String> {
    let found = words.iter().find(|word| **word == text).copied();
    found.ok_or_else(|| match vocab::nearest(text, words.iter().copied()) {
        Some(nearest) => format!("this is not {what}: did you mean `{nearest}`?"),
        None => format!("this is not {what}: it is one of {}", words.join(", ")),
    })
}

impl std::str::FromStr for StateWord {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        known("a state of a batch", text, &STATES).map(StateWord)
    }
}

impl std::str::FromStr for TaskWord {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        known("a state of a task", text, &TASK_STATES).map(TaskWord)
    }
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct BatchFilter {
    /// Where they stand: one state, or several with commas between them.
    #[serde(default)]
    #[param(value_type = Option<String>, required = false)]
    state: Commas<StateWord>,
    /// How many at the most.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    limit: Limit,
    /// How many to pass over.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TaskFilter {
    /// Where they stand: one state, or several with commas between them.
    #[serde(default)]
    #[param(value_type = Option<String>, required = false)]
    state: Commas<TaskWord>,
    /// How many at the most.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    limit: Limit,
    /// How many to pass over.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

/// A batch that this caller can see: a key that is limited to environments sees those whose servers are all in them.
pub(crate) async fn find(
    conn: &mut Conn,
    caller: &Caller,
    id: BatchId,
) -> Result<rollouts::Rollout, ApiError> {
    let found = rollouts::get(conn, caller.org, id).await?;
    if let Some(environments) = caller.environments.as_deref()
        && !store::batches::is_within(conn, id, environments).await?
    {
        return Err(ApiError::not_found("batch", &id.to_string()));
    }
    Ok(found)
}

/// A batch that was just made.
pub(crate) async fn accepted(app: &App, made: rollouts::Rollout) -> Result<Response, ApiError> {
    let location = format!("/v1/batches/{}", made.id);
    let etag = ETag(made.generation);
    let body = whole(app, made).await?;
    Ok((StatusCode::ACCEPTED, [(LOCATION, location)], etag, Json(body)).into_response())
}

/// A batch with its tasks.
async fn whole(app: &App, row: rollouts::Rollout) -> Result<Batch, ApiError> {
    let mut reader = app.db.snapshot().await?;
    // As it is in this moment, so that state and counts fit.
    let row = rollouts::load(&mut reader, row.id).await?;
    let first = Page { limit: RESULTS_MAX, offset: 0 };
    let results = tasks_of(app, &mut reader, &row, &[], first).await?.items;
    let batch = in_short(&mut reader, row).await?;
    Ok(Batch { results: Some(results), ..batch })
}

/// A batch without its tasks.
async fn in_short(conn: &mut Conn, row: rollouts::Rollout) -> Result<Batch, ApiError> {
    let counts = rollout_targets::counts(conn, row.id).await?;
    let (options, shown) = show::stored_options("rollouts", row.id, &row.options)?;
    let schedule_id = match row.run_id {
        Some(run) => match runs::get(conn, row.org_id, run).await {
            // The run is gone with its schedule.
            Err(StoreError::NotFound { .. }) => None,
            run => Some(run?.schedule_id),
        },
        None => None,
    };
    let phase = row.head.phase;
    let started = !matches!(phase, Phase::Scheduled);
    Ok(Batch {
        id: row.id,
        state: show::batch_state(phase),
        halt_reason: show::halt_reason(phase),
        origin: show::origin(&row.origin),
        started_by: Some(row.started_by),
        schedule_id,
        run_id: row.run_id,
        progress: show::progress(&counts, phase),
        created_at: row.created_at,
        started_at: started.then_some(row.head.starts_at),
        finished_at: row.ended_at,
        results: None,
        warnings: show::warnings(&options, u64::from(row.total)),
        options: shown,
    })
}

/// Some tasks of a batch, in the order of their turns.
async fn tasks_of(
    app: &App,
    conn: &mut Conn,
    row: &rollouts::Rollout,
    states: &[&str],
    page: Page,
) -> Result<Paged<Task>, ApiError> {
    let paged = rollout_targets::list(conn, row.id, states, page).await?;
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
    let waiting: Vec<ServerId> = targets
        .iter()
        .filter(|target| target.target == Target::Waiting)
        .map(|target| target.server_id)
        .collect();
    let why = reasons(app, conn, row, &names, &waiting).await?;
    let phase = row.head.phase;
    let show = |target: TargetResult| {
        let server = target.server_id;
        show::task(target, names.get(&server), phase, why.get(&server).copied())
    };
    Ok(targets.into_iter().map(show).collect())
}

/// Why each of these servers waits.
async fn reasons(
    app: &App,
    conn: &mut Conn,
    row: &rollouts::Rollout,
    names: &BTreeMap<ServerId, Named>,
    waiting: &[ServerId],
) -> Result<BTreeMap<ServerId, Held>, ApiError> {
    if waiting.is_empty() {
        return Ok(BTreeMap::new());
    }
    let counts = rollout_targets::counts(conn, row.id).await?;
    let whole = held(&row.head, &counts, app.clock.now());
    let elsewhere: BTreeMap<ServerId, BatchId> = rollout_targets::in_work(conn, waiting)
        .await?
        .into_iter()
        .map(|busy| (busy.server_id, busy.rollout_id))
        .collect();
    let why = |server: &ServerId| {
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

/// Why a server of a batch waits that could start. The planner decides by how many stand where, so it is asked about a rollout with the
/// same counts: that costs the same for ten servers and for 100,000, and reads none of them.
fn held(head: &Head, counts: &BTreeMap<String, u64>, now: Timestamp) -> Option<Held> {
    let done = |outcome| Target::Done(Done { outcome, started_at: None, at: now });
    let stand_in = |word: &str| match word {
        "waiting" => Target::Waiting,
        "succeeded" => done(Outcome::Succeeded),
        "no_change" => done(Outcome::NoChange),
        "failed" => done(Outcome::Failed(FailureCode::AgentError)),
        "timed_out" => done(Outcome::TimedOut(Stage::Dispatched)),
        "skipped" => done(Outcome::Skipped(Skip::NotApplicable)),
        "canceled" => done(Outcome::Canceled(Cancel::Person)),
        _ => Target::Busy(Busy { stage: Stage::Dispatched, started_at: now, by: Timestamp::MAX }),
    };
    let words = counts.iter().flat_map(|(word, count)| {
        std::iter::repeat_n(word.as_str(), usize::try_from(*count).unwrap_or(0))
    });
    let nth = |n: u128| ServerId::new(Timestamp::UNIX_EPOCH, n);
    let targets: Vec<(ServerId, Target)> =
        (0..).zip(words).map(|(n, word)| (nth(n), stand_in(word))).collect();
    let waits = targets.iter().find(|(_, target)| *target == Target::Waiting)?.0;
    rollout::held(&Rollout::restore(head.clone(), targets), waits, now)
}

/// List batches
///
/// Newest first, without their tasks.
#[utoipa::path(get, path = "/v1/batches", tag = "Batches", operation_id = "list_batches", params(BatchFilter),
    responses((status = 200, description = "A page of batches.", body = List<Batch>)))]
async fn list(
    State(app): State<App>,
    caller: Caller,
    here: Here,
    Query(filter): Query<BatchFilter>,
) -> Result<Json<List<Batch>>, ApiError> {
    let page = page::page(filter.limit, filter.offset);
    let phases: Vec<&str> = filter.state.0.iter().map(|word| word.0).collect();
    let within = caller.environments.as_deref();
    let mut reader = app.db.snapshot().await?;
    let found = store::batches::list(&mut reader, caller.org, &phases, within, page).await?;
    let mut items = Vec::with_capacity(found.items.len());
    for row in found.items {
        items.push(in_short(&mut reader, row).await?);
    }
    Ok(page::list(&here, page, Paged { items, total: found.total }, |batch| batch))
}

/// Create a batch
///
/// Patches several servers. Give `packages`, or `security_only`, or both: nothing is patched by omission. If a server does not
/// exist, each such is named and nothing starts. A server that is named twice counts once.
#[utoipa::path(post, path = "/v1/batches", tag = "Batches", operation_id = "create_batch",
    request_body = CreateBatch,
    responses((status = 202, description = "The batch was accepted.", body = Batch)))]
async fn create(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Body(body): Body<CreateBatch>,
) -> Result<Response, ApiError> {
    let mut errors = Errors::default();
    let options = read::order(&mut errors, body.options());
    let servers = existing(&app, &caller, &mut errors, &body.server_ids).await?;
    errors.done()?;
    let new = NewRollout {
        org: caller.org,
        options,
        servers,
        starts_at: app.clock.now(),
        origin: Origin::Api,
        started_by: caller.key.to_string(),
        run_id: None,
    };
    let made = service::rollouts::create(&app, new).await?;
    accepted(&app, made).await
}

/// The servers that an order names; each that is not there, or not for this caller, is noted.
pub(crate) async fn existing(
    app: &App,
    caller: &Caller,
    errors: &mut Errors,
    texts: &[String],
) -> Result<Vec<ServerId>, ApiError> {
    const CHUNK: usize = 500;
    let named = read::server_ids(errors, texts);
    let mut there = BTreeSet::new();
    let mut reader = app.db.read().await?;
    for chunk in named.chunks(CHUNK) {
        let filter = Filter {
            ids: chunk.iter().map(|(_, id)| *id).collect(),
            environments: caller.environments.as_deref().map(<[_]>::to_vec),
            ..Filter::default()
        };
        there.extend(server_list::ids(&mut reader, caller.org, &filter).await?);
    }
    for (place, id) in named.iter().filter(|(_, id)| !there.contains(id)) {
        read::unknown_server(errors, *place, &id.to_string());
    }
    Ok(named.into_iter().map(|(_, id)| id).collect())
}

/// Get a batch
///
/// With its progress and the results of up to 500 servers; the tasks of a larger one are a list of their own.
#[utoipa::path(get, path = "/v1/batches/{batch_id}", tag = "Batches", operation_id = "get_batch",
    params(("batch_id" = BatchId, Path, description = "Which batch.")),
    responses((status = 200, description = "The batch.", body = Batch)))]
async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<BatchId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let row = find(&mut *app.db.read().await?, &caller, id).await?;
    let etag = ETag(row.revision);
    Ok((etag, Json(whole(&app, row).await?)))
}

/// List the tasks of a batch
///
/// In the order of their turns.
#[utoipa::path(get, path = "/v1/batches/{batch_id}/tasks", tag = "Batches", operation_id = "list_tasks",
    params(("batch_id" = BatchId, Path, description = "Which batch."), TaskFilter),
    responses((status = 200, description = "A page of tasks.", body = List<Task>)))]
async fn tasks(
    State(app): State<App>,
    caller: Caller,
    here: Here,
    Id(id): Id<BatchId>,
    Query(filter): Query<TaskFilter>,
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
        _ => tasks_of(&app, &mut reader, &row, &states, page).await?,
    };
    Ok(page::list(&here, page, paged, |task| task))
}

/// Get a task
#[utoipa::path(get, path = "/v1/batches/{batch_id}/tasks/{task_id}", tag = "Batches", operation_id = "get_task",
    params(("batch_id" = BatchId, Path, description = "Which batch."),
        ("task_id" = TaskId, Path, description = "Which task.")),
    responses((status = 200, description = "The task.", body = Task)))]
async fn task(
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

/// Cancel a batch
///
/// Servers that have not started are called off; those in work go on to their end. 409 `batch_state` once it has ended.
#[utoipa::path(post, path = "/v1/batches/{batch_id}/cancel", tag = "Batches", operation_id = "cancel_batch",
    params(("batch_id" = BatchId, Path, description = "Which batch.")),
    responses((status = 200, description = "The batch is being canceled.", body = Batch)))]
async fn cancel(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<BatchId>,
    Query(NoQuery {}): Query<NoQuery>,
    NoBody: NoBody,
) -> Result<Json<Batch>, ApiError> {
    find(&mut *app.db.read().await?, &caller, id).await?;
    let row = service::rollouts::cancel(&app, &caller.actor(), caller.org, id).await?;
    Ok(Json(whole(&app, row).await?))
}

/// Pause a batch
///
/// No further server starts; those in work go on. 409 `batch_state` if it has halted, is being canceled or has ended.
#[utoipa::path(post, path = "/v1/batches/{batch_id}/pause", tag = "Batches", operation_id = "pause_batch",
    params(("batch_id" = BatchId, Path, description = "Which batch.")),
    responses((status = 200, description = "The batch is paused.", body = Batch)))]
async fn pause(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<BatchId>,
    Query(NoQuery {}): Query<NoQuery>,
    NoBody: NoBody,
) -> Result<Json<Batch>, ApiError> {
    find(&mut *app.db.read().await?, &caller, id).await?;
    let row = service::rollouts::pause(&app, &caller.actor(), caller.org, id).await?;
    Ok(Json(whole(&app, row).await?))
}

/// Resume a batch
///
/// One that was paused, or one that halted: then in spite of the failures so far. 409 `batch_state` once it has ended.
#[utoipa::path(post, path = "/v1/batches/{batch_id}/resume", tag = "Batches", operation_id = "resume_batch",
    params(("batch_id" = BatchId, Path, description = "Which batch.")),
    responses((status = 200, description = "The batch goes on.", body = Batch)))]
async fn resume(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<BatchId>,
    Query(NoQuery {}): Query<NoQuery>,
    NoBody: NoBody,
) -> Result<Json<Batch>, ApiError> {
    find(&mut *app.db.read().await?, &caller, id).await?;
    let row = service::rollouts::resume(&app, &caller.actor(), caller.org, id).await?;
    Ok(Json(whole(&app, row).await?))
}

/// Retry a batch
///
/// A new batch of the servers that failed, with the same options. 409 `batch_not_ended` while it is under way, 409
/// `nothing_to_retry` if none failed.
#[utoipa::path(post, path = "/v1/batches/{batch_id}/retry", tag = "Batches", operation_id = "retry_batch",
    params(("batch_id" = BatchId, Path, description = "Which batch.")),
    responses((status = 202, description = "The new batch was accepted.", body = Batch)))]
async fn retry(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<BatchId>,
    Query(NoQuery {}): Query<NoQuery>,
    NoBody: NoBody,
) -> Result<Response, ApiError> {
    find(&mut *app.db.read().await?, &caller, id).await?;
    let made = service::rollouts::retry(&app, &caller.actor(), caller.org, id).await?;
    accepted(&app, made).await
}
