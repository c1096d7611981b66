//! The simulated control plane: the smallest caller that the planner needs.
//!
//! `saved` corresponds to the real database and survives a crash; `live` corresponds to memory and
//! is rebuilt from it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use vocab::{BatchId, FailureCode, ServerId, Stage};

use super::agent::{Message, Order, OrderId};
use super::oracle::{Moment, Oracle, SimFreeze, lacks_proof};
use super::situations::{Situation, SituationCounts};
use crate::rollout::invariants::{check_invariants, check_settled};
use crate::rollout::{
    Change, ClockSet, HaltReason, HealthMeasurement, HealthWatch, Phase, Plan, ReportedResult,
    Rollout, RolloutHead, ServerCondition, TaskEvent, TaskHealth, TaskOutcome, TaskStatus, plan,
};
use crate::server::Presence;

/// A stored rollout.
#[derive(Clone)]
struct StoredRollout {
    head: RolloutHead,
    targets: Vec<(ServerId, TaskStatus)>,
    health: BTreeMap<ServerId, Arc<TaskHealth>>,
}

/// What an agent reports about the health of its host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HealthReports {
    /// From the results of orders.
    pub(super) results: BTreeMap<OrderId, HealthMeasurement>,
    /// From the watch, with its number.
    pub(super) watch: Option<(u32, HealthMeasurement)>,
}

/// A copy of the database, and of the oracle's records that belong to it.
struct Backup {
    saved: BTreeMap<BatchId, StoredRollout>,
    orders: BTreeMap<(BatchId, ServerId), u64>,
    freezes: Vec<SimFreeze>,
    oracle: Oracle,
}

pub(super) struct ControlPlane {
    saved: BTreeMap<BatchId, StoredRollout>,
    backup: Option<Backup>,
    live: BTreeMap<BatchId, Rollout>,
    /// The number of a server's current order, if it is not its first: the server dropped that one.
    orders: BTreeMap<(BatchId, ServerId), u64>,
    /// Stored, like the rollouts.
    freezes: Vec<SimFreeze>,
    /// Number of dropped orders, regardless of restores.
    dropped_orders: u64,
    presence: BTreeMap<ServerId, Presence>,
    /// Servers whose agents last reported that they are working.
    busy_agents: BTreeSet<ServerId>,
    sync_seconds: u32,
    oracle: Oracle,
    pub(super) situations: SituationCounts,
    /// Rollouts with changes since the last planning.
    changed: BTreeSet<BatchId>,
    /// Tasks that waited for a server that another rollout was working on.
    pub(super) contested: BTreeSet<(BatchId, ServerId)>,
    /// When (in real time) a rollout last timed out a task.
    pub(super) last_timeout: BTreeMap<BatchId, Timestamp>,
    pub(super) violations: Vec<String>,
    pub(super) starts: u64,
    /// The planner; tests plant faults in it.
    pub(super) planner: fn(&Rollout, Timestamp) -> Plan,
    /// Whether the planner may have faults: then nothing is compared with the real one.
    pub(super) has_fault: bool,
    /// The trace that a failing seed prints. Recorded only when such a seed is run again.
    pub(super) trace: Option<Vec<String>>,
}

impl ControlPlane {
    pub(super) fn new(sync_seconds: u32, traced: bool) -> ControlPlane {
        ControlPlane {
            saved: BTreeMap::new(),
            backup: None,
            live: BTreeMap::new(),
            orders: BTreeMap::new(),
            freezes: Vec::new(),
            dropped_orders: 0,
            presence: BTreeMap::new(),
            busy_agents: BTreeSet::new(),
            sync_seconds,
            oracle: Oracle::default(),
            situations: SituationCounts::default(),
            changed: BTreeSet::new(),
            contested: BTreeSet::new(),
            last_timeout: BTreeMap::new(),
            violations: Vec::new(),
            starts: 0,
            planner: plan,
            has_fault: false,
            trace: traced.then(Vec::new),
        }
    }

