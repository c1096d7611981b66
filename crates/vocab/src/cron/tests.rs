//! Meaning of expressions, error messages, and a comparison with another cron library.

use super::*;
use jiff::civil::datetime;
use proptest::prelude::*;

fn cron(text: &str) -> Cron {
    Cron::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn parse_error(text: &str) -> String {
    Cron::parse(text).unwrap_err().to_string()
}

/// The first `N` times from 2026-01-01 on, a Thursday.
fn times<const N: usize>(text: &str) -> [String; N] {
    let cron = cron(text);
    let mut from = datetime(2026, 1, 1, 0, 0, 0, 0);
    std::array::from_fn(|_| {
        let at = cron.next_at_or_after(from).unwrap();
        from = at.checked_add(jiff::SignedDuration::from_mins(1)).unwrap();
        at.strftime("%m-%d %H:%M").to_string()
    })
}

#[test]
fn numbers_lists_ranges_and_steps_match_crontab() {
    assert_eq!(times("30 2 * * *"), ["01-01 02:30", "01-02 02:30"]);
    assert_eq!(
        times("*/20 9-10 * * *"),
        ["01-01 09:00", "01-01 09:20", "01-01 09:40", "01-01 10:00"]
    );
    assert_eq!(times("5-59/25 0 * * *"), ["01-01 00:05", "01-01 00:30", "01-01 00:55"]);
    assert_eq!(times("0 0 1,15 * *"), ["01-01 00:00", "01-15 00:00", "02-01 00:00"]);
    assert_eq!(times("0 0 1 FEB,nov *"), ["02-01 00:00", "11-01 00:00"]);
}

#[test]
fn sunday_is_both_zero_and_seven() {
    for text in ["0 0 * * 0", "0 0 * * 7", "0 0 * * sun"] {
        assert_eq!(times(text), ["01-04 00:00", "01-11 00:00"], "{text}");
    }
    assert_eq!(
        times("0 0 * * FRI-SUN"),
        ["01-02 00:00", "01-03 00:00", "01-04 00:00", "01-09 00:00"]
    );
    assert_eq!(times("0 0 * * */7"), times::<3>("0 0 * * 0"));
}

#[test]
fn last_nearest_and_nth_weekdays_are_supported() {
    assert_eq!(times("0 0 L * *"), ["01-31 00:00", "02-28 00:00", "03-31 00:00"]);
    assert_eq!(times("0 0 LW * *"), ["01-30 00:00", "02-27 00:00", "03-31 00:00"]);
    assert_eq!(times("0 0 15W * *"), ["01-15 00:00", "02-16 00:00", "03-16 00:00"]);
    assert_eq!(times("0 0 1W * *"), ["01-01 00:00", "02-02 00:00", "03-02 00:00"]);
    assert_eq!(times("0 3 * * TUE#2"), ["01-13 03:00", "02-10 03:00", "03-10 03:00"]);
    assert_eq!(times("0 3 * * 5L"), ["01-30 03:00", "02-27 03:00", "03-27 03:00"]);
    assert_eq!(times("0 3 * * 7L"), ["01-25 03:00", "02-22 03:00", "03-29 03:00"]);
    assert_eq!(times("0 3 31W * *"), ["01-30 03:00", "03-31 03:00"]);
}

#[test]
fn two_restricted_day_fields_match_either() {
    assert_eq!(times("0 3 13 * 5"), ["01-02 03:00", "01-09 03:00", "01-13 03:00", "01-16 03:00"]);
    assert_eq!(times("0 3 13 * ?"), ["01-13 03:00", "02-13 03:00"]);
}

#[test]
fn nicknames_expand_to_five_fields() {
    assert_eq!(times("@hourly"), ["01-01 00:00", "01-01 01:00"]);
    assert_eq!(times("@daily"), ["01-01 00:00", "01-02 00:00"]);
    assert_eq!(times("@weekly"), ["01-04 00:00", "01-11 00:00"]);
    assert_eq!(times("@monthly"), ["01-01 00:00", "02-01 00:00"]);

    assert_eq!(
        parse_error("@reboot"),
        "`@reboot` is not a known nickname: write @hourly, @daily, @weekly, @monthly or five fields"
    );
}

#[test]
fn rare_days_are_found_decades_ahead() {
    let next = |text: &str| cron(text).next_at_or_after(datetime(2026, 1, 1, 0, 0, 0, 0)).unwrap();
    assert_eq!(next("0 0 29 2 *"), datetime(2028, 2, 29, 0, 0, 0, 0));
    assert_eq!(next("0 0 * 2 1#5"), datetime(2044, 2, 29, 0, 0, 0, 0));
    let before_2100 = datetime(2096, 3, 1, 0, 0, 0, 0);
    assert_eq!(
        cron("0 0 29 2 *").next_at_or_after(before_2100),
        Some(datetime(2104, 2, 29, 0, 0, 0, 0))
    );
}

#[test]
fn end_of_calendar_does_not_panic() {
    let end = datetime(9999, 12, 31, 23, 59, 1, 0);
    assert_eq!(cron("* * * * *").next_at_or_after(end), None);
    assert_eq!(cron("0 0 1 1 *").next_at_or_after(datetime(9999, 1, 2, 0, 0, 0, 0)), None);
}

#[test]
fn expression_displays_as_entered_with_single_spaces() {
    assert_eq!(cron("  0   3\t* * Sun ").to_string(), "0 3 * * Sun");
    assert_eq!(serde_json::to_string(&cron("@daily")).unwrap(), "\"@daily\"");
    assert_eq!(serde_json::from_str::<Cron>("\"0 3 * * *\"").unwrap(), cron("0 3 * * *"));
}

#[test]
fn intervals_are_distinguished_from_fixed_times() {
    for text in ["* * * * *", "*/15 * * * *", "*/15 2 * * *", "0 * * * *", "0 */6 * * *", "@hourly"]
    {
        assert!(cron(text).is_interval(), "{text}");
    }
    for text in ["30 2 * * *", "30 2,14 * * *", "0,30 1-3 * * *", "@daily", "0 3 L * *"] {
        assert!(!cron(text).is_interval(), "{text}");
    }
}

#[test]
fn errors_name_the_field_and_the_problem() {
    let table = [
        ("75 * * * *", "minute: 75 is not between 0 and 59"),
        ("0 24 * * *", "hour: 24 is not between 0 and 23"),
        ("0 0 0 * *", "day of month: 0 is not between 1 and 31"),
        ("0 0 * 13 *", "month: 13 is not between 1 and 12"),
        ("0 0 * * 8", "day of week: 8 is not between 0 and 7"),
        ("0 0 * * 99999999999", "day of week: 99999999999 is not between 0 and 7"),
        ("0 0 * * Monday", "day of week: `Monday` is not a weekday: 0 to 7 or SUN to SAT"),
        ("0 0 * SUN *", "month: `SUN` is not a month: 1 to 12 or JAN to DEC"),
        ("x * * * *", "minute: `x` is not a number"),
        ("-5 * * * *", "minute: `` is not a number"),
        ("0 22-2 * * *", "hour: 22-2 is reversed: write 22-23,0-2"),
        ("0,,5 * * * *", "minute: a list item is empty"),
        ("5/15 * * * *", "minute: a step needs a range: write 5-59/15"),
        ("*/0 * * * *", "minute: a step must be between 1 and 60 (got 0)"),
        ("*/90 * * * *", "minute: a step must be between 1 and 60 (got 90)"),
        ("? * * * *", "minute: `?` is not a number"),
        (
            "0 0 L-3 * *",
            "day of month: L-3 is not a day: write L for the last, LW for the last weekday, \
             15W for the weekday nearest to the 15th",
        ),
        (
            "0 0 * * L",
            "day of week: L does not select a day: write 5L for the last Friday, 5#2 for the second",
        ),
        (
            "0 0 * * 5#6",
            "day of week: 5#6 does not select a day: write 5L for the last Friday, 5#2 for the second",
        ),
    ];
    for (text, says) in table {
        assert_eq!(parse_error(text), says, "{text}");
    }
}

#[test]
fn wrong_number_of_fields_is_rejected_with_explanation() {
    let five = "write five fields: minute, hour, day of month, month, day of week";
    assert_eq!(
        parse_error("0 0 3 * * *"),
        format!("too many fields (6): omit the seconds and {five}")
    );
    assert_eq!(
        parse_error("0 0 3 * * * 2026"),
        format!("too many fields (7): omit seconds and year and {five}")
    );
    assert_eq!(parse_error("0 3 * *"), format!("too few fields (4): {five}"));
    assert!(parse_error(&"1,".repeat(150)).contains("at most 200 characters"));
    assert_eq!(Cron::parse(" \t "), Err(CronError::Empty));
}

#[test]
fn expression_that_never_runs_is_rejected() {
    for text in ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 31W 2 *"] {
        assert_eq!(
            parse_error(text),
            format!("`{text}` never runs: this day does not exist in its months")
        );
    }
    assert!(Cron::parse("0 0 30 2 1").is_ok(), "February has Mondays");
}

