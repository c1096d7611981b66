//! Groups of servers that are equal in everything that decides which findings they have.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vocab::{Digest, Environment, OrgId, Os, Severity};

use crate::db::{Conn, on};
use crate::error::Result;
use crate::row::{put, row};
use crate::sql::{ROWS_MAX, Text, join};
use crate::tx::Tx;

row! {
    /// Servers with the same package set, operating system and running code.
    pub struct ServerKind in "servers" by "os_release" {
        /// The digest of the installed packages.
        pub package_set: Digest,
        /// The digest of the pending updates.
        pub update_set: Option<Digest>,
        /// The operating system: `debian 12`.
        pub os_release: String,
        /// The running kernel.
        pub kernel: String,
        /// Running code that differs from the installed packages.
        pub runs: String,
        /// The operating system as one of the servers reports it.
        pub os: Os,
        /// The environment, if [`kinds`] was asked to separate it.
        pub environment: Option<Environment>,
        pub servers: u64,
    }
}

impl ServerKind {
    /// Identifies the kind as far as feeds decide about its CVEs: without pending updates and
    /// environment, so kinds that differ only in these have the same digest.
    pub fn digest(&self) -> Digest {
        kind_digest(self.package_set, [&self.os_release, &self.kernel, &self.runs])
    }

    /// Identifies the kind for counting: the digest, the pending updates and the environment.
    pub fn count_key(&self) -> Digest {
        let updates = self.update_set.map_or([0; 32], |set| *set.as_bytes());
        let environment = self.environment.as_ref().map(Environment::as_str).unwrap_or_default();
        Digest::compute(&[self.digest().as_bytes(), &updates, environment.as_bytes()].concat())
    }
}

/// Hashes a package set with the texts for operating system, kernel and running code.
pub(super) fn kind_digest(package_set: Digest, texts: [&String; 3]) -> Digest {
    let texts = texts.map(String::as_bytes);
    Digest::compute(&[package_set.as_bytes(), texts.join(&b'\n').as_slice()].concat())
}

/// Returns every kind of server. Servers in an environment of `separate` form separate kinds. Scans
/// all servers, so it is for background work, and for keys that are limited to a few environments.
#[boxed]
pub async fn kinds(
    conn: &mut Conn,
    org: OrgId,
    environments: Option<&[Environment]>,
    separate: &[Environment],
) -> Result<Vec<ServerKind>> {
    if environments.is_some_and(<[Environment]>::is_empty) {
        return Ok(Vec::new());
    }
    Ok(on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(ServerKind::COLUMNS).add(
            " from (select package_set, update_set, os_release, kernel, runs, environment, min(os) as os,
                      count(*) as servers
               from (select package_set, update_set, os_release, kernel, runs, os, ",
        );
        match separate {
            [] => text.add("cast(null as text) as environment"),
            some => text
                .add("case when environment in ")
                .list(some.iter().map(put))
                .add(" then environment end as environment"),
        };
        text.add(
            " from servers where removed_at is null and package_set is not null and org_id = ",
        );
        text.bind(put(&org));
        if let Some(environments) = environments {
            text.add(" and environment in ").list(environments.iter().map(put));
        }
        text.add(") s group by package_set, update_set, os_release, kernel, runs, environment) k");
        text.add(" order by package_set, update_set, os_release, kernel, runs, environment");
        text.build_as().fetch_all(c).await
    })?)
}

async fn delete_by_digest(
    tx: &mut Tx,
    org: OrgId,
    (table, column): (&'static str, &'static str),
    removed: &[Digest],
) -> Result<()> {
    for chunk in removed.chunks(ROWS_MAX) {
        on!(tx, |c| {
            let mut text = Text::new(table);
            text.bind(put(&org)).add(column).equals_any(chunk.iter().map(put));
            text.build().execute(c).await.map(drop)
        })?;
    }
    Ok(())
}

/// The number of CVEs of each severity.
pub type CvesBySeverity = BTreeMap<Severity, u32>;

/// The counts that servers of one kind share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KindCounts {
    pub cves: CvesBySeverity,
    /// The number of packages that could not be assessed.
    pub unassessed: u32,
}

impl KindCounts {
    /// Whether there is nothing to store.
    pub fn is_empty(&self) -> bool {
        self.cves.is_empty() && self.unassessed == 0
    }
}

