//! Makes untrusted text safe to show on a terminal or in a log.
//!
//! Control characters make a terminal move the cursor, change its title, or send input in the
//! user's name. Bidirectional override characters make text read as something else. This module
//! replaces both with visible escapes.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a terminal would interpret this character instead of showing it: C0, DEL, C1, line and
/// paragraph separators, and characters that embed, override or isolate a text direction.
pub fn is_unsafe(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Escapes everything that a terminal would interpret, except line feeds and tabs. A carriage
/// return before a line feed is dropped. JSON remains valid JSON.
pub fn escape_text(text: &str) -> Cow<'_, str> {
    let text = match text.contains("\r\n") {
        true => Cow::Owned(text.replace("\r\n", "\n")),
        false => Cow::Borrowed(text),
    };
    let needs_escape = |c| is_unsafe(c) && c != '\n' && c != '\t';
    match text.contains(needs_escape) {
        true => Cow::Owned(escape_matching(&text, needs_escape)),
        false => text,
    }
}

/// Escapes everything that a terminal would interpret, including line feeds and tabs.
pub fn escape_line(text: &str) -> Cow<'_, str> {
    match text.contains(is_unsafe) {
        true => Cow::Owned(escape_matching(text, is_unsafe)),
        false => Cow::Borrowed(text),
    }
}

fn escape_matching(text: &str, is_unsafe: impl Fn(char) -> bool) -> String {
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if !is_unsafe(c) => safe.push(c),
            '\n' => safe.push_str("\\n"),
            '\r' => safe.push_str("\\r"),
            '\t' => safe.push_str("\\t"),
            c if u32::from(c) < 0x20 => drop(write!(safe, "\\x{:02x}", u32::from(c))),
            // JSON text contains no C0 characters, and this is the JSON escape for all others.
            c => drop(write!(safe, "\\u{:04x}", u32::from(c))),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_bidi_characters_become_visible() {
        let attack = "a\x1b[2J\x07\x7f\u{9b}31m\u{202e}b\u{2066}\tc\r\nd\re\n";
        let safe = escape_text(attack);
        assert_eq!(safe, "a\\x1b[2J\\x07\\u007f\\u009b31m\\u202eb\\u2066\tc\nd\\re\n");
        let line = escape_line(attack);
        assert!(!line.contains(is_unsafe), "{line:?}");
        assert!(line.ends_with("\\tc\\r\\nd\\re\\n"), "{line}");
    }

    #[test]
    fn ordinary_text_is_not_copied() {
        for text in ["", "curl 8.9.1-1 → 8.9.2", "每週更新\n\tä"] {
            assert!(matches!(escape_text(text), Cow::Borrowed(same) if same == text));
        }
        assert!(matches!(escape_line("ä"), Cow::Borrowed("ä")));
    }

    #[test]
    fn escaped_json_remains_valid_json() {
        let text = serde_json::to_string("a\u{7f}\u{9b}\u{202e}\x1b\"\\").unwrap();
        let safe = escape_text(&text);
        assert!(!safe.contains(is_unsafe), "{safe:?}");
        let read: String = serde_json::from_str(&safe).unwrap();
        assert_eq!(read, "a\u{7f}\u{9b}\u{202e}\x1b\"\\");
    }
}
