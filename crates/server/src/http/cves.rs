//! `/v1/cves`.

use axum::Json;
use axum::extract::State;
use service::queries;
use service::queries::Page;
use utoipa_axum::routes as handlers;
use vocab::{Role, Severity};
use wire::v1::{CveDetail, CveSummary, List};

use crate::app::App;
use crate::http::read::Commas;
use crate::http::{ApiError, Caller, Here, Id, Limit, Offset, Query, Routes, page};

/// How many exposed servers one answer shows, if nobody says.
const SERVERS_SHOWN: u32 = 100;

pub(crate) fn routes() -> Routes {
    Routes::new().add(Role::Viewer, handlers!(list)).add(Role::Viewer, handlers!(get))
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Of this severity: one, or several with commas between them.
    #[serde(default)]
    #[param(value_type = Option<String>, required = false, example = "critical,high")]
    severity: Commas<Severity>,
    /// Whether they are on the list of known exploited vulnerabilities.
    kev: Option<bool>,
    /// Whether they were set aside on all servers that have them.
    suppressed: Option<bool>,
    /// What their number holds: `2026-12`.
    #[param(min_length = 1)]
    q: Option<String>,
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

    pub(crate) fn wanted(self) -> queries::cves::Filter {
        queries::cves::Filter {
            severities: self.severity.0,
            kev: self.kev,
            suppressed: self.suppressed,
            search: self.q,
        }
    }
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ServersPart {
    /// Maximum number of affected servers; 100 if omitted.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 500, default = 100, required = false)]
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

/// List CVEs
///
/// Those that some server of the organization has, as far as the imported feeds know. Order: severity, known exploited ones,
/// servers affected, id. The rows follow scans and feeds by some seconds.
#[utoipa::path(get, path = "/v1/cves", tag = "CVEs", operation_id = "list_cves", params(Filter),
    responses((status = 200, description = "A page of CVEs.", body = List<CveSummary>)))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    here: Here,
    Query(filter): Query<Filter>,
) -> Result<Json<List<CveSummary>>, ApiError> {
    let page = filter.page();
    let paged = queries::cves::list(&app, &caller.scope(), filter.wanted(), page).await?;
    Ok(page::list(&here, page, paged, |cve| cve))
}

/// Get a CVE
///
/// Where the organization is exposed to it: the servers by name, each with the package that has it, the fixed version, and how
/// that was found. `affected_servers` counts all of them on which it was not set aside, `suppressed_servers` the others.
#[utoipa::path(get, path = "/v1/cves/{cve_id}", tag = "CVEs", operation_id = "get_cve",
    params(("cve_id" = String, Path, description = "Its number.", example = "CVE-2026-1234"), ServersPart),
    responses((status = 200, description = "The CVE and the servers that have it.", body = CveDetail)))]
pub(crate) async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<String>,
    Query(part): Query<ServersPart>,
) -> Result<Json<CveDetail>, ApiError> {
    Ok(Json(queries::cves::get(&app, &caller.scope(), &id, part.page()).await?))
}
