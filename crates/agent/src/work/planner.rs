//! Chooses the next step of the current order.
//!
//! Pure: reads only its arguments; no clock, no disk, no package manager. `executor` executes the
//! step, [`Journal::record`] records its result, and then the planner is called again, until the
//! order has a result. Waiting is counted in pauses and not by the clock, because clocks jump.

use jiff::Timestamp;
use vocab::{FailureCode, Line, RebootPolicy};
use wire::agent::{AgentUpgrade, Install, is_older_version};

use super::failure::Failure;
use super::health;
use super::journal::{ActionResult, Journal, Lock, OutdatedServices, Task};
use super::outcome;
use super::outcome::Ending;
use super::step::{Action, Facts, PAUSE_SECONDS, Step};

/// Maximum number of pauses while another program holds the package database lock: ten minutes.
pub const LOCK_PAUSES: u32 = 120;
/// Maximum number of pauses while a package manager without a supervisor still runs: one hour.
pub const ORPHAN_PAUSES: u32 = 720;
/// Maximum number of pauses until a reboot starts: ten minutes.
pub const REBOOT_PAUSES: u32 = 120;

/// The next step. Never called for an order that has a result.
pub fn next_step(journal: &Journal, facts: &Facts, now: Timestamp) -> Step {
    let planner = Planner { journal, facts, now };
    if journal.started_at.is_none()
        && let Some(ending) = planner.rejection()
    {
        return planner.end(ending);
    }
    if let Some(Step::Run(act)) = journal.doing
        && facts.started
        && !planner.has_rebooted()
    {
        return Step::Run(act);
    }
    match &journal.task {
        Task::Scan => planner.scan(),
        Task::Plan(_) => planner.plan(),
        Task::Install(install) => planner.install(install),
        Task::InstallVersions(order) => planner.install(&order.install),
        Task::RestartServices => planner.restart_services(),
        Task::Reboot(_) => planner.reboot_order(),
        Task::UpgradeAgent(upgrade) => planner.upgrade_agent(upgrade),
        Task::Refused(failure) => planner.end_failed(failure.clone()),
        Task::Lost { failure, compare } => planner.finish_lost(failure, *compare),
    }
}

struct Planner<'a> {
    journal: &'a Journal,
    facts: &'a Facts,
    now: Timestamp,
}

/// The next step of a phase; `None` if the phase is complete; or the failure that ends the order.
type PhaseResult = Result<Option<Step>, Failure>;

/// Returns the next step of a phase, or falls through if the phase is complete.
macro_rules! run_phase {
    ($planner:expr, $phase:expr) => {
        match $phase {
            Ok(None) => {}
            Ok(Some(step)) => return step,
            Err(failure) => return $planner.fail_after_cleanup(failure),
        }
    };
}

