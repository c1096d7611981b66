//! One server's way through a rollout.
//!
//! [`Target::apply`] is the only way a target changes. It is told three kinds of things: what the
//! planner decided, what the agent said, and what a person did. The planner's moves must fit the
//! state, and one that does not is a bug ([`IllegalMove`]). An agent's words always fit: they may
//! be lost, repeated, reordered or days late, so old news leaves the target as it is.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use vocab::{FailureCode, Stage};

use super::phase::{ClockSet, End, Phase};

/// Where one server stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Not started. The rollout's own `start_by` is its deadline.
    Waiting,
    /// An order is out.
    Busy(Busy),
    /// At an end.
    Done(Done),
}

/// A server in work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Busy {
    /// How far the agent says that it is.
    pub stage: Stage,
    /// When the order was given.
    pub started_at: Timestamp,
    /// When this stage has taken too long.
    pub by: Timestamp,
}

/// A server that is through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// How it ended.
    pub outcome: Outcome,
    /// When its order was given, if one was.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub at: Timestamp,
}

/// How a target ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Versions changed as asked.
    Succeeded,
    /// There was nothing to change.
    NoChange,
    /// The agent tried and said why it failed.
    Failed(FailureCode),
    /// The agent fell silent in this stage. Our guess: a report replaces it.
    TimedOut(Stage),
    /// It was never started, or the agent found that nothing it may do applies.
    Skipped(Skip),
    /// It was called off before it started.
    Canceled(Cancel),
}

/// Why a target was passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Skip {
    /// No server may start any more.
    WindowClosed,
    /// The agent: every update that was asked for is held, phased or excluded there.
    NotApplicable,
}

/// Who called a target off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cancel {
    /// A person canceled the rollout.
    Person,
    /// The server was removed from the organization.
    ServerRemoved,
}

/// What happens to a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The planner: its turn has come, the order goes out.
    Offered,
    /// The planner: the stage has taken too long.
    DeadlinePassed,
    /// The planner: it is too late to start.
    WindowClosed,
    /// The planner, because a person canceled the rollout.
    Canceled,
    /// The server left the organization.
    ServerRemoved,
    /// The agent: this far.
    Reached(Stage),
    /// The agent: this is how it ended.
    Reported(Verdict),
    /// The agent dropped an unbegun order of a rollout that was stopped and not called off: see
    /// [`Event::in_phase`].
    GivenBack,
    /// The service was restored from a backup and does not know what has become of the order since.
    Forgotten,
}

impl Event {
    /// What an event means to a target of a rollout in this phase. An order that was dropped before
    /// it was begun is canceled where the rollout is being called off. Where it was paused or
    /// halted, or goes on again meanwhile, the server waits for its turn once more. The agent keeps
    /// the order it dropped in mind for ever, so the next one must be another order.
    pub fn in_phase(self, phase: Phase) -> Event {
        match (self, phase) {
            (
                Event::Reported(Verdict::Withdrawn),
                Phase::Scheduled
                | Phase::Running
                | Phase::Paused
                | Phase::Halted(_)
                | Phase::Ended(
                    End::Succeeded | End::CompletedWithErrors | End::Failed | End::Expired,
                ),
            ) => Event::GivenBack,
            (same, _) => same,
        }
    }
}

/// An agent's final word on an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Versions changed as asked.
    Succeeded,
    /// There was nothing to change.
    NoChange,
    /// It failed.
    Failed(FailureCode),
    /// Nothing that was asked for may be done there.
    NotApplicable,
    /// Told to drop the order, it did, before it had done anything.
    Withdrawn,
}

/// A move that does not fit the state: whoever made it did not look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a target that is {state:?} cannot take {event:?}")]
pub struct IllegalMove {
    /// Where the target stood.
    pub state: Target,
    /// What it was told.
    pub event: Event,
}

impl Target {
    /// The only way a target changes. Every pair is answered here or refused here.
    pub fn apply(self, event: Event, now: Timestamp) -> Result<Target, IllegalMove> {
        use Target::{Busy as B, Done as D, Waiting};
        let end = |outcome, started_at| D(Done { outcome, started_at, at: now });
        Ok(match (self, event) {
            (Waiting, Event::Offered) => B(Busy::new(Stage::Dispatched, now, now)),
            (Waiting, Event::WindowClosed) => end(Outcome::Skipped(Skip::WindowClosed), None),
            (Waiting, Event::Canceled) => end(Outcome::Canceled(Cancel::Person), None),
            (B(busy), Event::DeadlinePassed) if busy.by <= now => {
                end(Outcome::TimedOut(busy.stage), Some(busy.started_at))
            }

            // Stages only go forward: what arrives out of order or twice is old news.
            (B(busy), Event::Reached(stage)) if stage > busy.stage => {
                B(Busy::new(stage, busy.started_at, now))
            }
            (same, Event::Reached(_)) => same,

            (B(busy), Event::Reported(verdict)) => end(verdict.outcome(), Some(busy.started_at)),
            // "Timed out" was our guess; the agent's report is a fact, and a fact replaces a guess.
            (
                D(Done { outcome: Outcome::TimedOut(_), started_at, .. }),
                Event::Reported(verdict),
            ) => end(verdict.outcome(), started_at),
            // A service restored from a backup has forgotten that it gave the order. The agent has
            // not, and doing it again because of our loss of memory would be wrong.
            (
                Waiting,
                Event::Reported(
                    verdict @ (Verdict::Succeeded | Verdict::NoChange | Verdict::Failed(_)),
                ),
            ) => end(verdict.outcome(), Some(now)),
            // Nothing was done there: its turn may still come.
            (Waiting, Event::Reported(Verdict::NotApplicable | Verdict::Withdrawn)) => Waiting,
            (same @ D(_), Event::Reported(_)) => same,

            (Waiting | B(_), Event::GivenBack) => Waiting,
            // Given up for lost, and yet never begun: it will not be, and an end is an end.
            (D(Done { outcome: Outcome::TimedOut(_), started_at, .. }), Event::GivenBack) => {
                end(Outcome::Failed(FailureCode::OrderExpired), started_at)
            }
            (same @ D(_), Event::GivenBack) => same,

            // The agent may have told us long ago and will not tell again of itself: it is asked
            // anew, and it knows the order by its id.
            (B(busy), Event::Forgotten) => B(Busy::new(Stage::Dispatched, busy.started_at, now)),
            (same @ (Waiting | D(_)), Event::Forgotten) => same,

            (Waiting, Event::ServerRemoved) => end(Outcome::Canceled(Cancel::ServerRemoved), None),
            (B(busy), Event::ServerRemoved) => {
                end(Outcome::Canceled(Cancel::ServerRemoved), Some(busy.started_at))
            }
            (same @ D(_), Event::ServerRemoved) => same,

            (state @ Waiting, event @ Event::DeadlinePassed)
            | (
                state @ B(_),
                event @ (Event::Offered
                | Event::DeadlinePassed
                | Event::WindowClosed
                | Event::Canceled),
            )
            | (
                state @ D(_),
                event @ (Event::Offered
                | Event::DeadlinePassed
                | Event::WindowClosed
                | Event::Canceled),
            ) => return Err(IllegalMove { state, event }),
        })
    }

