//! Chooses the next step of the current order.
//!
//! Pure: reads only its arguments; no clock, no disk, no package manager. `executor` executes the
//! step, [`Journal::learn`] records its result, and then the planner is called again, until the
//! order has a result. Waiting is counted in pauses and not by the clock, because clocks jump.

use jiff::Timestamp;
use vocab::{FailureCode, Line, RebootPolicy};
use wire::agent::Install;

use super::failure::Failure;
use super::journal::{Ended, Journal, Lock, OldUnits, Task};
use super::outcome;
use super::outcome::Ending;
use super::step::{Act, Facts, PAUSE_SECONDS, Step};

/// Maximum number of pauses while another program holds the package database lock: ten minutes.
pub const LOCK_PAUSES: u32 = 120;
/// Maximum number of pauses for a package manager that lost its supervisor: one hour.
pub const LEFTOVER_PAUSES: u32 = 720;
/// Maximum number of pauses until a reboot starts: ten minutes.
pub const REBOOT_PAUSES: u32 = 120;

/// The next step. Never called for an order that has a result.
pub fn next(journal: &Journal, facts: &Facts, now: Timestamp) -> Step {
    let course = Course { journal, facts, now };
    if journal.started_at.is_none()
        && let Some(ending) = course.refusal()
    {
        return course.end(ending);
    }
    if let Some(Step::Run(act)) = journal.doing
        && facts.begun
        && !course.is_back()
    {
        return Step::Run(act);
    }
    match &journal.task {
        Task::Scan => course.scan(),
        Task::Plan(_) => course.plan(),
        Task::Install(install) => course.install(install),
        Task::RestartServices => course.restart_services(),
        Task::Reboot(_) => course.reboot_order(),
        Task::Refused(failure) => course.fail(failure.clone()),
        Task::Lost { failure, compare } => course.lost(failure, *compare),
    }
}

struct Course<'a> {
    journal: &'a Journal,
    facts: &'a Facts,
    now: Timestamp,
}

/// The next step of a phase; `None` if the phase is complete; or the failure that ends the order.
type Stretch = Result<Option<Step>, Failure>;

/// Returns the next step of a phase, or falls through if the phase is complete.
macro_rules! go {
    ($course:expr, $stretch:expr) => {
        match $stretch {
            Ok(None) => {}
            Ok(Some(step)) => return step,
            Err(failure) => return $course.stop(failure),
        }
    };
}

