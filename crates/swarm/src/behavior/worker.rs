//! One agent's work: its order queue, its journal and its host.
//!
//! A state machine without clock or network. `execution_plan` decides how each order proceeds.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use vocab::{FailureCode, InquiryReply, OrderRecord, Stage, TaskId, WithdrawalReply};
use wire::agent::{HealthReport, Order, OrderProgress, OrderResult, Outcome, Work};
use wire::v1::Activity;

use super::execution_plan::{Effect, ExecutionPlan, plan_execution};
use super::{Behavior, Script};
use crate::Rng;
use crate::fleet::{Host, HostState, PackageState};

/// Maximum queued orders. The service sends further orders again later.
const QUEUE_MAX: usize = 16;
/// Maximum acknowledged results that are remembered.
const ACKNOWLEDGED_MAX: usize = 64;

/// One agent's state machine.
pub struct Worker {
    host: Host,
    behavior: Behavior,
    script: Script,
    journal: Journal,
}

/// The state that survives a restart of the agent: its journal and its host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PersistentState {
    host: HostState,
    kept: Journal,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Journal {
    current: Option<ActiveOrder>,
    queue: VecDeque<Order>,
    done: VecDeque<FinishedOrder>,
    /// Number of orders started. Part of the seed for the random numbers of each order.
    begun: u64,
    scanned_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ActiveOrder {
    order: Order,
    course: ExecutionPlan,
    step: usize,
    since: Timestamp,
    started_at: Timestamp,
    moved: Vec<usize>,
    reboot_seconds: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FinishedOrder {
    result: OrderResult,
    acknowledged: bool,
}

/// The result of handing an order to the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderReceipt {
    /// The order is new and will be carried out.
    Accepted,
    /// The order is known and in progress.
    InProgress,
    /// The order is known and done. Its result will be sent again.
    AlreadyDone,
    /// The order is new and will not be carried out. The result states why.
    Refused,
    /// The order was ignored silently.
    Ignored,
}

/// An event on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostEvent {
    OrderStarted {
        order: TaskId,
        /// Whether the order is a dry run.
        plan: bool,
    },
    /// An order reached its next stage, or the next part of it.
    StageReached {
        order: TaskId,
        stage: Stage,
    },
    PackagesChanged {
        order: TaskId,
        before: PackageState,
        after: PackageState,
    },
    Booted {
        order: TaskId,
    },
    /// The agent crashed and lost its in-memory state.
    Crashed,
    OrderEnded {
        order: TaskId,
    },
}

impl Worker {
    /// The agent of a host that has never received an order.
    pub fn new(host: Host, behavior: Behavior, now: Timestamp) -> Worker {
        let journal = Journal { scanned_at: Some(now), ..Journal::default() };
        Worker { host, behavior, script: Script::Random, journal }
    }

    /// Restores an agent from its saved state. `host` is the host as it was initially set up.
    pub fn resumed(mut host: Host, behavior: Behavior, persistent: PersistentState) -> Worker {
        host.state = persistent.host;
        Worker { host, behavior, script: Script::Random, journal: persistent.kept }
    }

