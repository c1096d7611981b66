//! A single line of untrusted text, made safe to display.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One line of at most 500 characters, without control characters. All free text from agents is
/// stored as a `Line`: a terminal must not interpret it, and a message must not be rejected because
/// of its characters. It may still contain markup; HTML pages must escape it.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String")]
pub struct Line(String);

impl Line {
    /// Maximum number of characters.
    pub const CHARS_MAX: usize = 500;

    /// Creates a line from any text: control characters become spaces, and overlong text is cut.
    pub fn sanitize(text: &str) -> Line {
        // Control characters, and those that change the reading direction of the text around them.
        let is_unsafe = |c: char| {
            c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        };
        // Control characters at either end are trimmed together with the spaces there, so that
        // sanitizing a line again does not change it.
        let mut chars = text.trim_matches(|c: char| c.is_whitespace() || is_unsafe(c)).chars();
        let mut line: String = chars
            .by_ref()
            .take(Self::CHARS_MAX)
            .map(|c| if is_unsafe(c) { ' ' } else { c })
            .collect();
        if chars.next().is_some() {
            line.pop();
            line.push('…');
        }
        Line(line)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for Line {
    fn from(text: String) -> Line {
        Line::sanitize(&text)
    }
}

impl From<&str> for Line {
    fn from(text: &str) -> Line {
        Line::sanitize(text)
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
    fn control_characters_are_removed_and_text_is_kept() {
        assert_eq!(Line::from("dpkg was interrupted\n").as_str(), "dpkg was interrupted");
        assert_eq!(
            Line::from("E: \u{1b}[31mbroken\u{202e}\r\nstop").as_str(),
            "E:  [31mbroken   stop"
        );
        assert_eq!(Line::from("\u{7f} n\u{7f}").as_str(), "n");
        let long = Line::sanitize(&"x".repeat(600));
        assert!(long.as_str().chars().count() == 500 && long.as_str().ends_with("x…"));
    }

    proptest! {
        #[test]
        fn any_text_becomes_a_line_and_lines_are_stable(text in any::<String>()) {
            let line = Line::sanitize(&text);
            prop_assert!(!line.as_str().chars().any(char::is_control));
            let again: Line = serde_json::from_str(&serde_json::to_string(&line).unwrap()).unwrap();
            prop_assert_eq!(again.as_str(), line.as_str().trim());
        }
    }
}