    pub(super) fn create(&mut self, rollout: Rollout, starts_in: SignedDuration, at: Moment) {
        let id = rollout.head().id;
        self.oracle.record_created(&rollout, starts_in, at);
        let saved = StoredRollout {
            head: rollout.head().clone(),
            targets: rollout.tasks().collect(),
            health: BTreeMap::new(),
        };
        self.saved.insert(id, saved);
        self.live.insert(id, rollout);
    }

    /// Everything that was only in memory is lost.
    pub(super) fn crash(&mut self, at: Moment) {
        self.situations.count(Situation::ControlCrashed);
        self.load(at);
    }

    pub(super) fn back_up(&mut self) {
        let (saved, orders) = (self.saved.clone(), self.orders.clone());
        let freezes = self.freezes.clone();
        self.backup = Some(Backup { saved, orders, freezes, oracle: self.oracle.clone() });
    }

    /// Everything since the backup is lost. Returns whether there was a backup.
    pub(super) fn restore(&mut self, at: Moment) -> bool {
        let Some(backup) = self.backup.take() else { return false };
        self.situations.count(Situation::Restored);
        self.trace(|| "restored from a backup".into());
        (self.saved, self.orders, self.oracle) = (backup.saved, backup.orders, backup.oracle);
        self.freezes = backup.freezes;
        self.load(at);
        true
    }

    /// How long it takes until every live agent has reported.
    pub(super) fn offline_after(&self) -> SignedDuration {
        Presence { last_seen: None, sync_seconds: self.sync_seconds }.offline_after()
    }

    /// Starts from the stored state; no agent has reported yet.
    fn load(&mut self, at: Moment) {
        let patience = self.offline_after();
        self.oracle.start_grace_period(at, patience);
        self.live = self
            .saved
            .iter()
            .map(|(id, saved)| {
                let targets = saved.targets.iter().copied();
                let mut rollout = Rollout::restore(saved.head.clone(), targets);
                for (server, health) in &saved.health {
                    rollout.set_health(*server, Some(Arc::clone(health)));
                }
                rollout.start_grace_period(at.wall, patience);
                (*id, rollout)
            })
            .collect();
    }

    pub(super) fn add_freeze(&mut self, freeze: SimFreeze) {
        self.situations.count(Situation::FreezeAdded);
        self.trace(|| format!("freeze {freeze:?}"));
        self.oracle.record_freeze(freeze.clone());
        self.freezes.push(freeze);
    }

    pub(super) fn rollouts(&self) -> impl Iterator<Item = &Rollout> {
        self.live.values()
    }

    /// Returns a rollout with an order that no agent is known to have begun.
    pub(super) fn with_new_order(&self) -> Option<BatchId> {
        let ordered = |(_, target): (ServerId, TaskStatus)| matches!(target, TaskStatus::Busy(busy) if busy.stage == Stage::Dispatched);
        let found = self.live.iter().find(|(_, rollout)| rollout.tasks().any(ordered));
        found.map(|(of, _)| *of)
    }

    /// The clock was set just now, and nothing has happened since.
    pub(super) fn set_clock(&mut self, by: SignedDuration, at: Moment) {
        let since = at.wall + SignedDuration::from_nanos(1);
        for batch_id in self.live.keys().copied().collect::<Vec<_>>() {
            self.apply_change(batch_id, Change::ClockSet(ClockSet { by, since, now: at.wall }), at);
        }
    }

