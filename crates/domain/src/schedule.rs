//! When a schedule runs: the one place that knows about clocks that change.
//!
//! A cron expression speaks of local time, and twice a year local time jumps. The rules:
//!
//! - A local time that does not exist runs at the first instant after the gap.
//! - A local time that exists twice runs once, the first time.
//! - An expression with `*` or `*/n` for minute or hour means "every so often" and follows the clock
//!   as it goes: nothing is added after a gap, and both passes of a repeated hour count, so that
//!   the spacing stays even. Only if a gap took every run of a day (`*/15 2 * * *`, where two
//!   o'clock is missing) does it run once, at the first instant after the gap: no day is lost.
//! - A date that a zone leaves out altogether (30 December 2011 in Samoa) has no runs.
//!
//! No clock, no state: the engine hands in the time and the last instant that it dealt with.

use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};
use vocab::{Cron, SkipReason, Zone};

/// The first instant after `after` at which the schedule runs. Nothing only near the year 9999.
pub fn next_after(cron: &Cron, zone: &Zone, after: Timestamp) -> Option<Timestamp> {
    let rules = zone.rules();
    let mut from = after.checked_add(SignedDuration::from_nanos(1)).ok()?;
    // Between two changes of the clock local time runs evenly, so each such stretch is searched on
    // a plain calendar. An expression runs at least every 40 years (a fifth Monday in February),
    // so this ends after 80 stretches at the most.
    loop {
        let offset = rules.to_offset(from);
        let change = rules.following(from).next().map(|change| change.timestamp());
        let mut local = offset.to_datetime(from);
        loop {
            let hit = cron.next_at_or_after(local)?;
            let at = offset.to_timestamp(hit).ok()?;
            if change.is_some_and(|change| at >= change) {
                break;
            }
            if cron.is_interval() || is_first_pass(rules, hit, at) {
                return Some(at);
            }
            local = hit.checked_add(SignedDuration::from_mins(1)).ok()?;
        }
        let change = change?;
        if runs_after_gap(cron, offset.to_datetime(change), rules.to_offset(change), change) {
            return Some(change);
        }
        from = change;
    }
}

/// The next `count` instants after `after`.
pub fn next_runs(cron: &Cron, zone: &Zone, after: Timestamp, count: usize) -> Vec<Timestamp> {
    let next = |at: &Timestamp| next_after(cron, zone, *at);
    std::iter::successors(next(&after), next).take(count).collect()
}

/// Whether `at` is the first instant at which clocks show `local`.
fn is_first_pass(rules: &TimeZone, local: DateTime, at: Timestamp) -> bool {
    rules.to_ambiguous_timestamp(local).earlier().is_ok_and(|first| first == at)
}

/// Whether a run is due at the instant of a change because of what the clocks leap over there.
fn runs_after_gap(cron: &Cron, gap_start: DateTime, after: Offset, change: Timestamp) -> bool {
    let gap_end = after.to_datetime(change);
    let mut from = gap_start;
    while from < gap_end {
        let Some(lost) = cron.next_at_or_after(from).filter(|lost| *lost < gap_end) else {
            return false;
        };
        let midnight = lost.date().to_datetime(jiff::civil::Time::midnight());
        let Ok(next_midnight) = midnight.checked_add(SignedDuration::from_hours(24)) else {
            return false;
        };
        let day_exists = midnight < gap_start || gap_end < next_midnight;
        if day_exists {
            let runs_before = cron.next_at_or_after(midnight).is_some_and(|run| run < gap_start);
            let runs_later = cron.next_at_or_after(gap_end).is_some_and(|run| run < next_midnight);
            return !cron.is_interval() || !(runs_before || runs_later);
        }
        from = next_midnight;
    }
    false
}

/// How late a run may start if its schedule does not say.
pub const LATE_WINDOW: SignedDuration = SignedDuration::from_hours(1);

/// The most missed instants that are counted one by one.
pub const MISSED_COUNTED_MAX: u32 = 1_000;

/// How far back a clock may be set before the last dealt-with instant is doubted.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_hours(1);

