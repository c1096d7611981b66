//! Freezes, and which servers they freeze.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, BTreeSet};

use domain::freeze::{Period, Timing};
use jiff::Timestamp;
use store::freezes;
pub use store::freezes::Freeze;
use store::server_list::{self, Filter};
use store::{Conn, Page, Paged, StoreError};
use vocab::{Criteria, Environment, FreezeId, OrgId, Selector, ServerId};
use wire::v1::FreezePeriod;

use super::Scope;
use super::summary::is_limited_to;
use super::targets::explain_unmatched;
use crate::{App, Result};

/// The number of upcoming periods in a response.
pub const NEXT_PERIODS: usize = 5;

/// Servers per statement when a selector is resolved.
const CHUNK: usize = 5_000;

/// Until when a server is frozen, and the freeze that ends last. Another one may begin before that
/// and last longer.
pub type FrozenUntil = (Timestamp, FreezeId, String);

/// The freezes that are active at `now`, each with the end of its period.
#[boxed]
pub async fn active(
    conn: &mut Conn,
    org: OrgId,
    now: Timestamp,
) -> store::Result<Vec<(Timestamp, Freeze)>> {
    let current = freezes::list_current(conn, org, now).await?;
    let active = |freeze: Freeze| Some((freeze.rule.active_period(now)?.ends_at, freeze));
    Ok(current.into_iter().filter_map(active).collect())
}

/// Those of these servers that are frozen at `now`. Costs one statement to read the freezes, and one
/// for each active freeze that selects servers by a criterion; nothing depends on the size of the
/// fleet.
#[boxed]
pub async fn frozen_until(
    conn: &mut Conn,
    org: OrgId,
    server_ids: &[ServerId],
    now: Timestamp,
) -> store::Result<BTreeMap<ServerId, FrozenUntil>> {
    if server_ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let active = active(conn, org, now).await?;
    frozen_by(conn, org, server_ids, &active).await
}

/// Those of these servers that are frozen at `now`, each with the end of its freeze.
#[boxed]
pub async fn frozen_servers(
    conn: &mut Conn,
    org: OrgId,
    server_ids: &[ServerId],
    now: Timestamp,
) -> store::Result<BTreeMap<ServerId, Timestamp>> {
    let frozen = frozen_until(conn, org, server_ids, now).await?;
    Ok(frozen.into_iter().map(|(server, (until, ..))| (server, until)).collect())
}

/// Those of these servers that one of these freezes selects.
#[boxed]
pub async fn frozen_by(
    conn: &mut Conn,
    org: OrgId,
    server_ids: &[ServerId],
    active: &[(Timestamp, Freeze)],
) -> store::Result<BTreeMap<ServerId, FrozenUntil>> {
    let mut found: BTreeMap<ServerId, FrozenUntil> = BTreeMap::new();
    for (until, freeze) in active {
        for server in selected(conn, org, &freeze.rule.targets, server_ids).await? {
            if found.get(&server).is_none_or(|(known, ..)| known < until) {
                found.insert(server, (*until, freeze.id, freeze.name.clone()));
            }
        }
    }
    Ok(found)
}

/// Whether these freezes together freeze all of these servers, which `targets` selected.
#[boxed]
pub async fn are_all_frozen(
    conn: &mut Conn,
    org: OrgId,
    targets: &Selector,
    server_ids: &[ServerId],
    active: &[(Timestamp, Freeze)],
) -> store::Result<bool> {
    if active.iter().any(|(_, freeze)| freeze.rule.covers(targets)) {
        return Ok(true);
    }
    let distinct: BTreeSet<_> = server_ids.iter().collect();
    Ok(!active.is_empty()
        && frozen_by(conn, org, server_ids, active).await?.len() == distinct.len())
}

