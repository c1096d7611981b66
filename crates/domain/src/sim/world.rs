//! The simulated world: time, network, hosts and users.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use vocab::{BatchId, FailureCode, ServerId};

use super::agent::{Agent, Health, Message, OrderId};
use super::chance::Chance;
use super::control::{Control, contradicts};
use super::faults::pace;
use super::judge::Moment;
use super::reach::Trial;
use super::{Failure, Mode, Report};
use crate::rollout::{Event, Outcome, Pace, Phase, Rollout, Target, Verdict, limit_in_all};

/// How much later than its deadline something may end.
const GRACE: SignedDuration = SignedDuration::from_secs(30);
/// A run with more steps than this would never end.
const STEPS_MAX: u64 = 400_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Happening {
    /// A message to the control plane arrives.
    Up { agent: usize, words: Vec<(OrderId, Event)>, at_work: bool },
    /// A message to an agent arrives.
    Down { agent: usize, message: Message },
    /// An agent's regular sync is due.
    Sync { agent: usize },
    /// The order in progress advances.
    Step { agent: usize, life: u32 },
    /// A crashed agent restarts.
    Restart { agent: usize },
    /// A broken connection is restored.
    Reconnect { agent: usize },
    /// The control plane plans.
    Look,
    /// The control plane restarts.
    ControlBack,
    /// A fault occurs.
    Fault,
    /// A user does something.
    Person,
    /// The second rollout is created.
    Second,
}

impl Happening {
    pub(super) fn is_message(&self) -> bool {
        matches!(self, Happening::Up { .. } | Happening::Down { .. })
    }
}

pub(super) struct World {
    seed: u64,
    mode: Mode,
    pub(super) chance: Chance,
    /// The real time; the control plane's clock is ahead by `skew`.
    pub(super) now: Timestamp,
    pub(super) skew: SignedDuration,
    /// How often that clock was set forward without being noticed, how often it was set without
    /// being noticed, and how often it was set in total.
    pub(super) forward: u32,
    pub(super) jumps: u32,
    pub(super) settings: u32,
    /// Value of `settings` when the backup was made.
    pub(super) settings_backed_up: u32,
    pub(super) began: Timestamp,
    /// How long faults occur.
    pub(super) faulty: SignedDuration,
    pub(super) queue: BTreeMap<(Timestamp, u64), Happening>,
    pub(super) queued: u64,
    pub(super) control: Control,
    pub(super) control_is_up: bool,
    /// When the control plane plans again if nothing triggers it earlier.
    look_at: Option<Timestamp>,
    pub(super) agents: Vec<Agent>,
    pub(super) removed: BTreeSet<ServerId>,
    /// Rollouts whose failed servers were retried.
    pub(super) retried: BTreeSet<BatchId>,
    pub(super) was_restored: bool,
    sync: SignedDuration,
    pub(super) loss: u32,
    /// The pace of the second rollout.
    second: Pace,
    report: Report,
}

impl World {
    pub(super) fn new(seed: u64, mode: Mode, traced: bool) -> World {
        let mut chance = Chance::new(seed);
        let now: Timestamp = "2026-03-01T02:00:00Z".parse().expect("a constant");
        let size = if chance.percent(15) { chance.between(13, 40) } else { chance.between(1, 12) };
        let up_to_date = chance.pick(&[5, 5, 70]);
        let agents: Vec<_> = (0..size)
            .map(|number| Agent::new(ServerId::new(now, number as u128), up_to_date))
            .collect();
        let (first, second) = (pace(&mut chance), pace(&mut chance));
        // A rollout without a window may wait for a week; agents then sync less often, or the
        // simulation would consist of nothing but syncs.
        let patient = first.window_minutes.is_none() || second.window_minutes.is_none();
        let sync_seconds = chance.pick(if patient { &[1_800, 7_200] } else { &[60, 300, 600] });
        let mut world = World {
            seed,
            mode,
            now,
            skew: SignedDuration::ZERO,
            forward: 0,
            jumps: 0,
            settings: 0,
            settings_backed_up: 0,
            began: now,
            faulty: SignedDuration::from_mins(chance.between(20, 300)),
            queue: BTreeMap::new(),
            queued: 0,
            control: Control::new(sync_seconds, traced),
            control_is_up: true,
            look_at: None,
            removed: BTreeSet::new(),
            retried: BTreeSet::new(),
            was_restored: false,
            sync: SignedDuration::from_secs(i64::from(sync_seconds)),
            loss: chance.pick(&[0, 5, 30]),
            report: Report::default(),
            second,
            agents,
            chance,
        };
        let starts_in = world.chance.pick(&[0, 0, 30]);
        world.order(1, first, SignedDuration::from_mins(starts_in));
        world.set_going();
        world
    }

