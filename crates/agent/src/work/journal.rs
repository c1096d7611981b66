//! What is written down of an order: what it asks for, which step was begun last, and what is known.
//!
//! Pure: [`Journal::begin`] and [`Journal::learn`] are the only ways in which it changes, and
//! [`planner::next`](super::planner::next) reads it. It is saved after `begin` and before the step is taken.
//! What a step taught is saved together with the next one: if that is lost, a look is taken again, and
//! what ran once is read from its directory and not run again.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{FailureCode, Line, Stage, TaskId};
use wire::agent::{Install, Order, OrderResult, PackageMove, Reboot, Work};

use super::failure::Failure;
use super::select::Passed;
use super::step::{Act, Facts, Step};
use crate::backend::Choice;

/// One order, from its arrival until it is forgotten.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Journal {
    /// Which order.
    pub id: TaskId,
    /// Its place in the order of arrival.
    pub arrival: u64,
    /// When it came.
    pub taken_at: Timestamp,
    /// When it is too late to begin, by this host's clock.
    pub start_by: Timestamp,
    /// When it expires by the server's clock; older versions did not write it down.
    #[serde(default)]
    pub expires_at: Option<Timestamp>,
    /// What is to be done.
    pub task: Task,
    /// When it was begun.
    pub started_at: Option<Timestamp>,
    /// How far it is.
    pub stage: Stage,
    /// Since when.
    pub stage_at: Timestamp,
    /// The step that was begun and of which nothing is known yet.
    pub doing: Option<Step>,
    /// What the steps taught.
    pub known: Known,
    /// How it ended.
    pub result: Option<OrderResult>,
}

/// What an order asks for. The refused ones are here too: they are answered under their id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Look at the packages.
    Scan,
    /// Find out what an installation would do.
    Plan(Install),
    /// Install updates.
    Install(Install),
    /// Restart the services that run old code.
    RestartServices,
    /// Reboot.
    Reboot(Reboot),
    /// Nothing that this agent does.
    Refused(Failure),
    /// Not known any more: the order's journal was damaged. Nothing is begun for it.
    Lost {
        /// With what it ends.
        failure: Failure,
        /// Whether there is an inventory to compare the packages with.
        compare: bool,
    },
}

/// Who works on the package database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lock {
    /// Nobody.
    Free,
    /// This program, for people.
    HeldBy(Line),
}

/// How an act ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// Everything ended as it should.
    Well,
    /// It ended with a failure.
    Badly {
        /// The exit code; nothing if a signal ended it.
        exit: Option<i32>,
        /// What that means.
        failure: Failure,
    },
    /// It was killed, or the machine went down; nobody knows how far it came.
    Vanished,
}

/// What is known of the packages after an installation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// The difference between the inventories before and after.
    pub moves: Vec<PackageMove>,
    /// What is not as it was asked for, one line each.
    pub unmet: Vec<Line>,
    /// The configuration that was put beside an edited file.
    pub set_aside: Vec<Line>,
}

/// Who runs old code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OldUnits {
    /// The services that may be restarted.
    pub units: Vec<String>,
    /// The rest, for people.
    pub others: Vec<Line>,
}

/// What was chosen to be updated.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chosen {
    /// Exactly these.
    pub choices: Vec<Choice>,
    /// What was passed over and why.
    pub passed: Vec<Passed>,
    /// Configuration that already lay beside an edited file.
    pub set_aside: Vec<Line>,
}

/// The reboot of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebooting {
    /// The boot that is to end.
    pub boot_id: Line,
    /// When it was asked for.
    pub at: Timestamp,
    /// How many seconds it took, once another boot was seen.
    pub seconds: Option<u64>,
}

impl Rebooting {
    /// Whether this is another boot. A kernel that does not say which one it is proves nothing.
    pub fn has_ended(&self, boot_id: &Line) -> bool {
        *boot_id != self.boot_id && !boot_id.as_str().is_empty()
    }
}

