//! The rollout aggregate: an order carried out on a number of servers at a given pace.
//!
//! A batch is a rollout that a user started, a schedule's run is one that the calendar started, and
//! the patch of a single server is one with a single task. `task` is the state machine of one
//! task, `phase` that of the whole rollout, `plan` decides what happens next, and `invariants`
//! checks that a rollout is consistent.
//!
//! A [`Rollout`] updates its counts and queues with every event, so that a step costs what it
//! changes and not what it looks at: a rollout over 100,000 servers is planned again after each
//! report. For the same reason it contains what the planner must know about the servers: see
//! [`Rollout::notice`].

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use vocab::{BatchId, ServerId};

pub mod lint;
mod pace;
mod phase;
mod plan;
#[cfg(test)]
mod scenarios;
mod tally;
mod target;

pub use pace::{Limits, PATIENCE, Pace};
pub use phase::{Change, ClockSet, End, Halt, Phase, Refused};
pub use plan::{Held, MOVES_MAX, Plan, held, held_back, plan};
pub use tally::Tally;
pub use target::{
    Busy, Cancel, Done, Event, IllegalMove, Outcome, Skip, Target, Verdict, limit, limit_in_all,
};
use target::{earlier, later, limit_of_any};

/// Setting the clock back by less than this counts as a correction, not as a jump: waiting a minute
/// longer is better than moving every deadline for nothing.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_mins(1);

/// The state of a rollout as a whole; its tasks are stored separately.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub id: BatchId,
    pub phase: Phase,
    pub pace: Pace,
    /// Start time, in the future or in the past.
    pub starts_at: Timestamp,
    /// No server may start after this time.
    pub start_by: Timestamp,
    /// When the last server was started.
    pub last_start: Option<Timestamp>,
    /// Number of failures that a user has reviewed and accepted by resuming.
    pub forgiven: u32,
    /// A user resumed the rollout although the canary had not succeeded.
    pub canary_waived: bool,
    /// How many tasks, from the first, are expected to install something; `None`: all of them. They
    /// are the canary, because a server with nothing to install proves nothing.
    #[serde(default)]
    pub expected: Option<u32>,
    /// The canary ended without a change on any server, and the rest started without its proof.
    #[serde(default)]
    pub canary_unchanged: bool,
    /// The latest time at which anything happened to it.
    pub clock: Timestamp,
}

/// What the planner must know about a server in addition to its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Condition {
    pub online: bool,
    /// The other rollout that is working on it.
    pub busy_in: Option<BatchId>,
    /// The agent reports that it is working. It may be working on an order that was given up as
    /// lost.
    pub at_work: bool,
}

impl Condition {
    /// Online and not busy.
    pub const FREE: Condition = Condition { online: true, busy_in: None, at_work: false };

    fn is_free(self) -> bool {
        self.online && self.busy_in.is_none() && !self.at_work
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Slot {
    server: ServerId,
    target: Target,
    condition: Condition,
}

/// A rollout with all its tasks. Restored from storage and updated by [`Rollout::happens`],
/// [`Rollout::change`] and [`Rollout::notice`]; two rollouts with the same input are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollout {
    head: Head,
    limits: Limits,
    /// In the order in which they start. A position is an index into this list.
    slots: Vec<Slot>,
    /// Sorted by server.
    places: Vec<(ServerId, u32)>,
    /// Positions of waiting tasks that could start.
    ready: BTreeSet<u32>,
    /// Positions of waiting tasks that cannot start: the server is offline or busy elsewhere.
    away: BTreeSet<u32>,
    /// Tasks in progress, earliest deadline first.
    deadlines: BTreeSet<(Timestamp, u32)>,
    tally: Tally,
    deaf: Option<Deaf>,
}

/// A period in which no agent could report, and the time that agents get to make up for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Deaf {
    /// When agents could report again.
    until: Timestamp,
    /// How long it then takes until every agent with something to report has reported it.
    patience: SignedDuration,
}

