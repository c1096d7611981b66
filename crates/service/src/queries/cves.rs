//! CVEs that servers of the organization have, and the affected servers.

use async_recursion::async_recursion as boxed;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use domain::advisory::{Advisory, CvssScore};
pub use store::findings::Sort;
use store::findings::{self, Cve, WithSuppressed};
use store::patches::{self, Patch};
use store::{Conn, Page, Paged, StoreError, advisories};
use vocab::{Digest, Environment, Line, ServerId, Severity};
use wire::v1::{
    AdvisoryReference, CveDetail, CveEnvironment, CveFix, CveSummary, CvssMetric, ExposedServer,
    KevEntry, SeverityCounts,
};

use super::{Scope, convert};
use crate::projections::findings::{
    ActiveSuppressions, ScoredFinding, count_key, cves_in_environments, server_findings_of_cve,
};
use crate::projections::patches::{patches_in_environments, severity_at, severity_order};
use crate::{App, Result};

/// No CVE id is longer.
const SEARCH_CHARS_MAX: usize = 200;
/// Maximum number of advisories of one CVE that are read and listed.
const ADVISORIES_MAX: usize = 20;
/// The same number of servers as a batch can have.
pub const PATCHABLE_MAX: u32 = 10_000;

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
    pub sort: Sort,
}

/// A page of the CVEs.
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
        sort: filter.sort,
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

/// The number of rows of a list by severity, and by whether they are known to be exploited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SeverityFacets {
    pub critical: u64,
    pub high: u64,
    pub medium: u64,
    pub low: u64,
    pub unknown: u64,
    pub exploited: u64,
    pub not_exploited: u64,
}

impl SeverityFacets {
    /// From `severity_order`, `kev_order` and the number of rows.
    pub(super) fn new(counts: impl IntoIterator<Item = (i64, i64, u64)>) -> SeverityFacets {
        let mut facets = SeverityFacets::default();
        for (severity, kev, rows) in counts {
            *match severity_at(severity) {
                Severity::Critical => &mut facets.critical,
                Severity::High => &mut facets.high,
                Severity::Medium => &mut facets.medium,
                Severity::Low => &mut facets.low,
                Severity::Unknown => &mut facets.unknown,
            } += rows;
            *if kev == 0 { &mut facets.exploited } else { &mut facets.not_exploited } += rows;
        }
        facets
    }
}

