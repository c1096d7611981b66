//! The common shapes of a cron expression: every day, on weekdays, on a day of the month, on the
//! second Tuesday; always at one time of the day. Forms edit these shapes, and people read them as
//! sentences.

use std::fmt;

use super::days::{DayFields, DayOfMonthField, DayOfWeekField};
use super::{Cron, CronError};

/// A cron expression of a common shape. [`Cron::pattern`] recognizes it, and
/// [`CronPattern::to_cron`] writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CronPattern {
    pub days: PatternDays,
    /// 0 to 23.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
}

/// The days of a [`CronPattern`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatternDays {
    EveryDay,
    /// Some days of the week, but not all.
    Weekly(Weekdays),
    /// 1 to 31. Months without this day have no run.
    DayOfMonth(u8),
    LastDayOfMonth,
    /// Such as the second Tuesday of the month.
    NthWeekday(Nth, Weekday),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weekday {
    Sunday,
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
}

impl Weekday {
    /// From Monday on, as calendars list them.
    pub const ALL: [Weekday; 7] = [
        Weekday::Monday,
        Weekday::Tuesday,
        Weekday::Wednesday,
        Weekday::Thursday,
        Weekday::Friday,
        Weekday::Saturday,
        Weekday::Sunday,
    ];

    /// The name in a cron expression.
    pub const fn code(self) -> &'static str {
        match self {
            Weekday::Sunday => "SUN",
            Weekday::Monday => "MON",
            Weekday::Tuesday => "TUE",
            Weekday::Wednesday => "WED",
            Weekday::Thursday => "THU",
            Weekday::Friday => "FRI",
            Weekday::Saturday => "SAT",
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Weekday::Sunday => "Sunday",
            Weekday::Monday => "Monday",
            Weekday::Tuesday => "Tuesday",
            Weekday::Wednesday => "Wednesday",
            Weekday::Thursday => "Thursday",
            Weekday::Friday => "Friday",
            Weekday::Saturday => "Saturday",
        }
    }

    const fn bit(self) -> u64 {
        1 << self as u8
    }

    /// The weekday of a set with one bit.
    fn from_bit(set: u64) -> Option<Weekday> {
        Weekday::ALL.into_iter().find(|day| day.bit() == set)
    }
}

/// A set of weekdays; neither empty nor complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weekdays(u64);

const WHOLE_WEEK: u64 = 0x7f;

impl Weekdays {
    /// Creates a set; `None` if it would have no day or all seven.
    pub fn new(days: impl IntoIterator<Item = Weekday>) -> Option<Weekdays> {
        Weekdays::from_bits(days.into_iter().fold(0, |set, day| set | day.bit()))
    }

    fn from_bits(set: u64) -> Option<Weekdays> {
        (set != 0 && set != WHOLE_WEEK).then_some(Weekdays(set))
    }

    pub fn contains(self, day: Weekday) -> bool {
        self.0 & day.bit() != 0
    }

    /// The days from Monday on.
    pub fn iter(self) -> impl Iterator<Item = Weekday> {
        Weekday::ALL.into_iter().filter(move |day| self.contains(*day))
    }
}

/// Which of the same weekdays of a month.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nth {
    First,
    Second,
    Third,
    Fourth,
    Last,
}

impl Nth {
    pub const ALL: [Nth; 5] = [Nth::First, Nth::Second, Nth::Third, Nth::Fourth, Nth::Last];

    pub const fn name(self) -> &'static str {
        match self {
            Nth::First => "first",
            Nth::Second => "second",
            Nth::Third => "third",
            Nth::Fourth => "fourth",
            Nth::Last => "last",
        }
    }
}

impl CronPattern {
    /// Returns the cron expression. Fails only if a number is out of range.
    pub fn to_cron(&self) -> Result<Cron, CronError> {
        let (day, weekday) = match self.days {
            PatternDays::EveryDay => ("*".to_owned(), "*".to_owned()),
            PatternDays::Weekly(days) => {
                let codes: Vec<&str> = days.iter().map(Weekday::code).collect();
                ("*".to_owned(), codes.join(","))
            }
            PatternDays::DayOfMonth(day) => (day.to_string(), "*".to_owned()),
            PatternDays::LastDayOfMonth => ("L".to_owned(), "*".to_owned()),
            PatternDays::NthWeekday(Nth::Last, weekday) => {
                ("*".to_owned(), format!("{}L", weekday.code()))
            }
            PatternDays::NthWeekday(nth, weekday) => {
                ("*".to_owned(), format!("{}#{}", weekday.code(), nth as u8 + 1))
            }
        };
        Cron::parse(&format!("{} {} {day} * {weekday}", self.minute, self.hour))
    }
}

