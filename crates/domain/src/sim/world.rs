//! The simulated world: time, network, hosts and users.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use vocab::{BatchId, FailureCode, ServerId};

use super::agent::{Agent, Health, Message, OrderId};
use super::control::{ControlPlane, HealthReports, contradicts};
use super::faults::{pace, set_up_hosts, with_health};
use super::host_health::{Instruments, Unit};
use super::oracle::Moment;
use super::rng::Rng;
use super::situations::Situation;
use super::{Mode, RunFailure, RunStats};
use crate::rollout::{
    Pace, Phase, ReportedResult, Rollout, TaskEvent, TaskOutcome, TaskStatus, total_stage_limit,
};

/// How much later than its deadline something may end.
const GRACE: SignedDuration = SignedDuration::from_secs(30);
/// A run that is not finished after this many steps is reported as a violation.
const STEPS_MAX: u64 = 1_000_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SimEvent {
    /// A message to the control plane arrives.
    Up { agent: usize, words: Vec<(OrderId, TaskEvent)>, health: HealthReports, agent_busy: bool },
    /// A message to an agent arrives.
    Down { agent: usize, message: Message },
    /// An agent's regular sync is due.
    Sync { agent: usize },
    /// The agent syncs because of its watch.
    WatchSync { agent: usize },
    /// Services break or recover.
    HealthChange,
    /// A service recovers everywhere.
    Repair { unit: Unit },
    /// The order in progress advances.
    Step { agent: usize, life: u32 },
    /// A crashed agent restarts.
    Restart { agent: usize },
    /// A broken connection is restored.
    Reconnect { agent: usize },
    /// The control plane plans.
    Plan,
    /// The control plane restarts.
    ControlBack,
    /// A fault occurs.
    Fault,
    /// A user does something.
    UserAction,
    /// The second rollout is created.
    SecondRollout,
}

impl SimEvent {
    pub(super) fn is_message(&self) -> bool {
        matches!(self, SimEvent::Up { .. } | SimEvent::Down { .. })
    }
}

pub(super) struct World {
    seed: u64,
    mode: Mode,
    pub(super) rng: Rng,
    /// Decides everything about health.
    pub(super) health_rng: Rng,
    /// The real time; the control plane's clock is ahead by `skew`.
    pub(super) now: Timestamp,
    pub(super) skew: SignedDuration,
    /// Number of times that clock was set forward without being noticed, was set at all without
    /// being noticed, and was set in total.
    pub(super) unnoticed_forward_sets: u32,
    pub(super) unnoticed_clock_sets: u32,
    pub(super) clock_sets: u32,
    /// Value of `settings` when the backup was made.
    pub(super) clock_sets_at_backup: u32,
    pub(super) began: Timestamp,
    /// For how long faults are injected.
    pub(super) fault_duration: SignedDuration,
    pub(super) queue: BTreeMap<(Timestamp, u64), SimEvent>,
    pub(super) queued: u64,
    pub(super) control: ControlPlane,
    pub(super) control_is_up: bool,
    /// When the control plane plans again if nothing triggers it earlier.
    plan_at: Option<Timestamp>,
    pub(super) agents: Vec<Agent>,
    /// When agents sync because a watch ends.
    watch_ends: BTreeSet<(usize, Timestamp)>,
    pub(super) removed: BTreeSet<ServerId>,
    /// Rollouts whose failed servers were retried.
    pub(super) retried: BTreeSet<BatchId>,
    pub(super) was_restored: bool,
    sync: SignedDuration,
    pub(super) loss: u32,
    /// The pace of the second rollout.
    second_pace: Pace,
    report: RunStats,
}

