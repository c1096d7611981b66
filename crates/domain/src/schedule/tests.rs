//! Golden instants for six zones, computed independently of this code by iterating over every
//! minute of UTC with another implementation of the time zone database; then properties that hold
//! in any zone.

use super::*;
use jiff::civil::{Date, date};
use jiff::tz::AmbiguousOffset;
use proptest::prelude::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn cron(text: &str) -> Cron {
    text.parse().unwrap()
}

fn zone(name: &str) -> Zone {
    name.parse().unwrap()
}

/// Returns the first `count` instants from `from` on, without year and seconds.
fn runs(zone_name: &str, cron_text: &str, from: &str, count: usize) -> Vec<String> {
    let from = at(from) - SignedDuration::from_nanos(1);
    let runs = next_runs(&cron(cron_text), &zone(zone_name), from, count);
    runs.iter().map(|run| run.strftime("%m-%dT%H:%M").to_string()).collect()
}

type Row = (&'static str, &'static str, &'static str, &'static [&'static str]);

#[rustfmt::skip]
const GOLDEN: &[Row] = &[
    // The hour from two to three is skipped in spring and repeated in autumn.
    ("Europe/Berlin", "30 2 * * *", "2026-03-28T00:00Z", &["03-28T01:30", "03-29T01:00", "03-30T00:30"]),
    ("Europe/Berlin", "30 2 * * *", "2026-10-24T00:00Z", &["10-24T00:30", "10-25T00:30", "10-26T01:30"]),
    ("Europe/Berlin", "30 2 * * *", "2027-03-27T00:00Z", &["03-27T01:30", "03-28T01:00", "03-29T00:30"]),
    ("Europe/Berlin", "30 2 * * *", "2027-10-30T00:00Z", &["10-30T00:30", "10-31T00:30", "11-01T01:30"]),
    // Several fixed times a day are all treated as fixed times.
    ("Europe/Berlin", "30 2,14 * * *", "2026-03-28T00:00Z",
        &["03-28T01:30", "03-28T13:30", "03-29T01:00", "03-29T12:30", "03-30T00:30", "03-30T12:30"]),
    ("Europe/Berlin", "30 2,14 * * *", "2026-10-24T00:00Z",
        &["10-24T00:30", "10-24T12:30", "10-25T00:30", "10-25T13:30", "10-26T01:30", "10-26T13:30"]),
    // Intervals within a missing hour: one run, so that the day is not lost.
    ("Europe/Berlin", "*/15 2 * * *", "2026-03-28T01:30Z", &["03-28T01:30", "03-28T01:45", "03-29T01:00", "03-30T00:00"]),
    ("Europe/Berlin", "*/15 2 * * *", "2026-10-25T00:00Z",
        &["10-25T00:00", "10-25T00:15", "10-25T00:30", "10-25T00:45", "10-25T01:00", "10-25T01:15",
          "10-25T01:30", "10-25T01:45", "10-26T01:00"]),
    // Intervals across the gap: nothing is added, and nothing is moved.
    ("Europe/Berlin", "20 * * * *", "2026-03-29T00:00Z", &["03-29T00:20", "03-29T01:20", "03-29T02:20"]),
    ("Europe/Berlin", "0 */2 * * *", "2026-03-28T22:30Z", &["03-28T23:00", "03-29T02:00", "03-29T04:00"]),
    ("America/New_York", "15 1 * * *", "2026-03-07T00:00Z", &["03-07T06:15", "03-08T06:15", "03-09T05:15"]),
    ("America/New_York", "15 1 * * *", "2026-10-31T00:00Z", &["10-31T05:15", "11-01T05:15", "11-02T06:15"]),
    ("America/New_York", "15 1 * * *", "2027-11-06T00:00Z", &["11-06T05:15", "11-07T05:15", "11-08T06:15"]),
    ("America/New_York", "30 2 * * *", "2026-03-07T00:00Z", &["03-07T07:30", "03-08T07:00", "03-09T06:30"]),
    ("America/New_York", "30 2 * * *", "2026-10-31T00:00Z", &["10-31T06:30", "11-01T07:30", "11-02T07:30"]),
    ("America/New_York", "30 2 * * *", "2027-03-13T00:00Z", &["03-13T07:30", "03-14T07:00", "03-15T06:30"]),
    // Half an hour is skipped in October and repeated in April.
    ("Australia/Lord_Howe", "15 2 * * *", "2026-04-03T00:00Z", &["04-03T15:15", "04-04T15:45", "04-05T15:45"]),
    ("Australia/Lord_Howe", "15 2 * * *", "2026-10-02T00:00Z", &["10-02T15:45", "10-03T15:30", "10-04T15:15"]),
    ("Australia/Lord_Howe", "15 2 * * *", "2027-10-01T00:00Z", &["10-01T15:45", "10-02T15:30", "10-03T15:15"]),
    ("Australia/Lord_Howe", "45 1 * * *", "2026-04-03T00:00Z", &["04-03T14:45", "04-04T14:45", "04-05T15:15"]),
    ("Australia/Lord_Howe", "45 1 * * *", "2027-04-02T00:00Z", &["04-02T14:45", "04-03T14:45", "04-04T15:15"]),
    ("Australia/Lord_Howe", "45 1 * * *", "2026-10-02T00:00Z", &["10-02T15:15", "10-03T15:15", "10-04T14:45"]),
    // Midnight itself is skipped in September; the hour from 23:00 is repeated in April.
    ("America/Santiago", "30 23 * * *", "2026-04-04T00:00Z", &["04-04T02:30", "04-05T02:30", "04-06T03:30"]),
    ("America/Santiago", "30 23 * * *", "2027-04-03T00:00Z", &["04-03T02:30", "04-04T02:30", "04-05T03:30"]),
    ("America/Santiago", "15 0 * * *", "2026-04-04T00:00Z", &["04-04T03:15", "04-05T04:15", "04-06T04:15"]),
    ("America/Santiago", "15 0 * * *", "2026-09-05T00:00Z", &["09-05T04:15", "09-06T04:00", "09-07T03:15"]),
    ("America/Santiago", "15 0 * * *", "2027-09-04T00:00Z", &["09-04T04:15", "09-05T04:00", "09-06T03:15"]),
    ("Asia/Kolkata", "30 2 * * *", "2026-03-28T00:00Z", &["03-28T21:00", "03-29T21:00", "03-30T21:00"]),
    ("Asia/Kolkata", "30 2 * * *", "2027-10-30T00:00Z", &["10-30T21:00", "10-31T21:00", "11-01T21:00"]),
    ("Pacific/Apia", "30 2 * * *", "2026-04-04T00:00Z", &["04-04T13:30", "04-05T13:30", "04-06T13:30"]),
    ("Pacific/Apia", "30 2 * * *", "2027-04-03T00:00Z", &["04-03T13:30", "04-04T13:30", "04-05T13:30"]),
    // Samoa went from 29 to 31 December 2011: the skipped date has no runs.
    ("Pacific/Apia", "30 2 * * *", "2011-12-29T00:00Z", &["12-29T12:30", "12-30T12:30", "12-31T12:30"]),
    ("Pacific/Apia", "0 * * * *", "2011-12-30T08:00Z", &["12-30T08:00", "12-30T09:00", "12-30T10:00", "12-30T11:00"]),
];

#[test]
fn golden_instants_match() {
    for (zone_name, cron_text, from, expected) in GOLDEN {
        let found = runs(zone_name, cron_text, from, expected.len());
        assert_eq!(found, *expected, "{zone_name} `{cron_text}` from {from}");
    }
}

#[test]
fn yearly_run_on_skipped_date_waits_a_year() {
    let next = next_after(&cron("0 3 30 12 *"), &zone("Pacific/Apia"), at("2011-06-01T00:00Z"));
    assert_eq!(next, Some(at("2012-12-29T13:00Z")));
}

/// The second occurrence belongs to the date on which the hour repeats, and must not be skipped in
/// favor of a run a month later.
#[test]
fn rare_schedule_runs_in_both_repeated_hours() {
    let monthly = cron("*/30 1 1 * *");
    let next = next_runs(&monthly, &zone("America/New_York"), at("2026-11-01T05:30Z"), 3);
    assert_eq!(next, [at("2026-11-01T06:00Z"), at("2026-11-01T06:30Z"), at("2026-12-01T06:00Z")]);
}

#[test]
fn intervals_stay_even_across_clock_changes() {
    for name in ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago"] {
        let zone = zone(name);
        let changes = zone.time_zone().following(at("2026-01-01T00:00Z")).take(4);
        for change in changes.map(|change| change.timestamp()) {
            let day_before = change - SignedDuration::from_hours(24);
            for pair in next_runs(&cron("*/15 * * * *"), &zone, day_before, 200).windows(2) {
                assert_eq!(pair[1].duration_since(pair[0]).as_mins(), 15, "{name} {}", pair[1]);
            }
        }
    }
}

#[test]
fn rarest_schedule_is_found_and_search_ends() {
    let berlin = zone("Europe/Berlin");
    assert_eq!(
        next_after(&cron("0 12 * 2 1#5"), &berlin, at("2072-03-01T00:00Z")),
        Some(at("2112-02-29T11:00Z"))
    );
    assert_eq!(next_after(&cron("* * * * *"), &berlin, Timestamp::MAX), None);
    assert!(next_after(&cron("0 3 * * *"), &berlin, Timestamp::MIN).is_some());
    assert_eq!(next_runs(&cron("0 3 * * *"), &berlin, at("2026-01-01T00:00Z"), 5).len(), 5);
}

/// Computes the instant of a fixed local time on a date, without the search.
fn expected_instant(day: Date, hour: i8, minute: i8, time_zone: &TimeZone) -> Timestamp {
    let local = day.at(hour, minute, 0, 0);
    let instant = time_zone.to_ambiguous_timestamp(local);
    match instant.offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(local).unwrap(),
        AmbiguousOffset::Fold { before, .. } => before.to_timestamp(local).unwrap(),
        AmbiguousOffset::Gap { .. } => {
            // Any instant after the gap, and then the clock change before it.
            let later = instant.later().unwrap();
            time_zone.preceding(later + SignedDuration::from_nanos(1)).next().unwrap().timestamp()
        }
    }
}