/// What the steps of an order taught.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Known {
    /// Who works on the package database.
    pub lock: Option<Lock>,
    /// What is half done in the package database.
    pub damage: Option<Vec<Line>>,
    /// What was half done before the order.
    pub damage_before: Vec<Line>,
    /// What was chosen.
    pub chosen: Option<Chosen>,
    /// What would happen.
    pub resolved: Option<Vec<PackageMove>>,
    /// Whether the installation itself may fetch what it needs.
    #[serde(default)]
    pub little_to_fetch: bool,
    /// How each act ended.
    pub acts: BTreeMap<Act, Ended>,
    /// How often a repeatable act was killed.
    pub repeats: BTreeMap<Act, u32>,
    /// What came of the installation.
    pub verified: Option<Verified>,
    /// Who runs old code.
    pub old_code: Option<OldUnits>,
    /// The services that were to be restarted.
    pub restarting: Vec<String>,
    /// Those that were restarted.
    pub restarted: Vec<Line>,
    /// Why the system should be rebooted, or why nobody knows.
    pub reboot_reasons: Option<Result<Vec<Line>, Line>>,
    /// The reboot, once it was begun.
    pub rebooting: Option<Rebooting>,
    /// Whether the packages were looked at and the listing published.
    pub scanned: bool,
    /// How many pauses were made since something was waited for.
    pub pauses: u32,
    /// How often a look failed in a row.
    pub failed_looks: u32,
    /// Why the order fails. The first reason stays.
    pub failure: Option<Failure>,
}

/// What a step taught.
#[derive(Debug, Clone, PartialEq)]
pub enum Lesson {
    /// Who works on the package database.
    Lock(Lock),
    /// What is half done.
    Damage(Vec<Line>),
    /// What was chosen.
    Chosen(Chosen),
    /// What would happen.
    Resolved {
        /// What would be moved.
        moves: Vec<PackageMove>,
        /// Whether there is so little to fetch that the installation may do so itself.
        little: bool,
    },
    /// How an act ended. With the services that were restarted, if that was the act.
    Ended(Ended, Vec<Line>),
    /// What came of the installation.
    Verified(Verified),
    /// Who runs old code.
    OldCode(OldUnits),
    /// Why the system should be rebooted, or why nobody knows.
    RebootReasons(Result<Vec<Line>, Line>),
    /// The listing was published.
    Scanned,
    /// A pause was made.
    Paused,
    /// A look had no answer.
    NoAnswer(Failure),
    /// What was seen forbids to go on.
    Forbidden(Failure),
}

impl Journal {
    /// The journal of an order that has just come.
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

    /// Writes down that a step is about to be taken.
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
            // Whatever was known of the boot before is not of this one.
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

    /// Takes in what a step taught.
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
                // Only whoever was waited for is looked for again.
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

    /// Stages only go forward, so what is compared before services are restarted or the host is
    /// rebooted is still part of installing.
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
        // Whatever changes packages makes an older look at them worthless.
        if matches!(act, Act::RepairBefore | Act::Install | Act::RepairAfter) {
            (self.damage, self.lock) = (None, None);
        }
        self.acts.insert(act, ended);
    }

    /// A look without an answer is taken again some times; then it ends the order.
    fn no_answer(&mut self, step: &Step, failure: Failure) {
        self.failed_looks += 1;
        if self.failed_looks < LOOKS_MAX {
            return;
        }
        self.failed_looks = 0;
        match step {
            // What cannot be known at the end does not hide what is known.
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

    /// The first reason stays.
    pub(super) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }
}

/// How often a repeatable act is run at most if it is killed each time.
pub(super) const REPEATS_MAX: u32 = 3;
/// How often a look is taken at most if it has no answer.
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
                format!("this agent does not know orders of the kind `{name}`"),
            ),
            Work::Malformed { name, reason } => refused(
                FailureCode::RejectedByAgent,
                format!("the order of the kind `{name}` cannot be meant: {reason}"),
            ),
        }
    }
}

/// When it is too late to begin. The order was in time by the server's clock when it came. If this host's
/// clock does not lie between the order's own times it is wrong, and then the order has as long as it
/// was given for.
fn start_by(order: &Order, now: Timestamp) -> Timestamp {
    if order.issued_at <= now && now < order.expires_at {
        return order.expires_at;
    }
    let life = order.expires_at.duration_since(order.issued_at);
    now.checked_add(life).unwrap_or(Timestamp::MAX)
}