impl World {
    pub(super) fn new(seed: u64, mode: Mode, traced: bool) -> World {
        let mut rng = Rng::new(seed);
        let now: Timestamp = "2026-03-01T02:00:00Z".parse().expect("a constant");
        let size = if rng.percent(15) { rng.between(13, 40) } else { rng.between(1, 12) };
        let up_to_date = rng.pick(&[5, 5, 70]);
        let mut health_rng = Rng::new(seed ^ 0x6865_616c_7468);
        let mut agents: Vec<_> = (0..size)
            .map(|number| Agent::new(ServerId::new(now, number as u128), up_to_date))
            .collect();
        set_up_hosts(&mut agents, &mut health_rng);
        let (first, second) = (pace(&mut rng), pace(&mut rng));
        let first = with_health(first, &mut health_rng);
        let second = with_health(second, &mut health_rng);
        // A rollout without a window may wait for a week; agents then sync less often, or the
        // simulation would consist of nothing but syncs.
        let patient = first.window_minutes.is_none() || second.window_minutes.is_none();
        let sync_seconds = rng.pick(if patient { &[1_800, 7_200] } else { &[60, 300, 600] });
        let mut world = World {
            seed,
            mode,
            now,
            skew: SignedDuration::ZERO,
            unnoticed_forward_sets: 0,
            unnoticed_clock_sets: 0,
            clock_sets: 0,
            clock_sets_at_backup: 0,
            began: now,
            fault_duration: SignedDuration::from_mins(rng.between(20, 300)),
            queue: BTreeMap::new(),
            queued: 0,
            control: ControlPlane::new(sync_seconds, traced),
            control_is_up: true,
            plan_at: None,
            watch_ends: BTreeSet::new(),
            removed: BTreeSet::new(),
            retried: BTreeSet::new(),
            was_restored: false,
            sync: SignedDuration::from_secs(i64::from(sync_seconds)),
            loss: rng.pick(&[0, 5, 30]),
            report: RunStats::default(),
            second_pace: second,
            agents,
            rng,
            health_rng,
        };
        let starts_in = world.rng.pick(&[0, 0, 30]);
        world.create_rollout(1, first, SignedDuration::from_mins(starts_in));
        world.schedule_initial_events();
        world
    }

    #[cfg(test)]
    pub(super) fn with_planner(mut self, planner: crate::rollout::planted::Planner) -> World {
        self.control.planner = planner;
        self.control.has_fault = true;
        self
    }

    fn create_rollout(&mut self, number: u128, pace: Pace, starts_in: SignedDuration) {
        let at = self.moment();
        let id = BatchId::new(self.began, number);
        let mut servers: Vec<_> = self.agents.iter().map(|agent| agent.server).collect();
        if number > 1 {
            servers.reverse();
            let keep = self.rng.between(1, servers.len() as i64);
            servers.truncate(keep as usize);
        }
        servers.retain(|server| !self.removed.contains(server));
        let expected = self.rng.pick(&[servers.len(), servers.len() / 2, 0]);
        let rollout = Rollout::new(id, pace, at.wall + starts_in, servers, at.wall)
            .with_expected_changes(expected as u32);
        self.control.create(rollout, starts_in, at);
    }

    fn schedule_initial_events(&mut self) {
        for agent in 0..self.agents.len() {
            let first = SignedDuration::from_secs(self.rng.between(0, 59));
            self.schedule(first, SimEvent::Sync { agent });
        }
        self.run_planner();
        self.schedule(SignedDuration::from_mins(1), SimEvent::Fault);
        self.schedule(SignedDuration::from_mins(2), SimEvent::UserAction);
        let health = SignedDuration::from_mins(self.health_rng.between(3, 60));
        self.schedule(health, SimEvent::HealthChange);
        let second = SignedDuration::from_mins(self.rng.between(1, 120));
        self.schedule(second, SimEvent::SecondRollout);
    }

