//! One field of a cron expression: a list of numbers, ranges and steps.

use std::fmt;

use super::CronError;
use crate::text::shown;

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
    /// A number that the field does not have.
    #[error("{found} is not between {min} and {max}")]
    OutOfRange {
        /// The number, as it was written.
        found: String,
        /// The least that the field has.
        min: u8,
        /// The greatest that the field has.
        max: u8,
    },
    /// Neither a number nor a name.
    #[error("`{found}` is not {expected}")]
    NotANumber {
        /// What was written, shortened.
        found: String,
        /// What the field holds.
        expected: &'static str,
    },
    /// A list with nothing between two commas.
    #[error("a list has nothing between two commas")]
    EmptyItem,
    /// A range whose end is before its start.
    #[error("{found} runs backwards: write {start}-{max},{min}-{end}")]
    Backwards {
        /// The range, as it was written.
        found: String,
        /// Where it starts.
        start: u8,
        /// Where it ends.
        end: u8,
        /// The least that the field has.
        min: u8,
        /// The greatest that the field has.
        max: u8,
    },
    /// A step of nothing, or beyond the field.
    #[error("a step is between 1 and {max}, not {found}")]
    Step {
        /// The step, as it was written.
        found: String,
        /// The greatest step that has any effect.
        max: u8,
    },
    /// A step that starts at a number.
    #[error("a step needs a range: write {start}-{max}/{step}")]
    StepWithoutRange {
        /// Where it starts, as it was written.
        start: String,
        /// The greatest that the field has.
        max: u8,
        /// The step, as it was written.
        step: String,
    },
    /// Which weekday's last one, or which occurrence of it, is not said rightly.
    #[error("{found} is not a day in a month: write 5L for the last Friday, 5#2 for the second")]
    Occurrence {
        /// What was written, shortened.
        found: String,
    },
    /// `L` or `W` that stands for no day.
    #[error(
        "{found} is not a day: write L for the last, LW for the last weekday, 15W for the weekday nearest to the 15th"
    )]
    Special {
        /// What was written, shortened.
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
    pub(super) fn wrong(self, problem: FieldProblem) -> CronError {
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

    /// The greatest value that `*` reaches: 7 is only another name for Sunday.
    const fn whole_max(self) -> u8 {
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

    /// One number or name.
    pub(super) fn number(self, text: &str) -> Result<u8, CronError> {
        let (names, first) = self.names();
        if let Some(place) = names.iter().position(|name| name.eq_ignore_ascii_case(text)) {
            return Ok(first + place as u8);
        }
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            let expected = self.expected();
            return Err(self.wrong(FieldProblem::NotANumber { found: shown(text), expected }));
        }
        let (min, max) = self.bounds();
        match text.parse::<u8>() {
            Ok(number) if (min..=max).contains(&number) => Ok(number),
            _ => Err(self.wrong(FieldProblem::OutOfRange { found: shown(text), min, max })),
        }
    }

    /// A number, a range or a stepped range, as a set of bits.
    pub(super) fn item(self, text: &str) -> Result<u64, CronError> {
        let (range, step) = match text.split_once('/') {
            Some((range, step)) => (range, Some(step)),
            None => (text, None),
        };
        let (start, end) = match (self.range(range)?, step) {
            (Some(range), _) => range,
            (None, None) => {
                let number = self.number(range)?;
                (number, number)
            }
            (None, Some(step)) => {
                self.number(range)?;
                return Err(self.wrong(FieldProblem::StepWithoutRange {
                    start: shown(range),
                    max: self.whole_max(),
                    step: shown(step),
                }));
            }
        };
        let step = match step {
            Some(step) => self.step(step)?,
            None => 1,
        };
        Ok((start..=end).step_by(usize::from(step)).fold(0, |set, number| set | 1 << number))
    }

    /// The ends of a range, if the text is one.
    fn range(self, text: &str) -> Result<Option<(u8, u8)>, CronError> {
        let (min, max) = (self.bounds().0, self.whole_max());
        if text == "*" {
            return Ok(Some((min, max)));
        }
        let Some((start, end)) = text.split_once('-') else { return Ok(None) };
        let (start, mut end) = (self.number(start)?, self.number(end)?);
        if self == Self::DayOfWeek && end == 0 && start > 0 {
            end = 7; // FRI-SUN ends on the Sunday after.
        }
        if start > end {
            let found = shown(text);
            return Err(self.wrong(FieldProblem::Backwards { found, start, end, min, max }));
        }
        Ok(Some((start, end)))
    }

    fn step(self, text: &str) -> Result<u8, CronError> {
        // `*/60` is every hour on the hour; `*/90` would be that too, and is never meant so.
        let max = self.whole_max() - self.bounds().0 + 1;
        let number = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u8>());
        match number {
            Some(Ok(step)) if (1..=max).contains(&step) => Ok(step),
            _ => Err(self.wrong(FieldProblem::Step { found: shown(text), max })),
        }
    }
}

/// The items of a list.
pub(super) fn items(field: CronField, text: &str) -> impl Iterator<Item = Result<&str, CronError>> {
    text.split(',').map(move |item| {
        if item.is_empty() { Err(field.wrong(FieldProblem::EmptyItem)) } else { Ok(item) }
    })
}

/// A field that holds nothing but numbers, ranges and steps.
pub(super) fn numbers(field: CronField, text: &str) -> Result<u64, CronError> {
    items(field, text).try_fold(0, |set, item| Ok(set | field.item(item?)?))
}
