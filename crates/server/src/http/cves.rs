//! `/v1/cves`.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use axum::Json;
use axum::extract::State;
use store::findings::{self, Cve};
use store::{Conn, Page, Paged, advisories};
use utoipa_axum::routes as handlers;
use vocab::{Digest, Role, Severity};
use wire::v1::{CveDetail, CveSummary, ExposedServer, List, SeverityCounts};

use crate::app::App;
use crate::http::read::Commas;
use crate::http::{ApiError, Caller, Here, Id, Limit, Offset, Query, Routes, page, show};
use service::projections::findings::{Aside, Exposed, alike_by, one_of_server, within};
use service::projections::patches::{severity, severity_order};

/// How many exposed servers one answer shows, if nobody says.
const SERVERS_SHOWN: u32 = 100;
/// No number is longer; a longer search finds nothing.
const Q_CHARS_MAX: usize = 200;

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
    /// How many of the exposed servers at the most; 100 if left out.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 500, default = 100, required = false)]
    limit: Option<Limit>,
    /// How many of them to pass over.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
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
    let page = page::page(filter.limit, filter.offset);
    let wanted = findings::Filter {
        severities: filter.severity.0.iter().copied().map(severity_order).collect(),
        kev: filter.kev,
        suppressed: filter.suppressed,
        q: filter.q.map(|q| {
            let q = q.replace('\0', "\u{fffd}").to_uppercase();
            q.chars().take(Q_CHARS_MAX).collect()
        }),
    };
    let mut reader = app.db.snapshot().await?;
    let paged = match caller.environments.as_deref() {
        None => findings::list(&mut reader, caller.org, &wanted, page).await?,
        Some(environments) => {
            part(within(&app, &mut reader, caller.org, environments).await?, &wanted, page)
        }
    };
    let shown = summaries(&mut reader, paged.items).await?;
    Ok(page::list(&here, page, Paged { items: shown, total: paged.total }, |shown| shown))
}

/// How many are open of each severity, and the first few: known exploited ones before all others.
pub(crate) async fn worst(
    app: &App,
    caller: &Caller,
    few: u32,
) -> Result<(SeverityCounts, Vec<CveSummary>), ApiError> {
    let mut reader = app.db.snapshot().await?;
    let mut counts = SeverityCounts::default();
    for some in findings::tally(&mut reader, caller.org).await? {
        let count = match severity(some.severity_order) {
            Severity::Critical => &mut counts.critical,
            Severity::High => &mut counts.high,
            Severity::Medium => &mut counts.medium,
            Severity::Low => &mut counts.low,
            Severity::Unknown => &mut counts.unknown,
        };
        *count = count.saturating_add(u32::try_from(some.cves).unwrap_or(u32::MAX));
    }
    let mut rows = Vec::new();
    for kev in [true, false] {
        let limit = few.saturating_sub(u32::try_from(rows.len()).unwrap_or(few));
        let wanted =
            findings::Filter { kev: Some(kev), suppressed: Some(false), ..Default::default() };
        if limit > 0 {
            let page = Page { limit, offset: 0 };
            rows.extend(findings::list(&mut reader, caller.org, &wanted, page).await?.items);
        }
    }
    Ok((counts, summaries(&mut reader, rows).await?))
}

fn part(mut rows: Vec<Cve>, wanted: &findings::Filter, page: Page) -> Paged<Cve> {
    let findings::Filter { severities, kev, q, suppressed } = wanted;
    rows.retain(|row| {
        (severities.is_empty() || severities.contains(&row.severity_order))
            && kev.is_none_or(|kev| kev == (row.kev_order == 0))
            && suppressed.is_none_or(|suppressed| suppressed == (row.servers_order == 0))
            && q.as_ref().is_none_or(|q| row.id.contains(q.as_str()))
    });
    Paged::part_of(rows, page)
}

async fn summaries(conn: &mut Conn, rows: Vec<Cve>) -> Result<Vec<CveSummary>, ApiError> {
    let ids: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let epss = advisories::epss(conn, &ids).await?;
    let shown = rows.iter().map(|row| CveSummary {
        id: row.id.clone(),
        severity: severity(row.severity_order),
        severity_source: row.severity_source.clone(),
        cvss: row.score(),
        kev: row.kev_order == 0,
        epss: epss.get(&row.id).map(domain::advisory::Epss::score),
        affected_servers: row.servers_order.unsigned_abs(),
        suppressed_servers: row.suppressed,
        packages: row.packages.clone(),
        published: row.published,
    });
    Ok(shown.collect())
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
    let page = page::page(part.limit.unwrap_or(Limit(SERVERS_SHOWN)), part.offset);
    let environments = caller.environments.as_deref();
    let mut reader = app.db.snapshot().await?;
    let row = match environments {
        None => findings::of_ids(&mut reader, caller.org, std::slice::from_ref(&id)).await?.pop(),
        Some(within_these) => {
            let rows = within(&app, &mut reader, caller.org, within_these).await?;
            rows.into_iter().find(|row| row.id == id)
        }
    };
    let row = row.ok_or_else(|| ApiError::not_found("cve", &id))?;
    let exposed = findings::servers(&mut reader, caller.org, &id, environments, page).await?;
    let mut servers = Vec::with_capacity(exposed.len());
    // Servers that are alike have it alike.
    let mut alike: BTreeMap<Option<Digest>, Vec<Exposed>> = BTreeMap::new();
    let aside = Aside::read(&mut reader, caller.org, app.clock.now()).await?;
    for server in exposed {
        let found = match alike.entry(alike_by(&server)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(one_of_server(&mut reader, &server, &row).await?),
        };
        let environment = server.environment.as_ref();
        for cve in found.iter().map(|one| show::cve(one, &aside, environment)) {
            servers.push(ExposedServer {
                server_id: server.id,
                status: show::status(&app, Some(server.last_seen_at)),
                hostname: server.hostname.clone(),
                environment: server.environment.clone(),
                package: cve.package,
                installed_version: cve.installed_version,
                fixed_version: cve.fixed_version,
                state: cve.state,
                fix: cve.fix,
                found: cve.found,
                suppressed: cve.suppressed,
            });
        }
    }
    let cve = summaries(&mut reader, vec![row]).await?.pop();
    let cve = cve.ok_or_else(|| ApiError::not_found("cve", &id))?;
    let url = format!("https://www.cve.org/CVERecord?id={id}");
    Ok(Json(CveDetail { cve, url, servers }))
}
