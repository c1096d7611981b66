//! Forecasts the schedules: collects the facts about the fleet; `domain::forecast` simulates.
//!
//! Reads only. The facts come from one snapshot; the simulation runs on a thread of its own, and
//! few run at a time.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeMap;
use std::time::Duration;

use domain::forecast::{
    Batch, Differences, Durations, Fleet, Forecast, Freeze, Kind, Order, Presence, Sample,
    Schedule, Server, UpdateSet, WeekPattern, compare,
};
use domain::rollout::{TaskOutcome, TaskStatus};
use domain::schedule::next_after;
use domain::server::ServerFacts;
use jiff::{SignedDuration, Timestamp};
use store::server_list::{self, Filter};
use store::{Conn, Page, events, freezes, rollout_tasks, rollouts, runs, schedules, servers};
use tokio::sync::Semaphore;
use vocab::{BatchId, Digest, Hostname, Line, OrgId, Os, Pending, ScheduleId, ServerId, Status};

use super::preview::select_updates;
use super::{Scope, convert};
use crate::commands::batches::restore_rollout;
use crate::commands::freezes::FreezeInput;
use crate::commands::schedules::ScheduleInput;
use crate::projections::findings;
use crate::{App, OrderOptions, PatchOptions, Result, ServiceError, host_facts};

mod view;

/// How many forecasts are computed at a time.
const COMPUTED_MAX: usize = 2;
static COMPUTING: Semaphore = Semaphore::const_new(COMPUTED_MAX);
/// How long a request waits until it is computed.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// The time whose changes of presence are read.
const PRESENCE_HISTORY: SignedDuration = SignedDuration::from_hours(28 * 24);
/// The maximum number of changes of presence that are read. If there are more, the patterns are
/// measured from the time of the first one that is read.
const PRESENCE_CHANGES_MAX: u32 = 100_000;
/// The number of recent batches, and of their tasks, that durations are measured from.
const MEASURED_BATCHES_MAX: u32 = 200;
const MEASURED_TASKS_MAX: u32 = 50_000;
/// Servers per statement.
const CHUNK: usize = 1_000;

/// Schedules and freezes that do not exist.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    pub schedules: Vec<ScheduleInput>,
    pub freezes: Vec<FreezeInput>,
}

impl Changes {
    fn is_empty(&self) -> bool {
        self.schedules.is_empty() && self.freezes.is_empty()
    }
}

/// What the indexes in a [`Fleet`] stand for.
#[derive(Debug, Default)]
struct Names {
    servers: Vec<(ServerId, Hostname, Option<Line>)>,
    schedules: Vec<(Option<ScheduleId>, Line)>,
    batches: Vec<(BatchId, Option<ScheduleId>, Line)>,
}

/// The facts about an organization.
struct Facts {
    fleet: Fleet,
    names: Names,
    sources: Vec<KindSource>,
}

/// A server of each kind, with its pending updates.
struct KindSource {
    server: servers::Server,
    pending: Vec<Pending>,
}

/// Forecasts `days` days, and the effect of `changes` if there are any.
#[boxed]
pub async fn forecast(
    app: &App,
    scope: &Scope,
    days: u32,
    changes: Changes,
) -> Result<wire::v1::Forecast> {
    let busy = || {
        let detail = "Other forecasts are being computed. Try again in a minute.";
        ServiceError::conflict("conflict", detail)
    };
    let permit = tokio::time::timeout(WAIT_MAX, COMPUTING.acquire()).await;
    let _permit = permit.ok().and_then(std::result::Result::ok).ok_or_else(busy)?;
    let now = app.clock.now();
    let facts = read_facts(app, scope.org, now).await?;
    let computed = tokio::task::spawn_blocking(move || compute(facts, now, days, changes)).await;
    computed.map_err(|error| ServiceError::Internal(error.into()))
}

fn compute(mut facts: Facts, now: Timestamp, days: u32, changes: Changes) -> wire::v1::Forecast {
    let today = domain::forecast::forecast(&facts.fleet, now, days);
    let changed = (!changes.is_empty()).then(|| {
        add_changes(&mut facts, changes, now);
        let after = domain::forecast::forecast(&facts.fleet, now, days);
        let differences = compare(&today, &after);
        (after, differences)
    });
    view::to_wire(&facts.names, &facts.fleet, &today, changed.as_ref())
}

