//! CVEs that servers of the organization have, and the affected servers.

use async_recursion::async_recursion as boxed;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use store::findings::{self, Cve};
use store::{Conn, Page, Paged, StoreError, advisories};
use vocab::{Digest, Line, Severity};
use wire::v1::{CveDetail, CveSummary, ExposedServer, SeverityCounts};

use super::{Scope, convert};
use crate::projections::findings::{
    ActiveSuppressions, ScoredFinding, count_key, cves_in_environments, server_findings_of_cve,
};
use crate::projections::patches::{severity_at, severity_order};
use crate::{App, Result};

/// No CVE id is longer.
const SEARCH_CHARS_MAX: usize = 200;

#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Any of these severities; all if empty.
    pub severities: Vec<Severity>,
    /// Whether they are known to be exploited.
    pub kev: Option<bool>,
    /// Whether they are suppressed on all affected servers.
    pub suppressed: Option<bool>,
    /// Part of the CVE id.
    pub search: Option<String>,
}

/// A page of the CVEs: sorted by severity, then known exploited ones first, then by affected
/// servers and id.
#[boxed]
pub async fn list(
    app: &App,
    scope: &Scope,
    filter: Filter,
    page: Page,
) -> Result<Paged<CveSummary>> {
    let wanted = findings::Filter {
        severities: filter.severities.into_iter().map(severity_order).collect(),
        kev: filter.kev,
        suppressed: filter.suppressed,
        q: filter.search.map(|q| {
            let q = q.replace('\0', "\u{fffd}").to_uppercase();
            q.chars().take(SEARCH_CHARS_MAX).collect()
        }),
    };
    let mut reader = app.db.snapshot().await?;
    let paged = match scope.environments.as_deref() {
        None => findings::list(&mut reader, scope.org, &wanted, page).await?,
        Some(environments) => filter_page(
            cves_in_environments(app, &mut reader, scope.org, environments).await?,
            &wanted,
            page,
        ),
    };
    let items = summaries(&mut reader, paged.items).await?;
    Ok(Paged { items, total: paged.total })
}

/// The number of open CVEs by severity, and the `max_rows` most important ones, starting with those
/// that are known to be exploited.
#[boxed]
pub async fn most_important(
    app: &App,
    scope: &Scope,
    max_rows: u32,
) -> Result<(SeverityCounts, Vec<CveSummary>)> {
    let mut reader = app.db.snapshot().await?;
    let mut counts = SeverityCounts::default();
    for some in findings::count_by_severity(&mut reader, scope.org).await? {
        let count = match severity_at(some.severity_order) {
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
        let limit = max_rows.saturating_sub(u32::try_from(rows.len()).unwrap_or(max_rows));
        let wanted =
            findings::Filter { kev: Some(kev), suppressed: Some(false), ..Default::default() };
        if limit > 0 {
            let page = Page { limit, offset: 0 };
            rows.extend(findings::list(&mut reader, scope.org, &wanted, page).await?.items);
        }
    }
    Ok((counts, summaries(&mut reader, rows).await?))
}

fn filter_page(mut rows: Vec<Cve>, wanted: &findings::Filter, page: Page) -> Paged<Cve> {
    let findings::Filter { severities, kev, q, suppressed } = wanted;
    rows.retain(|row| {
        (severities.is_empty() || severities.contains(&row.severity_order))
            && kev.is_none_or(|kev| kev == (row.kev_order == 0))
            && suppressed.is_none_or(|suppressed| suppressed == (row.servers_order == 0))
            && q.as_ref().is_none_or(|q| row.id.contains(q.as_str()))
    });
    Paged::paginate(rows, page)
}

async fn summaries(conn: &mut Conn, rows: Vec<Cve>) -> Result<Vec<CveSummary>> {
    let ids: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let epss = advisories::epss(conn, &ids).await?;
    let shown = rows.iter().map(|row| CveSummary {
        id: row.id.clone(),
        severity: severity_at(row.severity_order),
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

/// One CVE, with a page of the affected servers.
#[boxed]
pub async fn get(app: &App, scope: &Scope, id: &str, page: Page) -> Result<CveDetail> {
    let environments = scope.environments.as_deref();
    let mut reader = app.db.snapshot().await?;
    let row = match environments {
        None => findings::by_ids(&mut reader, scope.org, &[id.to_owned()]).await?.pop(),
        Some(within_these) => {
            let rows = cves_in_environments(app, &mut reader, scope.org, within_these).await?;
            rows.into_iter().find(|row| row.id == id)
        }
    };
    let row = row.ok_or_else(|| StoreError::not_found("cve", id))?;
    let exposed = findings::servers(&mut reader, scope.org, id, environments, page).await?;
    let mut servers = Vec::with_capacity(exposed.len());
    // Servers of the same kind share the result.
    let mut by_key: BTreeMap<Option<Digest>, Vec<ScoredFinding>> = BTreeMap::new();
    let suppressions = ActiveSuppressions::read(&mut reader, scope.org, app.clock.now()).await?;
    for server in exposed {
        let found = match by_key.entry(count_key(&server)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                new.insert(server_findings_of_cve(&mut reader, &server, &row).await?)
            }
        };
        let environment = server.environment.as_ref();
        for cve in found.iter().map(|one| convert::cve(one, &suppressions, environment)) {
            servers.push(ExposedServer {
                server_id: server.id,
                status: convert::status(app, Some(server.last_seen_at)),
                hostname: server.hostname.clone(),
                display_name: server.display_name.as_deref().map(Line::sanitize),
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
    let cve = cve.ok_or_else(|| StoreError::not_found("cve", id))?;
    let url = format!("https://www.cve.org/CVERecord?id={id}");
    Ok(CveDetail { cve, url, servers })
}
