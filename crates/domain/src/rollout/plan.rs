//! The planner: decides what a rollout does next.
//!
//! A pure function of its arguments: no clock, no database, no randomness. `task` and `phase`
//! define the effect of each step. The caller saves and applies the steps of a plan and plans again
//! until nothing is left; then it waits for new events or for `wake_at`.
//!
//! A plan contains one kind of event, because each kind affects the next decision: timeouts must
//! count as failures before the planner decides whether another server may start.

use jiff::Timestamp;
use vocab::{BatchId, ServerId};

use super::pace::Limits;
use super::phase::{Change, End, Halt, Phase};
use super::target::{Event, Target, later};
use super::{Head, Rollout, Tally};

/// Maximum number of tasks that one plan moves. It bounds a transaction, not the rollout: the rest
/// follows immediately with the next plan.
pub const MOVES_MAX: usize = 1_000;

/// What to do now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The change of the whole rollout.
    pub change: Option<Change>,
    /// The events of individual tasks.
    pub moves: Vec<(ServerId, Event)>,
    /// Why no available server starts; [`held`] answers this for a single server.
    pub held: Option<Held>,
    /// When to plan again if nothing happens before. `None`: the rollout is over.
    pub wake_at: Option<Timestamp>,
}

/// Why a waiting server does not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// The start time has not come.
    Scheduled {
        at: Timestamp,
    },
    /// A user paused the rollout.
    Paused,
    /// The rollout halted.
    Halted(Halt),
    Offline,
    /// Another rollout is working on the server.
    Elsewhere(BatchId),
    /// The agent is working on an order that was given up as lost.
    AtWork,
    /// Not all canaries have succeeded.
    Canary,
    /// The maximum number of tasks is in progress.
    Parallel,
    /// The previous server started too recently.
    Stagger {
        /// When the next server may start.
        until: Timestamp,
    },
}

impl Plan {
    /// Whether there is nothing to do but wait.
    pub fn is_idle(&self) -> bool {
        self.change.is_none() && self.moves.is_empty()
    }
}

/// Decides what happens next.
pub fn plan(rollout: &Rollout, now: Timestamp) -> Plan {
    let head = &rollout.head;
    if let Some(by) = rollout.clock_went_back(now) {
        return change(Change::ClockWentBack { by }, now);
    }
    if rollout.tally.unfinished() == 0 {
        let end = end(&rollout.tally);
        return match head.phase {
            Phase::Ended(known) if known == end => Plan::default(),
            _ => change(Change::End(end), now),
        };
    }
    if let Some(plan) = moves(rollout, rollout.overdue(now), Event::DeadlinePassed, now) {
        return plan;
    }
    let waiting = rollout.ready.iter().chain(&rollout.away);
    let called_off = match head.phase {
        Phase::Canceling => Some(Event::Canceled),
        _ if head.start_by <= now => Some(Event::WindowClosed),
        _ => None,
    };
    if let Some(plan) = called_off.and_then(|event| moves(rollout, waiting, event, now)) {
        return plan;
    }
    match head.phase {
        Phase::Scheduled if head.starts_at <= now => change(Change::Start, now),
        Phase::Running => run(rollout, now),
        Phase::Scheduled | Phase::Paused | Phase::Halted(_) | Phase::Canceling => idle(rollout),
        // A head that was saved without its tasks: they still have to end.
        Phase::Ended(_) => idle(rollout),
    }
}

/// Returns why `server` waits, if it does.
pub fn held(rollout: &Rollout, server: ServerId, now: Timestamp) -> Option<Held> {
    let place = rollout.place(server)?;
    let slot = &rollout.slots[place as usize];
    if slot.target != Target::Waiting {
        return None;
    }
    let (head, limits, tally) = (&rollout.head, &rollout.limits, &rollout.tally);
    by_phase(head)
        .or_else(|| (!slot.condition.online).then_some(Held::Offline))
        .or_else(|| slot.condition.busy_in.map(Held::Elsewhere))
        .or_else(|| slot.condition.at_work.then_some(Held::AtWork))
        .or_else(|| held_by_pace(head, limits, tally, place, now))
}

/// Returns why an available server at `position` in the start order waits, from the head and the
/// counts alone. The cost is the same for ten servers and for 100,000.
pub fn held_back(head: &Head, tally: &Tally, place: u32, now: Timestamp) -> Option<Held> {
    let limits = head.pace.limits(tally.total());
    by_phase(head).or_else(|| held_by_pace(head, &limits, tally, place, now))
}

fn held_by_pace(
    head: &Head,
    limits: &Limits,
    tally: &Tally,
    place: u32,
    now: Timestamp,
) -> Option<Held> {
    let room = room(head, limits, tally, now).err();
    let is_expected = head.expected.is_none_or(|expected| place < expected);
    let passed_over = !is_expected && only_replacements_start(head, limits, tally);
    room.or_else(|| passed_over.then_some(Held::Canary))
}

