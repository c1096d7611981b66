//! The control plane of the simulation: the shell that the planner needs, as small as it can be.
//!
//! What the real one has in its database is here in `saved` and outlives a crash; `live` is what the
//! real one has in memory and is made anew from it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use vocab::{BatchId, FailureCode, ServerId, Stage};

use super::agent::Order;
use crate::rollout::lint::{lint, lint_settled};
use crate::rollout::{
    Change, Condition, Event, Head, Outcome, Phase, Plan, Rollout, Target, Verdict, plan,
};
use crate::server::Presence;

/// A start, for the checks that need history.
#[derive(Debug, Clone, Copy)]
struct Start {
    really_at: Timestamp,
    clock_jumps: u32,
}

/// A rollout as it is stored.
struct Saved {
    head: Head,
    targets: Vec<(ServerId, Target)>,
}

pub(super) struct Control {
    saved: BTreeMap<BatchId, Saved>,
    live: BTreeMap<BatchId, Rollout>,
    presence: BTreeMap<ServerId, Presence>,
    sync_seconds: u32,
    last_start: BTreeMap<BatchId, Start>,
    /// When it really was that a rollout last gave a server up for lost.
    pub(super) last_guess: BTreeMap<BatchId, Timestamp>,
    /// How often the clock was set forward so far; then a stagger may seem over too soon.
    pub(super) clock_jumps: u32,
    pub(super) broken: Vec<String>,
    pub(super) starts: u64,
    pub(super) corrected: u64,
    /// Every line that a failing seed prints. Written only when such a seed is run once more.
    pub(super) trace: Option<Vec<String>>,
}

impl Control {
    pub(super) fn new(sync_seconds: u32, traced: bool) -> Control {
        Control {
            saved: BTreeMap::new(),
            live: BTreeMap::new(),
            presence: BTreeMap::new(),
            sync_seconds,
            last_start: BTreeMap::new(),
            last_guess: BTreeMap::new(),
            clock_jumps: 0,
            broken: Vec::new(),
            starts: 0,
            corrected: 0,
            trace: traced.then(Vec::new),
        }
    }

    pub(super) fn create(&mut self, rollout: Rollout) {
        let id = rollout.head().id;
        let saved = Saved { head: rollout.head().clone(), targets: rollout.targets().collect() };
        self.saved.insert(id, saved);
        self.live.insert(id, rollout);
    }

    /// Everything that was only in memory is gone.
    pub(super) fn crash(&mut self) {
        self.live = self
            .saved
            .iter()
            .map(|(id, saved)| {
                (*id, Rollout::restore(saved.head.clone(), saved.targets.iter().copied()))
            })
            .collect();
    }

    pub(super) fn rollouts(&self) -> impl Iterator<Item = &Rollout> {
        self.live.values()
    }

    pub(super) fn change(&mut self, of: BatchId, change: Change, wall: Timestamp) {
        if let Some(rollout) = self.live.get_mut(&of)
            && rollout.change(change, wall).is_ok()
        {
            self.trace(|| format!("{wall} {of} {change:?}"));
            self.save_head(of);
        }
    }

    /// A message from an agent. Answers with the results that are now safe here.
    pub(super) fn hears(
        &mut self,
        server: ServerId,
        words: &[(BatchId, Event)],
        wall: Timestamp,
    ) -> Vec<BatchId> {
        self.presence
            .insert(server, Presence { last_seen: Some(wall), sync_seconds: self.sync_seconds });
        let mut acks = Vec::new();
        for (of, event) in words {
            self.happens(*of, server, *event, wall, wall);
            if matches!(event, Event::Reported(_)) {
                acks.push(*of);
            }
        }
        acks
    }

    pub(super) fn remove(&mut self, server: ServerId, wall: Timestamp) {
        for of in self.live.keys().copied().collect::<Vec<_>>() {
            if self.live[&of].target(server).is_some() {
                self.happens(of, server, Event::ServerRemoved, wall, wall);
            }
        }
    }

    /// What an agent must be told: orders that it has not begun, and those that it should drop.
    pub(super) fn says(&self, server: ServerId) -> (Vec<Order>, Vec<BatchId>) {
        let (mut orders, mut withdrawn) = (Vec::new(), Vec::new());
        for (of, rollout) in &self.live {
            if let Some(Target::Busy(busy)) = rollout.target(server)
                && busy.stage == Stage::Dispatched
            {
                match rollout.head().phase {
                    Phase::Canceling => withdrawn.push(*of),
                    _ => orders.push(Order { of: *of, expires: busy.by }),
                }
            }
        }
        (orders, withdrawn)
    }

