//! The state machine of one task: one server's part of a rollout.
//!
//! [`TaskStatus::apply`] is the only transition. It takes three kinds of events: decisions of the
//! planner, reports of the agent, and actions of users. An event of the planner must be valid in
//! the current state; otherwise it is a bug ([`InvalidEvent`]). A report of an agent is always
//! valid: reports may be lost, repeated, reordered or days late, so an outdated one leaves the task
//! unchanged.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use vocab::{FailureCode, Stage};

use super::phase::{ClockSet, Phase, RolloutOutcome};

/// The state of one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// Not started. The rollout's `start_by` is its deadline.
    Waiting,
    /// An order was issued.
    Busy(ActiveTask),
    /// Ended.
    Done(EndedTask),
}

/// A task in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveTask {
    /// The stage that the agent reported.
    pub stage: Stage,
    /// When the order was issued.
    pub started_at: Timestamp,
    /// Deadline of the stage.
    pub by: Timestamp,
    /// Number of the wave in which it started, from 1; 0 if an earlier release started it.
    #[serde(default)]
    pub wave: u32,
}

/// A task that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedTask {
    pub outcome: TaskOutcome,
    /// When the order was issued, if one was.
    pub started_at: Option<Timestamp>,
    pub at: Timestamp,
    /// Number of the wave in which it started, from 1; 0 if it never started.
    #[serde(default)]
    pub wave: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskOutcome {
    /// The versions changed as requested.
    Succeeded,
    /// There was nothing to change.
    NoChange,
    /// The agent failed and reported why.
    Failed(FailureCode),
    /// The agent stopped reporting in this stage. This is an assumption: a report replaces it.
    TimedOut(Stage),
    /// It was never started, or the agent found that no requested update applies.
    Skipped(TaskSkipReason),
    /// It was canceled before it started.
    Canceled(CancelReason),
}

/// Why a task was skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskSkipReason {
    /// The window closed before the task could start.
    WindowClosed,
    /// Reported by the agent: every requested update is held, phased or excluded on the host.
    NotApplicable,
    /// Reported by the agent: the repositories offer none of the pinned versions anymore.
    VersionGone,
    /// By the planner: versions are pinned, and no server of its system installed any in the first
    /// wave.
    VersionUnproven,
}

/// Why a task was canceled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelReason {
    /// A user canceled the rollout.
    Person,
    /// The server was removed from the organization.
    ServerRemoved,
}

/// An event of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskEvent {
    /// By the planner: the server may start; the order is issued.
    Offered {
        /// Number of its wave, from 1.
        wave: u32,
    },
    /// By the planner: the stage has taken too long.
    DeadlinePassed,
    /// By the planner: the window has closed.
    WindowClosed,
    /// By the planner: see [`TaskSkipReason::VersionUnproven`].
    VersionUnproven,
    /// By the planner, because a user canceled the rollout.
    Canceled,
    /// The server was removed from the organization.
    ServerRemoved,
    /// By the agent: the order has reached this stage.
    Reached(Stage),
    /// By the agent: the result of the order.
    Reported(ReportedResult),
    /// The agent dropped an order that it had not begun, of a rollout that was stopped but not
    /// canceled: see [`TaskEvent::in_phase`].
    GivenBack,
    /// The service was restored from a backup and does not know what has happened to the order
    /// since.
    Forgotten,
}

impl TaskEvent {
    /// Returns the effect of an event on a task of a rollout in this phase. If the rollout is being
    /// canceled, an order that was dropped before it was begun is canceled. If the rollout was
    /// paused or halted, or has been resumed in the meantime, the server waits for its next start.
    /// The agent remembers the dropped order forever, so the next one must have a new id.
    pub fn in_phase(self, phase: Phase) -> TaskEvent {
        match (self, phase) {
            (
                TaskEvent::Reported(ReportedResult::Withdrawn),
                Phase::Scheduled
                | Phase::Running
                | Phase::AwaitingApproval
                | Phase::Paused
                | Phase::Halted(_)
                | Phase::Ended(
                    RolloutOutcome::Succeeded
                    | RolloutOutcome::CompletedWithErrors
                    | RolloutOutcome::Failed
                    | RolloutOutcome::Expired,
                ),
            ) => TaskEvent::GivenBack,
            (same, _) => same,
        }
    }
}

/// The result that an agent reports for an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportedResult {
    /// The versions changed as requested.
    Succeeded,
    /// There was nothing to change.
    NoChange,
    Failed(FailureCode),
    /// The host allows none of the requested updates.
    NotApplicable,
    /// None of the pinned versions is available anymore.
    VersionGone,
    /// The agent dropped the order on request, before it started to carry it out.
    Withdrawn,
}

