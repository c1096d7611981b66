//! `/v1/summary`: counts over the organization.

use axum::extract::State;
use axum::{Extension, Json};
use httpkit::{ApiError, NoQuery, Query};
use service::auth::caller::Caller;
use service::queries;
use utoipa_axum::routes as handlers;
use vocab::Role;
use wire::v1::FleetSummary;

use crate::{Api, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new().add(Role::Viewer, handlers!(summary))
}

/// Get the summary
///
/// Counts for an overview. Those of patches and reboots are updated about a second after a scan;
/// `counted_at` is the time of the last update.
#[utoipa::path(get, path = "/v1/summary", tag = "Summary", operation_id = "get_summary",
    responses((status = 200, description = "The summary of the organization.", body = FleetSummary)))]
pub(crate) async fn summary(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Json<FleetSummary>, ApiError> {
    Ok(Json(queries::summary::fleet(&app, &caller.scope()).await?))
}
