//! dpkg's version order: `[epoch:]upstream[-revision]`.
//!
//! Verified against `dpkg --compare-versions` (1.21). Pure comparison of two strings.
//!
//! Pitfalls:
//! * `~` sorts before everything, even before the end: `1.0~rc1` < `1.0`.
//! * Letters sort before all other characters: `1.0a` < `1.0+`, `1.0z` < `1.0.`.
//! * Uppercase letters sort before lowercase ones: `1Z` < `1a`.
//! * Text and numbers alternate; a missing number is 0: `1.` = `1.0`, `a` = `a0`.
//! * Leading zeros are ignored, and a number may have any length.
//! * A missing revision is revision 0: `1` = `1-0`. Therefore `1-~` is older than `1`.
//! * A missing epoch is 0. The epoch ends at the first colon; later colons belong to the upstream
//!   version. It may have a plus sign: `+1:1` = `1:1`.
//! * The revision starts at the last hyphen: `1-2-3` has the upstream version `1-2`.
//! * The empty string is older than everything, including `~`. `0` is not empty.
//! * Blanks (space, tab) around a version are ignored.
//! * A version that does not begin with a digit, or contains characters that Debian policy forbids,
//!   only causes a warning and is compared; `(none)` is such a version, and newer than any number.
//! * A non-ASCII byte sorts between the letters and the other characters. dpkg does this where a C
//!   `char` is signed (x86); elsewhere dpkg sorts it last.
//!
//! For input that dpkg rejects, this module defines: an epoch that is not a number (the colon then
//! belongs to the upstream version), an epoch above 2147483647 (compared by its value), nothing
//! after the epoch or before or after the hyphen (an empty part), blanks inside (a character like
//! any other), only blanks (the empty string).

use crate::{compare_numbers, drop_common_prefix, take_run};
use core::cmp::Ordering;

/// Compares two Debian versions; `Less` if `b` is newer.
pub fn compare(a: &str, b: &str) -> Ordering {
    let (a, b) = (trim_blanks(a.as_bytes()), trim_blanks(b.as_bytes()));
    if a.is_empty() || b.is_empty() {
        return b.is_empty().cmp(&a.is_empty());
    }
    let (a_epoch, a) = split_epoch(a);
    let (b_epoch, b) = split_epoch(b);
    let (a_upstream, a_revision) = split_revision(a);
    let (b_upstream, b_revision) = split_revision(b);
    compare_numbers(a_epoch, b_epoch)
        .then_with(|| compare_part(a_upstream, b_upstream))
        .then_with(|| compare_part(a_revision, b_revision))
}

fn trim_blanks(mut version: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = version {
        version = rest;
    }
    version
}

fn split_epoch(version: &[u8]) -> (&[u8], &[u8]) {
    let mut rest = version.strip_prefix(b"+").unwrap_or(version);
    match (take_run(&mut rest, u8::is_ascii_digit), rest) {
        (epoch @ [_, ..], [b':', rest @ ..]) => (epoch, rest),
        _ => (b"", version),
    }
}

fn split_revision(version: &[u8]) -> (&[u8], &[u8]) {
    match version.iter().rposition(|&byte| byte == b'-') {
        Some(hyphen) => (&version[..hyphen], &version[hyphen + 1..]),
        None => (version, b""),
    }
}

fn compare_part(mut a: &[u8], mut b: &[u8]) -> Ordering {
    drop_common_prefix(&mut a, &mut b);
    loop {
        loop {
            let (a_rank, b_rank) = (rank(a), rank(b));
            if a_rank != b_rank {
                return a_rank.cmp(&b_rank);
            }
            if a_rank == NUMBER_OR_END {
                break;
            }
            (a, b) = (&a[1..], &b[1..]);
        }
        if a.is_empty() && b.is_empty() {
            return Ordering::Equal;
        }
        let digits = u8::is_ascii_digit;
        let order = compare_numbers(take_run(&mut a, digits), take_run(&mut b, digits));
        if order.is_ne() {
            return order;
        }
    }
}

const NUMBER_OR_END: i16 = 0;

fn rank(text: &[u8]) -> i16 {
    text.first().map_or(NUMBER_OR_END, |&byte| RANKS[usize::from(byte)])
}

