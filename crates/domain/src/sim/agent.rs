//! A simulated agent: it accepts orders, carries out each at most once, and reports.
//!
//! Its accepted orders and their progress are on disk and survive a crash; everything else does
//! not. The real agent is far more careful about package managers; this one is just as careful
//! about messages.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use vocab::{BatchId, FailureCode, InquiryReply, OrderRecord, ServerId, Stage, WithdrawalReply};

use super::host_health::{HostHealth, Instruments, Unit};
use super::rng::Rng;
use crate::rollout::{HealthMeasurement, ReportedResult, TaskEvent};

/// The id of an order. An agent never forgets an id, so a server whose order was dropped gets a new
/// order with another id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OrderId {
    pub(super) batch: BatchId,
    pub(super) number: u64,
}

/// An order in transit: its id, and the time until which it may be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) id: OrderId,
    pub(super) expires: Timestamp,
}

/// Progress of an order, on the agent's disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JournalEntry {
    Taken { expires: Timestamp },
    At(Stage),
    Ended { reported: ReportedResult, acknowledged: bool },
}

/// A message of the control plane.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) orders: Vec<Order>,
    pub(super) acks: Vec<OrderId>,
    pub(super) withdrawn: Vec<OrderId>,
    /// In progress according to the control plane, but not mentioned by the agent.
    pub(super) unreported: Vec<OrderId>,
    /// Until when the agent watches the health of its host, and the control plane's clock.
    pub(super) watch: Option<Timestamp>,
    pub(super) sent_at: Timestamp,
    /// The report of the watch that has arrived.
    pub(super) health_ack: Option<u32>,
}

/// The state of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    Up,
    /// The process has died and will be restarted.
    Crashed,
    /// It never comes back.
    Dead,
}

/// The service that bad updates break.
pub(super) const BROKEN_BY_UPDATES: Unit = "app.service";

pub(super) struct Agent {
    pub(super) server: ServerId,
    pub(super) health: Health,
    pub(super) connected: bool,
    /// How many times it was started: work planned before a restart is void.
    pub(super) restarts: u32,
    journal: BTreeMap<OrderId, JournalEntry>,
    /// The ids of accepted orders, stored separately from the journal.
    taken: BTreeSet<OrderId>,
    /// How many times packages were really changed, by order.
    pub(super) effects: BTreeMap<OrderId, u32>,
    /// Probability that an order finds nothing to install, in percent.
    up_to_date: u32,
    steps_planned: bool,
    pub(super) host: HostHealth,
    /// The health in the results of orders.
    pub(super) order_health: BTreeMap<OrderId, HealthMeasurement>,
    /// Probability in percent that an update breaks a service, and the generator that decides it.
    pub(super) breaks: (u32, Rng),
}

impl Agent {
    pub(super) fn new(server: ServerId, up_to_date: u32) -> Agent {
        Agent {
            server,
            up_to_date,
            health: Health::Up,
            connected: true,
            restarts: 0,
            journal: BTreeMap::new(),
            taken: BTreeSet::new(),
            effects: BTreeMap::new(),
            steps_planned: false,
            host: HostHealth::new(Instruments::All),
            order_health: BTreeMap::new(),
            breaks: (0, Rng::new(0)),
        }
    }

    pub(super) fn is_reachable(&self) -> bool {
        self.health == Health::Up && self.connected
    }

    pub(super) fn crash(&mut self, health: Health) {
        self.health = health;
        self.restarts += 1;
        self.steps_planned = false;
    }