/// An event that is invalid in the current state: a bug in the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("event {event:?} is invalid for a task in state {state:?}")]
pub struct InvalidEvent {
    pub state: TaskStatus,
    pub event: TaskEvent,
}

impl TaskStatus {
    /// Number of the wave in which it started, from 1; 0 if it has not started.
    pub fn wave(self) -> u32 {
        match self {
            TaskStatus::Waiting => 0,
            TaskStatus::Busy(busy) => busy.wave,
            TaskStatus::Done(done) => done.wave,
        }
    }

    /// The only transition. Every pair of state and event is either handled or rejected here.
    pub fn apply(self, event: TaskEvent, now: Timestamp) -> Result<TaskStatus, InvalidEvent> {
        use TaskStatus::{Busy as B, Done as D, Waiting};
        let unstarted = |outcome| D(EndedTask { outcome, started_at: None, at: now, wave: 0 });
        let end = |busy: ActiveTask, outcome| {
            D(EndedTask { outcome, started_at: Some(busy.started_at), at: now, wave: busy.wave })
        };
        let correct = |done: EndedTask, outcome| D(EndedTask { outcome, at: now, ..done });
        Ok(match (self, event) {
            (Waiting, TaskEvent::Offered { wave }) => {
                B(ActiveTask::new(Stage::Dispatched, now, wave, now))
            }
            (Waiting, TaskEvent::WindowClosed) => {
                unstarted(TaskOutcome::Skipped(TaskSkipReason::WindowClosed))
            }
            (Waiting, TaskEvent::VersionUnproven) => {
                unstarted(TaskOutcome::Skipped(TaskSkipReason::VersionUnproven))
            }
            (Waiting, TaskEvent::Canceled) => {
                unstarted(TaskOutcome::Canceled(CancelReason::Person))
            }
            (B(busy), TaskEvent::DeadlinePassed) if busy.by <= now => {
                end(busy, TaskOutcome::TimedOut(busy.stage))
            }

            // Stages only advance: a report that arrives out of order or twice is outdated.
            (B(busy), TaskEvent::Reached(stage)) if stage > busy.stage => {
                B(ActiveTask::new(stage, busy.started_at, busy.wave, now))
            }
            (same, TaskEvent::Reached(_)) => same,

            (B(busy), TaskEvent::Reported(verdict)) => end(busy, verdict.outcome()),
            // "Timed out" was an assumption; the agent's report is a fact and replaces it.
            (
                D(done @ EndedTask { outcome: TaskOutcome::TimedOut(_), .. }),
                TaskEvent::Reported(verdict),
            ) => correct(done, verdict.outcome()),
            // A service restored from a backup does not know that it issued the order. The agent
            // does, and repeating the work because of the lost data would be wrong.
            (
                Waiting,
                TaskEvent::Reported(
                    verdict @ (ReportedResult::Succeeded
                    | ReportedResult::NoChange
                    | ReportedResult::Failed(_)),
                ),
            ) => {
                D(EndedTask { outcome: verdict.outcome(), started_at: Some(now), at: now, wave: 0 })
            }
            // Nothing was done there: the server may still start.
            (
                Waiting,
                TaskEvent::Reported(
                    ReportedResult::NotApplicable
                    | ReportedResult::VersionGone
                    | ReportedResult::Withdrawn,
                ),
            ) => Waiting,
            (same @ D(_), TaskEvent::Reported(_)) => same,

            (Waiting | B(_), TaskEvent::GivenBack) => Waiting,
            // The task timed out, but the order was never begun and will not be: the task has
            // failed.
            (
                D(done @ EndedTask { outcome: TaskOutcome::TimedOut(_), .. }),
                TaskEvent::GivenBack,
            ) => correct(done, TaskOutcome::Failed(FailureCode::OrderExpired)),
            (same @ D(_), TaskEvent::GivenBack) => same,

            // The agent may have reported long ago and will not report again on its own. The order
            // is sent again, and the agent recognizes it by its id.
            (B(busy), TaskEvent::Forgotten) => {
                B(ActiveTask::new(Stage::Dispatched, busy.started_at, busy.wave, now))
            }
            (same @ (Waiting | D(_)), TaskEvent::Forgotten) => same,

            (Waiting, TaskEvent::ServerRemoved) => {
                unstarted(TaskOutcome::Canceled(CancelReason::ServerRemoved))
            }
            (B(busy), TaskEvent::ServerRemoved) => {
                end(busy, TaskOutcome::Canceled(CancelReason::ServerRemoved))
            }
            (same @ D(_), TaskEvent::ServerRemoved) => same,

            (state @ Waiting, event @ TaskEvent::DeadlinePassed)
            | (
                state @ B(_),
                event @ (TaskEvent::Offered { .. }
                | TaskEvent::DeadlinePassed
                | TaskEvent::WindowClosed
                | TaskEvent::VersionUnproven
                | TaskEvent::Canceled),
            )
            | (
                state @ D(_),
                event @ (TaskEvent::Offered { .. }
                | TaskEvent::DeadlinePassed
                | TaskEvent::WindowClosed
                | TaskEvent::VersionUnproven
                | TaskEvent::Canceled),
            ) => return Err(InvalidEvent { state, event }),
        })
    }

