//! `/v1/servers`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::IntoResponse;
use service::queries::Page;
use service::queries::servers::Sort;
use utoipa_axum::routes as handlers;
use vocab::{Environment, OsFilter, Role, ServerId, Status, Tag, TaskId};
use wire::v1::{Batch, List, PatchServer, Refresh, ServerDetail};

use crate::app::App;
use crate::http::read;
use crate::http::read::Commas;
use crate::http::{
    ApiError, Body, Caller, ETag, Here, Id, Ids, IfMatch, Limit, NoBody, NoQuery, Offset, Query,
    Routes, batches, page, show,
};
use service::commands::batches::NewRollout;
use service::projections::findings;
use service::{ServiceError, TRIES, queries};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .add(Role::Viewer, handlers!(list))
        .add(Role::Viewer, handlers!(get))
        .add(Role::Admin, handlers!(remove))
        .add(Role::Operator, handlers!(refresh))
        .add(Role::Viewer, handlers!(get_refresh))
        .add(Role::Operator, handlers!(patch))
        .add(Role::Admin, handlers!(release))
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Whether they are heard from.
    status: Option<Status>,
    /// The environment that they are in.
    #[param(value_type = Option<Environment>)]
    environment: Option<Environment>,
    /// The system that they run, by id or by id and version: `debian`, `Debian 12`.
    #[param(value_type = Option<OsFilter>)]
    os: Option<OsFilter>,
    /// What their name holds, in upper or lower case.
    #[param(min_length = 1)]
    q: Option<String>,
    /// The tags that they carry, all of them, with commas between them.
    #[serde(default)]
    #[param(value_type = Option<String>, required = false, example = "web,team:shop")]
    tag: Commas<Tag>,
    /// Whether they should be rebooted.
    reboot_required: Option<bool>,
    /// In which order; by name if left out.
    #[param(inline)]
    sort: Option<SortBy>,
    /// Maximum number of results.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    limit: Limit,
    /// Number of results to skip.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

impl Filter {
    pub(crate) fn page(&self) -> Page {
        page::page(self.limit, self.offset)
    }

    pub(crate) fn wanted(self) -> (queries::servers::Filter, Sort) {
        let sort = match self.sort.unwrap_or_default() {
            SortBy::Hostname => Sort::Hostname,
            SortBy::LastSeen => Sort::LastSeen,
            SortBy::SecurityUpdates => Sort::SecurityUpdates,
            SortBy::Newest => Sort::Newest,
        };
        let wanted = queries::servers::Filter {
            status: self.status,
            environment: self.environment,
            os: self.os,
            search: self.q,
            tags: self.tag.0,
            reboot_required: self.reboot_required,
        };
        (wanted, sort)
    }
}

/// In which order servers are listed. Every order ends with the id.
#[derive(Debug, Clone, Copy, Default, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
enum SortBy {
    /// By name.
    #[default]
    Hostname,
    /// Those longest not heard from first.
    LastSeen,
    /// Those with the most pending security updates first.
    SecurityUpdates,
    /// Those that joined last first.
    Newest,
}

/// List servers
///
/// By name, unless `sort` says otherwise; then by id. A key that is limited to environments sees the servers in them.
#[utoipa::path(get, path = "/v1/servers", tag = "Servers", operation_id = "list_servers", params(Filter),
    responses((status = 200, description = "A page of servers.", body = List<wire::v1::Server>)))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    here: Here,
    Query(filter): Query<Filter>,
) -> Result<Json<List<wire::v1::Server>>, ApiError> {
    let page = filter.page();
    let (wanted, sort) = filter.wanted();
    let found = queries::servers::list(&app, &caller.scope(), wanted, sort, page).await?;
    Ok(page::list(&here, page, found, |server| server))
}

/// Get a server
///
/// With its packages, what is pending for each, and its CVEs: those that feeds know of, and those that its pending updates fix.
#[utoipa::path(get, path = "/v1/servers/{server_id}", tag = "Servers", operation_id = "get_server",
    params(("server_id" = ServerId, Path, description = "Which server.")),
    responses((status = 200, description = "The server with all that is known of it.", body = ServerDetail)))]
async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ServerId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let (generation, detail) = queries::servers::detail(&app, &caller.scope(), id).await?;
    Ok((ETag(generation), Json(detail)))
}

/// Remove a server
///
/// It leaves every list, and its unfinished tasks end as `canceled`. Its agent stays installed, is told so at its next
/// contact, and executes nothing any more. Enrolling again makes a new server.
#[utoipa::path(delete, path = "/v1/servers/{server_id}", tag = "Servers", operation_id = "remove_server",
    params(("server_id" = ServerId, Path, description = "Which server.")),
    responses((status = 204, description = "The server was removed.")))]
