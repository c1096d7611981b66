//! `/v1/webhooks`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use httpkit::filters::{CommaSeparated, DeliveryStateParam};
use httpkit::{
    ApiError, Body, ETag, Id, Ids, IfMatch, Limit, NoQuery, Offset, Query, RequestUrl, page,
};
use service::auth::caller::Caller;
use service::queries::webhooks as queries;
use service::queries::{Page, Paged};
use service::requests::webhooks as requests;
use utoipa_axum::routes as handlers;
use vocab::{DeliveryId, Role, WebhookId};
use wire::v1::{
    CreateWebhook, Delivery, DeliveryDetail, EditWebhook, List, RotateWebhook, Webhook,
    WebhookTest, WebhookWithSecret,
};

use crate::{Api, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .add(Role::Admin, handlers!(list))
        .add(Role::Admin, handlers!(create))
        .add(Role::Admin, handlers!(get))
        .add(Role::Admin, handlers!(edit))
        .add(Role::Admin, handlers!(delete))
        .add(Role::Admin, handlers!(test))
        .add(Role::Admin, handlers!(rotate))
        .add(Role::Admin, handlers!(deliveries))
        .add(Role::Admin, handlers!(delivery))
        .add(Role::Admin, handlers!(redeliver))
}

/// List webhooks
///
/// By name, all on one page: an organization has at most 100.
#[utoipa::path(get, path = "/v1/webhooks", tag = "Webhooks", operation_id = "list_webhooks",
    responses((status = 200, description = "The webhooks.", body = List<Webhook>)))]
async fn list(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    url: RequestUrl,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Json<List<Webhook>>, ApiError> {
    let items = queries::list(&app, &caller.scope()).await?;
    let total = items.len() as u64;
    let page = Page { limit: 100, offset: 0 };
    Ok(page::list(&url, page, Paged { items, total }, |row| row))
}

/// Create a webhook
///
/// Events from now on are sent to the URL, signed as [Standard
/// Webhooks](https://www.standardwebhooks.com) describes; the secret is in the response and is not
/// shown again. Events about the same subject arrive in order, and each at least once: a receiver
/// that may get an event twice compares `webhook-id`, which is the ID of the event. A response
/// other than 2xx, or none within 15 seconds, is a failure: the event is sent again after 5 s,
/// 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h and 24 h. Redirects are not followed. After five days
/// without a success the webhook is disabled. With the formats `slack` and `teams`, several events
/// may share a message.
#[utoipa::path(post, path = "/v1/webhooks", tag = "Webhooks", operation_id = "create_webhook",
    request_body = CreateWebhook,
    responses((status = 201, description = "The webhook and its signing secret.", body = WebhookWithSecret)))]
async fn create(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<CreateWebhook>,
) -> Result<impl IntoResponse, ApiError> {
    let (row, secret) = requests::create(&app, &caller, body.into_parts()).await?;
    let location = format!("/v1/webhooks/{}", row.id);
    let version = ETag(row.generation);
    let webhook = queries::to_wire(&app, row, 0);
    let created = WebhookWithSecret { webhook, secret: secret.text() };
    Ok((StatusCode::CREATED, [(LOCATION, location)], version, Json(created)))
}

/// Get a webhook
#[utoipa::path(get, path = "/v1/webhooks/{webhook_id}", tag = "Webhooks", operation_id = "get_webhook",
    params(("webhook_id" = WebhookId, Path, description = "ID of the webhook.")),
    responses((status = 200, description = "The webhook.", body = Webhook)))]
async fn get(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<WebhookId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let (version, webhook) = queries::get(&app, &caller.scope(), id).await?;
    Ok((ETag(version), Json(webhook)))
}

/// Change a webhook
///
/// Omitted fields stay unchanged. A webhook that is enabled again gets the events from now on;
/// deliveries that were pending have failed.
#[utoipa::path(patch, path = "/v1/webhooks/{webhook_id}", tag = "Webhooks", operation_id = "edit_webhook",
    params(("webhook_id" = WebhookId, Path, description = "ID of the webhook.")),
    request_body = EditWebhook,
    responses((status = 200, description = "The webhook after the change.", body = Webhook)))]
async fn edit(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<WebhookId>,
    Query(NoQuery {}): Query<NoQuery>,
    IfMatch(wanted): IfMatch,
    body: Body<EditWebhook>,
) -> Result<impl IntoResponse, ApiError> {
    requests::edit(&app, &caller, id, body.into_parts(), &wanted).await?;
    let (version, webhook) = queries::get(&app, &caller.scope(), id).await?;
    Ok((ETag(version), Json(webhook)))
}

