//! The names that people and machines give to servers: environments, tags, hostnames.
//!
//! Each is bounded and plain ASCII, so that it can stand in a URL, a page, a CSV file and on
//! a terminal without anyone having to escape it, and so that two that look alike are alike.

use std::fmt;
use std::str::FromStr;

use crate::text::shown;

/// Why a text is not a label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// There is nothing.
    #[error("{what} has at least one character")]
    Empty {
        /// What was asked for, with its article.
        what: &'static str,
    },
    /// There is too much.
    #[error("{what} has at most {max} characters, this one has {found}")]
    TooLong {
        /// What was asked for, with its article.
        what: &'static str,
        /// How many characters it may have.
        max: usize,
        /// How many it has.
        found: usize,
    },
    /// It starts with something that only may stand inside.
    #[error("{what} starts with a letter or a digit, not with `{}`", found.escape_debug())]
    Start {
        /// What was asked for, with its article.
        what: &'static str,
        /// What it starts with.
        found: char,
    },
    /// Something in it may not stand there.
    #[error("{what} holds letters, digits and {allowed} only, not `{}`", found.escape_debug())]
    Character {
        /// What was asked for, with its article.
        what: &'static str,
        /// What it may hold besides letters and digits.
        allowed: &'static str,
        /// What it holds.
        found: char,
    },
    /// A hostname with two dots in a row, or one at its end.
    #[error("`{0}` has an empty part between its dots")]
    EmptyPart(String),
}

struct Rule {
    what: &'static str,
    max: usize,
    /// What may stand inside besides letters and digits, as the refusal lists it.
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
            /// The most characters that it may have.
            pub const CHARS_MAX: usize = $max;
            const RULE: Rule = Rule { what: $what, max: $max, allowed: $allowed };

            /// The text of it.
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
    /// Where a server belongs: `production`, `staging-eu`. At most 64 characters; letters, digits
    /// and `- _ .` Compared to the letter.
    Environment ("an environment", 64, "- _ .");
    /// A word that someone hangs on a server: `web`, `team:shop`, `role=db`. At most 64
    /// characters; letters, digits and `- _ . : / = @ +`
    Tag ("a tag", 64, "- _ . : / = @ +");
    /// What a server calls itself: at most 253 characters, letters, digits and `- _ .` An agent
    /// says it, and an agent may lie, so it never holds anything that a page or terminal obeys.
    Hostname ("a hostname", 253, "- _ .");
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
            return Err(LabelError::EmptyPart(shown(text)));
        }
        Ok(Self(text.into()))
    }
}

impl Hostname {
    /// A hostname made of whatever the kernel says, for the agent: a machine that calls itself
    /// `(none)` must still be able to join. What may not stand in a hostname becomes a hyphen.
    pub fn made_of(text: &str) -> Hostname {
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
    fn ordinary_labels_are_taken_as_they_are() {
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
    fn each_refusal_says_what_is_wrong() {
        let refusal = |text: &str| text.parse::<Environment>().unwrap_err().to_string();
        assert_eq!(refusal(""), "an environment has at least one character");
        assert_eq!(
            refusal(&"x".repeat(65)),
            "an environment has at most 64 characters, this one has 65"
        );
        assert_eq!(
            refusal("-prod"),
            "an environment starts with a letter or a digit, not with `-`"
        );
        assert_eq!(
            refusal("prod eu"),
            "an environment holds letters, digits and - _ . only, not ` `"
        );
        assert_eq!(
            "web..1".parse::<Hostname>().unwrap_err().to_string(),
            "`web..1` has an empty part between its dots"
        );
    }

    #[test]
    fn no_hostname_carries_anything_that_a_terminal_or_a_page_obeys() {
        for text in ["web\u{1b}[2J", "<b>", "a\nb", "web\u{202e}1", "=1+1", "a\0"] {
            assert!(text.parse::<Hostname>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_machine_without_a_proper_name_can_still_join() {
        assert_eq!(Hostname::made_of("(none)").as_str(), "none");
        assert_eq!(Hostname::made_of("Büro PC.local.").as_str(), "B-ro-PC.local");
        assert_eq!(Hostname::made_of("\u{1b}").as_str(), "unnamed");
        assert_eq!(Hostname::made_of("web-1").as_str(), "web-1");
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_parses_prints_the_same(text in "\\PC{0,80}|[a-z.:=/_-]{0,70}") {
            if let Ok(label) = text.parse::<Environment>() { prop_assert_eq!(label.to_string(), text.clone()); }
            if let Ok(label) = text.parse::<Tag>() { prop_assert_eq!(label.to_string(), text.clone()); }
            if let Ok(label) = text.parse::<Hostname>() { prop_assert_eq!(label.to_string(), text.clone()); }
        }

        #[test]
        fn whatever_the_kernel_says_makes_a_hostname_that_parses(text in "\\PC{0,300}") {
            let name = Hostname::made_of(&text);
            prop_assert_eq!(name.as_str().parse::<Hostname>(), Ok(name.clone()));
        }
    }
}