fn zones() -> impl Strategy<Value = Zone> {
    let names: Vec<String> =
        jiff::tz::TimeZoneDatabase::bundled().available().map(|name| name.to_string()).collect();
    // Half of all zones never change their clocks; these do.
    let changing = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago"];
    prop_oneof![
        proptest::sample::select(names),
        proptest::sample::select(changing.map(str::to_owned).to_vec()),
    ]
    .prop_map(|name| zone(&name))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Two years, any zone, any time of the day.
    #[test]
    fn fixed_local_time_runs_once_per_local_day(
        zone in zones(), hour in prop_oneof![0..4_i8, 0..24_i8], minute in 0..60_i8
    ) {
        let rules = zone.time_zone();
        let first = date(2026, 1, 1);
        let expected: Vec<Timestamp> =
            first.series(jiff::Span::new().days(1)).take(731).map(|day| expected_instant(day, hour, minute, rules)).collect();
        let before = expected[0] - SignedDuration::from_secs(1);
        let found = next_runs(&cron(&format!("{minute} {hour} * * *")), &zone, before, 731);
        prop_assert_eq!(found, expected);
    }

    /// In the history of any zone, with jumps of hours and days, and offsets in seconds.
    #[test]
    fn runs_are_strictly_ascending(
        zone in zones(),
        text in "(\\*/(1|7|15|40)|0|59) (\\*|\\*/5|0|2|23|1-3) (\\*|1|31) \\* (\\*|7)",
        from in -3_000_000_000_i64..3_000_000_000
    ) {
        let from = Timestamp::from_second(from).unwrap();
        let found = next_runs(&cron(&text), &zone, from, 50);
        prop_assert_eq!(found.len(), 50);
        prop_assert!(found[0] > from && found.is_sorted_by(|a, b| a < b));
    }
}