impl Planner<'_> {
    /// Why the order is not started at all.
    fn rejection(&self) -> Option<Ending> {
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
            Task::Plan(_) => self.facts.active_limits.unreadable.clone().map(rejected),
            Task::Install(_) | Task::InstallVersions(_) | Task::RestartServices => {
                self.facts.active_limits.forbids_change().map(rejected)
            }
            Task::Reboot(_) => self.facts.active_limits.forbids_reboot().map(rejected),
            Task::UpgradeAgent(_) => self.facts.active_limits.forbids_upgrade().map(rejected),
        }
    }

    fn scan(&self) -> Step {
        if self.facts.withdrawn && !self.journal.known.acts.contains_key(&Action::Refresh) {
            return self.end(Ending::Withdrawn);
        }
        // A scan waits for a running package manager, but only briefly.
        if let Ok(Some(step)) = self.wait_for_lock(LOCK_PAUSES / 5) {
            return step;
        }
        let state = &self.journal.known;
        if !state.acts.contains_key(&Action::Refresh) {
            return Step::Run(Action::Refresh);
        }
        if !state.scanned && state.failure.is_none() {
            return Step::Scan;
        }
        match (&state.failure, self.check_succeeded(Action::Refresh)) {
            (Some(failure), _) => self.end_failed(failure.clone()),
            (None, Err(failure)) => self.end_failed(failure),
            (None, Ok(_)) => self.end_completed(),
        }
    }

    fn plan(&self) -> Step {
        if self.facts.withdrawn {
            return self.end(Ending::Withdrawn);
        }
        run_phase!(self, self.wait_for_lock(LOCK_PAUSES));
        run_phase!(self, self.run_once(Action::Refresh));
        run_phase!(self, self.select_updates());
        self.end_completed()
    }

    fn install(&self, install: &Install) -> Step {
        if !self.has_run(Action::Install) {
            if self.facts.withdrawn && !self.has_run(Action::PreInstall) {
                return self.end(Ending::Withdrawn);
            }
            run_phase!(self, self.wait_for_lock(LOCK_PAUSES));
            run_phase!(self, self.repair_existing_damage());
            run_phase!(self, self.run_once(Action::Refresh));
            run_phase!(self, self.select_updates());
            if self.has_choices() {
                run_phase!(self, self.recheck_limits());
                run_phase!(self, self.measure_baseline(install));
                run_phase!(self, self.run_once(Action::PreInstall));
                if !self.journal.known.little_to_fetch {
                    run_phase!(self, self.run_once(Action::Download));
                }
                run_phase!(self, self.recheck_limits());
                return Step::Run(Action::Install);
            }
        } else {
            run_phase!(self, self.check_installation());
            run_phase!(self, self.post_install());
            if let Some(failure) = outcome::install_failure(self.journal) {
                return self.fail_after_cleanup(failure);
            }
        }
        self.restart_or_reboot(install)
    }

    /// Restarts and reboots, which follow only if everything succeeded.
    fn restart_or_reboot(&self, install: &Install) -> Step {
        if install.reboot == RebootPolicy::ServicesOnly {
            run_phase!(self, self.restart_outdated_services());
        }
        run_phase!(self, self.check_reboot_reasons());
        let wanted = match (install.reboot, &self.journal.known.reboot_reasons) {
            // If the check fails, something is wrong, and the host is not rebooted.
            (RebootPolicy::Always, Some(Ok(_))) => true,
            (RebootPolicy::IfRequired, Some(Ok(reasons))) => !reasons.is_empty(),
            _ => false,
        };
        let started = self.journal.known.rebooting.is_some();
        if started || (wanted && outcome::no_reboot_reason(self.journal, self.facts).is_none()) {
            run_phase!(self, self.reboot());
        }
        run_phase!(self, self.measure_health());
        self.end_completed()
    }

    /// The order's journal was damaged: only finishes what has already started.
    fn finish_lost(&self, failure: &Failure, compare: bool) -> Step {
        if compare {
            run_phase!(self, self.check_installation());
        }
        self.fail_after_cleanup(failure.clone())
    }

    fn restart_services(&self) -> Step {
        if self.facts.withdrawn && self.journal.known.restarting.is_empty() {
            return self.end(Ending::Withdrawn);
        }
        run_phase!(self, self.restart_outdated_services());
        self.end_completed()
    }

    fn reboot_order(&self) -> Step {
        if self.journal.known.rebooting.is_none() {
            if self.facts.withdrawn && !self.has_run(Action::PreReboot) {
                return self.end(Ending::Withdrawn);
            }
            match outcome::no_reboot_reason(self.journal, self.facts) {
                None => {}
                Some(why) if why.has_rebooted() => return self.end_completed(),
                Some(why) => {
                    let failure = Failure::new(FailureCode::RejectedByAgent, why.to_message());
                    return self.end_failed(failure);
                }
            }
        }
        run_phase!(self, self.reboot());
        run_phase!(self, self.check_reboot_reasons());
        self.end_completed()
    }

    /// Measures the host's health before anything changes, hooks of the administrator included.
    fn measure_baseline(&self, install: &Install) -> PhaseResult {
        let due = install.health && self.journal.known.baseline.is_none();
        Ok(due.then_some(Step::Baseline))
    }

    /// Measures the host's health after an installation, and after the reboot if there is one.
    fn measure_health(&self) -> PhaseResult {
        let state = &self.journal.known;
        match &state.baseline {
            Some(baseline) if self.has_run(Action::Install) => {
                Ok(health::next_step(baseline, state.health.as_ref()))
            }
            _ => Ok(None),
        }
    }

    /// Replaces the agent's own program. The job does all of it, and survives the restart of the
    /// agent that it causes.
    fn upgrade_agent(&self, upgrade: &AgentUpgrade) -> Step {
        if self.has_run(Action::UpgradeAgent) {
            return match self.check_succeeded(Action::UpgradeAgent) {
                Ok(_) => self.end_completed(),
                Err(failure) => self.end_failed(failure),
            };
        }
        if self.facts.withdrawn {
            return self.end(Ending::Withdrawn);
        }
        let (current, wanted) = (self.facts.agent_version.as_str(), upgrade.version.as_str());
        if current == wanted {
            return self.end_completed();
        }
        let refused =
            |why: &str| self.end_failed(Failure::new(FailureCode::RejectedByAgent, why.to_owned()));
        if is_older_version(wanted, current) {
            return refused(&format!(
                "version {wanted} is older than {current}, which is installed"
            ));
        }
        match &self.facts.may_upgrade {
            Ok(()) => Step::Run(Action::UpgradeAgent),
            Err(why) => refused(why.as_str()),
        }
    }

    /// Waits for the package database lock.
    fn wait_for_lock(&self, pauses_max: u32) -> PhaseResult {
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
    fn repair_existing_damage(&self) -> PhaseResult {
        match &self.journal.known.damage {
            None => Ok(Some(Step::Damage)),
            Some(damage) if damage.is_empty() => Ok(None),
            Some(_) if !self.has_run(Action::RepairBefore) => {
                Ok(Some(Step::Run(Action::RepairBefore)))
            }
            Some(damage) => Err(outcome::damage_failure(damage)),
        }
    }

    /// Runs an action once, and fails if it failed.
    fn run_once(&self, act: Action) -> PhaseResult {
        if !self.has_run(act) {
            return Ok(Some(Step::Run(act)));
        }
        self.check_succeeded(act)
    }

    fn check_succeeded(&self, act: Action) -> PhaseResult {
        match self.journal.known.acts.get(&act) {
            None | Some(ActionResult::Well) => Ok(None),
            Some(ActionResult::Badly { failure, .. }) => Err(failure.clone()),
            Some(ActionResult::Vanished) => Err(outcome::killed_failure(act)),
        }
    }

    /// Selects the updates and resolves them.
    fn select_updates(&self) -> PhaseResult {
        let state = &self.journal.known;
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        match (&state.chosen, &state.resolved) {
            (None, _) => Ok(Some(Step::Choose)),
            (Some(chosen), None) if !chosen.choices.is_empty() => Ok(Some(Step::Resolve)),
            _ => Ok(None),
        }
    }

    /// Checks the limits again: the administrator may have changed them, and time has passed.
    fn recheck_limits(&self) -> PhaseResult {
        match self.facts.active_limits.forbids_change() {
            None => Ok(None),
            Some(why) => Err(Failure::new(FailureCode::RejectedByAgent, why.as_str())),
        }
    }

    /// After the installation: waits for the lock, repairs incomplete operations, compares
    /// inventories.
    fn check_installation(&self) -> PhaseResult {
        let state = &self.journal.known;
        if state.verified.is_some() {
            return Ok(None);
        }
        // A package manager that lost its supervisor is never killed; its work is judged when it
        // ends, or after an hour.
        if let Ok(Some(step)) = self.wait_for_lock(ORPHAN_PAUSES) {
            return Ok(Some(step));
        }
        match &state.damage {
            None => return Ok(Some(Step::Damage)),
            Some(damage) if !damage.is_empty() && !self.has_run(Action::RepairAfter) => {
                return Ok(Some(Step::Run(Action::RepairAfter)));
            }
            Some(_) => {}
        }
        Ok(Some(Step::Verify))
    }

    /// Post-install hooks run whenever the pre-install hooks ran: whatever those did, such as
    /// taking the host out of a load balancer, must be undone even if nothing was installed.
    fn post_install(&self) -> PhaseResult {
        let due = self.has_run(Action::PreInstall) && !self.has_run(Action::PostInstall);
        Ok(due.then_some(Step::Run(Action::PostInstall)))
    }

    fn restart_outdated_services(&self) -> PhaseResult {
        let state = &self.journal.known;
        match &state.old_code {
            None => Ok(Some(Step::OldCode)),
            Some(OutdatedServices { units, .. })
                if !units.is_empty() && !self.has_run(Action::Restart) =>
            {
                Ok(Some(Step::Run(Action::Restart)))
            }
            Some(_) => self.check_succeeded(Action::Restart),
        }
    }

    fn check_reboot_reasons(&self) -> PhaseResult {
        Ok(self.journal.known.reboot_reasons.is_none().then_some(Step::Reasons))
    }

    /// Reboots at most once; a new boot id shows that it happened.
    fn reboot(&self) -> PhaseResult {
        let state = &self.journal.known;
        let Some(rebooting) = &state.rebooting else {
            return self
                .run_once(Action::PreReboot)
                .map(|step| step.or(Some(Step::Run(Action::Reboot))));
        };
        if rebooting.seconds.is_some() {
            return Ok(None);
        }
        if self.has_rebooted() {
            return Ok(Some(Step::Reasons));
        }
        match state.acts.get(&Action::Reboot) {
            None => Ok(Some(Step::Run(Action::Reboot))),
            Some(ActionResult::Badly { failure, .. }) => Err(failure.clone()),
            Some(_) if state.pauses < REBOOT_PAUSES => Ok(Some(Step::Pause)),
            Some(_) => {
                let minutes = u64::from(REBOOT_PAUSES) * PAUSE_SECONDS / 60;
                let message = format!("the host did not reboot within {minutes} minutes");
                Err(Failure::new(FailureCode::RebootTimeout, message))
            }
        }
    }

    fn has_rebooted(&self) -> bool {
        let rebooting = self.journal.known.rebooting.as_ref();
        rebooting.is_some_and(|rebooting| rebooting.has_ended(&self.facts.boot_id))
    }

    fn has_run(&self, act: Action) -> bool {
        self.journal.known.acts.contains_key(&act)
    }

    fn has_choices(&self) -> bool {
        self.journal.known.chosen.as_ref().is_some_and(|chosen| !chosen.choices.is_empty())
    }

    /// Fails the order, after the steps that must follow in any case.
    fn fail_after_cleanup(&self, failure: Failure) -> Step {
        if let Ok(Some(step)) = self.post_install() {
            return step;
        }
        if self.has_run(Action::Install)
            && self.journal.known.rebooting.is_none()
            && let Ok(Some(step)) = self.check_reboot_reasons()
        {
            return step;
        }
        if let Ok(Some(step)) = self.measure_health() {
            return step;
        }
        self.end_failed(failure)
    }

    fn end_failed(&self, failure: Failure) -> Step {
        self.end(Ending::Failed(failure))
    }

    fn end_completed(&self) -> Step {
        self.end(Ending::Done)
    }

    fn end(&self, ending: Ending) -> Step {
        Step::End(Box::new(outcome::build_result(self.journal, self.facts, ending, self.now)))
    }
}
