//! A simulated host: packages, a package manager, a lock, boots, a disk and a manual clock. Nothing
//! in it is real, and it can crash at every instant.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use vocab::listing::Installed;
use vocab::{FailureCode, Line, PackageManager, RebootPolicy};
use wire::agent::{Install, Order, OrderResult, Reboot, Work};

use super::nature::{Cut, Cuts, Dice, Nature};
use crate::backend::Choice;
use crate::work::failure::Failure;
use crate::work::journal::{Chosen, Ended, Journal, Lesson, Lock, OldUnits, Verified};
use crate::work::limits::Rules;
use crate::work::planner;
use crate::work::select;
use crate::work::step;
use crate::work::step::{Act, Facts, Step};

#[derive(Debug, Clone, PartialEq)]
enum Job {
    Running { left: u64 },
    Ended(Ended),
    Vanished,
}

pub(super) struct World {
    pub(super) nature: Nature,
    dice: Dice,
    cuts: Cuts,
    /// Number of instants so far at which a crash was possible.
    pub(super) instants: u64,
    pub(super) was_cut: u64,
    now: Timestamp,
    boot: u64,
    order_boot: u64,
    packages: BTreeMap<String, String>,
    pub(super) at_first: BTreeMap<String, String>,
    at_choice: BTreeMap<String, String>,
    damage: BTreeSet<String>,
    /// The remaining work of a package manager without a supervisor.
    leftover: Vec<Choice>,
    reboot_in: Option<u64>,
    jobs: BTreeMap<(Act, u32), Job>,
    pub(super) begun: BTreeMap<Act, u32>,
    pub(super) reboots: u32,
    withdrawn: bool,
    withdrawn_in_time: bool,
    agent: Option<Journal>,
    disk: Journal,
    dead: bool,
}

const OFFERED: [&str; 3] = ["bash", "curl", "zlib"];

impl World {
    pub(super) fn new(nature: Nature, dice: Dice, cuts: Cuts) -> World {
        let now: Timestamp = "2026-11-15T04:00:00Z".parse().unwrap();
        let packages: BTreeMap<String, String> =
            OFFERED.iter().chain(&["held"]).map(|name| ((*name).into(), "1".into())).collect();
        let order_boot = if nature.old_boot { 6 } else { 7 };
        let boot_id: Line = format!("boot {order_boot}").into();
        let order = Order {
            id: vocab::TaskId::new(now, 1),
            server_id: vocab::ServerId::new(now, 1),
            issued_at: now,
            expires_at: now + Duration::from_secs(600),
            work: match nature.only_reboot {
                true => Work::Reboot(Reboot { boot_id }),
                false => Work::Install(Install {
                    packages: Vec::new(),
                    exclude: Vec::new(),
                    security_only: false,
                    security_packages: Vec::new(),
                    reboot: nature.policy,
                    boot_id,
                }),
            },
        };
        let damage = nature.damage.then(|| "tzdata".to_owned()).into_iter().collect();
        World {
            nature,
            dice,
            cuts,
            instants: 0,
            was_cut: 0,
            now,
            boot: 7,
            order_boot,
            at_first: packages.clone(),
            at_choice: packages.clone(),
            packages,
            damage,
            leftover: Vec::new(),
            reboot_in: None,
            jobs: BTreeMap::new(),
            begun: BTreeMap::new(),
            reboots: 0,
            withdrawn: false,
            withdrawn_in_time: false,
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
            self.turn();
            if self.dead {
                (self.dead, self.agent) = (false, None);
                for _ in 0..self.dice.below(4) {
                    self.tick();
                }
                self.dead = false;
            }
        }
        panic!("the order does not end: {:?} {:?}", self.disk, self.nature);
    }

    /// One iteration of the agent's loop, as in `worker.rs`.
    fn turn(&mut self) {
        self.happens();
        let mut journal = self.agent.take().unwrap_or_else(|| reread(&self.disk));
        let facts = self.facts(&journal);
        let step = planner::next(&journal, &facts, self.now);
        if self.cut() {
            return;
        }
        match &step {
            Step::End(result) => journal.result = Some((**result).clone()),
            step => journal.begin(step, &facts, self.now),
        }
        self.disk = journal.clone();
        if self.cut() {
            return;
        }
        let Some(lesson) = self.take(&journal, &step) else { return };
        journal.learn(lesson);
        if !self.cut() {
            self.agent = Some(journal);
        }
    }

    /// Time passes, clocks jump, and the order may be withdrawn.
    fn happens(&mut self) {
        self.now += Duration::from_millis(200);
        if self.dice.percent(2) {
            let jump = self.dice.below(20_000) as i64 - 10_000;
            self.now += jiff::SignedDuration::from_secs(jump);
        }
        if self.nature.withdrawn_after.is_some_and(|after| self.instants >= after) {
            self.withdrawn_in_time |= !self.withdrawn && self.nothing_done();
            self.withdrawn = true;
        }
    }