// Tests of `due`.

fn due_for(cron_text: &str, handled: &str, now: &str) -> Due {
    due(&cron(cron_text), &Zone::default(), progress(handled), at(now))
}

fn progress(handled: &str) -> Progress {
    Progress { handled: at(handled), window: LATE_WINDOW, unfinished: false }
}

#[test]
fn instant_starts_once_and_then_waits_for_next() {
    let before = due_for("0 3 * * *", "2026-11-14T03:00Z", "2026-11-15T02:59:59Z");
    assert_eq!((before.start, before.wake_at), (None, Some(at("2026-11-15T03:00Z"))));
    assert_eq!(before.handled, at("2026-11-14T03:00Z"));
    let then = due_for("0 3 * * *", "2026-11-14T03:00Z", "2026-11-15T03:00Z");
    assert_eq!(then.start, Some(at("2026-11-15T03:00Z")));
    assert_eq!(then.handled, at("2026-11-15T03:00Z"));
    assert_eq!((then.skipped, then.wake_at), (vec![], Some(at("2026-11-16T03:00Z"))));
    let after = due_for("0 3 * * *", "2026-11-15T03:00Z", "2026-11-15T03:00:01Z");
    assert_eq!(after.start, None);
}

#[test]
fn missed_run_starts_late_only_within_window() {
    let late = due_for("0 3 * * *", "2026-11-14T03:00Z", "2026-11-15T04:00Z");
    assert_eq!(late.start, Some(at("2026-11-15T03:00Z")));
    let too_late = due_for("0 3 * * *", "2026-11-14T03:00Z", "2026-11-15T04:00:01Z");
    let instant = at("2026-11-15T03:00Z");
    assert_eq!(too_late.start, None);
    assert_eq!(
        too_late.skipped,
        [Skipped { reason: SkipReason::Missed, first: instant, last: instant, count: 1 }]
    );
    assert_eq!(too_late.handled, instant);
}

