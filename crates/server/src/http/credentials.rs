//! What `/v1/api-keys` and `/v1/enrollment-tokens` have in common: how they are paged and how their words are read.

use std::fmt::Display;
use std::str::FromStr;

use jiff::Timestamp;

use crate::http::{ApiError, Limit, Offset};
use service::FieldError;

const NAME_CHARS_MAX: usize = 200;

/// What [`Errors::name`] takes, for the document: no control characters, and not only spaces.
pub(crate) const NAME_PATTERN: &str = r"^[^\u0000-\u001F\u007F-\u009F]*[^\s\u0000-\u001F\u007F-\u009F][^\u0000-\u001F\u007F-\u009F]*$";

/// Which part of a list.
#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Listing {
    /// Maximum number of results.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    pub(crate) limit: Limit,
    /// Number of results to skip.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    pub(crate) offset: Offset,
}

impl Listing {
    pub(crate) fn page(&self) -> service::queries::Page {
        crate::http::page::page(self.limit, self.offset)
    }
}

/// How many errors of one body are kept. A body of a megabyte could have hundreds of thousands.
const NOTED_MAX: usize = 11_000;

/// Everything that is wrong, gathered.
#[derive(Debug, Default)]
#[must_use = "errors that nobody asks about would let a wrong order through"]
pub(crate) struct Errors {
    /// At most [`NOTED_MAX`].
    found: Vec<FieldError>,
    /// How many of them are about the shape of the body. What stands at those places now was put there by us, and
    /// nothing more is said of it.
    of_shape: usize,
}

impl Errors {
    /// What is wrong with the shape of a body.
    pub(crate) fn of_shape(found: Vec<FieldError>) -> Errors {
        Errors { of_shape: found.len(), found }
    }

    pub(crate) fn note(&mut self, pointer: &str, code: &'static str, detail: impl Display) {
        let within = |shape: &FieldError| {
            pointer
                .strip_prefix(&*shape.pointer)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if self.found.len() < NOTED_MAX && !self.found[..self.of_shape].iter().any(within) {
            self.found.push(FieldError::new(pointer, code, detail));
        }
    }

    pub(crate) fn parse<T: FromStr<Err: Display>>(
        &mut self,
        pointer: &str,
        code: &'static str,
        text: &str,
    ) -> Option<T> {
        text.parse().map_err(|error: T::Err| self.note(pointer, code, error)).ok()
    }

    pub(crate) fn parse_all<T: FromStr<Err: Display>>(
        &mut self,
        pointer: &str,
        code: &'static str,
        texts: &[String],
    ) -> Vec<T> {
        let each = texts.iter().enumerate();
        each.filter_map(|(n, text)| self.parse(&format!("{pointer}/{n}"), code, text)).collect()
    }

    pub(crate) fn name(&mut self, pointer: &str, name: String) -> String {
        self.line(pointer, name, NAME_CHARS_MAX)
    }

    /// A line of text that says something.
    pub(crate) fn line(&mut self, pointer: &str, name: String, chars_max: usize) -> String {
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

    pub(crate) fn time(&mut self, pointer: &str, text: Option<&str>) -> Option<Timestamp> {
        let time = text?.parse::<Timestamp>();
        // To the microsecond, which is what is kept.
        let kept = time.and_then(|time| Timestamp::from_microsecond(time.as_microsecond()));
        let expected = "must be a time like 2026-11-15T04:00:00Z";
        kept.map_err(|_| self.note(pointer, "invalid_time", expected)).ok()
    }

    pub(crate) fn done(self) -> Result<(), ApiError> {
        if self.found.is_empty() { Ok(()) } else { Err(ApiError::invalid(self.found)) }
    }
}
