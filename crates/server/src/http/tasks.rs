//! `/v1/batches/{batch_id}/tasks`.

use axum::Json;
use axum::extract::State;
use service::queries::Page;
use service::queries::tasks;
use utoipa_axum::routes as handlers;
use vocab::{BatchId, Role, TaskId};
use wire::v1::{List, Task};

use crate::app::App;
use crate::http::read::{Commas, known};
use crate::http::{
    ApiError, Caller, Here, Id, Ids, Limit, NoQuery, Offset, Query, Routes, logs, page,
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
    /// Maximum number of results.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    limit: Limit,
    /// Number of results to skip.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

impl Filter {
    pub(crate) fn page(&self) -> Page {
        page::page(self.limit, self.offset)
    }

    pub(crate) fn states(&self) -> Vec<&'static str> {
        self.state.0.iter().map(|word| word.0).collect()
    }
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
    let page = filter.page();
    let paged = tasks::list(&app, &caller.scope(), id, &filter.states(), page).await?;
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
    Ok(Json(tasks::get(&app, &caller.scope(), batch, id).await?))
}
