//! The findings of an organization, ready to be listed.
//!
//! Packages built from one source are matched against advisories once per package group
//! ([`put_groups`]). Servers that are equal in everything that decides about findings form one
//! [`Kind`], and the row of a CVE counts kinds, never single servers. This module only stores:
//! `service::projections::findings` computes the rows in the background.

mod carriers;
mod kinds;
mod reports;

use async_recursion::async_recursion as boxed;
pub use carriers::{Carrier, Shift, carried, carriers, drop_carriers, put_carriers, shift};
pub use kinds::{
    Counts, Kind, Tallied, counts, drop_counts, drop_telling, kinds, put_counts, put_telling,
    telling,
};
pub use reports::{
    Judged, all_groups, are_judged, changed, drop_groups, drop_judged, groups, judged, keep_report,
    kept_report, put_groups, put_judged,
};

use std::collections::BTreeMap;

use domain::advisory::CvssScore;
use jiff::Timestamp;
use vocab::{Assessment, Digest, Environment, OrgId};

use crate::db::{Conn, on};
use crate::error::{Result, guarded};
use crate::row::{put, row};
use crate::servers::Server;
use crate::sql::{ROWS_MAX, Text, join};
use crate::tx::Tx;
use crate::{Page, Paged};

row! {
    /// A flaw that some server has.
    pub struct Cve in "cves" by "id" {
        /// Its number.
        pub id: String,
        /// The worst first: 0 is `critical`.
        pub severity_order: i64,
        /// 0: known to be exploited; 1: not.
        pub kev_order: i64,
        /// How many servers have it where it was not set aside, times -1: the most first.
        pub servers_order: i64,
        /// On how many it was set aside.
        pub suppressed: u64,
        /// Who says how bad it is.
        pub severity_source: Option<String>,
        /// The vector of its CVSS score.
        pub cvss: Option<String>,
        /// When it was first published.
        pub published: Option<Timestamp>,
        /// The packages that it is in.
        pub packages: Vec<String>,
    }
}

impl Cve {
    /// Its CVSS score, from 0 to 10.
    pub fn score(&self) -> Option<f64> {
        Some(CvssScore::of(self.cvss.as_deref()?).ok()?.score())
    }

    /// Whether its severity is that of a score, and not the distribution's word.
    pub fn is_scored(&self) -> bool {
        self.severity_source.as_deref().is_some_and(|source| source.starts_with("cvss:"))
    }
}

row! {
    /// What the rows were made from.
    pub struct Summary in "cve_summaries" by "org_id" {
        /// Whose it is.
        pub org_id: OrgId,
        /// Stands for everything that they were made from.
        pub basis: Digest,
        /// When they were made.
        pub made_at: Timestamp,
        /// How often they were made.
        pub generation: i64,
        /// The revision of what is published that they were made from.
        pub revision: i64,
        /// The version of the matching rules that they were made with.
        pub rules: i64,
        /// How many servers are in each state of assessment.
        pub assessments: BTreeMap<Assessment, u64>,
    }
}

/// Which flaws to list.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    /// Of these severities, by their order; of all if empty.
    pub severities: Vec<i64>,
    /// Whether they are known to be exploited.
    pub kev: Option<bool>,
    /// What their number holds, in capital letters.
    pub q: Option<String>,
    /// Whether they were set aside wherever they are.
    pub suppressed: Option<bool>,
}

/// What the rows were made from.
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

/// Says from what the rows are made now, unless somebody else did since `next` was begun: then it is `Stale`.
#[boxed]
pub async fn begin(tx: &mut Tx, next: &Summary) -> Result<()> {
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
    guarded(saved)
}

/// Keeps everybody else from making rows for as long as this transaction lasts, unless somebody did since `seen` was
/// read: then it is `Stale`. Whoever needs several transactions begins each with this, and the last one with [`begin`].
#[boxed]
pub async fn hold(tx: &mut Tx, seen: &Summary) -> Result<()> {
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
    guarded(held)
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

/// Puts rows that are new or different, and takes away those of flaws that nobody has any more.
#[boxed]
pub async fn change(tx: &mut Tx, org: OrgId, rows: &[&Cve], gone: &[String]) -> Result<()> {
    for chunk in gone.chunks(ROWS_MAX) {
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

macro_rules! filtered {
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

/// A page of the flaws, in the order of the list.
#[boxed]
pub async fn list(conn: &mut Conn, org: OrgId, filter: &Filter, page: Page) -> Result<Paged<Cve>> {
    let items = on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(Cve::COLUMNS).add(" from cves where org_id = ");
        filtered!(text, org, filter);
        text.add(" order by severity_order, kev_order, servers_order, id limit ");
        text.bind(i64::from(page.limit)).add(" offset ").bind(put(&page.offset));
        text.build_as().fetch_all(c).await
    })?;
    let (total,): (i64,) = on!(conn, |c| {
        let mut text = Text::new("select count(*) from cves where org_id = ");
        filtered!(text, org, filter);
        text.build_as().fetch_one(c).await
    })?;
    Ok(Paged { items, total: total.unsigned_abs() })
}

row! {
    /// How many flaws are open that are alike in how bad they are.
    pub struct Tally in "cves" by "severity_order" {
        /// The worst first: 0 is `critical`.
        pub severity_order: i64,
        /// 0: known to be exploited; 1: not.
        pub kev_order: i64,
        /// How many they are.
        pub cves: u64,
    }
}

/// How many flaws are open, by severity and by whether they are known to be exploited. From one index.
#[boxed]
pub async fn tally(conn: &mut Conn, org: OrgId) -> Result<Vec<Tally>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Tally::COLUMNS,
            " from (select severity_order, kev_order, count(*) as cves from cves
                     where org_id = $1 and servers_order < 0 group by severity_order, kev_order) counted",
        ]))
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?)
}

/// Those of these flaws that some server has.
#[boxed]
pub async fn of_ids(conn: &mut Conn, org: OrgId, ids: &[String]) -> Result<Vec<Cve>> {
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

/// A page of the servers that have a flaw, by name.
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
    let told = on!(conn, |c| {
        sqlx::query("select 1 from cve_updates where org_id = $1 and cve = $2 limit 1")
            .bind(put(&org))
            .bind(cve)
            .fetch_optional(c)
            .await
            .map(|row| row.is_some())
    })?;
    Ok(on!(conn, |c, dialect| {
        let mut text = Text::new("select ");
        text.add(Server::COLUMNS);
        text.add(" from servers join presence on org = org_id and server_id = id where org_id = ");
        text.bind(put(&org)).add(" and removed_at is null and (");
        // Only where it has to be: either engine finds the one by an index, and both together by walking.
        if told {
            text.add("update_set in (select u.update_set from cve_updates u where u.org_id = ");
            text.bind(put(&org)).add(" and u.cve = ").bind(cve.to_owned()).add(") or ");
        }
        let [before, after] = carriers::OF_FLAW;
        text.add("(package_set, os_release, kernel, runs) in ");
        text.add(before).add(dialect.each_kind).add(after);
        text.bind(put(&org)).add(" and k.cve = ").bind(cve.to_owned()).add("))");
        if let Some(environments) = environments {
            text.add(" and environment in ").list(environments.iter().map(put));
        }
        text.add(" order by sort_name, id limit ").bind(i64::from(page.limit));
        text.add(" offset ").bind(put(&page.offset));
        text.build_as().fetch_all(c).await
    })?)
}