    /// Processes a message of the control plane. A repeated order is recognized by its id, accepted
    /// once, and answered with its result, because the control plane repeats an order only while it
    /// has no result.
    pub(super) fn receive(&mut self, message: &Message) {
        for order in &message.orders {
            let first = match self.taken.insert(order.id) {
                true => JournalEntry::Taken { expires: order.expires },
                false => ended_entry(ReportedResult::Failed(FailureCode::OrderLost)),
            };
            if let JournalEntry::Ended { acknowledged, .. } =
                self.journal.entry(order.id).or_insert(first)
            {
                *acknowledged = false;
            }
        }
        for id in &message.withdrawn {
            match self.order_record(*id).on_withdrawal() {
                WithdrawalReply::Withdrawn => {
                    self.taken.insert(*id);
                    self.journal.insert(*id, ended_entry(ReportedResult::Withdrawn));
                }
                WithdrawalReply::Lost => self.record_lost(*id),
                WithdrawalReply::Undecided => {}
                WithdrawalReply::Result => self.report_again(*id),
            }
        }
        for id in &message.unreported {
            match self.order_record(*id).on_inquiry() {
                InquiryReply::Lost => self.record_lost(*id),
                InquiryReply::InProgress => {}
                InquiryReply::Result => self.report_again(*id),
            }
        }
        for id in &message.acks {
            if let Some(JournalEntry::Ended { acknowledged, .. }) = self.journal.get_mut(id) {
                *acknowledged = true;
            }
        }
    }

    fn order_record(&self, id: OrderId) -> OrderRecord {
        match self.journal.get(&id) {
            None if self.taken.contains(&id) => OrderRecord::Lost,
            None => OrderRecord::Missing,
            Some(JournalEntry::Taken { .. }) => OrderRecord::NotStarted,
            Some(JournalEntry::At(_)) => OrderRecord::Started,
            Some(JournalEntry::Ended { .. }) => OrderRecord::Ended,
        }
    }

    fn record_lost(&mut self, id: OrderId) {
        self.taken.insert(id);
        self.journal.insert(id, ended_entry(ReportedResult::Failed(FailureCode::OrderLost)));
    }

    fn report_again(&mut self, id: OrderId) {
        if let Some(JournalEntry::Ended { acknowledged, .. }) = self.journal.get_mut(&id) {
            *acknowledged = false;
        }
    }

    /// Loses the record of the order in progress; the host continues with the next one.
    pub(super) fn lose_record(&mut self) -> Option<OrderId> {
        let in_progress = |(id, entry): (&OrderId, &JournalEntry)| {
            matches!(entry, JournalEntry::At(_)).then_some(*id)
        };
        let id = self.journal.iter().find_map(in_progress)?;
        self.journal.remove(&id);
        Some(id)
    }

    /// Returns everything to report that was not acknowledged.
    pub(super) fn pending_reports(&self) -> Vec<(OrderId, TaskEvent)> {
        self.journal
            .iter()
            .filter_map(|(of, entry)| match entry {
                JournalEntry::Taken { .. } => None,
                JournalEntry::At(stage) => Some((*of, TaskEvent::Reached(*stage))),
                JournalEntry::Ended { acknowledged: true, .. } => None,
                JournalEntry::Ended { reported: verdict, .. } => {
                    Some((*of, TaskEvent::Reported(*verdict)))
                }
            })
            .collect()
    }

    /// Returns the time until its next step, if it has something to do and no step is planned.
    pub(super) fn next_step(&mut self, rng: &mut Rng) -> Option<SignedDuration> {
        if self.steps_planned || self.health != Health::Up || self.current().is_none() {
            return None;
        }
        self.steps_planned = true;
        let usual = SignedDuration::from_secs(rng.between(1, 240));
        let slow = SignedDuration::from_mins(rng.between(5, 300));
        Some(if rng.percent(3) { slow } else { usual })
    }

    /// Takes one step of the order in progress: only one order at a time, whatever else was
    /// accepted.
    pub(super) fn step(&mut self, rng: &mut Rng, server_clock: Timestamp) -> bool {
        self.steps_planned = false;
        let Some((of, entry)) = self.current() else { return false };
        let next = match entry {
            JournalEntry::Taken { expires } if expires <= server_clock => {
                ended_entry(ReportedResult::Failed(FailureCode::OrderExpired))
            }
            JournalEntry::Taken { .. } => JournalEntry::At(Stage::Preflight),
            JournalEntry::At(stage) => self.next_entry(of, stage, rng),
            JournalEntry::Ended { .. } => entry,
        };
        if let JournalEntry::Ended { .. } = next
            && self.effects.contains_key(&of)
            && let Some(health) = self.host.end_order(server_clock)
        {
            self.order_health.insert(of, health);
        }
        if next == JournalEntry::At(Stage::Preflight) {
            self.host.begin_order(server_clock);
        }
        self.journal.insert(of, next);
        true
    }

