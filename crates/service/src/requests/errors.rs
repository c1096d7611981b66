//! Everything that is wrong with a request, gathered.

use std::fmt::Display;
use std::str::FromStr;

use jiff::Timestamp;

use crate::{FieldError, Result, ServiceError};

const NAME_CHARS_MAX: usize = 200;

/// What [`Errors::name`] accepts, for the API's description: no control characters, and not only spaces.
pub const NAME_PATTERN: &str = r"^[^\u0000-\u001F\u007F-\u009F]*[^\s\u0000-\u001F\u007F-\u009F][^\u0000-\u001F\u007F-\u009F]*$";

/// How many errors of one body are kept. A body of a megabyte could have hundreds of thousands.
const NOTED_MAX: usize = 11_000;

/// Everything that is wrong, gathered.
#[derive(Debug, Default)]
#[must_use = "errors that nobody asks about would let a wrong order through"]
pub struct Errors {
    /// At most [`NOTED_MAX`].
    found: Vec<FieldError>,
    /// How many of them are about the shape of the body. What stands at those places now was put there by us, and
    /// nothing more is said of it.
    of_shape: usize,
}

impl Errors {
    /// What is wrong with the shape of a body.
    pub fn of_shape(found: Vec<FieldError>) -> Errors {
        Errors { of_shape: found.len(), found }
    }

    pub fn note(&mut self, pointer: &str, code: &'static str, detail: impl Display) {
        let within = |shape: &FieldError| {
            pointer
                .strip_prefix(&*shape.pointer)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if self.found.len() < NOTED_MAX && !self.found[..self.of_shape].iter().any(within) {
            self.found.push(FieldError::new(pointer, code, detail));
        }
    }

    pub fn parse<T: FromStr<Err: Display>>(
        &mut self,
        pointer: &str,
        code: &'static str,
        text: &str,
    ) -> Option<T> {
        text.parse().map_err(|error: T::Err| self.note(pointer, code, error)).ok()
    }

    pub fn parse_all<T: FromStr<Err: Display>>(
        &mut self,
        pointer: &str,
        code: &'static str,
        texts: &[String],
    ) -> Vec<T> {
        let each = texts.iter().enumerate();
        each.filter_map(|(n, text)| self.parse(&format!("{pointer}/{n}"), code, text)).collect()
    }

    pub fn name(&mut self, pointer: &str, name: String) -> String {
        self.line(pointer, name, NAME_CHARS_MAX)
    }

    /// A line of text that says something.
    pub fn line(&mut self, pointer: &str, name: String, chars_max: usize) -> String {
        let chars = name.chars().count();
        if name.trim().is_empty() {
            self.note(pointer, "empty", "must not be empty");
        } else if chars > chars_max {
            let detail = format!("must have at most {chars_max} characters (has {chars})");
            self.note(pointer, "too_long", detail);
        } else if let Some(bad) = name.chars().find(|c| c.is_control()) {
            let detail =
                format!("must not contain control characters (found `{}`)", bad.escape_debug());
            self.note(pointer, "invalid_character", detail);
        }
        name
    }

    pub fn time(&mut self, pointer: &str, text: Option<&str>) -> Option<Timestamp> {
        let time = text?.parse::<Timestamp>();
        // To the microsecond, which is what is kept.
        let kept = time.and_then(|time| Timestamp::from_microsecond(time.as_microsecond()));
        let expected = "must be a time like 2026-11-15T04:00:00Z";
        kept.map_err(|_| self.note(pointer, "invalid_time", expected)).ok()
    }

    /// Refuses if anything is wrong.
    pub fn done(self) -> Result<()> {
        if self.found.is_empty() { Ok(()) } else { Err(ServiceError::Invalid(self.found)) }
    }
}
