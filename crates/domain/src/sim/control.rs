//! The simulated control plane: the smallest caller that the planner needs.
//!
//! `saved` corresponds to the real database and survives a crash; `live` corresponds to memory and
//! is rebuilt from it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use vocab::{BatchId, FailureCode, ServerId, Stage};

use super::agent::{Message, Order, OrderId};
use super::judge::{Judge, Moment};
use super::reach::{Reached, Trial};
use crate::rollout::lint::{lint, lint_settled};
use crate::rollout::{
    Change, ClockSet, Condition, Event, Head, Outcome, Phase, Plan, Rollout, Target, Verdict, plan,
};
use crate::server::Presence;

/// A stored rollout.
#[derive(Clone)]
struct Saved {
    head: Head,
    targets: Vec<(ServerId, Target)>,
}

/// A copy of the database, and of the oracle's records that belong to it.
struct Backup {
    saved: BTreeMap<BatchId, Saved>,
    orders: BTreeMap<(BatchId, ServerId), u64>,
    judge: Judge,
}

pub(super) struct Control {
    saved: BTreeMap<BatchId, Saved>,
    backup: Option<Backup>,
    live: BTreeMap<BatchId, Rollout>,
    /// The number of a server's current order, if it is not its first: the server dropped that one.
    orders: BTreeMap<(BatchId, ServerId), u64>,
    /// Number of dropped orders, regardless of restores.
    given_back: u64,
    presence: BTreeMap<ServerId, Presence>,
    /// Servers whose agents last reported that they are working.
    at_work: BTreeSet<ServerId>,
    sync_seconds: u32,
    judge: Judge,
    pub(super) reached: Reached,
    /// Rollouts with changes since the last planning.
    touched: BTreeSet<BatchId>,
    /// Tasks that waited for a server that another rollout was working on.
    pub(super) contested: BTreeSet<(BatchId, ServerId)>,
    /// When (in real time) a rollout last timed out a task.
    pub(super) last_guess: BTreeMap<BatchId, Timestamp>,
    pub(super) broken: Vec<String>,
    pub(super) starts: u64,
    /// The trace that a failing seed prints. Recorded only when such a seed is run again.
    pub(super) trace: Option<Vec<String>>,
}

impl Control {
    pub(super) fn new(sync_seconds: u32, traced: bool) -> Control {
        Control {
            saved: BTreeMap::new(),
            backup: None,
            live: BTreeMap::new(),
            orders: BTreeMap::new(),
            given_back: 0,
            presence: BTreeMap::new(),
            at_work: BTreeSet::new(),
            sync_seconds,
            judge: Judge::default(),
            reached: Reached::default(),
            touched: BTreeSet::new(),
            contested: BTreeSet::new(),
            last_guess: BTreeMap::new(),
            broken: Vec::new(),
            starts: 0,
            trace: traced.then(Vec::new),
        }
    }

    pub(super) fn create(&mut self, rollout: Rollout, starts_in: SignedDuration, at: Moment) {
        let id = rollout.head().id;
        self.judge.ordered(&rollout, starts_in, at);
        let saved = Saved { head: rollout.head().clone(), targets: rollout.targets().collect() };
        self.saved.insert(id, saved);
        self.live.insert(id, rollout);
    }

    /// Everything that was only in memory is lost.
    pub(super) fn crash(&mut self, at: Moment) {
        self.reached.count(Trial::ControlCrashed);
        self.load(at);
    }

    pub(super) fn back_up(&mut self) {
        let (saved, orders) = (self.saved.clone(), self.orders.clone());
        self.backup = Some(Backup { saved, orders, judge: self.judge.clone() });
    }

    /// Everything since the backup is lost. Returns whether there was a backup.
    pub(super) fn restore(&mut self, at: Moment) -> bool {
        let Some(backup) = self.backup.take() else { return false };
        self.reached.count(Trial::Restored);
        self.trace(|| "restored from a backup".into());
        (self.saved, self.orders, self.judge) = (backup.saved, backup.orders, backup.judge);
        self.load(at);
        true
    }

    /// How long it takes until every live agent has reported.
    pub(super) fn patience(&self) -> SignedDuration {
        Presence { last_seen: None, sync_seconds: self.sync_seconds }.patience()
    }

