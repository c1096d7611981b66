//! Freezes: periods in which no task starts on the selected servers.
//!
//! A recurring freeze starts at the instants of a cron expression ([`crate::schedule`] defines them,
//! with clock changes) and lasts for a duration of elapsed time. So a freeze of two hours lasts two
//! hours also when the clocks change in between, and then ends at another local time. Periods that
//! overlap or touch are one period. A period includes its start and excludes its end.
//!
//! The cost of every function is bounded, also for a freeze that starts every minute and lasts for
//! a month. A period that does not end within [`MERGE_HORIZON`] or [`MERGE_STEPS_MAX`] steps is cut
//! there: it ends later than `ends_at` says, and the caller finds out when it asks again at that
//! time.

use jiff::{SignedDuration, Timestamp};
use vocab::{Cron, Selector, Zone};

use crate::schedule::{latest_between, next_after};

/// No task starts on these servers in these periods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Freeze {
    pub targets: Selector,
    pub timing: Timing,
}

/// When a freeze is active.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Timing {
    OneOff { starts_at: Timestamp, ends_at: Timestamp },
    Recurring { cron: Cron, duration: SignedDuration, timezone: Zone },
}

/// A time from its start up to, but not including, its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period {
    pub starts_at: Timestamp,
    pub ends_at: Timestamp,
}

impl Period {
    pub fn contains(&self, at: Timestamp) -> bool {
        self.starts_at <= at && at < self.ends_at
    }
}

/// How far a period of overlapping recurrences is followed, forward and backward. Also the maximum
/// length of a one-off freeze.
pub const MERGE_HORIZON: SignedDuration = SignedDuration::from_hours(24 * 400);

/// Maximum number of steps in which a period of overlapping recurrences is followed in each
/// direction. A step covers up to one duration.
pub const MERGE_STEPS_MAX: usize = 2_000;

const NANOSECOND: SignedDuration = SignedDuration::from_nanos(1);

impl Freeze {
    /// The period that contains `now`.
    pub fn active_period(&self, now: Timestamp) -> Option<Period> {
        self.timing.active_period(now)
    }

    /// See [`Timing::periods`].
    pub fn periods(&self, from: Timestamp, until: Timestamp, max: usize) -> Vec<Period> {
        self.timing.periods(from, until, max)
    }

    /// Whether it covers every server that `targets` can match, as far as the criteria alone tell.
    /// A freeze that happens to select the same servers by other criteria is not recognized.
    pub fn covers(&self, targets: &Selector) -> bool {
        let (own, other) = match (&self.targets, targets) {
            (Selector::All, _) => return true,
            (_, Selector::All) => return false,
            (Selector::Matching(own), Selector::Matching(other)) => (own, other),
        };
        let ids = other.server_ids();
        own.environment().is_none_or(|environment| other.environment() == Some(environment))
            && own.os().is_none_or(|os| other.os() == Some(os))
            && own.tags().iter().all(|tag| other.tags().contains(tag))
            && (own.server_ids().is_empty()
                || !ids.is_empty() && ids.iter().all(|id| own.server_ids().contains(id)))
    }

    /// When the freeze begins or ends next.
    pub fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        self.timing.next_change(now)
    }
}

impl Timing {
    /// The period that contains `now`.
    pub fn active_period(&self, now: Timestamp) -> Option<Period> {
        match self {
            Timing::OneOff { starts_at, ends_at } => {
                let period = Period { starts_at: *starts_at, ends_at: *ends_at };
                period.contains(now).then_some(period)
            }
            Timing::Recurring { cron, duration, timezone } => {
                Recurrence { cron, timezone, duration: *duration }.active_period(now)
            }
        }
    }

    /// The periods that overlap the time from `from` up to `until`, the earliest first and at most
    /// `max`.
    pub fn periods(&self, from: Timestamp, until: Timestamp, max: usize) -> Vec<Period> {
        let mut found: Vec<Period> = Vec::new();
        let mut at = from;
        for _ in 0..max {
            let next = self.active_period(at).or_else(|| self.first_after(at));
            let Some(period) = next.filter(|period| at < until && period.starts_at < until) else {
                break;
            };
            at = period.ends_at;
            match found.last_mut() {
                // The rest of a period that was cut.
                Some(last) if period.starts_at <= last.ends_at => last.ends_at = period.ends_at,
                _ => found.push(period),
            }
        }
        found
    }

