//! The findings of an organization, ready to be listed.
//!
//! Packages built from one source are matched against advisories once per package group
//! ([`put_groups`]). Servers that are equal in everything that decides about findings form one
//! [`ServerKind`], and the row of a CVE counts kinds, never single servers. This module only
//! stores: `service::projections::findings` computes the rows in the background.

mod carriers;
mod reports;
mod server_kinds;

use async_recursion::async_recursion as boxed;
pub use carriers::{
    Carrier, CveChange, apply_cve_changes, carriers, carriers_by_cve, delete_carriers, put_carriers,
};
pub use reports::{
    AssessedSet, all_groups, assessed_bases, assessed_sets, delete_assessed, delete_groups,
    filter_assessed, groups, last_changed, put_assessed, put_groups, save_report, saved_report,
};
pub use server_kinds::{
    CvesBySeverity, KindCounts, ServerKind, counts, delete_counts, delete_vendor_reported, kinds,
    put_counts, put_vendor_reported, vendor_reported_sets,
};

use std::collections::BTreeMap;

use domain::advisory::CvssScore;
use jiff::Timestamp;
use vocab::{Assessment, Digest, Environment, OrgId, ServerId};

use crate::db::{Conn, on};
use crate::error::{Result, expect_one_row};
use crate::row::{put, row};
use crate::server_list::parse_ids;
use crate::servers::Server;
use crate::sql::{ROWS_MAX, Text, join};
use crate::tx::Tx;
use crate::{Page, Paged};

row! {
    /// A CVE that some server has.
    pub struct Cve in "cves" by "id" {
        pub id: String,
        /// The most severe first: 0 is `critical`.
        pub severity_order: i64,
        /// 0: known to be exploited; 1: not.
        pub kev_order: i64,
        /// The number of servers that have it unsuppressed, times -1: the most first.
        pub servers_order: i64,
        /// The number of servers on which it is suppressed.
        pub suppressed: u64,
        /// The source of its severity.
        pub severity_source: Option<String>,
        /// Its CVSS vector.
        pub cvss: Option<String>,
        /// When it was first published.
        pub published: Option<Timestamp>,
        /// The affected packages.
        pub packages: Vec<String>,
    }
}

impl Cve {
    /// Its CVSS score, from 0 to 10.
    pub fn score(&self) -> Option<f64> {
        Some(CvssScore::parse(self.cvss.as_deref()?).ok()?.score())
    }

    /// Whether its severity comes from a CVSS score and not from the distribution.
    pub fn is_scored(&self) -> bool {
        self.severity_source.as_deref().is_some_and(|source| source.starts_with("cvss:"))
    }
}

row! {
    /// What the rows of an organization were computed from.
    pub struct Summary in "cve_summaries" by "org_id" {
        pub org_id: OrgId,
        /// A digest of all inputs.
        pub basis: Digest,
        /// When the rows were computed.
        pub made_at: Timestamp,
        /// How many times the rows were computed.
        pub generation: i64,
        /// The revision of the advisory data that was used.
        pub revision: i64,
        /// The version of the matching rules that was used.
        pub rules: i64,
        /// The number of servers in each state of assessment.
        pub assessments: BTreeMap<Assessment, u64>,
    }
}

/// Which CVEs to list.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    /// The `severity_order` of these severities; empty means all.
    pub severities: Vec<i64>,
    /// Whether they are known to be exploited.
    pub kev: Option<bool>,
    /// Part of the CVE id, in upper case.
    pub q: Option<String>,
    /// Whether they are suppressed on every server that has them.
    pub suppressed: Option<bool>,
    pub sort: Sort,
}

/// The order of the list of CVEs. Ties are sorted by id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sort {
    /// By severity, then known exploited ones first, then by affected servers. Has an index; the
    /// others sort the CVEs of the organization, of which there are some thousands.
    #[default]
    Severity,
    /// Most affected servers first.
    AffectedServers,
    /// Most recently published first. Those without a date come last.
    Published,
    /// By id.
    Id,
}

impl Sort {
    fn columns(self) -> &'static str {
        match self {
            Sort::Severity => "severity_order, kev_order, servers_order, id",
            Sort::AffectedServers => "servers_order, id",
            Sort::Published => "published is null, published desc, id",
            Sort::Id => "id",
        }
    }

    /// The same order for rows in memory.
    pub fn compare(self, a: &Cve, b: &Cve) -> std::cmp::Ordering {
        let first = match self {
            Sort::Severity => {
                let key = |cve: &Cve| (cve.severity_order, cve.kev_order, cve.servers_order);
                key(a).cmp(&key(b))
            }
            Sort::AffectedServers => a.servers_order.cmp(&b.servers_order),
            Sort::Published => b.published.cmp(&a.published),
            Sort::Id => std::cmp::Ordering::Equal,
        };
        first.then_with(|| a.id.cmp(&b.id))
    }
}

