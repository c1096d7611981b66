//! The journal of an order: what it asks for, which step started last, and the results of its
//! steps.
//!
//! Pure: only [`Journal::begin`] and [`Journal::learn`] change it, and
//! [`planner::next`](super::planner::next) reads it. It is saved after `begin` and before the step
//! is executed. A step's result is saved together with the next step. If that save is lost, a query
//! is repeated, and the result of a command that already ran is read from its job directory; the
//! command does not run again.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{FailureCode, Line, Stage, TaskId};
use wire::agent::{Install, Order, OrderResult, PackageMove, Reboot, Work};

use super::failure::Failure;
use super::select::Passed;
use super::step::{Act, Facts, Step};
use crate::backend::Choice;

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
    /// When it expires, by the server's clock. Older versions did not store it.
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
    pub known: Known,
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
    /// Restart the services that run outdated code.
    RestartServices,
    Reboot(Reboot),
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
pub enum Ended {
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
pub struct Verified {
    /// The difference between the inventories before and after.
    pub moves: Vec<PackageMove>,
    /// Expectations that are not met, one line each.
    pub unmet: Vec<Line>,
    /// New configuration files that were stored next to edited ones.
    pub set_aside: Vec<Line>,
}

/// Processes that run outdated code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OldUnits {
    /// The services that may be restarted.
    pub units: Vec<String>,
    /// All other processes, as display names.
    pub others: Vec<Line>,
}

/// The updates selected for an order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chosen {
    pub choices: Vec<Choice>,
    /// Packages that are skipped, and why.
    pub passed: Vec<Passed>,
    /// New configuration files that already existed before the order.
    pub set_aside: Vec<Line>,
}

/// The reboot of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebooting {
    /// The boot id before the reboot.
    pub boot_id: Line,
    /// When the reboot was requested.
    pub at: Timestamp,
    /// How many seconds it took, once a new boot id was seen.
    pub seconds: Option<u64>,
}

impl Rebooting {
    /// Whether this is another boot. An empty boot id, from a kernel that provides none, proves
    /// nothing.
    pub fn has_ended(&self, boot_id: &Line) -> bool {
        *boot_id != self.boot_id && !boot_id.as_str().is_empty()
    }
}

