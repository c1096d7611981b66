//! Labels of servers: environments, tags, host names.
//!
//! All are bounded and plain ASCII, so that they need no escaping in a URL, an HTML page, a CSV
//! file or on a terminal, and so that two labels that look the same are the same.

use std::fmt;
use std::str::FromStr;

use crate::text::quote_input;

/// Error returned when parsing a label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    #[error("{what} must not be empty")]
    Empty {
        /// The type of label, with its article.
        what: &'static str,
    },
    #[error("{what} must have at most {max} characters (got {found})")]
    TooLong { what: &'static str, max: usize, found: usize },
    /// The first character is only allowed further inside.
    #[error("{what} must start with a letter or a digit (found `{}`)", found.escape_debug())]
    Start { what: &'static str, found: char },
    #[error("{what} must contain only letters, digits and {allowed} (found `{}`)", found.escape_debug())]
    Character {
        what: &'static str,
        /// The characters that are allowed besides letters and digits.
        allowed: &'static str,
        found: char,
    },
    /// A host name with two consecutive dots, or a trailing dot.
    #[error("`{0}` has an empty part between its dots")]
    EmptyPart(String),
}

struct Rule {
    what: &'static str,
    max: usize,
    /// The characters that are allowed besides letters and digits, as the error lists them.
    allowed: &'static str,
}

impl Rule {
    fn check(&self, text: &str) -> Result<(), LabelError> {
        let Rule { what, max, allowed } = *self;
        let first = text.chars().next().ok_or(LabelError::Empty { what })?;
        let found = text.chars().count();
        if found > max {
            return Err(LabelError::TooLong { what, max, found });
        }
        let inside = |c: char| c.is_ascii_alphanumeric() || (c != ' ' && allowed.contains(c));
        if let Some(found) = text.chars().find(|c| !inside(*c)) {
            return Err(LabelError::Character { what, allowed, found });
        }
        if !first.is_ascii_alphanumeric() {
            return Err(LabelError::Start { what, found: first });
        }
        Ok(())
    }
}

macro_rules! labels {
    ($($(#[$doc:meta])* $name:ident ($what:literal, $max:literal, $allowed:literal);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Box<str>);

        impl $name {
            /// Maximum number of characters.
            pub const CHARS_MAX: usize = $max;
            const RULE: Rule = Rule { what: $what, max: $max, allowed: $allowed };

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        crate::text::serde_as_text!($name);
    )*};
}

labels! {
    /// The environment of a server, such as `production` or `staging-eu`. At most 64 characters:
    /// letters, digits and `- _ .` Case-sensitive.
    Environment ("an environment", 64, "- _ .");
    /// A tag on a server, such as `web`, `team:shop` or `role=db`. At most 64 characters: letters,
    /// digits and `- _ . : / = @ +`
    Tag ("a tag", 64, "- _ . : / = @ +");
    /// The host name that a server reports: at most 253 characters, letters, digits and `- _ .`
    /// Agents cannot be trusted, so a host name never contains anything that an HTML page or a
    /// terminal interprets.
    Hostname ("a host name", 253, "- _ .");
}

impl FromStr for Environment {
    type Err = LabelError;
    fn from_str(text: &str) -> Result<Self, LabelError> {
        Self::RULE.check(text).map(|()| Self(text.into()))
    }
}

impl FromStr for Tag {
    type Err = LabelError;
    fn from_str(text: &str) -> Result<Self, LabelError> {
        Self::RULE.check(text).map(|()| Self(text.into()))
    }
}

impl FromStr for Hostname {
    type Err = LabelError;
    fn from_str(text: &str) -> Result<Self, LabelError> {
        Self::RULE.check(text)?;
        if text.split('.').any(str::is_empty) {
            return Err(LabelError::EmptyPart(quote_input(text)));
        }
        Ok(Self(text.into()))
    }
}

impl Hostname {
    /// Converts the kernel's host name to a valid one, for the agent: a machine whose name is
    /// `(none)` must still be able to enroll. Every invalid character becomes a hyphen.
    pub fn sanitize(text: &str) -> Hostname {
        let parts = text.split('.').map(|part| {
            part.replace(|c: char| !(c.is_ascii_alphanumeric() || c == '_'), "-")
                .trim_matches(|c| c == '-' || c == '_')
                .to_owned()
        });
        let mut name = parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
        name.truncate(Self::CHARS_MAX);
        name.parse()
            .or_else(|_| name.trim_end_matches('.').parse())
            .unwrap_or_else(|_| Hostname("unnamed".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ordinary_labels_are_accepted_unchanged() {
        for text in ["production", "Staging-EU_2.1", "7"] {
            assert_eq!(text.parse::<Environment>().unwrap().as_str(), text);
        }
        for text in ["team:shop", "role=db", "a/b", "v1+2@x"] {
            assert_eq!(text.parse::<Tag>().unwrap().to_string(), text);
        }
        for text in ["web-1", "db.example.org", "my_host"] {
            assert_eq!(text.parse::<Hostname>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let refusal = |text: &str| text.parse::<Environment>().unwrap_err().to_string();
        assert_eq!(refusal(""), "an environment must not be empty");
        assert_eq!(
            refusal(&"x".repeat(65)),
            "an environment must have at most 64 characters (got 65)"
        );
        assert_eq!(
            refusal("-prod"),
            "an environment must start with a letter or a digit (found `-`)"
        );
        assert_eq!(
            refusal("prod eu"),
            "an environment must contain only letters, digits and - _ . (found ` `)"
        );
        assert_eq!(
            "web..1".parse::<Hostname>().unwrap_err().to_string(),
            "`web..1` has an empty part between its dots"
        );
    }

    #[test]
    fn hostname_rejects_control_characters_and_markup() {
        for text in ["web\u{1b}[2J", "<b>", "a\nb", "web\u{202e}1", "=1+1", "a\0"] {
            assert!(text.parse::<Hostname>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn machine_with_invalid_name_gets_valid_hostname() {
        assert_eq!(Hostname::sanitize("(none)").as_str(), "none");
        assert_eq!(Hostname::sanitize("Büro PC.local.").as_str(), "B-ro-PC.local");
        assert_eq!(Hostname::sanitize("\u{1b}").as_str(), "unnamed");
        assert_eq!(Hostname::sanitize("web-1").as_str(), "web-1");
    }

    proptest! {
        #[test]
        fn no_text_panics_and_parsed_labels_display_unchanged(text in "\\PC{0,80}|[a-z.:=/_-]{0,70}") {
            if let Ok(label) = text.parse::<Environment>() { prop_assert_eq!(label.to_string(), text.clone()); }
            if let Ok(label) = text.parse::<Tag>() { prop_assert_eq!(label.to_string(), text.clone()); }
            if let Ok(label) = text.parse::<Hostname>() { prop_assert_eq!(label.to_string(), text.clone()); }
        }

        #[test]
        fn any_kernel_name_becomes_valid_hostname(text in "\\PC{0,300}") {
            let name = Hostname::sanitize(&text);
            prop_assert_eq!(name.as_str().parse::<Hostname>(), Ok(name.clone()));
        }
    }
}
