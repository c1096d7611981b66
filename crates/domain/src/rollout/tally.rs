//! How many servers stand where. Kept with every move, so that nothing has to be counted.

use vocab::Stage;

use super::target::{Cancel, Outcome, Skip, Target};

/// A count for each state in which a target can be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Not started.
    pub waiting: u32,
    /// In work, by stage.
    pub busy: [u32; Stage::ALL.len()],
    /// Versions changed as asked.
    pub succeeded: u32,
    /// Nothing to change.
    pub no_change: u32,
    /// Tried and failed.
    pub failed: u32,
    /// Fell silent.
    pub timed_out: u32,
    /// Too late to start.
    pub expired: u32,
    /// Nothing applied there.
    pub not_applicable: u32,
    /// Called off by a person.
    pub canceled: u32,
    /// Removed from the organization.
    pub removed: u32,
}

impl Tally {
    /// The tally of some targets.
    pub fn of<'a>(targets: impl IntoIterator<Item = &'a Target>) -> Tally {
        let mut tally = Tally::default();
        for target in targets {
            *tally.count(target) += 1;
        }
        tally
    }

    /// One target went from `before` to `after`.
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

    /// All of them.
    pub fn total(&self) -> u32 {
        self.unfinished()
            + self.good()
            + self.failures()
            + self.expired
            + self.not_applicable
            + self.canceled
            + self.removed
    }

    /// Those in work.
    pub fn in_work(&self) -> u32 {
        self.busy.iter().sum()
    }

    /// Those that are not at an end.
    pub fn unfinished(&self) -> u32 {
        self.waiting + self.in_work()
    }

    /// Those that are as they were asked to be.
    pub fn good(&self) -> u32 {
        self.succeeded + self.no_change
    }

    /// Those that count against `max_failures`.
    pub fn failures(&self) -> u32 {
        self.failed + self.timed_out
    }

    /// How much of the way is done, in whole percent; 100 only when all of it is.
    pub fn percent(&self) -> u8 {
        let (total, done) = (u64::from(self.total()), u64::from(self.total() - self.unfinished()));
        (done * 100).checked_div(total).map_or(100, |percent| percent as u8)
    }
}
