//! `/v1/agents`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use httpkit::{ApiError, Body, NoQuery, Query};
use service::auth::caller::Caller;
use service::{queries, requests};
use utoipa_axum::routes as handlers;
use vocab::Role;
use wire::v1::{AgentUpgrades, Agents, UpgradeAgents};

use crate::{Api, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new().add(Role::Viewer, handlers!(get)).add(Role::Admin, handlers!(upgrade))
}

/// Get the agents
///
/// The agents that the service carries, and how many servers have which version.
#[utoipa::path(get, path = "/v1/agents", tag = "Agents", operation_id = "get_agents",
    responses((status = 200, description = "The agents of the fleet.", body = Agents)))]
async fn get(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Json<Agents>, ApiError> {
    Ok(Json(queries::agents::agents(&app, &caller.scope()).await?))
}

/// Upgrade agents
///
/// Each agent downloads the release that the service carries, verifies it, and replaces itself. If
/// the new agent does not reach the service within two minutes, the previous one is restored. An
/// agent that is working on another order upgrades itself afterwards. `agent_upgrade` of a server
/// shows the result. A request that no agent has carried out within 24 hours times out.
#[utoipa::path(post, path = "/v1/agents/upgrade", tag = "Agents", operation_id = "upgrade_agents",
    request_body = UpgradeAgents,
    responses((status = 202, description = "The upgrades were requested.", body = AgentUpgrades)))]
async fn upgrade(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<UpgradeAgents>,
) -> Result<(StatusCode, Json<AgentUpgrades>), ApiError> {
    let done = requests::agents::upgrade(&app, &caller, body.into_parts()).await?;
    Ok((StatusCode::ACCEPTED, Json(done)))
}
