//! The times of a schedule as form fields: common shapes with plain controls, and cron for the
//! rest.
//!
//! Pure: converts between the fields and a cron expression. `vocab::CronPattern` defines the shapes.

use vocab::{Cron, CronPattern, Nth, PatternDays, Weekday, Weekdays};

use crate::pages::choice::Choice;

/// The shapes that the form offers.
pub const REPEAT: &[Choice] = &[
    ("day", "Every day"),
    ("week", "Every week on …"),
    ("month", "Every month on day …"),
    ("nth", "Every month on a weekday, such as the second Tuesday"),
    ("custom", "Custom (cron)"),
];

/// Which weekday of the month.
pub const NTH: &[Choice] = &[
    ("first", "first"),
    ("second", "second"),
    ("third", "third"),
    ("fourth", "fourth"),
    ("last", "last"),
];

/// The value for the last day of a month.
const LAST_DAY: &str = "last";

/// The fields that were sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScheduleBuilder {
    /// One of [`REPEAT`].
    pub repeat: String,
    /// `HH:MM`.
    pub time: String,
    /// The chosen weekdays of `week`.
    pub weekdays: Vec<Weekday>,
    /// 1 to 31, or `last`.
    pub month_day: String,
    /// One of [`NTH`].
    pub nth: String,
    /// The code of a weekday.
    pub nth_weekday: String,
    /// The cron expression of `custom`. For other shapes, the expression that the form was loaded
    /// from.
    pub cron: String,
}

