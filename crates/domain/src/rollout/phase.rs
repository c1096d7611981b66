//! The way of a rollout as a whole.
//!
//! People pause, resume and cancel; the planner starts, halts and ends. [`Phase::apply`] is the only
//! way from one phase to another.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// Where a rollout stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Its hour has not come.
    Scheduled,
    /// Servers start as their turns come.
    Running,
    /// A person stopped it: no server starts, those in work go on.
    Paused,
    /// It stopped itself: no server starts until a person decides.
    Halted(Halt),
    /// A person called it off; servers in work go on to their end.
    Canceling,
    /// Every server is at an end.
    Ended(End),
}

/// Why a rollout stopped itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Halt {
    /// One of those that went first failed.
    CanaryFailed,
    /// As many servers failed as `max_failures` names.
    TooManyFailures,
}

/// How a rollout ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Every server is as it was asked to be.
    Succeeded,
    /// Some are, some are not.
    CompletedWithErrors,
    /// None is.
    Failed,
    /// A person called it off while servers were waiting.
    Canceled,
    /// The time to start ran out while servers were waiting.
    Expired,
}

/// What happens to a rollout as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A person: no further server starts.
    Pause,
    /// A person: go on. After a halt: in spite of the failures so far.
    Resume,
    /// A person: call off what has not started.
    Cancel,
    /// The planner: its hour has come.
    Start,
    /// The planner: too much went wrong.
    Halt(Halt),
    /// The planner: the canary changed nothing and no other server is expected to, so the rest starts
    /// unproven.
    CanaryUnchanged,
    /// The planner: every server is at an end, and this is what it comes to.
    End(End),
    /// The planner: this machine's clock shows an earlier time than the rollout has already seen.
    /// No wait is then longer than it can have been at its beginning; what was shorter stays.
    ClockWentBack {
        /// By how much.
        by: SignedDuration,
    },
    /// Whoever carries the rollout out: this machine's clock was set, as a clock shows that cannot
    /// be. Every wait goes on for as long as it would have; an hour that has not come is the
    /// calendar's and stays.
    ClockSet(ClockSet),
}

/// How a clock was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockSet {
    /// By how much; less than nothing: back.
    pub by: SignedDuration,
    /// The earliest that it can have shown since, and
    pub since: Timestamp,
    /// what it shows now. A time between the two was taken from the clock as it is now.
    pub now: Timestamp,
}

impl ClockSet {
    /// A time that was taken from the clock, as it would be by the clock as it is now.
    pub(super) fn moved(self, taken: Timestamp) -> Timestamp {
        if (self.since..=self.now).contains(&taken) {
            return taken;
        }
        let end = if self.by.is_negative() { Timestamp::MIN } else { Timestamp::MAX };
        taken.saturating_add(self.by).unwrap_or(end)
    }
}

/// A change that the phase does not allow; the API answers a person's with 409.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a rollout that is {phase:?} cannot {change:?}")]
pub struct Refused {
    /// Where the rollout stood.
    pub phase: Phase,
    /// What was asked of it.
    pub change: Change,
}

impl Phase {
    /// The only way a phase changes. `due`: the hour of the start has come.
    pub fn apply(self, change: Change, due: bool) -> Result<Phase, Refused> {
        use Phase::{Canceling, Ended, Halted, Paused, Running, Scheduled};
        Ok(match (self, change) {
            (Scheduled, Change::Start) => Running,
            (Running, Change::Halt(why)) => Halted(why),
            (Running, Change::CanaryUnchanged) => Running,
            // Also from one end to another: a late report turns "failed" into "succeeded".
            (_, Change::End(end)) => Ended(end),
            (same, Change::ClockWentBack { .. } | Change::ClockSet(_)) => same,

            (Scheduled | Running | Paused, Change::Pause) => Paused,
            (Paused, Change::Resume) if !due => Scheduled,
            (Paused | Halted(_) | Running, Change::Resume) => Running,
            (Scheduled, Change::Resume) => Scheduled,
            (Scheduled | Running | Paused | Halted(_) | Canceling, Change::Cancel) => Canceling,

            (phase @ (Halted(_) | Canceling | Ended(_)), Change::Pause)
            | (phase @ (Canceling | Ended(_)), Change::Resume)
            | (phase @ Ended(_), Change::Cancel)
            | (phase @ (Running | Paused | Halted(_) | Canceling | Ended(_)), Change::Start)
            | (
                phase @ (Scheduled | Paused | Halted(_) | Canceling | Ended(_)),
                Change::Halt(_) | Change::CanaryUnchanged,
            ) => {
                return Err(Refused { phase, change });
            }
        })
    }

    /// Nothing will happen any more but a late report.
    pub fn is_ended(self) -> bool {
        matches!(self, Phase::Ended(_))
    }
}
