//! Where each server stands with each policy.
//!
//! `service::projections::compliance` judges servers in the background and writes these rows; this
//! module only stores. A reader finds numbers in `compliance_counts` (one row per policy,
//! environment and state) and lists in the indexes of `compliance_states`, so that no request scans
//! the fleet. What servers have to fix is stored by content: servers with the same fixes since the
//! same time share one row.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, BTreeSet};

use domain::policy::Obligation;
use jiff::Timestamp;
use jiff::civil::Date;
use vocab::{
    ComplianceState, Digest, Environment, OrgId, Os, PolicyId, ServerId, Tag, UnknownCompliance,
};

use crate::advisories::{compress_json, decompress_json};
use crate::db::{Conn, on};
use crate::error::{Result, StoreError, expect_one_row};
use crate::row::{put, row, via};
use crate::server_list::parse_ids;
use crate::sql::{ROWS_MAX, Text, join};
use crate::tx::Tx;
use crate::{Page, Paged};

via!(ComplianceState, UnknownCompliance);

/// The due date of a server without one.
const NEVER: i64 = i64::MAX;

/// How an environment is stored: servers without one are counted under the empty text.
fn stored(environment: Option<&Environment>) -> String {
    environment.map(ToString::to_string).unwrap_or_default()
}

/// The environment that [`stored`] wrote.
fn environment(text: &str) -> Option<Environment> {
    text.parse().ok()
}

row! {
    /// What the rows of an organization were computed from.
    pub struct Summary in "compliance_summaries" by "org_id" {
        pub org_id: OrgId,
        /// A digest of what the servers were judged by.
        pub basis: Digest,
        /// The day whose counts were written last.
        pub day: Date,
        /// When the rows were last written.
        pub made_at: Timestamp,
        /// Incremented by every transaction that writes.
        pub generation: i64,
    }
}

/// `None` if the servers of the organization were never judged.
#[boxed]
pub async fn summary(conn: &mut Conn, org: OrgId) -> Result<Option<Summary>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Summary::COLUMNS,
            " from compliance_summaries where org_id = $1",
        ]))
        .bind(put(&org))
        .fetch_optional(c)
        .await
    })?)
}

/// Writes the summary, and keeps other processes from writing until this transaction ends. Fails
/// with `Stale` if another process has written since `next.generation` was read.
#[boxed]
pub async fn save_summary(tx: &mut Tx, next: &Summary) -> Result<()> {
    let saved = on!(tx, |c| {
        sqlx::query(
            "insert into compliance_summaries (org_id, basis, day, made_at, generation)
             values ($1, $2, $3, $4, $5 + 1)
             on conflict (org_id) do update
                set basis = excluded.basis, day = excluded.day, made_at = excluded.made_at,
                    generation = excluded.generation
              where compliance_summaries.generation = $5",
        )
        .bind(put(&next.org_id))
        .bind(put(&next.basis))
        .bind(put(&next.day))
        .bind(put(&next.made_at))
        .bind(next.generation)
        .execute(c)
        .await
        .map(|done| done.rows_affected())
    })?;
    expect_one_row(saved)
}

row! {
    /// A server that has to be judged, with what was known when it was last judged.
    pub struct Candidate in "servers" by "id" {
        pub id: ServerId,
        pub environment: Option<Environment>,
        pub tags: Vec<Tag>,
        pub os: Os,
        pub os_release: String,
        pub kernel: String,
        pub runs: String,
        pub package_set: Option<Digest>,
        pub update_set: Option<Digest>,
        pub last_scan_at: Option<Timestamp>,
        pub generation: i64,
        /// The revision at which the findings of its packages last changed; -1: not matched yet.
        pub findings_revision: i64,
        pub seen_generation: Option<i64>,
        pub seen_revision: Option<i64>,
        pub seen_fixes_basis: Option<Digest>,
        pub obligations: Option<Digest>,
    }
}

/// What servers are judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bases {
    /// What decides which fixes exist, beside the servers and their findings.
    pub fixes: Digest,
    /// What decides how they are judged, such as the policies.
    pub judgement: Digest,
}

