//! `/v1/enrollment-tokens`.

use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use httpkit::filters::PageParams;
use httpkit::{ApiError, Body, ETag, Id, IfMatch, NoQuery, Query, RequestUrl, page};
use service::agent_install;
use service::auth::caller::Caller;
use service::queries;
use service::requests::enrollment_tokens as requests;
use utoipa_axum::routes as handlers;
use vocab::{Role, TokenId};
use wire::v1::{CreateEnrollmentToken, CreatedEnrollmentToken, EnrollmentToken, List};

use crate::{Api, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new().add(Role::Admin, handlers!(list, create)).add(Role::Admin, handlers!(get, revoke))
}

/// List enrollment tokens
///
/// Newest first. Tokens that were revoked, used up or have expired stay in the list.
#[utoipa::path(get, path = "/v1/enrollment-tokens", tag = "Enrollment tokens",
    operation_id = "list_enrollment_tokens", params(PageParams),
    responses((status = 200, description = "A page of enrollment tokens.", body = List<EnrollmentToken>)))]
async fn list(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    url: RequestUrl,
    Query(listing): Query<PageParams>,
) -> Result<Json<List<EnrollmentToken>>, ApiError> {
    let page = listing.page();
    let paged = queries::credentials::enrollment_tokens(&app, &caller.scope(), page).await?;
    Ok(page::list(&url, page, paged, |token| token))
}

/// Create an enrollment token
///
/// The response contains the token as `token`. It is shown only once. It includes the hash of the
/// service's certificate, which agents verify. The token's environment and tags take precedence
/// over those that an agent sends.
#[utoipa::path(post, path = "/v1/enrollment-tokens", tag = "Enrollment tokens",
    operation_id = "create_enrollment_token", request_body = CreateEnrollmentToken,
    responses((status = 201, description = "The enrollment token was created.", body = CreatedEnrollmentToken)))]
async fn create(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<CreateEnrollmentToken>,
) -> Result<impl IntoResponse, ApiError> {
    let (token, text) = requests::create(&app, &caller, body.into_parts()).await?;
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let url = agent_install::public_url(&app, header("host"), header("x-forwarded-proto"));
    let install_command = url.and_then(|url| agent_install::install_command(&app, &url, &text));
    let location = format!("/v1/enrollment-tokens/{}", token.id);
    let etag = version(&token);
    let body = CreatedEnrollmentToken {
        enrollment_token: queries::credentials::enrollment_token(token),
        token: text,
        install_command,
    };
    Ok((StatusCode::CREATED, [(LOCATION, location)], etag, Json(body)))
}

/// Get an enrollment token
#[utoipa::path(get, path = "/v1/enrollment-tokens/{token_id}", tag = "Enrollment tokens",
    operation_id = "get_enrollment_token",
    params(("token_id" = TokenId, Path, description = "ID of the enrollment token.")),
    responses((status = 200, description = "The enrollment token, without its secret.", body = EnrollmentToken)))]
async fn get(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<TokenId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let token = queries::credentials::find_enrollment_token(&app, &caller.scope(), id).await?;
    Ok((version(&token), Json(queries::credentials::enrollment_token(token))))
}

/// Revoke an enrollment token
///
/// New servers cannot enroll with it; enrolled servers are not affected. Revoking a revoked token
/// succeeds.
#[utoipa::path(delete, path = "/v1/enrollment-tokens/{token_id}", tag = "Enrollment tokens",
    operation_id = "revoke_enrollment_token",
    params(("token_id" = TokenId, Path, description = "ID of the enrollment token.")),
    responses((status = 204, description = "The enrollment token was revoked.")))]
async fn revoke(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<TokenId>,
    Query(NoQuery {}): Query<NoQuery>,
    IfMatch(wanted): IfMatch,
) -> Result<StatusCode, ApiError> {
    requests::revoke(&app, &caller, id, &wanted).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn version(token: &queries::credentials::EnrollmentToken) -> ETag {
    ETag(requests::version(token))
}
