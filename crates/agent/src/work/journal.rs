//! The journal of an order: what it asks for, which step started last, and the results of its
//! steps.
//!
//! Pure: only [`Journal::begin`] and [`Journal::record`] change it, and
//! [`planner::next_step`](super::planner::next_step) reads it. It is saved after `begin` and before
//! the step is executed. A step's result is saved together with the next step. If that save is
//! lost, a query is repeated, and the result of a command that already ran is read from its job
//! directory; the command does not run again.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{FailureCode, Line, Stage, TaskId};
use wire::agent::{
    AgentUpgrade, HealthReport, Install, InstallVersions, NewerVersion, Order, OrderResult,
    PackageMove, Reboot, Work,
};

use super::failure::Failure;
use super::health::HealthCheck;
use super::select::SkippedPackage;
use super::step::{Action, Facts, Step};
use crate::backend::Choice;
use crate::host::health::HealthSnapshot;

/// One order, from its arrival until it is deleted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Journal {
    pub id: TaskId,
    /// Position in the order of arrival.
    pub arrival: u64,
    /// When the agent accepted it.
    pub taken_at: Timestamp,
    /// When it is too late to start, by this host's clock.
    pub start_by: Timestamp,
    /// When it expires, by the service's clock. Older versions did not store it.
    #[serde(default)]
    pub expires_at: Option<Timestamp>,
    /// What to do.
    pub task: Task,
    pub started_at: Option<Timestamp>,
    pub stage: Stage,
    /// Since when the order is in this stage.
    pub stage_at: Timestamp,
    /// The step that started and has no result yet.
    pub doing: Option<Step>,
    /// The results of the steps so far.
    pub known: OrderState,
    /// The final result.
    pub result: Option<OrderResult>,
}

/// What an order asks for. Rejected orders are included, because their failure is reported under
/// their id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Scan the packages.
    Scan,
    /// Determine what an installation would do.
    Plan(Install),
    Install(Install),
    /// Install exactly these versions.
    InstallVersions(InstallVersions),
    /// Restart the services that run outdated code.
    RestartServices,
    Reboot(Reboot),
    /// Replace the agent's own program.
    UpgradeAgent(AgentUpgrade),
    /// Rejected; nothing is executed.
    Refused(Failure),
    /// Unknown, because the order's journal was damaged. Nothing new is started for it.
    Lost {
        /// The failure with which the order ends.
        failure: Failure,
        /// Whether there is an inventory from before the order to compare the packages with.
        compare: bool,
    },
}

/// The state of the package database lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lock {
    Free,
    /// Held by this program (a display name).
    HeldBy(Line),
}

/// How an action ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionResult {
    /// All commands succeeded.
    Well,
    /// A command failed.
    Badly {
        /// The exit code; `None` if a signal ended the command.
        exit: Option<i32>,
        failure: Failure,
    },
    /// It was killed, or the host went down; how far it got is unknown.
    Vanished,
}

/// The state of the packages after an installation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    /// The difference between the inventories before and after.
    pub moves: Vec<PackageMove>,
    /// Expectations that are not met, one line each.
    pub unmet: Vec<Line>,
    /// New configuration files that were stored next to edited ones.
    pub set_aside: Vec<Line>,
}

/// Processes that run outdated code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutdatedServices {
    /// The services that may be restarted.
    pub units: Vec<String>,
    /// All other processes, as display names.
    pub others: Vec<Line>,
}

/// The updates selected for an order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    pub choices: Vec<Choice>,
    /// Packages that are skipped, and why.
    pub passed: Vec<SkippedPackage>,
    /// New configuration files that already existed before the order.
    pub set_aside: Vec<Line>,
    /// Newer versions than the ordered ones, for an order for exact versions.
    #[serde(default)]
    pub newer: Vec<NewerVersion>,
}

/// The reboot of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootProgress {
    /// The boot id before the reboot.
    pub boot_id: Line,
    /// When the reboot was requested.
    pub at: Timestamp,
    /// How many seconds it took, once a new boot id was seen.
    pub seconds: Option<u64>,
}

impl RebootProgress {
    /// Whether this is another boot. An empty boot id, from a kernel that provides none, proves
    /// nothing.
    pub fn has_ended(&self, boot_id: &Line) -> bool {
        *boot_id != self.boot_id && !boot_id.as_str().is_empty()
    }
}

