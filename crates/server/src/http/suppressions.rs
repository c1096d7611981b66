//! `/v1/suppressions`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::IntoResponse;
use service::queries::suppressions;
use utoipa_axum::routes as handlers;
use vocab::{Role, SuppressionId};
use wire::v1::{CreateSuppression, List};

use crate::app::App;
use crate::http::{
    ApiError, Body, Caller, Code, ETag, Here, Id, IfMatch, Limit, NoQuery, Offset, Query, Routes,
    page,
};
use service::commands::suppressions::{self as commands, NewSuppression};

const REASON_CHARS_MAX: usize = 1_000;
const CVE_CHARS_MAX: usize = 100;
/// A suppression never changes.
const VERSION: ETag = ETag(1);

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
    /// Those of this CVE.
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
/// Newest first. Those whose time is over stay in the list, with `active` false. A key that is limited to environments sees
/// those that are about them or about all servers.
#[utoipa::path(get, path = "/v1/suppressions", tag = "CVEs", operation_id = "list_suppressions", params(Filter),
    responses((status = 200, description = "A page of suppressions.", body = List<wire::v1::Suppression>)))]
async fn list(
    State(app): State<App>,
    caller: Caller,
    here: Here,
    Query(filter): Query<Filter>,
) -> Result<Json<List<wire::v1::Suppression>>, ApiError> {
    let page = page::page(filter.limit, filter.offset);
    let paged = suppressions::list(&app, &caller.scope(), filter.cve, page).await?;
    Ok(page::list(&here, page, paged, |row| row))
}

/// Create a suppression
///
/// Sets a CVE aside: everywhere, in one source package, in one environment, or in both. It stays in every list, with the reason, and
/// is counted apart; when the time is over, it counts again by itself. What a pending update fixes does not change.
#[utoipa::path(post, path = "/v1/suppressions", tag = "CVEs", operation_id = "create_suppression",
    request_body = CreateSuppression,
    responses((status = 201, description = "The CVE was set aside.", body = wire::v1::Suppression)))]
async fn create(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<CreateSuppression>,
) -> Result<impl IntoResponse, ApiError> {
    let new = read(body)?;
    if !caller.may_touch(new.environment.as_ref()) {
        let detail = "This key is limited to environments: name one of them in `environment`.";
        return Err(ApiError::new(Code::Forbidden, detail));
    }
    let made = commands::create(&app, &caller.actor(), new).await?;
    let location = format!("/v1/suppressions/{}", made.id);
    Ok((
        StatusCode::CREATED,
        [(LOCATION, location)],
        VERSION,
        Json(suppressions::shown(&app, made)),
    ))
}

/// Get a suppression
#[utoipa::path(get, path = "/v1/suppressions/{suppression_id}", tag = "CVEs", operation_id = "get_suppression",
    params(("suppression_id" = SuppressionId, Path, description = "Which suppression.")),
    responses((status = 200, description = "The suppression.", body = wire::v1::Suppression)))]
async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<SuppressionId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let row = suppressions::find(&mut *app.db.read().await?, &caller.scope(), id).await?;
    Ok((VERSION, Json(suppressions::shown(&app, row))))
}

/// Delete a suppression
///
/// The CVE counts again.
#[utoipa::path(delete, path = "/v1/suppressions/{suppression_id}", tag = "CVEs", operation_id = "delete_suppression",
    params(("suppression_id" = SuppressionId, Path, description = "Which suppression.")),
    responses((status = 204, description = "The suppression was taken back.")))]
async fn delete(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<SuppressionId>,
    Query(NoQuery {}): Query<NoQuery>,
    if_match: IfMatch,
) -> Result<StatusCode, ApiError> {
    let row = suppressions::find(&mut *app.db.read().await?, &caller.scope(), id).await?;
    if_match.check(VERSION.0)?;
    if !caller.may_touch(row.environment.as_ref()) {
        let detail =
            "This key is limited to environments, and this suppression is about all servers.";
        return Err(ApiError::new(Code::Forbidden, detail));
    }
    commands::delete(&app, &caller.actor(), &row).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn read(body: Body<CreateSuppression>) -> Result<NewSuppression, ApiError> {
    let (body, mut errors) = body.open();
    if !is_id(&body.cve) {
        errors.note("/cve", "invalid_cve", "must be a CVE id, like CVE-2026-1234");
    }
    let package = body.package.map(|name| errors.name("/package", name));
    let environment = body
        .environment
        .and_then(|text| errors.parse("/environment", "invalid_environment", &text));
    let reason = errors.line("/reason", body.reason, REASON_CHARS_MAX);
    let expires_at = errors.time("/expires_at", body.expires_at.as_deref());
    errors.done()?;
    Ok(NewSuppression { cve: body.cve, package, environment, reason, expires_at })
}

/// Where nobody has given a CVE, an advisory's own id stands for one.
fn is_id(text: &str) -> bool {
    text.len() <= CVE_CHARS_MAX
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._:-".contains(c))
}