    pub(super) fn apply_change(&mut self, batch_id: BatchId, change: Change, at: Moment) -> bool {
        let Some(rollout) = self.live.get_mut(&batch_id) else { return false };
        let before = rollout.head().phase;
        if rollout.apply_change(change, at.wall).is_err() {
            return false;
        }
        match (before, change) {
            (Phase::Halted(_), Change::Resume) => self.situations.count(Situation::Resumed),
            (_, Change::Pause) => self.situations.count(Situation::Paused),
            (_, Change::Cancel) => self.situations.count(Situation::Canceled),
            (_, Change::Halt(reason)) => {
                self.situations.count(Situation::Halted);
                match reason {
                    HaltReason::HealthDegraded { .. } => {
                        self.situations.count(Situation::HealthDegraded);
                    }
                    HaltReason::HealthUnknown { .. } => {
                        self.situations.count(Situation::HealthUnknown);
                    }
                    HaltReason::FleetWideDegradation { .. } => {
                        self.situations.count(Situation::FleetWideDegradation);
                    }
                    HaltReason::CanaryFailed | HaltReason::TooManyFailures => {}
                }
            }
            (_, Change::HealthExceeded) => self.situations.count(Situation::HealthExceeded),
            (_, Change::HealthRecovered) => self.situations.count(Situation::HealthRecovered),
            (_, Change::WaveEnded) => self.situations.count(Situation::Soaked),
            (_, Change::NextWave) => self.situations.count(Situation::WavePassed),
            (_, Change::AskApproval) => self.situations.count(Situation::ApprovalAsked),
            (_, Change::Approve) => self.situations.count(Situation::Approved),
            (_, Change::Reject) => self.situations.count(Situation::Rejected),
            (_, Change::CanaryUnchanged) => self.situations.count(Situation::CanaryUnchanged),
            _ => {}
        }
        self.oracle.record_change(batch_id, change, rollout.head().phase, at);
        self.trace(|| format!("{} {batch_id} {change:?}", at.wall));
        self.save_all(batch_id);
        true
    }

    /// Processes a message of an agent. Returns the results that are now stored.
    pub(super) fn receive(
        &mut self,
        server: ServerId,
        reports: &[(OrderId, TaskEvent)],
        health: &HealthReports,
        agent_busy: bool,
        at: Moment,
    ) -> Vec<OrderId> {
        let presence = Presence { last_seen: Some(at.wall), sync_seconds: self.sync_seconds };
        self.presence.insert(server, presence);
        if agent_busy {
            self.busy_agents.insert(server);
        } else {
            self.busy_agents.remove(&server);
        }
        let mut acks = Vec::new();
        for (id, event) in reports {
            // Nothing more can come of an order that was dropped.
            if self.order_id(id.batch, server) == *id {
                let status = |control: &ControlPlane| {
                    control.live.get(&id.batch).and_then(|rollout| rollout.task_status(server))
                };
                let before = status(self);
                self.apply_event(id.batch, server, *event, at);
                let reported = matches!(event, TaskEvent::Reported(_)) && before != status(self);
                if let Some(measured) = health.results.get(id).filter(|_| reported) {
                    let health = TaskHealth::from_result(measured.clone(), at.wall);
                    self.set_health(id.batch, server, health, at);
                }
            }
            if matches!(event, TaskEvent::Reported(_)) {
                acks.push(*id);
            }
        }
        if let Some((_, measured)) = &health.watch {
            for batch_id in self.live.keys().copied().collect::<Vec<_>>() {
                self.store_watch_report(batch_id, server, measured, at);
            }
        }
        acks
    }

    fn store_watch_report(
        &mut self,
        batch_id: BatchId,
        server: ServerId,
        measured: &HealthMeasurement,
        at: Moment,
    ) {
        let rollout = &self.live[&batch_id];
        let Some(status) = rollout.task_status(server) else { return };
        let total = rollout.counts().total();
        let before = rollout.task_health(server).map(Arc::as_ref);
        let measured = measured.clone();
        let after =
            TaskHealth::from_watch(rollout.head(), total, status, before, measured, at.wall);
        if let Some(after) = after {
            self.set_health(batch_id, server, after, at);
        }
    }

    fn set_health(&mut self, batch_id: BatchId, server: ServerId, health: TaskHealth, at: Moment) {
        self.changed.insert(batch_id);
        if health.soaked {
            self.situations.count(Situation::SoakReported);
        }
        if health.not_measured.is_some() {
            self.situations.count(Situation::NotMeasured);
        }
        self.trace(|| format!("{} {batch_id} {server} {health:?}", at.wall));
        self.oracle.record_health(batch_id, server, &health, at);
        let health = Arc::new(health);
        self.saved.get_mut(&batch_id).expect("created").health.insert(server, Arc::clone(&health));
        let rollout = self.live.get_mut(&batch_id).expect("created");
        rollout.set_health(server, Some(health));
        self.save_head(batch_id);
    }

