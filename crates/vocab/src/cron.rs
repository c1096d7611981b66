//! Cron expressions: the times at which a schedule runs.
//!
//! Five fields (minute, hour, day of month, month, day of week) with names, ranges, lists and
//! steps, `L`, `W` and `#`, or one of four nicknames. Here an expression is matched against a
//! calendar without a time zone; `domain::schedule` handles time zones and clock changes.
//!
//! If both day fields are restricted, a day matches if either field does, as in every Unix. A field
//! that is `*` or `?` restricts nothing. Sunday is both 0 and 7.

mod days;
mod field;
mod pattern;

use std::fmt;
use std::str::FromStr;

use jiff::civil::{Date, DateTime, date};

pub use field::{CronField, FieldProblem};
pub use pattern::{CronPattern, Nth, PatternDays, Weekday, Weekdays};

use crate::text::quote_input;
use days::DayFields;

/// A cron expression. It displays as entered, with single spaces.
#[derive(Clone, PartialEq, Eq)]
pub struct Cron {
    text: String,
    minutes: u64,
    hours: u64,
    days: DayFields,
    /// See [`Cron::is_interval`].
    interval: bool,
}

/// Error returned when parsing a cron expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CronError {
    #[error("a cron expression has five fields: minute, hour, day of month, month, day of week")]
    Empty,
    #[error("a cron expression must have at most 200 characters (got {found})")]
    TooLong { found: usize },
    #[error("{}", field_count_message(*found))]
    Fields { found: usize },
    #[error(
        "`{found}` is not a known nickname: write @hourly, @daily, @weekly, @monthly or five fields"
    )]
    Nickname {
        /// The nickname, shortened.
        found: String,
    },
    #[error("{field}: {problem}")]
    Field { field: CronField, problem: FieldProblem },
    /// No day can ever match.
    #[error("`{0}` never runs: this day does not exist in its months")]
    NeverRuns(String),
}

fn field_count_message(found: usize) -> String {
    let five = "five fields: minute, hour, day of month, month, day of week";
    match found {
        6 => format!("too many fields (6): omit the seconds and write {five}"),
        7 => format!("too many fields (7): omit seconds and year and write {five}"),
        1 => format!("too few fields (1): write {five}"),
        _ => {
            format!("too {} fields ({found}): write {five}", if found < 5 { "few" } else { "many" })
        }
    }
}

/// The Gregorian calendar repeats after 400 years: an expression that has not matched by then never
/// will.
const CALENDAR_YEARS: i16 = 400;

impl Cron {
    /// Maximum number of characters of an expression.
    pub const CHARS_MAX: usize = 200;

    pub fn parse(text: &str) -> Result<Cron, CronError> {
        let found = text.chars().count();
        if found > Self::CHARS_MAX {
            return Err(CronError::TooLong { found });
        }
        let given: Vec<&str> = text.split_whitespace().collect();
        let fields: Vec<&str> = match given.as_slice() {
            [] => return Err(CronError::Empty),
            [nickname] if nickname.starts_with('@') => expand(nickname)
                .ok_or_else(|| CronError::Nickname { found: quote_input(nickname) })?,
            fields => fields.to_vec(),
        };
        let [minute, hour, day, month, weekday] = fields.as_slice() else {
            return Err(CronError::Fields { found: fields.len() });
        };
        let cron = Cron {
            text: given.join(" "),
            minutes: field::parse_number_set(CronField::Minute, minute)?,
            hours: field::parse_number_set(CronField::Hour, hour)?,
            days: DayFields::parse(day, month, weekday)?,
            interval: minute.starts_with('*') || hour.starts_with('*'),
        };
        match cron.days.next(date(2000, 1, 1), CALENDAR_YEARS) {
            Some(_) => Ok(cron),
            None => Err(CronError::NeverRuns(cron.text)),
        }
    }

    /// Whether the expression means "at regular intervals" rather than "at these times of the day":
    /// its minute or hour field is `*` or `*/n`. The two behave differently when clocks change.
    pub fn is_interval(&self) -> bool {
        self.interval
    }

    /// Returns the first match at or after `from`, on a calendar without time zones. `None` only at
    /// the end of the calendar, in the year 9999.
    pub fn next_at_or_after(&self, from: DateTime) -> Option<DateTime> {
        let mut start = from;
        if from.second() != 0 || from.subsec_nanosecond() != 0 {
            let minute = from.date().at(from.hour(), from.minute(), 0, 0);
            start = minute.checked_add(jiff::SignedDuration::from_mins(1)).ok()?;
        }
        let day = self.days.next(start.date(), CALENDAR_YEARS)?;
        if day == start.date() {
            let (hour, minute) = (start.hour(), start.minute());
            if let Some((hour, minute)) = self.next_time(hour, minute) {
                return Some(day.at(hour, minute, 0, 0));
            }
            return self.first_on_or_after(day.tomorrow().ok()?);
        }
        self.first_on_or_after(day)
    }

    fn first_on_or_after(&self, day: Date) -> Option<DateTime> {
        let day = self.days.next(day, CALENDAR_YEARS)?;
        let (hour, minute) = self.next_time(0, 0)?;
        Some(day.at(hour, minute, 0, 0))
    }

    /// Returns the first matching time of the day at or after `hour:minute`.
    fn next_time(&self, hour: i8, minute: i8) -> Option<(i8, i8)> {
        if self.hours & (1 << hour) != 0
            && let Some(minute) = next_bit(self.minutes, minute)
        {
            return Some((hour, minute));
        }
        Some((next_bit(self.hours, hour + 1)?, next_bit(self.minutes, 0)?))
    }
}

/// Returns the lowest set bit at or above `from`. No set here uses more than 60 bits.
fn next_bit(set: u64, from: i8) -> Option<i8> {
    let rest = set >> from;
    (rest != 0).then(|| from + rest.trailing_zeros() as i8)
}

fn expand(nickname: &str) -> Option<Vec<&'static str>> {
    let fields = match nickname {
        "@hourly" => "0 * * * *",
        "@daily" => "0 0 * * *",
        "@weekly" => "0 0 * * 0",
        "@monthly" => "0 0 1 * *",
        _ => return None,
    };
    Some(fields.split(' ').collect())
}

impl FromStr for Cron {
    type Err = CronError;
    fn from_str(text: &str) -> Result<Self, CronError> {
        Self::parse(text)
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl fmt::Debug for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

crate::text::serde_as_text!(Cron);

#[cfg(test)]
mod tests;
