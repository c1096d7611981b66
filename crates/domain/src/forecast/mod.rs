//! Forecasts what the schedules will do in the next days: which servers are patched when, and which
//! never are.
//!
//! Pure: facts about the fleet in, a forecast out. `simulation` runs the production planner
//! ([`crate::rollout::plan`], with the runs of [`crate::schedule`] and the periods of
//! [`crate::freeze`]) on a clock that jumps from event to event. It decides nothing about pace,
//! waves or windows itself. `coverage` explains which servers are left out, `compare` compares two
//! forecasts. `service::queries::forecast` collects the facts.
//!
//! A forecast knows the updates that are pending now and nothing about later ones, so it must never
//! be shown without its [`Forecast::assumptions`].
//!
//! What depends on the pending updates of single servers at a time (such as who will breach a
//! policy) is computed from [`Forecast::servers`], which says when each server is patched.

use std::collections::BTreeMap;

use jiff::civil::Date;
use jiff::{SignedDuration, Timestamp};
use vocab::{Cron, RebootPolicy, Selector, Zone};

use crate::freeze::Timing;
use crate::rollout::{Pace, Rollout};
use crate::server::ServerFacts;

mod compare;
mod coverage;
mod durations;
mod presence;
#[cfg(test)]
mod reality;
mod simulation;
#[cfg(test)]
mod tests;
mod update_set;

pub use compare::{DayDifference, Differences, compare};
pub use coverage::GapReason;
pub use durations::{DEFAULT_INSTALL, DEFAULT_NO_CHANGE, DurationBasis, Durations, Sample};
pub use presence::{OFFLINE_FOR_LONG, Presence, WeekPattern};
pub use update_set::UpdateSet;

/// The longest forecast.
pub const DAYS_MAX: u32 = 90;

/// Maximum number of task starts, skipped tasks and other steps of a forecast. It ends early when
/// they are used up, so that a schedule that runs every minute cannot make it endless.
pub const STEPS_MAX: u64 = 4_000_000;

/// Maximum number of runs of a forecast.
pub const RUNS_MAX: usize = 20_000;

/// Everything that a forecast depends on.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    /// In the order in which they start if nothing else decides.
    pub servers: Vec<Server>,
    /// Servers with equal pending updates and host limits share a kind.
    pub kinds: Vec<Kind>,
    pub schedules: Vec<Schedule>,
    pub freezes: Vec<Freeze>,
    /// Batches that have not ended.
    pub batches: Vec<Batch>,
    pub durations: Durations,
}

#[derive(Debug, Clone)]
pub struct Server {
    pub facts: ServerFacts,
    /// Index into [`Fleet::kinds`]; `None` if it has not reported its packages.
    pub kind: Option<usize>,
    pub presence: Presence,
    pub reboot_required: bool,
    /// It gets no orders until a user decides.
    pub quarantined: bool,
    /// The host's limits reject every change.
    pub refuses_changes: bool,
    /// The host's limits prevent reboots.
    pub never_reboot: bool,
    /// The host's limits allow changes at certain hours only.
    pub limited_hours: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kind {
    /// The number of pending updates.
    pub pending: u32,
    /// Those that an order for all updates would install. The others are blocked on the host.
    pub installable: UpdateSet,
}

/// What a schedule or a batch does on each server.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Order {
    pub dry_run: bool,
    pub reboot: RebootPolicy,
    /// The updates that it installs, by kind; a kind that is missing gets none.
    pub installs: BTreeMap<usize, UpdateSet>,
}

#[derive(Debug, Clone)]
pub struct Schedule {
    pub enabled: bool,
    pub cron: Cron,
    pub timezone: Zone,
    pub targets: Selector,
    pub pace: Pace,
    pub order: Order,
    /// Its next run, as the engine has stored it.
    pub next_run_at: Option<Timestamp>,
}

#[derive(Debug, Clone)]
pub struct Freeze {
    pub targets: Selector,
    pub timing: Timing,
}