    /// The current or next order of a server.
    pub(super) fn order_id(&self, batch_id: BatchId, server: ServerId) -> OrderId {
        OrderId {
            batch: batch_id,
            number: self.orders.get(&(batch_id, server)).copied().unwrap_or(0),
        }
    }

    pub(super) fn remove(&mut self, server: ServerId, at: Moment) {
        for batch_id in self.live.keys().copied().collect::<Vec<_>>() {
            if self.live[&batch_id].task_status(server).is_some() {
                self.apply_event(batch_id, server, TaskEvent::ServerRemoved, at);
            }
        }
    }

    /// Returns the message for an agent: orders that it has not begun, orders that it should drop,
    /// and orders in progress that it did not mention. `mentioned`: `None` if the agent has not
    /// sent a sync.
    pub(super) fn message_for(
        &self,
        server: ServerId,
        mentioned: Option<&[OrderId]>,
        wall: Timestamp,
    ) -> Message {
        let mut message = Message { sent_at: wall, ..Message::default() };
        for (of, rollout) in &self.live {
            if let Some(status) = rollout.task_status(server) {
                let watch = match rollout
                    .head()
                    .health_watches(rollout.counts().total())
                    .for_task(status)
                {
                    HealthWatch::Off => None,
                    HealthWatch::Until(until) => Some(until).filter(|until| *until > wall),
                    HealthWatch::Open => Some(wall + SignedDuration::from_hours(1)),
                };
                message.watch = message.watch.max(watch);
            }
            let Some(TaskStatus::Busy(busy)) = rollout.task_status(server) else { continue };
            let id = self.order_id(*of, server);
            match rollout.head().phase {
                _ if busy.stage != Stage::Dispatched => {
                    if mentioned.is_some_and(|mentioned| !mentioned.contains(&id)) {
                        message.unreported.push(id);
                    }
                }
                Phase::Canceling | Phase::AwaitingApproval | Phase::Paused | Phase::Halted(_) => {
                    message.withdrawn.push(id);
                }
                _ => message.orders.push(Order { id, expires: busy.by }),
            }
        }
        message
    }

    /// Carries out plans until there is nothing to do. Returns the servers with new orders and the
    /// earliest time to plan again.
    pub(super) fn run_planner(&mut self, at: Moment) -> (Vec<ServerId>, Option<Timestamp>) {
        let mut offered = Vec::new();
        let ids: Vec<_> = self.live.keys().copied().collect();
        let mut wakes = BTreeMap::new();
        // A server that one rollout has finished with may be the one that another waits for.
        loop {
            let mut quiet = true;
            for batch_id in &ids {
                let ended = self.live[batch_id].head().phase.is_ended();
                let (wake_at, acted) = self.run_planner_for(*batch_id, at, &mut offered);
                // A rollout that had already ended, and of which nothing new was reported, was
                // checked before.
                if acted || !ended || self.changed.remove(batch_id) {
                    wakes.insert(*batch_id, wake_at);
                }
                quiet &= !acted;
            }
            if quiet || !self.violations.is_empty() {
                break;
            }
        }
        for (of, wake_at) in &wakes {
            let able = |server| is_available(&self.presence, &self.busy_agents, server, at.wall);
            self.oracle.check_settled(&self.live[of], *wake_at, at, &able);
            if self.situations.times(Situation::Restored) == 0 && !self.has_fault {
                self.violations.extend(check_settled(&self.live[of], at.wall));
            }
        }
        self.violations.append(&mut self.oracle.violations);
        (offered, wakes.into_values().flatten().min())
    }

    fn run_planner_for(
        &mut self,
        batch_id: BatchId,
        at: Moment,
        offered: &mut Vec<ServerId>,
    ) -> (Option<Timestamp>, bool) {
        for round in 0..1_000 {
            if self.live[&batch_id].tasks().any(|(_, target)| target == TaskStatus::Waiting) {
                self.update_conditions(batch_id, at.wall);
            }
            let next = (self.planner)(&self.live[&batch_id], at.wall);
            if next.is_idle() {
                return (next.wake_at, round > 0);
            }
            self.apply_plan(batch_id, &next, at, offered);
        }
        self.violations.push(format!(
            "{batch_id} never becomes idle: {:?}",
            plan(&self.live[&batch_id], at.wall)
        ));
        (None, false)
    }