row! {
    struct CountRow in "finding_counts" by "org_id" {
        count_key: Digest,
        cves: CvesBySeverity,
        unassessed: u32,
    }
}

impl CountRow {
    fn into_pair(self) -> (Digest, KindCounts) {
        (self.count_key, KindCounts { cves: self.cves, unassessed: self.unassessed })
    }
}

/// The counts of these kinds, or of all, by [`ServerKind::count_key`]. A kind that is not in the
/// result has no CVE and no unassessed package.
#[boxed]
pub async fn counts(
    conn: &mut Conn,
    org: OrgId,
    these: Option<&[Digest]>,
) -> Result<BTreeMap<Digest, KindCounts>> {
    let mut found: Vec<CountRow> = Vec::new();
    let Some(these) = these else {
        found = on!(conn, |c| {
            let mut text = Text::new("select ");
            text.add(CountRow::COLUMNS).add(" from finding_counts where org_id = ");
            text.bind(put(&org)).build_as().fetch_all(c).await
        })?;
        return Ok(found.into_iter().map(CountRow::into_pair).collect());
    };
    for chunk in these.chunks(ROWS_MAX) {
        found.extend(on!(conn, |c| {
            let mut text = Text::new("select ");
            text.add(CountRow::COLUMNS).add(" from finding_counts where org_id = ").bind(put(&org));
            text.add(" and count_key").equals_any(chunk.iter().map(put));
            text.build_as::<CountRow>().fetch_all(c).await
        })?);
    }
    Ok(found.into_iter().map(CountRow::into_pair).collect())
}

/// Stores counts.
#[boxed]
pub async fn put_counts(tx: &mut Tx, org: OrgId, counts: &[(Digest, KindCounts)]) -> Result<()> {
    for chunk in counts.chunks(ROWS_MAX) {
        on!(tx, |c| {
            Text::new("insert into finding_counts (org_id, count_key, cves, unassessed) ")
                .rows(chunk, |row, (count_key, tallied)| {
                    row.bind(put(&org)).bind(put(count_key)).bind(put(&tallied.cves));
                    row.bind(put(&tallied.unassessed));
                })
                .add(
                    " on conflict (org_id, count_key) do update
                         set cves = excluded.cves, unassessed = excluded.unassessed",
                )
                .build()
                .execute(c)
                .await
                .map(drop)
        })?;
    }
    Ok(())
}

/// Deletes counts of kinds that no longer have anything to count or any servers.
#[boxed]
pub async fn delete_counts(tx: &mut Tx, org: OrgId, removed: &[Digest]) -> Result<()> {
    let table = ("delete from finding_counts where org_id = ", " and count_key");
    delete_by_digest(tx, org, table, removed).await
}

/// The sets of pending updates that name CVEs which no feed contains.
#[boxed]
pub async fn vendor_reported_sets(conn: &mut Conn, org: OrgId) -> Result<BTreeSet<Digest>> {
    row! {
        struct VendorReportedSet in "cve_updates" by "org_id" {
            update_set: Digest,
        }
    }
    let found: Vec<VendorReportedSet> = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select distinct ",
            VendorReportedSet::COLUMNS,
            " from cve_updates where org_id = $1",
        ]))
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?;
    Ok(found.into_iter().map(|row| row.update_set).collect())
}

/// Records which CVEs sets of pending updates name.
#[boxed]
pub async fn put_vendor_reported(
    tx: &mut Tx,
    org: OrgId,
    reported: &[(Arc<str>, Digest)],
) -> Result<()> {
    for chunk in reported.chunks(ROWS_MAX) {
        on!(tx, |c| {
            Text::new("insert into cve_updates (org_id, cve, update_set) ")
                .rows(chunk, |row, (cve, set)| {
                    row.bind(put(&org)).bind(cve.to_string()).bind(put(set));
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

/// Deletes what was recorded for sets of pending updates.
#[boxed]
pub async fn delete_vendor_reported(tx: &mut Tx, org: OrgId, removed: &[Digest]) -> Result<()> {
    let table = ("delete from cve_updates where org_id = ", " and update_set");
    delete_by_digest(tx, org, table, removed).await
}
