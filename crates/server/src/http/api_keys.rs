//! `/v1/api-keys`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::IntoResponse;
use utoipa_axum::routes as handlers;
use vocab::{Environment, KeyId, Role};
use wire::v1::{CreateApiKey, CreatedApiKey, List};

use crate::app::App;
use crate::http::credentials::Listing;
use crate::http::{
    ApiError, Body, Caller, Code, ETag, Here, Id, IfMatch, NoQuery, Query, Routes, page,
};
use service::auth::api_keys::{self as keys, NewKey};
use service::{ServiceError, TRIES, queries};

pub(crate) fn routes() -> Routes {
    Routes::new().add(Role::Admin, handlers!(list, create)).add(Role::Admin, handlers!(get, revoke))
}

/// List API keys
///
/// Newest first. Keys that were revoked or have expired stay in the list.
#[utoipa::path(get, path = "/v1/api-keys", tag = "API keys", operation_id = "list_api_keys",
    params(Listing),
    responses((status = 200, description = "A page of API keys.", body = List<wire::v1::ApiKey>)))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    here: Here,
    Query(listing): Query<Listing>,
) -> Result<Json<List<wire::v1::ApiKey>>, ApiError> {
    let page = listing.page();
    let paged = queries::credentials::api_keys(&app, &caller.scope(), page).await?;
    Ok(page::list(&here, page, paged, |key| key))
}

/// Create an API key
///
/// The key is in this answer as `api_key`, and is never shown again: the service keeps only a hash of it. A caller that is limited
/// to environments makes keys with the same limit or a narrower one.
#[utoipa::path(post, path = "/v1/api-keys", tag = "API keys", operation_id = "create_api_key",
    request_body = CreateApiKey,
    responses((status = 201, description = "The API key was made.", body = CreatedApiKey)))]
async fn create(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<CreateApiKey>,
) -> Result<impl IntoResponse, ApiError> {
    let new = read(body)?;
    within(&caller, new.environments.as_deref())?;
    let (key, text) = keys::create(&app, &caller.actor(), new).await?;
    let location = format!("/v1/api-keys/{}", key.id);
    let etag = ETag(key.generation);
    let body = CreatedApiKey { key: queries::credentials::api_key(key), api_key: text };
    Ok((StatusCode::CREATED, [(LOCATION, location)], etag, Json(body)))
}

/// Get an API key
#[utoipa::path(get, path = "/v1/api-keys/{api_key_id}", tag = "API keys", operation_id = "get_api_key",
    params(("api_key_id" = KeyId, Path, description = "Which API key.")),
    responses((status = 200, description = "The API key, without the key.", body = wire::v1::ApiKey)))]
async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<KeyId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let key = queries::credentials::find_api_key(&app, &caller.scope(), id).await?;
    Ok((ETag(key.generation), Json(queries::credentials::api_key(key))))
}

/// Revoke an API key
///
/// It stops working at once. Revoking a key twice is no error. The last unlimited key with the role `admin` cannot
/// be revoked, as nobody could make another.
#[utoipa::path(delete, path = "/v1/api-keys/{api_key_id}", tag = "API keys", operation_id = "revoke_api_key",
    params(("api_key_id" = KeyId, Path, description = "Which API key.")),
    responses((status = 204, description = "The API key was revoked.")))]
pub(crate) async fn revoke(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<KeyId>,
    Query(NoQuery {}): Query<NoQuery>,
    if_match: IfMatch,
) -> Result<StatusCode, ApiError> {
    for _ in 0..TRIES {
        let key = queries::credentials::find_api_key(&app, &caller.scope(), id).await?;
        if_match.check(key.generation)?;
        within(&caller, key.environments.as_deref())?;
        match keys::revoke(&app, &caller.actor(), &key).await {
            // Another request revoked it at the same time.
            Err(ServiceError::Stale) => {}
            done => return Ok(done.map(|()| StatusCode::NO_CONTENT)?),
        }
    }
    Err(ServiceError::Stale.into())
}

/// Refuses a caller that is limited to environments and reaches for more.
fn within(caller: &Caller, wanted: Option<&[Environment]>) -> Result<(), ApiError> {
    let fits = match (&caller.environments, wanted) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(_), Some(wanted)) => wanted.iter().all(|one| caller.may_touch(Some(one))),
    };
    let detail = "This key is limited to environments, and manages keys within that limit only.";
    if fits { Ok(()) } else { Err(ApiError::new(Code::Forbidden, detail)) }
}

pub(crate) fn read(body: Body<CreateApiKey>) -> Result<NewKey, ApiError> {
    let (body, mut errors) = body.open();
    let name = errors.name("/name", body.name);
    let role = errors.parse("/role", "invalid_role", &body.role);
    let environments = body.environments.map(|texts| {
        if texts.is_empty() {
            errors.note("/environments", "empty", "name at least one, or leave it out");
        }
        errors.parse_all::<Environment>("/environments", "invalid_environment", &texts)
    });
    let expires_at = errors.time("/expires_at", body.expires_at.as_deref());
    match (role, errors.done()) {
        (Some(role), Ok(())) => Ok(NewKey { name, role, environments, expires_at }),
        (_, Err(errors)) => Err(errors),
        (None, Ok(())) => Err(crate::http::problem::internal()),
    }
}
