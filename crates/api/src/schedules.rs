//! `/v1/schedules` and their runs.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use httpkit::filters::{PageParams, ScheduleList};
use httpkit::{ApiError, Body, ETag, Id, Ids, IfMatch, NoBody, NoQuery, Query, RequestUrl, page};
use service::auth::caller::Caller;
use service::queries;
use service::requests::schedules as requests;
use utoipa_axum::routes as handlers;
use vocab::{Role, RunId, ScheduleId};
use wire::v1::{List, Run, ScheduleRequest};

use crate::{Api, Routes};

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

/// List schedules
///
/// All schedules of the organization, sorted by name. Returns a page if `limit` is given.
#[utoipa::path(get, path = "/v1/schedules", tag = "Schedules", operation_id = "list_schedules", params(ScheduleList),
    responses((status = 200, description = "The schedules.", body = List<wire::v1::Schedule>)))]
async fn list(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    url: RequestUrl,
    Query(part): Query<ScheduleList>,
) -> Result<Json<List<wire::v1::Schedule>>, ApiError> {
    let (limit, offset) = part.limit_and_offset();
    let (page, found) = queries::schedules::list(&app, &caller.scope(), limit, offset).await?;
    Ok(page::list(&url, page, found, |schedule| schedule))
}

/// Create a schedule
///
/// `cron` has five fields, evaluated in `timezone`. `targets` needs at least one selector; it is
/// resolved when a run starts.
///
/// If no server matches `targets`, an enabled schedule is rejected with 422 (`no_servers_match`)
/// unless `allow_empty` is true. With `allow_empty`, for a disabled schedule, and while no server
/// is enrolled, it is saved with a warning in `warnings`.
#[utoipa::path(post, path = "/v1/schedules", tag = "Schedules", operation_id = "create_schedule",
    request_body = ScheduleRequest,
    responses((status = 201, description = "The schedule was created.", body = wire::v1::Schedule)))]
async fn create(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<ScheduleRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let created = requests::create(&app, &caller, body.into_parts()).await?;
    let location = format!("/v1/schedules/{}", created.id);
    let etag = ETag(created.generation);
    let body = queries::schedules::to_wire(&app, &caller.scope(), created).await?;
    Ok((StatusCode::CREATED, [(LOCATION, location)], etag, Json(body)))
}

/// Get a schedule
#[utoipa::path(get, path = "/v1/schedules/{schedule_id}", tag = "Schedules", operation_id = "get_schedule",
    params(("schedule_id" = ScheduleId, Path, description = "ID of the schedule.")),
    responses((status = 200, description = "The schedule.", body = wire::v1::Schedule)))]
async fn get(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<ScheduleId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let (generation, body) = queries::schedules::get(&app, &caller.scope(), id).await?;
    Ok((ETag(generation), Json(body)))
}

/// Update a schedule
///
/// Replaces the whole schedule: omitted fields get their defaults. Runs in progress are not
/// affected. Targets that match no server are handled as for a new schedule (`allow_empty`).
#[utoipa::path(put, path = "/v1/schedules/{schedule_id}", tag = "Schedules", operation_id = "update_schedule",
    params(("schedule_id" = ScheduleId, Path, description = "ID of the schedule.")),
    request_body = ScheduleRequest,
    responses((status = 200, description = "The updated schedule.", body = wire::v1::Schedule)))]
async fn replace(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<ScheduleId>,
    Query(NoQuery {}): Query<NoQuery>,
    IfMatch(wanted): IfMatch,
    body: Body<ScheduleRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let after = requests::replace(&app, &caller, id, body.into_parts(), &wanted).await?;
    let etag = ETag(after.generation);
    let body = queries::schedules::to_wire(&app, &caller.scope(), after).await?;
    Ok((etag, Json(body)))
}

/// Delete a schedule
///
/// Deletes its history as well. A batch that it started continues.
#[utoipa::path(delete, path = "/v1/schedules/{schedule_id}", tag = "Schedules", operation_id = "delete_schedule",
    params(("schedule_id" = ScheduleId, Path, description = "ID of the schedule.")),
    responses((status = 204, description = "The schedule was deleted.")))]
async fn delete(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<ScheduleId>,
    Query(NoQuery {}): Query<NoQuery>,
    IfMatch(wanted): IfMatch,
) -> Result<StatusCode, ApiError> {
    requests::delete(&app, &caller, id, &wanted).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Run a schedule now
///
/// Works for disabled schedules, too. 409 `run_in_progress` while another run has not ended. If no
/// server matches its targets, or all that match are frozen, nothing starts: the run is `skipped`
/// with `skip_reason` `no_servers` or `freeze`, and `batch_id` is null.
#[utoipa::path(post, path = "/v1/schedules/{schedule_id}/run", tag = "Schedules", operation_id = "run_schedule",
    params(("schedule_id" = ScheduleId, Path, description = "ID of the schedule.")),
    responses((status = 202, description = "The run was started, or skipped because there is no server to patch.", body = Run)))]
async fn run(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<ScheduleId>,
    Query(NoQuery {}): Query<NoQuery>,
    NoBody: NoBody,
) -> Result<impl IntoResponse, ApiError> {
    let run = requests::run(&app, &caller, id).await?;
    let location = format!("/v1/schedules/{id}/runs/{}", run.id);
    let body = queries::schedules::run_to_wire(&app, run).await?;
    Ok((StatusCode::ACCEPTED, [(LOCATION, location)], Json(body)))
}

/// List the runs of a schedule
///
/// With their results, newest first. Includes skipped runs, with the reason.
#[utoipa::path(get, path = "/v1/schedules/{schedule_id}/runs", tag = "Schedules", operation_id = "list_runs",
    params(("schedule_id" = ScheduleId, Path, description = "ID of the schedule."), PageParams),
    responses((status = 200, description = "A page of runs.", body = List<Run>)))]
async fn history(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    url: RequestUrl,
    Id(id): Id<ScheduleId>,
    Query(listing): Query<PageParams>,
) -> Result<Json<List<Run>>, ApiError> {
    let page = page::page(listing.limit, listing.offset);
    let found = queries::schedules::runs(&app, &caller.scope(), id, page).await?;
    Ok(page::list(&url, page, found, |run| run))
}

/// Get a run of a schedule
#[utoipa::path(get, path = "/v1/schedules/{schedule_id}/runs/{run_id}", tag = "Schedules", operation_id = "get_run",
    params(("schedule_id" = ScheduleId, Path, description = "ID of the schedule."),
        ("run_id" = RunId, Path, description = "ID of the run.")),
    responses((status = 200, description = "The run.", body = Run)))]
async fn get_run(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Ids(schedule, id): Ids<ScheduleId, RunId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Json<Run>, ApiError> {
    Ok(Json(queries::schedules::run(&app, &caller.scope(), schedule, id).await?))
}
