//! Examples with clock changes, and a comparison with a count of minutes.

use super::*;
use proptest::prelude::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn minutes(count: i64) -> SignedDuration {
    SignedDuration::from_mins(count)
}

fn recurring(cron: &str, zone: &str, duration_minutes: i64) -> Timing {
    Timing::Recurring {
        cron: cron.parse().unwrap(),
        duration: minutes(duration_minutes),
        timezone: zone.parse().unwrap(),
    }
}

fn one_off(starts_at: &str, ends_at: &str) -> Timing {
    Timing::OneOff { starts_at: at(starts_at), ends_at: at(ends_at) }
}

fn period(starts_at: &str, ends_at: &str) -> Period {
    Period { starts_at: at(starts_at), ends_at: at(ends_at) }
}

#[test]
fn one_off_includes_its_start_and_excludes_its_end() {
    let sale = one_off("2026-11-27T00:00Z", "2026-11-30T08:00Z");
    let whole = Some(period("2026-11-27T00:00Z", "2026-11-30T08:00Z"));
    assert_eq!(sale.active_period(at("2026-11-26T23:59:59.999Z")), None);
    assert_eq!(sale.active_period(at("2026-11-27T00:00Z")), whole);
    assert_eq!(sale.active_period(at("2026-11-30T07:59:59.999Z")), whole);
    assert_eq!(sale.active_period(at("2026-11-30T08:00Z")), None);
    assert_eq!(sale.next_change(at("2026-11-01T00:00Z")), Some(at("2026-11-27T00:00Z")));
    assert_eq!(sale.next_change(at("2026-11-27T00:00Z")), Some(at("2026-11-30T08:00Z")));
    assert_eq!(sale.next_change(at("2026-11-30T08:00Z")), None);
}

#[test]
fn one_off_that_started_in_the_past_is_active_and_listed_whole() {
    let freeze = one_off("2020-01-01T00:00Z", "2026-12-01T00:00Z");
    let whole = period("2020-01-01T00:00Z", "2026-12-01T00:00Z");
    let now = at("2026-11-15T00:00Z");
    assert_eq!(freeze.active_period(now), Some(whole));
    assert_eq!(freeze.periods(now, now + minutes(1), 5), [whole]);
    assert_eq!(freeze.periods(whole.ends_at, at("2030-01-01T00:00Z"), 5), []);
    assert_eq!(freeze.periods(now, now, 5), [], "an empty time overlaps nothing");
    assert_eq!(freeze.periods(now, at("2030-01-01T00:00Z"), 0), []);
}

/// Such a row is never written, but nothing must depend on that.
#[test]
fn period_that_ends_before_it_starts_is_never_active() {
    let wrong = one_off("2026-11-30T00:00Z", "2026-11-27T00:00Z");
    for now in ["2026-11-26T00:00Z", "2026-11-28T00:00Z", "2026-12-01T00:00Z"] {
        assert_eq!((wrong.active_period(at(now)), wrong.next_change(at(now))), (None, None));
        assert_eq!(wrong.periods(at(now), at("2027-01-01T00:00Z"), 5), []);
    }
    for duration in [0, -5] {
        let wrong = recurring("* * * * *", "UTC", duration);
        assert_eq!(wrong.active_period(at("2026-11-28T00:00Z")), None);
    }
}

#[test]
fn recurring_period_excludes_its_end() {
    let office = recurring("0 8 * * 1-5", "UTC", 600);
    let monday = Some(period("2026-11-16T08:00Z", "2026-11-16T18:00Z"));
    assert_eq!(office.active_period(at("2026-11-16T07:59:59Z")), None);
    assert_eq!(office.active_period(at("2026-11-16T08:00Z")), monday);
    assert_eq!(office.active_period(at("2026-11-16T17:59:59.999999999Z")), monday);
    assert_eq!(office.active_period(at("2026-11-16T18:00Z")), None);
    assert_eq!(office.next_change(at("2026-11-14T12:00Z")), Some(at("2026-11-16T08:00Z")));
    assert_eq!(office.next_change(at("2026-11-16T08:00Z")), Some(at("2026-11-16T18:00Z")));
    assert_eq!(
        office.periods(at("2026-11-16T17:00Z"), at("2026-11-18T08:00Z"), 9),
        [
            period("2026-11-16T08:00Z", "2026-11-16T18:00Z"),
            period("2026-11-17T08:00Z", "2026-11-17T18:00Z"),
        ]
    );
}

#[test]
fn overlapping_and_touching_periods_are_one() {
    // Friday and Saturday at 18:00, 48 hours each: until Monday 18:00.
    let weekend = recurring("0 18 * * 5,6", "UTC", 48 * 60);
    let whole = period("2026-11-20T18:00Z", "2026-11-23T18:00Z");
    for now in ["2026-11-20T18:00Z", "2026-11-21T18:00Z", "2026-11-23T17:59Z"] {
        assert_eq!(weekend.active_period(at(now)), Some(whole), "{now}");
    }
    assert_eq!(weekend.periods(at("2026-11-18T00:00Z"), at("2026-11-27T18:00Z"), 9), [whole]);
    // Two days that touch at midnight.
    let days = recurring("0 0 * * 1,2", "UTC", 24 * 60);
    let both = period("2026-11-16T00:00Z", "2026-11-18T00:00Z");
    assert_eq!(days.active_period(at("2026-11-17T00:00Z")), Some(both));
    assert_eq!(days.active_period(at("2026-11-16T23:59Z")), Some(both));
}