/// The results of an order's steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OrderState {
    /// The state of the package database lock.
    pub lock: Option<Lock>,
    /// Incomplete operations in the package database.
    pub damage: Option<Vec<Line>>,
    /// Incomplete operations from before the order.
    pub damage_before: Vec<Line>,
    pub chosen: Option<Selection>,
    /// The package changes that the resolver would make.
    pub resolved: Option<Vec<PackageMove>>,
    /// Whether the installation may download its packages itself.
    #[serde(default)]
    pub little_to_fetch: bool,
    /// How each action ended.
    pub acts: BTreeMap<Action, ActionResult>,
    /// How many times each repeatable action was killed.
    pub repeats: BTreeMap<Action, u32>,
    /// The state of the packages after the installation.
    pub verified: Option<Verification>,
    /// The processes that run outdated code.
    pub old_code: Option<OutdatedServices>,
    /// The services to restart.
    pub restarting: Vec<String>,
    /// The services that were restarted.
    pub restarted: Vec<Line>,
    /// Why the host needs a reboot, or why that could not be determined.
    pub reboot_reasons: Option<Result<Vec<Line>, Line>>,
    /// The reboot, once it was requested.
    pub rebooting: Option<RebootProgress>,
    /// The host's health before the change, if the order asks for it.
    #[serde(default)]
    pub baseline: Option<Box<HealthSnapshot>>,
    /// The host's health after the change.
    #[serde(default)]
    pub health: Option<HealthCheck>,
    /// Whether the scan is done and its package sets are published.
    pub scanned: bool,
    /// Number of pauses in the current wait.
    pub pauses: u32,
    /// Number of consecutive failed queries.
    pub failed_looks: u32,
    /// Why the order fails. The first reason is kept.
    pub failure: Option<Failure>,
}

/// The result of one step.
#[derive(Debug, Clone, PartialEq)]
pub enum StepResult {
    Lock(Lock),
    /// Incomplete operations in the package database.
    Damage(Vec<Line>),
    Chosen(Selection),
    /// The package changes that the resolver would make.
    Resolved {
        moves: Vec<PackageMove>,
        /// Whether the download is so small that the installation may do it itself.
        small_download: bool,
    },
    /// How an action ended. For a restart, with the services that were restarted.
    Ended(ActionResult, Vec<Line>),
    Verified(Verification),
    OldCode(OutdatedServices),
    /// Why the host needs a reboot, or why that could not be determined.
    RebootReasons(Result<Vec<Line>, Line>),
    Scanned,
    /// The host's health before the change.
    Baseline(Box<HealthSnapshot>),
    /// The host's health after the change.
    Health(HealthReport),
    Paused,
    /// A query failed.
    QueryFailed(Failure),
    /// The order must not continue.
    Forbidden(Failure),
}

impl Journal {
    /// The journal of a new order.
    pub fn new(order: &Order, arrival: u64, now: Timestamp) -> Journal {
        Journal {
            id: order.id,
            arrival,
            taken_at: now,
            start_by: start_by(order, now),
            expires_at: None,
            task: Task::from_work(&order.work),
            started_at: None,
            stage: Stage::Dispatched,
            stage_at: now,
            doing: None,
            known: OrderState::default(),
            result: None,
        }
    }

    /// Records that a step is about to be executed.
    pub fn begin(&mut self, step: &Step, facts: &Facts, now: Timestamp) {
        self.started_at.get_or_insert(now);
        if let Step::Run(_) = step {
            self.known.pauses = 0;
        }
        if *step == Step::Run(Action::Reboot) && self.known.rebooting.is_none() {
            let boot_id = facts.boot_id.clone();
            self.known.rebooting = Some(RebootProgress { boot_id, at: now, seconds: None });
        }
        if let Step::Run(Action::Restart) = step
            && let Some(old) = self.known.old_code.take()
        {
            self.known.restarting = old.units;
        }
        if let Some(rebooting) = &mut self.known.rebooting
            && rebooting.has_ended(&facts.boot_id)
            && rebooting.seconds.is_none()
        {
            // The reboot reasons were determined before this boot and no longer apply.
            let seconds = now.duration_since(rebooting.at).as_secs();
            rebooting.seconds = Some(u64::try_from(seconds).unwrap_or(0));
            self.known.reboot_reasons = None;
        }
        let stage = self.stage_for(step);
        if stage > self.stage {
            (self.stage, self.stage_at) = (stage, now);
        }
        self.doing = Some(step.clone());
    }

    /// Records the result of the current step.
    pub fn record(&mut self, result: StepResult) {
        let Some(step) = self.doing.take() else { return };
        let state = &mut self.known;
        match &result {
            StepResult::QueryFailed(_) | StepResult::Paused => {}
            _ => state.failed_looks = 0,
        }
        match result {
            StepResult::Lock(lock) => {
                if lock == Lock::Free {
                    state.pauses = 0;
                }
                state.lock = Some(lock);
            }
            StepResult::Damage(lines) => {
                let touched = [Action::RepairBefore, Action::Install];
                if !touched.iter().any(|act| state.acts.contains_key(act)) {
                    state.damage_before = lines.clone();
                }
                state.damage = Some(lines);
            }
            StepResult::Chosen(chosen) => state.chosen = Some(chosen),
            StepResult::Resolved { moves, small_download: little } => {
                (state.resolved, state.little_to_fetch) = (Some(moves), little);
            }
            StepResult::Verified(verified) => state.verified = Some(verified),
            StepResult::OldCode(units) => state.old_code = Some(units),
            StepResult::RebootReasons(reasons) => state.reboot_reasons = Some(reasons),
            StepResult::Scanned => state.scanned = true,
            StepResult::Baseline(snapshot) => state.baseline = Some(snapshot),
            StepResult::Health(report) => {
                let hooks = step == Step::Health { hooks: true };
                state.health = Some(HealthCheck::after(state.health.take(), report, hooks));
            }
            StepResult::Paused => {
                state.pauses += 1;
                if let Some(health) = &mut state.health {
                    health.pause();
                }
                // Only a lock that was held is checked again.
                state.lock.take_if(|lock| *lock != Lock::Free);
            }
            StepResult::Forbidden(failure) => state.fail(failure),
            StepResult::QueryFailed(failure) => state.record_query_failure(&step, failure),
            StepResult::Ended(ended, restarted) => {
                state.restarted.extend(restarted);
                if let Step::Run(act) = step {
                    state.record_action(act, ended);
                }
            }
        }
    }