    fn order(&mut self, number: u128, pace: Pace, starts_in: SignedDuration) {
        let at = self.moment();
        let id = BatchId::new(self.began, number);
        let mut servers: Vec<_> = self.agents.iter().map(|agent| agent.server).collect();
        if number > 1 {
            servers.reverse();
            let keep = self.chance.between(1, servers.len() as i64);
            servers.truncate(keep as usize);
        }
        servers.retain(|server| !self.removed.contains(server));
        let expected = self.chance.pick(&[servers.len(), servers.len() / 2, 0]);
        let rollout = Rollout::new(id, pace, at.wall + starts_in, servers, at.wall)
            .expecting(expected as u32);
        self.control.create(rollout, starts_in, at);
    }

    fn set_going(&mut self) {
        for agent in 0..self.agents.len() {
            let first = SignedDuration::from_secs(self.chance.between(0, 59));
            self.after(first, Happening::Sync { agent });
        }
        self.look();
        self.after(SignedDuration::from_mins(1), Happening::Fault);
        self.after(SignedDuration::from_mins(2), Happening::Person);
        let second = SignedDuration::from_mins(self.chance.between(1, 120));
        self.after(second, Happening::Second);
    }

    pub(super) fn run(mut self) -> Result<Report, Box<Failure>> {
        while let Some(((at, _), happening)) = self.queue.pop_first() {
            self.now = self.now.max(at);
            self.report.steps += 1;
            self.take(happening);
            if !self.control.broken.is_empty() || self.is_over() {
                break;
            }
            if self.report.steps > STEPS_MAX {
                self.control.broken.push(format!("not finished after {STEPS_MAX} steps"));
                break;
            }
        }
        self.judge();
        self.report.starts = self.control.starts;
        self.report.ended =
            self.control.rollouts().filter(|r| r.head().phase.is_ended()).count() as u64;
        self.report.reached = self.control.reached;
        for _ in &self.control.contested {
            self.report.reached.count(Trial::Contested);
        }
        if self.control.broken.is_empty() {
            return Ok(self.report);
        }
        Err(Box::new(Failure {
            seed: self.seed,
            mode: self.mode,
            broken: std::mem::take(&mut self.control.broken),
            trace: self.control.trace.take().unwrap_or_default(),
        }))
    }

