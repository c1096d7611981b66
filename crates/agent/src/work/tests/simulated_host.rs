//! A simulated host: packages, a package manager, a lock, boots, a disk and a manual clock. Nothing
//! in it is real, and it can crash at every instant.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use vocab::listing::Installed;
use vocab::{FailureCode, Line, PackageManager, RebootPolicy};
use wire::agent::{Install, Order, OrderResult, Reboot, Work};

use super::scenario::{Crash, CrashPlan, Rng, Scenario};
use crate::backend::Choice;
use crate::host::health::{HealthSnapshot, HookState, Socket};
use crate::work::failure::Failure;
use crate::work::journal::{
    ActionResult, Journal, Lock, OutdatedServices, Selection, StepResult, Verification,
};
use crate::work::limits::ActiveLimits;
use crate::work::planner;
use crate::work::select;
use crate::work::step;
use crate::work::step::{Action, Facts, Step};

#[derive(Debug, Clone, PartialEq)]
enum Job {
    Running { left: u64 },
    Ended(ActionResult),
    Vanished,
}

pub(super) struct SimulatedHost {
    pub(super) scenario: Scenario,
    rng: Rng,
    crash_plan: CrashPlan,
    /// Number of instants so far at which a crash was possible.
    pub(super) instants: u64,
    pub(super) crashes: u64,
    now: Timestamp,
    boot: u64,
    order_boot: u64,
    packages: BTreeMap<String, String>,
    pub(super) initial_packages: BTreeMap<String, String>,
    packages_at_selection: BTreeMap<String, String>,
    damage: BTreeSet<String>,
    /// The remaining work of a package manager without a supervisor.
    leftover: Vec<Choice>,
    reboot_in: Option<u64>,
    jobs: BTreeMap<(Action, u32), Job>,
    pub(super) starts: BTreeMap<Action, u32>,
    pub(super) reboots: u32,
    withdrawn: bool,
    withdrawn_in_time: bool,
    /// When the health before the installation was measured.
    pub(super) baseline_at: Option<Timestamp>,
    agent: Option<Journal>,
    disk: Journal,
    dead: bool,
}

const UPDATABLE: [&str; 3] = ["bash", "curl", "zlib"];

impl SimulatedHost {
    pub(super) fn new(scenario: Scenario, rng: Rng, crashes: CrashPlan) -> SimulatedHost {
        let now: Timestamp = "2026-11-15T04:00:00Z".parse().unwrap();
        let packages: BTreeMap<String, String> =
            UPDATABLE.iter().chain(&["held"]).map(|name| ((*name).into(), "1".into())).collect();
        let order_boot = if scenario.old_boot { 6 } else { 7 };
        let boot_id: Line = format!("boot {order_boot}").into();
        let order = Order {
            id: vocab::TaskId::new(now, 1),
            server_id: vocab::ServerId::new(now, 1),
            issued_at: now,
            expires_at: now + Duration::from_secs(600),
            work: match scenario.only_reboot {
                true => Work::Reboot(Reboot { boot_id }),
                false => Work::Install(Install {
                    packages: Vec::new(),
                    exclude: Vec::new(),
                    security_only: false,
                    security_packages: Vec::new(),
                    reboot: scenario.policy,
                    boot_id,
                    health: scenario.measures_health,
                }),
            },
        };
        let damage = scenario.damage.then(|| "tzdata".to_owned()).into_iter().collect();
        SimulatedHost {
            scenario,
            rng,
            crash_plan: crashes,
            instants: 0,
            crashes: 0,
            now,
            boot: 7,
            order_boot,
            initial_packages: packages.clone(),
            packages_at_selection: packages.clone(),
            packages,
            damage,
            leftover: Vec::new(),
            reboot_in: None,
            jobs: BTreeMap::new(),
            starts: BTreeMap::new(),
            reboots: 0,
            withdrawn: false,
            withdrawn_in_time: false,
            baseline_at: None,
            agent: None,
            disk: Journal::new(&order, 0, now),
            dead: false,
        }
    }

    /// Runs the agent, with crashes and restarts, until the order has ended.
    pub(super) fn run(&mut self) -> OrderResult {
        for _ in 0..20_000 {
            if let Some(result) = &self.disk.result {
                return result.clone();
            }
            self.step_agent();
            if self.dead {
                (self.dead, self.agent) = (false, None);
                for _ in 0..self.rng.below(4) {
                    self.tick();
                }
                self.dead = false;
            }
        }
        panic!("the order does not end: {:?} {:?}", self.disk, self.scenario);
    }