impl fmt::Display for CronPattern {
    /// A sentence without a period: `Every Sunday at 03:00`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.days {
            PatternDays::EveryDay => f.write_str("Every day")?,
            PatternDays::Weekly(days) => {
                let names: Vec<&str> = days.iter().map(Weekday::name).collect();
                match names.as_slice() {
                    [one] => write!(f, "Every {one}")?,
                    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"] => {
                        f.write_str("Monday to Friday")?;
                    }
                    [first @ .., last] => write!(f, "Every {} and {last}", first.join(", "))?,
                    [] => {}
                }
            }
            PatternDays::DayOfMonth(day) => write!(f, "On day {day} of every month")?,
            PatternDays::LastDayOfMonth => f.write_str("On the last day of every month")?,
            PatternDays::NthWeekday(nth, weekday) => {
                write!(f, "On the {} {} of every month", nth.name(), weekday.name())?;
            }
        }
        write!(f, " at {:02}:{:02}", self.hour, self.minute)
    }
}

impl Cron {
    /// When it runs: a sentence without a period, or the expression if there is no sentence for it.
    pub fn describe(&self) -> String {
        self.pattern().map_or_else(|| self.to_string(), |pattern| pattern.to_string())
    }

    /// Returns the shape of the expression, if it is a common one. Expressions with the same shape
    /// run at the same times.
    pub fn pattern(&self) -> Option<CronPattern> {
        if self.is_interval() {
            return None;
        }
        Some(CronPattern {
            days: pattern_days(&self.days)?,
            hour: only_bit(self.hours)?,
            minute: only_bit(self.minutes)?,
        })
    }
}

const EVERY_MONTH: u64 = ((1 << 12) - 1) << 1;

fn pattern_days(days: &DayFields) -> Option<PatternDays> {
    if days.months != EVERY_MONTH {
        return None;
    }
    match (days.of_month, days.of_week) {
        (None, None) => Some(PatternDays::EveryDay),
        (Some(of_month), None) => pattern_of_month(of_month),
        (None, Some(of_week)) => pattern_of_week(of_week),
        (Some(_), Some(_)) => None,
    }
}

fn pattern_of_month(field: DayOfMonthField) -> Option<PatternDays> {
    let DayOfMonthField { days, nearest_weekday: 0, last, last_weekday: false } = field else {
        return None;
    };
    match (days, last) {
        (0, true) => Some(PatternDays::LastDayOfMonth),
        (days, false) => only_bit(days).map(PatternDays::DayOfMonth),
        (_, true) => None,
    }
}

