//! When a server is online: a pattern of the hours of a week, in UTC.
//!
//! Measured from the times at which the server went offline and came back. An hour counts as online
//! if the server was online for at least half of it, over all weeks that were observed.

use jiff::{SignedDuration, Timestamp};

/// A server that has been offline for this long is expected to stay offline.
pub const OFFLINE_FOR_LONG: SignedDuration = SignedDuration::from_hours(7 * 24);

pub(super) const HOURS: usize = 7 * 24;
const HOUR: i64 = 3_600;

/// The hours of a week in which a server is online.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeekPattern([bool; HOURS]);

/// What is known about the presence of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    state: State,
    /// `None`: always online.
    pattern: Option<Box<WeekPattern>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Online,
    /// Offline now, expected back.
    Offline,
    /// Offline for so long that it is not expected back.
    Gone,
}

/// The index of the hour of the week that contains a time.
pub(super) fn hour_of_week(at: Timestamp) -> usize {
    // The first of January 1970 was a Thursday, so the week starts on Thursday. Only the length of
    // the cycle matters.
    at.as_second().div_euclid(HOUR).rem_euclid(HOURS as i64) as usize
}

/// The next full hour after a time.
pub(super) fn next_hour(at: Timestamp) -> Option<Timestamp> {
    Timestamp::from_second((at.as_second().div_euclid(HOUR) + 1) * HOUR).ok()
}

impl WeekPattern {
    /// `online` decides about each hour of the week, from Thursday 00:00 UTC.
    pub fn new(online: impl Fn(usize) -> bool) -> WeekPattern {
        WeekPattern(std::array::from_fn(online))
    }

    /// Measures the pattern from the changes of a server between `from` and `now`, oldest first:
    /// when, and whether it was online afterwards. `None` if it is always online, or if less than a
    /// week was observed.
    pub fn measure(
        changes: &[(Timestamp, bool)],
        from: Timestamp,
        now: Timestamp,
    ) -> Option<WeekPattern> {
        let week = SignedDuration::from_hours(HOURS as i64);
        let (_, first) = changes.first()?;
        if now.duration_since(from) < week {
            return None;
        }
        let (mut online, mut observed) = ([0_i64; HOURS], [0_i64; HOURS]);
        let ends = changes.iter().map(|(at, _)| *at).chain([now]);
        let states = std::iter::once(!first).chain(changes.iter().map(|(_, after)| *after));
        let mut at = from.as_second();
        for (end, is_online) in ends.zip(states) {
            let end = end.as_second().min(now.as_second());
            while at < end {
                let hour = at.div_euclid(HOUR);
                let until = end.min((hour + 1) * HOUR);
                let index = hour.rem_euclid(HOURS as i64) as usize;
                observed[index] += until - at;
                online[index] += if is_online { until - at } else { 0 };
                at = until;
            }
        }
        let pattern = WeekPattern::new(|hour| 2 * online[hour] >= observed[hour]);
        (!pattern.0.iter().all(|online| *online)).then_some(pattern)
    }

    fn is_online(&self, at: Timestamp) -> bool {
        self.0[hour_of_week(at)]
    }
}

impl Presence {
    /// A server that was last seen at `last_seen`. `offline`: it is offline now.
    pub fn new(
        offline: bool,
        last_seen: Timestamp,
        now: Timestamp,
        pattern: Option<WeekPattern>,
    ) -> Presence {
        let state = match offline {
            false => State::Online,
            true if now.duration_since(last_seen) < OFFLINE_FOR_LONG => State::Offline,
            true => State::Gone,
        };
        Presence { state, pattern: pattern.map(Box::new) }
    }

    /// A server that is always online.
    pub fn always() -> Presence {
        Presence { state: State::Online, pattern: None }
    }

    pub(super) fn is_online_now(&self) -> bool {
        self.state == State::Online
    }

    /// Whether it is online in an hour after the current one.
    pub(super) fn is_online_at(&self, at: Timestamp) -> bool {
        self.state != State::Gone
            && self.pattern.as_ref().is_none_or(|pattern| pattern.is_online(at))
    }

    /// Whether its expected state differs between the hour before `hour` and `hour`.
    pub(super) fn changes_at(&self, hour: usize) -> bool {
        let pattern = self.pattern.as_ref().filter(|_| self.state != State::Gone);
        pattern.is_some_and(|pattern| pattern.0[hour] != pattern.0[(hour + HOURS - 1) % HOURS])
    }

    /// Whether it is online at certain hours only.
    pub fn has_pattern(&self) -> bool {
        self.pattern.is_some() && self.state != State::Gone
    }

    /// Whether it is offline now and expected back.
    pub fn is_expected_back(&self) -> bool {
        self.state == State::Offline
    }

    /// Whether it is expected to stay offline.
    pub fn is_gone(&self) -> bool {
        self.state == State::Gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn regular_nights_offline_are_a_pattern_and_a_single_outage_is_none() {
        let from = at("2026-10-01T00:00Z");
        let now = from + SignedDuration::from_hours(28 * 24);
        let mut changes = Vec::new();
        for day in 0..28 {
            let midnight = from + SignedDuration::from_hours(24 * day);
            changes.push((midnight + SignedDuration::from_mins(20 * 60 + 10), false));
            changes.push((midnight + SignedDuration::from_mins(24 * 60 + 6 * 60 + 10), true));
        }
        let pattern = WeekPattern::measure(&changes, from, now).unwrap();
        for (time, online) in [("19:30", true), ("20:30", false), ("05:30", false), ("06:30", true)]
        {
            assert_eq!(pattern.is_online(at(&format!("2026-11-03T{time}Z"))), online, "{time}");
        }
        let once = [(at("2026-10-07T02:00Z"), false), (at("2026-10-07T09:00Z"), true)];
        assert_eq!(WeekPattern::measure(&once, from, now), None);
        assert_eq!(WeekPattern::measure(&[], from, now), None);
        let days = from + SignedDuration::from_hours(48);
        assert_eq!(WeekPattern::measure(&changes, from, days), None, "less than a week");
    }

    #[test]
    fn server_offline_for_a_week_is_not_expected_back() {
        let now = at("2026-10-08T00:00Z");
        let briefly = Presence::new(true, at("2026-10-01T00:01Z"), now, None);
        assert!(
            briefly.is_expected_back() && briefly.is_online_at(now) && !briefly.is_online_now()
        );
        let gone = Presence::new(true, at("2026-10-01T00:00Z"), now, None);
        assert!(gone.is_gone() && !gone.is_online_at(now) && !gone.has_pattern());
        assert!(Presence::always().is_online_now() && Presence::always().is_online_at(now));
    }
}