    /// One iteration of the agent's loop, as in `worker.rs`.
    fn step_agent(&mut self) {
        self.advance_time();
        let mut journal = self.agent.take().unwrap_or_else(|| roundtrip(&self.disk));
        let facts = self.facts(&journal);
        let step = planner::next_step(&journal, &facts, self.now);
        if self.crash_point() {
            return;
        }
        match &step {
            Step::End(result) => journal.result = Some((**result).clone()),
            step => journal.begin(step, &facts, self.now),
        }
        self.disk = journal.clone();
        if self.crash_point() {
            return;
        }
        let Some(step_result) = self.execute(&journal, &step) else { return };
        journal.record(step_result);
        if !self.crash_point() {
            self.agent = Some(journal);
        }
    }

    /// Time passes, clocks jump, and the order may be withdrawn.
    fn advance_time(&mut self) {
        self.now += Duration::from_millis(200);
        if self.rng.percent(2) {
            let jump = self.rng.below(20_000) as i64 - 10_000;
            self.now += jiff::SignedDuration::from_secs(jump);
        }
        if self.scenario.withdrawn_after.is_some_and(|after| self.instants >= after) {
            self.withdrawn_in_time |= !self.withdrawn && self.has_changed_nothing();
            self.withdrawn = true;
        }
    }

    fn has_changed_nothing(&self) -> bool {
        let acts = [
            Action::PreInstall,
            Action::Install,
            Action::Restart,
            Action::PreReboot,
            Action::Reboot,
        ];
        acts.iter().all(|act| !self.starts.contains_key(act))
    }

    pub(super) fn was_withdrawn_in_time(&self) -> bool {
        self.withdrawn_in_time
    }

    pub(super) fn is_fully_updated(&self) -> bool {
        UPDATABLE.iter().all(|name| self.packages[*name] == "2") && self.damage.is_empty()
    }

    pub(super) fn difference(&self) -> Vec<wire::agent::PackageMove> {
        select::difference(&inventory(&self.initial_packages), &inventory(&self.packages))
    }

    /// Whether the updates have stopped the service.
    pub(super) fn is_broken(&self) -> bool {
        self.scenario.breaks_service && !self.difference().is_empty()
    }

    fn measure_health(&mut self, journal: &Journal, step: &Step) -> StepResult {
        let web = Socket { is_udp: false, port: 80, is_loopback: false };
        let sockets = (!self.is_broken()).then_some(web).into_iter().collect();
        let mut snapshot = HealthSnapshot {
            at: self.now,
            sockets: Some(sockets),
            hooks: [("10-web".to_owned(), HookState::Passed)].into(),
            ..HealthSnapshot::default()
        };
        let Step::Health { hooks } = step else {
            assert!(!self.starts.contains_key(&Action::PreInstall), "too late for a baseline");
            self.baseline_at = Some(self.now);
            return StepResult::Baseline(Box::new(snapshot));
        };
        assert!(self.jobs.values().all(|job| !matches!(job, Job::Running { .. })));
        if !hooks {
            snapshot.hooks.clear();
        }
        StepResult::Health(snapshot.report(journal.known.baseline.as_ref().unwrap()))
    }

    fn boot_id(&self) -> Line {
        format!("boot {}", self.boot).into()
    }

    fn facts(&self, journal: &Journal) -> Facts {
        let started = match &journal.doing {
            Some(Step::Run(act)) => self.jobs.contains_key(&key(journal, *act)),
            _ => false,
        };
        let says = |set: bool, words: &str| set.then(|| words.into());
        Facts {
            boot_id: self.boot_id(),
            withdrawn: self.withdrawn,
            started,
            active_limits: ActiveLimits {
                unreadable: None,
                no_change: says(self.scenario.frozen, "frozen"),
                no_reboot: says(self.scenario.never_reboot, "never_reboot"),
                no_upgrade: None,
            },
            agent_version: "1.0.0".into(),
            may_upgrade: Ok(()),
            may_reboot: if self.scenario.container { Err("a container".into()) } else { Ok(()) },
        }
    }