/// The inputs of the last computation of the rows; `None` if they were never computed.
#[boxed]
pub async fn summary(conn: &mut Conn, org: OrgId) -> Result<Option<Summary>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Summary::COLUMNS,
            " from cve_summaries where org_id = $1",
        ]))
        .bind(put(&org))
        .fetch_optional(c)
        .await
    })?)
}

/// Saves what the rows are computed from now. Fails with `Stale` if another process saved since
/// `next` was read.
#[boxed]
pub async fn save_summary(tx: &mut Tx, next: &Summary) -> Result<()> {
    let saved = on!(tx, |c| {
        sqlx::query(
            "insert into cve_summaries
                (org_id, basis, made_at, generation, revision, rules, assessments)
             values ($1, $2, $3, $4 + 1, $5, $6, $7)
             on conflict (org_id) do update
                set basis = excluded.basis, made_at = excluded.made_at,
                    generation = excluded.generation, revision = excluded.revision,
                    rules = excluded.rules, assessments = excluded.assessments
              where cve_summaries.generation = $4",
        )
        .bind(put(&next.org_id))
        .bind(put(&next.basis))
        .bind(put(&next.made_at))
        .bind(next.generation)
        .bind(next.revision)
        .bind(next.rules)
        .bind(put(&next.assessments))
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?;
    expect_one_row(saved)
}

/// Keeps other processes from computing rows until this transaction ends. Fails with `Stale` if
/// another process did since `seen` was read. A computation of several transactions starts each of
/// them with this function, and the last one with [`save_summary`].
#[boxed]
pub async fn lock_summary(tx: &mut Tx, seen: &Summary) -> Result<()> {
    let held = on!(tx, |c| {
        sqlx::query(
            "insert into cve_summaries (org_id, basis, made_at, generation, revision)
             values ($1, $2, $3, $4, $5)
             on conflict (org_id) do update set generation = excluded.generation
              where cve_summaries.generation = $4",
        )
        .bind(put(&seen.org_id))
        .bind(put(&seen.basis))
        .bind(put(&seen.made_at))
        .bind(seen.generation)
        .bind(seen.revision)
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?;
    expect_one_row(held)
}

/// Every row of the organization, by id.
#[boxed]
pub async fn all(conn: &mut Conn, org: OrgId) -> Result<Vec<Cve>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&["select ", Cve::COLUMNS, " from cves where org_id = $1 order by id"]))
            .bind(put(&org))
            .fetch_all(c)
            .await
    })?)
}

/// Inserts or updates `rows`, and deletes the rows of CVEs that no server has anymore.
#[boxed]
pub async fn update_rows(tx: &mut Tx, org: OrgId, rows: &[&Cve], removed: &[String]) -> Result<()> {
    for chunk in removed.chunks(ROWS_MAX) {
        on!(tx, |c| {
            let mut text = Text::new("delete from cves where org_id = ");
            text.bind(put(&org)).add(" and id in ").list(chunk.iter().cloned());
            text.build().execute(c).await.map(drop)
        })?;
    }
    for chunk in rows.chunks(ROWS_MAX) {
        on!(tx, |c| {
            Text::new(
                "insert into cves (org_id, id, severity_order, kev_order, servers_order,
                    suppressed, severity_source, cvss, published, packages) ",
            )
            .rows(chunk, |row, cve| {
                row.bind(put(&org)).bind(put(&cve.id)).bind(cve.severity_order);
                row.bind(cve.kev_order).bind(cve.servers_order).bind(put(&cve.suppressed));
                row.bind(put(&cve.severity_source));
                row.bind(put(&cve.cvss)).bind(put(&cve.published)).bind(put(&cve.packages));
            })
            .add(
                " on conflict (org_id, id) do update
                     set severity_order = excluded.severity_order, kev_order = excluded.kev_order,
                         servers_order = excluded.servers_order, suppressed = excluded.suppressed,
                         severity_source = excluded.severity_source,
                         cvss = excluded.cvss, published = excluded.published, packages = excluded.packages",
            )
            .build()
            .execute(c)
            .await
            .map(drop)
        })?;
    }
    Ok(())
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
        if let Some(suppressed) = $filter.suppressed {
            $text.add(if suppressed { " and servers_order = 0" } else { " and servers_order < 0" });
        }
        if let Some(q) = &$filter.q {
            $text.add(" and replace(id, ").bind(q.clone()).add(", '') <> id");
        }
    };
}

