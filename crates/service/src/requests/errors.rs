//! Collects all errors of a request.

use std::fmt::Display;
use std::str::FromStr;

use jiff::Timestamp;

use crate::{FieldError, Result, ServiceError};

const NAME_CHARS_MAX: usize = 200;
const PROSE_CHARS_MAX: usize = 2_000;

/// The pattern that [`ValidationErrors::name`] accepts, for the OpenAPI document: no control
/// characters, and not only spaces.
pub const NAME_PATTERN: &str = r"^[^\u0000-\u001F\u007F-\u009F]*[^\s\u0000-\u001F\u007F-\u009F][^\u0000-\u001F\u007F-\u009F]*$";

/// The maximum number of errors that are kept per body. A body of one megabyte could have hundreds
/// of thousands.
const ERRORS_MAX: usize = 11_000;

/// Collects all errors of a request.
#[derive(Debug, Default)]
#[must_use = "errors that are not checked let an invalid request through"]
pub struct ValidationErrors {
    /// At most [`ERRORS_MAX`].
    errors: Vec<FieldError>,
    /// The number of errors about the body's JSON structure. The invalid values were replaced by
    /// placeholders, so no further errors are reported for them.
    structural: usize,
}

impl ValidationErrors {
    /// Starts with the errors of a body's JSON structure.
    pub fn from_structural(found: Vec<FieldError>) -> ValidationErrors {
        ValidationErrors { structural: found.len(), errors: found }
    }

    pub fn add(&mut self, pointer: &str, code: &'static str, detail: impl Display) {
        let within = |shape: &FieldError| {
            pointer
                .strip_prefix(&*shape.pointer)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if self.errors.len() < ERRORS_MAX && !self.errors[..self.structural].iter().any(within) {
            self.errors.push(FieldError::new(pointer, code, detail));
        }
    }

    /// Checks text of several lines: a description, notes.
    pub fn prose(&mut self, pointer: &str, text: &str) {
        if text.contains('\0') {
            // PostgreSQL cannot store NUL in text.
            self.add(pointer, "invalid_character", "must not contain a NUL character");
        }
        let chars = text.chars().count();
        if chars > PROSE_CHARS_MAX {
            let detail = format!("must have at most {PROSE_CHARS_MAX} characters (has {chars})");
            self.add(pointer, "too_long", detail);
        }
    }

    pub fn parse<T: FromStr<Err: Display>>(
        &mut self,
        pointer: &str,
        code: &'static str,
        text: &str,
    ) -> Option<T> {
        text.parse().map_err(|error: T::Err| self.add(pointer, code, error)).ok()
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

    /// A line of text that is not blank.
    pub fn line(&mut self, pointer: &str, name: String, chars_max: usize) -> String {
        let chars = name.chars().count();
        if name.trim().is_empty() {
            self.add(pointer, "empty", "must not be empty");
        } else if chars > chars_max {
            let detail = format!("must have at most {chars_max} characters (has {chars})");
            self.add(pointer, "too_long", detail);
        } else if let Some(bad) = name.chars().find(|c| c.is_control()) {
            let detail =
                format!("must not contain control characters (found `{}`)", bad.escape_debug());
            self.add(pointer, "invalid_character", detail);
        }
        name
    }

    pub fn time(&mut self, pointer: &str, text: Option<&str>) -> Option<Timestamp> {
        let time = text?.parse::<Timestamp>();
        // With microsecond precision, as stored.
        let kept = time.and_then(|time| Timestamp::from_microsecond(time.as_microsecond()));
        let expected = "must be a time like 2026-11-15T04:00:00Z";
        kept.map_err(|_| self.add(pointer, "invalid_time", expected)).ok()
    }

    /// Returns the collected errors, if there are any.
    pub fn into_result(self) -> Result<()> {
        if self.errors.is_empty() { Ok(()) } else { Err(ServiceError::Invalid(self.errors)) }
    }
}
