//! pacman's version order: `[epoch:]pkgver[-pkgrel]`.
//!
//! Verified against `vercmp` of pacman 6.0. Pure comparison of two strings.
//!
//! Pitfalls:
//! * Letters at the end make a version older: `1.0rc1` < `1.0` < `1.0.1`. Only letters that follow
//!   directly do; after a separator they make it newer: `1.0` < `1.0.rc1` < `1.0.1`.
//! * A number is newer than letters. Uppercase letters are older than lowercase ones.
//! * The kind of separator does not matter, but the number of separators does: `1.0` = `1_0`, `1.9`
//!   < `1..0`. Every byte that is not an ASCII letter or digit is a separator, so `~` and `^` have
//!   no special meaning.
//! * A separator at the end makes a version newer: `1` < `1.` = `1..`.
//! * Leading zeros are ignored, and a number (including the epoch) may have any length.
//! * A missing or empty epoch is 0. A colon that does not follow digits is a separator.
//! * The pkgrel starts at the last hyphen: `1-2-3` has the pkgver `1-2`.
//! * A missing pkgrel equals every pkgrel: `1-1` = `1` = `1-2`, although `1-1` < `1-2`. An empty
//!   pkgrel does not: `1-` < `1-1`.
//! * The empty string is a version without content: `a` < `` < `0`. `(none)` is letters after a
//!   separator, and therefore newer than `0`.
//!
//! **This is not a total order**, because pacman's is not. There are two violations, and `compare`
//! reproduces both:
//! * the missing pkgrel above;
//! * a separator at the end: `1..a` < `1.` < `1.1` < `1..a`.
//!
//! The order is total among versions that all have a pkgrel or all have none, and whose pkgver and
//! pkgrel are empty or end in a letter or digit. Packages in a repository all have a pkgrel. There
//! is no corrected order for the rest: it would contradict pacman somewhere.

use crate::rpm::Evr;
use crate::{compare_numbers, take_run};
use core::cmp::Ordering;

/// Compares two pacman versions; `Less` if `b` is newer. Must not be used for sorting: see the top
/// of this module.
pub fn compare(a: &str, b: &str) -> Ordering {
    let (a, b) = (Evr::parse(a), Evr::parse(b));
    compare_numbers(a.epoch, b.epoch).then_with(|| compare_part(a.version, b.version)).then_with(
        || match (a.release, b.release) {
            (Some(a), Some(b)) => compare_part(a, b),
            _ => Ordering::Equal,
        },
    )
}

fn compare_part(mut a: &[u8], mut b: &[u8]) -> Ordering {
    while !a.is_empty() && !b.is_empty() {
        let a_gap = take_run(&mut a, |byte| !byte.is_ascii_alphanumeric()).len();
        let b_gap = take_run(&mut b, |byte| !byte.is_ascii_alphanumeric()).len();
        let (Some(a_first), Some(b_first)) = (a.first(), b.first()) else { break };
        let (a_is_number, b_is_number) = (a_first.is_ascii_digit(), b_first.is_ascii_digit());
        let order = a_gap.cmp(&b_gap).then(a_is_number.cmp(&b_is_number)).then_with(|| {
            if a_is_number {
                let digits = u8::is_ascii_digit;
                compare_numbers(take_run(&mut a, digits), take_run(&mut b, digits))
            } else {
                let letters = u8::is_ascii_alphabetic;
                take_run(&mut a, letters).cmp(take_run(&mut b, letters))
            }
        });
        if order.is_ne() {
            return order;
        }
    }
    Remainder::classify(a).cmp(&Remainder::classify(b))
}

/// What remains when one side has ended; the order of the variants is pacman's.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Remainder {
    Letters,
    Nothing,
    Other,
}

impl Remainder {
    fn classify(part: &[u8]) -> Self {
        match part.first() {
            None => Remainder::Nothing,
            Some(byte) if byte.is_ascii_alphabetic() => Remainder::Letters,
            Some(_) => Remainder::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;

    crate::claims!(compare);

    #[test]
    fn trailing_letters_make_a_version_older() {
        rising(&["1.0a", "1.0alpha", "1.0b", "1.0beta", "1.0p", "1.0rc", "1.0", "1.0.1"]);
        rising(&["1.0rc1", "1.0rc2", "1.0"]);
    }

    #[test]
    fn letters_after_a_separator_make_it_newer() {
        rising(&["1.0", "1.0.a", "1.0.rc1", "1.0.0", "1.0.1"]);
    }

    #[test]
    fn numbers_are_newer_than_letters_and_lowercase_than_uppercase() {
        rising(&["1.Z", "1.a", "1.ab", "1.b", "1.0"]);
    }

    #[test]
    fn number_of_separators_counts_but_not_their_kind() {
        equal(&["1.0", "1_0", "1+0", "1~0", "1^0"]);
        rising(&["1.9", "1..0", "1...0"]);
        rising(&["a9", ".a1"]);
    }

    #[test]
    fn each_non_ascii_byte_is_a_separator() {
        equal(&["1é0", "1..0"]);
    }

    #[test]
    fn tilde_and_caret_have_no_special_meaning() {
        rising(&["1.0", "1.0~rc1", "1.0~1"]);
        rising(&["1.0", "1.0^"]);
        equal(&["1.0~", "1.0^", "1.0."]);
    }

    #[test]
    fn trailing_separator_makes_a_version_newer() {
        rising(&["1", "1.", "1.0"]);
        equal(&["1.", "1.."]);
    }

    #[test]
    fn leading_zeros_are_ignored() {
        equal(&["001.02-03", "1.2-3"]);
        equal(&["00:1", "0:1", "1"]);
    }

    #[test]
    fn numbers_and_epochs_may_exceed_any_integer_type() {
        rising(&["18446744073709551615", "18446744073709551616", "99999999999999999999999"]);
        rising(&["1:1", "4294967296:1", "18446744073709551617:1"]);
    }

    #[test]
    fn missing_or_empty_epoch_is_zero() {
        equal(&["1", "0:1", ":1"]);
        rising(&["9-1", "1:0-1", "2:0-1", "10:0-1"]);
    }

    #[test]
    fn colon_not_after_digits_is_a_separator() {
        equal(&["a:1", "a.1"]);
        rising(&["1:2", "1:2:3"]);
    }

    #[test]
    fn pkgrel_starts_at_last_hyphen() {
        rising(&["1-3", "1-2-3"]);
        rising(&["1-2-3", "1-2-4", "1-10-1"]);
    }

    #[test]
    fn missing_pkgrel_equals_every_pkgrel() {
        equal(&["1-1", "1", "1-2"]);
        rising(&["1-1", "1-2"]);
    }

    #[test]
    fn empty_pkgrel_differs_from_missing_one() {
        rising(&["1-a", "1-", "1-1"]);
        equal(&["1-", "1"]);
    }

    #[test]
    fn trailing_separator_can_form_a_cycle() {
        rising(&["1..a", "1.", "1.1", "1..a"]);
    }

    #[test]
    fn empty_string_is_a_version_without_content() {
        rising(&["a", "", "0"]);
        rising(&["", "."]);
        equal(&["", "-1", "0:"]);
    }

    #[test]
    fn none_is_letters_after_a_separator() {
        rising(&["0", "(none)"]);
        rising(&["1", "(none):1"]);
    }

    #[test]
    fn megabyte_version_is_compared_in_linear_time() {
        let long = String::from_iter(std::iter::repeat_n("1.a.", 1 << 18));
        assert_eq!(compare(&long, &long), Ordering::Equal);
        assert_eq!(compare(&long, &(long.clone() + "1")), Ordering::Less);
    }
}
