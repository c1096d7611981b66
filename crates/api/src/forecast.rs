//! `/v1/forecast`: what the schedules will do.

use axum::extract::State;
use axum::{Extension, Json};
use httpkit::{ApiError, Body, NoQuery, Query};
use service::auth::caller::Caller;
use service::requests::forecast;
use utoipa_axum::routes as handlers;
use vocab::Role;
use wire::v1::{Forecast, ForecastRequest};

use crate::{Api, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new().add(Role::Viewer, handlers!(create_forecast))
}

/// Forecast the schedules
///
/// Simulates the schedules, freezes and batches of the organization over its servers, with the
/// durations of past tasks and the hours at which each server is usually online. Returns the
/// servers that no schedule covers, the runs whose window is too short, the reboots of each night,
/// and when each server is patched. With `changes`, returns the same with schedules and freezes
/// that do not exist, and what differs.
///
/// The forecast is about the updates that are pending now. `assumptions` says what else it assumes.
/// It changes nothing. API keys that are limited to environments get 403, because servers of other
/// environments affect when a server has its turn. 409 while too many forecasts
/// are computed.
#[utoipa::path(post, path = "/v1/forecast", tag = "Forecast", operation_id = "create_forecast",
    request_body(content = ForecastRequest, example = json!({"days": 30, "changes": {"schedules": [
        {"name": "Nightly", "cron": "0 3 * * *", "timezone": "Europe/Berlin", "targets": {"tags": ["web"]},
         "options": {"max_parallel": 10, "window_minutes": 180}}]}})),
    responses((status = 200, description = "The forecast.", body = Forecast)))]
async fn create_forecast(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<ForecastRequest>,
) -> Result<Json<Forecast>, ApiError> {
    Ok(Json(forecast::forecast(&app, &caller, body.into_parts()).await?))
}