/// Returns a page of the CVEs, in the order of the list.
#[boxed]
pub async fn list(conn: &mut Conn, org: OrgId, filter: &Filter, page: Page) -> Result<Paged<Cve>> {
    let items = on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(Cve::COLUMNS).add(" from cves where org_id = ");
        push_filter!(text, org, filter);
        text.add(" order by ").add(filter.sort.columns()).add(" limit ");
        text.bind(i64::from(page.limit)).add(" offset ").bind(put(&page.offset));
        text.build_as().fetch_all(c).await
    })?;
    let (total,): (i64,) = on!(conn, |c| {
        let mut text = Text::new("select count(*) from cves where org_id = ");
        push_filter!(text, org, filter);
        text.build_as().fetch_one(c).await
    })?;
    Ok(Paged { items, total: total.unsigned_abs() })
}

/// Whether CVEs that are suppressed on all servers are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithSuppressed {
    Yes,
    No,
}

row! {
    /// The number of CVEs of one severity, exploited or not.
    pub struct SeverityCount in "cves" by "severity_order" {
        /// The most severe first: 0 is `critical`.
        pub severity_order: i64,
        /// 0: known to be exploited; 1: not.
        pub kev_order: i64,
        pub cves: u64,
    }
}

/// Counts CVEs by severity and by whether they are known to be exploited: all that are listed, or
/// without those that are suppressed on all servers. Reads one index only.
#[boxed]
pub async fn count_by_severity(
    conn: &mut Conn,
    org: OrgId,
    suppressed: WithSuppressed,
) -> Result<Vec<SeverityCount>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            SeverityCount::COLUMNS,
            " from (select severity_order, kev_order, count(*) as cves from cves where org_id = $1",
            match suppressed {
                WithSuppressed::Yes => "",
                WithSuppressed::No => " and servers_order < 0",
            },
            " group by severity_order, kev_order) counted",
        ]))
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?)
}

/// Returns which of these CVEs affect at least one server.
#[boxed]
pub async fn by_ids(conn: &mut Conn, org: OrgId, ids: &[String]) -> Result<Vec<Cve>> {
    let mut found: Vec<Cve> = Vec::new();
    for chunk in ids.chunks(ROWS_MAX) {
        found.extend(on!(conn, |c| {
            let mut text = Text::new("select ");
            text.add(Cve::COLUMNS).add(" from cves where org_id = ").bind(put(&org));
            text.add(" and id in ").list(chunk.iter().cloned());
            text.build_as::<Cve>().fetch_all(c).await
        })?);
    }
    Ok(found)
}

/// Whether a host's package manager reports the CVE for a pending update.
async fn is_vendor_reported(conn: &mut Conn, org: OrgId, cve: &str) -> Result<bool> {
    Ok(on!(conn, |c| {
        sqlx::query("select 1 from cve_updates where org_id = $1 and cve = $2 limit 1")
            .bind(put(&org))
            .bind(cve)
            .fetch_optional(c)
            .await
            .map(|row| row.is_some())
    })?)
}

/// Adds the condition that a package manager reports that an update of a server fixes a CVE.
macro_rules! has_reported_cve {
    ($text:ident, $org:ident, $cve:ident) => {
        $text.add("update_set in (select u.update_set from cve_updates u where u.org_id = ");
        $text.bind(put(&$org)).add(" and u.cve = ").bind($cve.to_owned()).add(")");
    };
}

/// Adds the condition that an advisory matches a package of a server.
macro_rules! has_matched_cve {
    ($text:ident, $dialect:ident, $org:ident, $cve:ident) => {
        let [before, after] = carriers::KINDS_WITH_CVE;
        $text.add("(package_set, os_release, kernel, runs) in ");
        $text.add(before).add($dialect.each_kind).add(after);
        $text.bind(put(&$org)).add(" and k.cve = ").bind($cve.to_owned()).add(")");
    };
}

/// Adds the condition that a server has a CVE. A macro because the type of the text depends on the
/// database.
macro_rules! has_cve {
    ($text:ident, $dialect:ident, $org:ident, $cve:ident, $is_reported:ident) => {
        $text.add("(");
        // Added only if needed: each engine finds either condition by an index, but both together
        // only by scanning.
        if $is_reported {
            has_reported_cve!($text, $org, $cve);
            $text.add(" or ");
        }
        has_matched_cve!($text, $dialect, $org, $cve);
        $text.add(")");
    };
}

