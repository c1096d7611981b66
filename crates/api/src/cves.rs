//! `/v1/cves`.

use axum::extract::State;
use axum::{Extension, Json};
use httpkit::filters::{CveFilter, CveServers};
use httpkit::{ApiError, Id, Query, RequestUrl, page};
use service::auth::caller::Caller;
use service::queries;
use utoipa_axum::routes as handlers;
use vocab::Role;
use wire::v1::{CveDetail, CveSummary, List};

use crate::{Api, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new().add(Role::Viewer, handlers!(list)).add(Role::Viewer, handlers!(get))
}

/// List CVEs
///
/// CVEs that affect at least one server of the organization, according to the imported feeds.
/// Sorted by severity, known exploitation, number of affected servers, then ID. Updated within
/// seconds of a scan or a feed import.
#[utoipa::path(get, path = "/v1/cves", tag = "CVEs", operation_id = "list_cves", params(CveFilter),
    responses((status = 200, description = "A page of CVEs.", body = List<CveSummary>)))]
async fn list(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    url: RequestUrl,
    Query(filter): Query<CveFilter>,
) -> Result<Json<List<CveSummary>>, ApiError> {
    let page = filter.page();
    let paged = queries::cves::list(&app, &caller.scope(), filter.into_filter(), page).await?;
    Ok(page::list(&url, page, paged, |cve| cve))
}

/// Get a CVE
///
/// The affected servers by name, each with the affected package, the fixed version and the source
/// of the finding. `affected_servers` does not count servers on which the CVE is suppressed;
/// `suppressed_servers` does.
#[utoipa::path(get, path = "/v1/cves/{cve_id}", tag = "CVEs", operation_id = "get_cve",
    params(("cve_id" = String, Path, description = "CVE ID.", example = "CVE-2026-1234"), CveServers),
    responses((status = 200, description = "The CVE and the affected servers.", body = CveDetail)))]
async fn get(
    State(app): State<Api>,
    Extension(caller): Extension<Caller>,
    Id(id): Id<String>,
    Query(part): Query<CveServers>,
) -> Result<Json<CveDetail>, ApiError> {
    Ok(Json(queries::cves::get(&app, &caller.scope(), &id, part.page()).await?))
}