/// The servers after `after` that have to be judged: they are new, they changed, their findings
/// changed, the bases changed, or their time has come. In the order of their ids.
#[boxed]
pub async fn candidates(
    conn: &mut Conn,
    org: OrgId,
    bases: Bases,
    now: Timestamp,
    after: Option<ServerId>,
    limit: u32,
) -> Result<Vec<Candidate>> {
    Ok(on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Candidate::COLUMNS,
            " from (select s.id, s.environment, s.tags, s.os, s.os_release, s.kernel, s.runs,
                      s.package_set, s.update_set, s.last_scan_at, s.generation,
                      coalesce((select max(f.changed) from finding_sets f
                                 where f.org_id = s.org_id and f.package_set = s.package_set), -1)
                        as findings_revision,
                      c.generation as seen_generation, c.findings_revision as seen_revision,
                      c.fixes_basis as seen_fixes_basis, c.basis as seen_basis,
                      c.obligations, c.next_at
                 from servers s
                 left join compliance_servers c on c.org_id = s.org_id and c.server_id = s.id
                where s.org_id = $1 and s.removed_at is null and s.id > $2) known
              where seen_generation is null or seen_generation <> generation
                 or seen_revision <> findings_revision or seen_fixes_basis <> $3
                 or seen_basis <> $4 or next_at <= $5
              order by id limit $6",
        ]))
        .bind(put(&org))
        .bind(after.map(|id| id.to_string()).unwrap_or_default())
        .bind(put(&bases.fixes))
        .bind(put(&bases.judgement))
        .bind(put(&now))
        .bind(i64::from(limit))
        .fetch_all(c)
        .await
    })?)
}

/// When the judgement of some server changes next, if nothing but time passes.
#[boxed]
pub async fn next_change(conn: &mut Conn, org: OrgId) -> Result<Option<Timestamp>> {
    row! {
        struct Next in "compliance_servers" by "org_id" {
            next_at: Option<Timestamp>,
        }
    }
    let next: Next = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Next::COLUMNS,
            " from (select min(next_at) as next_at from compliance_servers
                     where org_id = $1 and next_at is not null) earliest",
        ]))
        .bind(put(&org))
        .fetch_one(c)
        .await
    })?;
    Ok(next.next_at)
}

row! {
    struct StoredObligations in "compliance_obligations" by "org_id" {
        digest: Digest,
        obligations: Vec<u8>,
    }
}

/// The obligations with these digests.
#[boxed]
pub async fn obligations(
    conn: &mut Conn,
    org: OrgId,
    digests: &BTreeSet<Digest>,
) -> Result<BTreeMap<Digest, Vec<Obligation>>> {
    let digests: Vec<&Digest> = digests.iter().collect();
    let mut found = BTreeMap::new();
    for chunk in digests.chunks(ROWS_MAX) {
        let rows: Vec<StoredObligations> = on!(conn, |c| {
            let mut text = Text::new("select ");
            text.add(StoredObligations::COLUMNS);
            text.add(" from compliance_obligations where org_id = ").bind(put(&org));
            text.add(" and digest").equals_any(chunk.iter().map(|digest| put(*digest)));
            text.build_as().fetch_all(c).await
        })?;
        for row in rows {
            let read = decompress_json(&row.obligations).map_err(|source| StoreError::Corrupt {
                table: "compliance_obligations",
                id: row.digest.to_string(),
                source,
            })?;
            found.insert(row.digest, read);
        }
    }
    Ok(found)
}

/// The digest under which obligations are stored.
pub fn obligations_digest(obligations: &[Obligation]) -> Digest {
    Digest::compute(crate::row::to_json(&obligations).as_bytes())
}

