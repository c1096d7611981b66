//! `/v1/servers`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use httpkit::filters::ServerFilter;
use httpkit::{ApiError, Body, ETag, Id, Ids, IfMatch, NoBody, NoQuery, Query, RequestUrl, page};
use service::auth::caller::Caller;
use service::queries;
use service::queries::convert;
use service::requests::servers as requests;
use utoipa_axum::routes as handlers;
use vocab::{Role, ServerId, TaskId};
use wire::v1::{
    Batch, EditServer, EditServers, EditedServers, Explanation, List, PatchServer, Refresh,
    ServerDetail,
};

use crate::{Api, Routes, batches};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .add(Role::Viewer, handlers!(list))
        .add(Role::Viewer, handlers!(get))
        .add(Role::Viewer, handlers!(explain_update))
        .add(Role::Viewer, handlers!(explain_cve))
        .add(Role::Operator, handlers!(edit))
        .add(Role::Operator, handlers!(edit_many))
        .add(Role::Admin, handlers!(remove))
        .add(Role::Operator, handlers!(refresh))
        .add(Role::Viewer, handlers!(get_refresh))
        .add(Role::Operator, handlers!(patch))
        .add(Role::Admin, handlers!(release))
}

/// List servers
///
/// Sorted by name unless `sort` is given, then by ID. A key that is limited to certain
/// environments sees only the servers in these.
#[utoipa::path(get, path = "/v1/servers", tag = "Servers", operation_id = "list_servers", params(ServerFilter),
    responses((status = 200, description = "A page of servers.", body = List<wire::v1::Server>)))]
async fn list(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    url: RequestUrl,
    Query(filter): Query<ServerFilter>,
) -> Result<Json<List<wire::v1::Server>>, ApiError> {
    let page = filter.page();
    let (wanted, sort) = filter.into_filter();
    let found = queries::servers::list(&app, &caller.scope(), wanted, sort, page).await?;
    Ok(page::list(&url, page, found, |server| server))
}

/// Get a server
///
/// With its packages, pending updates and CVEs: those from feeds, and those that its pending
/// updates fix.
#[utoipa::path(get, path = "/v1/servers/{server_id}", tag = "Servers", operation_id = "get_server",
    params(("server_id" = ServerId, Path, description = "ID of the server.")),
    responses((status = 200, description = "The server.", body = ServerDetail)))]
async fn get(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<ServerId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let (generation, detail) = queries::servers::detail(&app, &caller.scope(), id).await?;
    Ok((ETag(generation), Json(detail)))
}

/// Explain an update
///
/// Why a pending update of an installed package is not installed on this server: where it stands,
/// what prevents it, what to do about it, and the run that will install it. A package without a
/// pending update is explained by its CVEs. 404 if the package is not installed.
#[utoipa::path(get, path = "/v1/servers/{server_id}/updates/{package_name}", tag = "Servers",
    operation_id = "explain_update",
    params(("server_id" = ServerId, Path, description = "ID of the server."),
        ("package_name" = String, Path, description = "Name of the package.", example = "openssl")),
    responses((status = 200, description = "The explanation.", body = Explanation)))]
async fn explain_update(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Ids(id, package): Ids<ServerId, String>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Json<Explanation>, ApiError> {
    Ok(Json(queries::explain::update(&app, &caller.scope(), id, &package).await?))
}

/// Explain a CVE
///
/// Why a CVE is not fixed on this server, over all affected packages. 404 if the CVE does not affect
/// the server.
#[utoipa::path(get, path = "/v1/servers/{server_id}/cves/{cve_id}", tag = "Servers",
    operation_id = "explain_cve",
    params(("server_id" = ServerId, Path, description = "ID of the server."),
        ("cve_id" = String, Path, description = "CVE ID.", example = "CVE-2026-1234")),
    responses((status = 200, description = "The explanation.", body = Explanation)))]
async fn explain_cve(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Ids(id, cve): Ids<ServerId, String>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Json<Explanation>, ApiError> {
    Ok(Json(queries::explain::cve(&app, &caller.scope(), id, &cve).await?))
}

/// Edit a server
///
/// Changes the environment or the tags. The values at enrollment are only the initial ones: agents
/// do not change them later. Batches that were already created keep their servers; schedules use the
/// new values from their next run on. An API key that is limited to certain environments cannot move
/// a server out of them.
#[utoipa::path(patch, path = "/v1/servers/{server_id}", tag = "Servers", operation_id = "edit_server",
    params(("server_id" = ServerId, Path, description = "ID of the server.")), request_body = EditServer,
    responses((status = 200, description = "The server after the change.", body = wire::v1::Server)))]