    /// The state that would survive if the agent crashed now.
    pub fn persistent_state(&self) -> PersistentState {
        PersistentState { host: self.host.state, kept: self.journal.clone() }
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    pub fn scanned_at(&self) -> Option<Timestamp> {
        self.journal.scanned_at
    }

    /// Sets the agent's script. A host that hangs comes back unless the new script prevents it.
    pub fn set_script(&mut self, script: Script, now: Timestamp) {
        self.script = script;
        if script == Script::HangInReboot {
            return;
        }
        if let Some(current) = &mut self.journal.current {
            let waited = now.duration_since(current.since).as_millis();
            if let Some(step) = current.course.steps.get_mut(current.step) {
                step.lasts_ms.get_or_insert(u64::try_from(waited).unwrap_or(0));
            }
        }
    }

    /// Accepts an order whose signature has been verified.
    pub fn accept(&mut self, order: Order, now: Timestamp) -> OrderReceipt {
        if self.resend_if_known(order.id) {
            let open = |finished: &FinishedOrder| {
                !finished.acknowledged && finished.result.order_id == order.id
            };
            return if self.journal.done.iter().any(open) {
                OrderReceipt::AlreadyDone
            } else {
                OrderReceipt::InProgress
            };
        }
        if self.script == Script::IgnoreOrders || self.journal.queue.len() >= QUEUE_MAX {
            return OrderReceipt::Ignored;
        }
        let refusal = match &order.work {
            Work::Unknown { name } => Some((
                FailureCode::UnsupportedOrder,
                format!("this agent does not support the order `{name}`"),
            )),
            Work::Malformed { name, reason } => {
                Some((FailureCode::RejectedByAgent, format!("the order `{name}`: {reason}")))
            }
            _ => None,
        };
        match refusal {
            Some((code, message)) => {
                self.refuse(order.id, code, &message, now);
                OrderReceipt::Refused
            }
            None => {
                self.journal.queue.push_back(order);
                OrderReceipt::Accepted
            }
        }
    }

    /// Records a failed result for an order that must not be started, unless the order is known.
    pub fn refuse(&mut self, order: TaskId, code: FailureCode, message: &str, now: Timestamp) {
        if !self.resend_if_known(order) {
            self.end(result_without_effect(order, Outcome::Failed, Some(code), message, now));
        }
    }

    /// Drops an order that has had no effect yet, and records that. An order that has had an
    /// effect, or may have had one, reports its true result later. Returns whether there is a
    /// result to report now.
    pub fn withdraw(&mut self, order: TaskId, now: Timestamp) -> bool {
        match self.order_record(order).on_withdrawal() {
            WithdrawalReply::Undecided => false,
            WithdrawalReply::Result => self.resend_if_known(order),
            WithdrawalReply::Lost => self.record_lost_order(order, now),
            WithdrawalReply::Withdrawn => {
                self.journal.current.take_if(|current| current.order.id == order);
                self.journal.queue.retain(|queued| queued.id != order);
                let message = "withdrawn before it started";
                self.end(result_without_effect(order, Outcome::Withdrawn, None, message, now));
                true
            }
        }
    }

    /// Answers for an order that the service believes to be in progress although no sync mentioned
    /// it. Returns whether there is a result to report now.
    pub fn answer_inquiry(&mut self, order: TaskId, now: Timestamp) -> bool {
        match self.order_record(order).on_inquiry() {
            InquiryReply::InProgress => false,
            InquiryReply::Result => self.resend_if_known(order),
            InquiryReply::Lost => self.record_lost_order(order, now),
        }
    }

    fn record_lost_order(&mut self, order: TaskId, now: Timestamp) -> bool {
        let code = Some(FailureCode::OrderLost);
        let message = "the agent has no record of this order";
        self.end(result_without_effect(order, Outcome::Unknown, code, message, now));
        true
    }

    fn order_record(&self, order: TaskId) -> OrderRecord {
        if self.journal.done.iter().any(|done| done.result.order_id == order) {
            return OrderRecord::Ended;
        }
        match &self.journal.current {
            Some(current) if current.order.id == order => match current.has_no_effect_yet() {
                true => OrderRecord::NotStarted,
                false => OrderRecord::Started,
            },
            _ if self.journal.queue.iter().any(|queued| queued.id == order) => {
                OrderRecord::NotStarted
            }
            _ => OrderRecord::Missing,
        }
    }

    /// Marks a result as stored by the service.
    pub fn mark_acknowledged(&mut self, order: TaskId) {
        for done in &mut self.journal.done {
            done.acknowledged |= done.result.order_id == order;
        }
        let safe = self.journal.done.iter().filter(|done| done.acknowledged).count();
        if safe > ACKNOWLEDGED_MAX
            && let Some(oldest) = self.journal.done.iter().position(|done| done.acknowledged)
        {
            self.journal.done.remove(oldest);
        }
    }

    /// Whether this order is known. If it is done, its result will be sent again.
    fn resend_if_known(&mut self, order: TaskId) -> bool {
        if let Some(done) = self.journal.done.iter_mut().find(|done| done.result.order_id == order)
        {
            done.acknowledged = false;
            return true;
        }
        self.journal.current.as_ref().is_some_and(|current| current.order.id == order)
            || self.journal.queue.iter().any(|queued| queued.id == order)
    }

    /// When the next event is due without outside input.
    pub fn next_due(&self) -> Option<Timestamp> {
        match &self.journal.current {
            Some(current) => current.next_due(),
            None => self.journal.queue.front().map(|_| Timestamp::MIN),
        }
    }

    /// Whether the agent is unreachable because its host is rebooting or it has crashed.
    pub fn is_down(&self) -> bool {
        self.journal.current.as_ref().is_some_and(|current| !current.is_up())
    }

    /// Whether the host is about to reboot and the agent should announce it now.
    pub fn is_leaving(&self) -> bool {
        self.journal.current.as_ref().is_some_and(ActiveOrder::is_about_to_reboot)
    }

    /// Advances to `now`, or to the moment before a reboot.
    pub fn advance(&mut self, now: Timestamp) -> Vec<HostEvent> {
        let mut happened = Vec::new();
        loop {
            let Some(current) = &self.journal.current else {
                let Some(order) = self.journal.queue.pop_front() else { break };
                let plan = matches!(order.work, Work::Plan(_));
                happened.push(HostEvent::OrderStarted { order: order.id, plan });
                self.begin(order, now);
                continue;
            };
            match current.next_due() {
                Some(due) if due <= now => self.step(due, &mut happened),
                _ => break,
            }
            // The agent always announces a reboot before it happens, however late it is.
            if let Some(current) = &mut self.journal.current
                && current.is_about_to_reboot()
            {
                current.since = now;
                break;
            }
        }
        happened
    }

    fn begin(&mut self, order: Order, now: Timestamp) {
        let which = self.host.index << 24 | self.journal.begun;
        let mut rng = Rng::for_entity(self.behavior.seed, "order", which);
        self.journal.begun += 1;
        let plan = plan_execution(&order.work, &self.host, &self.behavior, self.script, &mut rng);
        self.journal.current = Some(ActiveOrder {
            order,
            course: plan,
            step: 0,
            since: now,
            started_at: now,
            moved: Vec::new(),
            reboot_seconds: None,
        });
    }

    /// Completes the step that was due at `at`.
    fn step(&mut self, at: Timestamp, event: &mut Vec<HostEvent>) {
        let Some(mut current) = self.journal.current.take() else { return };
        let order = current.order.id;
        let effect = current.course.steps.get(current.step).map(|step| step.effect.clone());
        match effect.unwrap_or(Effect::None) {
            Effect::None => {}
            Effect::Scan => self.journal.scanned_at = Some(at),
            Effect::Boot => {
                self.host.boot();
                let seconds = at.duration_since(current.since).as_secs();
                current.reboot_seconds = Some(u64::try_from(seconds).unwrap_or(0));
                event.push(HostEvent::Booted { order });
            }
            Effect::Install(updates) => {
                let before = self.host.state.packages;
                let after =
                    updates.iter().fold(before, |packages, update| packages.with_update(*update));
                self.host.state.packages = after;
                self.journal.scanned_at = Some(at);
                current.moved.extend(updates);
                if before != after {
                    event.push(HostEvent::PackagesChanged { order, before, after });
                }
            }
        }
        current.step += 1;
        current.since = at;
        match current.course.steps.get(current.step) {
            Some(next) => {
                let crashes = next.crash;
                event.push(HostEvent::StageReached { order, stage: next.stage });
                self.journal.current = Some(current);
                if crashes {
                    self.crash();
                    event.push(HostEvent::Crashed);
                }
            }
            None => {
                let result = current.result(&self.host, at);
                self.end(result);
                event.push(HostEvent::OrderEnded { order });
            }
        }
    }

    /// Replaces the state by what the journal contains. Serializing and parsing the journal is part
    /// of the simulation.
    fn crash(&mut self) {
        let written = serde_json::to_vec(&self.persistent_state());
        if let Some(durable) =
            written.ok().and_then(|bytes| serde_json::from_slice::<PersistentState>(&bytes).ok())
        {
            (self.host.state, self.journal) = (durable.host, durable.kept);
        }
    }

    fn end(&mut self, result: OrderResult) {
        self.journal.done.push_back(FinishedOrder { result, acknowledged: false });
    }

    pub fn results(&self) -> Vec<OrderResult> {
        let open = self.journal.done.iter().filter(|done| !done.acknowledged);
        open.map(|done| done.result.clone()).collect()
    }

    /// All orders that the journal contains.
    pub fn known_orders(&self) -> impl Iterator<Item = TaskId> {
        let current = self.journal.current.iter().map(|current| current.order.id);
        current.chain(self.journal.done.iter().map(|done| done.result.order_id))
    }

    /// The progress of unfinished orders.
    pub fn progress(&self, now: Timestamp) -> Vec<OrderProgress> {
        let report =
            |order_id, stage, at| OrderProgress { order_id, stage: Some(stage), at, message: None };
        let current =
            self.journal.current.iter().map(|now| report(now.order.id, now.stage(), now.since));
        let queued =
            self.journal.queue.iter().map(|order| report(order.id, Stage::Dispatched, now));
        current.chain(queued).collect()
    }

    pub fn activity(&self) -> Activity {
        let Some(current) = &self.journal.current else { return Activity::Idle };
        match (&current.order.work, current.stage()) {
            (Work::Scan | Work::Plan(_), _) => Activity::Scanning,
            (_, Stage::Rebooting) => Activity::Rebooting,
            _ => Activity::Patching,
        }
    }

    /// The package manager's log for an order that changed packages.
    pub fn install_log(&self, before: PackageState, after: PackageState) -> String {
        let kind = self.host.group();
        let changed =
            crate::ledger::package_changes(&kind.installed(before), &kind.installed(after));
        let line = |moved: &wire::agent::PackageMove| {
            let version = moved.to.as_ref().map_or("", |line| line.as_str());
            kind.system().log_line(moved.name.as_str(), version)
        };
        changed.iter().map(line).collect()
    }
}

impl ActiveOrder {
    fn next_due(&self) -> Option<Timestamp> {
        let Some(step) = self.course.steps.get(self.step) else { return Some(self.since) };
        let lasts = SignedDuration::from_millis(i64::try_from(step.lasts_ms?).unwrap_or(i64::MAX));
        Some(self.since.saturating_add(lasts).unwrap_or(Timestamp::MAX))
    }