fn add_changes(facts: &mut Facts, changes: Changes, now: Timestamp) {
    for new in changes.schedules {
        let next = new.enabled.then(|| next_after(&new.cron, &new.timezone, now)).flatten();
        facts.names.schedules.push((None, Line::sanitize(&new.name)));
        facts.fleet.schedules.push(Schedule {
            enabled: new.enabled,
            order: order(&new.options.order, &facts.sources),
            next_run_at: next,
            cron: new.cron,
            timezone: new.timezone,
            targets: new.targets,
            pace: new.options.pace,
        });
    }
    let freezes = changes.freezes.into_iter();
    facts
        .fleet
        .freezes
        .extend(freezes.map(|new| Freeze { targets: new.rule.targets, timing: new.rule.timing }));
}

async fn read_facts(app: &App, org: OrgId, now: Timestamp) -> Result<Facts> {
    let mut reader = app.db.snapshot().await?;
    let patterns = presence_patterns(&mut reader, org, now).await?;
    let mut fleet = Fleet::default();
    let mut names = Names::default();
    let mut sources: Vec<KindSource> = Vec::new();
    let mut kinds: BTreeMap<(Digest, String), usize> = BTreeMap::new();
    let ids = server_list::ids(&mut reader, org, &Filter::default()).await?;
    for chunk in ids.chunks(CHUNK) {
        let rows = servers::get_all(&mut reader, chunk).await?;
        let mut rows: BTreeMap<ServerId, servers::Server> =
            rows.into_iter().map(|row| (row.id, row)).collect();
        for row in chunk.iter().filter_map(|id| rows.remove(id)) {
            let limits = host_facts::from_stored(&row.facts).limits.unwrap_or_default();
            let offline = convert::status(app, Some(row.last_seen_at)) == Status::Offline;
            let pattern = patterns.get(&row.id).cloned();
            names.servers.push((
                row.id,
                row.hostname.clone(),
                row.display_name.as_deref().map(Line::sanitize),
            ));
            let mut server = Server {
                facts: ServerFacts {
                    id: row.id,
                    environment: row.environment.clone(),
                    tags: row.tags.iter().cloned().collect(),
                    os: Some(row.os.clone()),
                },
                kind: None,
                presence: Presence::new(offline, row.last_seen_at, now, pattern),
                reboot_required: row.reboot_required,
                quarantined: row.quarantine.is_some(),
                refuses_changes: limits.refuses_changes().is_some(),
                never_reboot: limits.never_reboot,
                limited_hours: !limits.allowed_hours.is_empty(),
            };
            if let Some(digest) = findings::count_key(&row) {
                let key = (digest, limits.describe().join("\n"));
                let kind = match kinds.get(&key) {
                    Some(known) => *known,
                    None => {
                        let pending = findings::pending_updates(&mut reader, &row).await?;
                        sources.push(KindSource { server: row, pending });
                        *kinds.entry(key).or_insert(sources.len() - 1)
                    }
                };
                server.kind = Some(kind);
            }
            fleet.servers.push(server);
        }
    }
    fleet.kinds = sources.iter().map(kind).collect();
    // Schedules and batches often have equal orders.
    let mut orders: Vec<(OrderOptions, Order)> = Vec::new();
    let mut order_of = |options: &OrderOptions| match orders.iter().find(|(one, _)| one == options)
    {
        Some((_, order)) => order.clone(),
        None => {
            let new = order(options, &sources);
            orders.push((options.clone(), new.clone()));
            new
        }
    };
    let rows = schedules::list(&mut reader, org).await?;
    let numbers: BTreeMap<ScheduleId, usize> =
        rows.iter().enumerate().map(|(number, row)| (row.id, number)).collect();
    for row in rows {
        let (options, _) = convert::stored_options("schedules", row.id, &row.options)?;
        names.schedules.push((Some(row.id), Line::sanitize(&row.name)));
        fleet.schedules.push(Schedule {
            enabled: row.enabled,
            cron: row.cron,
            timezone: row.timezone,
            targets: row.targets,
            pace: options.pace,
            order: order_of(&options.order),
            next_run_at: row.next_run_at,
        });
    }
    let current = freezes::list_current(&mut reader, org, now).await?;
    fleet.freezes = current
        .into_iter()
        .map(|row| Freeze { targets: row.rule.targets, timing: row.rule.timing })
        .collect();
    for row in rollouts::open(&mut reader, org).await? {
        let (options, _) = convert::stored_options("rollouts", row.id, &row.options)?;
        let tasks = rollout_tasks::all(&mut reader, row.id).await?;
        let run = runs::by_batch(&mut reader, row.id).await?;
        let schedule = run.map(|run| run.schedule_id);
        names.batches.push((row.id, schedule, Line::sanitize(&row.name)));
        fleet.batches.push(Batch {
            schedule: schedule.and_then(|id| numbers.get(&id).copied()),
            order: order_of(&options.order),
            rollout: restore_rollout(&row, &tasks),
        });
    }
    fleet.durations = durations(&mut reader, org, &fleet).await?;
    Ok(Facts { fleet, names, sources })
}