    /// Starts from the stored state; no agent has reported yet.
    fn load(&mut self, at: Moment) {
        let patience = self.patience();
        self.judge.deaf(at, patience);
        self.live = self
            .saved
            .iter()
            .map(|(id, saved)| {
                let targets = saved.targets.iter().copied();
                let mut rollout = Rollout::restore(saved.head.clone(), targets);
                rollout.was_deaf(at.wall, patience);
                (*id, rollout)
            })
            .collect();
    }

    pub(super) fn rollouts(&self) -> impl Iterator<Item = &Rollout> {
        self.live.values()
    }

    /// Returns a rollout with an order that no agent is known to have begun.
    pub(super) fn just_ordered(&self) -> Option<BatchId> {
        let ordered = |(_, target): (ServerId, Target)| matches!(target, Target::Busy(busy) if busy.stage == Stage::Dispatched);
        let found = self.live.iter().find(|(_, rollout)| rollout.targets().any(ordered));
        found.map(|(of, _)| *of)
    }

    /// The clock was set just now, and nothing has happened since.
    pub(super) fn clock_was_set(&mut self, by: SignedDuration, at: Moment) {
        let since = at.wall + SignedDuration::from_nanos(1);
        for of in self.live.keys().copied().collect::<Vec<_>>() {
            self.change(of, Change::ClockSet(ClockSet { by, since, now: at.wall }), at);
        }
    }

    pub(super) fn change(&mut self, of: BatchId, change: Change, at: Moment) -> bool {
        let Some(rollout) = self.live.get_mut(&of) else { return false };
        let before = rollout.head().phase;
        if rollout.change(change, at.wall).is_err() {
            return false;
        }
        match (before, change) {
            (Phase::Halted(_), Change::Resume) => self.reached.count(Trial::Resumed),
            (_, Change::Pause) => self.reached.count(Trial::Paused),
            (_, Change::Cancel) => self.reached.count(Trial::Canceled),
            (_, Change::Halt(_)) => self.reached.count(Trial::Halted),
            (_, Change::CanaryUnchanged) => self.reached.count(Trial::CanaryUnchanged),
            _ => {}
        }
        self.judge.changed(of, change, rollout.head().phase, at);
        self.trace(|| format!("{} {of} {change:?}", at.wall));
        self.save_all(of);
        true
    }

    /// Processes a message of an agent. Returns the results that are now stored.
    pub(super) fn hears(
        &mut self,
        server: ServerId,
        words: &[(OrderId, Event)],
        at_work: bool,
        at: Moment,
    ) -> Vec<OrderId> {
        let heard = Presence { last_seen: Some(at.wall), sync_seconds: self.sync_seconds };
        self.presence.insert(server, heard);
        if at_work {
            self.at_work.insert(server);
        } else {
            self.at_work.remove(&server);
        }
        let mut acks = Vec::new();
        for (id, event) in words {
            // Nothing more can come of an order that was dropped.
            if self.order_of(id.of, server) == *id {
                self.happens(id.of, server, *event, at);
            }
            if matches!(event, Event::Reported(_)) {
                acks.push(*id);
            }
        }
        acks
    }

    /// The current or next order of a server.
    pub(super) fn order_of(&self, of: BatchId, server: ServerId) -> OrderId {
        OrderId { of, number: self.orders.get(&(of, server)).copied().unwrap_or(0) }
    }

    pub(super) fn remove(&mut self, server: ServerId, at: Moment) {
        for of in self.live.keys().copied().collect::<Vec<_>>() {
            if self.live[&of].target(server).is_some() {
                self.happens(of, server, Event::ServerRemoved, at);
            }
        }
    }

    /// Returns the message for an agent: orders that it has not begun, orders that it should drop,
    /// and orders in progress that it did not mention. `mentioned`: `None` if the agent has not
    /// sent a sync.
    pub(super) fn says(&self, server: ServerId, mentioned: Option<&[OrderId]>) -> Message {
        let mut message = Message::default();
        for (of, rollout) in &self.live {
            let Some(Target::Busy(busy)) = rollout.target(server) else { continue };
            let id = self.order_of(*of, server);
            match rollout.head().phase {
                _ if busy.stage != Stage::Dispatched => {
                    if mentioned.is_some_and(|mentioned| !mentioned.contains(&id)) {
                        message.unreported.push(id);
                    }
                }
                Phase::Canceling | Phase::Paused | Phase::Halted(_) => message.withdrawn.push(id),
                _ => message.orders.push(Order { id, expires: busy.by }),
            }
        }
        message
    }

