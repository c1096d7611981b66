//! Patches: packages with pending updates in the organization.

use async_recursion::async_recursion as boxed;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use store::findings::{self, Cve};
use store::package_sets::SetKind;
pub use store::patches::Sort;
use store::patches::{self, Patch};
use store::{Conn, Page, Paged, StoreError, advisories, server_list};
use vocab::{Digest, Line, Pending, ServerId, Severity};
use wire::v1::{AffectedServer, PatchCve, PatchDetail, PatchEnvironment};

use super::cves::SeverityFacets;
use super::{Scope, convert, servers};
use crate::commands::servers::entries;
use crate::projections::findings as matched;
use crate::projections::patches::{
    patches_in_environments, reported_cve_severity, server_patches, severity_at, severity_order,
};
use crate::{App, Result};

/// No package name is longer.
const SEARCH_CHARS_MAX: usize = 300;

#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only patches that are pending on the server with this id.
    pub server: Option<String>,
    /// Any of these severities; all if empty.
    pub severities: Vec<Severity>,
    /// Whether they fix a CVE that is known to be exploited.
    pub kev: Option<bool>,
    /// Part of the package name; case does not matter.
    pub search: Option<String>,
    pub sort: Sort,
}

/// A page of the patches.
#[boxed]
pub async fn list(
    app: &App,
    scope: &Scope,
    filter: Filter,
    page: Page,
) -> Result<Paged<wire::v1::Patch>> {
    let wanted = patches::Filter {
        severities: filter.severities.into_iter().map(severity_order).collect(),
        kev: filter.kev,
        // Neither a search for NUL, which PostgreSQL does not accept in text, nor a longer one than
        // a name finds anything.
        search: filter
            .search
            .map(|q| q.replace('\0', "\u{fffd}").chars().take(SEARCH_CHARS_MAX).collect()),
        sort: filter.sort,
    };
    let mut reader = app.db.snapshot().await?;
    let rows = match (&filter.server, scope.environments.as_deref()) {
        (None, None) => {
            let paged = patches::list(&mut reader, scope.org, &wanted, page).await?;
            let items = paged.items.into_iter().map(convert::patch).collect();
            return Ok(Paged { items, total: paged.total });
        }
        (None, Some(environments)) => {
            patches_in_environments(app, &mut reader, scope.org, environments).await?.0
        }
        (Some(id), environments) => {
            // An invalid id and the id of another organization's server are both answered as
            // unknown.
            let no_server = || StoreError::not_found("server", id);
            let id: ServerId = id.parse().map_err(|_| no_server())?;
            let server = servers::find_in(&mut reader, scope, id).await?;
            let mut rows = server_patches(app, &mut reader, &server).await?;
            if let Some(environments) = environments {
                let names: Vec<String> = rows.into_iter().map(|row| row.package_name).collect();
                rows = patches_in_environments(app, &mut reader, scope.org, environments).await?.0;
                rows.retain(|row| names.contains(&row.package_name));
            }
            rows
        }
    };
    let Paged { items, total } = filter_page(rows, &wanted, page);
    Ok(Paged { items: items.into_iter().map(convert::patch).collect(), total })
}

fn filter_page(mut rows: Vec<Patch>, wanted: &patches::Filter, page: Page) -> Paged<Patch> {
    rows.retain(|row| wanted.matches(row));
    rows.sort_by(|a, b| wanted.sort.compare(a, b));
    Paged::paginate(rows, page)
}

/// The number of patches by what they can be filtered by.
#[boxed]
pub async fn facets(app: &App, scope: &Scope) -> Result<SeverityFacets> {
    let mut reader = app.db.read().await?;
    let counts = patches::count_by_severity(&mut reader, scope.org).await?;
    let counts = counts.into_iter().map(|one| (one.severity_order, one.kev_order, one.patches));
    Ok(SeverityFacets::new(counts))
}