/// Those of these servers that match.
async fn selected(
    conn: &mut Conn,
    org: OrgId,
    targets: &Selector,
    server_ids: &[ServerId],
) -> store::Result<Vec<ServerId>> {
    let criteria = match targets {
        Selector::All => return Ok(server_ids.to_vec()),
        Selector::Matching(criteria) => criteria,
    };
    let named: BTreeSet<_> = criteria.server_ids().iter().collect();
    let is_named = |id: &&ServerId| named.is_empty() || named.contains(id);
    let candidates: Vec<ServerId> = server_ids.iter().filter(is_named).copied().collect();
    if selects_by_id_only(criteria) {
        return Ok(candidates);
    }
    let mut found = Vec::new();
    for chunk in candidates.chunks(CHUNK) {
        let filter = Filter { ids: chunk.to_vec(), ..Filter::from(criteria) };
        found.extend(server_list::ids(conn, org, &filter).await?);
    }
    Ok(found)
}

fn selects_by_id_only(criteria: &Criteria) -> bool {
    criteria.environment().is_none() && criteria.os().is_none() && criteria.tags().is_empty()
}

/// When a freeze of the organization begins or ends next.
#[boxed]
pub async fn next_change(
    conn: &mut Conn,
    org: OrgId,
    now: Timestamp,
) -> store::Result<Option<Timestamp>> {
    let current = freezes::list_current(conn, org, now).await?;
    Ok(current.iter().filter_map(|freeze| freeze.rule.next_change(now)).min())
}

/// The freezes that apply to a server now, for its page: until when, and by which.
#[boxed]
pub async fn of_server(app: &App, scope: &Scope, id: ServerId) -> Result<Option<FrozenUntil>> {
    let mut reader = app.db.read().await?;
    let mut found = frozen_until(&mut reader, scope.org, &[id], app.clock.now()).await?;
    Ok(found.remove(&id))
}

/// For each of these instants, the first freeze that is active then and covers all servers that
/// `targets` match now.
pub(crate) async fn covering(
    conn: &mut Conn,
    org: OrgId,
    targets: &Selector,
    instants: &[Timestamp],
    current: &[Freeze],
) -> store::Result<Vec<(Timestamp, Period, Freeze)>> {
    let mut found = Vec::new();
    let mut servers: Option<Vec<ServerId>> = None;
    let mut known: BTreeMap<FreezeId, bool> = BTreeMap::new();
    for instant in instants {
        for freeze in current {
            let Some(period) = freeze.rule.active_period(*instant) else { continue };
            let covers = match known.get(&freeze.id) {
                Some(covers) => *covers,
                None if freeze.rule.covers(targets) => true,
                None => {
                    if servers.is_none() {
                        servers = Some(server_list::ids(conn, org, &Filter::from(targets)).await?);
                    }
                    let servers = servers.as_deref().unwrap_or_default();
                    !servers.is_empty()
                        && selected(conn, org, &freeze.rule.targets, servers).await?.len()
                            == servers.len()
                }
            };
            known.insert(freeze.id, covers);
            if covers {
                found.push((*instant, period, freeze.clone()));
                break;
            }
        }
    }
    Ok(found)
}

/// The freezes that this reader may see and that have not ended, as database rows.
#[boxed]
pub async fn current(app: &App, scope: &Scope) -> Result<Vec<Freeze>> {
    let mut all =
        freezes::list_current(&mut *app.db.read().await?, scope.org, app.clock.now()).await?;
    all.retain(|one| is_limited_to(scope.environments.as_deref(), &one.rule.targets));
    Ok(all)
}

/// For each of these runs, the name of a freeze that covers all servers of its targets at its time.
#[boxed]
pub async fn covered_runs(
    app: &App,
    scope: &Scope,
    runs: &[(Selector, Timestamp)],
) -> Result<Vec<Option<(FreezeId, String)>>> {
    let mut reader = app.db.snapshot().await?;
    let current = freezes::list_current(&mut reader, scope.org, app.clock.now()).await?;
    let mut names = Vec::with_capacity(runs.len());
    for (targets, at) in runs {
        let found = covering(&mut reader, scope.org, targets, &[*at], &current).await?;
        names.push(found.into_iter().next().map(|(_, _, freeze)| (freeze.id, freeze.name)));
    }
    Ok(names)
}