    /// Stages only advance, so verification before services are restarted or the host is rebooted
    /// still belongs to the stage `installing`.
    fn stage_for(&self, step: &Step) -> Stage {
        match step {
            Step::Run(Action::PreInstall | Action::Download) => Stage::Downloading,
            Step::Run(
                Action::Install | Action::RepairAfter | Action::PostInstall | Action::UpgradeAgent,
            ) => Stage::Installing,
            Step::Health { .. } => Stage::Verifying,
            Step::Run(Action::Restart) => Stage::RestartingServices,
            Step::Run(Action::PreReboot | Action::Reboot) => Stage::Rebooting,
            Step::Reasons => match &self.known.rebooting {
                Some(rebooting) if rebooting.seconds.is_some() => Stage::Verifying,
                _ => self.stage,
            },
            _ => self.stage.max(Stage::Preflight),
        }
    }
}

impl OrderState {
    fn record_action(&mut self, act: Action, result: ActionResult) {
        if result == ActionResult::Vanished && act.is_repeatable() {
            let times = self.repeats.entry(act).or_default();
            *times += 1;
            if *times < RUNS_MAX {
                return;
            }
        }
        // A change of packages invalidates earlier results about them.
        if matches!(act, Action::RepairBefore | Action::Install | Action::RepairAfter) {
            (self.damage, self.lock) = (None, None);
        }
        self.acts.insert(act, result);
    }

    /// Repeats a failed query a few times; after that, it ends the order.
    fn record_query_failure(&mut self, step: &Step, failure: Failure) {
        self.failed_looks += 1;
        if self.failed_looks < QUERY_ATTEMPTS_MAX {
            return;
        }
        self.failed_looks = 0;
        match step {
            // A late query that fails must not hide the results that are known.
            Step::Reasons => self.reboot_reasons = Some(Err(failure.message)),
            Step::OldCode => self.old_code = Some(OutdatedServices::default()),
            Step::Baseline => {
                let unreadable = Some(failure.message);
                self.baseline =
                    Some(Box::new(HealthSnapshot { unreadable, ..HealthSnapshot::default() }));
            }
            Step::Health { .. } => {
                self.health =
                    Some(HealthCheck::unreadable(self.baseline.as_deref(), failure.message));
            }
            Step::Verify => {
                self.fail(failure);
                self.verified = Some(Verification::default());
            }
            Step::Lock => {
                self.fail(failure);
                self.lock = Some(Lock::Free);
            }
            Step::Damage => {
                self.fail(failure);
                self.damage = Some(Vec::new());
            }
            _ => self.fail(failure),
        }
    }

    /// Keeps the first reason.
    pub(super) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }
}

/// Maximum number of runs of a repeatable action that is killed each time.
pub(super) const RUNS_MAX: u32 = 3;
/// Maximum number of attempts of a failing query.
pub(super) const QUERY_ATTEMPTS_MAX: u32 = 3;

impl Task {
    /// The installation that the order asks for.
    pub fn install(&self) -> Option<&Install> {
        match self {
            Task::Install(install) => Some(install),
            Task::InstallVersions(order) => Some(&order.install),
            _ => None,
        }
    }

    fn from_work(work: &Work) -> Task {
        let refused = |code, message: String| Task::Refused(Failure::new(code, message));
        match work {
            Work::Scan => Task::Scan,
            Work::Plan(install) => Task::Plan(install.clone()),
            Work::Install(install) => Task::Install(install.clone()),
            Work::InstallVersions(order) => Task::InstallVersions(order.clone()),
            Work::RestartServices => Task::RestartServices,
            Work::Reboot(reboot) => Task::Reboot(reboot.clone()),
            Work::UpgradeAgent(upgrade) => Task::UpgradeAgent(upgrade.clone()),
            Work::Unknown { name } => refused(
                FailureCode::UnsupportedOrder,
                format!("this agent does not support orders of type `{name}`"),
            ),
            Work::Malformed { name, reason } => refused(
                FailureCode::RejectedByAgent,
                format!("invalid order of type `{name}`: {reason}"),
            ),
        }
    }
}

/// When it is too late to start. The order was valid by the service's clock when it arrived. If
/// this host's clock is not between the order's creation and its expiry, the clock is wrong, and
/// the order gets its full validity from now on.
fn start_by(order: &Order, now: Timestamp) -> Timestamp {
    if order.issued_at <= now && now < order.expires_at {
        return order.expires_at;
    }
    let lifetime = order.expires_at.duration_since(order.issued_at);
    now.checked_add(lifetime).unwrap_or(Timestamp::MAX)
}
