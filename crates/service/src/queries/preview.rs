//! Preview of a batch: what it would do, as far as that is known in advance. Changes nothing.
//!
//! Times are computed from the pace alone, because the duration of a task is not known in advance.

use async_recursion::async_recursion as boxed;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use domain::rollout::StartOrder;
use domain::rollout::pins::System;
use domain::rollout::{Phase, RolloutOutcome, TaskOutcome, TaskStatus};
use jiff::{SignedDuration, Timestamp};
use store::server_list::{self, Filter, OnlineSpan, Sort};
use store::servers::{self, Server};
use store::{Conn, Page, Paged, rollout_tasks, rollouts};
use vocab::{Digest, Environment, Line, OrgId, Pending, RebootPolicy, Selector, ServerId, Status};
use wire::v1::{
    Preview, PreviewFreeze, PreviewReboots, PreviewServer, PreviewUpdate, PreviewWave,
    RebootOutlook, WaitingFor,
};

use super::targets::explain_unmatched;
use super::{Scope, convert, freezes};
use crate::projections::findings;
use crate::{App, PatchOptions, Result, host_facts};

/// The maximum number of servers that are listed individually.
pub const SHOWN_MAX: usize = 500;

/// The preview of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchPreview {
    /// The number of selected servers.
    pub total: u32,
    /// The number of selected servers that are offline.
    pub offline: u32,
    /// The number of servers that cannot start before the window closes.
    pub beyond_window: u32,
    /// The earliest start of the last server.
    pub last_start_at: Option<Timestamp>,
    /// The first servers, in start order.
    pub servers: Vec<ServerPreview>,
}

/// The preview for one server.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerPreview {
    pub server: Server,
    /// The earliest start; `None` if the window has closed by then.
    pub starts_at: Option<Timestamp>,
    /// Whether it is a canary.
    pub canary: bool,
    /// Index of the wave in which it would start in its turn.
    pub wave: u32,
    /// Whether the waves are those of `canary`.
    by_canary: bool,
    /// Whether it must wait for earlier waves.
    pub waits_for_wave: bool,
    /// Whether its wave needs an approval.
    pub waits_for_approval: bool,
    /// Whether it must wait for a free slot (`max_parallel`).
    pub waits_for_parallel: bool,
    /// The updates that would be installed.
    pub updates: Vec<Pending>,
    /// The selected updates that would not be installed.
    pub blocked: Vec<Pending>,
    /// The packages named in the options that have no pending update.
    pub nothing_pending: Vec<String>,
    /// Whether the server would be rebooted; `None` if that depends on the installed updates.
    pub reboots: Option<bool>,
    /// Descriptions of the host limits that affect the order.
    pub host_limits: Vec<String>,
    /// Whether the host refuses the order because of its limits.
    pub refused: bool,
}

/// The servers that a batch would select.
#[derive(Debug, Clone, PartialEq)]
pub struct SelectedServers {
    total: u64,
    offline: u64,
    /// The first servers, in start order.
    first: Vec<Server>,
}

impl SelectedServers {
    /// These servers, in start order. `shown` is the number of servers that are listed
    /// individually.
    #[boxed]
    pub async fn from_ids(
        conn: &mut Conn,
        org: OrgId,
        options: &PatchOptions,
        servers: Vec<ServerId>,
        shown: usize,
        online: OnlineSpan,
    ) -> Result<SelectedServers> {
        let (servers, _) = start_order(conn, options, servers).await?;
        let first = &servers[..servers.len().min(shown)];
        let rows = servers::get_all(conn, first).await?;
        let mut rows: BTreeMap<_, _> = rows.into_iter().map(|row| (row.id, row)).collect();
        let mut offline = 0;
        for chunk in servers.chunks(SHOWN_MAX) {
            let status = Some((Status::Offline, online));
            let filter = Filter { ids: chunk.to_vec(), status, ..Filter::default() };
            offline += server_list::count(conn, org, &filter).await?;
        }
        Ok(SelectedServers {
            total: servers.len() as u64,
            offline,
            first: first.iter().filter_map(|id| rows.remove(id)).collect(),
        })
    }

