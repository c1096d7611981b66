//! Pending updates by package, ready to be listed.
//!
//! A page of patches is one page of one index, even with 100,000 servers.
//! `service::projections::patches` computes the rows in the background from the distinct sets that
//! [`kinds`] counts. This module does not look inside a set.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use serde_json::Value;
use vocab::{Digest, Environment, OrgId, Os, UpdateType};

use crate::db::{Conn, on};
use crate::error::{Result, StoreError, guarded};
use crate::row::{put, row, via};
use crate::servers::Server;
use crate::sql::{ROWS_MAX, Text, join};
use crate::tx::Tx;
use crate::{Page, Paged};

via!(UpdateType);

row! {
    /// Servers with one list of pending updates, one of packages, one system and one running kernel.
    pub struct Kind in "servers" by "os_release" {
        /// The list of updates; `None`: they have not sent one.
        pub update_set: Option<Digest>,
        /// The list of packages.
        pub package_set: Option<Digest>,
        /// The system: `debian 12`.
        pub os_release: String,
        /// The kernel that runs.
        pub kernel: String,
        /// What else runs beside what is installed.
        pub runs: String,
        /// The system, as one of them tells it.
        pub os: Os,
        /// How many they are.
        pub servers: u64,
        /// How many of them want a reboot.
        pub reboot_required: u64,
        /// How many of them get no orders until a person decides.
        pub quarantined: u64,
        /// How many of them have updates pending.
        pub outdated: u64,
        /// How many of them were last scanned too long ago, and are in no other count of scans.
        pub stale: u64,
        /// How many of them have security updates pending.
        pub insecure: u64,
        /// How many the one of them has that has the fewest.
        pub fewest: u32,
        /// How many the one of them has that has the most.
        pub most: u32,
    }
}

row! {
    /// A package with an update pending somewhere in the organization.
    pub struct Patch in "patches" by "package_name" {
        /// Its name.
        pub package_name: String,
        /// The worst first: 0 is `critical`.
        pub severity_order: i64,
        /// 0: known to be exploited; 1: not.
        pub kev_order: i64,
        /// How many servers wait for it, times -1: the most first.
        pub servers_order: i64,
        /// What it is for.
        pub update_type: UpdateType,
        /// Who says how bad it is.
        pub severity_source: Option<String>,
        /// From which version to which, by system.
        pub versions: Value,
        /// The CVEs that it fixes.
        pub cves: Vec<String>,
        /// When a server first reported it.
        pub first_seen_at: Timestamp,
    }
}

row! {
    /// The organization in numbers, and what they were made from.
    pub struct Summary in "fleet_summaries" by "org_id" {
        /// Whose it is.
        pub org_id: OrgId,
        /// Stands for everything that it was made from.
        pub basis: Digest,
        /// The numbers.
        pub counts: Value,
        /// When it was made.
        pub made_at: Timestamp,
        /// How often it was made.
        pub generation: i64,
    }
}

/// What changes in the table when it is made anew.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    /// Rows that are new or different.
    pub put: Vec<Patch>,
    /// Packages of which no update is pending any more.
    pub gone: Vec<String>,
    /// Lists that nobody carries any more.
    pub sets_gone: Vec<Digest>,
}

/// Every kind of server: what the rows are made from. Walks the servers, so it is for the background, and
/// for a key that sees a few environments only.
#[boxed]
pub async fn kinds(
    conn: &mut Conn,
    org: OrgId,
    environments: Option<&[Environment]>,
    stale_before: Timestamp,
) -> Result<Vec<Kind>> {
    if environments.is_some_and(<[Environment]>::is_empty) {
        return Ok(Vec::new());
    }
    Ok(on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(Kind::COLUMNS).add(
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

/// The numbers as they were last made, if they ever were.
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

/// Puts the new numbers down, unless somebody else did since `next` was begun: then it is `Stale`. The first
/// statement of whoever makes the rows anew, so that two replicas take turns.
#[boxed]
pub async fn begin(tx: &mut Tx, next: &Summary) -> Result<()> {
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
    guarded(saved)
}

/// Every row of the organization, by name.
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

/// The lists whose packages are written down.
#[boxed]
pub async fn sets(conn: &mut Conn, org: OrgId) -> Result<Vec<Digest>> {
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

/// Writes the changes down.
#[boxed]
pub async fn change(tx: &mut Tx, org: OrgId, changes: &Changes) -> Result<()> {
    for chunk in changes.gone.chunks(ROWS_MAX) {
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

/// Writes down which packages these lists name. A list never changes, so this is done before the rows are, some lists a
/// transaction: 100,000 names in one would keep every other writer waiting.
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

/// A page of the patches in the order of the list, those of these severities (by their order) or of all.
#[boxed]
pub async fn list(
    conn: &mut Conn,
    org: OrgId,
    severities: &[i64],
    page: Page,
) -> Result<Paged<Patch>> {
    let items = on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(Patch::COLUMNS).add(" from patches where org_id = ").bind(put(&org));
        if !severities.is_empty() {
            text.add(" and severity_order in ").list(severities.iter().copied());
        }
        text.add(" order by severity_order, kev_order, servers_order, package_name limit ");
        text.bind(i64::from(page.limit)).add(" offset ").bind(put(&page.offset));
        text.build_as().fetch_all(c).await
    })?;
    let (total,): (i64,) = on!(conn, |c| {
        let mut text = Text::new("select count(*) from patches where org_id = ");
        text.bind(put(&org));
        if !severities.is_empty() {
            text.add(" and severity_order in ").list(severities.iter().copied());
        }
        text.build_as().fetch_one(c).await
    })?;
    Ok(Paged { items, total: total.unsigned_abs() })
}

row! {
    /// How many patches of one severity have been pending for about as long.
    pub struct Age in "patches" by "severity_order" {
        /// The worst first: 0 is `critical`.
        pub severity_order: i64,
        /// How many of the bounds they are older than.
        pub older_than: u64,
        /// How many they are.
        pub patches: u64,
    }
}

/// How many patches of each severity were first seen when: after the first of these times, between the first and the
/// second, and so on. In no order.
#[boxed]
pub async fn ages(conn: &mut Conn, org: OrgId, bounds: [Timestamp; 3]) -> Result<Vec<Age>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Age::COLUMNS,
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

/// The patches of these packages, in the order of the list.
#[boxed]
pub async fn of_names(conn: &mut Conn, org: OrgId, names: &[String]) -> Result<Vec<Patch>> {
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

/// One package of this organization.
#[boxed]
pub async fn get(conn: &mut Conn, org: OrgId, name: &str) -> Result<Patch> {
    let found = of_names(conn, org, &[name.to_owned()]).await?.pop();
    found.ok_or_else(|| StoreError::not_found("patch", name))
}

/// The servers that wait for an update of this package, by name, as far as their lists are written down. `patch` is the
/// package's row and `all` how many servers there are: whether few wait or many decides how they are found.
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
    // Few are found by their lists and sorted; if many wait, walking all servers by name fills the page after
    // some `page * all / waiting`.
    let waiting = patch.servers_order.unsigned_abs();
    let page_end = page.offset.saturating_add(page.limit.into());
    let walk_all = waiting.saturating_mul(waiting) > page_end.saturating_mul(all);
    Ok(on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(Server::COLUMNS);
        text.add(" from servers join presence on org = org_id and server_id = id where org_id = ");
        text.bind(put(&org)).add(" and removed_at is null and ");
        // SQLite looks for an expression in no index.
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
