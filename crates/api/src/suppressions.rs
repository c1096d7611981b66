//! `/v1/suppressions`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use httpkit::{ApiError, Body, ETag, Id, IfMatch, Limit, NoQuery, Offset, Query, RequestUrl, page};
use service::auth::caller::Caller;
use service::queries::suppressions;
use service::requests::suppressions as requests;
use utoipa_axum::routes as handlers;
use vocab::{Role, SuppressionId};
use wire::v1::{CreateSuppression, List};

use crate::{Api, Routes};

const VERSION: ETag = ETag(requests::VERSION);

pub(crate) fn routes() -> Routes {
    Routes::new()
        .add(Role::Viewer, handlers!(list))
        .add(Role::Operator, handlers!(create))
        .add(Role::Viewer, handlers!(get))
        .add(Role::Operator, handlers!(delete))
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Filter {
    /// Only suppressions of this CVE.
    #[param(min_length = 1, example = "CVE-2026-1234")]
    cve: Option<String>,
    /// Maximum number of results.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    limit: Limit,
    /// Number of results to skip.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

/// List suppressions
///
/// Newest first. Expired ones stay in the list with `active` false. A key that is limited to
/// environments sees those for its environments and those for all servers.
#[utoipa::path(get, path = "/v1/suppressions", tag = "CVEs", operation_id = "list_suppressions", params(Filter),
    responses((status = 200, description = "A page of suppressions.", body = List<wire::v1::Suppression>)))]
async fn list(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    url: RequestUrl,
    Query(filter): Query<Filter>,
) -> Result<Json<List<wire::v1::Suppression>>, ApiError> {
    let page = page::page(filter.limit, filter.offset);
    let paged = suppressions::list(&app, &caller.scope(), filter.cve, page).await?;
    Ok(page::list(&url, page, paged, |row| row))
}

/// Create a suppression
///
/// Suppresses a CVE: everywhere, for one source package, for one environment, or for both. The CVE
/// stays in every list, with the reason, and is counted separately. It counts again when the
/// suppression expires. What a pending update fixes does not change.
#[utoipa::path(post, path = "/v1/suppressions", tag = "CVEs", operation_id = "create_suppression",
    request_body = CreateSuppression,
    responses((status = 201, description = "The CVE is suppressed.", body = wire::v1::Suppression)))]
async fn create(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<CreateSuppression>,
) -> Result<impl IntoResponse, ApiError> {
    let created = requests::create(&app, &caller, body.into_parts()).await?;
    let location = format!("/v1/suppressions/{}", created.id);
    Ok((
        StatusCode::CREATED,
        [(LOCATION, location)],
        VERSION,
        Json(suppressions::to_wire(&app, created)),
    ))
}

/// Get a suppression
#[utoipa::path(get, path = "/v1/suppressions/{suppression_id}", tag = "CVEs", operation_id = "get_suppression",
    params(("suppression_id" = SuppressionId, Path, description = "ID of the suppression.")),
    responses((status = 200, description = "The suppression.", body = wire::v1::Suppression)))]
async fn get(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<SuppressionId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let row = suppressions::find(&app, &caller.scope(), id).await?;
    Ok((VERSION, Json(suppressions::to_wire(&app, row))))
}

/// Delete a suppression
///
/// The CVE is counted again.
#[utoipa::path(delete, path = "/v1/suppressions/{suppression_id}", tag = "CVEs", operation_id = "delete_suppression",
    params(("suppression_id" = SuppressionId, Path, description = "ID of the suppression.")),
    responses((status = 204, description = "The suppression was deleted.")))]
async fn delete(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<SuppressionId>,
    Query(NoQuery {}): Query<NoQuery>,
    IfMatch(wanted): IfMatch,
) -> Result<StatusCode, ApiError> {
    requests::delete(&app, &caller, id, &wanted).await?;
    Ok(StatusCode::NO_CONTENT)
}
