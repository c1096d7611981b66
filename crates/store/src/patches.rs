//! Pending updates by package, ready to be listed.
//!
//! A page of patches is one page of one index, even with 100,000 servers.
//! `service::projections::patches` computes the rows in the background from the distinct sets that
//! [`kinds`] counts. This module does not look inside a set.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use serde_json::Value;
use vocab::{Digest, Environment, OrgId, Os, ServerId, UpdateType};

use crate::db::{Conn, on};
use crate::error::{Result, StoreError, expect_one_row};
use crate::findings::EnvironmentCount;
use crate::row::{put, row, via};
use crate::server_list::parse_ids;
use crate::servers::Server;
use crate::sql::{ROWS_MAX, Text, escape_like, join, like_pattern};
use crate::tx::Tx;
use crate::{Page, Paged};

via!(UpdateType);

row! {
    /// Servers with the same pending updates, installed packages, operating system and running
    /// code.
    pub struct PatchServerKind in "servers" by "os_release" {
        /// The digest of the pending updates; `None` if none were uploaded yet.
        pub update_set: Option<Digest>,
        /// The digest of the installed packages.
        pub package_set: Option<Digest>,
        /// The operating system: `debian 12`.
        pub os_release: String,
        /// The running kernel.
        pub kernel: String,
        /// Running code that differs from the installed packages.
        pub runs: String,
        /// The operating system as one of the servers reports it.
        pub os: Os,
        pub servers: u64,
        /// How many of them require a reboot.
        pub reboot_required: u64,
        /// How many of them are quarantined.
        pub quarantined: u64,
        /// How many of them have pending updates and a scan that is not stale.
        pub outdated: u64,
        /// How many of them were last scanned too long ago. They are not in `outdated`.
        pub stale: u64,
        /// How many of them have pending security updates.
        pub insecure: u64,
        /// The smallest number of pending security updates of any of them.
        pub fewest: u32,
        /// The largest number of pending security updates of any of them.
        pub most: u32,
    }
}

row! {
    /// A package with an update that is pending on some server.
    pub struct Patch in "patches" by "package_name" {
        pub package_name: String,
        /// The most severe first: 0 is `critical`.
        pub severity_order: i64,
        /// 0: known to be exploited; 1: not.
        pub kev_order: i64,
        /// The number of servers with this pending update, times -1: the most first.
        pub servers_order: i64,
        pub update_type: UpdateType,
        /// The source of its severity.
        pub severity_source: Option<String>,
        /// The installed and the new versions, by operating system.
        pub versions: Value,
        /// The CVEs that it fixes.
        pub cves: Vec<String>,
        /// When a server first reported it.
        pub first_seen_at: Timestamp,
    }
}

row! {
    /// The counts of an organization, and a digest of what they were computed from.
    pub struct Summary in "fleet_summaries" by "org_id" {
        pub org_id: OrgId,
        /// A digest of all inputs.
        pub basis: Digest,
        pub counts: Value,
        /// When it was computed.
        pub made_at: Timestamp,
        /// How many times it was computed.
        pub generation: i64,
    }
}

/// The changes to the table after a new computation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    /// Rows that are new or different.
    pub put: Vec<Patch>,
    /// Packages that no longer have a pending update.
    pub removed: Vec<String>,
    /// Sets of pending updates that no server has anymore.
    pub sets_gone: Vec<Digest>,
}

