//! The log of a task: as text, or streamed while the task runs.

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use httpkit::{ApiError, Ids, NoQuery, Query, task_log};
use service::auth::caller::{Caller, Credential};
use utoipa_axum::routes as handlers;
use vocab::{BatchId, Role, TaskId};

use crate::{Api, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new().add(Role::Viewer, handlers!(log))
}

/// Get the log of a task
///
/// The output of the package manager, as text. With `Accept: text/event-stream`, the log is
/// streamed: `log` events whose `id` is the position in the log (send it as `Last-Event-ID` to
/// resume), and an `end` event when the task has ended.
#[utoipa::path(get, path = "/v1/batches/{batch_id}/tasks/{task_id}/log", tag = "Batches", operation_id = "get_task_log",
    params(("batch_id" = BatchId, Path, description = "ID of the batch."),
        ("task_id" = TaskId, Path, description = "ID of the task.")),
    responses((status = 200, description = "The log.",
        content((String = "text/plain"), (String = "text/event-stream")))))]
async fn log(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Ids(batch, id): Ids<BatchId, TaskId>,
    Query(NoQuery {}): Query<NoQuery>,
    credential: Option<Extension<Credential>>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let credential = credential.map(|Extension(credential)| credential);
    task_log::respond(&app, caller, credential, (batch, id), &headers).await
}