    fn take(&mut self, happening: Happening) {
        match happening {
            Happening::Up { agent, words, at_work } => self.up(agent, &words, at_work),
            Happening::Down { agent, message } => {
                if self.agents[agent].is_reachable() {
                    self.agents[agent].hears(&message);
                    self.plan_step(agent);
                }
            }
            Happening::Sync { agent } => {
                self.speak(agent);
                if self.agents[agent].health != Health::Dead {
                    self.after(self.sync, Happening::Sync { agent });
                }
            }
            Happening::Step { agent, life } => {
                if self.agents[agent].life == life {
                    let clock = self.wall();
                    self.agents[agent].step(&mut self.chance, clock);
                    self.speak(agent);
                    self.plan_step(agent);
                }
            }
            Happening::Restart { agent } => {
                if self.agents[agent].health == Health::Crashed {
                    self.agents[agent].health = Health::Up;
                    self.speak(agent);
                    self.plan_step(agent);
                }
            }
            Happening::Reconnect { agent } => {
                self.agents[agent].connected = true;
                self.speak(agent);
            }
            // An event that was planned before a later one replaced it is void.
            Happening::Look if self.look_at == Some(self.now) => self.look(),
            Happening::Look => {}
            Happening::ControlBack => {
                self.control.crash(self.moment());
                self.control_is_up = true;
                self.look();
            }
            Happening::Fault if self.is_faulty() => {
                self.fault();
                let next = SignedDuration::from_secs(self.chance.between(10, 900));
                self.after(next, Happening::Fault);
            }
            Happening::Person if self.is_faulty() => {
                self.person();
                let soon = SignedDuration::from_secs(self.chance.between(5, 120));
                let later = SignedDuration::from_mins(self.chance.between(2, 90));
                let next = if self.chance.percent(40) { soon } else { later };
                self.after(next, Happening::Person);
            }
            Happening::Fault => self.faults_end(),
            Happening::Person => {}
            Happening::Second => {
                self.order(2, self.second.clone(), SignedDuration::ZERO);
                self.look();
            }
        }
    }

    // --- Network ---------------------------------------------------------------------------

    fn speak(&mut self, agent: usize) {
        if self.agents[agent].is_reachable() && !self.removed.contains(&self.agents[agent].server) {
            let words = self.agents[agent].says();
            let at_work = self.agents[agent].is_at_work();
            self.send(Happening::Up { agent, words, at_work });
        }
    }

    fn up(&mut self, agent: usize, words: &[(OrderId, Event)], at_work: bool) {
        let server = self.agents[agent].server;
        if !self.control_is_up || self.removed.contains(&server) {
            return;
        }
        let at = self.moment();
        let acks = self.control.hears(server, words, at_work, at);
        self.look();
        let mentioned: Vec<OrderId> = words.iter().map(|(id, _)| *id).collect();
        let message = self.control.says(server, Some(&mentioned));
        self.send(Happening::Down { agent, message: Message { acks, ..message } });
    }

    fn wake(&mut self, agent: usize) {
        let message = self.control.says(self.agents[agent].server, None);
        self.send(Happening::Down { agent, message });
    }

    fn send(&mut self, message: Happening) {
        if self.chance.percent(self.loss) {
            self.control.reached.count(Trial::Lost);
            return;
        }
        if self.chance.percent(self.loss / 3) {
            self.control.reached.count(Trial::Repeated);
            let later = SignedDuration::from_mins(self.chance.between(1, 90));
            self.after(later, message.clone());
        }
        let late = self.chance.percent(self.loss / 3);
        if late {
            self.control.reached.count(Trial::Late);
        }
        let seconds = if late { self.chance.between(60, 3_600) } else { self.chance.between(0, 3) };
        self.after(SignedDuration::from_secs(seconds), message);
    }

    fn plan_step(&mut self, agent: usize) {
        if let Some(wait) = self.agents[agent].next_step(&mut self.chance) {
            let life = self.agents[agent].life;
            self.after(wait, Happening::Step { agent, life });
        }
    }

    // --- Control plane ---------------------------------------------------------------------

    pub(super) fn look(&mut self) {
        if !self.control_is_up {
            return;
        }
        let (offered, wake_at) = self.control.settle(self.moment());
        for server in offered {
            if let Some(agent) = self.agents.iter().position(|agent| agent.server == server) {
                self.wake(agent);
            }
        }
        // The real engine also plans at regular intervals; this one relies on `wake_at`.
        let look_at = wake_at.map(|wake_at| self.now + wake_at.duration_since(self.wall()));
        if let Some(at) = look_at.filter(|_| look_at != self.look_at) {
            self.after(at.duration_since(self.now), Happening::Look);
        }
        self.look_at = look_at;
    }

