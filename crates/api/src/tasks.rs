//! `/v1/batches/{batch_id}/tasks`.

use axum::extract::State;
use axum::{Extension, Json};
use httpkit::filters::TaskFilter;
use httpkit::{ApiError, Id, Ids, NoQuery, Query, RequestUrl, page};
use service::auth::caller::Caller;
use service::queries::tasks;
use utoipa_axum::routes as handlers;
use vocab::{BatchId, Role, TaskId};
use wire::v1::{List, Task};

use crate::{Api, Routes, logs};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .add(Role::Viewer, handlers!(list))
        .add(Role::Viewer, handlers!(get))
        .merge(logs::routes())
}

/// List the tasks of a batch
///
/// In the order in which the servers start.
#[utoipa::path(get, path = "/v1/batches/{batch_id}/tasks", tag = "Batches", operation_id = "list_tasks",
    params(("batch_id" = BatchId, Path, description = "ID of the batch."), TaskFilter),
    responses((status = 200, description = "A page of tasks.", body = List<Task>)))]
async fn list(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    url: RequestUrl,
    Id(id): Id<BatchId>,
    Query(filter): Query<TaskFilter>,
) -> Result<Json<List<Task>>, ApiError> {
    let page = filter.page();
    let paged = tasks::list(&app, &caller.scope(), id, &filter.states(), page).await?;
    Ok(page::list(&url, page, paged, |task| task))
}

/// Get a task
#[utoipa::path(get, path = "/v1/batches/{batch_id}/tasks/{task_id}", tag = "Batches", operation_id = "get_task",
    params(("batch_id" = BatchId, Path, description = "ID of the batch."),
        ("task_id" = TaskId, Path, description = "ID of the task.")),
    responses((status = 200, description = "The task.", body = Task)))]
async fn get(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Ids(batch, id): Ids<BatchId, TaskId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Json<Task>, ApiError> {
    Ok(Json(tasks::get(&app, &caller.scope(), batch, id).await?))
}