/// Delete a webhook
///
/// Its log of deliveries is deleted as well.
#[utoipa::path(delete, path = "/v1/webhooks/{webhook_id}", tag = "Webhooks", operation_id = "delete_webhook",
    params(("webhook_id" = WebhookId, Path, description = "ID of the webhook.")),
    responses((status = 204, description = "The webhook was deleted.")))]
async fn delete(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<WebhookId>,
    Query(NoQuery {}): Query<NoQuery>,
    IfMatch(wanted): IfMatch,
) -> Result<StatusCode, ApiError> {
    requests::delete(&app, &caller, id, &wanted).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Test a webhook
///
/// Sends an event of the type `webhook.test` once, and returns what the receiver answered. Works
/// for disabled webhooks, too.
#[utoipa::path(post, path = "/v1/webhooks/{webhook_id}/test", tag = "Webhooks", operation_id = "test_webhook",
    params(("webhook_id" = WebhookId, Path, description = "ID of the webhook.")),
    responses((status = 200, description = "The result.", body = WebhookTest)))]
async fn test(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<WebhookId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Json<WebhookTest>, ApiError> {
    let response = requests::test(&app, &caller, id).await?;
    Ok(Json(WebhookTest {
        delivered: response.is_delivered(),
        response_status: response.status,
        response_body: response.body,
        error: response.error,
        duration_ms: response.duration_ms,
    }))
}

/// Rotate the signing secret
///
/// The new secret is in the response and is not shown again. Until the end of the overlap, requests
/// carry two signatures, so that receivers can be changed one after the other.
#[utoipa::path(post, path = "/v1/webhooks/{webhook_id}/rotate", tag = "Webhooks", operation_id = "rotate_webhook",
    params(("webhook_id" = WebhookId, Path, description = "ID of the webhook.")),
    request_body = RotateWebhook,
    responses((status = 200, description = "The webhook and its new secret.", body = WebhookWithSecret)))]
async fn rotate(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<WebhookId>,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<RotateWebhook>,
) -> Result<impl IntoResponse, ApiError> {
    let (row, secret) = requests::rotate(&app, &caller, id, body.into_parts()).await?;
    let (version, webhook) = queries::get(&app, &caller.scope(), row.id).await?;
    Ok((ETag(version), Json(WebhookWithSecret { webhook, secret: secret.text() })))
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DeliveryParams {
    /// Only deliveries in one of these states, separated by commas.
    #[serde(default)]
    #[param(value_type = Option<String>, required = false, example = "pending,failed")]
    state: CommaSeparated<DeliveryStateParam>,
    /// Maximum number of results.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    limit: Limit,
    /// Number of results to skip.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

/// List the deliveries of a webhook
///
/// Newest first, kept for 30 days: at most 20,000 that succeeded and 20,000 that failed.
#[utoipa::path(get, path = "/v1/webhooks/{webhook_id}/deliveries", tag = "Webhooks", operation_id = "list_deliveries",
    params(("webhook_id" = WebhookId, Path, description = "ID of the webhook."), DeliveryParams),
    responses((status = 200, description = "A page of deliveries.", body = List<Delivery>)))]
async fn deliveries(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    url: RequestUrl,
    Id(id): Id<WebhookId>,
    Query(params): Query<DeliveryParams>,
) -> Result<Json<List<Delivery>>, ApiError> {
    let page = page::page(params.limit, params.offset);
    let states: Vec<_> = params.state.0.into_iter().map(|state| state.0).collect();
    let paged = queries::deliveries(&app, &caller.scope(), id, &states, page).await?;
    Ok(page::list(&url, page, paged, |row| row))
}

/// Get a delivery
///
/// With the body of its request.
#[utoipa::path(get, path = "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}", tag = "Webhooks", operation_id = "get_delivery",
    params(("webhook_id" = WebhookId, Path, description = "ID of the webhook."),
        ("delivery_id" = DeliveryId, Path, description = "ID of the delivery.")),
    responses((status = 200, description = "The delivery.", body = DeliveryDetail)))]
async fn delivery(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Ids(webhook, id): Ids<WebhookId, DeliveryId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Json<DeliveryDetail>, ApiError> {
    Ok(Json(queries::delivery(&app, &caller.scope(), webhook, id).await?))
}

/// Send a delivery again
///
/// As soon as possible, with all of its attempts, whatever its state.
#[utoipa::path(post, path = "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver", tag = "Webhooks", operation_id = "redeliver",
    params(("webhook_id" = WebhookId, Path, description = "ID of the webhook."),
        ("delivery_id" = DeliveryId, Path, description = "ID of the delivery.")),
    responses((status = 202, description = "The delivery is in the queue.", body = Delivery)))]
async fn redeliver(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Ids(webhook, id): Ids<WebhookId, DeliveryId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let row = requests::redeliver(&app, &caller, webhook, id).await?;
    Ok((StatusCode::ACCEPTED, Json(queries::delivery_to_wire(row))))
}