async fn edit(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<ServerId>,
    Query(NoQuery {}): Query<NoQuery>,
    IfMatch(wanted): IfMatch,
    body: Body<EditServer>,
) -> Result<impl IntoResponse, ApiError> {
    let (generation, server) =
        requests::edit(&app, &caller, id, body.into_parts(), &wanted).await?;
    Ok((ETag(generation), Json(server)))
}

/// Edit several servers
///
/// Changes the environment or the tags of all servers that `targets` matches, and returns how many
/// changed. Servers are changed one after the other: after an error, some may have changed.
#[utoipa::path(post, path = "/v1/servers/edit", tag = "Servers", operation_id = "edit_servers",
    request_body = EditServers,
    responses((status = 200, description = "How many servers changed.", body = EditedServers)))]
async fn edit_many(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<EditServers>,
) -> Result<Json<EditedServers>, ApiError> {
    Ok(Json(requests::edit_many(&app, &caller, body.into_parts()).await?))
}

/// Remove a server
///
/// The server disappears from all lists, and its unfinished tasks end as `canceled`. The agent
/// stays installed, learns of the removal at its next contact and carries out no further orders.
/// Enrolling the host again creates a new server.
#[utoipa::path(delete, path = "/v1/servers/{server_id}", tag = "Servers", operation_id = "remove_server",
    params(("server_id" = ServerId, Path, description = "ID of the server.")),
    responses((status = 204, description = "The server was removed.")))]
async fn remove(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<ServerId>,
    Query(NoQuery {}): Query<NoQuery>,
    IfMatch(wanted): IfMatch,
) -> Result<StatusCode, ApiError> {
    requests::remove(&app, &caller, id, &wanted).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Refresh a server
///
/// The agent scans its packages now. `Location` shows the progress. While a refresh is in progress,
/// further requests return the same one. 409 `server_offline` if the agent is offline.
#[utoipa::path(post, path = "/v1/servers/{server_id}/refresh", tag = "Servers", operation_id = "refresh_server",
    params(("server_id" = ServerId, Path, description = "ID of the server.")),
    responses((status = 202, description = "The refresh was requested.", body = Refresh)))]
async fn refresh(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<ServerId>,
    Query(NoQuery {}): Query<NoQuery>,
    NoBody: NoBody,
) -> Result<impl IntoResponse, ApiError> {
    let asked = requests::refresh(&app, &caller, id).await?;
    let location = format!("/v1/servers/{id}/refreshes/{}", asked.id);
    Ok((StatusCode::ACCEPTED, [(LOCATION, location)], Json(convert::refresh(asked))))
}

/// Get a refresh
#[utoipa::path(get, path = "/v1/servers/{server_id}/refreshes/{refresh_id}", tag = "Servers",
    operation_id = "get_refresh",
    params(("server_id" = ServerId, Path, description = "ID of the server."),
        ("refresh_id" = TaskId, Path, description = "ID of the refresh.")),
    responses((status = 200, description = "The refresh.", body = Refresh)))]
async fn get_refresh(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Ids(server, id): Ids<ServerId, TaskId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Json<Refresh>, ApiError> {
    Ok(Json(queries::servers::refresh(&app, &caller.scope(), server, id).await?))
}

/// Install updates on a server
///
/// Creates a batch of one server. `packages` or `security_only` is required: nothing is installed
/// by default.
#[utoipa::path(post, path = "/v1/servers/{server_id}/patch", tag = "Servers", operation_id = "patch_server",
    params(("server_id" = ServerId, Path, description = "ID of the server.")), request_body = PatchServer,
    responses((status = 202, description = "The batch was accepted.", body = Batch)))]
async fn patch(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<ServerId>,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<PatchServer>,
) -> Result<impl IntoResponse, ApiError> {
    let created = requests::patch(&app, &caller, id, body.into_parts()).await?;
    batches::accepted(&app, created).await
}

/// Release a server from quarantine
///
/// A server whose identity was used by two hosts gets no orders until it is released. After the
/// release, the host that makes contact first is the server; if the other one makes contact as
/// well, the server is quarantined again.
#[utoipa::path(post, path = "/v1/servers/{server_id}/release", tag = "Servers", operation_id = "release_server",
    params(("server_id" = ServerId, Path, description = "ID of the server.")),
    responses((status = 200, description = "The server gets orders again.", body = wire::v1::Server)))]
async fn release(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<ServerId>,
    Query(NoQuery {}): Query<NoQuery>,
    NoBody: NoBody,
) -> Result<impl IntoResponse, ApiError> {
    let (generation, body) = requests::release(&app, &caller, id).await?;
    Ok((ETag(generation), Json(body)))
}