impl Deaf {
    fn is_made_up_for_at(self) -> Timestamp {
        later(self.until, self.patience)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRetry {
    #[error("the rollout has not ended")]
    NotEnded,
    #[error("no server failed")]
    NothingFailed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    #[error("server {0} is not part of this rollout")]
    Stranger(ServerId),
    /// The event is invalid in the task's state.
    #[error(transparent)]
    Illegal(#[from] IllegalMove),
}

impl Rollout {
    /// Creates a rollout over `servers` in this order, without duplicates, that starts at
    /// `starts_at`.
    pub fn new(
        id: BatchId,
        pace: Pace,
        starts_at: Timestamp,
        servers: impl IntoIterator<Item = ServerId>,
        now: Timestamp,
    ) -> Rollout {
        let mut known = BTreeSet::new();
        let targets: Vec<_> = servers
            .into_iter()
            .filter(|server| known.insert(*server))
            .map(|server| (server, Target::Waiting))
            .collect();
        let start_by = pace.start_by(starts_at, targets.len() as u32);
        let head = Head {
            id,
            phase: Phase::Scheduled,
            pace,
            starts_at,
            start_by,
            last_start: None,
            forgiven: 0,
            canary_waived: false,
            expected: None,
            canary_unchanged: false,
            clock: now,
        };
        Rollout::restore(head, targets)
    }

    /// Declares that only the first `count` servers are expected to install something.
    pub fn expecting(mut self, count: u32) -> Rollout {
        self.head.expected = Some(count);
        self
    }

    /// Restores a rollout from its stored `head` and `targets`. Every server counts as free until
    /// [`Rollout::notice`] is called for it.
    pub fn restore(head: Head, targets: impl IntoIterator<Item = (ServerId, Target)>) -> Rollout {
        let slots: Vec<_> = targets
            .into_iter()
            .map(|(server, target)| Slot { server, target, condition: Condition::FREE })
            .collect();
        let numbered = || (0_u32..).zip(&slots);
        let mut places: Vec<_> = numbered().map(|(place, slot)| (slot.server, place)).collect();
        places.sort_unstable();
        let ready = numbered()
            .filter(|(_, slot)| slot.target == Target::Waiting)
            .map(|(place, _)| place)
            .collect();
        let deadlines =
            numbered().filter_map(|(place, slot)| Some((slot.target.deadline()?, place))).collect();
        Rollout {
            limits: head.pace.limits(slots.len() as u32),
            tally: Tally::of(slots.iter().map(|slot| &slot.target)),
            away: BTreeSet::new(),
            deaf: None,
            head,
            places,
            ready,
            deadlines,
            slots,
        }
    }

    /// Creates a new rollout at the same pace, with the failed servers of this ended one.
    pub fn retry(&self, id: BatchId, now: Timestamp) -> Result<Rollout, NoRetry> {
        if !self.head.phase.is_ended() {
            return Err(NoRetry::NotEnded);
        }
        if self.tally.failures() == 0 {
            return Err(NoRetry::NothingFailed);
        }
        let failed = self.slots.iter().filter_map(|slot| match slot.target {
            Target::Done(done) if done.outcome.is_failure() => Some(slot.server),
            _ => None,
        });
        Ok(Rollout::new(id, self.head.pace.clone(), now, failed, now))
    }

    /// Applies an event to one task. Returns the new state of the task.
    pub fn happens(
        &mut self,
        server: ServerId,
        event: Event,
        now: Timestamp,
    ) -> Result<Target, NotTaken> {
        let place = self.place(server).ok_or(NotTaken::Stranger(server))?;
        let event = event.in_phase(self.head.phase);
        let next = self.slots[place as usize].target.apply(event, now)?;
        if event == Event::Offered {
            self.head.last_start = Some(now);
        }
        self.head.clock = self.head.clock.max(now);
        self.put(place, next);
        Ok(next)
    }

    /// Applies a change to the whole rollout.
    pub fn change(&mut self, change: Change, now: Timestamp) -> Result<(), Refused> {
        let before = self.head.phase;
        self.head.phase = before.apply(change, self.head.starts_at <= now)?;
        if let (Phase::Halted(_), Change::Resume) = (before, change) {
            // If late reports have corrected every failure, nothing is waived.
            let failed = self.tally.failures() > self.head.forgiven;
            self.head.forgiven = self.tally.failures();
            self.head.canary_waived |= failed && before == Phase::Halted(Halt::CanaryFailed);
        }
        match change {
            Change::ClockWentBack { .. } => self.bring_near(now),
            Change::ClockSet(set) => self.set_clock(set),
            Change::CanaryUnchanged => self.head.canary_unchanged = true,
            _ => {}
        }
        self.head.clock = match change {
            Change::ClockWentBack { .. } | Change::ClockSet(_) => now,
            _ => self.head.clock.max(now),
        };
        Ok(())
    }

    /// Updates the condition of a server. Servers that are not part of this rollout are ignored.
    pub fn notice(&mut self, server: ServerId, condition: Condition) {
        if let Some(place) = self.place(server) {
            self.slots[place as usize].condition = condition;
            self.put(place, self.slots[place as usize].target);
        }
    }

    /// Records that the leader could receive reports only since `since`: the service or its
    /// database was down. A deadline that passed in the meantime is not the agents' fault, so no
    /// deadline counts until they have had `patience` to report. Windows follow the calendar and
    /// close as they would have.
    pub fn was_deaf(&mut self, since: Timestamp, patience: SignedDuration) {
        self.deaf = Some(Deaf { until: since, patience });
    }

    /// Returns the positions of tasks whose deadline has passed.
    fn overdue(&self, now: Timestamp) -> impl Iterator<Item = &u32> {
        let heard = self.deaf.is_none_or(|deaf| deaf.is_made_up_for_at() <= now);
        let late = self.deadlines.iter().take_while(move |(by, _)| heard && *by <= now);
        late.map(|(_, place)| place)
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        let (by, _) = self.deadlines.first()?;
        Some(self.deaf.map_or(*by, |deaf| deaf.is_made_up_for_at().max(*by)))
    }

    /// Sets a task to its stored state, written by this process or another. Servers that are not
    /// part of this rollout are ignored.
    pub fn learn(&mut self, server: ServerId, target: Target) {
        if let Some(place) = self.place(server) {
            self.put(place, target);
        }
    }

    /// Sets the head to its stored state, written by this process or another.
    pub fn learn_head(&mut self, head: Head) {
        self.head = head;
    }

    /// Returns by how much the clock was set back, if it was.
    fn clock_went_back(&self, now: Timestamp) -> Option<SignedDuration> {
        // Deadlines show it too: none is further away than the longest limit.
        let furthest = self.deadlines.last().map_or(Timestamp::MIN, |(by, _)| *by);
        let latest = self.head.clock.max(earlier(furthest, limit_of_any()));
        let back = latest.duration_since(now);
        (back > CLOCK_TOLERANCE).then_some(back)
    }

    /// Shortens every wait that would be too long by the current clock. A wait that was correct
    /// stays correct, however often two clocks alternate; shifting every time back by the
    /// difference would shorten the waits with each alternation. A start time in the future belongs
    /// to the calendar and stays.
    fn bring_near(&mut self, now: Timestamp) {
        let head = &mut self.head;
        if head.starts_at <= head.clock {
            let window = head.start_by.duration_since(head.starts_at);
            head.starts_at = head.starts_at.min(now);
            head.start_by = head.start_by.min(later(now, window));
        }
        head.last_start = head.last_start.map(|last| last.min(now));
        self.deaf = self.deaf.map(|deaf| Deaf { until: deaf.until.min(now), ..deaf });
        for (_, place) in self.deadlines.clone() {
            let near = self.slots[place as usize].target.brought_near(now);
            self.put(place, near);
        }
    }

    /// Moves every time that was taken from the clock before it was set.
    fn set_clock(&mut self, set: ClockSet) {
        let head = &mut self.head;
        if head.starts_at <= head.clock {
            let window = head.start_by.duration_since(head.starts_at);
            head.starts_at = set.moved(head.starts_at);
            head.start_by = later(head.starts_at, window);
        }
        head.last_start = head.last_start.map(|last| set.moved(last));
        self.deaf = self.deaf.map(|deaf| Deaf { until: set.moved(deaf.until), ..deaf });
        for (_, place) in self.deadlines.clone() {
            let moved = self.slots[place as usize].target.by_clock(set);
            self.put(place, moved);
        }
    }

    /// The only place that stores the state of a task, so that counts and queues stay consistent.
    fn put(&mut self, place: u32, next: Target) {
        let slot = &mut self.slots[place as usize];
        let before = std::mem::replace(&mut slot.target, next);
        self.tally.moved(&before, &next);
        // A timeout that proved wrong leaves nothing to accept. Which failures were accepted is not
        // stored: subtracting one for each errs on the side of halting.
        if before.is_failure() && !next.is_failure() {
            self.head.forgiven = self.head.forgiven.saturating_sub(1);
        }
        if let Some(by) = before.deadline() {
            self.deadlines.remove(&(by, place));
        }
        if let Some(by) = next.deadline() {
            self.deadlines.insert((by, place));
        }
        let waits = next == Target::Waiting;
        let free = slot.condition.is_free();
        keep(&mut self.ready, place, waits && free);
        keep(&mut self.away, place, waits && !free);
    }

    fn place(&self, server: ServerId) -> Option<u32> {
        let found = self.places.binary_search_by_key(&server, |(id, _)| *id).ok()?;
        Some(self.places[found].1)
    }

    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The pace, with percentages resolved to numbers of servers.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Number of tasks in each state.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    pub fn target(&self, server: ServerId) -> Option<Target> {
        Some(self.slots[self.place(server)? as usize].target)
    }

    /// Every server and the state of its task, in start order.
    pub fn targets(&self) -> impl ExactSizeIterator<Item = (ServerId, Target)> {
        self.slots.iter().map(|slot| (slot.server, slot.target))
    }
}

impl Target {
    fn is_failure(self) -> bool {
        matches!(self, Target::Done(done) if done.outcome.is_failure())
    }

    fn deadline(self) -> Option<Timestamp> {
        match self {
            Target::Busy(busy) => Some(busy.by),
            Target::Waiting | Target::Done(_) => None,
        }
    }
}

fn keep(set: &mut BTreeSet<u32>, place: u32, member: bool) {
    if member {
        set.insert(place);
    } else {
        set.remove(&place);
    }
}