impl Course<'_> {
    /// Why the order is not started at all.
    fn refusal(&self) -> Option<Ending> {
        let rejected =
            |why: Line| Ending::Failed(Failure::new(FailureCode::RejectedByAgent, why.as_str()));
        if let Task::Refused(failure) = &self.journal.task {
            return Some(Ending::Failed(failure.clone()));
        }
        if self.facts.withdrawn {
            return Some(Ending::Withdrawn);
        }
        if self.now >= self.journal.start_by {
            let late = format!("the order had to start before {}", self.journal.start_by);
            return Some(Ending::Failed(Failure::new(FailureCode::OrderExpired, late)));
        }
        match &self.journal.task {
            Task::Scan | Task::Refused(_) | Task::Lost { .. } => None,
            Task::Plan(_) => self.facts.rules.unreadable.clone().map(rejected),
            Task::Install(_) | Task::RestartServices => {
                self.facts.rules.forbids_change().map(rejected)
            }
            Task::Reboot(_) => self.facts.rules.forbids_reboot().map(rejected),
        }
    }

    fn scan(&self) -> Step {
        if self.facts.withdrawn && !self.journal.known.acts.contains_key(&Act::Refresh) {
            return self.end(Ending::Withdrawn);
        }
        // A scan waits for a running package manager, but only briefly.
        if let Ok(Some(step)) = self.lock(LOCK_PAUSES / 5) {
            return step;
        }
        let known = &self.journal.known;
        if !known.acts.contains_key(&Act::Refresh) {
            return Step::Run(Act::Refresh);
        }
        if !known.scanned && known.failure.is_none() {
            return Step::Scan;
        }
        match (&known.failure, self.ended_well(Act::Refresh)) {
            (Some(failure), _) => self.fail(failure.clone()),
            (None, Err(failure)) => self.fail(failure),
            (None, Ok(_)) => self.done(),
        }
    }

    fn plan(&self) -> Step {
        if self.facts.withdrawn {
            return self.end(Ending::Withdrawn);
        }
        go!(self, self.lock(LOCK_PAUSES));
        go!(self, self.act(Act::Refresh));
        go!(self, self.choice());
        self.done()
    }

    fn install(&self, install: &Install) -> Step {
        if !self.did(Act::Install) {
            if self.facts.withdrawn && !self.did(Act::PreInstall) {
                return self.end(Ending::Withdrawn);
            }
            go!(self, self.lock(LOCK_PAUSES));
            go!(self, self.soundness());
            go!(self, self.act(Act::Refresh));
            go!(self, self.choice());
            if self.has_choices() {
                go!(self, self.last_word());
                go!(self, self.act(Act::PreInstall));
                if !self.journal.known.little_to_fetch {
                    go!(self, self.act(Act::Download));
                }
                go!(self, self.last_word());
                return Step::Run(Act::Install);
            }
        } else {
            go!(self, self.aftermath());
            go!(self, self.post_install());
            if let Some(failure) = outcome::verdict(self.journal) {
                return self.stop(failure);
            }
        }
        self.afterwards(install)
    }

    /// Restarts and reboots, which follow only if everything succeeded.
    fn afterwards(&self, install: &Install) -> Step {
        if install.reboot == RebootPolicy::ServicesOnly {
            go!(self, self.services());
        }
        go!(self, self.reasons());
        let wanted = match (install.reboot, &self.journal.known.reboot_reasons) {
            // If the check fails, something is wrong, and the host is not rebooted.
            (RebootPolicy::Always, Some(Ok(_))) => true,
            (RebootPolicy::IfRequired, Some(Ok(reasons))) => !reasons.is_empty(),
            _ => false,
        };
        let begun = self.journal.known.rebooting.is_some();
        if begun || (wanted && outcome::why_no_reboot(self.journal, self.facts).is_none()) {
            go!(self, self.reboot());
        }
        self.done()
    }

    /// The order's journal was damaged: only finishes what has already started.
    fn lost(&self, failure: &Failure, compare: bool) -> Step {
        if compare {
            go!(self, self.aftermath());
        }
        self.stop(failure.clone())
    }

    fn restart_services(&self) -> Step {
        if self.facts.withdrawn && self.journal.known.restarting.is_empty() {
            return self.end(Ending::Withdrawn);
        }
        go!(self, self.services());
        self.done()
    }

    fn reboot_order(&self) -> Step {
        if self.journal.known.rebooting.is_none() {
            if self.facts.withdrawn && !self.did(Act::PreReboot) {
                return self.end(Ending::Withdrawn);
            }
            match outcome::why_no_reboot(self.journal, self.facts) {
                None => {}
                Some(why) if why.is_done_already() => return self.done(),
                Some(why) => {
                    let failure = Failure::new(FailureCode::RejectedByAgent, why.as_line());
                    return self.fail(failure);
                }
            }
        }
        go!(self, self.reboot());
        go!(self, self.reasons());
        self.done()
    }

    /// Waits for the package database lock.
    fn lock(&self, pauses_max: u32) -> Stretch {
        match &self.journal.known.lock {
            None => Ok(Some(Step::Lock)),
            Some(Lock::Free) => Ok(None),
            Some(Lock::HeldBy(_)) if self.journal.known.pauses < pauses_max => {
                Ok(Some(Step::Pause))
            }
            Some(Lock::HeldBy(holder)) => {
                let minutes = u64::from(pauses_max) * PAUSE_SECONDS / 60;
                let message = format!(
                    "{holder} held the package database lock for more than {minutes} minutes"
                );
                Err(Failure::new(FailureCode::PkgLockTimeout, message))
            }
        }
    }

    /// Repairs incomplete operations from before the order.
    fn soundness(&self) -> Stretch {
        match &self.journal.known.damage {
            None => Ok(Some(Step::Damage)),
            Some(damage) if damage.is_empty() => Ok(None),
            Some(_) if !self.did(Act::RepairBefore) => Ok(Some(Step::Run(Act::RepairBefore))),
            Some(damage) => Err(outcome::broken(damage)),
        }
    }

    /// Runs an action once, and fails if it failed.
    fn act(&self, act: Act) -> Stretch {
        if !self.did(act) {
            return Ok(Some(Step::Run(act)));
        }
        self.ended_well(act)
    }

    fn ended_well(&self, act: Act) -> Stretch {
        match self.journal.known.acts.get(&act) {
            None | Some(Ended::Well) => Ok(None),
            Some(Ended::Badly { failure, .. }) => Err(failure.clone()),
            Some(Ended::Vanished) => Err(outcome::vanished(act)),
        }
    }

    /// Selects the updates and resolves them.
    fn choice(&self) -> Stretch {
        let known = &self.journal.known;
        if let Some(failure) = &known.failure {
            return Err(failure.clone());
        }
        match (&known.chosen, &known.resolved) {
            (None, _) => Ok(Some(Step::Choose)),
            (Some(chosen), None) if !chosen.choices.is_empty() => Ok(Some(Step::Resolve)),
            _ => Ok(None),
        }
    }

    /// Checks the limits again: the administrator may have changed them, and time has passed.
    fn last_word(&self) -> Stretch {
        match self.facts.rules.forbids_change() {
            None => Ok(None),
            Some(why) => Err(Failure::new(FailureCode::RejectedByAgent, why.as_str())),
        }
    }

    /// After the installation: waits for the lock, repairs incomplete operations, compares
    /// inventories.
    fn aftermath(&self) -> Stretch {
        let known = &self.journal.known;
        if known.verified.is_some() {
            return Ok(None);
        }
        // A package manager that lost its supervisor is never killed; its work is judged when it
        // ends, or after an hour.
        if let Ok(Some(step)) = self.lock(LEFTOVER_PAUSES) {
            return Ok(Some(step));
        }
        match &known.damage {
            None => return Ok(Some(Step::Damage)),
            Some(damage) if !damage.is_empty() && !self.did(Act::RepairAfter) => {
                return Ok(Some(Step::Run(Act::RepairAfter)));
            }
            Some(_) => {}
        }
        Ok(Some(Step::Verify))
    }

    /// Post-install hooks run whenever the pre-install hooks ran: whatever those did, such as
    /// taking the host out of a load balancer, must be undone even if nothing was installed.
    fn post_install(&self) -> Stretch {
        let due = self.did(Act::PreInstall) && !self.did(Act::PostInstall);
        Ok(due.then_some(Step::Run(Act::PostInstall)))
    }

    fn services(&self) -> Stretch {
        let known = &self.journal.known;
        match &known.old_code {
            None => Ok(Some(Step::OldCode)),
            Some(OldUnits { units, .. }) if !units.is_empty() && !self.did(Act::Restart) => {
                Ok(Some(Step::Run(Act::Restart)))
            }
            Some(_) => self.ended_well(Act::Restart),
        }
    }

    fn reasons(&self) -> Stretch {
        Ok(self.journal.known.reboot_reasons.is_none().then_some(Step::Reasons))
    }

    /// Reboots at most once; a new boot id shows that it happened.
    fn reboot(&self) -> Stretch {
        let known = &self.journal.known;
        let Some(rebooting) = &known.rebooting else {
            return self.act(Act::PreReboot).map(|step| step.or(Some(Step::Run(Act::Reboot))));
        };
        if rebooting.seconds.is_some() {
            return Ok(None);
        }
        if self.is_back() {
            return Ok(Some(Step::Reasons));
        }
        match known.acts.get(&Act::Reboot) {
            None => Ok(Some(Step::Run(Act::Reboot))),
            Some(Ended::Badly { failure, .. }) => Err(failure.clone()),
            Some(_) if known.pauses < REBOOT_PAUSES => Ok(Some(Step::Pause)),
            Some(_) => {
                let minutes = u64::from(REBOOT_PAUSES) * PAUSE_SECONDS / 60;
                let message = format!("the host did not reboot within {minutes} minutes");
                Err(Failure::new(FailureCode::RebootTimeout, message))
            }
        }
    }

    fn is_back(&self) -> bool {
        let rebooting = self.journal.known.rebooting.as_ref();
        rebooting.is_some_and(|rebooting| rebooting.has_ended(&self.facts.boot_id))
    }

    fn did(&self, act: Act) -> bool {
        self.journal.known.acts.contains_key(&act)
    }

    fn has_choices(&self) -> bool {
        self.journal.known.chosen.as_ref().is_some_and(|chosen| !chosen.choices.is_empty())
    }

    /// Fails the order, after the steps that must follow in any case.
    fn stop(&self, failure: Failure) -> Step {
        if let Ok(Some(step)) = self.post_install() {
            return step;
        }
        if self.did(Act::Install)
            && self.journal.known.rebooting.is_none()
            && let Ok(Some(step)) = self.reasons()
        {
            return step;
        }
        self.fail(failure)
    }

    fn fail(&self, failure: Failure) -> Step {
        self.end(Ending::Failed(failure))
    }

    fn done(&self) -> Step {
        self.end(Ending::Done)
    }

    fn end(&self, ending: Ending) -> Step {
        Step::End(Box::new(outcome::result(self.journal, self.facts, ending, self.now)))
    }
}