/// The results of an order's steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Known {
    /// The state of the package database lock.
    pub lock: Option<Lock>,
    /// Incomplete operations in the package database.
    pub damage: Option<Vec<Line>>,
    /// Incomplete operations from before the order.
    pub damage_before: Vec<Line>,
    pub chosen: Option<Chosen>,
    /// The package changes that the resolver would make.
    pub resolved: Option<Vec<PackageMove>>,
    /// Whether the installation may download its packages itself.
    #[serde(default)]
    pub little_to_fetch: bool,
    /// How each action ended.
    pub acts: BTreeMap<Act, Ended>,
    /// How often each repeatable action was killed.
    pub repeats: BTreeMap<Act, u32>,
    /// The state of the packages after the installation.
    pub verified: Option<Verified>,
    /// The processes that run outdated code.
    pub old_code: Option<OldUnits>,
    /// The services to restart.
    pub restarting: Vec<String>,
    /// The services that were restarted.
    pub restarted: Vec<Line>,
    /// Why the host needs a reboot, or why that could not be determined.
    pub reboot_reasons: Option<Result<Vec<Line>, Line>>,
    /// The reboot, once it was requested.
    pub rebooting: Option<Rebooting>,
    /// Whether the scan is done and its listing published.
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
pub enum Lesson {
    Lock(Lock),
    /// Incomplete operations in the package database.
    Damage(Vec<Line>),
    Chosen(Chosen),
    /// The package changes that the resolver would make.
    Resolved {
        moves: Vec<PackageMove>,
        /// Whether the download is so small that the installation may do it itself.
        little: bool,
    },
    /// How an action ended. For a restart, with the services that were restarted.
    Ended(Ended, Vec<Line>),
    Verified(Verified),
    OldCode(OldUnits),
    /// Why the host needs a reboot, or why that could not be determined.
    RebootReasons(Result<Vec<Line>, Line>),
    Scanned,
    Paused,
    /// A query failed.
    NoAnswer(Failure),
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
            task: Task::of(&order.work),
            started_at: None,
            stage: Stage::Dispatched,
            stage_at: now,
            doing: None,
            known: Known::default(),
            result: None,
        }
    }

    /// Records that a step is about to be executed.
    pub fn begin(&mut self, step: &Step, facts: &Facts, now: Timestamp) {
        self.started_at.get_or_insert(now);
        if let Step::Run(_) = step {
            self.known.pauses = 0;
        }
        if *step == Step::Run(Act::Reboot) && self.known.rebooting.is_none() {
            let boot_id = facts.boot_id.clone();
            self.known.rebooting = Some(Rebooting { boot_id, at: now, seconds: None });
        }
        if let Step::Run(Act::Restart) = step
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
        let stage = self.stage_of(step);
        if stage > self.stage {
            (self.stage, self.stage_at) = (stage, now);
        }
        self.doing = Some(step.clone());
    }

    /// Records the result of the current step.
    pub fn learn(&mut self, lesson: Lesson) {
        let Some(step) = self.doing.take() else { return };
        let known = &mut self.known;
        match &lesson {
            Lesson::NoAnswer(_) | Lesson::Paused => {}
            _ => known.failed_looks = 0,
        }
        match lesson {
            Lesson::Lock(lock) => {
                if lock == Lock::Free {
                    known.pauses = 0;
                }
                known.lock = Some(lock);
            }
            Lesson::Damage(lines) => {
                let touched = [Act::RepairBefore, Act::Install];
                if !touched.iter().any(|act| known.acts.contains_key(act)) {
                    known.damage_before = lines.clone();
                }
                known.damage = Some(lines);
            }
            Lesson::Chosen(chosen) => known.chosen = Some(chosen),
            Lesson::Resolved { moves, little } => {
                (known.resolved, known.little_to_fetch) = (Some(moves), little);
            }
            Lesson::Verified(verified) => known.verified = Some(verified),
            Lesson::OldCode(units) => known.old_code = Some(units),
            Lesson::RebootReasons(reasons) => known.reboot_reasons = Some(reasons),
            Lesson::Scanned => known.scanned = true,
            Lesson::Paused => {
                known.pauses += 1;
                // Only a lock that was held is checked again.
                known.lock.take_if(|lock| *lock != Lock::Free);
            }
            Lesson::Forbidden(failure) => known.fail(failure),
            Lesson::NoAnswer(failure) => known.no_answer(&step, failure),
            Lesson::Ended(ended, restarted) => {
                known.restarted.extend(restarted);
                if let Step::Run(act) = step {
                    known.ended(act, ended);
                }
            }
        }
    }

    /// Stages only advance, so verification before services are restarted or the host is rebooted
    /// still belongs to the stage `installing`.
    fn stage_of(&self, step: &Step) -> Stage {
        match step {
            Step::Run(Act::PreInstall | Act::Download) => Stage::Downloading,
            Step::Run(Act::Install | Act::RepairAfter | Act::PostInstall) => Stage::Installing,
            Step::Run(Act::Restart) => Stage::RestartingServices,
            Step::Run(Act::PreReboot | Act::Reboot) => Stage::Rebooting,
            Step::Reasons => match &self.known.rebooting {
                Some(rebooting) if rebooting.seconds.is_some() => Stage::Verifying,
                _ => self.stage,
            },
            _ => self.stage.max(Stage::Preflight),
        }
    }
}

impl Known {
    fn ended(&mut self, act: Act, ended: Ended) {
        if ended == Ended::Vanished && act.is_repeatable() {
            let times = self.repeats.entry(act).or_default();
            *times += 1;
            if *times < REPEATS_MAX {
                return;
            }
        }
        // A change of packages invalidates earlier results about them.
        if matches!(act, Act::RepairBefore | Act::Install | Act::RepairAfter) {
            (self.damage, self.lock) = (None, None);
        }
        self.acts.insert(act, ended);
    }

    /// Repeats a failed query a few times; after that, it ends the order.
    fn no_answer(&mut self, step: &Step, failure: Failure) {
        self.failed_looks += 1;
        if self.failed_looks < LOOKS_MAX {
            return;
        }
        self.failed_looks = 0;
        match step {
            // A late query that fails must not hide the results that are known.
            Step::Reasons => self.reboot_reasons = Some(Err(failure.message)),
            Step::OldCode => self.old_code = Some(OldUnits::default()),
            Step::Verify => {
                self.fail(failure);
                self.verified = Some(Verified::default());
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
pub(super) const REPEATS_MAX: u32 = 3;
/// Maximum number of attempts of a failing query.
pub(super) const LOOKS_MAX: u32 = 3;

impl Task {
    fn of(work: &Work) -> Task {
        let refused = |code, message: String| Task::Refused(Failure::new(code, message));
        match work {
            Work::Scan => Task::Scan,
            Work::Plan(install) => Task::Plan(install.clone()),
            Work::Install(install) => Task::Install(install.clone()),
            Work::RestartServices => Task::RestartServices,
            Work::Reboot(reboot) => Task::Reboot(reboot.clone()),
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

/// When it is too late to start. The order was valid by the server's clock when it arrived. If this
/// host's clock is not between the order's creation and its expiry, the clock is wrong, and the
/// order gets its full validity from now on.
fn start_by(order: &Order, now: Timestamp) -> Timestamp {
    if order.issued_at <= now && now < order.expires_at {
        return order.expires_at;
    }
    let life = order.expires_at.duration_since(order.issued_at);
    now.checked_add(life).unwrap_or(Timestamp::MAX)
}