    pub(super) fn run(mut self) -> Result<RunStats, Box<RunFailure>> {
        while let Some(((at, _), happening)) = self.queue.pop_first() {
            self.now = self.now.max(at);
            self.report.steps += 1;
            self.handle(happening);
            if !self.control.violations.is_empty() || self.is_over() {
                break;
            }
            if self.report.steps > STEPS_MAX {
                self.control
                    .violations
                    .push(format!("not finished after {STEPS_MAX} steps, at {}", self.now));
                break;
            }
        }
        self.check_results();
        self.report.starts = self.control.starts;
        for agent in self.agents.iter().filter(|agent| !agent.effects.is_empty()) {
            if agent.host.instruments == Instruments::OldAgent {
                self.control.situations.count(Situation::OldAgent);
            }
            if agent.breaks.0 > 0 {
                self.control.situations.count(Situation::BadUpdate);
            }
        }
        self.report.ended =
            self.control.rollouts().filter(|r| r.head().phase.is_ended()).count() as u64;
        self.report.situations = self.control.situations;
        for _ in &self.control.contested {
            self.report.situations.count(Situation::Contested);
        }
        if self.control.violations.is_empty() {
            return Ok(self.report);
        }
        Err(Box::new(RunFailure {
            seed: self.seed,
            mode: self.mode,
            violations: std::mem::take(&mut self.control.violations),
            trace: self.control.trace.take().unwrap_or_default(),
        }))
    }

    fn handle(&mut self, event: SimEvent) {
        match event {
            SimEvent::Up { agent, words, health, agent_busy: at_work } => {
                self.receive_from_agent(agent, &words, &health, at_work);
            }
            SimEvent::Down { agent, message } => {
                if self.agents[agent].is_reachable() {
                    self.agents[agent].receive(&message);
                    self.plan_step(agent);
                    self.watch_health(agent, &message);
                }
            }
            SimEvent::Sync { agent } => {
                self.sync(agent);
                if self.agents[agent].health != Health::Dead {
                    self.schedule(self.sync, SimEvent::Sync { agent });
                }
            }
            SimEvent::WatchSync { agent } => self.sync(agent),
            SimEvent::HealthChange if self.faults_active() => {
                self.change_health();
                let next = SignedDuration::from_mins(self.health_rng.between(2, 90));
                self.schedule(next, SimEvent::HealthChange);
            }
            SimEvent::HealthChange => {}
            SimEvent::Repair { unit } => self.repair(unit),
            SimEvent::Step { agent, life } => {
                if self.agents[agent].restarts == life {
                    let clock = self.wall();
                    let was_broken = self.agents[agent].is_broken();
                    let was_busy = self.agents[agent].is_busy();
                    self.agents[agent].step(&mut self.rng, clock);
                    if !was_broken && self.agents[agent].is_broken() {
                        self.update_broke();
                    }
                    if was_busy && !self.agents[agent].is_busy() && was_broken {
                        self.ended_broken();
                    }
                    self.sync(agent);
                    self.plan_step(agent);
                }
            }
            SimEvent::Restart { agent } => {
                if self.agents[agent].health == Health::Crashed {
                    self.agents[agent].health = Health::Up;
                    self.sync(agent);
                    self.plan_step(agent);
                }
            }
            SimEvent::Reconnect { agent } => {
                self.agents[agent].connected = true;
                self.sync(agent);
            }
            // An outdated event, which a later one replaced, is ignored.
            SimEvent::Plan if self.plan_at == Some(self.now) => self.run_planner(),
            SimEvent::Plan => {}
            SimEvent::ControlBack => {
                self.control.crash(self.moment());
                self.control_is_up = true;
                self.run_planner();
            }
            SimEvent::Fault if self.faults_active() => {
                self.inject_fault();
                let next = SignedDuration::from_secs(self.rng.between(10, 900));
                self.schedule(next, SimEvent::Fault);
            }
            SimEvent::UserAction if self.faults_active() => {
                self.user_action();
                let soon = SignedDuration::from_secs(self.rng.between(5, 120));
                let later = SignedDuration::from_mins(self.rng.between(2, 90));
                let next = if self.rng.percent(40) { soon } else { later };
                self.schedule(next, SimEvent::UserAction);
            }
            SimEvent::Fault => self.end_faults(),
            SimEvent::UserAction => {}
            SimEvent::SecondRollout => {
                self.create_rollout(2, self.second_pace.clone(), SignedDuration::ZERO);
                self.run_planner();
            }
        }
    }

    // --- Network ---------------------------------------------------------------------------

