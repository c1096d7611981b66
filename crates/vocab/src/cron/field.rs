//! One field of a cron expression: a list of numbers, ranges and steps.

use std::fmt;

use super::CronError;
use crate::text::quote_input;

/// One of the five fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CronField {
    /// 0 to 59.
    Minute,
    /// 0 to 23.
    Hour,
    /// 1 to 31.
    DayOfMonth,
    /// 1 to 12, or JAN to DEC.
    Month,
    /// 0 to 7, or SUN to SAT.
    DayOfWeek,
}

/// What is wrong with a field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldProblem {
    #[error("{found} is not between {min} and {max}")]
    OutOfRange { found: String, min: u8, max: u8 },
    #[error("`{found}` is not {expected}")]
    NotANumber {
        /// The text, shortened.
        found: String,
        /// Description of what the field accepts.
        expected: &'static str,
    },
    #[error("a list item is empty")]
    EmptyItem,
    #[error("{found} is reversed: write {start}-{max},{min}-{end}")]
    Backwards { found: String, start: u8, end: u8, min: u8, max: u8 },
    #[error("a step must be between 1 and {max} (got {found})")]
    Step {
        found: String,
        /// The largest step that has an effect.
        max: u8,
    },
    /// A step after a single number instead of a range.
    #[error("a step needs a range: write {start}-{max}/{step}")]
    StepWithoutRange { start: String, max: u8, step: String },
    /// An invalid `nL` (last weekday of the month) or `n#m` (m-th weekday of the month).
    #[error("{found} does not select a day: write 5L for the last Friday, 5#2 for the second")]
    Occurrence {
        /// The text, shortened.
        found: String,
    },
    /// An invalid use of `L` or `W`.
    #[error(
        "{found} is not a day: write L for the last, LW for the last weekday, 15W for the weekday nearest to the 15th"
    )]
    Special {
        /// The text, shortened.
        found: String,
    },
}

impl fmt::Display for CronField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::DayOfMonth => "day of month",
            Self::Month => "month",
            Self::DayOfWeek => "day of week",
        })
    }
}

const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

impl CronField {
    pub(super) fn error(self, problem: FieldProblem) -> CronError {
        CronError::Field { field: self, problem }
    }

    const fn bounds(self) -> (u8, u8) {
        match self {
            Self::Minute => (0, 59),
            Self::Hour => (0, 23),
            Self::DayOfMonth => (1, 31),
            Self::Month => (1, 12),
            Self::DayOfWeek => (0, 7),
        }
    }

    /// The greatest value that `*` includes: 7 is only another name for Sunday.
    const fn wildcard_max(self) -> u8 {
        match self {
            Self::DayOfWeek => 6,
            other => other.bounds().1,
        }
    }

    fn names(self) -> (&'static [&'static str], u8) {
        match self {
            Self::Month => (&MONTHS, 1),
            Self::DayOfWeek => (&WEEKDAYS, 0),
            _ => (&[], 0),
        }
    }

    const fn expected(self) -> &'static str {
        match self {
            Self::Month => "a month: 1 to 12 or JAN to DEC",
            Self::DayOfWeek => "a weekday: 0 to 7 or SUN to SAT",
            _ => "a number",
        }
    }

    /// Parses one number or name.
    pub(super) fn parse_number(self, text: &str) -> Result<u8, CronError> {
        let (names, first) = self.names();
        if let Some(place) = names.iter().position(|name| name.eq_ignore_ascii_case(text)) {
            return Ok(first + place as u8);
        }
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            let expected = self.expected();
            return Err(self.error(FieldProblem::NotANumber { found: quote_input(text), expected }));
        }
        let (min, max) = self.bounds();
        match text.parse::<u8>() {
            Ok(number) if (min..=max).contains(&number) => Ok(number),
            _ => Err(self.error(FieldProblem::OutOfRange { found: quote_input(text), min, max })),
        }
    }

    /// Parses a number, a range or a stepped range into a bit set.
    pub(super) fn parse_item(self, text: &str) -> Result<u64, CronError> {
        let (range, step) = match text.split_once('/') {
            Some((range, step)) => (range, Some(step)),
            None => (text, None),
        };
        let (start, end) = match (self.parse_range(range)?, step) {
            (Some(range), _) => range,
            (None, None) => {
                let number = self.parse_number(range)?;
                (number, number)
            }
            (None, Some(step)) => {
                self.parse_number(range)?;
                return Err(self.error(FieldProblem::StepWithoutRange {
                    start: quote_input(range),
                    max: self.wildcard_max(),
                    step: quote_input(step),
                }));
            }
        };
        let step = match step {
            Some(step) => self.parse_step(step)?,
            None => 1,
        };
        Ok((start..=end).step_by(usize::from(step)).fold(0, |set, number| set | 1 << number))
    }

    /// Returns the ends of a range, or `None` if the text is not a range.
    fn parse_range(self, text: &str) -> Result<Option<(u8, u8)>, CronError> {
        let (min, max) = (self.bounds().0, self.wildcard_max());
        if text == "*" {
            return Ok(Some((min, max)));
        }
        let Some((start, end)) = text.split_once('-') else { return Ok(None) };
        let (start, mut end) = (self.parse_number(start)?, self.parse_number(end)?);
        if self == Self::DayOfWeek && end == 0 && start > 0 {
            end = 7; // FRI-SUN ends on the following Sunday.
        }
        if start > end {
            let found = quote_input(text);
            return Err(self.error(FieldProblem::Backwards { found, start, end, min, max }));
        }
        Ok(Some((start, end)))
    }

    fn parse_step(self, text: &str) -> Result<u8, CronError> {
        // `*/60` means every hour on the hour. `*/90` would mean the same, but that is never what
        // the user intends.
        let max = self.wildcard_max() - self.bounds().0 + 1;
        let number = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u8>());
        match number {
            Some(Ok(step)) if (1..=max).contains(&step) => Ok(step),
            _ => Err(self.error(FieldProblem::Step { found: quote_input(text), max })),
        }
    }
}

pub(super) fn list_items(
    field: CronField,
    text: &str,
) -> impl Iterator<Item = Result<&str, CronError>> {
    text.split(',').map(move |item| {
        if item.is_empty() { Err(field.error(FieldProblem::EmptyItem)) } else { Ok(item) }
    })
}

/// Parses a field that contains only numbers, ranges and steps.
pub(super) fn parse_number_set(field: CronField, text: &str) -> Result<u64, CronError> {
    list_items(field, text).try_fold(0, |set, item| Ok(set | field.parse_item(item?)?))
}