/// Returns every kind of server: the input of the computation. Scans all servers, so it is for
/// background work, and for keys that are limited to a few environments.
#[boxed]
pub async fn kinds(
    conn: &mut Conn,
    org: OrgId,
    environments: Option<&[Environment]>,
    stale_before: Timestamp,
) -> Result<Vec<PatchServerKind>> {
    if environments.is_some_and(<[Environment]>::is_empty) {
        return Ok(Vec::new());
    }
    Ok(on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(PatchServerKind::COLUMNS).add(
            " from (select update_set, package_set, os_release, kernel, runs, min(os) as os, count(*) as servers,
                    sum(case when reboot_required then 1 else 0 end) as reboot_required,
                    sum(case when quarantine is not null then 1 else 0 end) as quarantined,
                    sum(case when updates > 0 and (last_scan_at is null or last_scan_at >= ",
        );
        text.bind(put(&stale_before)).add(
            ") then 1 else 0 end) as outdated,
                    sum(case when last_scan_at < ",
        );
        text.bind(put(&stale_before)).add(
            " then 1 else 0 end) as stale,
                    sum(case when security_updates > 0 then 1 else 0 end) as insecure,
                    min(security_updates) as fewest, max(security_updates) as most
               from servers where removed_at is null and org_id = ",
        );
        text.bind(put(&org));
        if let Some(environments) = environments {
            text.add(" and environment in ").list(environments.iter().map(put));
        }
        text.add(" group by update_set, package_set, os_release, kernel, runs) k");
        text.add(" order by update_set, package_set, os_release, kernel, runs");
        text.build_as().fetch_all(c).await
    })?)
}

/// The last computed counts; `None` if they were never computed.
#[boxed]
pub async fn summary(conn: &mut Conn, org: OrgId) -> Result<Option<Summary>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Summary::COLUMNS,
            " from fleet_summaries where org_id = $1",
        ]))
        .bind(put(&org))
        .fetch_optional(c)
        .await
    })?)
}

/// Saves the new counts. Fails with `Stale` if another process saved since `next` was read. A
/// computation of the rows runs this statement first, so that two replicas do not write at the same
/// time.
#[boxed]
pub async fn save_summary(tx: &mut Tx, next: &Summary) -> Result<()> {
    let saved = on!(tx, |c| {
        sqlx::query(
            "insert into fleet_summaries (org_id, basis, counts, made_at, generation)
             values ($1, $2, $3, $4, $5 + 1)
             on conflict (org_id) do update
                set basis = excluded.basis, counts = excluded.counts, made_at = excluded.made_at,
                    generation = excluded.generation
              where fleet_summaries.generation = $5",
        )
        .bind(put(&next.org_id))
        .bind(put(&next.basis))
        .bind(put(&next.counts))
        .bind(put(&next.made_at))
        .bind(next.generation)
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?;
    expect_one_row(saved)
}

/// Every row of the organization, by package name.
#[boxed]
pub async fn all(conn: &mut Conn, org: OrgId) -> Result<Vec<Patch>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Patch::COLUMNS,
            " from patches where org_id = $1 order by package_name",
        ]))
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?)
}

/// The sets of pending updates whose packages are recorded.
#[boxed]
pub async fn recorded_sets(conn: &mut Conn, org: OrgId) -> Result<Vec<Digest>> {
    row! {
        struct Set in "patch_sets" by "update_set" {
            update_set: Digest,
        }
    }
    let found: Vec<Set> = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select distinct ",
            Set::COLUMNS,
            " from patch_sets where org_id = $1",
        ]))
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?;
    Ok(found.into_iter().map(|set| set.update_set).collect())
}

/// Writes the changes.
#[boxed]
pub async fn apply_changes(tx: &mut Tx, org: OrgId, changes: &Changes) -> Result<()> {
    for chunk in changes.removed.chunks(ROWS_MAX) {
        on!(tx, |c| {
            let mut text = Text::new("delete from patches where org_id = ");
            text.bind(put(&org)).add(" and package_name in ").list(chunk.iter().cloned());
            text.build().execute(c).await.map(drop)
        })?;
    }
    for chunk in changes.put.chunks(ROWS_MAX) {
        put_rows(tx, org, chunk).await?;
    }
    for chunk in changes.sets_gone.chunks(ROWS_MAX) {
        on!(tx, |c| {
            let mut text = Text::new("delete from patch_sets where org_id = ");
            text.bind(put(&org)).add(" and update_set in ").list(chunk.iter().map(put));
            text.build().execute(c).await.map(drop)
        })?;
    }
    Ok(())
}