/// A batch that has not ended.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The schedule that started it, as an index into [`Fleet::schedules`].
    pub schedule: Option<usize>,
    pub order: Order,
    pub rollout: Rollout,
}

/// What started a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Index into [`Fleet::schedules`].
    Schedule(usize),
    /// Index into [`Fleet::batches`].
    Batch(usize),
}

/// The forecast. Servers, schedules and batches are indexes into the [`Fleet`].
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    pub from: Timestamp,
    pub until: Timestamp,
    /// Where it ended because the limits on its size were reached.
    pub ended_early: Option<Timestamp>,
    /// In the order in which they become due. Batches that are open now come first.
    pub runs: Vec<Run>,
    /// Days with an event, by the local date of the schedule; UTC for other batches.
    pub days: BTreeMap<Date, Day>,
    /// One entry for each server of the fleet.
    pub servers: Vec<ServerForecast>,
    /// What was assumed, as sentences.
    pub assumptions: Vec<String>,
}

/// A run of a schedule, or a batch that is open now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub origin: Origin,
    /// When it is scheduled; for a batch, when it started.
    pub at: Timestamp,
    pub result: RunResult,
    /// The number of its servers.
    pub servers: u32,
    /// The number of servers that start.
    pub started: u32,
    /// The number of servers that install something.
    pub installed: u32,
    /// The servers that had no turn before the window closed.
    pub left: Option<Left>,
    /// The first wave that waits for an approval. The forecast assumes that nobody gives it.
    pub approval: Option<Approval>,
    pub reboots: Reboots,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunResult {
    /// It does not start.
    Skipped(vocab::SkipReason),
    /// It ended at this time.
    Ended(Timestamp),
    /// It has not ended when the forecast ends.
    Open,
}

/// Servers that had not started when the window of their run closed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Left {
    /// When the window closed.
    pub at: Timestamp,
    /// Servers that could have started, but it was not their turn.
    pub no_turn: u32,
    pub offline: u32,
    pub frozen: u32,
    /// Servers that another batch was working on.
    pub busy: u32,
    /// How much longer the window has to be for the servers in `no_turn`; `None` if there are none,
    /// or if a week would not be enough.
    pub minutes_short: Option<i64>,
}

