//! `/v1/schedules` and their runs.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::IntoResponse;
use utoipa_axum::routes as handlers;
use vocab::{Role, RunId, ScheduleId, Selector};
use wire::v1::{List, Run, ScheduleRequest};

use crate::app::App;
use crate::http::credentials::Listing;
use crate::http::{
    ApiError, Body, Caller, Code, ETag, Here, Id, Ids, IfMatch, Limit, NoBody, NoQuery, Offset,
    Query, Routes, page, read,
};

use service::commands::schedules::Wanted;
use service::queries::summary::reaches;
use service::queries::targets::unmatched;
use service::{FieldError, ServiceError, queries};

/// The code of the field error for targets that no server matches.
pub(crate) const NO_SERVERS_MATCH: &str = "no_servers_match";

/// How often a change is tried again that others came before. Each failure is somebody's success, so
/// this many must change the same schedule at once before one of them is refused.
const CONTENDED_TRIES: u32 = 100;

pub(crate) fn routes() -> Routes {
    Routes::new()
        .add(Role::Viewer, handlers!(list))
        .add(Role::Operator, handlers!(create))
        .add(Role::Viewer, handlers!(get))
        .add(Role::Operator, handlers!(replace, delete))
        .add(Role::Operator, handlers!(run))
        .add(Role::Viewer, handlers!(history))
        .add(Role::Viewer, handlers!(get_run))
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Part {
    /// Maximum number of results; all if omitted.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 500, required = false)]
    limit: Option<Limit>,
    /// Number of results to skip.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

impl Part {
    /// How many, if not all, and after how many.
    pub(crate) fn limits(&self) -> (Option<u32>, u64) {
        (self.limit.map(|limit| limit.0), self.offset.0)
    }
}

/// Refuses targets beyond the environments of the caller.
fn within(caller: &Caller, targets: &Selector) -> Result<(), ApiError> {
    if reaches(caller.environments.as_deref(), targets) {
        return Ok(());
    }
    let detail =
        "This key is limited to environments: name one of them in `targets` as `environment`.";
    Err(ApiError::new(Code::Forbidden, detail))
}

/// Refuses the targets of an enabled schedule that match no server, unless the caller allowed it. Before any server is
/// enrolled nothing is refused: schedules may be written first.
async fn refuse_unmatched(
    app: &App,
    caller: &Caller,
    wanted: &Wanted,
    allow_empty: bool,
) -> Result<(), ApiError> {
    if allow_empty || !wanted.enabled {
        return Ok(());
    }
    let (mut reader, visible) = (app.db.snapshot().await?, caller.environments.as_deref());
    match unmatched(&mut reader, caller.org, visible, &wanted.targets).await? {
        Some(found) if !found.no_fleet => {
            let detail = "No server matches `targets`. Correct them, or set `allow_empty` to true to \
                          save the schedule anyway.";
            let error = FieldError::new("/targets", NO_SERVERS_MATCH, found.reason);
            Err(ApiError::new(Code::InvalidBody, detail).with_errors(vec![error]))
        }
        _ => Ok(()),
    }
}

/// List schedules
///
/// All schedules of the organization, by name; a part of them if `limit` is given.
#[utoipa::path(get, path = "/v1/schedules", tag = "Schedules", operation_id = "list_schedules", params(Part),
    responses((status = 200, description = "The schedules.", body = List<wire::v1::Schedule>)))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    here: Here,
    Query(part): Query<Part>,
) -> Result<Json<List<wire::v1::Schedule>>, ApiError> {
    let (limit, offset) = part.limits();
    let (page, found) = queries::schedules::list(&app, &caller.scope(), limit, offset).await?;
    Ok(page::list(&here, page, found, |schedule| schedule))
}

/// Create a schedule
///
/// `cron` has five fields, in the time of `timezone`. `targets` says which servers, at least one selector, and is resolved when a run starts.
///
/// If no server matches `targets` today, an enabled schedule is refused with 422 (`no_servers_match`) unless `allow_empty` is true. With
/// `allow_empty`, for a disabled schedule, and while no server is enrolled at all, it is saved and `warnings` says so.
#[utoipa::path(post, path = "/v1/schedules", tag = "Schedules", operation_id = "create_schedule",
    request_body = ScheduleRequest,
    responses((status = 201, description = "The schedule was made.", body = wire::v1::Schedule)))]
pub(crate) async fn create(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<ScheduleRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let (body, errors) = body.open();
    let allow_empty = body.allow_empty.unwrap_or(false);
    let wanted = read::schedule((body, errors))?;
    within(&caller, &wanted.targets)?;
    refuse_unmatched(&app, &caller, &wanted, allow_empty).await?;
    let made = service::commands::schedules::create(&app, &caller.actor(), wanted).await?;
    let location = format!("/v1/schedules/{}", made.id);
    let etag = ETag(made.generation);
    let body = queries::schedules::shown(&mut *app.db.read().await?, &caller.scope(), made).await?;
    Ok((StatusCode::CREATED, [(LOCATION, location)], etag, Json(body)))
}

/// Get a schedule
#[utoipa::path(get, path = "/v1/schedules/{schedule_id}", tag = "Schedules", operation_id = "get_schedule",
    params(("schedule_id" = ScheduleId, Path, description = "Which schedule.")),
    responses((status = 200, description = "The schedule.", body = wire::v1::Schedule)))]
async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ScheduleId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let mut reader = app.db.snapshot().await?;
    let row = queries::schedules::find(&mut reader, &caller.scope(), id).await?;
    let etag = ETag(row.generation);
    Ok((etag, Json(queries::schedules::shown(&mut reader, &caller.scope(), row).await?)))
}