    /// The servers that match the filter, in start order. `shown` is the number of servers that are
    /// listed individually.
    #[boxed]
    pub async fn matching(
        conn: &mut Conn,
        org: OrgId,
        options: &PatchOptions,
        filter: &Filter,
        shown: usize,
        online: OnlineSpan,
    ) -> Result<SelectedServers> {
        let first_wave = options.pace.waves.first().is_some_and(|wave| wave.size.is_some());
        if options.pace.canary.is_some() || first_wave {
            let servers = server_list::ids(conn, org, filter).await?;
            return SelectedServers::from_ids(conn, org, options, servers, shown, online).await;
        }
        let page = Page { limit: shown as u32, offset: 0 };
        let Paged { items: first, total } =
            server_list::list(conn, org, filter, Sort::Hostname, page).await?;
        let status = Some((Status::Offline, online));
        let offline = Filter { status, ..filter.clone() };
        Ok(SelectedServers {
            total,
            offline: server_list::count(conn, org, &offline).await?,
            first,
        })
    }
}

/// The servers in the order in which they start, and how many of them, from the first, are expected
/// to install something (`None`: not determined, because there is a single wave).
///
/// See [`StartOrder`].
#[boxed]
pub async fn start_order(
    conn: &mut Conn,
    options: &PatchOptions,
    servers: Vec<ServerId>,
) -> store::Result<(Vec<ServerId>, Option<u32>)> {
    let canary = options.pace.limits(u32::try_from(servers.len()).unwrap_or(u32::MAX)).canary();
    if canary == 0 {
        return Ok((servers, None));
    }
    let mut lists: BTreeMap<Digest, Vec<Pending>> = BTreeMap::new();
    let mut order = StartOrder::new(canary);
    for (nth, chunk) in servers.chunks(SHOWN_MAX).enumerate() {
        if order.is_complete(nth * SHOWN_MAX) {
            break;
        }
        // Complete rows are read only for servers that have updates at all.
        let pending: Vec<_> = servers::with_updates(conn, chunk).await?.into_iter().collect();
        let rows = servers::get_all(conn, &pending).await?;
        let rows: BTreeMap<_, _> = rows.into_iter().map(|row| (row.id, row)).collect();
        for server in chunk.iter().filter_map(|id| rows.get(id)) {
            let system = system_of(server);
            if order.wants(&system, server.id)
                && would_install(conn, options, server, &mut lists).await
            {
                order.add(system, server.id);
            }
        }
    }
    let (ordered, count) = order.finish(servers);
    Ok((ordered, Some(count)))
}

/// What decides which versions a server can install.
fn system_of(server: &Server) -> System {
    System::new(&server.os, server.package_manager, &server.arch)
}

/// Whether an order would install something on a server, as of its last inventory. A server whose
/// pending updates cannot be read counts as one that does.
async fn would_install(
    conn: &mut Conn,
    options: &PatchOptions,
    server: &Server,
    lists: &mut BTreeMap<Digest, Vec<Pending>>,
) -> bool {
    match pending_updates(conn, server, lists).await {
        Ok(pending) => !select_updates(options, server, pending).updates.is_empty(),
        Err(error) => {
            tracing::warn!(server = %server.id, %error, "cannot read the pending updates of a server");
            true
        }
    }
}

/// The pending updates of a server, read once for all servers of the same kind.
async fn pending_updates<'a>(
    conn: &mut Conn,
    server: &Server,
    lists: &'a mut BTreeMap<Digest, Vec<Pending>>,
) -> Result<&'a [Pending]> {
    let Some(count_key) = findings::count_key(server) else { return Ok(&[]) };
    if let Entry::Vacant(new) = lists.entry(count_key) {
        new.insert(findings::pending_updates(conn, server).await?);
    }
    Ok(lists.get(&count_key).map_or(&[], Vec::as_slice))
}