/// On 29 March 2026, clocks in Berlin go from 02:00 to 03:00, at 01:00 UTC.
#[test]
fn period_across_gap_has_its_whole_duration() {
    let night = recurring("30 1 * * *", "Europe/Berlin", 120);
    assert_eq!(
        night.active_period(at("2026-03-29T02:00Z")),
        Some(period("2026-03-29T00:30Z", "2026-03-29T02:30Z")),
        "01:30 to 04:30 on the clock"
    );
}

#[test]
fn period_that_would_start_in_gap_starts_after_it() {
    let night = recurring("30 2 * * *", "Europe/Berlin", 60);
    assert_eq!(
        night.periods(at("2026-03-28T12:00Z"), at("2026-03-30T12:00Z"), 9),
        [
            period("2026-03-29T01:00Z", "2026-03-29T02:00Z"),
            period("2026-03-30T00:30Z", "2026-03-30T01:30Z"),
        ]
    );
}

/// On 25 October 2026, clocks in Berlin go from 03:00 back to 02:00, at 01:00 UTC.
#[test]
fn repeated_hour_starts_fixed_time_once_and_interval_twice() {
    let fixed = recurring("30 2 * * *", "Europe/Berlin", 30);
    assert_eq!(
        fixed.periods(at("2026-10-25T00:00Z"), at("2026-10-25T12:00Z"), 9),
        [period("2026-10-25T00:30Z", "2026-10-25T01:00Z")]
    );
    let across = recurring("30 1 * * *", "Europe/Berlin", 120);
    assert_eq!(
        across.active_period(at("2026-10-25T00:45Z")),
        Some(period("2026-10-24T23:30Z", "2026-10-25T01:30Z")),
        "01:30 to 02:30, the second time that the clock shows it"
    );
    let interval = recurring("*/30 2 * * *", "Europe/Berlin", 10);
    assert_eq!(interval.periods(at("2026-10-25T00:00Z"), at("2026-10-25T12:00Z"), 9).len(), 4);
}

/// Every step covers about a month, so this is a dozen of them.
#[test]
fn every_minute_for_a_month_is_cut_and_stays_active() {
    let always = recurring("* * * * *", "Europe/Berlin", 30 * 24 * 60);
    let now = at("2026-11-15T04:00Z");
    let found = always.active_period(now).unwrap();
    assert!(found.contains(now));
    // The first start that covers `now` is a month before.
    assert!(found.ends_at.duration_since(now) > MERGE_HORIZON - minutes(30 * 24 * 60));
    assert!(now.duration_since(found.starts_at) >= MERGE_HORIZON);
    // At the cut, it is still active.
    assert!(always.active_period(found.ends_at).is_some());
    assert!(always.is_endless(now));
    let listed = always.periods(now, now + MERGE_HORIZON * 3, 5);
    assert_eq!(listed.len(), 1, "the parts of a cut period are one: {listed:?}");
}

#[test]
fn every_minute_for_a_minute_costs_a_bounded_number_of_steps() {
    let always = recurring("* * * * *", "America/New_York", 1);
    let now = at("2026-11-15T04:00:30Z");
    let found = always.active_period(now).unwrap();
    assert_eq!(found.ends_at, at("2026-11-15T04:00Z") + minutes(1 + MERGE_STEPS_MAX as i64));
    assert!(always.active_period(found.ends_at).is_some());
    assert!(always.is_endless(now));
}

#[test]
fn ordinary_freezes_are_not_endless() {
    let now = at("2026-11-15T04:00Z");
    for (cron, duration) in [
        ("0 0 * * 1-5", 24 * 60),
        ("*/5 9-17 * * *", 5),
        ("0 0 1 * *", 24 * 60),
        ("@daily", 23 * 60 + 59),
        ("0 0 * 12 *", 24 * 60),
    ] {
        assert!(!recurring(cron, "UTC", duration).is_endless(now), "{cron} {duration}");
    }
    for (cron, duration) in [("@daily", 24 * 60), ("@hourly", 60), ("@monthly", 31 * 24 * 60)] {
        assert!(recurring(cron, "UTC", duration).is_endless(now), "{cron} {duration}");
    }
    assert!(!one_off("2020-01-01T00:00Z", "2099-01-01T00:00Z").is_endless(now));
}

