//! The days that match the day, month and weekday fields of a cron expression.

use jiff::civil::{Date, date};

use super::CronError;
use super::field;
use super::field::{CronField, FieldProblem};
use crate::text::quote_input;

/// The three fields that select days. In sets of days of the month, bit 1 is the first day; in sets
/// of weekdays, bit 0 is Sunday.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct DayFields {
    pub(super) months: u64,
    /// `None` if the field is `*` or `?` and restricts nothing.
    pub(super) of_month: Option<DayOfMonthField>,
    /// `None` if the field is `*` or `?` and restricts nothing.
    pub(super) of_week: Option<DayOfWeekField>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct DayOfMonthField {
    pub(super) days: u64,
    /// `15W`: the weekday nearest to the 15th, in the same month.
    pub(super) nearest_weekday: u64,
    /// `L`
    pub(super) last: bool,
    /// `LW`
    pub(super) last_weekday: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct DayOfWeekField {
    pub(super) weekdays: u64,
    /// `5#2`: the weekdays for the first to the fifth occurrence in the month.
    pub(super) nth: [u64; 5],
    /// `5L`
    pub(super) last: u64,
}

impl DayFields {
    pub(super) fn parse(day: &str, month: &str, weekday: &str) -> Result<DayFields, CronError> {
        let is_restricted = |field: &str| !matches!(field, "*" | "?");
        let of_month = is_restricted(day).then(|| DayOfMonthField::parse(day)).transpose()?;
        let months = field::parse_number_set(CronField::Month, month)?;
        let of_week = is_restricted(weekday).then(|| DayOfWeekField::parse(weekday)).transpose()?;
        Ok(DayFields { months, of_month, of_week })
    }

    /// Returns the first matching day at or after `from`, if there is one within `years` years.
    pub(super) fn next(&self, from: Date, years: i16) -> Option<Date> {
        let mut from = from;
        for _ in 0..=u32::from(years.unsigned_abs()) * 12 {
            let rest = self.matching_days(from) >> from.day();
            if rest != 0 {
                let day = from.day() + rest.trailing_zeros() as i8;
                return Date::new(from.year(), from.month(), day).ok();
            }
            from = from.last_of_month().tomorrow().ok()?;
        }
        None
    }

    /// Returns the matching days of the month of `any_day`.
    fn matching_days(&self, any_day: Date) -> u64 {
        if self.months & (1 << any_day.month()) == 0 {
            return 0;
        }
        let month = Month {
            length: any_day.days_in_month() as u8,
            first_weekday: date(any_day.year(), any_day.month(), 1)
                .weekday()
                .to_sunday_zero_offset() as u8,
        };
        match (&self.of_month, &self.of_week) {
            (None, None) => month.all(),
            (Some(of_month), None) => of_month.matching_days(&month),
            (None, Some(of_week)) => of_week.matching_days(&month),
            (Some(of_month), Some(of_week)) => {
                of_month.matching_days(&month) | of_week.matching_days(&month)
            }
        }
    }
}

/// Length and first weekday of a month.
struct Month {
    length: u8,
    first_weekday: u8,
}

impl Month {
    fn all(&self) -> u64 {
        ((1 << self.length) - 1) << 1
    }

    /// 0 for a Sunday.
    fn weekday(&self, day: u8) -> u8 {
        (self.first_weekday + day - 1) % 7
    }

    /// The weekday (Monday to Friday) nearest to `day` that is in this month.
    fn nearest_weekday(&self, day: u8) -> u8 {
        match self.weekday(day) {
            6 if day > 1 => day - 1,
            6 => day + 2,
            0 if day < self.length => day + 1,
            0 => day - 2,
            _ => day,
        }
    }
}

fn bits(set: u64) -> impl Iterator<Item = u8> {
    (0..=31).filter(move |bit| set & (1 << bit) != 0)
}

impl DayOfMonthField {
    fn parse(text: &str) -> Result<DayOfMonthField, CronError> {
        let field = CronField::DayOfMonth;
        let mut days = DayOfMonthField::default();
        for item in field::list_items(field, text) {
            let item = item?;
            let special = item.to_ascii_uppercase();
            match special.as_str() {
                "L" => days.last = true,
                "LW" => days.last_weekday = true,
                _ if special.contains(['L', 'W']) => {
                    let day = special.strip_suffix('W').filter(|day| day.parse::<u8>().is_ok());
                    let wrong = || field.error(FieldProblem::Special { found: quote_input(item) });
                    days.nearest_weekday |= 1 << field.parse_number(day.ok_or_else(wrong)?)?;
                }
                _ => days.days |= field.parse_item(item)?,
            }
        }
        Ok(days)
    }

    fn matching_days(&self, month: &Month) -> u64 {
        let mut days = self.days & month.all();
        // Days that the month does not have are ignored.
        for day in bits(self.nearest_weekday & month.all()) {
            days |= 1 << month.nearest_weekday(day);
        }
        if self.last {
            days |= 1 << month.length;
        }
        if self.last_weekday {
            days |= 1 << month.last_weekday();
        }
        days
    }
}

impl Month {
    fn last_weekday(&self) -> u8 {
        match self.weekday(self.length) {
            6 => self.length - 1,
            0 => self.length - 2,
            _ => self.length,
        }
    }
}

impl DayOfWeekField {
    fn parse(text: &str) -> Result<DayOfWeekField, CronError> {
        let field = CronField::DayOfWeek;
        let mut days = DayOfWeekField::default();
        // 7 is Sunday, which is 0.
        let bit = |number: u8| 1_u64 << (number % 7);
        for item in field::list_items(field, text) {
            let item = item?;
            let wrong = || field.error(FieldProblem::Occurrence { found: quote_input(item) });
            if let Some((weekday, nth)) = item.split_once('#') {
                let nth = match nth {
                    "1" | "2" | "3" | "4" | "5" => usize::from(nth.as_bytes()[0] - b'1'),
                    _ => return Err(wrong()),
                };
                days.nth[nth] |= bit(field.parse_number(weekday)?);
            } else if let Some(weekday) = item.strip_suffix(['L', 'l']) {
                if weekday.is_empty() {
                    return Err(wrong());
                }
                days.last |= bit(field.parse_number(weekday)?);
            } else {
                let set = field.parse_item(item)?;
                days.weekdays |= (set & 0x7f) | (set >> 7);
            }
        }
        Ok(days)
    }

    fn matching_days(&self, month: &Month) -> u64 {
        bits(month.all())
            .filter(|day| {
                let weekday = 1 << month.weekday(*day);
                self.weekdays & weekday != 0
                    || self.nth[usize::from((day - 1) / 7)] & weekday != 0
                    || (day + 7 > month.length && self.last & weekday != 0)
            })
            .fold(0, |set, day| set | 1 << day)
    }
}