    fn next_entry(&mut self, order: OrderId, stage: Stage, rng: &mut Rng) -> JournalEntry {
        if rng.percent(4) {
            return ended_entry(ReportedResult::Failed(FailureCode::RepoUnreachable));
        }
        match stage {
            Stage::Dispatched => JournalEntry::At(Stage::Preflight),
            Stage::Preflight if rng.percent(self.up_to_date) => {
                ended_entry(ReportedResult::NoChange)
            }
            Stage::Preflight if rng.percent(3) => ended_entry(ReportedResult::NotApplicable),
            Stage::Preflight => JournalEntry::At(Stage::Downloading),
            Stage::Downloading => {
                *self.effects.entry(order).or_default() += 1;
                let (probability, breaks) = &mut self.breaks;
                if breaks.percent(*probability) {
                    self.host.failing.insert(BROKEN_BY_UPDATES);
                }
                JournalEntry::At(Stage::Installing)
            }
            Stage::Installing if rng.percent(30) => JournalEntry::At(Stage::Rebooting),
            Stage::Installing if rng.percent(30) => JournalEntry::At(Stage::RestartingServices),
            Stage::Installing | Stage::RestartingServices | Stage::Rebooting => {
                JournalEntry::At(Stage::Verifying)
            }
            Stage::Verifying => ended_entry(ReportedResult::Succeeded),
        }
    }

    /// Whether the service has failed that updates break.
    pub(super) fn is_broken(&self) -> bool {
        self.host.failing.contains(BROKEN_BY_UPDATES)
    }

    /// Whether it has begun an order that has not ended.
    pub(super) fn is_busy(&self) -> bool {
        self.journal.values().any(|entry| matches!(entry, JournalEntry::At(_)))
    }

    fn current(&self) -> Option<(OrderId, JournalEntry)> {
        let in_progress = |entry: &JournalEntry| matches!(entry, JournalEntry::At(_));
        let taken = |entry: &JournalEntry| matches!(entry, JournalEntry::Taken { .. });
        let find = |wanted: &dyn Fn(&JournalEntry) -> bool| {
            self.journal.iter().find(|(_, entry)| wanted(entry)).map(|(of, entry)| (*of, *entry))
        };
        find(&in_progress).or_else(|| find(&taken))
    }

    /// The control plane was restored from a backup: its acknowledgments no longer count.
    pub(super) fn report_all_again(&mut self) {
        for entry in self.journal.values_mut() {
            if let JournalEntry::Ended { acknowledged, .. } = entry {
                *acknowledged = false;
            }
        }
    }

    /// Whether nothing is in progress and nothing is left to report.
    pub(super) fn is_idle(&self) -> bool {
        self.current().is_none() && self.pending_reports().is_empty()
    }

    /// Whether its host is in a reboot.
    pub(super) fn is_rebooting(&self) -> bool {
        matches!(self.current(), Some((_, JournalEntry::At(Stage::Rebooting))))
    }

    /// The result of an order, if it has ended.
    pub(super) fn result(&self, order: OrderId) -> Option<ReportedResult> {
        match self.journal.get(&order) {
            Some(JournalEntry::Ended { reported: verdict, .. }) => Some(*verdict),
            _ => None,
        }
    }

    /// Whether it has carried out an order of this rollout and changed something.
    pub(super) fn has_changed_packages(&self, batch: BatchId) -> bool {
        self.effects.keys().any(|id| id.batch == batch)
    }
}

fn ended_entry(reported: ReportedResult) -> JournalEntry {
    JournalEntry::Ended { reported, acknowledged: false }
}