/// Stores obligations under their digests.
#[boxed]
pub async fn put_obligations(
    tx: &mut Tx,
    org: OrgId,
    sets: &[(Digest, &Vec<Obligation>)],
) -> Result<()> {
    for chunk in sets.chunks(ROWS_MAX) {
        on!(tx, |c| {
            Text::new("insert into compliance_obligations (org_id, digest, obligations) ")
                .rows(chunk, |row, (digest, obligations)| {
                    row.bind(put(&org)).bind(put(digest)).bind(compress_json(obligations));
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

/// Deletes obligations that no server has any more.
#[boxed]
pub async fn delete_unused_obligations(tx: &mut Tx, org: OrgId) -> Result<()> {
    Ok(on!(tx, |c| {
        sqlx::query(
            "delete from compliance_obligations
              where org_id = $1 and not exists (
                select 1 from compliance_servers s
                 where s.org_id = compliance_obligations.org_id
                   and s.obligations = compliance_obligations.digest)",
        )
        .bind(put(&org))
        .execute(c)
        .await
        .map(drop)
    })?)
}

/// A server that was judged.
#[derive(Debug, Clone, PartialEq)]
pub struct JudgedServer {
    pub id: ServerId,
    pub generation: i64,
    pub findings_revision: i64,
    pub obligations: Option<Digest>,
    /// When its judgement changes if nothing but time passes.
    pub next_at: Option<Timestamp>,
}

/// Records that these servers were judged.
#[boxed]
pub async fn put_servers(
    tx: &mut Tx,
    org: OrgId,
    bases: Bases,
    servers: &[JudgedServer],
) -> Result<()> {
    for chunk in servers.chunks(ROWS_MAX) {
        on!(tx, |c| {
            Text::new(
                "insert into compliance_servers (org_id, server_id, generation, findings_revision,
                    fixes_basis, basis, obligations, next_at) ",
            )
            .rows(chunk, |row, server| {
                row.bind(put(&org)).bind(put(&server.id)).bind(server.generation);
                row.bind(server.findings_revision);
                row.bind(put(&bases.fixes)).bind(put(&bases.judgement));
                row.bind(put(&server.obligations)).bind(put(&server.next_at));
            })
            .add(
                " on conflict (org_id, server_id) do update
                     set generation = excluded.generation,
                         findings_revision = excluded.findings_revision,
                         fixes_basis = excluded.fixes_basis, basis = excluded.basis,
                         obligations = excluded.obligations, next_at = excluded.next_at",
            )
            .build()
            .execute(c)
            .await
            .map(drop)
        })?;
    }
    Ok(())
}

/// What a server has to fix, as it was last judged; `None` if it was never judged.
#[boxed]
pub async fn obligations_of(
    conn: &mut Conn,
    org: OrgId,
    server: ServerId,
) -> Result<Option<Vec<Obligation>>> {
    row! {
        struct Known in "compliance_servers" by "org_id" {
            obligations: Option<Digest>,
        }
    }
    let known: Option<Known> = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            Known::COLUMNS,
            " from compliance_servers where org_id = $1 and server_id = $2",
        ]))
        .bind(put(&org))
        .bind(put(&server))
        .fetch_optional(c)
        .await
    })?;
    let Some(digest) = known.and_then(|known| known.obligations) else { return Ok(None) };
    Ok(obligations(conn, org, &BTreeSet::from([digest])).await?.remove(&digest))
}

/// Servers that were removed, and still have rows here.
#[boxed]
pub async fn removed_servers(conn: &mut Conn, org: OrgId, limit: u32) -> Result<Vec<ServerId>> {
    parse_ids(on!(conn, |c| {
        sqlx::query_as(
            "select s.id from servers s
               join compliance_servers c on c.org_id = s.org_id and c.server_id = s.id
              where s.org_id = $1 and s.removed_at is not null
              order by s.id limit $2",
        )
        .bind(put(&org))
        .bind(i64::from(limit))
        .fetch_all(c)
        .await
    })?)
}

/// Forgets what these servers have to fix. Their states are deleted with [`delete_states`].
#[boxed]
pub async fn delete_servers(tx: &mut Tx, org: OrgId, servers: &[ServerId]) -> Result<()> {
    for chunk in servers.chunks(ROWS_MAX) {
        on!(tx, |c| {
            let mut text = Text::new("delete from compliance_servers where org_id = ");
            text.bind(put(&org)).add(" and server_id").equals_any(chunk.iter().map(put));
            text.build().execute(c).await.map(drop)
        })?;
    }
    Ok(())
}

