//! `/v1/batches`, and how any batch is answered.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use service::queries::batches;
use store::{Page, rollouts};
use utoipa_axum::routes as handlers;
use vocab::{BatchId, Role, ServerId};
use wire::v1::{Batch, CreateBatch, List};

use crate::app::App;
use crate::http::credentials::Errors;
use crate::http::read;
use crate::http::read::Commas;
use crate::http::{
    ApiError, Body, Caller, ETag, Here, Id, Limit, NoBody, NoQuery, Offset, Query, Routes, page,
    tasks,
};

use service::commands::batches::NewRollout;

pub(crate) fn routes() -> Routes {
    Routes::new()
        .add(Role::Viewer, handlers!(list))
        .add(Role::Operator, handlers!(create))
        .add(Role::Viewer, handlers!(get))
        .add(Role::Operator, handlers!(cancel))
        .add(Role::Operator, handlers!(pause))
        .add(Role::Operator, handlers!(resume))
        .add(Role::Operator, handlers!(retry))
        .merge(tasks::routes())
}

/// Where a batch may stand, as a filter says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StateWord(&'static str);

impl std::str::FromStr for StateWord {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        read::known("a state of a batch", text, &batches::STATES).map(StateWord)
    }
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct BatchFilter {
    /// Where they stand: one state, or several with commas between them.
    #[serde(default)]
    #[param(value_type = Option<String>, required = false, example = "running,paused")]
    state: Commas<StateWord>,
    /// Maximum number of results.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    limit: Limit,
    /// Number of results to skip.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

impl BatchFilter {
    pub(crate) fn page(&self) -> Page {
        page::page(self.limit, self.offset)
    }

    pub(crate) fn states(&self) -> Vec<&'static str> {
        self.state.0.iter().map(|word| word.0).collect()
    }
}

/// A batch that was just made.
pub(crate) async fn accepted(app: &App, made: rollouts::Rollout) -> Result<Response, ApiError> {
    let location = format!("/v1/batches/{}", made.id);
    let etag = ETag(made.generation);
    let body = batches::whole(app, made).await?;
    Ok((StatusCode::ACCEPTED, [(LOCATION, location)], etag, Json(body)).into_response())
}

/// List batches
///
/// Newest first, without their tasks.
#[utoipa::path(get, path = "/v1/batches", tag = "Batches", operation_id = "list_batches", params(BatchFilter),
    responses((status = 200, description = "A page of batches.", body = List<Batch>)))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    here: Here,
    Query(filter): Query<BatchFilter>,
) -> Result<Json<List<Batch>>, ApiError> {
    let page = filter.page();
    let found = batches::list(&app, &caller.scope(), &filter.states(), page).await?;
    Ok(page::list(&here, page, found, |batch| batch))
}

/// Create a batch
///
/// Patches several servers. Give `packages`, or `security_only`, or both: nothing is patched by omission. If a server does not
/// exist, each such is named and nothing starts. A server that is named twice counts once.
#[utoipa::path(post, path = "/v1/batches", tag = "Batches", operation_id = "create_batch",
    request_body = CreateBatch,
    responses((status = 202, description = "The batch was accepted.", body = Batch)))]
pub(crate) async fn create(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<CreateBatch>,
) -> Result<Response, ApiError> {
    let (body, mut errors) = body.open();
    let options = read::order(&mut errors, body.options());
    let servers = existing(&app, &caller, &mut errors, &body.server_ids).await?;
    errors.done()?;
    let new = NewRollout {
        org: caller.org,
        options,
        servers,
        starts_at: app.clock.now(),
        origin: caller.origin(),
        started_by: caller.who.to_string(),
        run_id: None,
    };
    let made = service::commands::batches::create(&app, new).await?;
    accepted(&app, made).await
}