    /// Returns the state converted to a clock that was set: see `Change::ClockSet`.
    pub(super) fn with_clock_set(self, set: ClockSet) -> TaskStatus {
        match self {
            TaskStatus::Busy(busy) => {
                let wait = stage_limit(busy.stage);
                let by = add_time(set.convert(subtract_time(busy.by, wait)), wait);
                TaskStatus::Busy(ActiveTask { by, ..busy })
            }
            TaskStatus::Waiting | TaskStatus::Done(_) => self,
        }
    }

    /// Returns the state with a deadline no later than the stage may take from `now` on: see
    /// `Change::ClockWentBack`.
    pub(super) fn with_capped_deadline(self, now: Timestamp) -> TaskStatus {
        match self {
            TaskStatus::Busy(busy) => TaskStatus::Busy(ActiveTask {
                by: busy.by.min(add_time(now, stage_limit(busy.stage))),
                ..busy
            }),
            TaskStatus::Waiting | TaskStatus::Done(_) => self,
        }
    }
}

impl ActiveTask {
    fn new(stage: Stage, started_at: Timestamp, wave: u32, now: Timestamp) -> ActiveTask {
        ActiveTask { stage, started_at, by: add_time(now, stage_limit(stage)), wave }
    }
}

impl ReportedResult {
    fn outcome(self) -> TaskOutcome {
        match self {
            ReportedResult::Succeeded => TaskOutcome::Succeeded,
            ReportedResult::NoChange => TaskOutcome::NoChange,
            ReportedResult::Failed(code) => TaskOutcome::Failed(code),
            ReportedResult::NotApplicable => TaskOutcome::Skipped(TaskSkipReason::NotApplicable),
            ReportedResult::VersionGone => TaskOutcome::Skipped(TaskSkipReason::VersionGone),
            ReportedResult::Withdrawn => TaskOutcome::Canceled(CancelReason::Person),
        }
    }
}

impl TaskOutcome {
    /// Whether it counts against `max_failures` and fails a canary.
    pub fn is_failure(self) -> bool {
        matches!(self, TaskOutcome::Failed(_) | TaskOutcome::TimedOut(_))
    }

    /// Whether the server is in the requested state.
    pub fn is_success(self) -> bool {
        matches!(self, TaskOutcome::Succeeded | TaskOutcome::NoChange)
    }

    /// The reason that the API reports, if there is one.
    pub fn failure_code(self) -> Option<FailureCode> {
        match self {
            TaskOutcome::Failed(code) => Some(code),
            TaskOutcome::TimedOut(Stage::Rebooting) => Some(FailureCode::RebootTimeout),
            TaskOutcome::TimedOut(_) => Some(FailureCode::AgentLost),
            TaskOutcome::Skipped(TaskSkipReason::WindowClosed) => Some(FailureCode::WindowClosed),
            TaskOutcome::Skipped(TaskSkipReason::VersionGone) => Some(FailureCode::VersionGone),
            TaskOutcome::Skipped(TaskSkipReason::VersionUnproven) => {
                Some(FailureCode::VersionUnproven)
            }
            TaskOutcome::Succeeded
            | TaskOutcome::NoChange
            | TaskOutcome::Skipped(TaskSkipReason::NotApplicable)
            | TaskOutcome::Canceled(_) => None,
        }
    }
}

/// How long a task may stay in one stage before it counts as lost. The agent's own limits are
/// shorter, so that it reports first: for example, it waits 10 minutes for the package manager's
/// lock.
pub const fn stage_limit(stage: Stage) -> SignedDuration {
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
pub(super) fn longest_stage_limit() -> SignedDuration {
    Stage::ALL.iter().map(|stage| stage_limit(*stage)).max().unwrap_or(SignedDuration::ZERO)
}

/// Adds `wait`, saturating at the maximum timestamp.
pub(super) fn add_time(at: Timestamp, wait: SignedDuration) -> Timestamp {
    at.saturating_add(wait).unwrap_or(Timestamp::MAX)
}

pub(super) fn subtract_time(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.saturating_sub(by).unwrap_or(Timestamp::MIN)
}

/// The longest time that a task can be in progress.
pub fn total_stage_limit() -> SignedDuration {
    Stage::ALL.iter().fold(SignedDuration::ZERO, |sum, stage| sum + stage_limit(*stage))
}