    fn is_up(&self) -> bool {
        self.course.steps.get(self.step).is_none_or(|step| step.up)
    }

    fn stage(&self) -> Stage {
        self.course.steps.get(self.step).map_or(Stage::Verifying, |step| step.stage)
    }

    /// Whether the next step takes the host down.
    fn is_about_to_reboot(&self) -> bool {
        let next = self.course.steps.get(self.step + 1);
        next.is_some_and(|next| next.effect == Effect::Boot)
    }

    /// Whether the order has had no effect yet and can still be dropped.
    fn has_no_effect_yet(&self) -> bool {
        let mut until_now = self.course.steps.iter().take(self.step + 1);
        until_now.all(|step| matches!(step.stage, Stage::Preflight | Stage::Downloading))
    }

    fn result(self, host: &Host, at: Timestamp) -> OrderResult {
        let plan = self.course;
        let places = if matches!(self.order.work, Work::Plan(_)) { plan.would } else { self.moved };
        let measured = match &self.order.work {
            Work::Install(install) => install.health,
            Work::InstallVersions(order) => order.install.health,
            _ => false,
        };
        let health = (measured && !places.is_empty()).then(|| healthy(self.started_at, at));
        OrderResult {
            order_id: self.order.id,
            outcome: plan.outcome,
            failure_code: plan.failure_code,
            message: plan.message.map(Into::into),
            packages: places.into_iter().map(|place| host.group().package_move(place)).collect(),
            reboot_needed: !host.reboot_reasons().is_empty(),
            reboot_seconds: self.reboot_seconds,
            exit: plan.exit,
            set_aside: Vec::new(),
            restarted: Vec::new(),
            notes: Vec::new(),
            newer_available: Vec::new(),
            health,
            started_at: self.started_at,
            finished_at: at,
        }
    }
}

/// The health of a simulated host, which nothing breaks.
pub(crate) fn healthy(baseline_at: Timestamp, measured_at: Timestamp) -> HealthReport {
    HealthReport { measured_at, baseline_at, problems: Vec::new(), not_measured: None }
}

fn result_without_effect(
    order_id: TaskId,
    outcome: Outcome,
    failure_code: Option<FailureCode>,
    message: &str,
    now: Timestamp,
) -> OrderResult {
    OrderResult {
        order_id,
        outcome,
        failure_code,
        message: Some(message.into()),
        packages: Vec::new(),
        reboot_needed: false,
        reboot_seconds: None,
        exit: None,
        set_aside: Vec::new(),
        restarted: Vec::new(),
        notes: Vec::new(),
        newer_available: Vec::new(),
        health: None,
        started_at: now,
        finished_at: now,
    }
}