/// What a batch with these options would do to the selected servers.
#[boxed]
pub async fn preview_batch(
    conn: &mut Conn,
    options: &PatchOptions,
    selected: SelectedServers,
    now: Timestamp,
) -> Result<BatchPreview> {
    let total = u32::try_from(selected.total).unwrap_or(u32::MAX);
    let mut lists: BTreeMap<Digest, Vec<Pending>> = BTreeMap::new();
    let mut outlooks = Vec::with_capacity(selected.first.len());
    for (turn, server) in (0_u32..).zip(selected.first) {
        let pending = pending_updates(conn, &server, &mut lists).await?;
        outlooks.push(preview_server(options, server, pending, turn, total, now));
    }
    Ok(BatchPreview {
        total,
        offline: u32::try_from(selected.offline).unwrap_or(u32::MAX),
        beyond_window: (0..total)
            .rev()
            .take_while(|turn| earliest_start(options, *turn, now).is_none())
            .count() as u32,
        last_start_at: (0..total).rev().find_map(|turn| earliest_start(options, turn, now)),
        servers: outlooks,
    })
}

/// The earliest start of the server at this position.
fn earliest_start(options: &PatchOptions, position: u32, now: Timestamp) -> Option<Timestamp> {
    let minutes = i64::from(options.pace.stagger_minutes) * i64::from(position);
    let inside = options.pace.window_minutes.is_none_or(|window| minutes < i64::from(window));
    inside.then(|| now.saturating_add(SignedDuration::from_mins(minutes)).unwrap_or(Timestamp::MAX))
}

/// The pending updates that the order selects, within the host's limits.
pub(super) struct SelectedUpdates {
    /// The updates that would be installed.
    pub(super) updates: Vec<Pending>,
    /// The selected updates that would not be installed.
    blocked: Vec<Pending>,
    /// Descriptions of the host limits.
    pub(super) host_limits: Vec<String>,
    /// Whether the host refuses the order because of its limits.
    pub(super) refused: bool,
}

pub(super) fn select_updates(
    options: &PatchOptions,
    server: &Server,
    pending: &[Pending],
) -> SelectedUpdates {
    let order = &options.order;
    let limits = host_facts::from_stored(&server.facts).limits.unwrap_or_default();
    let is_selected = |update: &&Pending| {
        let named = order.packages.is_empty()
            || order.packages.iter().any(|name| name.as_str() == update.name);
        named && (update.security || !order.security_only)
    };
    // A dry run changes nothing, so even a host that allows no changes executes it.
    let refused = match order.dry_run {
        true => limits.error.is_some(),
        false => limits.refuses_changes().is_some(),
    };
    let excluded = |update: &Pending| {
        let patterns = order.exclude.iter().chain(&limits.exclude);
        let by_name = patterns.into_iter().any(|out| out.matches(&update.name));
        by_name || refused || (limits.security_only && !update.security)
    };
    let exclude = |update: &Pending| Pending {
        blocked_by: Some(vocab::BlockedBy::Excluded),
        ..update.clone()
    };
    let (mut blocked, mut updates): (Vec<Pending>, Vec<Pending>) = pending
        .iter()
        .filter(is_selected)
        .map(|update| if excluded(update) { exclude(update) } else { update.clone() })
        .partition(|update| update.blocked_by.is_some());
    let too_many = limits.max_packages.is_some_and(|max| updates.len() > max as usize);
    if too_many {
        blocked.extend(std::mem::take(&mut updates).iter().map(exclude));
    }
    SelectedUpdates {
        updates,
        blocked,
        host_limits: limits.describe(),
        refused: refused || too_many,
    }
}

fn preview_server(
    options: &PatchOptions,
    server: Server,
    pending: &[Pending],
    turn: u32,
    total: u32,
    now: Timestamp,
) -> ServerPreview {
    let SelectedUpdates { updates, blocked, host_limits, refused } =
        select_updates(options, &server, pending);
    let pends = |name: &str| pending.iter().any(|update| update.name == name);
    let named = options.order.packages.iter().map(vocab::PackageName::as_str);
    let limits = options.pace.limits(total);
    let canaries = limits.canary();
    let mut covered = 0_u32;
    let ends = limits.waves().iter().map(|wave| {
        covered = covered.saturating_add(wave.servers);
        covered
    });
    let wave = ends.take_while(|end| *end <= turn).count().min(limits.waves().len() - 1);
    ServerPreview {
        starts_at: earliest_start(options, turn, now),
        canary: turn < canaries,
        by_canary: options.pace.waves.is_empty(),
        waits_for_wave: wave > 0,
        waits_for_approval: limits.waves()[wave].approval,
        wave: u32::try_from(wave).unwrap_or(u32::MAX),
        waits_for_parallel: options.pace.max_parallel.is_some_and(|at_once| turn >= at_once),
        nothing_pending: named.filter(|name| !pends(name)).map(str::to_owned).collect(),
        reboots: will_reboot(options, &server, !updates.is_empty()),
        updates,
        blocked,
        host_limits,
        refused,
        server,
    }
}

