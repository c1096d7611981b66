//! `/v1/patches`.

use axum::extract::State;
use axum::{Extension, Json};
use httpkit::filters::{PatchFilter, PatchServers};
use httpkit::{ApiError, Id, Query, RequestUrl, page};
use service::auth::caller::Caller;
use service::queries;
use utoipa_axum::routes as handlers;
use vocab::Role;
use wire::v1::{List, PatchDetail};

use crate::{Api, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new().add(Role::Viewer, handlers!(list)).add(Role::Viewer, handlers!(get))
}

/// List available updates
///
/// One entry per package with an update pending on at least one server. Sorted by severity, known
/// exploitation, number of affected servers, then name. The severity is the highest of the CVEs
/// that the update fixes, as rated by the distribution in a feed or by the hosts' package managers,
/// and by CVSS only where neither has a rating; `severity_source` names the source. Updated within
/// seconds of a scan or a feed import.
#[utoipa::path(get, path = "/v1/patches", tag = "Patches", operation_id = "list_patches", params(PatchFilter),
    responses((status = 200, description = "A page of patches.", body = List<wire::v1::Patch>)))]
async fn list(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    url: RequestUrl,
    Query(filter): Query<PatchFilter>,
) -> Result<Json<List<wire::v1::Patch>>, ApiError> {
    let page = filter.page();
    let found = queries::patches::list(&app, &caller.scope(), filter.into_filter(), page).await?;
    Ok(page::list(&url, page, found, |patch| patch))
}

/// Get patch details
///
/// The package, the servers with the update pending (by name, at most 500; `affected_servers`
/// counts all of them), and the CVEs that it fixes.
#[utoipa::path(get, path = "/v1/patches/{package_name}", tag = "Patches", operation_id = "get_patch",
    params(("package_name" = String, Path, description = "Name of the package."), PatchServers),
    responses((status = 200, description = "The patch, its servers and its CVEs.", body = PatchDetail)))]
async fn get(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(name): Id<String>,
    Query(part): Query<PatchServers>,
) -> Result<Json<PatchDetail>, ApiError> {
    Ok(Json(queries::patches::get(&app, &caller.scope(), &name, part.page()).await?))
}