#[test]
fn unfinished_run_makes_next_one_an_overlap() {
    let unfinished = Progress { unfinished: true, ..progress("2026-11-15T03:00Z") };
    let now = at("2026-11-15T03:15Z");
    let due = due(&cron("*/15 * * * *"), &Zone::default(), unfinished, now);
    let skip = Skipped { reason: SkipReason::Overlap, first: now, last: now, count: 1 };
    assert_eq!((due.start, due.skipped, due.handled), (None, vec![skip], now));
}

/// Three days of downtime with a run every quarter of an hour.
#[test]
fn outage_gives_one_run_and_one_missed_record() {
    let due = due_for("*/15 * * * *", "2026-11-12T12:00Z", "2026-11-15T12:05Z");
    assert_eq!(due.start, Some(at("2026-11-15T12:00Z")));
    assert_eq!(
        due.skipped,
        [Skipped {
            reason: SkipReason::Missed,
            first: at("2026-11-12T12:15Z"),
            last: at("2026-11-15T11:45Z"),
            count: 3 * 96 - 1,
        }]
    );
}

#[test]
fn year_of_downtime_costs_bounded_work() {
    let due = due_for("* * * * *", "2025-11-15T12:00Z", "2026-11-15T12:00:30Z");
    assert_eq!(due.start, Some(at("2026-11-15T12:00Z")));
    assert_eq!(
        due.skipped,
        [Skipped {
            reason: SkipReason::Missed,
            first: at("2025-11-15T12:01Z"),
            last: at("2026-11-15T11:59Z"),
            count: MISSED_COUNTED_MAX,
        }]
    );
}

/// A clock that is corrected after it was years ahead must not stop a schedule for years.
#[test]
fn clock_set_back_neither_repeats_nor_blocks_runs() {
    let little = due_for("*/15 * * * *", "2026-11-15T12:15Z", "2026-11-15T12:10Z");
    assert_eq!((little.start, little.handled), (None, at("2026-11-15T12:15Z")));
    assert_eq!(little.wake_at, Some(at("2026-11-15T12:30Z")), "12:15 has already run");
    let years = due_for("*/15 * * * *", "2036-11-15T12:15Z", "2026-11-15T12:10Z");
    assert_eq!((years.start, years.handled), (None, at("2026-11-15T12:10Z")));
    assert_eq!(years.wake_at, Some(at("2026-11-15T12:15Z")));
}

proptest! {
    /// However often and whenever the engine calls, every instant is handled exactly once.
    #[test]
    fn every_instant_is_started_or_recorded_once(
        looks in proptest::collection::vec(1..200_i64, 1..20),
        unfinished in proptest::collection::vec(any::<bool>(), 20)
    ) {
        let (cron, zone) = (cron("*/20 * * * *"), Zone::default());
        let start = at("2026-11-15T12:00Z");
        let (mut handled, mut now, mut seen) = (start, start, 0);
        for (minutes, unfinished) in looks.iter().zip(unfinished) {
            now += SignedDuration::from_mins(*minutes);
            let progress = Progress { handled, window: LATE_WINDOW, unfinished };
            let due = due(&cron, &zone, progress, now);
            prop_assert!(due.start.is_none_or(|at| now.duration_since(at) <= LATE_WINDOW));
            prop_assert!(due.skipped.len() <= 2 && !(unfinished && due.start.is_some()));
            seen += usize::from(due.start.is_some());
            seen += due.skipped.iter().map(|skip| skip.count as usize).sum::<usize>();
            handled = due.handled;
        }
        let all = next_runs(&cron, &zone, start, 1_000);
        prop_assert_eq!(seen, all.iter().filter(|at| **at <= now).count());
    }
}
