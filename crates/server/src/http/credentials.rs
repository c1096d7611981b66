//! What `/v1/api-keys` and `/v1/enrollment-tokens` have in common: how they are paged and how their words are read.

use std::fmt::Display;
use std::str::FromStr;

use jiff::Timestamp;

use crate::http::{ApiError, Limit, Offset};
use crate::service::FieldError;

const NAME_CHARS_MAX: usize = 200;

/// Which part of a list.
#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Listing {
    /// How many at the most.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    pub(crate) limit: Limit,
    /// How many to pass over.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    pub(crate) offset: Offset,
}

/// Everything that is wrong, gathered.
#[derive(Default)]
pub(crate) struct Errors(Vec<FieldError>);

impl Errors {
    pub(crate) fn note(&mut self, pointer: &str, code: &'static str, detail: impl Display) {
        self.0.push(FieldError::new(pointer, code, detail));
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
        let chars = name.chars().count();
        if name.trim().is_empty() {
            self.note(pointer, "empty", "it has at least one character");
        } else if chars > NAME_CHARS_MAX {
            let detail =
                format!("it has at most {NAME_CHARS_MAX} characters, this one has {chars}");
            self.note(pointer, "too_long", detail);
        } else if let Some(bad) = name.chars().find(|c| c.is_control()) {
            let detail = format!("it holds no control characters, not `{}`", bad.escape_debug());
            self.note(pointer, "invalid_character", detail);
        }
        name
    }

    pub(crate) fn time(&mut self, pointer: &str, text: Option<&str>) -> Option<Timestamp> {
        let time = text?.parse::<Timestamp>();
        // To the microsecond, which is what is kept.
        let kept = time.and_then(|time| Timestamp::from_microsecond(time.as_microsecond()));
        let expected = "it is a time like 2026-11-15T04:00:00Z";
        kept.map_err(|_| self.note(pointer, "invalid_time", expected)).ok()
    }

    pub(crate) fn done(self) -> Result<(), ApiError> {
        if self.0.is_empty() { Ok(()) } else { Err(ApiError::invalid(self.0)) }
    }
}
