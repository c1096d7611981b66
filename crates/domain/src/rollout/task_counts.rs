//! Number of tasks in each state. Updated with every event, so that nothing has to be counted.

use vocab::Stage;

use super::task::{CancelReason, TaskOutcome, TaskSkipReason, TaskStatus};

/// The number of tasks in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TaskCounts {
    /// Not started.
    pub waiting: u32,
    /// In progress, by stage.
    pub busy: [u32; Stage::ALL.len()],
    /// The versions changed as requested.
    pub succeeded: u32,
    /// There was nothing to change.
    pub no_change: u32,
    pub failed: u32,
    /// The agent stopped reporting.
    pub timed_out: u32,
    /// The window closed before the task could start.
    pub expired: u32,
    /// No requested update applies to the server, or its versions are gone or unproven.
    pub not_applicable: u32,
    /// Canceled by a user.
    pub canceled: u32,
    /// The server was removed from the organization.
    pub removed: u32,
}

impl TaskCounts {
    /// Counts these tasks.
    pub fn from_tasks<'a>(targets: impl IntoIterator<Item = &'a TaskStatus>) -> TaskCounts {
        let mut tally = TaskCounts::default();
        for target in targets {
            tally.add(target);
        }
        tally
    }

    pub(super) fn add(&mut self, status: &TaskStatus) {
        *self.counter_mut(status) += 1;
    }

    pub(super) fn remove(&mut self, status: &TaskStatus) {
        *self.counter_mut(status) -= 1;
    }

    /// Records that one task went from `before` to `after`.
    pub(super) fn record_move(&mut self, before: &TaskStatus, after: &TaskStatus) {
        self.remove(before);
        self.add(after);
    }

    fn counter_mut(&mut self, status: &TaskStatus) -> &mut u32 {
        match status {
            TaskStatus::Waiting => &mut self.waiting,
            TaskStatus::Busy(busy) => &mut self.busy[busy.stage as usize],
            TaskStatus::Done(done) => match done.outcome {
                TaskOutcome::Succeeded => &mut self.succeeded,
                TaskOutcome::NoChange => &mut self.no_change,
                TaskOutcome::Failed(_) => &mut self.failed,
                TaskOutcome::TimedOut(_) => &mut self.timed_out,
                TaskOutcome::Skipped(TaskSkipReason::WindowClosed) => &mut self.expired,
                TaskOutcome::Skipped(
                    TaskSkipReason::NotApplicable
                    | TaskSkipReason::VersionGone
                    | TaskSkipReason::VersionUnproven,
                ) => &mut self.not_applicable,
                TaskOutcome::Canceled(CancelReason::Person) => &mut self.canceled,
                TaskOutcome::Canceled(CancelReason::ServerRemoved) => &mut self.removed,
            },
        }
    }

    pub fn total(&self) -> u32 {
        self.unfinished()
            + self.successes()
            + self.failures()
            + self.expired
            + self.not_applicable
            + self.canceled
            + self.removed
    }

    /// Tasks in progress.
    pub fn in_progress(&self) -> u32 {
        self.busy.iter().sum()
    }

    /// Tasks that have not ended.
    pub fn unfinished(&self) -> u32 {
        self.waiting + self.in_progress()
    }

    /// Tasks whose servers are in the requested state.
    pub fn successes(&self) -> u32 {
        self.succeeded + self.no_change
    }

    /// Tasks that count against `max_failures`.
    pub fn failures(&self) -> u32 {
        self.failed + self.timed_out
    }

    /// The share of ended tasks in whole percent; 100 only if all have ended.
    pub fn percent(&self) -> u8 {
        let (total, done) = (u64::from(self.total()), u64::from(self.total() - self.unfinished()));
        (done * 100).checked_div(total).map_or(100, |percent| percent as u8)
    }
}
