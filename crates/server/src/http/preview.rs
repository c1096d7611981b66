//! `/v1/preview`: what an order would do.

use axum::Json;
use axum::extract::State;
use service::queries::preview::{self, SHOWN_MAX};
use utoipa_axum::routes as handlers;
use vocab::Role;
use wire::v1::{Preview, PreviewRequest};

use crate::app::App;
use crate::http::{ApiError, Body, Caller, NoQuery, Query, Routes, batches, read};

pub(crate) fn routes() -> Routes {
    Routes::new().add(Role::Viewer, handlers!(preview_order))
}

/// Preview an order
///
/// What it would do: on which servers, in which order and when by the pace alone, which updates, which reboots. Nothing is changed.
/// Give `server_ids` for an order like `POST /v1/batches`, or `targets` for one like a schedule's.
#[utoipa::path(post, path = "/v1/preview", tag = "Preview", operation_id = "preview_order",
    request_body(content = PreviewRequest, example = json!({"server_ids": ["srv_01jcqk3m8ye0fr5cq0k6s8v2xw"],
        "security_only": true, "reboot": "if_required", "stagger_minutes": 10})),
    responses((status = 200, description = "What the order would do.", body = Preview)))]
pub(crate) async fn preview_order(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<PreviewRequest>,
) -> Result<Json<Preview>, ApiError> {
    of_order(&app, &caller, body, SHOWN_MAX).await.map(Json)
}

/// The same with no more than so many servers one by one.
pub(crate) async fn of_order(
    app: &App,
    caller: &Caller,
    body: Body<PreviewRequest>,
    shown: usize,
) -> Result<Preview, ApiError> {
    let (body, mut errors) = body.open();
    let options = match body.targets.is_some() {
        true => read::options(&mut errors, "", body.options()),
        false => read::order(&mut errors, body.options()),
    };
    let (mut named, mut selector) = (Vec::new(), None);
    match (&body.server_ids, &body.targets) {
        (Some(ids), None) => named = batches::existing(app, caller, &mut errors, ids).await?,
        (None, Some(targets)) => selector = read::targets(&mut errors, targets),
        (Some(_), Some(_)) | (None, None) => {
            errors.note(
                "",
                "one_of",
                "say which servers: `server_ids` or `targets`, one of the two",
            );
        }
    }
    errors.done()?;
    match selector {
        Some(selector) => {
            Ok(preview::of_targets(app, &caller.scope(), &options, &selector, shown).await?)
        }
        None => Ok(preview::of_servers(app, &caller.scope(), &options, &named, shown).await?),
    }
}