static RANKS: [i16; 256] = {
    let mut ranks = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        ranks[byte] = match byte as u8 {
            b'0'..=b'9' => NUMBER_OR_END,
            b'~' => -1,
            b'a'..=b'z' | b'A'..=b'Z' | 0x80.. => byte as i16,
            _ => byte as i16 + 256,
        };
        byte += 1;
    }
    ranks
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;

    crate::claims!(compare);

    #[test]
    fn tilde_sorts_before_everything_even_the_end() {
        rising(&["1.0~~", "1.0~~a", "1.0~", "1.0~rc1", "1.0", "1.0a"]);
    }

    #[test]
    fn letters_sort_before_symbols_and_uppercase_before_lowercase() {
        rising(&["1.0A", "1.0Z", "1.0a", "1.0z", "1.0+", "1.0.", "1.0:", "1.0_"]);
    }

    #[test]
    fn backport_rebuild_and_security_suffixes_are_ordered() {
        rising(&["1.2-3~bpo12+1", "1.2-3", "1.2-3+b1", "1.2-3+deb12u1", "1.2-3+deb12u10"]);
        rising(&["1.2-3", "1.2-3ubuntu0.1", "1.2-3ubuntu1"]);
    }

    #[test]
    fn missing_number_is_zero() {
        equal(&["1.", "1.0", "1.00"]);
        equal(&["1a", "1a0"]);
        rising(&["1.0", "1.0.0"]);
    }

    #[test]
    fn leading_zeros_are_ignored() {
        equal(&["001.02-03", "1.2-3"]);
        equal(&["00:1", "0:1"]);
    }

    #[test]
    fn numbers_may_exceed_any_integer_type() {
        rising(&["18446744073709551615", "18446744073709551616", "99999999999999999999999"]);
        rising(&["1.100000000000000000000000000001", "1.100000000000000000000000000002"]);
    }

    #[test]
    fn missing_revision_is_revision_zero() {
        equal(&["1", "1-0", "1-00"]);
        rising(&["1-~", "1", "1-0.1", "1-1"]);
    }

    #[test]
    fn missing_epoch_is_zero_and_epoch_decides_first() {
        equal(&["1", "0:1"]);
        rising(&["9999", "1:0", "2:0~", "10:0"]);
    }

    #[test]
    fn epoch_may_have_a_plus_sign() {
        equal(&["+1:1", "1:1"]);
    }

    #[test]
    fn epoch_ends_at_first_colon() {
        rising(&["1:2", "1:2:3", "1:2:4"]);
    }

    #[test]
    fn revision_starts_at_last_hyphen() {
        rising(&["1-3", "1-2-3"]);
        rising(&["1-2", "1-2-0", "1-2-3", "1-10-1"]);
    }

    #[test]
    fn empty_string_is_older_than_everything() {
        rising(&["", "~~"]);
        rising(&["", "0~"]);
        rising(&["", "0"]);
        equal(&["", ""]);
    }

    #[test]
    fn blanks_around_version_are_ignored() {
        equal(&["1.0-1", " 1.0-1", "1.0-1\t ", "\t1.0-1 "]);
    }

    #[test]
    fn version_without_leading_digit_is_compared() {
        rising(&["~1", "0", "99", "a1", "b1", "(none)"]);
    }

    #[test]
    fn non_ascii_sorts_between_letters_and_symbols() {
        rising(&["1z", "1é", "1+", "1."]);
    }

    #[test]
    fn versions_rejected_by_dpkg_are_still_ordered() {
        equal(&["1", "1-"]);
        equal(&["", "  "]);
        rising(&["a", "a:1"]);
        rising(&["1:0", "2147483648:0", "99999999999999999999:0"]);
        rising(&["1", "1 1"]);
        rising(&["1:", "1:0.1", "2:"]);
    }

    #[test]
    fn megabyte_version_is_compared_in_linear_time() {
        let long = String::from_iter(std::iter::repeat_n("1.a~", 1 << 18));
        assert_eq!(compare(&long, &long), Ordering::Equal);
        assert_eq!(compare(&long, &(long.clone() + "~")), Ordering::Greater);
    }
}