    /// The same by a clock that was set: see `Change::ClockSet`.
    pub(super) fn by_clock(self, set: ClockSet) -> Target {
        match self {
            Target::Busy(busy) => {
                let wait = limit(busy.stage);
                let by = later(set.moved(earlier(busy.by, wait)), wait);
                Target::Busy(Busy { by, ..busy })
            }
            Target::Waiting | Target::Done(_) => self,
        }
    }

    /// The same, with no longer to go than its stage may take from `now` on: see
    /// `Change::ClockWentBack`.
    pub(super) fn brought_near(self, now: Timestamp) -> Target {
        match self {
            Target::Busy(busy) => {
                Target::Busy(Busy { by: busy.by.min(later(now, limit(busy.stage))), ..busy })
            }
            Target::Waiting | Target::Done(_) => self,
        }
    }
}

impl Busy {
    fn new(stage: Stage, started_at: Timestamp, now: Timestamp) -> Busy {
        Busy { stage, started_at, by: later(now, limit(stage)) }
    }
}

impl Verdict {
    fn outcome(self) -> Outcome {
        match self {
            Verdict::Succeeded => Outcome::Succeeded,
            Verdict::NoChange => Outcome::NoChange,
            Verdict::Failed(code) => Outcome::Failed(code),
            Verdict::NotApplicable => Outcome::Skipped(Skip::NotApplicable),
            Verdict::Withdrawn => Outcome::Canceled(Cancel::Person),
        }
    }
}

impl Outcome {
    /// A server that counts against `max_failures` and fails a canary.
    pub fn is_failure(self) -> bool {
        matches!(self, Outcome::Failed(_) | Outcome::TimedOut(_))
    }

    /// A server that is as it was asked to be.
    pub fn is_success(self) -> bool {
        matches!(self, Outcome::Succeeded | Outcome::NoChange)
    }

    /// What the API names as the reason, where there is one.
    pub fn failure_code(self) -> Option<FailureCode> {
        match self {
            Outcome::Failed(code) => Some(code),
            Outcome::TimedOut(Stage::Rebooting) => Some(FailureCode::RebootTimeout),
            Outcome::TimedOut(_) => Some(FailureCode::AgentLost),
            Outcome::Skipped(Skip::WindowClosed) => Some(FailureCode::WindowClosed),
            Outcome::Succeeded
            | Outcome::NoChange
            | Outcome::Skipped(Skip::NotApplicable)
            | Outcome::Canceled(_) => None,
        }
    }
}

/// How long a server may stay in one stage before it counts as lost. The agent's own limits are
/// shorter, so that it speaks first: it waits 10 minutes for a package manager's lock, for instance.
pub const fn limit(stage: Stage) -> SignedDuration {
    SignedDuration::from_mins(match stage {
        // Also the order's expiry: an agent that did not start by then never will.
        Stage::Dispatched => 10,
        Stage::Preflight => 20,
        Stage::Downloading => 120,
        Stage::Installing => 180,
        Stage::RestartingServices => 20,
        Stage::Rebooting => 30,
        Stage::Verifying => 20,
    })
}

/// The longest limit of any stage: no deadline is further off.
pub(super) fn limit_of_any() -> SignedDuration {
    Stage::ALL.iter().map(|stage| limit(*stage)).max().unwrap_or(SignedDuration::ZERO)
}

/// `at` and `wait`, or the end of time.
pub(super) fn later(at: Timestamp, wait: SignedDuration) -> Timestamp {
    at.saturating_add(wait).unwrap_or(Timestamp::MAX)
}

pub(super) fn earlier(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.saturating_sub(by).unwrap_or(Timestamp::MIN)
}

/// The longest that a target can be in work, however slow it is.
pub fn limit_in_all() -> SignedDuration {
    Stage::ALL.iter().fold(SignedDuration::ZERO, |sum, stage| sum + limit(*stage))
}
