//! `/v1/preview`: what a batch would do.

use axum::extract::State;
use axum::{Extension, Json};
use httpkit::{ApiError, Body, NoQuery, Query};
use service::auth::caller::Caller;
use service::queries::preview::SHOWN_MAX;
use service::requests::preview;
use utoipa_axum::routes as handlers;
use vocab::Role;
use wire::v1::{Preview, PreviewRequest};

use crate::{Api, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new().add(Role::Viewer, handlers!(preview_order))
}

/// Preview a batch
///
/// What a batch would do: servers, order and earliest start times, updates and reboots. Changes
/// nothing. Send `server_ids` for a batch like that of `POST /v1/batches`, or `targets` for one
/// like that of a schedule.
#[utoipa::path(post, path = "/v1/preview", tag = "Preview", operation_id = "preview_order",
    request_body(content = PreviewRequest, example = json!({"server_ids": ["srv_01jcqk3m8ye0fr5cq0k6s8v2xw"],
        "security_only": true, "reboot": "if_required", "stagger_minutes": 10})),
    responses((status = 200, description = "What the batch would do.", body = Preview)))]
async fn preview_order(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<PreviewRequest>,
) -> Result<Json<Preview>, ApiError> {
    Ok(Json(preview::preview_order(&app, &caller, body.into_parts(), SHOWN_MAX).await?))
}