impl Left {
    pub fn total(&self) -> u32 {
        self.no_turn + self.offline + self.frozen + self.busy
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Approval {
    pub since: Timestamp,
    /// Number of the wave, from 1.
    pub wave: u32,
    /// The number of servers that wait.
    pub servers: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reboots {
    /// The order reboots the host in any case, or the host needs a reboot already.
    pub certain: u32,
    /// The host is rebooted if the installed updates require it.
    pub possible: u32,
}

/// What happens on one day.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Day {
    pub runs: u32,
    pub skipped: u32,
    pub reboots: Reboots,
    /// Servers that install the last of the updates that are pending now.
    pub patched: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerForecast {
    pub patch: PatchOutlook,
    /// Why no schedule covers it; `None` if one does.
    pub gap: Option<GapReason>,
}

/// What becomes of the updates that are pending on a server now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchOutlook {
    /// No update is pending.
    UpToDate,
    /// It has not reported its packages.
    NotScanned,
    /// All updates that can be installed will be.
    Patched { first: Install, last: Install },
    /// Some will be, and so many will not.
    Partly { first: Install, last: Install, left: u32 },
    /// None will be.
    NotPatched(NotPatched),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotPatched {
    /// No schedule covers the server.
    Gap(GapReason),
    /// The host blocks every pending update.
    Blocked,
    /// The orders select other updates.
    NotSelected,
}

/// A run that installs something on a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Install {
    /// Index into [`Forecast::runs`].
    pub run: usize,
    pub at: Timestamp,
}

impl PatchOutlook {
    /// The first run that installs something.
    pub fn first(&self) -> Option<Install> {
        match self {
            PatchOutlook::Patched { first, .. } | PatchOutlook::Partly { first, .. } => {
                Some(*first)
            }
            PatchOutlook::UpToDate | PatchOutlook::NotScanned | PatchOutlook::NotPatched(_) => None,
        }
    }

    /// When all updates that can be installed are.
    pub fn patched_at(&self) -> Option<Timestamp> {
        match self {
            PatchOutlook::Patched { last, .. } => Some(last.at),
            _ => None,
        }
    }
}

impl Forecast {
    /// The runs whose window closes before all of their servers had their turn.
    pub fn short_windows(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(|run| run.left.is_some_and(|left| left.no_turn > 0))
    }

    /// The sum of all reboots.
    pub fn reboots(&self) -> Reboots {
        self.days.values().fold(Reboots::default(), |sum, day| Reboots {
            certain: sum.certain + day.reboots.certain,
            possible: sum.possible + day.reboots.possible,
        })
    }
}

/// Forecasts `days` days from `now`, at least one and at most [`DAYS_MAX`].
pub fn forecast(fleet: &Fleet, now: Timestamp, days: u32) -> Forecast {
    let days = days.clamp(1, DAYS_MAX);
    let until =
        now.checked_add(SignedDuration::from_hours(24 * i64::from(days))).unwrap_or(Timestamp::MAX);
    simulation::run(fleet, now, until)
}

/// What a reader must know about the forecast, as sentences.
fn assumptions(fleet: &Fleet, ended_early: Option<Timestamp>) -> Vec<String> {
    let mut all = vec![
        "Only updates that are pending now are known. Later runs also install updates that are \
         published later, so they may take longer and reboot more servers."
            .to_owned(),
        "Nothing fails: no task fails, no server becomes unhealthy, and no user pauses, cancels or \
         resumes a batch.".to_owned(),
        "Nobody approves a wave. Waves that need an approval, and those after them, do not start."
            .to_owned(),
    ];
    let basis = fleet.durations.basis(&fleet.servers);
    if basis.own + basis.system + basis.fleet > 0 {
        all.push(format!(
            "Tasks take the median of past tasks: of the server itself for {} servers, of its \
             operating system for {}, of all servers for {}.",
            basis.own, basis.system, basis.fleet
        ));
    }
    if basis.default > 0 {
        all.push(format!(
            "No durations are measured for {} servers. A task takes {} minutes there, or {} if \
             there is nothing to install.",
            basis.default,
            DEFAULT_INSTALL.as_mins(),
            DEFAULT_NO_CHANGE.as_mins()
        ));
    }
    let count = |matches: fn(&Server) -> bool| {
        fleet.servers.iter().filter(|server| matches(server)).count()
    };
    let patterned = count(|server| server.presence.has_pattern());
    if patterned > 0 {
        all.push(format!(
            "{patterned} servers are offline at certain hours of the week. They are expected to be \
             offline at the same hours again."
        ));
    }
    let returning = count(|server| server.presence.is_expected_back());
    if returning > 0 {
        all.push(format!(
            "{returning} servers are offline now, for less than {} days. They are expected back at \
             the next hour at which they are usually online.",
            OFFLINE_FOR_LONG.as_hours() / 24
        ));
    }
    let gone = count(|server| server.presence.is_gone());
    if gone > 0 {
        all.push(format!(
            "{gone} servers have been offline for {} days or more. They are expected to stay \
             offline.",
            OFFLINE_FOR_LONG.as_hours() / 24
        ));
    }
    let hours = count(|server| server.limited_hours);
    if hours > 0 {
        all.push(format!(
            "{hours} servers allow changes at certain hours only (`allowed_hours`). This is not \
             simulated: a run outside of these hours changes nothing there."
        ));
    }
    if let Some(at) = ended_early {
        all.push(format!(
            "The forecast ends early, at {at}, because there are too many runs and tasks."
        ));
    }
    all
}