fn will_reboot(options: &PatchOptions, server: &Server, installs: bool) -> Option<bool> {
    let limits = host_facts::from_stored(&server.facts).limits.unwrap_or_default();
    if options.order.dry_run || limits.never_reboot || limits.refuses_changes().is_some() {
        return Some(false);
    }
    match options.order.reboot {
        RebootPolicy::Never | RebootPolicy::ServicesOnly => Some(false),
        RebootPolicy::Always => Some(true),
        RebootPolicy::IfRequired if server.reboot_required => Some(true),
        RebootPolicy::IfRequired if !installs => Some(false),
        RebootPolicy::IfRequired => None,
    }
}

/// The preview for these servers, without a limit on their number.
#[boxed]
pub async fn preview_servers(
    app: &App,
    scope: &Scope,
    options: &PatchOptions,
    named: &[ServerId],
    shown: usize,
) -> Result<Preview> {
    let online = super::servers::online_span(app);
    let mut reader = app.db.snapshot().await?;
    let selected =
        SelectedServers::from_ids(&mut reader, scope.org, options, named.to_vec(), shown, online)
            .await?;
    to_preview(app, &mut reader, scope.org, options, selected).await
}

/// The preview for the servers that a selector matches.
#[boxed]
pub async fn preview_targets(
    app: &App,
    scope: &Scope,
    options: &PatchOptions,
    selector: &Selector,
    shown: usize,
) -> Result<Preview> {
    let online = super::servers::online_span(app);
    let mut reader = app.db.snapshot().await?;
    let filter = server_list::Filter {
        environments: scope.environments.as_deref().map(<[Environment]>::to_vec),
        ..server_list::Filter::from(selector)
    };
    let selected =
        SelectedServers::matching(&mut reader, scope.org, options, &filter, shown, online).await?;
    let mut preview = to_preview(app, &mut reader, scope.org, options, selected).await?;
    if preview.total == 0 {
        let visible = scope.environments.as_deref();
        let unmatched = explain_unmatched(&mut reader, scope.org, visible, selector).await?;
        preview.warnings.extend(unmatched.map(|unmatched| unmatched.reason));
    }
    Ok(preview)
}

async fn to_preview(
    app: &App,
    conn: &mut Conn,
    org: OrgId,
    options: &PatchOptions,
    selected: SelectedServers,
) -> Result<Preview> {
    let now = app.clock.now();
    let seen = preview_batch(conn, options, selected, now).await?;
    let mut warnings = convert::warnings(options, u64::from(seen.total));
    warnings.extend(canary_warning(&seen));
    let waves = waves(options, &seen);
    warnings.extend(wave_warnings(&waves));
    warnings.extend(unproven_warnings(options, &seen));
    warnings.extend(refusal_warning(&seen));
    let frozen = match options.pace.override_freeze {
        Some(_) => BTreeMap::new(),
        None => {
            let ids: Vec<ServerId> = seen.servers.iter().map(|one| one.server.id).collect();
            freezes::frozen_until(conn, org, &ids, now).await?
        }
    };
    let mut by_freeze: BTreeMap<_, PreviewFreeze> = BTreeMap::new();
    for (ends_at, freeze_id, name) in frozen.values().cloned() {
        let new = PreviewFreeze { freeze_id, name, ends_at, servers: 0 };
        by_freeze.entry(freeze_id).or_insert(new).servers += 1;
    }
    let task = typical_duration(conn, org).await?;
    let expected = task.map(|task| options.pace.expected_duration(seen.total, task));
    let reboots = |outlook| {
        let count = seen.servers.iter().filter(|one| one.reboots == outlook).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    };
    Ok(Preview {
        waves,
        // Rounded up: a batch takes no less than a minute.
        expected_minutes: expected
            .map(|span| span.as_secs().unsigned_abs().div_ceil(60).max(u64::from(seen.total > 0))),
        reboots: PreviewReboots { certain: reboots(Some(true)), possible: reboots(None) },
        freezes: by_freeze.into_values().collect(),
        options: convert::options(options),
        total: seen.total,
        offline: seen.offline,
        first_start_at: (seen.total > 0).then_some(now),
        last_start_at: seen.last_start_at,
        beyond_window: seen.beyond_window,
        warnings,
        servers: { seen.servers.into_iter() }
            .map(|one| {
                let is_frozen = frozen.contains_key(&one.server.id);
                to_wire(app, one, is_frozen)
            })
            .collect(),
    })
}