/// One patch, with a page of the affected servers and the CVEs that it fixes.
#[boxed]
pub async fn get(app: &App, scope: &Scope, name: &str, page: Page) -> Result<PatchDetail> {
    let environments = scope.environments.as_deref();
    let mut reader = app.db.snapshot().await?;
    let row = match environments {
        None => patches::get(&mut reader, scope.org, name).await?,
        Some(environments) => {
            let rows = patches_in_environments(app, &mut reader, scope.org, environments).await?.0;
            let found = rows.into_iter().find(|row| row.package_name == name);
            found.ok_or_else(|| StoreError::not_found("patch", name))?
        }
    };
    let all = server_list::count(&mut reader, scope.org, &server_list::Filter::default()).await?;
    let waiting = patches::servers(&mut reader, scope.org, &row, all, environments, page).await?;
    let mut lists: BTreeMap<Digest, Vec<Pending>> = BTreeMap::new();
    let mut servers = Vec::with_capacity(waiting.len());
    for server in waiting {
        let Some(set) = server.update_set else { continue };
        let list = match lists.entry(set) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let mut list: Vec<Pending> =
                    entries(&mut reader, scope.org, SetKind::Updates, set).await?;
                list.retain(|update| update.name == name);
                new.insert(list)
            }
        };
        let Some(update) = list.first() else { continue };
        servers.push(AffectedServer {
            server_id: server.id,
            status: convert::status(app, Some(server.last_seen_at)),
            hostname: server.hostname,
            display_name: server.display_name.as_deref().map(Line::sanitize),
            environment: server.environment,
            installed_version: update.installed.clone(),
            available_version: update.candidate.clone(),
            blocked_by: update.blocked_by,
        });
    }
    let updates: Vec<Pending> = lists.into_values().flatten().collect();
    let cve_details = fixed_cves(app, &mut reader, scope, &row, &updates).await?;
    let by_environment =
        patches::count_by_environment(&mut reader, scope.org, name, environments).await?;
    let count = |count: findings::EnvironmentCount| PatchEnvironment {
        environment: count.environment,
        servers: count.servers,
    };
    let environments = by_environment.into_iter().map(count).collect();
    Ok(PatchDetail { patch: convert::patch(row), servers, cve_details, environments })
}

/// The servers on which an update of one of these packages is pending, at most `limit`.
#[boxed]
pub async fn waiting_servers(
    app: &App,
    scope: &Scope,
    packages: &[String],
    limit: usize,
) -> Result<Vec<ServerId>> {
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    let mut reader = app.db.read().await?;
    let environments = scope.environments.as_deref();
    Ok(patches::waiting_ids(&mut reader, scope.org, packages, environments, limit).await?)
}

/// The CVEs that a patch fixes, rated by feeds or else by the hosts' package managers.
async fn fixed_cves(
    app: &App,
    conn: &mut Conn,
    scope: &Scope,
    row: &Patch,
    updates: &[Pending],
) -> Result<Vec<PatchCve>> {
    let ids: BTreeSet<&str> = row.cves.iter().map(String::as_str).collect();
    let known = match scope.environments.as_deref() {
        None => findings::by_ids(conn, scope.org, &row.cves).await?,
        Some(environments) => {
            let mut all = matched::cves_in_environments(app, conn, scope.org, environments).await?;
            all.retain(|cve| ids.contains(cve.id.as_str()));
            all
        }
    };
    let known: BTreeMap<&str, &Cve> = known.iter().map(|cve| (cve.id.as_str(), cve)).collect();
    let exploited = advisories::exploited(conn, &ids).await?;
    let shown = row.cves.iter().map(|id| {
        let found = known.get(id.as_str());
        let reported = reported_cve_severity(updates, id);
        let is_word = |cve: &&&Cve| {
            cve.severity_source.is_some() && !(cve.is_scored() && reported != Severity::Unknown)
        };
        PatchCve {
            severity: found.filter(is_word).map_or(reported, |cve| severity_at(cve.severity_order)),
            cvss: found.and_then(|cve| cve.score()),
            kev: exploited.contains_key(id),
            url: format!("https://www.cve.org/CVERecord?id={id}"),
            id: id.clone(),
        }
    });
    Ok(shown.collect())
}
