//! `/v1/patches`.

use axum::Json;
use axum::extract::State;
use service::queries;
use service::queries::Page;
use utoipa_axum::routes as handlers;
use vocab::{Role, ServerId, Severity};
use wire::v1::{List, PatchDetail};

use crate::app::App;
use crate::http::read::Commas;
use crate::http::{ApiError, Caller, Here, Id, Limit, Offset, Query, Routes, page};

/// How many affected servers one answer shows, if nobody says.
const SERVERS_SHOWN: u32 = 500;

pub(crate) fn routes() -> Routes {
    Routes::new().add(Role::Viewer, handlers!(list)).add(Role::Viewer, handlers!(get))
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Those that are pending on this server.
    #[param(value_type = Option<ServerId>)]
    server_id: Option<String>,
    /// Of this severity: one, or several with commas between them.
    #[serde(default)]
    #[param(value_type = Option<String>, required = false, example = "critical,high")]
    severity: Commas<Severity>,
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

    pub(crate) fn wanted(self) -> queries::patches::Filter {
        queries::patches::Filter { server: self.server_id, severities: self.severity.0 }
    }
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ServersPart {
    /// Maximum number of affected servers; 500 if omitted.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 500, default = 500, required = false)]
    limit: Option<Limit>,
    /// Number of affected servers to skip.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

impl ServersPart {
    pub(crate) fn page(&self) -> Page {
        page::page(self.limit.unwrap_or(Limit(SERVERS_SHOWN)), self.offset)
    }
}

/// List available updates
///
/// One row a package with an update pending somewhere in the organization. Order: severity, known exploited ones, servers affected, name.
/// How bad an update is comes from the CVEs that it closes where it is pending: what the distribution says of them in the imported
/// feeds or through the hosts' package managers, and CVSS only where it says nothing; `severity_source` names who said it.
/// The rows follow scans and feeds by some seconds.
#[utoipa::path(get, path = "/v1/patches", tag = "Patches", operation_id = "list_patches", params(Filter),
    responses((status = 200, description = "A page of patches.", body = List<wire::v1::Patch>)))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    here: Here,
    Query(filter): Query<Filter>,
) -> Result<Json<List<wire::v1::Patch>>, ApiError> {
    let page = filter.page();
    let found = queries::patches::list(&app, &caller.scope(), filter.wanted(), page).await?;
    Ok(page::list(&here, page, found, |patch| patch))
}

/// Get patch details
///
/// The package, the servers that wait for it (by name, 500 at the most; `affected_servers` counts all), and the CVEs that it fixes.
#[utoipa::path(get, path = "/v1/patches/{package_name}", tag = "Patches", operation_id = "get_patch",
    params(("package_name" = String, Path, description = "The package, as hosts name it."), ServersPart),
    responses((status = 200, description = "The patch and what it concerns.", body = PatchDetail)))]
pub(crate) async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(name): Id<String>,
    Query(part): Query<ServersPart>,
) -> Result<Json<PatchDetail>, ApiError> {
    Ok(Json(queries::patches::get(&app, &caller.scope(), &name, part.page()).await?))
}
