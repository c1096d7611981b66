//! Suggestions for misspelled names: "did you mean …?".

/// Typos occur in names up to this length. Comparing longer input would only give an attacker free
/// CPU time.
const WORD_CHARS_MAX: usize = 64;

/// Returns the candidate closest to `word`, if it is close enough to suggest.
///
/// Close enough means one edit per three characters, ignoring case. Of two equally close
/// candidates, the earlier one wins.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = word.chars().count();
    if length == 0 || length > WORD_CHARS_MAX {
        return None;
    }
    let word = word.to_lowercase();
    let edits_max = (length / 3).max(1);
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates {
        let candidate_length = candidate.chars().count();
        // Most candidates are rejected here, without a comparison.
        if candidate_length.abs_diff(length) > edits_max {
            continue;
        }
        let edits = strsim::osa_distance(&word, &candidate.to_lowercase());
        let near = edits <= edits_max && edits < candidate_length;
        if near && best.is_none_or(|(least, _)| edits < least) {
            best = Some((edits, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    const FIELDS: [&str; 4] = ["packages", "security_only", "reboot", "stagger_minutes"];

    #[test]
    fn typo_finds_intended_field() {
        assert_eq!(nearest("security-only", FIELDS), Some("security_only"));
        assert_eq!(nearest("Reboot", FIELDS), Some("reboot"));
        assert_eq!(nearest("pacakges", FIELDS), Some("packages"));
        assert_eq!(nearest("stagger_mins", FIELDS), Some("stagger_minutes"));
    }

    #[test]
    fn unrelated_word_gives_no_suggestion() {
        assert_eq!(nearest("colour", FIELDS), None);
        assert_eq!(nearest("", FIELDS), None);
        assert_eq!(nearest("x", ["y"]), None);
        assert_eq!(nearest(&"reboot".repeat(100), FIELDS), None);
    }
}
