//! `/v1/policies`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use httpkit::filters::ScheduleList;
use httpkit::{ApiError, Body, ETag, Id, IfMatch, NoQuery, Query, RequestUrl, page};
use service::auth::caller::Caller;
use service::queries;
use service::requests::policies as requests;
use utoipa_axum::routes as handlers;
use vocab::{PolicyId, Role};
use wire::v1::{List, PolicyRequest};

use crate::{Api, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .add(Role::Viewer, handlers!(list))
        .add(Role::Operator, handlers!(create))
        .add(Role::Viewer, handlers!(get))
        .add(Role::Operator, handlers!(replace, delete))
}

/// List policies
///
/// All policies of the organization, sorted by name. Returns a page if `limit` is given.
#[utoipa::path(get, path = "/v1/policies", tag = "Policies", operation_id = "list_policies", params(ScheduleList),
    responses((status = 200, description = "The policies.", body = List<wire::v1::Policy>)))]
async fn list(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    url: RequestUrl,
    Query(part): Query<ScheduleList>,
) -> Result<Json<List<wire::v1::Policy>>, ApiError> {
    let (limit, offset) = part.limit_and_offset();
    let (page, found) = queries::policies::list(&app, &caller.scope(), limit, offset).await?;
    Ok(page::list(&url, page, found, |policy| policy))
}

/// Create a policy
///
/// A policy says by when servers must have installed their fixes. The clock of a fix starts when it
/// became available to the server, and ends when it is installed and running. It runs whether or not
/// a policy exists, so a new policy judges the time that has already passed. If several rules match
/// a fix, the strictest one counts. `GET /v1/compliance` shows the result, some seconds later.
///
/// If no server matches `targets`, the policy is saved with a warning in `warnings`.
#[utoipa::path(post, path = "/v1/policies", tag = "Policies", operation_id = "create_policy",
    request_body = PolicyRequest,
    responses((status = 201, description = "The policy was created.", body = wire::v1::Policy)))]
async fn create(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<PolicyRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let created = requests::create(&app, &caller, body.into_parts()).await?;
    let location = format!("/v1/policies/{}", created.id);
    let etag = ETag(created.generation);
    let body = queries::policies::to_wire(&app, &caller.scope(), created).await?;
    Ok((StatusCode::CREATED, [(LOCATION, location)], etag, Json(body)))
}

/// Get a policy
#[utoipa::path(get, path = "/v1/policies/{policy_id}", tag = "Policies", operation_id = "get_policy",
    params(("policy_id" = PolicyId, Path, description = "ID of the policy.")),
    responses((status = 200, description = "The policy.", body = wire::v1::Policy)))]
async fn get(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<PolicyId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let (generation, body) = queries::policies::get(&app, &caller.scope(), id).await?;
    Ok((ETag(generation), Json(body)))
}

/// Update a policy
///
/// Replaces the whole policy: omitted fields get their defaults. All servers are judged by the new
/// rules, for the time that has already passed as well. Servers that breach the policy only because
/// it changed cause no events.
#[utoipa::path(put, path = "/v1/policies/{policy_id}", tag = "Policies", operation_id = "update_policy",
    params(("policy_id" = PolicyId, Path, description = "ID of the policy.")),
    request_body = PolicyRequest,
    responses((status = 200, description = "The updated policy.", body = wire::v1::Policy)))]
async fn replace(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<PolicyId>,
    Query(NoQuery {}): Query<NoQuery>,
    IfMatch(wanted): IfMatch,
    body: Body<PolicyRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let after = requests::replace(&app, &caller, id, body.into_parts(), &wanted).await?;
    let etag = ETag(after.generation);
    let body = queries::policies::to_wire(&app, &caller.scope(), after).await?;
    Ok((etag, Json(body)))
}

/// Delete a policy
///
/// Also deletes its trend. The clocks of the fixes are kept.
#[utoipa::path(delete, path = "/v1/policies/{policy_id}", tag = "Policies", operation_id = "delete_policy",
    params(("policy_id" = PolicyId, Path, description = "ID of the policy.")),
    responses((status = 204, description = "The policy was deleted.")))]
async fn delete(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<PolicyId>,
    Query(NoQuery {}): Query<NoQuery>,
    IfMatch(wanted): IfMatch,
) -> Result<StatusCode, ApiError> {
    requests::delete(&app, &caller, id, &wanted).await?;
    Ok(StatusCode::NO_CONTENT)
}