/// The number of CVEs by what they can be filtered by.
#[boxed]
pub async fn facets(app: &App, scope: &Scope) -> Result<SeverityFacets> {
    let mut reader = app.db.read().await?;
    let counts = findings::count_by_severity(&mut reader, scope.org, WithSuppressed::Yes).await?;
    let counts = counts.into_iter().map(|one| (one.severity_order, one.kev_order, one.cves));
    Ok(SeverityFacets::new(counts))
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
    for some in findings::count_by_severity(&mut reader, scope.org, WithSuppressed::No).await? {
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
    let findings::Filter { severities, kev, q, suppressed, sort } = wanted;
    rows.retain(|row| {
        (severities.is_empty() || severities.contains(&row.severity_order))
            && kev.is_none_or(|kev| kev == (row.kev_order == 0))
            && suppressed.is_none_or(|suppressed| suppressed == (row.servers_order == 0))
            && q.as_ref().is_none_or(|q| row.id.contains(q.as_str()))
    });
    rows.sort_by(|a, b| sort.compare(a, b));
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
    let row = find(app, &mut reader, scope, id).await?;
    let exposed = findings::servers(&mut reader, scope.org, id, environments, page).await?;
    let mut servers = Vec::with_capacity(exposed.len());
    let mut advisory_ids: BTreeSet<String> = BTreeSet::new();
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
        let sources = found.iter().filter(|one| !one.server_finding.finding.found.told);
        let more = sources.map(|one| one.server_finding.finding.found.advisory.to_string());
        advisory_ids.extend(more.take(ADVISORIES_MAX - advisory_ids.len().min(ADVISORIES_MAX)));
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
    let reader = &mut reader;
    let fixed_by = fixed_by(app, reader, scope, id).await?;
    let packages: Vec<String> = fixed_by.iter().map(|fix| fix.package_name.clone()).collect();
    let by_environment =
        findings::count_by_environment(reader, scope.org, id, environments).await?;
    let environments: Vec<CveEnvironment> = by_environment
        .into_iter()
        .map(|count| CveEnvironment {
            suppressed: is_suppressed(&suppressions, count.environment.as_ref(), &row),
            environment: count.environment,
            servers: count.servers,
        })
        .collect();
    let patchable = patchable(reader, scope, &row, &packages, &suppressions).await?;
    let ids: Vec<String> = advisory_ids.into_iter().collect();
    let advisories = advisories::with_ids(reader, &ids).await?;
    let only = BTreeSet::from([id]);
    let epss = advisories::epss(reader, &only).await?.remove(id);
    let epss_as_of = advisories::epss_as_of(reader, id).await?;
    let kev_entry = advisories::exploited(reader, &only).await?.remove(id);
    let score = row.cvss.as_deref().and_then(|vector| CvssScore::parse(vector).ok());
    let metrics = score.iter().flat_map(CvssScore::metrics);
    let cvss_metrics = metrics
        .map(|(name, value)| CvssMetric { name: name.into(), value: value.into() })
        .collect();
    let cve = summaries(reader, vec![row]).await?.pop();
    let cve = cve.ok_or_else(|| StoreError::not_found("cve", id))?;
    Ok(CveDetail {
        cve,
        url: format!("https://www.cve.org/CVERecord?id={id}"),
        description: description(&advisories, id),
        cvss_vector: score.map(|score| score.vector().to_owned()),
        cvss_metrics,
        epss_percentile: epss.map(|epss| epss.percentile()),
        epss_as_of,
        kev_entry: kev_entry.map(|entry| KevEntry {
            added: entry.added,
            due: entry.due,
            ransomware: entry.ransomware,
        }),
        advisories: advisories
            .into_iter()
            .map(|one| AdvisoryReference { id: one.id, summary: one.summary })
            .collect(),
        environments,
        fixed_by,
        patchable_servers: patchable.len() as u64,
        servers,
    })
}

/// The servers that updates can protect from a CVE, at most [`PATCHABLE_MAX`], and the packages to
/// update.
#[boxed]
pub async fn patchable_servers(
    app: &App,
    scope: &Scope,
    id: &str,
) -> Result<(Vec<ServerId>, Vec<String>)> {
    let mut reader = app.db.snapshot().await?;
    let row = find(app, &mut reader, scope, id).await?;
    let suppressions = ActiveSuppressions::read(&mut reader, scope.org, app.clock.now()).await?;
    let fixes = fixed_by(app, &mut reader, scope, id).await?;
    let packages: Vec<String> = fixes.into_iter().map(|fix| fix.package_name).collect();
    let servers = patchable(&mut reader, scope, &row, &packages, &suppressions).await?;
    Ok((servers, packages))
}

async fn find(app: &App, conn: &mut Conn, scope: &Scope, id: &str) -> Result<Cve> {
    let row = match scope.environments.as_deref() {
        None => findings::by_ids(conn, scope.org, &[id.to_owned()]).await?.pop(),
        Some(within_these) => {
            let rows = cves_in_environments(app, conn, scope.org, within_these).await?;
            rows.into_iter().find(|row| row.id == id)
        }
    };
    Ok(row.ok_or_else(|| StoreError::not_found("cve", id))?)
}

/// The longest description of a CVE. The advisories of several distributions may have different
/// extracts of the same text.
fn description(advisories: &[Advisory], cve: &str) -> Option<String> {
    let about = advisories.iter().filter(|one| one.flaws == [cve]);
    let texts = about.flat_map(|one| [&one.description, &one.summary]);
    let longest = texts.max_by_key(|text| text.len())?;
    (!longest.is_empty()).then(|| longest.clone())
}

/// The pending updates that fix a CVE.
async fn fixed_by(app: &App, conn: &mut Conn, scope: &Scope, cve: &str) -> Result<Vec<CveFix>> {
    let rows = match scope.environments.as_deref() {
        None => patches::fixing(conn, scope.org, cve).await?,
        Some(environments) => {
            let (mut rows, _) = patches_in_environments(app, conn, scope.org, environments).await?;
            rows.retain(|row| row.cves.iter().any(|fixed| fixed == cve));
            rows
        }
    };
    let fix = |row: Patch| CveFix {
        servers: row.servers_order.unsigned_abs(),
        package_name: row.package_name,
    };
    Ok(rows.into_iter().map(fix).collect())
}

/// Whether a CVE is suppressed in every package on the servers of an environment.
fn is_suppressed(
    suppressions: &ActiveSuppressions,
    environment: Option<&Environment>,
    row: &Cve,
) -> bool {
    let covers = |package: &String| suppressions.covering(environment, &row.id, package).is_some();
    !row.packages.is_empty() && row.packages.iter().all(covers)
}

/// The servers that an update can protect from a CVE: those that have it unsuppressed, with one of
/// these packages pending. At most [`PATCHABLE_MAX`].
async fn patchable(
    conn: &mut Conn,
    scope: &Scope,
    row: &Cve,
    packages: &[String],
    suppressions: &ActiveSuppressions,
) -> Result<Vec<ServerId>> {
    // Only suppressions for all environments apply to servers without one.
    if is_suppressed(suppressions, None, row) {
        return Ok(Vec::new());
    }
    let suppressed = suppressions.environments().iter();
    let suppressed: Vec<Environment> = suppressed
        .filter(|environment| is_suppressed(suppressions, Some(environment), row))
        .cloned()
        .collect();
    let environments = scope.environments.as_deref();
    Ok(findings::patchable(
        conn,
        scope.org,
        &row.id,
        packages,
        environments,
        &suppressed,
        PATCHABLE_MAX,
    )
    .await?)
}