/// Warns about canaries that have nothing to install. Servers with pending updates are chosen as
/// canaries first, so in this case no other server has a known update. Servers that are not listed
/// are not considered.
fn canary_warning(seen: &BatchPreview) -> Option<String> {
    let canaries = seen.servers.iter().filter(|server| server.canary);
    let (idle, count) = canaries.fold((0_u32, 0_u32), |(idle, count), server| {
        (idle + u32::from(server.updates.is_empty()), count + 1)
    });
    // If every server is a canary, no server waits for one.
    if idle == 0 || count >= seen.total {
        return None;
    }
    let without = match (idle, count) {
        (1, 1) => "the canary server has nothing to install".to_owned(),
        (idle, count) if idle == count => {
            format!("none of the {count} canary servers has anything to install")
        }
        (1, count) => format!("1 of the {count} canary servers has nothing to install"),
        (idle, count) => format!("{idle} of the {count} canary servers have nothing to install"),
    };
    Some(format!(
        "{without}: as of the last scans, no other server has anything to install either, so the \
         other servers start after them without a tested update"
    ))
}

/// Warns about servers that refuse the order because of their host limits.
fn refusal_warning(seen: &BatchPreview) -> Option<String> {
    let refuse = |server: &&ServerPreview| server.refused;
    let count = seen.servers.iter().filter(refuse).count();
    let first = seen.servers.iter().find(refuse)?;
    let name = &first.server.hostname;
    Some(match count {
        1 => format!("{name} will refuse this order because of its host limits"),
        count => format!(
            "{count} servers will refuse this order because of their host limits; the first is {name}"
        ),
    })
}

/// The waves, with the number of their servers that have something to install.
fn waves(options: &PatchOptions, seen: &BatchPreview) -> Vec<PreviewWave> {
    let limits = options.pace.limits(seen.total);
    let of_wave = |(index, wave): (u32, &domain::rollout::WaveLimits)| {
        let listed = seen.servers.iter().filter(|server| server.wave == index);
        let (count, with_updates) = listed.fold((0_u32, 0_u32), |(count, with), server| {
            (count + 1, with + u32::from(!server.updates.is_empty()))
        });
        PreviewWave {
            number: index + 1,
            size: wave.servers,
            with_updates: (count == wave.servers).then_some(with_updates),
            soak_minutes: u32::try_from(wave.soak.as_mins()).unwrap_or(u32::MAX),
            approval: wave.approval,
        }
    };
    (0_u32..).zip(limits.waves()).map(of_wave).collect()
}

/// Warns about waves after the first that have nothing to install: they prove nothing to the waves
/// after them. [`canary_warning`] is about the first.
fn wave_warnings(waves: &[PreviewWave]) -> Vec<String> {
    let without_changes = |wave: &&PreviewWave| wave.with_updates == Some(0) && wave.size > 0;
    let between = waves.iter().take(waves.len().saturating_sub(1)).skip(1);
    let warning = |wave: &PreviewWave| {
        format!(
            "none of the servers of wave {} has anything to install, so the wave proves nothing",
            wave.number
        )
    };
    between.filter(without_changes).map(warning).collect()
}

