//! The oracle's record of one task, and its transitions.

use vocab::{FailureCode, Stage};

use super::oracle::Moment;
use crate::rollout::{
    CancelReason, Phase, ReportedResult, RolloutOutcome, TaskEvent, TaskOutcome, TaskSkipReason,
};

/// The observed state of a task.
#[derive(Debug, Clone, Copy)]
pub(super) enum TaskRecord {
    Waiting,
    InProgress { stage: Stage, since: Moment },
    Ended(TaskOutcome),
}

impl TaskRecord {
    pub(super) fn is_failure(self) -> bool {
        matches!(self, TaskRecord::Ended(TaskOutcome::Failed(_) | TaskOutcome::TimedOut(_)))
    }

    /// Returns the state after an event.
    pub(super) fn after(self, event: TaskEvent, phase: Phase, at: Moment) -> TaskRecord {
        use TaskRecord::{Ended, InProgress, Waiting};
        let called_off = matches!(phase, Phase::Canceling | Phase::Ended(RolloutOutcome::Canceled));
        match (self, event) {
            (InProgress { .. }, TaskEvent::Reported(ReportedResult::Withdrawn)) if !called_off => {
                Waiting
            }
            (Ended(TaskOutcome::TimedOut(_)), TaskEvent::Reported(ReportedResult::Withdrawn))
                if !called_off =>
            {
                Ended(TaskOutcome::Failed(FailureCode::OrderExpired))
            }
            (Waiting, TaskEvent::Offered { .. }) => {
                InProgress { stage: Stage::Dispatched, since: at }
            }
            (Waiting, TaskEvent::WindowClosed) => {
                Ended(TaskOutcome::Skipped(TaskSkipReason::WindowClosed))
            }
            (Waiting, TaskEvent::VersionUnproven) => {
                Ended(TaskOutcome::Skipped(TaskSkipReason::VersionUnproven))
            }
            (Waiting, TaskEvent::Canceled) => Ended(TaskOutcome::Canceled(CancelReason::Person)),
            (InProgress { stage, .. }, TaskEvent::DeadlinePassed) => {
                Ended(TaskOutcome::TimedOut(stage))
            }
            (InProgress { stage, .. }, TaskEvent::Reached(further)) if further > stage => {
                InProgress { stage: further, since: at }
            }
            (InProgress { .. } | Ended(TaskOutcome::TimedOut(_)), TaskEvent::Reported(verdict)) => {
                Ended(expected_outcome(verdict))
            }
            (Waiting, TaskEvent::Reported(verdict)) => match expected_outcome(verdict) {
                TaskOutcome::Skipped(_) | TaskOutcome::Canceled(_) => Waiting,
                done => Ended(done),
            },
            (Waiting | InProgress { .. }, TaskEvent::ServerRemoved) => {
                Ended(TaskOutcome::Canceled(CancelReason::ServerRemoved))
            }
            (same, _) => same,
        }
    }
}

fn expected_outcome(reported: ReportedResult) -> TaskOutcome {
    match reported {
        ReportedResult::Succeeded => TaskOutcome::Succeeded,
        ReportedResult::NoChange => TaskOutcome::NoChange,
        ReportedResult::Failed(code) => TaskOutcome::Failed(code),
        ReportedResult::NotApplicable => TaskOutcome::Skipped(TaskSkipReason::NotApplicable),
        ReportedResult::VersionGone => TaskOutcome::Skipped(TaskSkipReason::VersionGone),
        ReportedResult::Withdrawn => TaskOutcome::Canceled(CancelReason::Person),
    }
}
