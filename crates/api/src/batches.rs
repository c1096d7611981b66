//! `/v1/batches`. Other operations that create a batch use [`accepted`] for their response.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use httpkit::filters::BatchFilter;
use httpkit::{ApiError, Body, ETag, Id, NoBody, NoQuery, Query, RequestUrl, page};
use service::auth::caller::Caller;
use service::commands::batches::Decision;
use service::queries::batches::{self, Rollout};
use service::requests::batches as requests;
use utoipa_axum::routes as handlers;
use vocab::{BatchId, Role};
use wire::v1::{Batch, CreateBatch, Decision as DecisionBody, List};

use crate::{Api, Routes, tasks};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .add(Role::Viewer, handlers!(list))
        .add(Role::Operator, handlers!(create))
        .add(Role::Viewer, handlers!(get))
        .add(Role::Operator, handlers!(cancel))
        .add(Role::Operator, handlers!(pause))
        .add(Role::Operator, handlers!(resume))
        .add(Role::Operator, handlers!(retry))
        .add(Role::Operator, handlers!(approve))
        .add(Role::Operator, handlers!(reject))
        .merge(tasks::routes())
}

/// The response for a batch that was just created.
pub(crate) async fn accepted(app: &Api, created: Rollout) -> Result<Response, ApiError> {
    let location = format!("/v1/batches/{}", created.id);
    let etag = ETag(created.generation);
    let body = batches::with_tasks(app, created).await?;
    Ok((StatusCode::ACCEPTED, [(LOCATION, location)], etag, Json(body)).into_response())
}

/// List batches
///
/// Newest first, without their tasks.
#[utoipa::path(get, path = "/v1/batches", tag = "Batches", operation_id = "list_batches", params(BatchFilter),
    responses((status = 200, description = "A page of batches.", body = List<Batch>)))]
async fn list(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    url: RequestUrl,
    Query(filter): Query<BatchFilter>,
) -> Result<Json<List<Batch>>, ApiError> {
    let page = filter.page();
    let found = batches::list(&app, &caller.scope(), &filter.states(), page).await?;
    Ok(page::list(&url, page, found, |batch| batch))
}

/// Create a batch
///
/// Installs updates on several servers. `packages` or `security_only` is required: nothing is
/// installed by default. If a server does not exist, the response names every such server and
/// nothing starts. Duplicate servers count once.
#[utoipa::path(post, path = "/v1/batches", tag = "Batches", operation_id = "create_batch",
    request_body = CreateBatch,
    responses((status = 202, description = "The batch was accepted.", body = Batch)))]
async fn create(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<CreateBatch>,
) -> Result<Response, ApiError> {
    let created = requests::create(&app, &caller, body.into_parts()).await?;
    accepted(&app, created).await
}

/// Get a batch
///
/// With its progress and the results of up to 500 servers. For larger batches, list the tasks.
#[utoipa::path(get, path = "/v1/batches/{batch_id}", tag = "Batches", operation_id = "get_batch",
    params(("batch_id" = BatchId, Path, description = "ID of the batch.")),
    responses((status = 200, description = "The batch.", body = Batch)))]
async fn get(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<BatchId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let row = batches::find(&app, &caller.scope(), id).await?;
    let etag = ETag(row.revision);
    Ok((etag, Json(batches::with_tasks(&app, row).await?)))
}

/// Cancel a batch
///
/// Servers that have not started are skipped; servers in progress finish. 409 `batch_state` if the
/// batch has ended.
#[utoipa::path(post, path = "/v1/batches/{batch_id}/cancel", tag = "Batches", operation_id = "cancel_batch",
    params(("batch_id" = BatchId, Path, description = "ID of the batch.")),
    responses((status = 200, description = "The batch is being canceled.", body = Batch)))]