/// Expressions that both this parser and croner accept, except the ones that croner gets wrong: it
/// never finds a day for `7L`.
fn expressions() -> impl Strategy<Value = String> {
    let field = |min: u8, max: u8| {
        prop_oneof![
            3 => Just("*".to_owned()),
            3 => (min..=max).prop_map(|n| n.to_string()),
            1 => (1..=(max - min)).prop_map(|n| format!("*/{n}")),
            1 => (min..=max, min..=max, 1..5_u8)
                .prop_map(|(a, b, step)| format!("{}-{}/{step}", a.min(b), a.max(b))),
            1 => proptest::collection::vec(min..=max, 1..4)
                .prop_map(|all| all.iter().map(u8::to_string).collect::<Vec<_>>().join(",")),
        ]
    };
    let day = prop_oneof![
        6 => field(1, 31),
        1 => Just("L".to_owned()),
        1 => Just("LW".to_owned()),
        1 => (1..=31_u8).prop_map(|n| format!("{n}W")),
    ];
    let weekday = prop_oneof![
        6 => field(0, 6),
        1 => (0..=7_u8, 1..=5_u8).prop_map(|(day, nth)| format!("{day}#{nth}")),
        1 => (0..=6_u8).prop_map(|day| format!("{day}L")),
    ];
    (field(0, 59), field(0, 23), day, field(1, 12), weekday).prop_map(
        |(minute, hour, day, month, weekday)| format!("{minute} {hour} {day} {month} {weekday}"),
    )
}