    fn nothing_done(&self) -> bool {
        let acts = [Act::PreInstall, Act::Install, Act::Restart, Act::PreReboot, Act::Reboot];
        acts.iter().all(|act| !self.begun.contains_key(act))
    }

    pub(super) fn was_withdrawn_in_time(&self) -> bool {
        self.withdrawn_in_time
    }

    pub(super) fn is_as_asked(&self) -> bool {
        OFFERED.iter().all(|name| self.packages[*name] == "2") && self.damage.is_empty()
    }

    pub(super) fn difference(&self) -> Vec<wire::agent::PackageMove> {
        select::difference(&inventory(&self.at_first), &inventory(&self.packages))
    }

    fn boot_id(&self) -> Line {
        format!("boot {}", self.boot).into()
    }

    fn facts(&self, journal: &Journal) -> Facts {
        let begun = match &journal.doing {
            Some(Step::Run(act)) => self.jobs.contains_key(&key(journal, *act)),
            _ => false,
        };
        let says = |set: bool, words: &str| set.then(|| words.into());
        Facts {
            boot_id: self.boot_id(),
            withdrawn: self.withdrawn,
            begun,
            rules: Rules {
                unreadable: None,
                shut: says(self.nature.frozen, "frozen"),
                no_reboot: says(self.nature.never_reboot, "never_reboot"),
            },
            may_reboot: if self.nature.container { Err("a container".into()) } else { Ok(()) },
        }
    }

    /// Whether the agent dies at this instant.
    fn cut(&mut self) -> bool {
        self.instants += 1;
        let cut = match &mut self.cuts {
            Cuts::At(instant, cut) => (*instant == self.instants).then_some(*cut),
            Cuts::Often(_, 0) => None,
            Cuts::Often(often, left) => self.dice.percent(*often).then(|| {
                *left -= 1;
                [Cut::Agent, Cut::Agent, Cut::Supervisor, Cut::Power][self.dice.below(4) as usize]
            }),
        };
        match cut {
            None => {}
            Some(Cut::Agent) => self.dead = true,
            Some(Cut::Supervisor) => {
                self.dead = true;
                self.supervisor_dies();
            }
            Some(Cut::Power) => self.power(),
        }
        self.was_cut += u64::from(cut.is_some());
        self.dead
    }

    fn supervisor_dies(&mut self) {
        let choices = choices(&self.disk);
        for ((act, _), job) in &mut self.jobs {
            let Job::Running { left } = job else { continue };
            if *act == Act::Install {
                let left = usize::try_from(*left).unwrap();
                self.leftover = choices[choices.len() - left.min(choices.len())..].to_vec();
            }
            *job = Job::Vanished;
        }
    }