/// Records which packages these sets name. A set never changes, so this is done before the rows are
/// written, a few sets per transaction: 100,000 names in one transaction would block all other
/// writers.
#[boxed]
pub async fn add_sets(tx: &mut Tx, org: OrgId, sets: &[(Digest, Vec<String>)]) -> Result<()> {
    let named: Vec<(&str, Digest)> = sets
        .iter()
        .flat_map(|(set, names)| names.iter().map(|name| (name.as_str(), *set)))
        .collect();
    for chunk in named.chunks(ROWS_MAX) {
        on!(tx, |c| {
            Text::new("insert into patch_sets (org_id, package_name, update_set) ")
                .rows(chunk, |row, (name, set)| {
                    row.bind(put(&org)).bind((*name).to_owned()).bind(put(set));
                })
                .add(" on conflict do nothing")
                .build()
                .execute(c)
                .await
                .map(drop)
        })?;
    }
    Ok(())
}

async fn put_rows(tx: &mut Tx, org: OrgId, rows: &[Patch]) -> Result<()> {
    Ok(on!(tx, |c| {
        Text::new(
            "insert into patches (org_id, package_name, severity_order, kev_order, servers_order,
                update_type, severity_source, versions, cves, first_seen_at) ",
        )
        .rows(rows, |row, patch| {
            row.bind(put(&org)).bind(put(&patch.package_name)).bind(patch.severity_order);
            row.bind(patch.kev_order).bind(patch.servers_order).bind(put(&patch.update_type));
            row.bind(put(&patch.severity_source)).bind(put(&patch.versions));
            row.bind(put(&patch.cves)).bind(put(&patch.first_seen_at));
        })
        .add(
            " on conflict (org_id, package_name) do update
                 set severity_order = excluded.severity_order, kev_order = excluded.kev_order,
                     servers_order = excluded.servers_order, update_type = excluded.update_type,
                     severity_source = excluded.severity_source, versions = excluded.versions,
                     cves = excluded.cves",
        )
        .build()
        .execute(c)
        .await
        .map(drop)
    })?)
}

/// The order of the list of patches. Ties are sorted by name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sort {
    /// By severity, then known exploited ones first, then by affected servers. Has an index; the
    /// others sort the packages of the organization, of which there are some thousands.
    #[default]
    Severity,
    /// Most affected servers first.
    AffectedServers,
    /// Longest pending first.
    FirstSeen,
    /// By name.
    Name,
}

impl Sort {
    fn columns(self) -> &'static str {
        match self {
            Sort::Severity => "severity_order, kev_order, servers_order, package_name",
            Sort::AffectedServers => "servers_order, package_name",
            Sort::FirstSeen => "first_seen_at, package_name",
            Sort::Name => "package_name",
        }
    }

    /// The same order for rows in memory.
    pub fn compare(self, a: &Patch, b: &Patch) -> std::cmp::Ordering {
        let first = match self {
            Sort::Severity => {
                let key = |row: &Patch| (row.severity_order, row.kev_order, row.servers_order);
                key(a).cmp(&key(b))
            }
            Sort::AffectedServers => a.servers_order.cmp(&b.servers_order),
            Sort::FirstSeen => a.first_seen_at.cmp(&b.first_seen_at),
            Sort::Name => std::cmp::Ordering::Equal,
        };
        first.then_with(|| a.package_name.cmp(&b.package_name))
    }
}

/// Which patches to list, and in which order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    /// The `severity_order` of these severities; empty means all.
    pub severities: Vec<i64>,
    /// Whether they fix a CVE that is known to be exploited.
    pub kev: Option<bool>,
    /// Part of the package name; case does not matter.
    pub search: Option<String>,
    pub sort: Sort,
}

impl Filter {
    /// Whether a row in memory matches.
    pub fn matches(&self, row: &Patch) -> bool {
        let name = row.package_name.to_lowercase();
        (self.severities.is_empty() || self.severities.contains(&row.severity_order))
            && self.kev.is_none_or(|kev| kev == (row.kev_order == 0))
            && self.search.as_ref().is_none_or(|search| name.contains(&search.to_lowercase()))
    }
}

macro_rules! push_filter {
    ($text:ident, $org:ident, $filter:ident) => {
        $text.bind(put(&$org));
        if !$filter.severities.is_empty() {
            $text.add(" and severity_order in ").list($filter.severities.iter().copied());
        }
        if let Some(kev) = $filter.kev {
            $text.add(" and kev_order = ").bind(i64::from(!kev));
        }
        if let Some(search) = &$filter.search {
            $text.add(" and lower(package_name) like ").bind(like_pattern(search));
            $text.add(r" escape '\'");
        }
    };
}

