//! `/v1/compliance`.

use axum::extract::State;
use axum::{Extension, Json};
use httpkit::filters::{ComplianceFilter, ComplianceReportFilter, ComplianceServers};
use httpkit::{ApiError, Id, NoQuery, Query, RequestUrl, page};
use service::auth::caller::Caller;
use service::queries::compliance;
use utoipa_axum::routes as handlers;
use vocab::{Role, ServerId};
use wire::v1::{Compliance, List, ServerCompliance, SignedReport};

use crate::{Api, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .add(Role::Viewer, handlers!(list))
        .add(Role::Viewer, handlers!(servers))
        .add(Role::Viewer, handlers!(report))
        .add(Role::Viewer, handlers!(of_server))
}

/// Count servers by compliance
///
/// One row per policy and environment, by the name of the policy. Every server that a policy applies
/// to is in exactly one of four states. `unknown` servers (not scanned, no feed, or the last scan is
/// too old) are never counted as compliant. The counts are kept current in the background, some
/// seconds behind.
#[utoipa::path(get, path = "/v1/compliance", tag = "Policies", operation_id = "list_compliance", params(ComplianceFilter),
    responses((status = 200, description = "A page of counts.", body = List<Compliance>)))]
async fn list(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    url: RequestUrl,
    Query(filter): Query<ComplianceFilter>,
) -> Result<Json<List<Compliance>>, ApiError> {
    let page = filter.page();
    let paged = compliance::list(&app, &caller.scope(), &filter.wanted(), page).await?;
    Ok(page::list(&url, page, paged, |row| row))
}

/// List the servers behind a number
///
/// The servers that a policy applies to, the earliest due date first, then those without one.
#[utoipa::path(get, path = "/v1/compliance/servers", tag = "Policies", operation_id = "list_compliance_servers", params(ComplianceServers),
    responses((status = 200, description = "A page of servers.", body = List<ServerCompliance>)))]
async fn servers(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    url: RequestUrl,
    Query(filter): Query<ComplianceServers>,
) -> Result<Json<List<ServerCompliance>>, ApiError> {
    let page = filter.page();
    let ComplianceServers { policy, environment, state, .. } = filter;
    let scope = caller.scope();
    let paged = compliance::servers(&app, &scope, policy, environment, state, page).await?;
    Ok(page::list(&url, page, paged, |row| row))
}

/// Create a compliance report
///
/// The policies with their rules and figures, the servers in breach, the servers whose state is
/// unknown, and the exceptions with their reasons: everything that the caller may see. Signed with a
/// key of the installation: `fleetmend compliance verify` checks it.
#[utoipa::path(get, path = "/v1/compliance/report", tag = "Policies", operation_id = "get_compliance_report", params(ComplianceReportFilter),
    responses((status = 200, description = "The report and its signature.", body = SignedReport)))]
async fn report(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Query(filter): Query<ComplianceReportFilter>,
) -> Result<Json<SignedReport>, ApiError> {
    Ok(Json(compliance::report(&app, &caller.scope(), &filter.wanted()).await?))
}

/// Show the compliance of a server
///
/// Where the server stands with each policy that applies to it, by the name of the policy.
#[utoipa::path(get, path = "/v1/servers/{server_id}/compliance", tag = "Policies", operation_id = "list_server_compliance",
    params(("server_id" = ServerId, Path, description = "ID of the server.")),
    responses((status = 200, description = "The policies of the server.", body = List<ServerCompliance>)))]
async fn of_server(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<ServerId>,
    url: RequestUrl,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Json<List<ServerCompliance>>, ApiError> {
    let items = compliance::of_server(&app, &caller.scope(), id).await?;
    let total = items.len() as u64;
    let limit = u32::try_from(total).unwrap_or(u32::MAX).max(1);
    let page = service::queries::Page { limit, offset: 0 };
    Ok(page::list(&url, page, service::queries::Paged { items, total }, |row| row))
}