row! {
    struct StateRow in "compliance_states" by "server_id" {
        policy_id: PolicyId,
        server_id: ServerId,
        environment: String,
        state: ComplianceState,
        unknown: Option<UnknownCompliance>,
        due: i64,
        open: u32,
        overdue: u32,
        breached: bool,
    }
}

/// Where a server stands with a policy.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerState {
    pub policy_id: PolicyId,
    pub server_id: ServerId,
    pub environment: Option<Environment>,
    pub state: ComplianceState,
    /// Why the state is unknown.
    pub unknown: Option<UnknownCompliance>,
    /// Its earliest due date.
    pub due_at: Option<Timestamp>,
    /// The number of fixes that the policy requires, and how many are overdue.
    pub open: u32,
    pub overdue: u32,
    /// Whether it has breached the policy and has not satisfied it since.
    pub breached: bool,
}

impl From<StateRow> for ServerState {
    fn from(row: StateRow) -> ServerState {
        ServerState {
            policy_id: row.policy_id,
            server_id: row.server_id,
            environment: environment(&row.environment),
            state: row.state,
            unknown: row.unknown,
            due_at: due_at(row.due),
            open: row.open,
            overdue: row.overdue,
            breached: row.breached,
        }
    }
}

fn due_at(due: i64) -> Option<Timestamp> {
    (due != NEVER).then(|| Timestamp::from_microsecond(due).ok()).flatten()
}

/// The states of these servers, in no particular order.
#[boxed]
pub async fn states_of(
    conn: &mut Conn,
    org: OrgId,
    servers: &[ServerId],
) -> Result<Vec<ServerState>> {
    let mut found = Vec::new();
    for chunk in servers.chunks(ROWS_MAX) {
        let rows: Vec<StateRow> = on!(conn, |c| {
            let mut text = Text::new("select ");
            text.add(StateRow::COLUMNS).add(" from compliance_states where org_id = ");
            text.bind(put(&org)).add(" and server_id").equals_any(chunk.iter().map(put));
            text.build_as().fetch_all(c).await
        })?;
        found.extend(rows.into_iter().map(ServerState::from));
    }
    Ok(found)
}

/// Inserts or replaces states. The caller adjusts the counts: see [`add_counts`].
#[boxed]
pub async fn put_states(tx: &mut Tx, org: OrgId, states: &[ServerState]) -> Result<()> {
    for chunk in states.chunks(ROWS_MAX) {
        on!(tx, |c| {
            Text::new(
                "insert into compliance_states (org_id, policy_id, server_id, environment, state,
                    unknown, due, open, overdue, breached) ",
            )
            .rows(chunk, |row, state| {
                row.bind(put(&org)).bind(put(&state.policy_id)).bind(put(&state.server_id));
                row.bind(stored(state.environment.as_ref())).bind(put(&state.state));
                row.bind(put(&state.unknown));
                row.bind(state.due_at.map_or(NEVER, Timestamp::as_microsecond));
                row.bind(put(&state.open)).bind(put(&state.overdue)).bind(state.breached);
            })
            .add(
                " on conflict (org_id, policy_id, server_id) do update
                     set environment = excluded.environment, state = excluded.state,
                         unknown = excluded.unknown, due = excluded.due, open = excluded.open,
                         overdue = excluded.overdue, breached = excluded.breached",
            )
            .build()
            .execute(c)
            .await
            .map(drop)
        })?;
    }
    Ok(())
}

/// Deletes the states of these servers with these policies.
#[boxed]
pub async fn delete_states(
    tx: &mut Tx,
    org: OrgId,
    removed: &BTreeMap<PolicyId, Vec<ServerId>>,
) -> Result<()> {
    for (policy, servers) in removed {
        for chunk in servers.chunks(ROWS_MAX) {
            on!(tx, |c| {
                let mut text = Text::new("delete from compliance_states where org_id = ");
                text.bind(put(&org)).add(" and policy_id = ").bind(put(policy));
                text.add(" and server_id").equals_any(chunk.iter().map(put));
                text.build().execute(c).await.map(drop)
            })?;
        }
    }
    Ok(())
}