/// Warns about systems that no server of the first wave has: with pinned versions, their servers
/// are skipped. Servers that are not listed are not considered.
fn unproven_warnings(options: &PatchOptions, seen: &BatchPreview) -> Vec<String> {
    if !options.pace.pin_versions || options.order.dry_run {
        return Vec::new();
    }
    let (first, later): (Vec<_>, Vec<_>) = { seen.servers.iter() }
        .filter(|one| !one.updates.is_empty())
        .partition(|one| one.wave == 0);
    let proven: BTreeSet<System> = first.iter().map(|one| system_of(&one.server)).collect();
    let mut unproven: BTreeMap<System, u32> = BTreeMap::new();
    for one in later {
        let system = system_of(&one.server);
        if !proven.contains(&system) {
            *unproven.entry(system).or_default() += 1;
        }
    }
    let warning = |(system, count): (System, u32)| {
        let servers = if count == 1 { "1 server".to_owned() } else { format!("{count} servers") };
        format!(
            "versions are pinned, but the first wave updates no server with `{system}`: {servers} \
             with this system would be skipped"
        )
    };
    unproven.into_iter().map(warning).collect()
}

/// How many of the last batches, and how many servers of each, are considered.
const PAST_BATCHES: u32 = 10;
const PAST_TASKS: u32 = 50;

/// The median duration of tasks that recently succeeded; `None` if there are none.
async fn typical_duration(conn: &mut Conn, org: OrgId) -> Result<Option<SignedDuration>> {
    let ended = [RolloutOutcome::Succeeded, RolloutOutcome::CompletedWithErrors]
        .map(|outcome| rollouts::phase_name(Phase::Ended(outcome)));
    let page = Page { limit: PAST_BATCHES, offset: 0 };
    let past = rollouts::list(conn, org, &ended, page).await?.items;
    let mut durations = Vec::new();
    for row in past {
        // A dry run takes less time.
        if PatchOptions::from_json(&row.options).is_ok_and(|options| options.order.dry_run) {
            continue;
        }
        let states = rollout_tasks::states(conn, row.id, 0, PAST_TASKS).await?;
        durations.extend(states.into_iter().filter_map(|status| match status {
            TaskStatus::Done(done) if done.outcome == TaskOutcome::Succeeded => {
                Some(done.at.duration_since(done.started_at?))
            }
            _ => None,
        }));
    }
    durations.sort_unstable();
    Ok(durations.get(durations.len() / 2).copied())
}

fn to_wire(app: &App, seen: ServerPreview, is_frozen: bool) -> PreviewServer {
    let status = convert::status(app, Some(seen.server.last_seen_at));
    let waits = [
        (seen.waits_for_wave && seen.by_canary, WaitingFor::Canary),
        (seen.waits_for_wave && !seen.by_canary, WaitingFor::Wave),
        (seen.waits_for_approval, WaitingFor::Approval),
        (is_frozen, WaitingFor::Freeze),
        (seen.waits_for_parallel, WaitingFor::Parallel),
        (status == Status::Offline, WaitingFor::Offline),
        (seen.starts_at.is_none(), WaitingFor::Window),
    ];
    let update = |pending: Pending| PreviewUpdate {
        name: pending.name,
        from: pending.installed,
        to: pending.candidate,
        security: pending.security,
        blocked_by: pending.blocked_by,
    };
    PreviewServer {
        server_id: seen.server.id,
        display_name: seen.server.display_name.as_deref().map(Line::sanitize),
        hostname: seen.server.hostname,
        status,
        environment: seen.server.environment,
        canary: seen.canary,
        wave: seen.wave.saturating_add(1),
        starts_at: seen.starts_at,
        waits_for: waits.into_iter().filter(|(does, _)| *does).map(|(_, what)| what).collect(),
        updates: seen.updates.into_iter().map(update).collect(),
        blocked: seen.blocked.into_iter().map(update).collect(),
        nothing_pending: seen.nothing_pending,
        reboot: match seen.reboots {
            Some(false) => RebootOutlook::No,
            None => RebootOutlook::Possible,
            Some(true) => RebootOutlook::Certain,
        },
        host_limits: seen.host_limits,
    }
}
