//! `/v1/patches`.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use axum::Json;
use axum::extract::State;
use store::findings::{self, Cve};
use store::listings::Kind;
use store::patches::{self, Patch};
use store::{Conn, Page, Paged, advisories, server_list};
use utoipa_axum::routes as handlers;
use vocab::{Digest, Pending, Role, ServerId, Severity};
use wire::v1::{AffectedServer, List, PatchCve, PatchDetail};

use crate::app::App;
use crate::http::read::Commas;
use crate::http::{ApiError, Caller, Here, Id, Limit, Offset, Query, Routes, page, show};
use service::commands::servers::entries;
use service::projections::findings as matched;
use service::projections::patches::{flaw_severity, of_server, severity, severity_order, within};

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
    /// How many at the most.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    limit: Limit,
    /// How many to pass over.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ServersPart {
    /// How many of the affected servers at the most; 500 if left out.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 500, default = 500, required = false)]
    limit: Option<Limit>,
    /// How many of them to pass over.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
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
    let page = page::page(filter.limit, filter.offset);
    let severities: Vec<i64> = filter.severity.0.iter().copied().map(severity_order).collect();
    let mut reader = app.db.snapshot().await?;
    let rows = match (&filter.server_id, caller.environments.as_deref()) {
        (None, None) => {
            let paged = patches::list(&mut reader, caller.org, &severities, page).await?;
            return Ok(page::list(&here, page, paged, show::patch));
        }
        (None, Some(environments)) => within(&app, &mut reader, caller.org, environments).await?.0,
        (Some(id), environments) => {
            // An id that is none belongs to no server, and neither does one of another organization.
            let no_server = || ApiError::not_found("server", id);
            let id: ServerId = id.parse().map_err(|_| no_server())?;
            let server = service::queries::servers::find(&mut reader, &caller.scope(), id).await?;
            let mut rows = of_server(&app, &mut reader, &server).await?;
            if let Some(environments) = environments {
                let names: Vec<String> = rows.into_iter().map(|row| row.package_name).collect();
                rows = within(&app, &mut reader, caller.org, environments).await?.0;
                rows.retain(|row| names.contains(&row.package_name));
            }
            rows
        }
    };
    Ok(page::list(&here, page, part(rows, &severities, page), show::patch))
}

fn part(mut rows: Vec<Patch>, severities: &[i64], page: Page) -> Paged<Patch> {
    rows.retain(|row| severities.is_empty() || severities.contains(&row.severity_order));
    Paged::part_of(rows, page)
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
    let page =
        Page { limit: part.limit.map_or(SERVERS_SHOWN, |limit| limit.0), offset: part.offset.0 };
    let environments = caller.environments.as_deref();
    let mut reader = app.db.snapshot().await?;
    let row = match environments {
        None => patches::get(&mut reader, caller.org, &name).await?,
        Some(environments) => {
            let rows = within(&app, &mut reader, caller.org, environments).await?.0;
            let found = rows.into_iter().find(|row| row.package_name == name);
            found.ok_or_else(|| ApiError::not_found("patch", &name))?
        }
    };
    let all = server_list::count(&mut reader, caller.org, &server_list::Filter::default()).await?;
    let waiting = patches::servers(&mut reader, caller.org, &row, all, environments, page).await?;
    let mut lists: BTreeMap<Digest, Vec<Pending>> = BTreeMap::new();
    let mut servers = Vec::with_capacity(waiting.len());
    for server in waiting {
        let Some(set) = server.update_set else { continue };
        let list = match lists.entry(set) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let mut list: Vec<Pending> =
                    entries(&mut reader, caller.org, Kind::Updates, set).await?;
                list.retain(|update| update.name == name);
                new.insert(list)
            }
        };
        let Some(update) = list.first() else { continue };
        servers.push(AffectedServer {
            server_id: server.id,
            status: show::status(&app, Some(server.last_seen_at)),
            hostname: server.hostname,
            environment: server.environment,
            installed_version: update.installed.clone(),
            available_version: update.candidate.clone(),
            blocked_by: update.blocked_by,
        });
    }
    let updates: Vec<Pending> = lists.into_values().flatten().collect();
    let cve_details = flaws(&app, &mut reader, &caller, &row, &updates).await?;
    Ok(Json(PatchDetail { patch: show::patch(row), servers, cve_details }))
}

/// The flaws that a patch fixes: as the feeds know them, else as the hosts' package managers do.
async fn flaws(
    app: &App,
    conn: &mut Conn,
    caller: &Caller,
    row: &Patch,
    updates: &[Pending],
) -> Result<Vec<PatchCve>, ApiError> {
    let ids: BTreeSet<&str> = row.cves.iter().map(String::as_str).collect();
    let known = match caller.environments.as_deref() {
        None => findings::of_ids(conn, caller.org, &row.cves).await?,
        Some(environments) => {
            let mut all = matched::within(app, conn, caller.org, environments).await?;
            all.retain(|cve| ids.contains(cve.id.as_str()));
            all
        }
    };
    let known: BTreeMap<&str, &Cve> = known.iter().map(|cve| (cve.id.as_str(), cve)).collect();
    let exploited = advisories::exploited(conn, &ids).await?;
    let shown = row.cves.iter().map(|id| {
        let found = known.get(id.as_str());
        let told = flaw_severity(updates, id);
        let is_word = |cve: &&&Cve| {
            cve.severity_source.is_some() && !(cve.is_scored() && told != Severity::Unknown)
        };
        PatchCve {
            severity: found.filter(is_word).map_or(told, |cve| severity(cve.severity_order)),
            cvss: found.and_then(|cve| cve.score()),
            kev: exploited.contains_key(id),
            url: format!("https://www.cve.org/CVERecord?id={id}"),
            id: id.clone(),
        }
    });
    Ok(shown.collect())
}