    fn power(&mut self) {
        self.dead = true;
        self.boot += 1;
        self.reboot_in = None;
        if self.nature.lock_ticks < u64::MAX {
            self.nature.lock_ticks = 0;
        }
        let at_work = self
            .jobs
            .iter()
            .any(|((act, _), job)| *act == Act::Install && matches!(job, Job::Running { .. }));
        if at_work || !self.leftover.is_empty() {
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
        if (1..u64::MAX).contains(&self.nature.lock_ticks) {
            self.nature.lock_ticks -= 1;
        }
        if let Some(choice) = self.leftover.pop() {
            self.packages.insert(choice.name, choice.to);
        }
        if let Some(left) = self.reboot_in {
            self.reboot_in = left.checked_sub(1);
            if left == 0 {
                self.reboots += 1;
                self.power();
                return;
            }
        }
        let running: Vec<(Act, u32)> = self.jobs.keys().copied().collect();
        for key in running {
            if let Some(Job::Running { left }) = self.jobs.get_mut(&key) {
                *left = left.saturating_sub(1);
                let left = *left;
                self.progress(key, left);
            }
        }
    }

    fn progress(&mut self, key: (Act, u32), left: u64) {
        let act = key.0;
        if act == Act::Install && !self.nature.lies {
            let choices = choices(&self.disk);
            let done = choices.len().saturating_sub(usize::try_from(left).unwrap());
            let stop = if self.nature.fails == Some(act) { 1 } else { choices.len() };
            for choice in choices.iter().take(done.min(stop)) {
                self.packages.insert(choice.name.clone(), choice.to.clone());
            }
        }
        if left > 0 {
            return;
        }
        if matches!(act, Act::RepairBefore | Act::RepairAfter) && !self.nature.hopeless {
            self.damage.clear();
        }
        if act == Act::Reboot && self.nature.fails != Some(act) && self.nature.reboots_work {
            self.reboot_in = Some(self.dice.below(5));
        }
        let failure = Failure::new(FailureCode::InstallFailed, act.name());
        let ended = match self.nature.fails == Some(act) {
            true => Ended::Badly { exit: Some(100), failure },
            false => Ended::Well,
        };
        self.jobs.insert(key, Job::Ended(ended));
    }

    /// Executes a step; `None` if the agent dies during it.
    fn take(&mut self, journal: &Journal, step: &Step) -> Option<Lesson> {
        Some(match step {
            Step::Lock => {
                let held = self.nature.lock_ticks > 0 || !self.leftover.is_empty();
                Lesson::Lock(if held { Lock::HeldBy("apt".into()) } else { Lock::Free })
            }
            Step::Damage => {
                assert!(self.leftover.is_empty(), "checked while a package manager is running");
                Lesson::Damage(self.damage.iter().map(|name| name.as_str().into()).collect())
            }
            Step::Choose => {
                assert!(
                    !self.begun.contains_key(&Act::Install),
                    "the first inventory must come before the installation"
                );
                self.at_choice = self.packages.clone();
                let offered = OFFERED.iter().filter(|name| self.packages[**name] == "1");
                let choice = |name: &&str| Choice {
                    name: (*name).to_owned(),
                    arch: String::new(),
                    from: "1".to_owned(),
                    to: "2".to_owned(),
                };
                Lesson::Chosen(Chosen {
                    choices: offered.map(choice).collect(),
                    ..Chosen::default()
                })
            }
            Step::Resolve => Lesson::Resolved { moves: Vec::new(), little: self.nature.little },
            Step::Verify => {
                assert!(self.leftover.is_empty(), "compared while a package manager is running");
                let (old, new) = (inventory(&self.at_choice), inventory(&self.packages));
                Lesson::Verified(Verified {
                    moves: select::difference(&old, &new),
                    unmet: select::unmet(&choices(journal), PackageManager::Apt, &old, &new),
                    set_aside: Vec::new(),
                })
            }
            Step::OldCode => {
                let old = self.nature.old_code && !self.begun.contains_key(&Act::Restart);
                let units = old.then(|| "ssh.service".to_owned()).into_iter().collect();
                Lesson::OldCode(OldUnits { units, others: Vec::new() })
            }
            Step::Reasons => Lesson::RebootReasons(match self.nature.check_unreadable {
                true => Err("unreadable".into()),
                false if self.nature.needs_reboot && self.reboots == 0 => Ok(vec!["kernel".into()]),
                false => Ok(Vec::new()),
            }),
            Step::Scan => Lesson::Scanned,
            Step::Run(act) => return self.run_act(journal, *act),
            Step::Pause => {
                self.now += Duration::from_secs(step::PAUSE_SECONDS);
                self.tick();
                if self.dead {
                    return None;
                }
                Lesson::Paused
            }
            Step::End(_) => return None,
        })
    }

    fn run_act(&mut self, journal: &Journal, act: Act) -> Option<Lesson> {
        let key = key(journal, act);
        loop {
            match self.jobs.get(&key).cloned() {
                None => {
                    if self.cut() {
                        return None;
                    }
                    self.begins(act);
                    let left = if act == Act::Install { choices(journal).len() as u64 } else { 1 };
                    self.jobs.insert(key, Job::Running { left });
                }
                Some(Job::Running { .. }) => {
                    if self.cut() {
                        return None;
                    }
                    self.tick();
                    if self.dead {
                        return None;
                    }
                }
                Some(Job::Ended(ended)) => return Some(Lesson::Ended(ended, Vec::new())),
                Some(Job::Vanished) => return Some(Lesson::Ended(Ended::Vanished, Vec::new())),
            }
        }
    }

    /// Invariants that hold whenever an action starts.
    fn begins(&mut self, act: Act) {
        assert!(!self.withdrawn_in_time || matches!(act, Act::RepairBefore | Act::Refresh));
        assert!(!self.nature.frozen, "{act:?} although changes are forbidden");
        if act == Act::Install {
            assert_eq!(self.nature.lock_ticks, 0, "while another package manager is running");
        }
        if act == Act::Reboot {
            assert_eq!(self.boot, self.order_boot, "the order was issued for another boot");
            assert!(!self.nature.container && !self.nature.never_reboot);
            if !self.nature.only_reboot {
                assert!(!self.nature.check_unreadable, "the reboot check failed");
                let needed = self.nature.needs_reboot;
                match self.nature.policy {
                    RebootPolicy::Always => {}
                    RebootPolicy::IfRequired => assert!(needed),
                    other => panic!("rebooted under {other}"),
                }
                assert!(self.is_as_asked(), "rebooted although the installation failed");
            }
        }
        *self.begun.entry(act).or_default() += 1;
    }
}

/// The journal must be the same after it is written and read back.
fn reread(journal: &Journal) -> Journal {
    let written = serde_json::to_vec(journal).unwrap();
    let read: Journal = serde_json::from_slice(&written).unwrap();
    assert_eq!(read, *journal);
    read
}

fn key(journal: &Journal, act: Act) -> (Act, u32) {
    (act, journal.known.repeats.get(&act).copied().unwrap_or(0))
}

fn choices(journal: &Journal) -> Vec<Choice> {
    journal.known.chosen.clone().map(|chosen| chosen.choices).unwrap_or_default()
}

fn inventory(packages: &BTreeMap<String, String>) -> Vec<Installed> {
    packages.iter().map(|(name, version)| Installed::new(name, version, "")).collect()
}
