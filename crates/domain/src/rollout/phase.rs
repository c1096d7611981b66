//! The state machine of a rollout as a whole.
//!
//! Users pause, resume and cancel; the planner starts, halts and ends. [`Phase::apply`] is the only
//! transition from one phase to another.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The start time has not come.
    Scheduled,
    /// Servers start one after the other.
    Running,
    /// The next wave needs an approval: no server starts before.
    AwaitingApproval,
    /// A user paused it: no server starts, tasks in progress continue.
    Paused,
    /// It halted automatically: no server starts until a user decides.
    Halted(HaltReason),
    /// A user canceled it; tasks in progress continue to their end.
    Canceling,
    /// Every task has ended.
    Ended(RolloutOutcome),
}

/// Why a rollout halted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HaltReason {
    /// A canary failed.
    CanaryFailed,
    /// The number of failed servers reached `max_failures`.
    TooManyFailures,
    /// More servers of this wave than `max_unhealthy` are unhealthy since their change.
    HealthDegraded {
        /// Number of the wave, from 1.
        wave: u32,
    },
    /// It is unknown whether this wave is healthy: no server of it could be measured, or more than
    /// `max_unhealthy` did not report at the end of the soak.
    HealthUnknown {
        /// Number of the wave, from 1.
        wave: u32,
    },
    /// Servers of this wave are unhealthy, and so are servers that have not been changed. Shown to
    /// users as a pause, because it says nothing about the change.
    FleetWideDegradation {
        /// Number of the wave, from 1.
        wave: u32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RolloutOutcome {
    /// Every server is in the requested state.
    Succeeded,
    /// Some servers are, some are not.
    CompletedWithErrors,
    /// No server is.
    Failed,
    /// A user canceled it while servers were waiting.
    Canceled,
    /// The window closed while servers were waiting.
    Expired,
}

/// A change of a rollout as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// By a user: no further server starts.
    Pause,
    /// By a user: continue. After a halt, this accepts the failures so far.
    Resume,
    /// By a user: cancel everything that has not started.
    Cancel,
    /// By the planner: the start time has come.
    Start,
    /// By the planner: too many failures.
    Halt(HaltReason),
    /// By the planner: the canary changed nothing and no other server is expected to, so the rest
    /// starts without its proof.
    CanaryUnchanged,
    /// By the planner: every task of the current wave has ended, and its soak begins.
    WaveEnded,
    /// By the planner: the current wave has passed, and the next one opens.
    NextWave,
    /// By the planner: more servers than allowed are unhealthy. Before it halts, it waits for the
    /// reports of servers that have not been changed.
    HealthExceeded,
    /// By the planner: the number of unhealthy servers is within the limits again.
    HealthRecovered,
    /// By the planner: the current wave needs an approval.
    AskApproval,
    /// By a user: the current wave may start.
    Approve,
    /// By a user: cancel everything that has not started, instead of approving the wave.
    Reject,
    /// By the planner: every task has ended with this overall result.
    End(RolloutOutcome),
    /// By the planner: this machine's clock shows an earlier time than the rollout has already
    /// seen. A remaining wait that is now longer than its full length is cut to that length.
    ClockWentBack { by: SignedDuration },
    /// By the engine: this machine's clock was set, according to a monotonic clock. Remaining waits
    /// keep their length. A start time in the future is a calendar time and does not move.
    ClockSet(ClockSet),
}

/// How a clock was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockSet {
    /// The difference; negative if the clock was set back.
    pub by: SignedDuration,
    /// The earliest time that the clock can have shown since it was set.
    pub since: Timestamp,
    /// The current time. A time between `since` and `now` was taken from the clock after it was
    /// set.
    pub now: Timestamp,
}

impl ClockSet {
    /// Converts a time that was taken from the clock to the clock after it was set.
    pub(super) fn convert(self, time: Timestamp) -> Timestamp {
        if (self.since..=self.now).contains(&time) {
            return time;
        }
        let end = if self.by.is_negative() { Timestamp::MIN } else { Timestamp::MAX };
        time.saturating_add(self.by).unwrap_or(end)
    }
}

/// A change that the phase does not allow. The API returns 409 if a user requested it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot apply {change:?} to a rollout in phase {phase:?}")]
pub struct InvalidChange {
    pub phase: Phase,
    pub change: Change,
}

impl Phase {
    /// The only transition between phases. `due`: the start time has come.
    pub fn apply(self, change: Change, due: bool) -> Result<Phase, InvalidChange> {
        use Phase::{AwaitingApproval, Canceling, Ended, Halted, Paused, Running, Scheduled};
        Ok(match (self, change) {
            (Scheduled, Change::Start) => Running,
            (Running, Change::Halt(why)) => Halted(why),
            (
                Running,
                Change::CanaryUnchanged
                | Change::WaveEnded
                | Change::NextWave
                | Change::HealthExceeded
                | Change::HealthRecovered,
            ) => Running,
            (Running, Change::AskApproval) => AwaitingApproval,
            (AwaitingApproval, Change::Approve) => Running,
            (AwaitingApproval, Change::Reject) => Canceling,
            // Also from one result to another: a late report turns "failed" into "succeeded".
            (_, Change::End(end)) => Ended(end),
            (same, Change::ClockWentBack { .. } | Change::ClockSet(_)) => same,

            (Scheduled | Running | AwaitingApproval | Paused, Change::Pause) => Paused,
            // Users see this one as paused.
            (same @ Halted(HaltReason::FleetWideDegradation { .. }), Change::Pause) => same,
            (Paused, Change::Resume) if !due => Scheduled,
            (Paused | Halted(_) | Running, Change::Resume) => Running,
            (Scheduled, Change::Resume) => Scheduled,
            (
                Scheduled | Running | AwaitingApproval | Paused | Halted(_) | Canceling,
                Change::Cancel,
            ) => Canceling,

            (phase @ (Halted(_) | Canceling | Ended(_)), Change::Pause)
            | (phase @ (AwaitingApproval | Canceling | Ended(_)), Change::Resume)
            | (phase @ Ended(_), Change::Cancel)
            | (
                phase @ (Running | AwaitingApproval | Paused | Halted(_) | Canceling | Ended(_)),
                Change::Start,
            )
            | (
                phase @ (Scheduled | Running | Paused | Halted(_) | Canceling | Ended(_)),
                Change::Approve | Change::Reject,
            )
            | (
                phase @ (Scheduled | AwaitingApproval | Paused | Halted(_) | Canceling | Ended(_)),
                Change::Halt(_)
                | Change::CanaryUnchanged
                | Change::WaveEnded
                | Change::NextWave
                | Change::HealthExceeded
                | Change::HealthRecovered
                | Change::AskApproval,
            ) => {
                return Err(InvalidChange { phase, change });
            }
        })
    }

    /// Nothing more will happen, except for late reports.
    pub fn is_ended(self) -> bool {
        matches!(self, Phase::Ended(_))
    }
}