async fn cancel(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<BatchId>,
    Query(NoQuery {}): Query<NoQuery>,
    NoBody: NoBody,
) -> Result<Json<Batch>, ApiError> {
    let row = requests::cancel(&app, &caller, id).await?;
    Ok(Json(batches::with_tasks(&app, row).await?))
}

/// Pause a batch
///
/// No further servers start; servers in progress finish. 409 `batch_state` if the batch is halted,
/// is being canceled or has ended.
#[utoipa::path(post, path = "/v1/batches/{batch_id}/pause", tag = "Batches", operation_id = "pause_batch",
    params(("batch_id" = BatchId, Path, description = "ID of the batch.")),
    responses((status = 200, description = "The batch is paused.", body = Batch)))]
async fn pause(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<BatchId>,
    Query(NoQuery {}): Query<NoQuery>,
    NoBody: NoBody,
) -> Result<Json<Batch>, ApiError> {
    let row = requests::pause(&app, &caller, id).await?;
    Ok(Json(batches::with_tasks(&app, row).await?))
}

/// Resume a batch
///
/// Resumes a paused batch, or a halted one despite its failures. 409 `batch_state` if the batch
/// has ended.
#[utoipa::path(post, path = "/v1/batches/{batch_id}/resume", tag = "Batches", operation_id = "resume_batch",
    params(("batch_id" = BatchId, Path, description = "ID of the batch.")),
    responses((status = 200, description = "The batch is running.", body = Batch)))]
async fn resume(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<BatchId>,
    Query(NoQuery {}): Query<NoQuery>,
    NoBody: NoBody,
) -> Result<Json<Batch>, ApiError> {
    let row = requests::resume(&app, &caller, id).await?;
    Ok(Json(batches::with_tasks(&app, row).await?))
}

/// Retry a batch
///
/// A new batch of the servers that failed, with the same options. 409 `batch_not_ended` while the
/// batch or an earlier retry of it is under way, 409 `nothing_to_retry` if none failed.
#[utoipa::path(post, path = "/v1/batches/{batch_id}/retry", tag = "Batches", operation_id = "retry_batch",
    params(("batch_id" = BatchId, Path, description = "ID of the batch.")),
    responses((status = 202, description = "The new batch was accepted.", body = Batch)))]
async fn retry(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<BatchId>,
    Query(NoQuery {}): Query<NoQuery>,
    NoBody: NoBody,
) -> Result<Response, ApiError> {
    let created = requests::retry(&app, &caller, id).await?;
    accepted(&app, created).await
}

/// Approve a wave of a batch
///
/// Starts the wave that waits for an approval. 403 `own_batch` for the creator of the batch, 409
/// `batch_state` if the batch waits for none.
#[utoipa::path(post, path = "/v1/batches/{batch_id}/approve", tag = "Batches", operation_id = "approve_batch",
    params(("batch_id" = BatchId, Path, description = "ID of the batch.")),
    request_body = DecisionBody,
    responses((status = 200, description = "The wave starts.", body = Batch)))]
async fn approve(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<BatchId>,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<DecisionBody>,
) -> Result<Json<Batch>, ApiError> {
    let row = requests::decide(&app, &caller, id, Decision::Approve, body.into_parts()).await?;
    Ok(Json(batches::with_tasks(&app, row).await?))
}

/// Reject a wave of a batch
///
/// Cancels every server that has not started, like canceling the batch. 409 `batch_state` if the
/// batch waits for no approval.
#[utoipa::path(post, path = "/v1/batches/{batch_id}/reject", tag = "Batches", operation_id = "reject_batch",
    params(("batch_id" = BatchId, Path, description = "ID of the batch.")),
    request_body = DecisionBody,
    responses((status = 200, description = "The batch is being canceled.", body = Batch)))]
async fn reject(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<BatchId>,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<DecisionBody>,
) -> Result<Json<Batch>, ApiError> {
    let row = requests::decide(&app, &caller, id, Decision::Reject, body.into_parts()).await?;
    Ok(Json(batches::with_tasks(&app, row).await?))
}