    /// Carries out every plan until there is nothing to do. Answers with the servers that have new
    /// orders and the earliest time at which to look again.
    pub(super) fn settle(
        &mut self,
        wall: Timestamp,
        really: Timestamp,
    ) -> (Vec<ServerId>, Option<Timestamp>) {
        let mut offered = Vec::new();
        let mut wake_at: Option<Timestamp> = None;
        for of in self.live.keys().copied().collect::<Vec<_>>() {
            let mut rounds = 0;
            let last = loop {
                self.notice(of, wall);
                let next = plan(&self.live[&of], wall);
                if next.is_idle() {
                    break next;
                }
                rounds += 1;
                if rounds > 1_000 {
                    self.broken.push(format!("{of} never settles: {next:?}"));
                    break Plan::default();
                }
                self.carry_out(of, &next, wall, really, &mut offered);
            };
            self.broken.extend(lint_settled(&self.live[&of], wall));
            wake_at = wake_at.into_iter().chain(last.wake_at).min();
        }
        (offered, wake_at)
    }

    fn carry_out(
        &mut self,
        of: BatchId,
        next: &Plan,
        wall: Timestamp,
        really: Timestamp,
        offered: &mut Vec<ServerId>,
    ) {
        if let Some(change) = next.change {
            self.trace(|| format!("{wall} {of} {change:?}"));
            if let Err(refused) = self.live.get_mut(&of).expect("planned").change(change, wall) {
                self.broken.push(format!("the planner planned what is refused: {refused}"));
            }
            self.save_all(of);
        }
        for (server, event) in &next.moves {
            if *event == Event::Offered {
                self.check_start(of, *server, wall, really);
                offered.push(*server);
            }
            self.happens(of, *server, *event, wall, really);
        }
        self.broken.extend(lint(&self.live[&of]));
    }

    fn happens(
        &mut self,
        of: BatchId,
        server: ServerId,
        event: Event,
        wall: Timestamp,
        really: Timestamp,
    ) {
        let Some(rollout) = self.live.get_mut(&of) else { return };
        let before = rollout.target(server);
        match rollout.happens(server, event, wall) {
            Err(refused) => self.broken.push(format!("{refused}")),
            Ok(after) => {
                if before != Some(after) {
                    self.trace(|| format!("{wall} {of} {server} {event:?}"));
                }
                self.broken.extend(changed_an_end(before, after));
                self.corrected += u64::from(before.is_some_and(is_a_guess) && !is_a_guess(after));
                if event == Event::DeadlinePassed {
                    self.last_guess.insert(of, really);
                }
                self.save_target(of, server, after);
                self.save_head(of);
            }
        }
    }

    /// What must hold when a server starts, told from history and not from the planner's own counts.
    fn check_start(&mut self, of: BatchId, server: ServerId, wall: Timestamp, really: Timestamp) {
        self.starts += 1;
        let rollout = &self.live[&of];
        let head = rollout.head();
        let mut must = |holds: bool, what: &str| {
            if !holds {
                self.broken.push(format!("{server} of {of} started {what}"));
            }
        };
        must(head.phase == Phase::Running, "while the rollout was not running");
        must(wall < head.start_by, "after the window had closed");
        must(head.starts_at <= wall, "before the start");
        let elsewhere = self
            .live
            .iter()
            .filter(|(other, _)| **other != of)
            .any(|(_, other)| matches!(other.target(server), Some(Target::Busy(_))));
        must(!elsewhere, "while another rollout had it in work");
        must(online(self.presence.get(&server), wall), "while it was offline");
        if let Some(portion) = head.pace.max_failures {
            let failures = rollout.tally().failures().saturating_sub(head.forgiven);
            let allowed = portion.of(rollout.targets().len() as u32).max(1);
            must(failures < allowed, "after too many failures");
        }
        let stagger = SignedDuration::from_mins(i64::from(head.pace.stagger_minutes));
        if let Some(last) = self.last_start.get(&of)
            && last.clock_jumps == self.clock_jumps
        {
            must(really.duration_since(last.really_at) >= stagger, "too soon after the last one");
        }
        let start = Start { really_at: really, clock_jumps: self.clock_jumps };
        self.last_start.insert(of, start);
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
        let rollout = self.live.get_mut(&of).expect("one of ours");
        for (server, _) in rollout.targets().collect::<Vec<_>>() {
            let condition = Condition {
                online: online(self.presence.get(&server), wall),
                busy_in: busy.get(&server).copied(),
            };
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

fn online(presence: Option<&Presence>, wall: Timestamp) -> bool {
    presence.is_some_and(|presence| presence.is_online(wall))
}

/// An end is an end, but for a guess that a fact replaces.
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

/// What the control plane says of a server against what really happened there.
pub(super) fn contradicts(outcome: Outcome, verdict: Option<Verdict>, acted: bool) -> bool {
    match outcome {
        Outcome::Succeeded => verdict != Some(Verdict::Succeeded),
        Outcome::NoChange => verdict != Some(Verdict::NoChange) || acted,
        Outcome::Failed(FailureCode::OrderExpired) => acted,
        Outcome::Failed(code) => verdict != Some(Verdict::Failed(code)),
        // A guess stands only while the agent has not spoken.
        Outcome::TimedOut(_) => verdict.is_some(),
        Outcome::Skipped(_) => acted,
        Outcome::Canceled(crate::rollout::Cancel::Person) => acted,
        Outcome::Canceled(crate::rollout::Cancel::ServerRemoved) => false,
    }
}