/// What servers are counted by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CountKey {
    pub policy_id: PolicyId,
    pub environment: Option<Environment>,
    pub state: ComplianceState,
}

/// Adds to the counts.
#[boxed]
pub async fn add_counts(tx: &mut Tx, org: OrgId, more: &BTreeMap<CountKey, i64>) -> Result<()> {
    let more: Vec<(&CountKey, &i64)> = more.iter().filter(|(_, more)| **more != 0).collect();
    if more.is_empty() {
        return Ok(());
    }
    for chunk in more.chunks(ROWS_MAX) {
        on!(tx, |c| {
            Text::new(
                "insert into compliance_counts (org_id, policy_id, environment, state, servers) ",
            )
            .rows(chunk, |row, (key, more)| {
                row.bind(put(&org)).bind(put(&key.policy_id));
                row.bind(stored(key.environment.as_ref())).bind(put(&key.state)).bind(**more);
            })
            .add(
                " on conflict (org_id, policy_id, environment, state) do update
                     set servers = compliance_counts.servers + excluded.servers",
            )
            .build()
            .execute(c)
            .await
            .map(drop)
        })?;
    }
    Ok(on!(tx, |c| {
        sqlx::query("delete from compliance_counts where org_id = $1 and servers = 0")
            .bind(put(&org))
            .execute(c)
            .await
            .map(drop)
    })?)
}

row! {
    struct CountRow in "compliance_counts" by "policy_id" {
        policy_id: PolicyId,
        environment: String,
        state: ComplianceState,
        servers: u64,
    }
}

/// The number of servers by policy, environment and state. Also returns what policies that were
/// deleted have left.
#[boxed]
pub async fn counts(conn: &mut Conn, org: OrgId) -> Result<BTreeMap<CountKey, u64>> {
    let rows: Vec<CountRow> = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            CountRow::COLUMNS,
            " from compliance_counts where org_id = $1",
        ]))
        .bind(put(&org))
        .fetch_all(c)
        .await
    })?;
    let pair = |row: CountRow| {
        let environment = environment(&row.environment);
        (CountKey { policy_id: row.policy_id, environment, state: row.state }, row.servers)
    };
    Ok(rows.into_iter().map(pair).collect())
}

/// The earliest due date of the servers of an environment that breach a policy.
#[boxed]
pub async fn oldest_breach(
    conn: &mut Conn,
    org: OrgId,
    policy: PolicyId,
    environment: Option<&Environment>,
) -> Result<Option<Timestamp>> {
    let due: Option<(i64,)> = on!(conn, |c| {
        sqlx::query_as(
            "select due from compliance_states
              where org_id = $1 and policy_id = $2 and environment = $3 and state = 'breaching'
              order by due limit 1",
        )
        .bind(put(&org))
        .bind(put(&policy))
        .bind(stored(environment))
        .fetch_optional(c)
        .await
    })?;
    Ok(due.and_then(|(due,)| due_at(due)))
}

/// Which servers of a policy to list.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    /// Only servers in one of these environments; `None` in the list stands for servers without one.
    pub environments: Option<Vec<Option<Environment>>>,
    pub state: Option<ComplianceState>,
}

