//! The oracle's record of one task, and its transitions.

use vocab::{FailureCode, Stage};

use super::judge::Moment;
use crate::rollout::{Cancel, End, Event, Outcome, Phase, Skip, Verdict};

/// The observed state of a task.
#[derive(Debug, Clone, Copy)]
pub(super) enum Seen {
    Waiting,
    InWork { stage: Stage, since: Moment },
    Ended(Outcome),
}

impl Seen {
    pub(super) fn is_failure(self) -> bool {
        matches!(self, Seen::Ended(Outcome::Failed(_) | Outcome::TimedOut(_)))
    }

    /// Returns the state after an event.
    pub(super) fn after(self, event: Event, phase: Phase, at: Moment) -> Seen {
        use Seen::{Ended, InWork, Waiting};
        let called_off = matches!(phase, Phase::Canceling | Phase::Ended(End::Canceled));
        match (self, event) {
            (InWork { .. }, Event::Reported(Verdict::Withdrawn)) if !called_off => Waiting,
            (Ended(Outcome::TimedOut(_)), Event::Reported(Verdict::Withdrawn)) if !called_off => {
                Ended(Outcome::Failed(FailureCode::OrderExpired))
            }
            (Waiting, Event::Offered) => InWork { stage: Stage::Dispatched, since: at },
            (Waiting, Event::WindowClosed) => Ended(Outcome::Skipped(Skip::WindowClosed)),
            (Waiting, Event::Canceled) => Ended(Outcome::Canceled(Cancel::Person)),
            (InWork { stage, .. }, Event::DeadlinePassed) => Ended(Outcome::TimedOut(stage)),
            (InWork { stage, .. }, Event::Reached(further)) if further > stage => {
                InWork { stage: further, since: at }
            }
            (InWork { .. } | Ended(Outcome::TimedOut(_)), Event::Reported(verdict)) => {
                Ended(meaning(verdict))
            }
            (Waiting, Event::Reported(verdict)) => match meaning(verdict) {
                Outcome::Skipped(_) | Outcome::Canceled(_) => Waiting,
                done => Ended(done),
            },
            (Waiting | InWork { .. }, Event::ServerRemoved) => {
                Ended(Outcome::Canceled(Cancel::ServerRemoved))
            }
            (same, _) => same,
        }
    }
}

fn meaning(verdict: Verdict) -> Outcome {
    match verdict {
        Verdict::Succeeded => Outcome::Succeeded,
        Verdict::NoChange => Outcome::NoChange,
        Verdict::Failed(code) => Outcome::Failed(code),
        Verdict::NotApplicable => Outcome::Skipped(Skip::NotApplicable),
        Verdict::Withdrawn => Outcome::Canceled(Cancel::Person),
    }
}
