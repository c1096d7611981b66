//! Number of tasks in each state. Updated with every event, so that nothing has to be counted.

use vocab::Stage;

use super::target::{Cancel, Outcome, Skip, Target};

/// The number of tasks in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
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
    /// No requested update applies to the server.
    pub not_applicable: u32,
    /// Canceled by a user.
    pub canceled: u32,
    /// The server was removed from the organization.
    pub removed: u32,
}

impl Tally {
    /// Counts some tasks.
    pub fn of<'a>(targets: impl IntoIterator<Item = &'a Target>) -> Tally {
        let mut tally = Tally::default();
        for target in targets {
            *tally.count(target) += 1;
        }
        tally
    }

    /// Records that one task went from `before` to `after`.
    pub(super) fn moved(&mut self, before: &Target, after: &Target) {
        *self.count(before) -= 1;
        *self.count(after) += 1;
    }

    fn count(&mut self, target: &Target) -> &mut u32 {
        match target {
            Target::Waiting => &mut self.waiting,
            Target::Busy(busy) => &mut self.busy[busy.stage as usize],
            Target::Done(done) => match done.outcome {
                Outcome::Succeeded => &mut self.succeeded,
                Outcome::NoChange => &mut self.no_change,
                Outcome::Failed(_) => &mut self.failed,
                Outcome::TimedOut(_) => &mut self.timed_out,
                Outcome::Skipped(Skip::WindowClosed) => &mut self.expired,
                Outcome::Skipped(Skip::NotApplicable) => &mut self.not_applicable,
                Outcome::Canceled(Cancel::Person) => &mut self.canceled,
                Outcome::Canceled(Cancel::ServerRemoved) => &mut self.removed,
            },
        }
    }

    pub fn total(&self) -> u32 {
        self.unfinished()
            + self.good()
            + self.failures()
            + self.expired
            + self.not_applicable
            + self.canceled
            + self.removed
    }

    /// Tasks in progress.
    pub fn in_work(&self) -> u32 {
        self.busy.iter().sum()
    }

    /// Tasks that have not ended.
    pub fn unfinished(&self) -> u32 {
        self.waiting + self.in_work()
    }

    /// Tasks whose servers are in the requested state.
    pub fn good(&self) -> u32 {
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