    /// Whether the agent dies at this instant.
    fn crash_point(&mut self) -> bool {
        self.instants += 1;
        let cut = match &mut self.crash_plan {
            CrashPlan::At(instant, cut) => (*instant == self.instants).then_some(*cut),
            CrashPlan::Often(_, 0) => None,
            CrashPlan::Often(often, left) => self.rng.percent(*often).then(|| {
                *left -= 1;
                [Crash::Agent, Crash::Agent, Crash::Supervisor, Crash::Power]
                    [self.rng.below(4) as usize]
            }),
        };
        match cut {
            None => {}
            Some(Crash::Agent) => self.dead = true,
            Some(Crash::Supervisor) => {
                self.dead = true;
                self.supervisor_dies();
            }
            Some(Crash::Power) => self.power_failure(),
        }
        self.crashes += u64::from(cut.is_some());
        self.dead
    }

    fn supervisor_dies(&mut self) {
        let choices = choices(&self.disk);
        for ((act, _), job) in &mut self.jobs {
            let Job::Running { left } = job else { continue };
            if *act == Action::Install {
                let left = usize::try_from(*left).unwrap();
                self.leftover = choices[choices.len() - left.min(choices.len())..].to_vec();
            }
            *job = Job::Vanished;
        }
    }

    fn power_failure(&mut self) {
        self.dead = true;
        self.boot += 1;
        self.reboot_in = None;
        if self.scenario.lock_ticks < u64::MAX {
            self.scenario.lock_ticks = 0;
        }
        let running = self
            .jobs
            .iter()
            .any(|((act, _), job)| *act == Action::Install && matches!(job, Job::Running { .. }));
        if running || !self.leftover.is_empty() {
            self.damage.insert("bash".to_owned());
        }
        self.leftover.clear();
        for job in self.jobs.values_mut() {
            if matches!(job, Job::Running { .. }) {
                *job = Job::Vanished;
            }
        }
    }

    /// All running jobs advance by one tick, whether the agent is alive or not.
    fn tick(&mut self) {
        if (1..u64::MAX).contains(&self.scenario.lock_ticks) {
            self.scenario.lock_ticks -= 1;
        }
        if let Some(choice) = self.leftover.pop() {
            self.packages.insert(choice.name, choice.to);
        }
        if let Some(left) = self.reboot_in {
            self.reboot_in = left.checked_sub(1);
            if left == 0 {
                self.reboots += 1;
                self.power_failure();
                return;
            }
        }
        let running: Vec<(Action, u32)> = self.jobs.keys().copied().collect();
        for key in running {
            if let Some(Job::Running { left }) = self.jobs.get_mut(&key) {
                *left = left.saturating_sub(1);
                let left = *left;
                self.progress(key, left);
            }
        }
    }

    fn progress(&mut self, key: (Action, u32), left: u64) {
        let act = key.0;
        if act == Action::Install && !self.scenario.reports_false_success {
            let choices = choices(&self.disk);
            let done = choices.len().saturating_sub(usize::try_from(left).unwrap());
            let stop = if self.scenario.failing_action == Some(act) { 1 } else { choices.len() };
            for choice in choices.iter().take(done.min(stop)) {
                self.packages.insert(choice.name.clone(), choice.to.clone());
            }
        }
        if left > 0 {
            return;
        }
        if matches!(act, Action::RepairBefore | Action::RepairAfter) && !self.scenario.repair_fails
        {
            self.damage.clear();
        }
        if act == Action::Reboot
            && self.scenario.failing_action != Some(act)
            && self.scenario.reboots_work
        {
            self.reboot_in = Some(self.rng.below(5));
        }
        let failure = Failure::new(FailureCode::InstallFailed, act.name());
        let ended = match self.scenario.failing_action == Some(act) {
            true => ActionResult::Badly { exit: Some(100), failure },
            false => ActionResult::Well,
        };
        self.jobs.insert(key, Job::Ended(ended));
    }