    fn apply_plan(
        &mut self,
        batch_id: BatchId,
        next: &Plan,
        at: Moment,
        offered: &mut Vec<ServerId>,
    ) {
        if let Some(change) = next.change
            && !self.apply_change(batch_id, change, at)
        {
            self.violations.push(format!("the planner planned an invalid change: {change:?}"));
        }
        for (server, event) in &next.events {
            if matches!(event, TaskEvent::Offered { .. }) {
                self.starts += 1;
                offered.push(*server);
            }
            self.apply_event(batch_id, *server, *event, at);
        }
        // After a restore from a backup, a forgotten task may count as a canary beyond those that
        // were started as canaries. From then on only the oracle, which sees each start, checks the
        // rollout.
        if self.situations.times(Situation::Restored) == 0 {
            self.violations.extend(check_invariants(&self.live[&batch_id]));
        }
    }

    fn apply_event(&mut self, batch_id: BatchId, server: ServerId, event: TaskEvent, at: Moment) {
        let Some(rollout) = self.live.get_mut(&batch_id) else { return };
        let before = rollout.task_status(server);
        match rollout.apply_event(server, event, at.wall) {
            Err(refused) => self.violations.push(format!("{refused}")),
            Ok(after) => {
                let able =
                    |server| is_available(&self.presence, &self.busy_agents, server, at.wall);
                self.oracle.record_event(batch_id, server, event, at, &able);
                let given_back = matches!(before, Some(TaskStatus::Busy(_)));
                if given_back && after == TaskStatus::Waiting {
                    self.dropped_orders += 1;
                    self.orders.insert((batch_id, server), self.dropped_orders);
                    self.situations.count(Situation::GivenBack);
                }
                if before != Some(after) {
                    self.count_situation(batch_id, before, event, at);
                    self.trace(|| format!("{} {batch_id} {server} {event:?}", at.wall));
                }
                self.violations.extend(final_state_changed(before, after));
                self.save_target(batch_id, server, after);
                self.save_head(batch_id);
            }
        }
    }

    fn count_situation(
        &mut self,
        batch_id: BatchId,
        before: Option<TaskStatus>,
        event: TaskEvent,
        at: Moment,
    ) {
        self.changed.insert(batch_id);
        match event {
            TaskEvent::DeadlinePassed => {
                self.last_timeout.insert(batch_id, at.real);
                self.situations.count(Situation::GivenUp);
            }
            TaskEvent::WindowClosed => self.situations.count(Situation::Expired),
            TaskEvent::VersionUnproven => self.situations.count(Situation::VersionUnproven),
            TaskEvent::ServerRemoved => self.situations.count(Situation::Removed),
            TaskEvent::Reported(ReportedResult::Withdrawn) => {
                self.situations.count(Situation::Withdrawn);
            }
            TaskEvent::Reported(ReportedResult::Failed(FailureCode::OrderLost)) => {
                self.situations.count(Situation::OrderLost);
            }
            TaskEvent::Reported(_) if before.is_some_and(is_timeout) => {
                self.situations.count(Situation::Corrected);
            }
            _ => {}
        }
    }