#[test]
fn freeze_covers_targets_with_at_least_its_criteria() {
    let selector = |value: serde_json::Value| Selector::parse(&value).unwrap();
    let covers = |freeze: serde_json::Value, targets: serde_json::Value| {
        let timing = recurring("@daily", "UTC", 60);
        Freeze { targets: selector(freeze), timing }.covers(&selector(targets))
    };
    use serde_json::json;
    let ids = ["srv_00000000000000000000000001", "srv_00000000000000000000000002"];
    assert!(covers(json!({"all": true}), json!({"tags": ["web"]})));
    assert!(!covers(json!({"tags": ["web"]}), json!({"all": true})));
    assert!(covers(json!({"tags": ["web"]}), json!({"tags": ["web", "db"], "os": "debian"})));
    assert!(!covers(json!({"tags": ["web", "db"]}), json!({"tags": ["web"]})));
    let production = json!({"environment": "production"});
    assert!(covers(production.clone(), json!({"environment": "production", "tags": ["web"]})));
    assert!(!covers(production.clone(), json!({"environment": "staging"})));
    assert!(!covers(production, json!({"tags": ["web"]})));
    assert!(!covers(json!({"os": "debian"}), json!({"os": "alpine"})));
    assert!(covers(json!({"server_ids": ids}), json!({"server_ids": [ids[1]]})));
    assert!(!covers(json!({"server_ids": [ids[0]]}), json!({"server_ids": ids})));
    assert!(!covers(json!({"server_ids": ids}), json!({"tags": ["web"]})));
}

#[test]
fn limits_of_time_do_not_panic() {
    let timings = [
        recurring("* * * * *", "Pacific/Apia", 43_200),
        recurring("0 0 1 1 *", "UTC", 1),
        Timing::OneOff { starts_at: Timestamp::MIN, ends_at: Timestamp::MAX },
    ];
    for timing in timings {
        for now in [Timestamp::MIN, Timestamp::UNIX_EPOCH, Timestamp::MAX] {
            let _ = (timing.active_period(now), timing.next_change(now), timing.is_endless(now));
            let _ = timing.periods(Timestamp::MIN, now, 3);
            let _ = timing.periods(now, Timestamp::MAX, 3);
        }
    }
}

/// Whether following this period can take more than the allowed steps: a step covers at least a
/// minute. Where a period is cut depends on where it is followed from.
fn may_be_cut(period: Period) -> bool {
    period.ends_at.duration_since(period.starts_at) > minutes(MERGE_STEPS_MAX as i64)
}

/// Every seven minutes for seven minutes has no gap for months, until the clocks of Lord Howe go back
/// by thirty minutes. From ten days before that, it is not endless, but its start is cut.
#[test]
fn period_with_a_cut_start_is_still_listed_whole() {
    let timing = recurring("*/7 * * * *", "Australia/Lord_Howe", 7);
    let from = at("2026-04-03T00:00Z");
    assert!(!timing.is_endless(from));
    let listed = timing.periods(from, from + minutes(4 * 24 * 60), 10_000);
    assert!(may_be_cut(listed[0]), "{listed:?}");
    for pair in listed.windows(2) {
        assert!(pair[0].ends_at < pair[1].starts_at, "{pair:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The state of every seventh minute of four days, from the starts alone.
    #[test]
    fn periods_are_those_of_a_count_of_minutes(
        cron in prop::sample::select(vec![
            "*/7 * * * *", "0 */3 * * *", "30 2 * * *", "15,45 1-3 * * *", "0 0 * * 0", "* 2 * * *",
            "0 2,3,22 * * *", "30 1 29 3 *",
        ]),
        zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/Santiago"]),
        duration in prop::sample::select(vec![1, 5, 7, 30, 59, 60, 61, 180, 600, 1_440, 2_000]),
        first_day in prop::sample::select(vec![
            "2026-03-27T00:00Z", "2026-10-23T00:00Z", "2026-04-03T00:00Z", "2026-09-04T00:00Z", "2026-10-02T00:00Z",
        ]),
    ) {
        let timing = recurring(cron, zone, duration);
        let (from, days) = (at(first_day), 4);
        // Following it is slow.
        if timing.is_endless(from) {
            return Ok(());
        }
        let until = from + SignedDuration::from_hours(24 * days);
        let starts: Vec<Timestamp> = {
            let Timing::Recurring { cron, timezone, .. } = &timing else { unreachable!() };
            let begin = from - minutes(duration) - NANOSECOND;
            let next = |at: &Timestamp| next_after(cron, timezone, *at).filter(|at| *at < until);
            std::iter::successors(next(&begin), next).collect()
        };
        let is_frozen = |now: Timestamp| {
            starts.iter().any(|start| *start <= now && now < *start + minutes(duration))
        };
        let periods = timing.periods(from, until, 10_000);
        for pair in periods.windows(2) {
            prop_assert!(pair[0].ends_at < pair[1].starts_at, "{:?}", pair);
        }
        for minute in (0..days * 24 * 60).step_by(7) {
            let now = from + minutes(minute);
            let expected = is_frozen(now);
            let active = timing.active_period(now);
            prop_assert_eq!(active.is_some(), expected, "{}", now);
            let listed = periods.iter().find(|period| period.contains(now)).copied();
            prop_assert_eq!(listed.is_some(), expected, "{}", now);
            if let (Some(active), Some(listed)) = (active, listed)
                && !may_be_cut(listed)
            {
                prop_assert_eq!(active.starts_at, listed.starts_at);
                prop_assert_eq!(active.ends_at, listed.ends_at);
            }
        }
    }
}