/// Returns a page of the patches.
#[boxed]
pub async fn list(
    conn: &mut Conn,
    org: OrgId,
    filter: &Filter,
    page: Page,
) -> Result<Paged<Patch>> {
    let items = on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(Patch::COLUMNS).add(" from patches where org_id = ");
        push_filter!(text, org, filter);
        text.add(" order by ").add(filter.sort.columns()).add(" limit ");
        text.bind(i64::from(page.limit)).add(" offset ").bind(put(&page.offset));
        text.build_as().fetch_all(c).await
    })?;
    let (total,): (i64,) = on!(conn, |c| {
        let mut text = Text::new("select count(*) from patches where org_id = ");
        push_filter!(text, org, filter);
        text.build_as().fetch_one(c).await
    })?;
    Ok(Paged { items, total: total.unsigned_abs() })
}

row! {
    /// The number of patches of one severity, for exploited CVEs or not.
    pub struct SeverityCount in "patches" by "severity_order" {
        /// The most severe first: 0 is `critical`.
        pub severity_order: i64,
        /// 0: fixes a CVE that is known to be exploited; 1: does not.
        pub kev_order: i64,
        pub patches: u64,
    }
}

/// Counts the patches by severity and by whether they fix an exploited CVE. Reads one index only.
#[boxed]
pub async fn count_by_severity(conn: &mut Conn, org: OrgId) -> Result<Vec<SeverityCount>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            SeverityCount::COLUMNS,
            " from (select severity_order, kev_order, count(*) as patches from patches
                     where org_id = $1 group by severity_order, kev_order) counted",
        ]))
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?)
}

row! {
    /// The number of patches of one severity that have been pending for about the same time.
    pub struct AgeCount in "patches" by "severity_order" {
        /// The most severe first: 0 is `critical`.
        pub severity_order: i64,
        /// The number of bounds that they are older than.
        pub older_than: u64,
        pub patches: u64,
    }
}

/// Counts patches by severity and by when they were first seen: after `bounds[0]`, between
/// `bounds[0]` and `bounds[1]`, and so on. In no particular order.
#[boxed]
pub async fn ages(conn: &mut Conn, org: OrgId, bounds: [Timestamp; 3]) -> Result<Vec<AgeCount>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            AgeCount::COLUMNS,
            " from (select severity_order, older_than, count(*) as patches
                      from (select severity_order,
                                   cast(case when first_seen_at > $2 then 0
                                             when first_seen_at > $3 then 1
                                             when first_seen_at > $4 then 2
                                             else 3 end as bigint) as older_than
                              from patches where org_id = $1) each_one
                     group by severity_order, older_than) counted",
        ]))
        .bind(put(&org))
        .bind(put(&bounds[0]))
        .bind(put(&bounds[1]))
        .bind(put(&bounds[2]))
        .fetch_all(c)
        .await
    })?)
}

/// The patches of these packages, in no particular order.
#[boxed]
pub async fn by_names(conn: &mut Conn, org: OrgId, names: &[String]) -> Result<Vec<Patch>> {
    let mut found: Vec<Patch> = Vec::new();
    for chunk in names.chunks(ROWS_MAX) {
        found.extend(on!(conn, |c| {
            let mut text = Text::new("select ");
            text.add(Patch::COLUMNS).add(" from patches where org_id = ").bind(put(&org));
            text.add(" and package_name in ").list(chunk.iter().cloned());
            text.build_as::<Patch>().fetch_all(c).await
        })?);
    }
    Ok(found)
}

/// The patch of one package.
#[boxed]
pub async fn get(conn: &mut Conn, org: OrgId, name: &str) -> Result<Patch> {
    let found = by_names(conn, org, &[name.to_owned()]).await?.pop();
    found.ok_or_else(|| StoreError::not_found("patch", name))
}