    /// Carries out plans until there is nothing to do. Returns the servers with new orders and the
    /// earliest time to plan again.
    pub(super) fn settle(&mut self, at: Moment) -> (Vec<ServerId>, Option<Timestamp>) {
        let mut offered = Vec::new();
        let ids: Vec<_> = self.live.keys().copied().collect();
        let mut wakes = BTreeMap::new();
        // A server that one rollout has finished with may be the one that another waits for.
        loop {
            let mut quiet = true;
            for of in &ids {
                let ended = self.live[of].head().phase.is_ended();
                let (wake_at, acted) = self.settle_one(*of, at, &mut offered);
                // A rollout that had already ended, and of which nothing new was reported, was
                // checked before.
                if acted || !ended || self.touched.remove(of) {
                    wakes.insert(*of, wake_at);
                }
                quiet &= !acted;
            }
            if quiet || !self.broken.is_empty() {
                break;
            }
        }
        for (of, wake_at) in &wakes {
            let able = |server| able(&self.presence, &self.at_work, server, at.wall);
            self.judge.settled(&self.live[of], *wake_at, at, &able);
            if self.reached.times(Trial::Restored) == 0 {
                self.broken.extend(lint_settled(&self.live[of], at.wall));
            }
        }
        self.broken.append(&mut self.judge.broken);
        (offered, wakes.into_values().flatten().min())
    }

    fn settle_one(
        &mut self,
        of: BatchId,
        at: Moment,
        offered: &mut Vec<ServerId>,
    ) -> (Option<Timestamp>, bool) {
        for round in 0..1_000 {
            if self.live[&of].targets().any(|(_, target)| target == Target::Waiting) {
                self.notice(of, at.wall);
            }
            let next = plan(&self.live[&of], at.wall);
            if next.is_idle() {
                return (next.wake_at, round > 0);
            }
            self.carry_out(of, &next, at, offered);
        }
        self.broken.push(format!("{of} never becomes idle: {:?}", plan(&self.live[&of], at.wall)));
        (None, false)
    }

    fn carry_out(&mut self, of: BatchId, next: &Plan, at: Moment, offered: &mut Vec<ServerId>) {
        if let Some(change) = next.change
            && !self.change(of, change, at)
        {
            self.broken.push(format!("the planner planned an invalid change: {change:?}"));
        }
        for (server, event) in &next.moves {
            if *event == Event::Offered {
                self.starts += 1;
                offered.push(*server);
            }
            self.happens(of, *server, *event, at);
        }
        // After a restore from a backup, a forgotten task may count as a canary beyond those that
        // were started as canaries. From then on only the oracle, which sees each start, checks the
        // rollout.
        if self.reached.times(Trial::Restored) == 0 {
            self.broken.extend(lint(&self.live[&of]));
        }
    }

    fn happens(&mut self, of: BatchId, server: ServerId, event: Event, at: Moment) {
        let Some(rollout) = self.live.get_mut(&of) else { return };
        let before = rollout.target(server);
        match rollout.happens(server, event, at.wall) {
            Err(refused) => self.broken.push(format!("{refused}")),
            Ok(after) => {
                let able = |server| able(&self.presence, &self.at_work, server, at.wall);
                self.judge.happened(of, server, event, at, &able);
                let given_back = matches!(before, Some(Target::Busy(_)));
                if given_back && after == Target::Waiting {
                    self.given_back += 1;
                    self.orders.insert((of, server), self.given_back);
                    self.reached.count(Trial::GivenBack);
                }
                if before != Some(after) {
                    self.moved(of, before, event, at);
                    self.trace(|| format!("{} {of} {server} {event:?}", at.wall));
                }
                self.broken.extend(changed_an_end(before, after));
                self.save_target(of, server, after);
                self.save_head(of);
            }
        }
    }