/// What is to be done about a schedule now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// Start the run of this instant, perhaps late.
    pub start: Option<Timestamp>,
    /// Record that these did not start; at most two entries.
    pub skipped: Vec<Skipped>,
    /// Remember this as the last instant that was dealt with.
    pub handled: Timestamp,
    /// When to ask again.
    pub wake_at: Option<Timestamp>,
}

/// Instants that did not start, recorded as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skipped {
    /// Why they did not.
    pub reason: SkipReason,
    /// The first of them.
    pub first: Timestamp,
    /// The last of them.
    pub last: Timestamp,
    /// How many there were; [`MISSED_COUNTED_MAX`] means so many or more.
    pub count: u32,
}

/// What is known of a schedule when it is asked what is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The last instant that was dealt with; for a new schedule, when it was made or enabled.
    pub handled: Timestamp,
    /// How late a run may start: the schedule's own window, or [`LATE_WINDOW`].
    pub window: SignedDuration,
    /// Whether a run of this schedule is unfinished.
    pub unfinished: bool,
}

/// What is due now: of all the instants since the last one that was dealt with, the newest starts
/// if it is not later than its window, and every older one is recorded as missed, all in one entry.
/// So after an outage there is at most one run, and the work is bounded however long it was.
///
/// While a run is unfinished nothing starts, and the newest instant is recorded as an overlap.
///
/// If the clock was set back by more than an hour, the last dealt-with instant lies in a future
/// that may be years away, and the schedule goes on from `now`. Instants then come around again;
/// the caller, who keeps at most one run for each instant, refuses those that have one.
pub fn due(cron: &Cron, zone: &Zone, progress: Progress, now: Timestamp) -> Due {
    let Progress { handled, window, unfinished } = progress;
    let handled = if handled.duration_since(now) > CLOCK_TOLERANCE { now } else { handled };
    let mut due = Due {
        start: None,
        skipped: Vec::new(),
        handled,
        wake_at: next_after(cron, zone, now.max(handled)),
    };
    let Some(newest) = newest_in(cron, zone, handled, now) else { return due };
    due.handled = newest;
    let in_time = now.duration_since(newest) <= window;
    let missed_until = if in_time { newest.checked_sub(NANOSECOND).ok() } else { Some(newest) };
    due.skipped.extend(missed_until.and_then(|until| missed(cron, zone, handled, until)));
    if in_time && unfinished {
        let reason = SkipReason::Overlap;
        due.skipped.push(Skipped { reason, first: newest, last: newest, count: 1 });
    } else if in_time {
        due.start = Some(newest);
    }
    due
}

const NANOSECOND: SignedDuration = SignedDuration::from_nanos(1);

/// The instants after `after` and up to `until`, as one entry.
fn missed(cron: &Cron, zone: &Zone, after: Timestamp, until: Timestamp) -> Option<Skipped> {
    let first = next_after(cron, zone, after).filter(|at| *at <= until)?;
    let last = newest_in(cron, zone, after, until)?;
    let next = |at: &Timestamp| next_after(cron, zone, *at).filter(|at| *at <= last);
    let counted = std::iter::successors(Some(first), next).take(MISSED_COUNTED_MAX as usize);
    let count = u32::try_from(counted.count()).unwrap_or(MISSED_COUNTED_MAX);
    Some(Skipped { reason: SkipReason::Missed, first, last, count })
}

/// The last instant after `after` and up to `until`: by halving, since a schedule may have had half
/// a million of them in a year.
fn newest_in(cron: &Cron, zone: &Zone, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
    let found_after = |at| next_after(cron, zone, at).filter(|found| *found <= until);
    let mut newest = found_after(after)?;
    // Whatever is found after `newest` and before `none_after` is newer still.
    let mut none_after = until;
    while let Some(found) = found_after(newest) {
        newest = found;
        let middle = newest + (none_after.duration_since(newest) / 2);
        match found_after(middle) {
            Some(found) => newest = found,
            None => none_after = middle,
        }
    }
    Some(newest)
}

#[cfg(test)]
mod tests;