/// Update a schedule
///
/// Replaces the whole: a field that is left out gets its default. Runs that are under way go on as they were ordered. Targets that no
/// server matches are treated as for a new schedule (`allow_empty`).
#[utoipa::path(put, path = "/v1/schedules/{schedule_id}", tag = "Schedules", operation_id = "update_schedule",
    params(("schedule_id" = ScheduleId, Path, description = "Which schedule.")),
    request_body = ScheduleRequest,
    responses((status = 200, description = "The schedule as it is now.", body = wire::v1::Schedule)))]
pub(crate) async fn replace(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ScheduleId>,
    Query(NoQuery {}): Query<NoQuery>,
    if_match: IfMatch,
    body: Body<ScheduleRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let seen = queries::schedules::find(&mut *app.db.read().await?, &caller.scope(), id).await?;
    if_match.check(seen.generation)?;
    let (body, errors) = body.open();
    let allow_empty = body.allow_empty.unwrap_or(false);
    let wanted = read::schedule((body, errors))?;
    within(&caller, &wanted.targets)?;
    refuse_unmatched(&app, &caller, &wanted, allow_empty).await?;
    for _ in 0..CONTENDED_TRIES {
        let seen =
            queries::schedules::find(&mut *app.db.read().await?, &caller.scope(), id).await?;
        if_match.check(seen.generation)?;
        match service::commands::schedules::replace(&app, &caller.actor(), &seen, wanted.clone())
            .await
        {
            Err(ServiceError::Stale) => {}
            done => {
                let after = done?;
                let etag = ETag(after.generation);
                return Ok((
                    etag,
                    Json(
                        queries::schedules::shown(
                            &mut *app.db.read().await?,
                            &caller.scope(),
                            after,
                        )
                        .await?,
                    ),
                ));
            }
        }
    }
    Err(ServiceError::Stale.into())
}

/// Delete a schedule
///
/// With its history. A batch that it started goes on.
#[utoipa::path(delete, path = "/v1/schedules/{schedule_id}", tag = "Schedules", operation_id = "delete_schedule",
    params(("schedule_id" = ScheduleId, Path, description = "Which schedule.")),
    responses((status = 204, description = "The schedule was deleted.")))]
pub(crate) async fn delete(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ScheduleId>,
    Query(NoQuery {}): Query<NoQuery>,
    if_match: IfMatch,
) -> Result<StatusCode, ApiError> {
    for _ in 0..CONTENDED_TRIES {
        let seen =
            queries::schedules::find(&mut *app.db.read().await?, &caller.scope(), id).await?;
        if_match.check(seen.generation)?;
        match service::commands::schedules::delete(&app, &caller.actor(), &seen).await {
            Err(ServiceError::Stale) => {}
            done => return Ok(done.map(|()| StatusCode::NO_CONTENT)?),
        }
    }
    Err(ServiceError::Stale.into())
}

/// Run a schedule now
///
/// Also one that is not enabled. 409 `run_in_progress` while a run of it has not ended. If no server matches its targets, nothing starts:
/// the run is `skipped` with `skip_reason` `no_servers`, and `batch_id` is null.
#[utoipa::path(post, path = "/v1/schedules/{schedule_id}/run", tag = "Schedules", operation_id = "run_schedule",
    params(("schedule_id" = ScheduleId, Path, description = "Which schedule.")),
    responses((status = 202, description = "The run was started, or skipped because no server matches.", body = Run)))]
pub(crate) async fn run(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ScheduleId>,
    Query(NoQuery {}): Query<NoQuery>,
    NoBody: NoBody,
) -> Result<impl IntoResponse, ApiError> {
    let schedule =
        queries::schedules::find(&mut *app.db.read().await?, &caller.scope(), id).await?;
    let run = service::commands::schedules::run(&app, &caller.actor(), &schedule).await?;
    let location = format!("/v1/schedules/{id}/runs/{}", run.id);
    let body = queries::schedules::shown_run(&mut *app.db.snapshot().await?, run).await?;
    Ok((StatusCode::ACCEPTED, [(LOCATION, location)], Json(body)))
}

/// Get the history of a schedule
///
/// Its runs with their results, newest first; also those that were skipped, with the reason.
#[utoipa::path(get, path = "/v1/schedules/{schedule_id}/runs", tag = "Schedules", operation_id = "list_runs",
    params(("schedule_id" = ScheduleId, Path, description = "Which schedule."), Listing),
    responses((status = 200, description = "A page of runs.", body = List<Run>)))]
pub(crate) async fn history(
    State(app): State<App>,
    caller: Caller,
    here: Here,
    Id(id): Id<ScheduleId>,
    Query(listing): Query<Listing>,
) -> Result<Json<List<Run>>, ApiError> {
    let page = page::page(listing.limit, listing.offset);
    let found = queries::schedules::runs(&app, &caller.scope(), id, page).await?;
    Ok(page::list(&here, page, found, |run| run))
}

/// Get a run of a schedule
#[utoipa::path(get, path = "/v1/schedules/{schedule_id}/runs/{run_id}", tag = "Schedules", operation_id = "get_run",
    params(("schedule_id" = ScheduleId, Path, description = "Which schedule."),
        ("run_id" = RunId, Path, description = "Which run.")),
    responses((status = 200, description = "The run.", body = Run)))]
async fn get_run(
    State(app): State<App>,
    caller: Caller,
    Ids(schedule, id): Ids<ScheduleId, RunId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Json<Run>, ApiError> {
    Ok(Json(queries::schedules::run(&app, &caller.scope(), schedule, id).await?))
}