    pub(super) fn wall(&self) -> Timestamp {
        self.now + self.skew
    }

    pub(super) fn moment(&self) -> Moment {
        let (forward, jumps, settings) = (self.forward, self.jumps, self.settings);
        Moment { really: self.now, wall: self.wall(), forward, jumps, settings }
    }

    pub(super) fn after(&mut self, wait: SignedDuration, happening: Happening) {
        let at = self.now + wait.max(SignedDuration::ZERO);
        self.queued += 1;
        self.queue.insert((at, self.queued), happening);
    }

    // --- End of a run ----------------------------------------------------------------------

    fn is_over(&self) -> bool {
        match self.mode {
            Mode::Safety => !self.is_faulty(),
            Mode::Liveness => {
                !self.is_faulty()
                    && self.queue.values().all(|h| !matches!(h, Happening::Second))
                    && self.has_come_to_rest()
            }
        }
    }

    /// Every rollout has ended, and no live agent has anything left to report or do.
    fn has_come_to_rest(&self) -> bool {
        self.control.rollouts().all(|rollout| rollout.head().phase.is_ended())
            && self.agents.iter().all(|agent| {
                self.removed.contains(&agent.server)
                    || agent.health == Health::Dead
                    || agent.is_at_rest()
            })
    }

    fn judge(&mut self) {
        let mut broken = Vec::new();
        for agent in &self.agents {
            let mut before = None;
            for (id, times) in &agent.effects {
                // A dropped order has no effect, so only one order per rollout may have one. A
                // restored service may have forgotten that it issued another one since.
                let twice = before.replace(id.of) == Some(id.of) && !self.was_restored;
                if *times > 1 || twice {
                    broken.push(format!("{} carried out {id:?} more than once", agent.server));
                }
            }
        }
        if self.mode == Mode::Liveness && self.control.broken.is_empty() {
            broken.extend(self.control.rollouts().filter_map(|rollout| self.late(rollout)));
            broken.extend(self.control.rollouts().flat_map(|rollout| self.lies(rollout)));
        }
        self.control.broken.extend(broken);
    }

    fn late(&self, rollout: &Rollout) -> Option<String> {
        let head = rollout.head();
        if !matches!(head.phase, Phase::Ended(_)) {
            return Some(format!("{} has not ended: {:?}", head.id, head.phase));
        }
        let window = head.start_by - self.skew;
        let limit =
            window.max(self.began + self.faulty) + limit_in_all() + self.control.patience() + GRACE;
        let last = *self.control.last_guess.get(&head.id)?;
        (last > limit).then(|| format!("{} timed out a task at {last}, after {limit}", head.id))
    }

    fn lies<'a>(&'a self, rollout: &'a Rollout) -> impl Iterator<Item = String> + 'a {
        let of = rollout.head().id;
        rollout.targets().filter_map(move |(server, target)| {
            let agent = self.agents.iter().find(|agent| agent.server == server)?;
            let Target::Done(done) = target else { return None };
            // It is unknown what a dead host did last, and reports of a removed server are ignored.
            if agent.health == Health::Dead || self.removed.contains(&server) {
                return None;
            }
            // A service restored from a backup may have skipped a server before it learned what it
            // had forgotten; a final state stays.
            let passed_over = matches!(done.outcome, Outcome::Skipped(_) | Outcome::Canceled(_));
            if self.was_restored && passed_over {
                return None;
            }
            let verdict = agent.verdict(self.control.order_of(of, server));
            // The backup only contains an order that the agent had already dropped, not the one
            // that replaced it.
            let dropped = verdict == Some(Verdict::Withdrawn)
                && done.outcome == Outcome::Failed(FailureCode::OrderExpired);
            if self.was_restored && dropped {
                return None;
            }
            contradicts(done.outcome, verdict, agent.has_acted_on(of)).then(|| {
                format!("{of} records {:?} for {server}, which reported {verdict:?}", done.outcome)
            })
        })
    }
}
