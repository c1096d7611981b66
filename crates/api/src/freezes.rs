//! `/v1/freezes`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use httpkit::filters::ScheduleList;
use httpkit::{ApiError, Body, ETag, Id, IfMatch, NoQuery, Query, RequestUrl, page};
use service::auth::caller::Caller;
use service::queries;
use service::requests::freezes as requests;
use utoipa_axum::routes as handlers;
use vocab::{FreezeId, Role};
use wire::v1::{FreezeRequest, List};

use crate::{Api, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .add(Role::Viewer, handlers!(list))
        .add(Role::Operator, handlers!(create))
        .add(Role::Viewer, handlers!(get))
        .add(Role::Operator, handlers!(replace, delete))
}

/// List freezes
///
/// All freezes of the organization, sorted by name, including those that have ended. Returns a page
/// if `limit` is given.
#[utoipa::path(get, path = "/v1/freezes", tag = "Freezes", operation_id = "list_freezes", params(ScheduleList),
    responses((status = 200, description = "The freezes.", body = List<wire::v1::Freeze>)))]
async fn list(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    url: RequestUrl,
    Query(part): Query<ScheduleList>,
) -> Result<Json<List<wire::v1::Freeze>>, ApiError> {
    let (limit, offset) = part.limit_and_offset();
    let (page, found) = queries::freezes::list(&app, &caller.scope(), limit, offset).await?;
    Ok(page::list(&url, page, found, |freeze| freeze))
}

/// Create a freeze
///
/// While a freeze is active, no task starts on the servers that match `targets`. Tasks that have
/// started continue. A freeze is either one-off (`ends_at`, and `starts_at` unless it starts now) or
/// recurring (`cron`, `duration_minutes`, and `timezone` unless it is UTC). A recurring freeze lasts
/// its duration of elapsed time, also when the clocks change.
///
/// If no server matches `targets`, the freeze is saved with a warning in `warnings`.
#[utoipa::path(post, path = "/v1/freezes", tag = "Freezes", operation_id = "create_freeze",
    request_body = FreezeRequest,
    responses((status = 201, description = "The freeze was created.", body = wire::v1::Freeze)))]
async fn create(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<FreezeRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let created = requests::create(&app, &caller, body.into_parts()).await?;
    let location = format!("/v1/freezes/{}", created.id);
    let etag = ETag(created.generation);
    let body = queries::freezes::to_wire(&app, &caller.scope(), created).await?;
    Ok((StatusCode::CREATED, [(LOCATION, location)], etag, Json(body)))
}

/// Get a freeze
#[utoipa::path(get, path = "/v1/freezes/{freeze_id}", tag = "Freezes", operation_id = "get_freeze",
    params(("freeze_id" = FreezeId, Path, description = "ID of the freeze.")),
    responses((status = 200, description = "The freeze.", body = wire::v1::Freeze)))]
async fn get(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<FreezeId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let (generation, body) = queries::freezes::get(&app, &caller.scope(), id).await?;
    Ok((ETag(generation), Json(body)))
}

/// Update a freeze
///
/// Replaces the whole freeze: omitted fields get their defaults. It takes effect immediately:
/// servers that are not frozen any more start what was waiting.
#[utoipa::path(put, path = "/v1/freezes/{freeze_id}", tag = "Freezes", operation_id = "update_freeze",
    params(("freeze_id" = FreezeId, Path, description = "ID of the freeze.")),
    request_body = FreezeRequest,
    responses((status = 200, description = "The updated freeze.", body = wire::v1::Freeze)))]
async fn replace(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<FreezeId>,
    Query(NoQuery {}): Query<NoQuery>,
    IfMatch(wanted): IfMatch,
    body: Body<FreezeRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let after = requests::replace(&app, &caller, id, body.into_parts(), &wanted).await?;
    let etag = ETag(after.generation);
    let body = queries::freezes::to_wire(&app, &caller.scope(), after).await?;
    Ok((etag, Json(body)))
}

/// Delete a freeze
///
/// Ends it immediately: servers that no other freeze covers start what was waiting.
#[utoipa::path(delete, path = "/v1/freezes/{freeze_id}", tag = "Freezes", operation_id = "delete_freeze",
    params(("freeze_id" = FreezeId, Path, description = "ID of the freeze.")),
    responses((status = 204, description = "The freeze was deleted.")))]
async fn delete(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<FreezeId>,
    Query(NoQuery {}): Query<NoQuery>,
    IfMatch(wanted): IfMatch,
) -> Result<StatusCode, ApiError> {
    requests::delete(&app, &caller, id, &wanted).await?;
    Ok(StatusCode::NO_CONTENT)
}