    fn update_conditions(&mut self, batch_id: BatchId, wall: Timestamp) {
        let busy: BTreeMap<ServerId, BatchId> = self
            .live
            .iter()
            .filter(|(other, _)| **other != batch_id)
            .flat_map(|(other, rollout)| rollout.tasks().map(move |target| (*other, target)))
            .filter(|(_, (_, target))| matches!(target, TaskStatus::Busy(_)))
            .map(|(other, (server, _))| (server, other))
            .collect();
        let online =
            |(server, _): &(ServerId, TaskStatus)| is_online(self.presence.get(server), wall);
        let online = self.live[&batch_id].tasks().filter(online).map(|(server, _)| server);
        self.oracle.set_online(batch_id, online.collect());
        let rollout = self.live.get_mut(&batch_id).expect("the rollout exists");
        let head = rollout.head().clone();
        for (server, _) in rollout.tasks().collect::<Vec<_>>() {
            let condition = ServerCondition {
                online: is_online(self.presence.get(&server), wall),
                busy_in: busy.get(&server).copied(),
                agent_busy: self.busy_agents.contains(&server),
                frozen_until: self.freezes.iter().filter_map(|f| f.covers(server, wall)).max(),
                unproven: head.pace.pin_versions && head.waves.current > 0 && lacks_proof(server),
            };
            let waits = rollout.task_status(server) == Some(TaskStatus::Waiting);
            if waits && condition.online && condition.busy_in.is_some() {
                self.contested.insert((batch_id, server));
            } else if waits && condition.online && condition.agent_busy {
                self.situations.count(Situation::LeftToWork);
            }
            let able = condition.online && condition.busy_in.is_none() && !condition.agent_busy;
            if waits && able && condition.frozen_until.is_some() {
                self.situations.count(Situation::Frozen);
            }
            rollout.set_condition(server, condition);
        }
    }

    pub(super) fn trace(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(line());
        }
    }

    fn save_head(&mut self, batch_id: BatchId) {
        let head = self.live[&batch_id].head().clone();
        self.saved.get_mut(&batch_id).expect("created").head = head;
    }

    fn save_target(&mut self, batch_id: BatchId, server: ServerId, status: TaskStatus) {
        let targets = &mut self.saved.get_mut(&batch_id).expect("created").targets;
        if let Some(saved) = targets.iter_mut().find(|(id, _)| *id == server) {
            saved.1 = status;
        }
    }

    fn save_all(&mut self, batch_id: BatchId) {
        self.save_head(batch_id);
        let targets = self.live[&batch_id].tasks().collect();
        self.saved.get_mut(&batch_id).expect("created").targets = targets;
    }
}

/// Whether a server is online and not busy, as far as the control plane knows.
fn is_available(
    presence: &BTreeMap<ServerId, Presence>,
    busy_servers: &BTreeSet<ServerId>,
    server: ServerId,
    wall: Timestamp,
) -> bool {
    is_online(presence.get(&server), wall) && !busy_servers.contains(&server)
}

fn is_online(presence: Option<&Presence>, wall: Timestamp) -> bool {
    presence.is_some_and(|presence| presence.is_online(wall))
}

/// A final state never changes, except that a report replaces a timeout.
fn final_state_changed(before: Option<TaskStatus>, after: TaskStatus) -> Option<String> {
    match before {
        Some(before @ TaskStatus::Done(_)) if before != after && !is_timeout(before) => {
            Some(format!("{before:?} became {after:?}"))
        }
        _ => None,
    }
}

fn is_timeout(status: TaskStatus) -> bool {
    matches!(status, TaskStatus::Done(done) if matches!(done.outcome, TaskOutcome::TimedOut(_)))
}

/// Whether the outcome that the control plane records contradicts what really happened on the
/// server.
pub(super) fn contradicts(
    outcome: TaskOutcome,
    reported: Option<ReportedResult>,
    acted: bool,
) -> bool {
    match outcome {
        TaskOutcome::Succeeded => reported != Some(ReportedResult::Succeeded),
        TaskOutcome::NoChange => reported != Some(ReportedResult::NoChange) || acted,
        TaskOutcome::Failed(FailureCode::OrderExpired) => acted,
        TaskOutcome::Failed(code) => reported != Some(ReportedResult::Failed(code)),
        // A timeout is valid only while the agent has not reported a result.
        TaskOutcome::TimedOut(_) => reported.is_some(),
        TaskOutcome::Skipped(_) => acted,
        TaskOutcome::Canceled(crate::rollout::CancelReason::Person) => acted,
        TaskOutcome::Canceled(crate::rollout::CancelReason::ServerRemoved) => false,
    }
}
