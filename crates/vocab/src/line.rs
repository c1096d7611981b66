//! A line of text that some machine said, made harmless.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One line of at most 500 characters, without control characters. Whatever an agent says becomes
/// one: a message must be neither obeyed by a terminal nor lost because of how it is written.
/// It may still hold markup; whoever puts it into a page escapes it there.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String")]
pub struct Line(String);

impl Line {
    /// The most characters that it has.
    pub const CHARS_MAX: usize = 500;

    /// The line made of a text: what controls becomes a space, and what is too long is cut.
    pub fn made_of(text: &str) -> Line {
        // Besides control characters, those that reorder what is read around them.
        let obeyed = |c: char| {
            c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        };
        // What becomes a space at an end goes with the other spaces there: a line stays as it is.
        let mut chars = text.trim_matches(|c: char| c.is_whitespace() || obeyed(c)).chars();
        let mut line: String =
            chars.by_ref().take(Self::CHARS_MAX).map(|c| if obeyed(c) { ' ' } else { c }).collect();
        if chars.next().is_some() {
            line.pop();
            line.push('…');
        }
        Line(line)
    }

    /// The text of it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for Line {
    fn from(text: String) -> Line {
        Line::made_of(&text)
    }
}

impl From<&str> for Line {
    fn from(text: &str) -> Line {
        Line::made_of(text)
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_terminal_would_obey_is_taken_out_and_the_rest_is_kept() {
        assert_eq!(Line::from("dpkg was interrupted\n").as_str(), "dpkg was interrupted");
        assert_eq!(
            Line::from("E: \u{1b}[31mbroken\u{202e}\r\nstop").as_str(),
            "E:  [31mbroken   stop"
        );
        assert_eq!(Line::from("\u{7f} n\u{7f}").as_str(), "n");
        let long = Line::made_of(&"x".repeat(600));
        assert!(long.as_str().chars().count() == 500 && long.as_str().ends_with("x…"));
    }

    proptest! {
        #[test]
        fn any_text_becomes_a_line_and_a_line_stays_as_it_is(text in any::<String>()) {
            let line = Line::made_of(&text);
            prop_assert!(!line.as_str().chars().any(char::is_control));
            let again: Line = serde_json::from_str(&serde_json::to_string(&line).unwrap()).unwrap();
            prop_assert_eq!(again.as_str(), line.as_str().trim());
        }
    }
}
