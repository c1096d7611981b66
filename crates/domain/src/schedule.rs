//! When a schedule runs. Only this module handles clock changes.
//!
//! A cron expression uses local time, and in most zones local time jumps twice a year. The rules:
//!
//! - A local time that does not exist runs at the first instant after the gap.
//! - A local time that exists twice runs once, at its first occurrence.
//! - An expression with `*` or `*/n` for minute or hour means "at regular intervals" and follows
//!   the clock: nothing is added after a gap, and both occurrences of a repeated hour count, so
//!   that the spacing stays even. Only if a gap removed every run of a day (`*/15 2 * * *` when two
//!   o'clock is missing) does it run once, at the first instant after the gap, so that no day is
//!   lost.
//! - A date that a zone skips (30 December 2011 in Samoa) has no runs.
//!
//! No clock, no state: the engine passes in the time and the last instant that it handled.

use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};
use vocab::{Cron, SkipReason, Zone};

/// Returns the first instant after `after` at which the schedule runs. `None` only near the year
/// 9999.
pub fn next_after(cron: &Cron, zone: &Zone, after: Timestamp) -> Option<Timestamp> {
    let rules = zone.time_zone();
    let mut from = after.checked_add(SignedDuration::from_nanos(1)).ok()?;
    // Between two clock changes local time runs evenly, so each such period is searched on a plain
    // calendar. An expression runs at least every 40 years (a fifth Monday in February), so this
    // loop ends after at most 80 periods.
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

/// Returns the next `count` instants after `after`.
pub fn next_runs(cron: &Cron, zone: &Zone, after: Timestamp, count: usize) -> Vec<Timestamp> {
    let next = |at: &Timestamp| next_after(cron, zone, *at);
    std::iter::successors(next(&after), next).take(count).collect()
}

/// Whether `at` is the first instant at which clocks show `local`.
fn is_first_pass(time_zone: &TimeZone, local: DateTime, at: Timestamp) -> bool {
    time_zone.to_ambiguous_timestamp(local).earlier().is_ok_and(|first| first == at)
}

/// Whether a run is due at a clock change because the clock skips over its time.
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

/// How late a run may start if its schedule has no window.
pub const LATE_WINDOW: SignedDuration = SignedDuration::from_hours(1);

/// Maximum number of missed runs that are counted individually.
pub const MISSED_COUNTED_MAX: u32 = 1_000;

/// How far the clock may be set back before the last handled instant is considered wrong.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_hours(1);

/// What to do about a schedule now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// Start the run that is scheduled for this time, possibly late.
    pub start: Option<Timestamp>,
    /// Record that these runs did not start; at most two entries.
    pub skipped: Vec<Skipped>,
    /// Store this as the last handled instant.
    pub handled: Timestamp,
    /// When to call again.
    pub wake_at: Option<Timestamp>,
}

/// Runs that did not start, recorded as one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skipped {
    pub reason: SkipReason,
    pub first: Timestamp,
    pub last: Timestamp,
    /// Number of instants; [`MISSED_COUNTED_MAX`] means that many or more.
    pub count: u32,
}

/// State of a schedule, as input to [`due`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The last handled instant; for a new schedule, when it was created or enabled.
    pub handled: Timestamp,
    /// How late a run may start: the schedule's own window, or [`LATE_WINDOW`].
    pub window: SignedDuration,
    /// Whether a run of this schedule has not finished.
    pub unfinished: bool,
}

/// Returns what is due now. Of all runs scheduled since the last handled time, the latest starts if
/// it is within its window. All older ones are recorded as missed, in one entry. So there is at
/// most one run after an outage, and a long outage does not cause more work.
///
/// While a run is unfinished, no other starts, and the latest one is recorded as an overlap.
///
/// If the clock was set back by more than an hour, the last handled time is in the future,
/// perhaps by years. The schedule then continues from `now`, and the same times occur again. The
/// caller keeps at most one run per time, and must reject times that already have one.
pub fn due(cron: &Cron, zone: &Zone, progress: Progress, now: Timestamp) -> Due {
    let Progress { handled, window, unfinished } = progress;
    let handled = if handled.duration_since(now) > CLOCK_TOLERANCE { now } else { handled };
    let mut due = Due {
        start: None,
        skipped: Vec::new(),
        handled,
        wake_at: next_after(cron, zone, now.max(handled)),
    };
    let Some(newest) = latest_between(cron, zone, handled, now) else { return due };
    due.handled = newest;
    let in_time = now.duration_since(newest) <= window;
    let missed_until = if in_time { newest.checked_sub(NANOSECOND).ok() } else { Some(newest) };
    due.skipped.extend(missed_until.and_then(|until| missed_between(cron, zone, handled, until)));
    if in_time && unfinished {
        let reason = SkipReason::Overlap;
        due.skipped.push(Skipped { reason, first: newest, last: newest, count: 1 });
    } else if in_time {
        due.start = Some(newest);
    }
    due
}

const NANOSECOND: SignedDuration = SignedDuration::from_nanos(1);

/// Returns the instants after `after` and up to `until`, as one entry.
fn missed_between(cron: &Cron, zone: &Zone, after: Timestamp, until: Timestamp) -> Option<Skipped> {
    let first = next_after(cron, zone, after).filter(|at| *at <= until)?;
    let last = latest_between(cron, zone, after, until)?;
    let next = |at: &Timestamp| next_after(cron, zone, *at).filter(|at| *at <= last);
    let counted = std::iter::successors(Some(first), next).take(MISSED_COUNTED_MAX as usize);
    let count = u32::try_from(counted.count()).unwrap_or(MISSED_COUNTED_MAX);
    Some(Skipped { reason: SkipReason::Missed, first, last, count })
}

/// Returns the last instant after `after` and up to `until`. Uses bisection, because a schedule may
/// have half a million instants in a year.
pub(crate) fn latest_between(
    cron: &Cron,
    zone: &Zone,
    after: Timestamp,
    until: Timestamp,
) -> Option<Timestamp> {
    let found_after = |at| next_after(cron, zone, at).filter(|found| *found <= until);
    let mut newest = found_after(after)?;
    // Anything found between `newest` and `none_after` is newer still.
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