/// A page of the servers of a policy, the earliest due date first, then those without one. `total`
/// is what [`counts`] says.
#[boxed]
pub async fn list(
    conn: &mut Conn,
    org: OrgId,
    policy: PolicyId,
    filter: &Filter,
    page: Page,
) -> Result<Paged<ServerState>> {
    if filter.environments.as_ref().is_some_and(Vec::is_empty) {
        return Ok(Paged { items: Vec::new(), total: 0 });
    }
    let rows: Vec<StateRow> = on!(conn, |c| {
        let mut text = Text::new("select ");
        text.add(StateRow::COLUMNS).add(" from compliance_states where org_id = ");
        text.bind(put(&org)).add(" and policy_id = ").bind(put(&policy));
        match filter.environments.as_deref() {
            None => {}
            Some([one]) => {
                text.add(" and environment = ").bind(stored(one.as_ref()));
            }
            Some(some) => {
                let some = some.iter().map(|one| stored(one.as_ref()));
                text.add(" and environment in ").list(some);
            }
        }
        if let Some(state) = filter.state {
            text.add(" and state = ").bind(put(&state));
        }
        text.add(" order by due, server_id limit ").bind(i64::from(page.limit));
        text.add(" offset ").bind(put(&page.offset));
        text.build_as().fetch_all(c).await
    })?;
    let counted = counts(conn, org).await?;
    let total = counted
        .iter()
        .filter(|(key, _)| {
            key.policy_id == policy
                && filter.state.is_none_or(|state| state == key.state)
                && filter.environments.as_ref().is_none_or(|some| some.contains(&key.environment))
        })
        .map(|(_, servers)| servers)
        .sum();
    Ok(Paged { items: rows.into_iter().map(ServerState::from).collect(), total })
}

row! {
    struct DayRow in "compliance_days" by "policy_id" {
        policy_id: PolicyId,
        environment: String,
        day: Date,
        compliant: u64,
        due_soon: u64,
        breaching: u64,
        unknown: u64,
    }
}

/// The counts of a policy in an environment on one day.
#[derive(Debug, Clone, PartialEq)]
pub struct Day {
    pub policy_id: PolicyId,
    pub environment: Option<Environment>,
    /// The day in UTC.
    pub day: Date,
    pub compliant: u64,
    pub due_soon: u64,
    pub breaching: u64,
    pub unknown: u64,
}

/// Writes the counts of a day, replacing all that were written for it before.
#[boxed]
pub async fn write_day(tx: &mut Tx, org: OrgId, day: Date, rows: &[Day]) -> Result<()> {
    on!(tx, |c| {
        sqlx::query("delete from compliance_days where org_id = $1 and day = $2")
            .bind(put(&org))
            .bind(put(&day))
            .execute(c)
            .await
            .map(drop)
    })?;
    for chunk in rows.chunks(ROWS_MAX) {
        on!(tx, |c| {
            Text::new(
                "insert into compliance_days (org_id, policy_id, environment, day, compliant,
                    due_soon, breaching, unknown) ",
            )
            .rows(chunk, |row, one| {
                row.bind(put(&org)).bind(put(&one.policy_id));
                row.bind(stored(one.environment.as_ref())).bind(put(&one.day));
                row.bind(put(&one.compliant)).bind(put(&one.due_soon));
                row.bind(put(&one.breaching)).bind(put(&one.unknown));
            })
            .build()
            .execute(c)
            .await
            .map(drop)
        })?;
    }
    Ok(())
}

/// The counts of a policy from the day `first` on, oldest first.
#[boxed]
pub async fn days(conn: &mut Conn, org: OrgId, policy: PolicyId, first: Date) -> Result<Vec<Day>> {
    let rows: Vec<DayRow> = on!(conn, |c| {
        sqlx::query_as(join(&[
            "select ",
            DayRow::COLUMNS,
            " from compliance_days where org_id = $1 and policy_id = $2 and day >= $3
               order by day, environment",
        ]))
        .bind(put(&org))
        .bind(put(&policy))
        .bind(put(&first))
        .fetch_all(c)
        .await
    })?;
    let day = |row: DayRow| Day {
        policy_id: row.policy_id,
        environment: environment(&row.environment),
        day: row.day,
        compliant: row.compliant,
        due_soon: row.due_soon,
        breaching: row.breaching,
        unknown: row.unknown,
    };
    Ok(rows.into_iter().map(day).collect())
}

/// Deletes the days before `first` of every organization.
#[boxed]
pub async fn purge_days(tx: &mut Tx, first: Date) -> Result<u64> {
    Ok(on!(tx, |c| {
        sqlx::query("delete from compliance_days where day < $1")
            .bind(put(&first))
            .execute(c)
            .await
            .map(|done| done.rows_affected())
    })?)
}
