//! The state machine of one task: one server's part of a rollout.
//!
//! [`Target::apply`] is the only transition. It takes three kinds of events: decisions of the
//! planner, reports of the agent, and actions of users. An event of the planner must be valid in
//! the current state; otherwise it is a bug ([`IllegalMove`]). A report of an agent is always
//! valid: reports may be lost, repeated, reordered or days late, so an outdated one leaves the task
//! unchanged.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use vocab::{FailureCode, Stage};

use super::phase::{ClockSet, End, Phase};

/// The state of one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Not started. The rollout's `start_by` is its deadline.
    Waiting,
    /// An order was issued.
    Busy(Busy),
    /// Ended.
    Done(Done),
}

/// A task in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Busy {
    /// The stage that the agent reported.
    pub stage: Stage,
    /// When the order was issued.
    pub started_at: Timestamp,
    /// Deadline of the stage.
    pub by: Timestamp,
}

/// A task that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    pub outcome: Outcome,
    /// When the order was issued, if one was.
    pub started_at: Option<Timestamp>,
    pub at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The versions changed as requested.
    Succeeded,
    /// There was nothing to change.
    NoChange,
    /// The agent failed and reported why.
    Failed(FailureCode),
    /// The agent stopped reporting in this stage. This is an assumption: a report replaces it.
    TimedOut(Stage),
    /// It was never started, or the agent found that no requested update applies.
    Skipped(Skip),
    /// It was canceled before it started.
    Canceled(Cancel),
}

/// Why a task was skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Skip {
    /// The window closed before the task could start.
    WindowClosed,
    /// Reported by the agent: every requested update is held, phased or excluded on the host.
    NotApplicable,
}

/// Why a task was canceled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cancel {
    /// A user canceled the rollout.
    Person,
    /// The server was removed from the organization.
    ServerRemoved,
}

/// An event of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// By the planner: the server may start; the order is issued.
    Offered,
    /// By the planner: the stage has taken too long.
    DeadlinePassed,
    /// By the planner: the window has closed.
    WindowClosed,
    /// By the planner, because a user canceled the rollout.
    Canceled,
    /// The server was removed from the organization.
    ServerRemoved,
    /// By the agent: the order has reached this stage.
    Reached(Stage),
    /// By the agent: the result of the order.
    Reported(Verdict),
    /// The agent dropped an order that it had not begun, of a rollout that was stopped but not
    /// canceled: see [`Event::in_phase`].
    GivenBack,
    /// The service was restored from a backup and does not know what has happened to the order
    /// since.
    Forgotten,
}

impl Event {
    /// Returns the effect of an event on a task of a rollout in this phase. If the rollout is being
    /// canceled, an order that was dropped before it was begun is canceled. If the rollout was
    /// paused or halted, or has been resumed in the meantime, the server waits for its next start.
    /// The agent remembers the dropped order forever, so the next one must have a new id.
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

/// The result that an agent reports for an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The versions changed as requested.
    Succeeded,
    /// There was nothing to change.
    NoChange,
    Failed(FailureCode),
    /// No requested update may be installed on the host.
    NotApplicable,
    /// The agent dropped the order on request, before it had begun.
    Withdrawn,
}

/// An event that is invalid in the current state: a bug in the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("event {event:?} is invalid for a task in state {state:?}")]
pub struct IllegalMove {
    pub state: Target,
    pub event: Event,
}

impl Target {
    /// The only transition. Every pair of state and event is either handled or rejected here.
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

            // Stages only advance: a report that arrives out of order or twice is outdated.
            (B(busy), Event::Reached(stage)) if stage > busy.stage => {
                B(Busy::new(stage, busy.started_at, now))
            }
            (same, Event::Reached(_)) => same,

            (B(busy), Event::Reported(verdict)) => end(verdict.outcome(), Some(busy.started_at)),
            // "Timed out" was an assumption; the agent's report is a fact and replaces it.
            (
                D(Done { outcome: Outcome::TimedOut(_), started_at, .. }),
                Event::Reported(verdict),
            ) => end(verdict.outcome(), started_at),
            // A service restored from a backup does not know that it issued the order. The agent
            // does, and repeating the work because of the lost data would be wrong.
            (
                Waiting,
                Event::Reported(
                    verdict @ (Verdict::Succeeded | Verdict::NoChange | Verdict::Failed(_)),
                ),
            ) => end(verdict.outcome(), Some(now)),
            // Nothing was done there: the server may still start.
            (Waiting, Event::Reported(Verdict::NotApplicable | Verdict::Withdrawn)) => Waiting,
            (same @ D(_), Event::Reported(_)) => same,

            (Waiting | B(_), Event::GivenBack) => Waiting,
            // The task timed out, but the order was never begun and will not be: the task has
            // failed.
            (D(Done { outcome: Outcome::TimedOut(_), started_at, .. }), Event::GivenBack) => {
                end(Outcome::Failed(FailureCode::OrderExpired), started_at)
            }
            (same @ D(_), Event::GivenBack) => same,

            // The agent may have reported long ago and will not report again on its own. The order
            // is sent again, and the agent recognizes it by its id.
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

    /// Returns the state converted to a clock that was set: see `Change::ClockSet`.
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

    /// Returns the state with a deadline no later than the stage may take from `now` on: see
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
    /// Whether it counts against `max_failures` and fails a canary.
    pub fn is_failure(self) -> bool {
        matches!(self, Outcome::Failed(_) | Outcome::TimedOut(_))
    }

    /// Whether the server is in the requested state.
    pub fn is_success(self) -> bool {
        matches!(self, Outcome::Succeeded | Outcome::NoChange)
    }

    /// The reason that the API reports, if there is one.
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

/// How long a task may stay in one stage before it counts as lost. The agent's own limits are
/// shorter, so that it reports first: for example, it waits 10 minutes for the package manager's
/// lock.
pub const fn limit(stage: Stage) -> SignedDuration {
    SignedDuration::from_mins(match stage {
        // Also the expiry of the order: an agent that did not start by then never will.
        Stage::Dispatched => 10,
        Stage::Preflight => 20,
        Stage::Downloading => 120,
        Stage::Installing => 180,
        Stage::RestartingServices => 20,
        Stage::Rebooting => 30,
        Stage::Verifying => 20,
    })
}

/// The longest limit of any stage: no deadline is further away.
pub(super) fn limit_of_any() -> SignedDuration {
    Stage::ALL.iter().map(|stage| limit(*stage)).max().unwrap_or(SignedDuration::ZERO)
}

/// Adds `wait`, saturating at the maximum timestamp.
pub(super) fn later(at: Timestamp, wait: SignedDuration) -> Timestamp {
    at.saturating_add(wait).unwrap_or(Timestamp::MAX)
}

pub(super) fn earlier(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.saturating_sub(by).unwrap_or(Timestamp::MIN)
}

/// The longest time that a task can be in progress.
pub fn limit_in_all() -> SignedDuration {
    Stage::ALL.iter().fold(SignedDuration::ZERO, |sum, stage| sum + limit(*stage))
}