    fn sync(&mut self, agent: usize) {
        if self.agents[agent].is_reachable() && !self.removed.contains(&self.agents[agent].server) {
            let words = self.agents[agent].pending_reports();
            let agent_busy = self.agents[agent].is_busy();
            let host = &self.agents[agent];
            let results =
                words.iter().filter_map(|(id, _)| Some((*id, host.order_health.get(id)?.clone())));
            let health = HealthReports { results: results.collect(), watch: host.host.pending() };
            self.send(SimEvent::Up { agent, words, health, agent_busy });
        }
    }

    fn watch_health(&mut self, agent: usize, message: &Message) {
        let clock = self.wall();
        let host = &mut self.agents[agent].host;
        if let Some(number) = message.health_ack {
            host.acknowledge(number);
        }
        if host.watch(message.watch, message.sent_at, clock) {
            self.schedule(SignedDuration::from_secs(1), SimEvent::WatchSync { agent });
        }
        // The agent syncs when the watch ends.
        if let Some(until) = message.watch {
            let wait = until.duration_since(message.sent_at) + SignedDuration::from_secs(1);
            self.watch_ends.retain(|(_, end)| *end > self.now);
            if self.watch_ends.insert((agent, self.now + wait)) {
                self.schedule(wait, SimEvent::WatchSync { agent });
            }
        }
    }

    fn receive_from_agent(
        &mut self,
        agent: usize,
        words: &[(OrderId, TaskEvent)],
        health: &HealthReports,
        agent_busy: bool,
    ) {
        let server = self.agents[agent].server;
        if !self.control_is_up || self.removed.contains(&server) {
            return;
        }
        let at = self.moment();
        let acks = self.control.receive(server, words, health, agent_busy, at);
        self.run_planner();
        let mentioned: Vec<OrderId> = words.iter().map(|(id, _)| *id).collect();
        let message = self.control.message_for(server, Some(&mentioned), at.wall);
        let health_ack = health.watch.as_ref().map(|(number, _)| *number);
        self.send(SimEvent::Down { agent, message: Message { acks, health_ack, ..message } });
    }

    fn notify_agent(&mut self, agent: usize) {
        let message = self.control.message_for(self.agents[agent].server, None, self.wall());
        self.send(SimEvent::Down { agent, message });
    }

    fn send(&mut self, message: SimEvent) {
        if self.rng.percent(self.loss) {
            self.control.situations.count(Situation::Lost);
            return;
        }
        if self.rng.percent(self.loss / 3) {
            self.control.situations.count(Situation::Repeated);
            let later = SignedDuration::from_mins(self.rng.between(1, 90));
            self.schedule(later, message.clone());
        }
        let late = self.rng.percent(self.loss / 3);
        if late {
            self.control.situations.count(Situation::Late);
        }
        let seconds = if late { self.rng.between(60, 3_600) } else { self.rng.between(0, 3) };
        self.schedule(SignedDuration::from_secs(seconds), message);
    }

    fn plan_step(&mut self, agent: usize) {
        if let Some(wait) = self.agents[agent].next_step(&mut self.rng) {
            let life = self.agents[agent].restarts;
            self.schedule(wait, SimEvent::Step { agent, life });
        }
    }

    // --- Control plane ---------------------------------------------------------------------

    pub(super) fn run_planner(&mut self) {
        if !self.control_is_up {
            return;
        }
        let (offered, wake_at) = self.control.run_planner(self.moment());
        for server in offered {
            if let Some(agent) = self.agents.iter().position(|agent| agent.server == server) {
                self.notify_agent(agent);
            }
        }
        // The real engine also plans at regular intervals; this one relies on `wake_at`.
        let look_at = wake_at.map(|wake_at| self.now + wake_at.duration_since(self.wall()));
        if let Some(at) = look_at.filter(|_| look_at != self.plan_at) {
            self.schedule(at.duration_since(self.now), SimEvent::Plan);
        }
        self.plan_at = look_at;
    }

    pub(super) fn wall(&self) -> Timestamp {
        self.now + self.skew
    }

    pub(super) fn moment(&self) -> Moment {
        let (forward, jumps, settings) =
            (self.unnoticed_forward_sets, self.unnoticed_clock_sets, self.clock_sets);
        Moment {
            real: self.now,
            wall: self.wall(),
            unnoticed_forward_sets: forward,
            unnoticed_clock_sets: jumps,
            clock_sets: settings,
        }
    }

