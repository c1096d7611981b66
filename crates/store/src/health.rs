//! Checks of the database and the fleet, for `doctor` and for `engine::leader`.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeMap;

use jiff::Timestamp;
use vocab::{Environment, OrgId};

use crate::db::{Conn, Db, Wire, on};
use crate::error::Result;
use crate::row::put;
use crate::sql::Text;

/// The number of servers of all organizations per agent version.
#[boxed]
pub async fn agent_versions(conn: &mut Conn) -> Result<BTreeMap<String, u64>> {
    let found: Vec<(String, i64)> = on!(conn, |c| {
        sqlx::query_as(
            "select agent_version, count(*) from servers where removed_at is null
              group by agent_version",
        )
        .fetch_all(c)
        .await
    })?;
    Ok(found.into_iter().map(|(version, count)| (version, count.unsigned_abs())).collect())
}

/// The number of servers of an organization per architecture and agent version, in these
/// environments; `None` means all.
#[boxed]
pub async fn agents(
    conn: &mut Conn,
    org: OrgId,
    environments: Option<&[Environment]>,
) -> Result<Vec<(String, String, u64)>> {
    let found: Vec<(String, String, Option<String>, i64)> = on!(conn, |c| {
        let mut text = Text::new("select arch, agent_version, environment, count(*) from servers");
        // Without statistics SQLite would read the wide rows of all servers.
        text.add_for_engine([" indexed by servers_agent", ""]);
        text.add(" where removed_at is null and org_id = ").bind(put(&org));
        text.add(" group by arch, agent_version, environment");
        text.build_as().fetch_all(c).await
    })?;
    let visible = |name: &Option<String>| match (environments, name) {
        (None, _) => true,
        (Some(within), Some(name)) => within.iter().any(|one| one.as_str() == name),
        (Some(_), None) => false,
    };
    let mut all: BTreeMap<(String, String), u64> = BTreeMap::new();
    for (arch, version, environment, count) in found {
        if visible(&environment) {
            *all.entry((arch, version)).or_default() += count.unsigned_abs();
        }
    }
    Ok(all.into_iter().map(|((arch, version), count)| (arch, version, count)).collect())
}

/// Counts of an organization, for the metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FleetCounts {
    /// Pending updates over all servers, and how many of them fix vulnerabilities.
    pub updates: u64,
    pub security_updates: u64,
    /// CVEs that some server has unsuppressed: the order of the severity (0 is `critical`), whether
    /// it is known to be exploited, and the number of CVEs.
    pub cves: Vec<(i64, bool, u64)>,
    /// Unfinished batches by phase.
    pub batches: BTreeMap<String, u64>,
    /// The tasks of unfinished batches: `running`, or their state.
    pub tasks: BTreeMap<String, u64>,
}

#[boxed]
pub async fn fleet_counts(conn: &mut Conn, org: OrgId) -> Result<FleetCounts> {
    let (updates, security): (Option<i64>, Option<i64>) = on!(conn, |c| {
        sqlx::query_as(
            "select cast(sum(updates) as bigint), cast(sum(security_updates) as bigint)
               from servers where removed_at is null and org_id = $1",
        )
        .bind(put(&org))
        .fetch_one(c)
        .await
    })?;
    let cves: Vec<(i64, i64, i64)> = on!(conn, |c| {
        sqlx::query_as(
            "select severity_order, kev_order, count(*) from cves
              where org_id = $1 and servers_order < 0 group by severity_order, kev_order",
        )
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?;
    let batches: Vec<(String, i64)> = on!(conn, |c| {
        sqlx::query_as(
            "select phase, count(*) from rollouts where ended_at is null and org_id = $1
              group by phase",
        )
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?;
    let tasks: Vec<(String, i64)> = on!(conn, |c| {
        sqlx::query_as(
            "select case when t.deadline is null then t.state else 'running' end as task_state, count(*)
               from rollouts r join rollout_tasks t on t.rollout_id = r.id
              where r.ended_at is null and r.org_id = $1 group by task_state",
        )
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?;
    let number = |count: Option<i64>| count.unwrap_or_default().unsigned_abs();
    let by_name = |rows: Vec<(String, i64)>| {
        rows.into_iter().map(|(name, count)| (name, count.unsigned_abs())).collect()
    };
    let cve = |(severity, kev, count): (i64, i64, i64)| (severity, kev == 0, count.unsigned_abs());
    Ok(FleetCounts {
        updates: number(updates),
        security_updates: number(security),
        cves: cves.into_iter().map(cve).collect(),
        batches: by_name(batches),
        tasks: by_name(tasks),
    })
}

/// The number of quarantined servers of all organizations.
#[boxed]
pub async fn quarantined(conn: &mut Conn) -> Result<u64> {
    let (count,): (i64,) = on!(conn, |c| {
        sqlx::query_as(
            "select count(*) from servers where removed_at is null and quarantine is not null",
        )
        .fetch_one(c)
        .await
    })?;
    Ok(count.unsigned_abs())
}

/// When any agent was last seen.
#[boxed]
pub async fn last_seen(conn: &mut Conn) -> Result<Option<Timestamp>> {
    let text = "select max(last_seen_at) from presence";
    Ok(match conn.wire() {
        Wire::Sqlite(c) => {
            let (micros,): (Option<i64>,) = sqlx::query_as(text).fetch_one(c).await?;
            micros.and_then(|micros| Timestamp::from_microsecond(micros).ok())
        }
        Wire::Pg(c) => {
            let (at,): (Option<i64>,) = sqlx::query_as(
                "select (extract(epoch from max(last_seen_at)) * 1000000)::bigint from presence",
            )
            .fetch_one(c)
            .await?;
            at.and_then(|micros| Timestamp::from_microsecond(micros).ok())
        }
    })
}

/// The time of PostgreSQL's clock; `None` for SQLite, which runs in this process.
#[boxed]
pub async fn clock(conn: &mut Conn) -> Result<Option<Timestamp>> {
    let Wire::Pg(c) = conn.wire() else { return Ok(None) };
    let (micros,): (i64,) =
        sqlx::query_as("select (extract(epoch from clock_timestamp()) * 1000000)::bigint")
            .fetch_one(c)
            .await?;
    Ok(Timestamp::from_microsecond(micros).ok())
}

/// Checks whether PostgreSQL's disk has space for new rows, by writing a megabyte and rolling back.
/// Small updates do not show that, because PostgreSQL reuses the space of older row versions. Does
/// nothing for SQLite, where every write needs space.
#[boxed]
pub async fn check_space(db: &Db) -> Result<()> {
    let mut tx = db.begin().await?;
    if let Wire::Pg(c) = tx.wire() {
        for text in [
            "create table space_check (filler text)",
            "insert into space_check select repeat('x', 1000) from generate_series(1, 1000)",
        ] {
            sqlx::query(text).execute(&mut *c).await?;
        }
    }
    tx.rollback().await
}