row! {
    /// The number of servers in an environment.
    pub struct EnvironmentCount in "servers" by "environment" {
        pub environment: Option<Environment>,
        pub servers: u64,
    }
}

/// Counts the servers that have a CVE by environment, those without one last.
#[boxed]
pub async fn count_by_environment(
    conn: &mut Conn,
    org: OrgId,
    cve: &str,
    environments: Option<&[Environment]>,
) -> Result<Vec<EnvironmentCount>> {
    if environments.is_some_and(<[Environment]>::is_empty) {
        return Ok(Vec::new());
    }
    let is_reported = is_vendor_reported(conn, org, cve).await?;
    Ok(on!(conn, |c, dialect| {
        let mut text = Text::new("select ");
        text.add(EnvironmentCount::COLUMNS);
        text.add(" from (select environment, count(*) as servers from (");
        macro_rules! push_servers {
            () => {
                text.add("select environment from servers where org_id = ").bind(put(&org));
                text.add(" and removed_at is null");
                if let Some(environments) = environments {
                    text.add(" and environment in ").list(environments.iter().map(put));
                }
                text.add(" and ");
            };
        }
        // Two parts, each of which is found by an index. Servers that are in both count once.
        if is_reported {
            push_servers!();
            has_reported_cve!(text, org, cve);
            text.add(" union all ");
        }
        push_servers!();
        has_matched_cve!(text, dialect, org, cve);
        if is_reported {
            text.add(" and (update_set is null or not ");
            has_reported_cve!(text, org, cve);
            text.add(")");
        }
        text.add(") affected group by environment) counted");
        text.add(" order by environment is null, environment");
        text.build_as().fetch_all(c).await
    })?)
}

/// The servers that have a CVE and a pending update of one of these packages, except those in
/// `suppressed`. At most `limit` of them.
#[boxed]
pub async fn patchable(
    conn: &mut Conn,
    org: OrgId,
    cve: &str,
    packages: &[String],
    environments: Option<&[Environment]>,
    suppressed: &[Environment],
    limit: u32,
) -> Result<Vec<ServerId>> {
    if packages.is_empty() || environments.is_some_and(<[Environment]>::is_empty) {
        return Ok(Vec::new());
    }
    let is_reported = is_vendor_reported(conn, org, cve).await?;
    let ids: Vec<(String,)> = on!(conn, |c, dialect| {
        let mut text = Text::new("select id from servers where org_id = ");
        text.bind(put(&org)).add(" and removed_at is null and ");
        has_cve!(text, dialect, org, cve, is_reported);
        text.add(" and update_set in (select p.update_set from patch_sets p where p.org_id = ");
        text.bind(put(&org)).add(" and p.package_name in ");
        text.list(packages.iter().cloned()).add(")");
        if let Some(environments) = environments {
            text.add(" and environment in ").list(environments.iter().map(put));
        }
        if !suppressed.is_empty() {
            text.add(" and (environment is null or environment not in ");
            text.list(suppressed.iter().map(put)).add(")");
        }
        text.add(" limit ").bind(i64::from(limit));
        text.build_as().fetch_all(c).await
    })?;
    parse_ids(ids)
}

/// Returns a page of the servers that have a CVE, by name.
#[boxed]
pub async fn servers(
    conn: &mut Conn,
    org: OrgId,
    cve: &str,
    environments: Option<&[Environment]>,
    page: Page,
) -> Result<Vec<Server>> {
    if environments.is_some_and(<[Environment]>::is_empty) {
        return Ok(Vec::new());
    }
    let is_reported = is_vendor_reported(conn, org, cve).await?;
    Ok(on!(conn, |c, dialect| {
        let mut text = Text::new("select ");
        text.add(Server::COLUMNS);
        text.add(" from servers join presence on org = org_id and server_id = id where org_id = ");
        text.bind(put(&org)).add(" and removed_at is null and ");
        has_cve!(text, dialect, org, cve, is_reported);
        if let Some(environments) = environments {
            text.add(" and environment in ").list(environments.iter().map(put));
        }
        text.add(" order by sort_name, id limit ").bind(i64::from(page.limit));
        text.add(" offset ").bind(put(&page.offset));
        text.build_as().fetch_all(c).await
    })?)
}
