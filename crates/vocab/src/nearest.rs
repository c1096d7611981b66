//! The known word that someone probably meant.

/// Nobody mistypes a name longer than this; comparing it would be work done for an attacker.
const WORD_CHARS_MAX: usize = 64;

/// The candidate nearest to `word`, if one is near enough to be worth suggesting.
///
/// Near enough is one slip of the finger in three characters, letter case aside. Of two that are
/// equally near, the earlier candidate wins.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = word.chars().count();
    if length == 0 || length > WORD_CHARS_MAX {
        return None;
    }
    let word = word.to_lowercase();
    let slips_max = (length / 3).max(1);
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates {
        let candidate_length = candidate.chars().count();
        // Most candidates fall here, before anything is compared.
        if candidate_length.abs_diff(length) > slips_max {
            continue;
        }
        let slips = strsim::osa_distance(&word, &candidate.to_lowercase());
        let near = slips <= slips_max && slips < candidate_length;
        if near && best.is_none_or(|(least, _)| slips < least) {
            best = Some((slips, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    const FIELDS: [&str; 4] = ["packages", "security_only", "reboot", "stagger_minutes"];

    #[test]
    fn a_slip_of_the_finger_finds_the_field_that_was_meant() {
        assert_eq!(nearest("security-only", FIELDS), Some("security_only"));
        assert_eq!(nearest("Reboot", FIELDS), Some("reboot"));
        assert_eq!(nearest("pacakges", FIELDS), Some("packages"));
        assert_eq!(nearest("stagger_mins", FIELDS), Some("stagger_minutes"));
    }

    #[test]
    fn a_word_that_is_like_nothing_suggests_nothing() {
        assert_eq!(nearest("colour", FIELDS), None);
        assert_eq!(nearest("", FIELDS), None);
        assert_eq!(nearest("x", ["y"]), None);
        assert_eq!(nearest(&"reboot".repeat(100), FIELDS), None);
    }
}
