//! One agent's work: its order queue, its journal and its host.
//!
//! A state machine without clock or network. `execution_plan` decides how each order proceeds.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use vocab::{FailureCode, InquiryReply, OrderRecord, Stage, TaskId, WithdrawalReply};
use wire::agent::{Order, OrderProgress, OrderResult, Outcome, Work};
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
    nature: Behavior,
    script: Script,
    kept: Journal,
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
    pub fn new(host: Host, nature: Behavior, now: Timestamp) -> Worker {
        let kept = Journal { scanned_at: Some(now), ..Journal::default() };
        Worker { host, nature, script: Script::Random, kept }
    }

    /// Restores an agent from its saved state. `host` is the host as it was initially set up.
    pub fn resumed(mut host: Host, nature: Behavior, durable: PersistentState) -> Worker {
        host.state = durable.host;
        Worker { host, nature, script: Script::Random, kept: durable.kept }
    }

    /// The state that would survive if the agent crashed now.
    pub fn durable(&self) -> PersistentState {
        PersistentState { host: self.host.state, kept: self.kept.clone() }
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    pub fn scanned_at(&self) -> Option<Timestamp> {
        self.kept.scanned_at
    }

    /// Sets the agent's script. A host that hangs comes back unless the new script prevents it.
    pub fn set_script(&mut self, script: Script, now: Timestamp) {
        self.script = script;
        if script == Script::HangInReboot {
            return;
        }
        if let Some(current) = &mut self.kept.current {
            let waited = now.duration_since(current.since).as_millis();
            if let Some(step) = current.course.steps.get_mut(current.step) {
                step.lasts_ms.get_or_insert(u64::try_from(waited).unwrap_or(0));
            }
        }
    }

    /// Accepts an order whose signature has been verified.
    pub fn accept(&mut self, order: Order, now: Timestamp) -> OrderReceipt {
        if self.recall(order.id) {
            let open =
                |done: &FinishedOrder| !done.acknowledged && done.result.order_id == order.id;
            return if self.kept.done.iter().any(open) {
                OrderReceipt::AlreadyDone
            } else {
                OrderReceipt::InProgress
            };
        }
        if self.script == Script::IgnoreOrders || self.kept.queue.len() >= QUEUE_MAX {
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
                self.kept.queue.push_back(order);
                OrderReceipt::Accepted
            }
        }
    }

    /// Records a failed result for an order that must not be started, unless the order is known.
    pub fn refuse(&mut self, order: TaskId, code: FailureCode, message: &str, now: Timestamp) {
        if !self.recall(order) {
            self.end(result_without_effect(order, Outcome::Failed, Some(code), message, now));
        }
    }

    /// Drops an order that has had no effect yet, and records that. An order that has had an
    /// effect, or may have had one, reports its true result later. Returns whether there is a
    /// result to report now.
    pub fn withdraw(&mut self, order: TaskId, now: Timestamp) -> bool {
        match self.order_record(order).on_withdrawal() {
            WithdrawalReply::Undecided => false,
            WithdrawalReply::Result => self.recall(order),
            WithdrawalReply::Lost => self.record_lost_order(order, now),
            WithdrawalReply::Withdrawn => {
                self.kept.current.take_if(|current| current.order.id == order);
                self.kept.queue.retain(|queued| queued.id != order);
                let message = "withdrawn before it started";
                self.end(result_without_effect(order, Outcome::Withdrawn, None, message, now));
                true
            }
        }
    }

    /// Answers for an order that the service believes to be in progress although no sync mentioned
    /// it. Returns whether there is a result to report now.
    pub fn inquire(&mut self, order: TaskId, now: Timestamp) -> bool {
        match self.order_record(order).on_inquiry() {
            InquiryReply::InProgress => false,
            InquiryReply::Result => self.recall(order),
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
        if self.kept.done.iter().any(|done| done.result.order_id == order) {
            return OrderRecord::Ended;
        }
        match &self.kept.current {
            Some(current) if current.order.id == order => match current.has_no_effect_yet() {
                true => OrderRecord::NotStarted,
                false => OrderRecord::Started,
            },
            _ if self.kept.queue.iter().any(|queued| queued.id == order) => OrderRecord::NotStarted,
            _ => OrderRecord::Missing,
        }
    }

    /// Marks a result as stored by the service.
    pub fn mark_acknowledged(&mut self, order: TaskId) {
        for done in &mut self.kept.done {
            done.acknowledged |= done.result.order_id == order;
        }
        let safe = self.kept.done.iter().filter(|done| done.acknowledged).count();
        if safe > ACKNOWLEDGED_MAX
            && let Some(oldest) = self.kept.done.iter().position(|done| done.acknowledged)
        {
            self.kept.done.remove(oldest);
        }
    }

    /// Whether this order is known. If it is done, its result will be sent again.
    fn recall(&mut self, order: TaskId) -> bool {
        if let Some(done) = self.kept.done.iter_mut().find(|done| done.result.order_id == order) {
            done.acknowledged = false;
            return true;
        }
        self.kept.current.as_ref().is_some_and(|current| current.order.id == order)
            || self.kept.queue.iter().any(|queued| queued.id == order)
    }

    /// When the next event is due without outside input.
    pub fn next_due(&self) -> Option<Timestamp> {
        match &self.kept.current {
            Some(current) => current.next_due(),
            None => self.kept.queue.front().map(|_| Timestamp::MIN),
        }
    }

    /// Whether the agent is unreachable because its host is rebooting or it has crashed.
    pub fn is_down(&self) -> bool {
        self.kept.current.as_ref().is_some_and(|current| !current.is_up())
    }

    /// Whether the host is about to reboot and the agent should announce it now.
    pub fn is_leaving(&self) -> bool {
        self.kept.current.as_ref().is_some_and(ActiveOrder::is_about_to_reboot)
    }

    /// Advances to `now`, or to the moment before a reboot.
    pub fn advance(&mut self, now: Timestamp) -> Vec<HostEvent> {
        let mut happened = Vec::new();
        loop {
            let Some(current) = &self.kept.current else {
                let Some(order) = self.kept.queue.pop_front() else { break };
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
            if let Some(current) = &mut self.kept.current
                && current.is_about_to_reboot()
            {
                current.since = now;
                break;
            }
        }
        happened
    }

    fn begin(&mut self, order: Order, now: Timestamp) {
        let which = self.host.index << 24 | self.kept.begun;
        let mut rng = Rng::for_entity(self.nature.seed, "order", which);
        self.kept.begun += 1;
        let course = plan_execution(&order.work, &self.host, &self.nature, self.script, &mut rng);
        self.kept.current = Some(ActiveOrder {
            order,
            course,
            step: 0,
            since: now,
            started_at: now,
            moved: Vec::new(),
            reboot_seconds: None,
        });
    }

    /// Completes the step that was due at `at`.
    fn step(&mut self, at: Timestamp, happened: &mut Vec<HostEvent>) {
        let Some(mut current) = self.kept.current.take() else { return };
        let order = current.order.id;
        let effect = current.course.steps.get(current.step).map(|step| step.effect.clone());
        match effect.unwrap_or(Effect::None) {
            Effect::None => {}
            Effect::Scan => self.kept.scanned_at = Some(at),
            Effect::Boot => {
                self.host.boot();
                let seconds = at.duration_since(current.since).as_secs();
                current.reboot_seconds = Some(u64::try_from(seconds).unwrap_or(0));
                happened.push(HostEvent::Booted { order });
            }
            Effect::Install(updates) => {
                let before = self.host.state.packages;
                let after = updates.iter().fold(before, |packages, update| packages.with(*update));
                self.host.state.packages = after;
                self.kept.scanned_at = Some(at);
                current.moved.extend(updates);
                if before != after {
                    happened.push(HostEvent::PackagesChanged { order, before, after });
                }
            }
        }
        current.step += 1;
        current.since = at;
        match current.course.steps.get(current.step) {
            Some(next) => {
                let crashes = next.crash;
                happened.push(HostEvent::StageReached { order, stage: next.stage });
                self.kept.current = Some(current);
                if crashes {
                    self.crash();
                    happened.push(HostEvent::Crashed);
                }
            }
            None => {
                let result = current.result(&self.host, at);
                self.end(result);
                happened.push(HostEvent::OrderEnded { order });
            }
        }
    }

    /// Replaces the state by what the journal contains. Serializing and parsing the journal is part
    /// of the simulation.
    fn crash(&mut self) {
        let written = serde_json::to_vec(&self.durable());
        if let Some(durable) =
            written.ok().and_then(|bytes| serde_json::from_slice::<PersistentState>(&bytes).ok())
        {
            (self.host.state, self.kept) = (durable.host, durable.kept);
        }
    }

    fn end(&mut self, result: OrderResult) {
        self.kept.done.push_back(FinishedOrder { result, acknowledged: false });
    }

    pub fn results(&self) -> Vec<OrderResult> {
        let open = self.kept.done.iter().filter(|done| !done.acknowledged);
        open.map(|done| done.result.clone()).collect()
    }

    /// All orders that the journal contains.
    pub fn known_orders(&self) -> impl Iterator<Item = TaskId> {
        let current = self.kept.current.iter().map(|current| current.order.id);
        current.chain(self.kept.done.iter().map(|done| done.result.order_id))
    }

    /// The progress of unfinished orders.
    pub fn progress(&self, now: Timestamp) -> Vec<OrderProgress> {
        let said =
            |order_id, stage, at| OrderProgress { order_id, stage: Some(stage), at, message: None };
        let current =
            self.kept.current.iter().map(|now| said(now.order.id, now.stage(), now.since));
        let queued = self.kept.queue.iter().map(|order| said(order.id, Stage::Dispatched, now));
        current.chain(queued).collect()
    }

    pub fn activity(&self) -> Activity {
        let Some(current) = &self.kept.current else { return Activity::Idle };
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
        let course = self.course;
        let places =
            if matches!(self.order.work, Work::Plan(_)) { course.would } else { self.moved };
        OrderResult {
            order_id: self.order.id,
            outcome: course.outcome,
            failure_code: course.failure_code,
            message: course.message.map(Into::into),
            packages: places.into_iter().map(|place| host.group().package_move(place)).collect(),
            reboot_needed: !host.reboot_reasons().is_empty(),
            reboot_seconds: self.reboot_seconds,
            exit: course.exit,
            set_aside: Vec::new(),
            restarted: Vec::new(),
            notes: Vec::new(),
            started_at: self.started_at,
            finished_at: at,
        }
    }
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
        started_at: now,
        finished_at: now,
    }
}
