//! Glob patterns with `*`, `?` and `[…]`, as in the configuration of package managers.
//!
//! Matching does not recurse and backtracks only to the last star, so no pattern takes long or much
//! stack.

/// Longer patterns and names never match.
const BYTES_MAX: usize = 4 * 1024;

enum PatternPart<'a> {
    Star,
    Any,
    Set(&'a str),
    Char(char),
}

/// Whether a pattern matches this text. A set ends at the first `]` after its first `set_min`
/// characters; without one, `[` is an ordinary character.
pub(super) fn matches(pattern: &str, text: &str, set_min: usize) -> bool {
    if pattern.len() > BYTES_MAX || text.len() > BYTES_MAX {
        return false;
    }
    let parts = parts(pattern, set_min);
    let text: Vec<char> = text.chars().collect();
    let (mut part, mut at) = (0, 0);
    // The last star, and the end of the text that it matches.
    let mut star: Option<(usize, usize)> = None;
    loop {
        let is_match = match (parts.get(part), text.get(at)) {
            (Some(PatternPart::Star), _) => {
                star = Some((part, at));
                part += 1;
                continue;
            }
            (None, None) => return true,
            (Some(PatternPart::Any), Some(_)) => true,
            (Some(PatternPart::Set(set)), Some(c)) => in_set(set, *c),
            (Some(PatternPart::Char(wanted)), Some(c)) => wanted == c,
            _ => false,
        };
        match (is_match, star) {
            (true, _) => (part, at) = (part + 1, at + 1),
            (false, Some((place, until))) if until < text.len() => {
                star = Some((place, until + 1));
                (part, at) = (place + 1, until + 1);
            }
            (false, _) => return false,
        }
    }
}

fn parts(pattern: &str, set_min: usize) -> Vec<PatternPart<'_>> {
    let mut parts = Vec::new();
    let mut rest = pattern;
    while let Some(first) = rest.chars().next() {
        rest = &rest[first.len_utf8()..];
        let end = |rest: &str| rest.char_indices().skip(set_min).find(|(_, c)| *c == ']');
        let set_end = (first == '[').then(|| end(rest)).flatten().map(|(at, _)| at);
        match (first, set_end) {
            // Consecutive stars are equivalent to one.
            ('*', _) if matches!(parts.last(), Some(PatternPart::Star)) => {}
            ('*', _) => parts.push(PatternPart::Star),
            ('?', _) => parts.push(PatternPart::Any),
            ('[', Some(end)) => {
                parts.push(PatternPart::Set(&rest[..end]));
                rest = &rest[end + 1..];
            }
            (c, _) => parts.push(PatternPart::Char(c)),
        }
    }
    parts
}

/// `abc`, `a-z`, `!abc`.
fn in_set(set: &str, c: char) -> bool {
    let negated = set.strip_prefix(['!', '^']);
    let members: Vec<char> = negated.unwrap_or(set).chars().collect();
    let mut at = 0;
    let mut found = false;
    while at < members.len() {
        if at + 2 < members.len() && members[at + 1] == '-' {
            found |= (members[at]..=members[at + 2]).contains(&c);
            at += 3;
        } else {
            found |= members[at] == c;
            at += 1;
        }
    }
    found != negated.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_like_in_a_shell() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("*", "", true),
            ("**a", "bca", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "xxaxxbxx", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[é", "[é", true),
            ("[éa]*", "ab", true),
            ("[", "[", true),
            ("*é", "aé", true),
        ] {
            assert_eq!(matches(pattern, text, 1), expected, "{pattern} {text}");
        }
        assert!(matches("[]]", "]", 1) && !matches("[]x", "x", 0));
    }

    /// Before the limits, these patterns took too long or overflowed the stack.
    #[test]
    fn no_pattern_takes_long_to_match() {
        assert!(!matches(&"*a".repeat(2_000), &"a".repeat(1_999), 1));
        assert!(!matches(&format!("{}b", "*a".repeat(200)), &"a".repeat(4_000), 1));
        assert!(!matches(&"a".repeat(100_000), &"a".repeat(100_000), 1));
    }
}