    pub(super) fn schedule(&mut self, wait: SignedDuration, event: SimEvent) {
        let at = self.now + wait.max(SignedDuration::ZERO);
        self.queued += 1;
        self.queue.insert((at, self.queued), event);
    }

    // --- End of a run ----------------------------------------------------------------------

    fn is_over(&self) -> bool {
        match self.mode {
            Mode::Safety => !self.faults_active(),
            Mode::Liveness => {
                !self.faults_active()
                    && self.queue.values().all(|h| !matches!(h, SimEvent::SecondRollout))
                    && self.is_settled()
            }
        }
    }

    /// Every rollout has ended, and no live agent has anything left to report or do.
    fn is_settled(&self) -> bool {
        self.control.rollouts().all(|rollout| rollout.head().phase.is_ended())
            && self.agents.iter().all(|agent| {
                self.removed.contains(&agent.server)
                    || agent.health == Health::Dead
                    || agent.is_idle()
            })
    }

    fn check_results(&mut self) {
        let mut broken = Vec::new();
        for agent in &self.agents {
            let mut before = None;
            for (id, times) in &agent.effects {
                // A dropped order has no effect, so only one order per rollout may have one. A
                // restored service may have forgotten that it issued another one since.
                let twice = before.replace(id.batch) == Some(id.batch) && !self.was_restored;
                if *times > 1 || twice {
                    broken.push(format!("{} carried out {id:?} more than once", agent.server));
                }
            }
        }
        if self.mode == Mode::Liveness && self.control.violations.is_empty() {
            broken.extend(
                self.control.rollouts().filter_map(|rollout| self.overdue_rollout(rollout)),
            );
            broken.extend(self.control.rollouts().flat_map(|rollout| self.contradictions(rollout)));
        }
        self.control.violations.extend(broken);
    }

    fn overdue_rollout(&self, rollout: &Rollout) -> Option<String> {
        let head = rollout.head();
        if !matches!(head.phase, Phase::Ended(_)) {
            return Some(format!("{} has not ended: {:?}", head.id, head.phase));
        }
        let window = head.start_by - self.skew;
        let limit = window.max(self.began + self.fault_duration)
            + total_stage_limit()
            + self.control.offline_after()
            + GRACE;
        let last = *self.control.last_timeout.get(&head.id)?;
        (last > limit).then(|| format!("{} timed out a task at {last}, after {limit}", head.id))
    }

    fn contradictions<'a>(&'a self, rollout: &'a Rollout) -> impl Iterator<Item = String> + 'a {
        let batch = rollout.head().id;
        rollout.tasks().filter_map(move |(server, target)| {
            let agent = self.agents.iter().find(|agent| agent.server == server)?;
            let TaskStatus::Done(done) = target else { return None };
            // It is unknown what a dead host did last, and reports of a removed server are ignored.
            if agent.health == Health::Dead || self.removed.contains(&server) {
                return None;
            }
            // A service restored from a backup may have skipped a server before it learned what it
            // had forgotten; a final state stays.
            let skipped =
                matches!(done.outcome, TaskOutcome::Skipped(_) | TaskOutcome::Canceled(_));
            if self.was_restored && skipped {
                return None;
            }
            let verdict = agent.result(self.control.order_id(batch, server));
            // The backup only contains an order that the agent had already dropped, not the one
            // that replaced it.
            let dropped = verdict == Some(ReportedResult::Withdrawn)
                && done.outcome == TaskOutcome::Failed(FailureCode::OrderExpired);
            if self.was_restored && dropped {
                return None;
            }
            // Nor does it contain the order that changed the packages, after which the next one
            // found nothing to do.
            let repeated =
                done.outcome == TaskOutcome::NoChange && verdict == Some(ReportedResult::NoChange);
            if self.was_restored && repeated {
                return None;
            }
            contradicts(done.outcome, verdict, agent.has_changed_packages(batch)).then(|| {
                format!(
                    "{batch} records {:?} for {server}, which reported {verdict:?}",
                    done.outcome
                )
            })
        })
    }
}