    fn moved(&mut self, of: BatchId, before: Option<Target>, event: Event, at: Moment) {
        self.touched.insert(of);
        match event {
            Event::DeadlinePassed => {
                self.last_guess.insert(of, at.really);
                self.reached.count(Trial::GivenUp);
            }
            Event::WindowClosed => self.reached.count(Trial::Expired),
            Event::ServerRemoved => self.reached.count(Trial::Removed),
            Event::Reported(Verdict::Withdrawn) => self.reached.count(Trial::Withdrawn),
            Event::Reported(Verdict::Failed(FailureCode::OrderLost)) => {
                self.reached.count(Trial::OrderLost);
            }
            Event::Reported(_) if before.is_some_and(is_a_guess) => {
                self.reached.count(Trial::Corrected);
            }
            _ => {}
        }
    }

    fn notice(&mut self, of: BatchId, wall: Timestamp) {
        let busy: BTreeMap<ServerId, BatchId> = self
            .live
            .iter()
            .filter(|(other, _)| **other != of)
            .flat_map(|(other, rollout)| rollout.targets().map(move |target| (*other, target)))
            .filter(|(_, (_, target))| matches!(target, Target::Busy(_)))
            .map(|(other, (server, _))| (server, other))
            .collect();
        let rollout = self.live.get_mut(&of).expect("the rollout exists");
        for (server, _) in rollout.targets().collect::<Vec<_>>() {
            let condition = Condition {
                online: online(self.presence.get(&server), wall),
                busy_in: busy.get(&server).copied(),
                at_work: self.at_work.contains(&server),
            };
            let waits = rollout.target(server) == Some(Target::Waiting);
            if waits && condition.online && condition.busy_in.is_some() {
                self.contested.insert((of, server));
            } else if waits && condition.online && condition.at_work {
                self.reached.count(Trial::LeftToWork);
            }
            rollout.notice(server, condition);
        }
    }

    pub(super) fn trace(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(line());
        }
    }

    fn save_head(&mut self, of: BatchId) {
        let head = self.live[&of].head().clone();
        self.saved.get_mut(&of).expect("created").head = head;
    }

    fn save_target(&mut self, of: BatchId, server: ServerId, target: Target) {
        let targets = &mut self.saved.get_mut(&of).expect("created").targets;
        if let Some(saved) = targets.iter_mut().find(|(id, _)| *id == server) {
            saved.1 = target;
        }
    }

    fn save_all(&mut self, of: BatchId) {
        self.save_head(of);
        let targets = self.live[&of].targets().collect();
        self.saved.get_mut(&of).expect("created").targets = targets;
    }
}

/// Whether a server is online and not busy, as far as the control plane knows.
fn able(
    presence: &BTreeMap<ServerId, Presence>,
    at_work: &BTreeSet<ServerId>,
    server: ServerId,
    wall: Timestamp,
) -> bool {
    online(presence.get(&server), wall) && !at_work.contains(&server)
}

fn online(presence: Option<&Presence>, wall: Timestamp) -> bool {
    presence.is_some_and(|presence| presence.is_online(wall))
}

/// A final state never changes, except that a report replaces a timeout.
fn changed_an_end(before: Option<Target>, after: Target) -> Option<String> {
    match before {
        Some(before @ Target::Done(_)) if before != after && !is_a_guess(before) => {
            Some(format!("{before:?} became {after:?}"))
        }
        _ => None,
    }
}

fn is_a_guess(target: Target) -> bool {
    matches!(target, Target::Done(done) if matches!(done.outcome, Outcome::TimedOut(_)))
}

/// Whether the outcome that the control plane records contradicts what really happened on the
/// server.
pub(super) fn contradicts(outcome: Outcome, verdict: Option<Verdict>, acted: bool) -> bool {
    match outcome {
        Outcome::Succeeded => verdict != Some(Verdict::Succeeded),
        Outcome::NoChange => verdict != Some(Verdict::NoChange) || acted,
        Outcome::Failed(FailureCode::OrderExpired) => acted,
        Outcome::Failed(code) => verdict != Some(Verdict::Failed(code)),
        // A timeout is valid only while the agent has not reported a result.
        Outcome::TimedOut(_) => verdict.is_some(),
        Outcome::Skipped(_) => acted,
        Outcome::Canceled(crate::rollout::Cancel::Person) => acted,
        Outcome::Canceled(crate::rollout::Cancel::ServerRemoved) => false,
    }
}
