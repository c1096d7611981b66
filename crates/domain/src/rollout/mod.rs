//! The noun that carries the house: an order, taken through a number of servers at a pace.
//!
//! A batch is a rollout that someone typed, a schedule's run is one that the calendar started, and a
//! single server's patch is one with a single target. `target` is one server's way, `phase` the
//! way of the whole, `plan` says what happens next, and `lint` what must hold of any rollout.
//!
//! A [`Rollout`] keeps its counts and queues with every move, so that a step costs what it changes
//! and not what it looks at: a fleet of 100,000 is planned again after each report. What the
//! planner must know of the fleet is part of it for the same reason: see [`Rollout::notice`].

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use vocab::{BatchId, ServerId};

pub mod lint;
mod pace;
mod phase;
mod plan;
#[cfg(test)]
mod stories;
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

/// A clock that is set back by less than this is corrected, not jumping: waiting a minute longer
/// is better than moving every deadline for nothing.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_mins(1);

/// What is true of a rollout as a whole; its targets are beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Which one.
    pub id: BatchId,
    /// Where it stands.
    pub phase: Phase,
    /// How fast it goes.
    pub pace: Pace,
    /// When it starts, or did.
    pub starts_at: Timestamp,
    /// When it is too late for a server to start.
    pub start_by: Timestamp,
    /// When the last server was started.
    pub last_start: Option<Timestamp>,
    /// Failures that a person has looked at and decided to go on in spite of.
    pub forgiven: u32,
    /// A person decided to go on without the canary's success.
    pub canary_waived: bool,
    /// How many targets, from the first, are expected to install something; `None`: all of them. They
    /// are the canary, because a server with nothing to install proves nothing.
    #[serde(default)]
    pub expected: Option<u32>,
    /// The canary ended without a change on any server, and the rest started unproven.
    #[serde(default)]
    pub canary_unchanged: bool,
    /// The latest time at which anything happened to it.
    pub clock: Timestamp,
}

/// What the planner must know of a server besides its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Condition {
    /// Its agent is heard from.
    pub online: bool,
    /// Another rollout has it in work.
    pub busy_in: Option<BatchId>,
    /// Its agent says that it is at work. One that was given up for lost may well be.
    pub at_work: bool,
}

impl Condition {
    /// Online, and nobody else's.
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

/// A rollout with all its targets. Made from what is stored, kept by [`Rollout::happens`],
/// [`Rollout::change`] and [`Rollout::notice`]; two that were told the same are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollout {
    head: Head,
    limits: Limits,
    /// In the order in which their turns come. A place is an index into it.
    slots: Vec<Slot>,
    /// Sorted by server.
    places: Vec<(ServerId, u32)>,
    /// Places of those that wait and could start.
    ready: BTreeSet<u32>,
    /// Places of those that wait and could not: offline, or in work elsewhere.
    away: BTreeSet<u32>,
    /// Those in work, the next to be late first.
    deadlines: BTreeSet<(Timestamp, u32)>,
    tally: Tally,
    deaf: Option<Deaf>,
}

/// A time during which nobody could have been heard, and what it takes to make up for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Deaf {
    /// When it was over.
    until: Timestamp,
    /// How long it then takes until everyone who has something to say has said it.
    patience: SignedDuration,
}

impl Deaf {
    fn is_made_up_for_at(self) -> Timestamp {
        later(self.until, self.patience)
    }
}

/// Nothing to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRetry {
    /// It is still under way.
    #[error("the rollout has not ended")]
    NotEnded,
    /// It has no failed server.
    #[error("no server failed")]
    NothingFailed,
}

/// Something was said of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// The rollout has no such target.
    #[error("server {0} is not part of this rollout")]
    Stranger(ServerId),
    /// It does not fit the target's state.
    #[error(transparent)]
    Illegal(#[from] IllegalMove),
}

impl Rollout {
    /// A rollout over `servers` in this order, each once, that starts at `starts_at`.
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

    /// The rollout that was stored as `head` and `targets`. Every server counts as free until
    /// [`Rollout::notice`] says otherwise.
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

    /// The failed servers of an ended rollout, as a new one at the same pace.
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

    /// Something happens to one target. Answers with where it stands now.
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

    /// Something happens to the whole.
    pub fn change(&mut self, change: Change, now: Timestamp) -> Result<(), Refused> {
        let before = self.head.phase;
        self.head.phase = before.apply(change, self.head.starts_at <= now)?;
        if let (Phase::Halted(_), Change::Resume) = (before, change) {
            // If late reports have put every failure right, nothing is waived.
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

    /// News of a server from outside this rollout. Of a server that is not part of it: no matter.
    pub fn notice(&mut self, server: ServerId, condition: Condition) {
        if let Some(place) = self.place(server) {
            self.slots[place as usize].condition = condition;
            self.put(place, self.slots[place as usize].target);
        }
    }

    /// Whoever leads has listened to agents only since `since`: the service was down, or its database
    /// was. A deadline that passed meanwhile is no agent's fault, so none counts before they had
    /// `patience` to report. Windows are the calendar's and close as they would have.
    pub fn was_deaf(&mut self, since: Timestamp, patience: SignedDuration) {
        self.deaf = Some(Deaf { until: since, patience });
    }

    /// Those whose silence has lasted too long, and when the next one's will have.
    fn overdue(&self, now: Timestamp) -> impl Iterator<Item = &u32> {
        let heard = self.deaf.is_none_or(|deaf| deaf.is_made_up_for_at() <= now);
        let late = self.deadlines.iter().take_while(move |(by, _)| heard && *by <= now);
        late.map(|(_, place)| place)
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        let (by, _) = self.deadlines.first()?;
        Some(self.deaf.map_or(*by, |deaf| deaf.is_made_up_for_at().max(*by)))
    }

    /// What was stored of a target without us, or by us: it stands there now. Of a server that is
    /// not part of it: no matter.
    pub fn learn(&mut self, server: ServerId, target: Target) {
        if let Some(place) = self.place(server) {
            self.put(place, target);
        }
    }

    /// What was stored of the whole without us, or by us.
    pub fn learn_head(&mut self, head: Head) {
        self.head = head;
    }

    /// By how much the clock was set back, if it was.
    fn clock_went_back(&self, now: Timestamp) -> Option<SignedDuration> {
        // Also told from the deadlines: none is further off than the longest limit.
        let furthest = self.deadlines.last().map_or(Timestamp::MIN, |(by, _)| *by);
        let latest = self.head.clock.max(earlier(furthest, limit_of_any()));
        let back = latest.duration_since(now);
        (back > CLOCK_TOLERANCE).then_some(back)
    }

    /// Shortens what would last too long by the clock as it is now. A wait that was right stays
    /// right, however often two clocks take turns; to move every time back by the difference
    /// would bring each nearer with every turn. An hour that has not come is the calendar's and
    /// stays.
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

    /// The one place where a target is stored, so that counts and queues follow.
    fn put(&mut self, place: u32, next: Target) {
        let slot = &mut self.slots[place as usize];
        let before = std::mem::replace(&mut slot.target, next);
        self.tally.moved(&before, &next);
        // A guess that proved wrong leaves nothing to forgive. Which failures were forgiven is not
        // kept: taking one off for each errs towards halting.
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

    /// What is stored of the whole.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The pace, counted out for its servers.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// How many stand where.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Where one server stands.
    pub fn target(&self, server: ServerId) -> Option<Target> {
        Some(self.slots[self.place(server)? as usize].target)
    }

    /// Every server and where it stands, in the order of their turns.
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
