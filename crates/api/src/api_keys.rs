//! `/v1/api-keys`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use httpkit::filters::PageParams;
use httpkit::{ApiError, Body, ETag, Id, IfMatch, NoQuery, Query, RequestUrl, page};
use service::auth::caller::Caller;
use service::queries;
use service::requests::api_keys as requests;
use utoipa_axum::routes as handlers;
use vocab::{KeyId, Role};
use wire::v1::{CreateApiKey, CreatedApiKey, List};

use crate::{Api, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new().add(Role::Admin, handlers!(list, create)).add(Role::Admin, handlers!(get, revoke))
}

/// List API keys
///
/// Newest first. Keys that were revoked or have expired stay in the list.
#[utoipa::path(get, path = "/v1/api-keys", tag = "API keys", operation_id = "list_api_keys",
    params(PageParams),
    responses((status = 200, description = "A page of API keys.", body = List<wire::v1::ApiKey>)))]
async fn list(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    url: RequestUrl,
    Query(listing): Query<PageParams>,
) -> Result<Json<List<wire::v1::ApiKey>>, ApiError> {
    let page = listing.page();
    let paged = queries::credentials::api_keys(&app, &caller.scope(), page).await?;
    Ok(page::list(&url, page, paged, |key| key))
}

/// Create an API key
///
/// The response contains the key as `api_key`. It is shown only once: the service stores a hash. A
/// caller that is limited to certain environments can create keys only for these.
#[utoipa::path(post, path = "/v1/api-keys", tag = "API keys", operation_id = "create_api_key",
    request_body = CreateApiKey,
    responses((status = 201, description = "The API key was created.", body = CreatedApiKey)))]
async fn create(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<CreateApiKey>,
) -> Result<impl IntoResponse, ApiError> {
    let (key, text) = requests::create(&app, &caller, body.into_parts()).await?;
    let location = format!("/v1/api-keys/{}", key.id);
    let etag = ETag(key.generation);
    let body = CreatedApiKey { key: queries::credentials::api_key(key), api_key: text };
    Ok((StatusCode::CREATED, [(LOCATION, location)], etag, Json(body)))
}

/// Get an API key
#[utoipa::path(get, path = "/v1/api-keys/{api_key_id}", tag = "API keys", operation_id = "get_api_key",
    params(("api_key_id" = KeyId, Path, description = "ID of the API key.")),
    responses((status = 200, description = "The API key, without its secret.", body = wire::v1::ApiKey)))]
async fn get(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<KeyId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let key = queries::credentials::find_api_key(&app, &caller.scope(), id).await?;
    Ok((ETag(key.generation), Json(queries::credentials::api_key(key))))
}

/// Revoke an API key
///
/// It stops working immediately. Revoking a revoked key succeeds. The last `admin` key that is not
/// limited to certain environments cannot be revoked, because no key could create another one.
#[utoipa::path(delete, path = "/v1/api-keys/{api_key_id}", tag = "API keys", operation_id = "revoke_api_key",
    params(("api_key_id" = KeyId, Path, description = "ID of the API key.")),
    responses((status = 204, description = "The API key was revoked.")))]
async fn revoke(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<KeyId>,
    Query(NoQuery {}): Query<NoQuery>,
    IfMatch(wanted): IfMatch,
) -> Result<StatusCode, ApiError> {
    requests::revoke(&app, &caller, id, &wanted).await?;
    Ok(StatusCode::NO_CONTENT)
}