    /// When the freeze begins or ends next after `now`.
    pub fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        match self.active_period(now) {
            Some(period) => Some(period.ends_at),
            None => self.first_after(now).map(|period| period.starts_at),
        }
    }

    /// Whether a period that starts after `now` is so long that it is cut: the freeze practically
    /// never ends.
    pub fn is_endless(&self, now: Timestamp) -> bool {
        match self {
            Timing::OneOff { .. } => false,
            Timing::Recurring { cron, duration, timezone } => {
                let recurrence = Recurrence { cron, timezone, duration: *duration };
                let first = next_after(cron, timezone, now);
                first.is_some_and(|first| recurrence.last_end(first).is_none())
            }
        }
    }

    /// The first period that starts after `at`. `at` is not in a period.
    fn first_after(&self, at: Timestamp) -> Option<Period> {
        match self {
            Timing::OneOff { starts_at, ends_at } => {
                let period = Period { starts_at: *starts_at, ends_at: *ends_at };
                (at < *starts_at && starts_at < ends_at).then_some(period)
            }
            Timing::Recurring { cron, duration, timezone } => {
                let recurrence = Recurrence { cron, timezone, duration: *duration };
                let starts_at = next_after(cron, timezone, at)?;
                Some(Period { starts_at, ends_at: recurrence.end(starts_at) })
            }
        }
    }
}

/// A recurring freeze.
#[derive(Clone, Copy)]
struct Recurrence<'a> {
    cron: &'a Cron,
    timezone: &'a Zone,
    duration: SignedDuration,
}

impl Recurrence<'_> {
    /// The first start after `at`.
    fn next_start(self, at: Timestamp) -> Option<Timestamp> {
        next_after(self.cron, self.timezone, at)
    }

    fn active_period(self, now: Timestamp) -> Option<Period> {
        // A start covers `now` if it is after `now - duration`.
        let earliest = now.checked_sub(self.duration).ok()?;
        let first = self.next_start(earliest).filter(|first| *first <= now)?;
        Some(Period { starts_at: self.first_start(first), ends_at: self.end(first) })
    }

    /// The start of the period that `start` belongs to.
    fn first_start(self, start: Timestamp) -> Timestamp {
        let mut first = start;
        for _ in 0..MERGE_STEPS_MAX {
            if start.duration_since(first) >= MERGE_HORIZON {
                break;
            }
            // An earlier start belongs to the period if it is at most one duration before `first`.
            let touching =
                first.checked_sub(self.duration).and_then(|at| at.checked_sub(NANOSECOND));
            let earlier = touching.ok().and_then(|at| self.next_start(at));
            match earlier.filter(|earlier| *earlier < first) {
                Some(earlier) => first = earlier,
                None => break,
            }
        }
        first
    }

    /// The end of the period that `start` belongs to, cut if it is too far away.
    fn end(self, start: Timestamp) -> Timestamp {
        self.follow(start).0
    }

    /// The end of the period that `start` belongs to; `None` if it would be cut.
    fn last_end(self, start: Timestamp) -> Option<Timestamp> {
        let (end, is_cut) = self.follow(start);
        (!is_cut).then_some(end)
    }

    /// Follows a period to its end. Returns the end and whether it was cut.
    fn follow(self, start: Timestamp) -> (Timestamp, bool) {
        let end_of = |start: Timestamp| start.checked_add(self.duration).unwrap_or(Timestamp::MAX);
        let mut latest = start;
        for _ in 0..MERGE_STEPS_MAX {
            let end = end_of(latest);
            if end.duration_since(start) > MERGE_HORIZON {
                return (end, true);
            }
            // The latest start up to the end; those in between need not be looked at.
            match latest_between(self.cron, self.timezone, latest, end) {
                Some(later) => latest = later,
                None => return (end, false),
            }
        }
        (end_of(latest), true)
    }
}

#[cfg(test)]
mod tests;