/// A field and what is wrong with it.
pub type FieldProblem = (&'static str, String);

impl ScheduleBuilder {
    /// The names of the fields, without the weekdays.
    pub const FIELDS: [&'static str; 6] =
        ["repeat", "time", "month_day", "nth", "nth_weekday", "cron"];

    /// Reads the fields of a form. A form without the choice has a cron expression only.
    pub fn read(text: impl Fn(&str) -> String) -> ScheduleBuilder {
        let [repeat, time, month_day, nth, nth_weekday, cron] = Self::FIELDS.map(&text);
        let is_chosen = |day: &Weekday| !text(Self::weekday_field(*day)).is_empty();
        ScheduleBuilder {
            repeat: if repeat.is_empty() { "custom".to_owned() } else { repeat },
            time,
            weekdays: Weekday::ALL.into_iter().filter(is_chosen).collect(),
            month_day,
            nth,
            nth_weekday,
            cron,
        }
    }

    /// The name of the checkbox of a weekday.
    pub const fn weekday_field(day: Weekday) -> &'static str {
        match day {
            Weekday::Monday => "weekday_mon",
            Weekday::Tuesday => "weekday_tue",
            Weekday::Wednesday => "weekday_wed",
            Weekday::Thursday => "weekday_thu",
            Weekday::Friday => "weekday_fri",
            Weekday::Saturday => "weekday_sat",
            Weekday::Sunday => "weekday_sun",
        }
    }

    /// The fields of a new schedule: Sundays at 03:00. The controls of the other shapes start with
    /// the second Tuesday and the first day of the month.
    pub fn new() -> ScheduleBuilder {
        ScheduleBuilder {
            repeat: "week".to_owned(),
            time: "03:00".to_owned(),
            weekdays: vec![Weekday::Sunday],
            month_day: "1".to_owned(),
            nth: "second".to_owned(),
            nth_weekday: Weekday::Tuesday.code().to_owned(),
            cron: String::new(),
        }
    }

    /// The fields of an existing schedule: its shape, or its cron expression if it has none.
    pub fn from_cron(cron: &Cron) -> ScheduleBuilder {
        let usual = ScheduleBuilder { cron: cron.to_string(), ..ScheduleBuilder::new() };
        let Some(pattern) = cron.pattern() else {
            return ScheduleBuilder { repeat: "custom".to_owned(), ..usual };
        };
        let time = format!("{:02}:{:02}", pattern.hour, pattern.minute);
        let with = |repeat: &str| ScheduleBuilder {
            repeat: repeat.to_owned(),
            time: time.clone(),
            ..usual.clone()
        };
        match pattern.days {
            PatternDays::EveryDay => with("day"),
            PatternDays::Weekly(days) => {
                ScheduleBuilder { weekdays: days.iter().collect(), ..with("week") }
            }
            PatternDays::DayOfMonth(day) => {
                ScheduleBuilder { month_day: day.to_string(), ..with("month") }
            }
            PatternDays::LastDayOfMonth => {
                ScheduleBuilder { month_day: LAST_DAY.to_owned(), ..with("month") }
            }
            PatternDays::NthWeekday(nth, weekday) => ScheduleBuilder {
                nth: nth.name().to_owned(),
                nth_weekday: weekday.code().to_owned(),
                ..with("nth")
            },
        }
    }

    /// The cron expression of the fields. An expression that means the same as the one that the
    /// form was loaded from stays unchanged.
    pub fn to_cron(&self) -> Result<String, Vec<FieldProblem>> {
        if self.repeat == "custom" {
            return Ok(self.cron.clone());
        }
        let pattern = self.pattern()?;
        let written = self.cron.parse::<Cron>();
        if written.is_ok_and(|cron| cron.pattern() == Some(pattern)) {
            return Ok(self.cron.clone());
        }
        let cron = pattern.to_cron().map_err(|error| vec![("repeat", error.to_string())])?;
        Ok(cron.to_string())
    }

    fn pattern(&self) -> Result<CronPattern, Vec<FieldProblem>> {
        match (self.days(), parse_time(&self.time)) {
            (Ok(days), Some((hour, minute))) => Ok(CronPattern { days, hour, minute }),
            (days, time) => {
                let wrong_time = || ("time", "must be a time of the day such as 03:00".to_owned());
                Err(days.err().into_iter().chain(time.is_none().then(wrong_time)).collect())
            }
        }
    }

    fn days(&self) -> Result<PatternDays, FieldProblem> {
        match self.repeat.as_str() {
            "day" => Ok(PatternDays::EveryDay),
            "week" if self.weekdays.is_empty() => {
                Err(("weekdays", "choose at least one day of the week".to_owned()))
            }
            "week" => Ok(Weekdays::new(self.weekdays.iter().copied())
                .map_or(PatternDays::EveryDay, PatternDays::Weekly)),
            "month" if self.month_day == LAST_DAY => Ok(PatternDays::LastDayOfMonth),
            "month" => {
                let day = self.month_day.parse().ok().filter(|day| (1..=31).contains(day));
                let wrong = || ("month_day", "must be a day from 1 to 31, or last".to_owned());
                day.map(PatternDays::DayOfMonth).ok_or_else(wrong)
            }
            "nth" => {
                let nth = Nth::ALL.into_iter().find(|nth| nth.name() == self.nth);
                let nth =
                    nth.ok_or_else(|| ("nth", "choose first to fourth, or last".to_owned()))?;
                let day = Weekday::ALL.into_iter().find(|day| day.code() == self.nth_weekday);
                let day = day.ok_or_else(|| ("nth_weekday", "choose a weekday".to_owned()))?;
                Ok(PatternDays::NthWeekday(nth, day))
            }
            _ => Err(("repeat", "choose how often the schedule runs".to_owned())),
        }
    }

    /// Whether a weekday is chosen.
    pub fn runs_on(&self, day: &Weekday) -> bool {
        self.weekdays.contains(day)
    }

    /// The days of a month that can be chosen.
    pub fn month_days() -> Vec<(String, String)> {
        let days = (1..=31).map(|day: u8| (day.to_string(), day.to_string()));
        days.chain([(LAST_DAY.to_owned(), "last day".to_owned())]).collect()
    }

    /// The weekdays that can be chosen.
    pub fn weekday_choices() -> Vec<Choice> {
        Weekday::ALL.map(|day| (day.code(), day.name())).into()
    }
}

/// Parses `HH:MM`.
fn parse_time(text: &str) -> Option<(u8, u8)> {
    let (hour, minute) = text.split_once(':')?;
    let number = |text: &str, below: u8| {
        let digits = (1..=2).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_digit());
        text.parse().ok().filter(|number| digits && *number < below)
    };
    Some((number(hour, 24)?, number(minute, 60)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cron(text: &str) -> Cron {
        text.parse().unwrap()
    }

    /// The fields as a browser sends them.
    fn sent(builder: &ScheduleBuilder) -> ScheduleBuilder {
        let ScheduleBuilder { repeat, time, weekdays, month_day, nth, nth_weekday, cron } = builder;
        ScheduleBuilder::read(|name| match name {
            "repeat" => repeat.clone(),
            "time" => time.clone(),
            "month_day" => month_day.clone(),
            "nth" => nth.clone(),
            "nth_weekday" => nth_weekday.clone(),
            "cron" => cron.clone(),
            name => {
                let day = Weekday::ALL
                    .into_iter()
                    .find(|day| ScheduleBuilder::weekday_field(*day) == name);
                if weekdays.contains(&day.unwrap()) { "true".to_owned() } else { String::new() }
            }
        })
    }

    #[test]
    fn saving_an_unchanged_form_keeps_the_expression_as_written() {
        for (text, repeat) in [
            ("0 3 * * *", "day"),
            ("@daily", "day"),
            ("0 3 * * 0", "week"),
            ("30 2 * * MON-FRI", "week"),
            ("0 3 15 * *", "month"),
            ("0 3 L * *", "month"),
            ("0 3 * * 2#2", "nth"),
            ("0 3 * * 5L", "nth"),
            ("*/15 9-17 * * MON-FRI", "custom"),
            ("0 3 13 * 5", "custom"),
        ] {
            let builder = ScheduleBuilder::from_cron(&cron(text));
            assert_eq!(builder.repeat, repeat, "{text}");
            assert_eq!(sent(&builder), builder, "{text}");
            assert_eq!(builder.to_cron().as_deref(), Ok(text));
        }
    }

    #[test]
    fn changed_fields_compose_a_new_expression() {
        let loaded = ScheduleBuilder::from_cron(&cron("0 3 * * 0"));
        let with = |change: &dyn Fn(&mut ScheduleBuilder)| {
            let mut builder = loaded.clone();
            change(&mut builder);
            builder.to_cron().unwrap()
        };
        assert_eq!(with(&|it| it.time = "04:30".into()), "30 4 * * SUN");
        assert_eq!(with(&|it| it.weekdays = Weekday::ALL.into()), "0 3 * * *");
        assert_eq!(with(&|it| it.repeat = "day".into()), "0 3 * * *");
        assert_eq!(with(&|it| it.repeat = "month".into()), "0 3 1 * *");
        assert_eq!(with(&|it| it.repeat = "nth".into()), "0 3 * * TUE#2");
        let last_friday = |it: &mut ScheduleBuilder| {
            (it.repeat, it.nth, it.nth_weekday) = ("nth".into(), "last".into(), "FRI".into());
        };
        assert_eq!(with(&last_friday), "0 3 * * FRIL");
    }

    #[test]
    fn all_wrong_fields_are_reported() {
        let wrong = |builder: ScheduleBuilder| -> Vec<&'static str> {
            builder.to_cron().unwrap_err().into_iter().map(|(field, _)| field).collect()
        };
        let new = ScheduleBuilder::new;
        for time in ["", "3", "24:00", "03:60", "03:000", "+3:00", "03:00:00"] {
            assert_eq!(wrong(ScheduleBuilder { time: time.into(), ..new() }), ["time"], "{time}");
        }
        let nothing = ScheduleBuilder { repeat: "week".into(), ..ScheduleBuilder::default() };
        assert_eq!(wrong(nothing), ["weekdays", "time"]);
        let month =
            |day: &str| ScheduleBuilder { repeat: "month".into(), month_day: day.into(), ..new() };
        assert_eq!((wrong(month("0")), wrong(month("32"))), (vec!["month_day"], vec!["month_day"]));
        let nth = ScheduleBuilder { repeat: "nth".into(), nth: "fifth".into(), ..new() };
        assert_eq!(wrong(nth), ["nth"]);
        assert_eq!(wrong(ScheduleBuilder { repeat: "yearly".into(), ..new() }), ["repeat"]);
    }
}