proptest! {
    #[test]
    fn croner_finds_the_same_times(text in expressions(), days in 0..20_000_i32, minutes in 0..1440_i64) {
        let parser = croner::parser::CronParser::builder()
            .seconds(croner::parser::Seconds::Disallowed)
            .year(croner::parser::Year::Disallowed)
            .build();
        let theirs = parser.parse(&text).unwrap();
        let mut from = datetime(2000, 1, 1, 0, 0, 0, 0)
            .checked_add(jiff::Span::new().days(days).minutes(minutes))
            .unwrap();
        match Cron::parse(&text) {
            Err(CronError::NeverRuns(_)) => {
                prop_assert!(theirs.find_next_occurrence(&from, true).is_err());
            }
            ours => {
                let ours = ours.unwrap();
                for _ in 0..5 {
                    let expected = theirs.find_next_occurrence(&from, true).unwrap();
                    prop_assert_eq!(ours.next_at_or_after(from), Some(expected), "{} from {}", &text, from);
                    from = expected.checked_add(jiff::Span::new().minutes(1)).unwrap();
                }
            }
        }
    }

    #[test]
    fn no_text_panics_and_parsed_text_round_trips(
        text in "\\PC{0,40}|[-0-9*/,#LW? A-Z@]{0,60}|([-0-9*/,#LW?]{1,6} ){4}[-0-9*/,#LWa-z]{1,6}"
    ) {
        if let Ok(cron) = Cron::parse(&text) {
            prop_assert_eq!(Cron::parse(&cron.to_string()), Ok(cron));
        }
    }
}