    /// Executes a step; `None` if the agent dies during it.
    fn execute(&mut self, journal: &Journal, step: &Step) -> Option<StepResult> {
        Some(match step {
            Step::Lock => {
                let held = self.scenario.lock_ticks > 0 || !self.leftover.is_empty();
                StepResult::Lock(if held { Lock::HeldBy("apt".into()) } else { Lock::Free })
            }
            Step::Damage => {
                assert!(self.leftover.is_empty(), "checked while a package manager is running");
                StepResult::Damage(self.damage.iter().map(|name| name.as_str().into()).collect())
            }
            Step::Choose => {
                assert!(
                    !self.starts.contains_key(&Action::Install),
                    "the first inventory must come before the installation"
                );
                self.packages_at_selection = self.packages.clone();
                let offered = UPDATABLE.iter().filter(|name| self.packages[**name] == "1");
                let choice = |name: &&str| Choice {
                    name: (*name).to_owned(),
                    arch: String::new(),
                    from: "1".to_owned(),
                    to: "2".to_owned(),
                };
                StepResult::Chosen(Selection {
                    choices: offered.map(choice).collect(),
                    ..Selection::default()
                })
            }
            Step::Resolve => StepResult::Resolved {
                moves: Vec::new(),
                small_download: self.scenario.small_download,
            },
            Step::Verify => {
                assert!(self.leftover.is_empty(), "compared while a package manager is running");
                let (old, new) =
                    (inventory(&self.packages_at_selection), inventory(&self.packages));
                StepResult::Verified(Verification {
                    moves: select::difference(&old, &new),
                    unmet: select::unmet_expectations(
                        &choices(journal),
                        PackageManager::Apt,
                        &old,
                        &new,
                    ),
                    set_aside: Vec::new(),
                })
            }
            Step::OldCode => {
                let old = self.scenario.old_code && !self.starts.contains_key(&Action::Restart);
                let units = old.then(|| "ssh.service".to_owned()).into_iter().collect();
                StepResult::OldCode(OutdatedServices { units, others: Vec::new() })
            }
            Step::Reasons => StepResult::RebootReasons(match self.scenario.check_unreadable {
                true => Err("unreadable".into()),
                false if self.scenario.needs_reboot && self.reboots == 0 => {
                    Ok(vec!["kernel".into()])
                }
                false => Ok(Vec::new()),
            }),
            Step::Scan => StepResult::Scanned,
            Step::Baseline | Step::Health { .. } => self.measure_health(journal, step),
            Step::Run(act) => return self.run_action(journal, *act),
            Step::Pause => {
                self.now += Duration::from_secs(step::PAUSE_SECONDS);
                self.tick();
                if self.dead {
                    return None;
                }
                StepResult::Paused
            }
            Step::End(_) => return None,
        })
    }

    fn run_action(&mut self, journal: &Journal, act: Action) -> Option<StepResult> {
        let key = key(journal, act);
        loop {
            match self.jobs.get(&key).cloned() {
                None => {
                    if self.crash_point() {
                        return None;
                    }
                    self.record_start(act);
                    let left =
                        if act == Action::Install { choices(journal).len() as u64 } else { 1 };
                    self.jobs.insert(key, Job::Running { left });
                }
                Some(Job::Running { .. }) => {
                    if self.crash_point() {
                        return None;
                    }
                    self.tick();
                    if self.dead {
                        return None;
                    }
                }
                Some(Job::Ended(ended)) => return Some(StepResult::Ended(ended, Vec::new())),
                Some(Job::Vanished) => {
                    return Some(StepResult::Ended(ActionResult::Vanished, Vec::new()));
                }
            }
        }
    }

    /// Invariants that hold whenever an action starts.
    fn record_start(&mut self, act: Action) {
        assert!(!self.withdrawn_in_time || matches!(act, Action::RepairBefore | Action::Refresh));
        assert!(!self.scenario.frozen, "{act:?} although changes are forbidden");
        if act == Action::Install {
            assert_eq!(self.scenario.lock_ticks, 0, "while another package manager is running");
        }
        if act == Action::Reboot {
            assert_eq!(self.boot, self.order_boot, "the order was issued for another boot");
            assert!(!self.scenario.container && !self.scenario.never_reboot);
            if !self.scenario.only_reboot {
                assert!(!self.scenario.check_unreadable, "the reboot check failed");
                let needed = self.scenario.needs_reboot;
                match self.scenario.policy {
                    RebootPolicy::Always => {}
                    RebootPolicy::IfRequired => assert!(needed),
                    other => panic!("rebooted under {other}"),
                }
                assert!(self.is_fully_updated(), "rebooted although the installation failed");
            }
        }
        *self.starts.entry(act).or_default() += 1;
    }
}

/// The journal must be the same after it is written and read back.
fn roundtrip(journal: &Journal) -> Journal {
    let written = serde_json::to_vec(journal).unwrap();
    let read: Journal = serde_json::from_slice(&written).unwrap();
    assert_eq!(read, *journal);
    read
}

fn key(journal: &Journal, act: Action) -> (Action, u32) {
    (act, journal.known.repeats.get(&act).copied().unwrap_or(0))
}

fn choices(journal: &Journal) -> Vec<Choice> {
    journal.known.chosen.clone().map(|chosen| chosen.choices).unwrap_or_default()
}

fn inventory(packages: &BTreeMap<String, String>) -> Vec<Installed> {
    packages.iter().map(|(name, version)| Installed::new(name, version, "")).collect()
}