fn run(rollout: &Rollout, now: Timestamp) -> Plan {
    let (head, limits, tally) = (&rollout.head, &rollout.limits, &rollout.tally);
    if let Some(why) = must_halt(rollout) {
        return change(Change::Halt(why), now);
    }
    let replaces = only_replacements_start(head, limits, tally);
    let expected = head.expected.unwrap_or(u32::MAX);
    // No server is left that could replace a canary that had nothing to install.
    let unproven = replaces && rollout.ready.first().is_some_and(|place| *place >= expected);
    if unproven && tally.in_work() == 0 {
        return change(Change::CanaryUnchanged, now);
    }
    match room(head, limits, tally, now) {
        Ok(_) if unproven => idle(rollout).held_by(Held::Canary),
        Ok(room) => {
            // This many servers may start whether they are expected to install something or not;
            // the others are replacements. Servers that are expected to install something come
            // first.
            let any = match canary_is_out(head, limits, tally) {
                true => limits.canary.saturating_sub(tally.good() + tally.in_work()),
                false => u32::MAX,
            };
            let first = (0_u32..).zip(rollout.ready.iter().take(room));
            let first = first.filter(|(nth, place)| *nth < any || **place < expected);
            moves(rollout, first.map(|(_, place)| place), Event::Offered, now)
                .unwrap_or_else(|| idle(rollout))
        }
        Err(held) => idle(rollout).held_by(held),
    }
}

fn must_halt(rollout: &Rollout) -> Option<Halt> {
    let fresh = rollout.tally.failures().saturating_sub(rollout.head.forgiven);
    if fresh > 0 && is_unproven(&rollout.head, &rollout.limits, &rollout.tally) {
        return Some(Halt::CanaryFailed);
    }
    (fresh >= rollout.limits.failures).then_some(Halt::TooManyFailures)
}

/// Whether fewer servers than the canary requires have installed something successfully. A server
/// that had nothing to install proves nothing about the update.
///
/// The first servers to start are the canary, whichever they are: one that is offline or was
/// removed must not keep the rest waiting.
fn is_unproven(head: &Head, limits: &Limits, tally: &Tally) -> bool {
    !head.canary_waived && tally.succeeded < limits.canary
}

/// Whether the rest waits for the canary.
fn canary_is_out(head: &Head, limits: &Limits, tally: &Tally) -> bool {
    is_unproven(head, limits, tally) && !head.canary_unchanged
}

/// Whether the canary is complete except for servers that had nothing to install: only servers that
/// are expected to install something may replace them.
fn only_replacements_start(head: &Head, limits: &Limits, tally: &Tally) -> bool {
    canary_is_out(head, limits, tally) && tally.good() + tally.in_work() >= limits.canary
}

/// Returns how many servers may start now, or what prevents it.
fn room(head: &Head, limits: &Limits, tally: &Tally, now: Timestamp) -> Result<usize, Held> {
    let in_work = tally.in_work();
    let mut room = limits.parallel.saturating_sub(in_work);
    if canary_is_out(head, limits, tally) {
        let canaries = limits.canary.saturating_sub(tally.succeeded + in_work);
        if canaries == 0 {
            return Err(Held::Canary);
        }
        room = room.min(canaries);
    }
    if room == 0 {
        return Err(Held::Parallel);
    }
    if !limits.stagger.is_zero() {
        room = 1;
        let until = head.last_start.map(|last| later(last, limits.stagger));
        if let Some(until) = until.filter(|until| *until > now) {
            return Err(Held::Stagger { until });
        }
    }
    Ok(room as usize)
}

fn by_phase(head: &Head) -> Option<Held> {
    match head.phase {
        Phase::Scheduled => Some(Held::Scheduled { at: head.starts_at }),
        Phase::Paused => Some(Held::Paused),
        Phase::Halted(why) => Some(Held::Halted(why)),
        Phase::Running | Phase::Canceling | Phase::Ended(_) => None,
    }
}

/// Returns the overall result of an ended rollout. A removed server counts neither as a success nor
/// as a failure.
fn end(tally: &Tally) -> End {
    let fell_short = tally.failures() + tally.not_applicable;
    match tally {
        Tally { canceled: 1.., .. } => End::Canceled,
        Tally { expired: 1.., .. } => End::Expired,
        _ if fell_short > 0 && tally.good() > 0 => End::CompletedWithErrors,
        _ if fell_short > 0 => End::Failed,
        Tally { removed: 1.., .. } if tally.good() == 0 => End::Canceled,
        _ => End::Succeeded,
    }
}

fn change(change: Change, now: Timestamp) -> Plan {
    Plan { change: Some(change), wake_at: Some(now), ..Plan::default() }
}

fn moves<'a>(
    rollout: &Rollout,
    places: impl Iterator<Item = &'a u32>,
    event: Event,
    now: Timestamp,
) -> Option<Plan> {
    let moves: Vec<_> = places
        .take(MOVES_MAX)
        .map(|place| (rollout.slots[*place as usize].server, event))
        .collect();
    (!moves.is_empty()).then(|| Plan { moves, wake_at: Some(now), ..Plan::default() })
}

fn idle(rollout: &Rollout) -> Plan {
    let head = &rollout.head;
    let late = rollout.next_deadline();
    let closes = (rollout.tally.waiting > 0).then_some(head.start_by);
    let starts = (head.phase == Phase::Scheduled).then_some(head.starts_at);
    Plan {
        held: by_phase(head),
        wake_at: [late, closes, starts].into_iter().flatten().min(),
        ..Plan::default()
    }
}

impl Plan {
    fn held_by(mut self, held: Held) -> Plan {
        self.held = Some(held);
        if let Held::Stagger { until } = held {
            self.wake_at = self.wake_at.map(|at| at.min(until));
        }
        self
    }
}