fn pattern_of_week(field: DayOfWeekField) -> Option<PatternDays> {
    let DayOfWeekField { weekdays, nth, last } = field;
    match (weekdays, nth, last) {
        (WHOLE_WEEK, [0, 0, 0, 0, 0], 0) => Some(PatternDays::EveryDay),
        (weekdays, [0, 0, 0, 0, 0], 0) => Weekdays::from_bits(weekdays).map(PatternDays::Weekly),
        (0, [0, 0, 0, 0, 0], last) => {
            Some(PatternDays::NthWeekday(Nth::Last, Weekday::from_bit(last)?))
        }
        // A fifth weekday does not exist in every month, so it is no common shape.
        (0, [one, two, three, four, 0], 0) => {
            let mut set = Nth::ALL.into_iter().zip([one, two, three, four]).filter(|it| it.1 != 0);
            match (set.next(), set.next()) {
                (Some((nth, day)), None) => {
                    Some(PatternDays::NthWeekday(nth, Weekday::from_bit(day)?))
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// The only number in a set, if it has exactly one.
fn only_bit(set: u64) -> Option<u8> {
    (set.count_ones() == 1).then(|| set.trailing_zeros() as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sentence(cron: &str) -> Option<String> {
        let cron = Cron::parse(cron).unwrap_or_else(|error| panic!("{cron}: {error}"));
        cron.pattern().map(|pattern| pattern.to_string())
    }

    #[test]
    fn common_shapes_read_as_sentences() {
        for (cron, expected) in [
            ("0 3 * * *", "Every day at 03:00"),
            ("@daily", "Every day at 00:00"),
            ("15 22 ? * 0-6", "Every day at 22:15"),
            ("@weekly", "Every Sunday at 00:00"),
            ("30 2 * * 7", "Every Sunday at 02:30"),
            ("0 3 * * MON-FRI", "Monday to Friday at 03:00"),
            ("0 3 * * SUN,TUE,SAT", "Every Tuesday, Saturday and Sunday at 03:00"),
            ("@monthly", "On day 1 of every month at 00:00"),
            ("5 4 31 * *", "On day 31 of every month at 04:05"),
            ("0 3 L * *", "On the last day of every month at 03:00"),
            ("0 3 * * TUE#2", "On the second Tuesday of every month at 03:00"),
            ("0 3 * 1-12 2#2", "On the second Tuesday of every month at 03:00"),
            ("0 3 * * 5L", "On the last Friday of every month at 03:00"),
        ] {
            assert_eq!(sentence(cron).as_deref(), Some(expected), "{cron}");
        }
    }

    #[test]
    fn other_expressions_have_no_pattern() {
        for cron in [
            "@hourly",
            "*/15 * * * *",
            "0 3,15 * * *",
            "0,30 3 * * *",
            "0 3 1,15 * *",
            "0 3 1,L * *",
            "0 3 15W * *",
            "0 3 LW * *",
            "0 3 * JAN *",
            "0 3 13 * 5",
            "0 3 * * TUE#2,TUE#4",
            "0 3 * * TUE#2,MON#2",
            "0 3 * * MON,TUE#2",
            "0 3 * * MON#5",
            "0 3 * * 5L,MON",
        ] {
            assert_eq!(sentence(cron), None, "{cron}");
        }
    }

    fn any_weekday() -> impl Strategy<Value = Weekday> {
        (0..7_usize).prop_map(|index| Weekday::ALL[index])
    }

    fn any_days() -> impl Strategy<Value = PatternDays> {
        prop_oneof![
            Just(PatternDays::EveryDay),
            (1..WHOLE_WEEK).prop_map(|set| PatternDays::Weekly(Weekdays(set))),
            (1..=31_u8).prop_map(PatternDays::DayOfMonth),
            Just(PatternDays::LastDayOfMonth),
            ((0..5_usize), any_weekday())
                .prop_map(|(nth, day)| PatternDays::NthWeekday(Nth::ALL[nth], day)),
        ]
    }

    proptest! {
        #[test]
        fn pattern_survives_a_round_trip(days in any_days(), hour in 0..24_u8, minute in 0..60_u8) {
            let pattern = CronPattern { days, hour, minute };
            prop_assert_eq!(pattern.to_cron().unwrap().pattern(), Some(pattern));
        }

        /// Whatever has a pattern runs at the times of that pattern.
        #[test]
        fn recognized_pattern_runs_at_the_same_times(
            minute in "[0-9]{1,2}|0-0", hour in "[0-9]|1[0-9]|3-3",
            day in r"\*|\?|L|[1-9]|1-31", month in r"\*|1-12|1-11|\*/1",
            weekday in r"\*|\?|[0-7]|MON-FRI|0-7|[0-6]#[1-5]|[0-7]L",
        ) {
            let text = format!("{minute} {hour} {day} {month} {weekday}");
            let Ok(cron) = Cron::parse(&text) else { return Ok(()) };
            let Some(pattern) = cron.pattern() else { return Ok(()) };
            let written = pattern.to_cron().unwrap();
            let mut from = jiff::civil::datetime(2026, 1, 1, 0, 0, 0, 0);
            for _ in 0..60 {
                let next = cron.next_at_or_after(from);
                prop_assert_eq!(next, written.next_at_or_after(from), "{} as {}", text, written);
                from = next.unwrap().checked_add(jiff::SignedDuration::from_mins(1)).unwrap();
            }
        }
    }

    #[test]
    fn numbers_out_of_range_are_rejected() {
        let pattern =
            |day, hour, minute| CronPattern { days: PatternDays::DayOfMonth(day), hour, minute };
        for wrong in [pattern(0, 3, 0), pattern(32, 3, 0), pattern(1, 24, 0), pattern(1, 3, 60)] {
            assert!(wrong.to_cron().is_err(), "{wrong:?}");
        }
        assert_eq!(Weekdays::new([]), None);
        assert_eq!(Weekdays::new(Weekday::ALL), None);
    }
}