/// The servers that an order names; each that is not there, or not for this caller, is noted.
pub(crate) async fn existing(
    app: &App,
    caller: &Caller,
    errors: &mut Errors,
    texts: &[String],
) -> Result<Vec<ServerId>, ApiError> {
    let named = read::server_ids(errors, texts);
    let ids = named.iter().map(|(_, id)| *id);
    let there = service::queries::servers::existing(app, &caller.scope(), ids).await?;
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
    let row = batches::find(&mut *app.db.read().await?, &caller.scope(), id).await?;
    let etag = ETag(row.revision);
    Ok((etag, Json(batches::whole(&app, row).await?)))
}

/// How a person changes the course of a batch.
enum Steer {
    Cancel,
    Pause,
    Resume,
}

async fn steer(
    app: &App,
    caller: &Caller,
    id: BatchId,
    how: Steer,
) -> Result<Json<Batch>, ApiError> {
    batches::find(&mut *app.db.read().await?, &caller.scope(), id).await?;
    let (actor, org) = (caller.actor(), caller.org);
    let row = match how {
        Steer::Cancel => service::commands::batches::cancel(app, &actor, org, id).await?,
        Steer::Pause => service::commands::batches::pause(app, &actor, org, id).await?,
        Steer::Resume => service::commands::batches::resume(app, &actor, org, id).await?,
    };
    Ok(Json(batches::whole(app, row).await?))
}

/// Cancel a batch
///
/// Servers that have not started are called off; those in work go on to their end. 409 `batch_state` once it has ended.
#[utoipa::path(post, path = "/v1/batches/{batch_id}/cancel", tag = "Batches", operation_id = "cancel_batch",
    params(("batch_id" = BatchId, Path, description = "Which batch.")),
    responses((status = 200, description = "The batch is being canceled.", body = Batch)))]
pub(crate) async fn cancel(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<BatchId>,
    Query(NoQuery {}): Query<NoQuery>,
    NoBody: NoBody,
) -> Result<Json<Batch>, ApiError> {
    steer(&app, &caller, id, Steer::Cancel).await
}

/// Pause a batch
///
/// No further server starts; those in work go on. 409 `batch_state` if it has halted, is being canceled or has ended.
#[utoipa::path(post, path = "/v1/batches/{batch_id}/pause", tag = "Batches", operation_id = "pause_batch",
    params(("batch_id" = BatchId, Path, description = "Which batch.")),
    responses((status = 200, description = "The batch is paused.", body = Batch)))]
pub(crate) async fn pause(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<BatchId>,
    Query(NoQuery {}): Query<NoQuery>,
    NoBody: NoBody,
) -> Result<Json<Batch>, ApiError> {
    steer(&app, &caller, id, Steer::Pause).await
}

/// Resume a batch
///
/// One that was paused, or one that halted: then in spite of the failures so far. 409 `batch_state` once it has ended.
#[utoipa::path(post, path = "/v1/batches/{batch_id}/resume", tag = "Batches", operation_id = "resume_batch",
    params(("batch_id" = BatchId, Path, description = "Which batch.")),
    responses((status = 200, description = "The batch goes on.", body = Batch)))]
pub(crate) async fn resume(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<BatchId>,
    Query(NoQuery {}): Query<NoQuery>,
    NoBody: NoBody,
) -> Result<Json<Batch>, ApiError> {
    steer(&app, &caller, id, Steer::Resume).await
}

/// Retry a batch
///
/// A new batch of the servers that failed, with the same options. 409 `batch_not_ended` while it is under way, 409
/// `nothing_to_retry` if none failed.
#[utoipa::path(post, path = "/v1/batches/{batch_id}/retry", tag = "Batches", operation_id = "retry_batch",
    params(("batch_id" = BatchId, Path, description = "Which batch.")),
    responses((status = 202, description = "The new batch was accepted.", body = Batch)))]
pub(crate) async fn retry(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<BatchId>,
    Query(NoQuery {}): Query<NoQuery>,
    NoBody: NoBody,
) -> Result<Response, ApiError> {
    batches::find(&mut *app.db.read().await?, &caller.scope(), id).await?;
    let made = service::commands::batches::retry(&app, &caller.actor(), caller.org, id).await?;
    accepted(&app, made).await
}
