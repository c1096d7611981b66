//! `/v1/summary`: the organization in numbers.

use axum::Json;
use axum::extract::State;
use service::queries;
use utoipa_axum::routes as handlers;
use vocab::Role;
use wire::v1::FleetSummary;

use crate::app::App;
use crate::http::{ApiError, Caller, NoQuery, Query, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new().add(Role::Viewer, handlers!(summary))
}

/// Get the summary
///
/// Counts for an overview. Those of patches and reboots follow the scans by about a second: `counted_at` says as of when they are.
#[utoipa::path(get, path = "/v1/summary", tag = "Summary", operation_id = "get_summary",
    responses((status = 200, description = "The organization in numbers.", body = FleetSummary)))]
pub(crate) async fn summary(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Json<FleetSummary>, ApiError> {
    Ok(Json(queries::summary::fleet(&app, &caller.scope()).await?))
}