pub(crate) async fn remove(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ServerId>,
    Query(NoQuery {}): Query<NoQuery>,
    if_match: IfMatch,
) -> Result<StatusCode, ApiError> {
    // A scan that arrives at this moment changes the server, and is no reason to refuse.
    for _ in 0..TRIES {
        let seen = queries::servers::find(&mut *app.db.read().await?, &caller.scope(), id).await?;
        if_match.check(seen.generation)?;
        match service::commands::servers::remove(&app, &caller.actor(), &seen).await {
            Err(ServiceError::Stale) => {}
            done => return Ok(done.map(|()| StatusCode::NO_CONTENT)?),
        }
    }
    Err(ServiceError::Stale.into())
}

/// Refresh a server
///
/// Its agent makes contact and looks at its packages at once. `Location` shows when that is done. While one refresh is
/// under way, another is answered with the same one. 409 `server_offline` if the agent is not heard from.
#[utoipa::path(post, path = "/v1/servers/{server_id}/refresh", tag = "Servers", operation_id = "refresh_server",
    params(("server_id" = ServerId, Path, description = "Which server.")),
    responses((status = 202, description = "The agent was asked.", body = Refresh)))]
pub(crate) async fn refresh(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ServerId>,
    Query(NoQuery {}): Query<NoQuery>,
    NoBody: NoBody,
) -> Result<impl IntoResponse, ApiError> {
    queries::servers::find(&mut *app.db.read().await?, &caller.scope(), id).await?;
    let last_seen = app.gateway().last_seen(id);
    let asked = service::commands::refreshes::request(&app, &caller.actor(), id, last_seen).await?;
    let location = format!("/v1/servers/{id}/refreshes/{}", asked.id);
    Ok((StatusCode::ACCEPTED, [(LOCATION, location)], Json(show::refresh(asked))))
}

/// Get a refresh
#[utoipa::path(get, path = "/v1/servers/{server_id}/refreshes/{refresh_id}", tag = "Servers",
    operation_id = "get_refresh",
    params(("server_id" = ServerId, Path, description = "Which server."),
        ("refresh_id" = TaskId, Path, description = "Which refresh.")),
    responses((status = 200, description = "Where it stands.", body = Refresh)))]
async fn get_refresh(
    State(app): State<App>,
    caller: Caller,
    Ids(server, id): Ids<ServerId, TaskId>,
    Query(NoQuery {}): Query<NoQuery>,
) -> Result<Json<Refresh>, ApiError> {
    Ok(Json(queries::servers::refresh(&app, &caller.scope(), server, id).await?))
}

/// Install updates on a server
///
/// A batch of this one server. Give `packages`, or `security_only`, or both: nothing is patched by omission.
#[utoipa::path(post, path = "/v1/servers/{server_id}/patch", tag = "Servers", operation_id = "patch_server",
    params(("server_id" = ServerId, Path, description = "Which server.")), request_body = PatchServer,
    responses((status = 202, description = "The batch was accepted.", body = Batch)))]
async fn patch(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ServerId>,
    Query(NoQuery {}): Query<NoQuery>,
    body: Body<PatchServer>,
) -> Result<impl IntoResponse, ApiError> {
    queries::servers::find(&mut *app.db.read().await?, &caller.scope(), id).await?;
    let (body, mut errors) = body.open();
    let options = read::order(&mut errors, body.options());
    errors.done()?;
    let new = NewRollout {
        org: caller.org,
        options,
        servers: vec![id],
        starts_at: app.clock.now(),
        origin: caller.origin(),
        started_by: caller.who.to_string(),
        run_id: None,
    };
    let made = service::commands::batches::create(&app, new).await?;
    batches::accepted(&app, made).await
}

/// Release a server from quarantine
///
/// A server whose identity was used by two hosts gets no orders until somebody decides. After this, of the two the one that makes
/// contact first is the server; if the other one does too, both are in quarantine again.
#[utoipa::path(post, path = "/v1/servers/{server_id}/release", tag = "Servers", operation_id = "release_server",
    params(("server_id" = ServerId, Path, description = "Which server.")),
    responses((status = 200, description = "The server gets orders again.", body = wire::v1::Server)))]
pub(crate) async fn release(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<ServerId>,
    Query(NoQuery {}): Query<NoQuery>,
    NoBody: NoBody,
) -> Result<impl IntoResponse, ApiError> {
    for _ in 0..TRIES {
        let seen = queries::servers::find(&mut *app.db.read().await?, &caller.scope(), id).await?;
        match service::commands::servers::release(&app, &caller.actor(), &seen).await {
            Err(ServiceError::Stale) => {}
            done => {
                let row = done?;
                let mut reader = app.db.read().await?;
                let rows = std::slice::from_ref(&row);
                let assessed = findings::assessed(&mut reader, caller.org, rows).await?;
                let etag = ETag(row.generation);
                return Ok((etag, Json(show::server(&app, row, &assessed[0]))));
            }
        }
    }
    Err(ServiceError::Stale.into())
}