/// The freezes by name: all of them, or at most `limit` after the first `offset`. Also returns the
/// effective page.
#[boxed]
pub async fn list(
    app: &App,
    scope: &Scope,
    limit: Option<u32>,
    offset: u64,
) -> Result<(Page, Paged<wire::v1::Freeze>)> {
    let mut reader = app.db.snapshot().await?;
    let mut all = freezes::list(&mut reader, scope.org).await?;
    all.retain(|one| is_limited_to(scope.environments.as_deref(), &one.rule.targets));
    let everything = u32::try_from(all.len()).unwrap_or(u32::MAX).max(1);
    let page = Page { limit: limit.unwrap_or(everything), offset };
    let Paged { items: rows, total } = Paged::paginate(all, page);
    let now = app.clock.now();
    let mut items = Vec::with_capacity(rows.len());
    for row in rows {
        items.push(to_wire_in(&mut reader, scope, row, now).await?);
    }
    Ok((page, Paged { items, total }))
}

/// A freeze that this reader may see. A key that is limited to environments sees the freezes that
/// target one of them.
#[boxed]
pub async fn find(app: &App, scope: &Scope, id: FreezeId) -> Result<Freeze> {
    find_in(&mut *app.db.read().await?, scope, id).await
}

async fn find_in(conn: &mut Conn, scope: &Scope, id: FreezeId) -> Result<Freeze> {
    let found = freezes::get(conn, scope.org, id).await?;
    match is_limited_to(scope.environments.as_deref(), &found.rule.targets) {
        true => Ok(found),
        false => Err(StoreError::not_found("freeze", id).into()),
    }
}

/// A freeze as this reader sees it, and its generation.
#[boxed]
pub async fn get(app: &App, scope: &Scope, id: FreezeId) -> Result<(i64, wire::v1::Freeze)> {
    let mut reader = app.db.snapshot().await?;
    let row = find_in(&mut reader, scope, id).await?;
    Ok((row.generation, to_wire_in(&mut reader, scope, row, app.clock.now()).await?))
}

/// A freeze as this reader sees it.
#[boxed]
pub async fn to_wire(app: &App, scope: &Scope, row: Freeze) -> Result<wire::v1::Freeze> {
    to_wire_in(&mut *app.db.snapshot().await?, scope, row, app.clock.now()).await
}

async fn to_wire_in(
    conn: &mut Conn,
    scope: &Scope,
    row: Freeze,
    now: Timestamp,
) -> Result<wire::v1::Freeze> {
    let active = row.rule.active_period(now);
    let listed = row.rule.periods(now, Timestamp::MAX, NEXT_PERIODS + 1);
    let next: Vec<FreezePeriod> = listed
        .iter()
        .filter(|period| period.starts_at > now)
        .take(NEXT_PERIODS)
        .map(|period| FreezePeriod { starts_at: period.starts_at, ends_at: period.ends_at })
        .collect();
    let visible = scope.environments.as_deref();
    let targets = &row.rule.targets;
    let (mut warnings, mut servers) = (Vec::new(), 0);
    match explain_unmatched(conn, row.org_id, visible, targets).await? {
        Some(unmatched) => {
            warnings
                .push(format!("{} Nothing is frozen until a server matches.", unmatched.reason));
        }
        None => {
            let environments = visible.map(<[Environment]>::to_vec);
            let filter = Filter { environments, ..Filter::from(targets) };
            servers = server_list::count(conn, row.org_id, &filter).await?;
        }
    }
    if active.is_none() && next.is_empty() {
        warnings.push("This freeze has ended.".to_owned());
    }
    let (starts_at, ends_at, cron, duration_minutes, timezone) = match row.rule.timing {
        Timing::OneOff { starts_at, ends_at } => (Some(starts_at), Some(ends_at), None, None, None),
        Timing::Recurring { cron, duration, timezone } => {
            let minutes = u32::try_from(duration.as_mins()).unwrap_or(0);
            (None, None, Some(cron), Some(minutes), Some(timezone))
        }
    };
    Ok(wire::v1::Freeze {
        id: row.id,
        name: row.name,
        reason: row.reason,
        targets: row.rule.targets,
        starts_at,
        ends_at,
        cron,
        duration_minutes,
        timezone,
        active: active.is_some(),
        active_until: active.map(|period| period.ends_at),
        next,
        servers,
        created_at: row.created_at,
        updated_at: row.updated_at,
        created_by: row.created_by,
        warnings,
    })
}