/// The servers on which an update of this package is pending, by name. Omits servers whose pending
/// updates are not recorded yet. `patch` is the package's row and `all` the number of servers; the
/// query plan depends on both.
#[boxed]
pub async fn servers(
    conn: &mut Conn,
    org: OrgId,
    patch: &Patch,
    all: u64,
    environments: Option<&[Environment]>,
    page: Page,
) -> Result<Vec<Server>> {
    if environments.is_some_and(<[Environment]>::is_empty) {
        return Ok(Vec::new());
    }
    // If few servers match, they are found by their sets and sorted. If many match, a scan of all
    // servers by name fills the page after about `page × all / waiting` of them.
    let waiting = patch.servers_order.unsigned_abs();
    let page_end = page.offset.saturating_add(page.limit.into());
    let walk_all = waiting.saturating_mul(waiting) > page_end.saturating_mul(all);
    Ok(on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(Server::COLUMNS);
        text.add(" from servers join presence on org = org_id and server_id = id where org_id = ");
        text.bind(put(&org)).add(" and removed_at is null and ");
        // SQLite does not use an index for an expression.
        text.add(if walk_all { "coalesce(update_set, null) in " } else { "update_set in " });
        text.add("(select p.update_set from patch_sets p where p.org_id = ").bind(put(&org));
        text.add(" and p.package_name = ").bind(patch.package_name.clone()).add(")");
        if let Some(environments) = environments {
            text.add(" and environment in ").list(environments.iter().map(put));
        }
        text.add(" order by sort_name, id limit ").bind(i64::from(page.limit));
        text.add(" offset ").bind(put(&page.offset));
        text.build_as().fetch_all(c).await
    })?)
}

/// The patches that fix a CVE, those of the most servers first. Reads all rows: there are a few
/// thousand at most.
#[boxed]
pub async fn fixing(conn: &mut Conn, org: OrgId, cve: &str) -> Result<Vec<Patch>> {
    let pattern = format!("%\"{}\"%", escape_like(cve));
    Ok(on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(Patch::COLUMNS).add(" from patches where org_id = ").bind(put(&org));
        text.add(" and cves like ").bind(pattern.clone()).add(r" escape '\'");
        text.add(" order by servers_order, package_name");
        text.build_as().fetch_all(c).await
    })?)
}

/// The servers on which an update of one of these packages is pending. At most `limit` of them.
#[boxed]
pub async fn waiting_ids(
    conn: &mut Conn,
    org: OrgId,
    names: &[String],
    environments: Option<&[Environment]>,
    limit: u32,
) -> Result<Vec<ServerId>> {
    if names.is_empty() || environments.is_some_and(<[Environment]>::is_empty) {
        return Ok(Vec::new());
    }
    parse_ids(on!(conn, |c| {
        let mut text = Text::new("select id from servers where org_id = ");
        text.bind(put(&org)).add(" and removed_at is null and update_set in ");
        text.add("(select p.update_set from patch_sets p where p.org_id = ").bind(put(&org));
        text.add(" and p.package_name in ").list(names.iter().cloned()).add(")");
        if let Some(environments) = environments {
            text.add(" and environment in ").list(environments.iter().map(put));
        }
        text.add(" limit ").bind(i64::from(limit));
        text.build_as().fetch_all(c).await
    })?)
}

/// Counts the servers on which an update of this package is pending by environment, those without
/// an environment last.
#[boxed]
pub async fn count_by_environment(
    conn: &mut Conn,
    org: OrgId,
    name: &str,
    environments: Option<&[Environment]>,
) -> Result<Vec<EnvironmentCount>> {
    if environments.is_some_and(<[Environment]>::is_empty) {
        return Ok(Vec::new());
    }
    Ok(on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(EnvironmentCount::COLUMNS);
        text.add(" from (select environment, count(*) as servers from servers where org_id = ");
        text.bind(put(&org)).add(" and removed_at is null and update_set in ");
        text.add("(select p.update_set from patch_sets p where p.org_id = ").bind(put(&org));
        text.add(" and p.package_name = ").bind(name.to_owned()).add(")");
        if let Some(environments) = environments {
            text.add(" and environment in ").list(environments.iter().map(put));
        }
        text.add(" group by environment) counted order by environment is null, environment");
        text.build_as().fetch_all(c).await
    })?)
}
