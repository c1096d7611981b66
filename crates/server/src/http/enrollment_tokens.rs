//! `/v1/enrollment-tokens`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::IntoResponse;
use service::queries::credentials::Token;
use utoipa_axum::routes as handlers;
use vocab::{Role, TokenId};
use wire::v1::{CreateEnrollmentToken, CreatedEnrollmentToken, EnrollmentToken, List};

use crate::app::App;
use crate::http::credentials::Listing;
use crate::http::{
    ApiError, Body, Caller, Code, ETag, Here, Id, IfMatch, NoQuery, Query, Routes, page,
};
use service::auth::enrollment_tokens as tokens;
use service::auth::enrollment_tokens::NewToken;
use service::queries;

const USES_MAX: i64 = 1_000_000;
const TAGS_MAX: usize = 50;

pub(crate) fn routes() -> Routes {
    Routes::new().add(Role::Admin, handlers!(list, create)).add(Role::Admin, handlers!(get, revoke))
}

/// List enrolment tokens
///
/// Newest first. Tokens that were revoked, used up or have expired stay in the list.
#[utoipa::path(get, path = "/v1/enrollment-tokens", tag = "Enrolment tokens",
    operation_id = "list_enrollment_tokens", params(Listing),
    responses((status = 200, description = "A page of enrolment tokens.", body = List<EnrollmentToken>)))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    here: Here,
    Query(listing): Query<Listing>,
) -> Result<Json<List<EnrollmentToken>>, ApiError> {
    let page = listing.page();
    let paged = queries::credentials::enrollment_tokens(&app, &caller.scope(), page).await?;
    Ok(page::list(&here, page, paged, |token| token))
}

/// Create an enrolment token
///
/// The token is in this answer as `token`, and is never shown again. It carries the hash of the service's certificate, so that
/// an agent knows whom to trust. Environment and tags of the token win over those that an agent states.
#[utoipa::path(post, path = "/v1/enrollment-tokens", tag = "Enrolment tokens",
    operation_id = "create_enrollment_token", request_body = CreateEnrollmentToken,
    responses((status = 201, description = "The enrolment token was made.", body = CreatedEnrollmentToken)))]
async fn create(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<CreateEnrollmentToken>,
) -> Result<impl IntoResponse, ApiError> {
    let new = read(body)?;
    if !caller.may_touch(new.environment.as_ref()) {
        let detail = "This key is limited to environments: name one of them in `environment`.";
        return Err(ApiError::new(Code::Forbidden, detail));
    }
    let (token, text) = tokens::create(&app, &caller.actor(), new).await?;
    let location = format!("/v1/enrollment-tokens/{}", token.id);
    let etag = version(&token);
    let body = CreatedEnrollmentToken {
        enrollment_token: queries::credentials::enrollment_token(token),
        token: text,
    };
    Ok((StatusCode::CREATED, [(LOCATION, location)], etag, Json(body)))
}

/// Get an enrolment token
#[utoipa::path(get, path = "/v1/enrollment-tokens/{token_id}", tag = "Enrolment tokens",
    operation_id = "get_enrollment_token",
    params(("token_id" = TokenId, Path, description = "Which enrolment token.")),
    responses((status = 200, description = "The enrolment token, without the token.", body = EnrollmentToken)))]
async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<TokenId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let token = queries::credentials::find_enrollment_token(&app, &caller.scope(), id).await?;
    Ok((version(&token), Json(queries::credentials::enrollment_token(token))))
}

/// Revoke an enrolment token
///
/// No server can join with it any more; those that did stay. Revoking a token twice is no error.
#[utoipa::path(delete, path = "/v1/enrollment-tokens/{token_id}", tag = "Enrolment tokens",
    operation_id = "revoke_enrollment_token",
    params(("token_id" = TokenId, Path, description = "Which enrolment token.")),
    responses((status = 204, description = "The enrolment token was revoked.")))]
pub(crate) async fn revoke(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<TokenId>,
    Query(NoQuery {}): Query<NoQuery>,
    if_match: IfMatch,
) -> Result<StatusCode, ApiError> {
    let token = queries::credentials::find_enrollment_token(&app, &caller.scope(), id).await?;
    if_match.check(version(&token).0)?;
    if !caller.may_touch(token.environment.as_ref()) {
        let detail = "This key is limited to environments, and this token is for others.";
        return Err(ApiError::new(Code::Forbidden, detail));
    }
    tokens::revoke(&app, &caller.actor(), &token).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A token's row has no generation: it changes by being used and by being revoked, and both only once forward.
fn version(token: &Token) -> ETag {
    ETag(2 * i64::from(token.uses) + i64::from(token.revoked_at.is_some()))
}

pub(crate) fn read(body: Body<CreateEnrollmentToken>) -> Result<NewToken, ApiError> {
    let (body, mut errors) = body.open();
    let name = body.name.map(|name| errors.name("/name", name)).unwrap_or_default();
    let environment = body
        .environment
        .and_then(|text| errors.parse("/environment", "invalid_environment", &text));
    let tags = body.tags.unwrap_or_default();
    if tags.len() > TAGS_MAX {
        errors.note("/tags", "too_many", format!("must have at most {TAGS_MAX} entries"));
    }
    let tags = errors.parse_all("/tags", "invalid_tag", &tags);
    if body.max_uses.is_some_and(|uses| !(1..=USES_MAX).contains(&uses)) {
        errors.note("/max_uses", "out_of_range", format!("must be from 1 to {USES_MAX}"));
    }
    let uses_max = body.max_uses.and_then(|uses| u32::try_from(uses).ok());
    let expires_at = errors.time("/expires_at", body.expires_at.as_deref());
    errors.done()?;
    Ok(NewToken { name, environment, tags, uses_max, expires_at })
}