/// A kind of server: what an order for all updates would install.
fn kind(source: &KindSource) -> Kind {
    let pending = u32::try_from(source.pending.len()).unwrap_or(u32::MAX);
    Kind { pending, installable: installed_by(&OrderOptions::default(), source) }
}

/// What an order does on each kind of server.
fn order(options: &OrderOptions, sources: &[KindSource]) -> Order {
    let installs = sources.iter().map(|source| installed_by(options, source)).enumerate();
    Order {
        dry_run: options.dry_run,
        reboot: options.reboot,
        installs: installs.filter(|(_, updates)| !updates.is_empty()).collect(),
    }
}

fn installed_by(options: &OrderOptions, source: &KindSource) -> UpdateSet {
    let options = PatchOptions { order: options.clone(), ..PatchOptions::default() };
    let selected = select_updates(&options, &source.server, &source.pending).updates;
    let chosen: std::collections::BTreeSet<(&str, &str)> =
        selected.iter().map(|update| (update.name.as_str(), update.arch.as_str())).collect();
    let is_chosen =
        |update: &Pending| chosen.contains(&(update.name.as_str(), update.arch.as_str()));
    (0..).zip(&source.pending).filter(|(_, update)| is_chosen(update)).map(|(n, _)| n).collect()
}

/// The hours at which servers are usually online, for those that are offline regularly.
async fn presence_patterns(
    conn: &mut Conn,
    org: OrgId,
    now: Timestamp,
) -> Result<BTreeMap<ServerId, WeekPattern>> {
    let since = now.checked_sub(PRESENCE_HISTORY).unwrap_or(Timestamp::MIN);
    let found = events::presence_changes(conn, org, since, PRESENCE_CHANGES_MAX).await?;
    let is_cut = found.len() >= PRESENCE_CHANGES_MAX as usize;
    let first = found.last().map(|change| change.at).filter(|_| is_cut);
    let mut changes: BTreeMap<ServerId, Vec<(Timestamp, bool)>> = BTreeMap::new();
    for change in found.into_iter().rev() {
        let is_online = change.kind == "server.online";
        changes.entry(change.subject_id).or_default().push((change.at, is_online));
    }
    let from = first.unwrap_or(since);
    let measured = changes
        .into_iter()
        .filter_map(|(server, changes)| Some((server, WeekPattern::measure(&changes, from, now)?)));
    Ok(measured.collect())
}

/// How long tasks of the recent batches took.
async fn durations(conn: &mut Conn, org: OrgId, fleet: &Fleet) -> Result<Durations> {
    let systems: BTreeMap<ServerId, &Os> = fleet
        .servers
        .iter()
        .filter_map(|server| Some((server.facts.id, server.facts.os.as_ref()?)))
        .collect();
    let page = Page { limit: MEASURED_BATCHES_MAX, offset: 0 };
    let recent = rollouts::list(conn, org, &[], page).await?.items;
    let changes_hosts = |row: &rollouts::Rollout| {
        PatchOptions::from_json(&row.options).is_ok_and(|options| !options.order.dry_run)
    };
    let batches: Vec<BatchId> =
        recent.iter().filter(|row| changes_hosts(row)).map(|row| row.id).collect();
    let tasks = rollout_tasks::successes(conn, &batches, MEASURED_TASKS_MAX).await?;
    let sample = |task: &rollout_tasks::ServerTask| {
        let TaskStatus::Done(done) = task.target else { return None };
        Some(Sample {
            server: task.server_id,
            os: systems.get(&task.server_id).map(|os| (*os).clone()),
            changed: done.outcome == TaskOutcome::Succeeded,
            duration: done.at.duration_since(done.started_at?),
        })
    };
    Ok(Durations::measure(&tasks.iter().filter_map(sample).collect::<Vec<_>>()))
}
