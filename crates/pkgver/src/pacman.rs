//! pacman's order: `[epoch:]pkgver[-pkgrel]`.
//!
//! Checked against `vercmp` of pacman 6.0. Reads two strings and nothing else.
//!
//! What surprises:
//! * Letters at the end make a version older: `1.0rc1` < `1.0` < `1.0.1`. Only letters that
//!   follow at once do; behind a separator they make it newer: `1.0` < `1.0.rc1` < `1.0.1`.
//! * A number is newer than letters. Capital letters are older than small ones.
//! * Which separator it is does not count, how many does: `1.0` = `1_0`, `1.9` < `1..0`.
//!   Anything but an ASCII letter or digit is one, so `~` and `^` mean nothing special.
//! * A separator at the end makes a version newer: `1` < `1.` = `1..`.
//! * Leading zeros say nothing, and a number (the epoch too) may have any length.
//! * A missing epoch is 0, and so is an empty one. A colon that does not follow digits is a
//!   separator.
//! * The pkgrel starts at the last hyphen: `1-2-3` is pkgver `1-2`.
//! * A missing pkgrel equals every pkgrel: `1-1` = `1` = `1-2`, though `1-1` < `1-2`. An empty
//!   one does not: `1-` < `1-1`.
//! * The empty string is a version with nothing in it: `a` < `` < `0`. `(none)` is letters
//!   behind a separator, and so newer than `0`.
//!
//! **This is not a total order**, because pacman's is not. There are two ways out of line, and
//! `compare` goes both with pacman:
//! * the missing pkgrel above;
//! * a separator at the end: `1..a` < `1.` < `1.1` < `1..a`.
//!
//! It is total among versions that all have a pkgrel or all have none, and whose pkgver and
//! pkgrel are empty or end in a letter or digit. Packages in a repository all have a pkgrel.
//! There is no repaired order for the rest: it would contradict pacman somewhere.

use crate::rpm::Evr;
use crate::{compare_numbers, take_run};
use core::cmp::Ordering;

/// Which of two pacman versions is the newer one; `Less` when it is `b`. Never for sorting:
/// see the top of this module.
pub fn compare(a: &str, b: &str) -> Ordering {
    let (a, b) = (Evr::of(a), Evr::of(b));
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
    Rest::of(a).cmp(&Rest::of(b))
}

/// What is left when one side has come to its end; the order of the variants is pacman's.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Rest {
    Letters,
    Nothing,
    Other,
}

impl Rest {
    fn of(part: &[u8]) -> Self {
        match part.first() {
            None => Rest::Nothing,
            Some(byte) if byte.is_ascii_alphabetic() => Rest::Letters,
            Some(_) => Rest::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;

    crate::claims!(compare);

    #[test]
    fn letters_at_the_end_make_a_version_older() {
        rising(&["1.0a", "1.0alpha", "1.0b", "1.0beta", "1.0p", "1.0rc", "1.0", "1.0.1"]);
        rising(&["1.0rc1", "1.0rc2", "1.0"]);
    }

    #[test]
    fn letters_behind_a_separator_make_it_newer() {
        rising(&["1.0", "1.0.a", "1.0.rc1", "1.0.0", "1.0.1"]);
    }

    #[test]
    fn a_number_is_newer_than_letters_and_small_letters_than_capitals() {
        rising(&["1.Z", "1.a", "1.ab", "1.b", "1.0"]);
    }

    #[test]
    fn separators_count_by_number_and_not_by_kind() {
        equal(&["1.0", "1_0", "1+0", "1~0", "1^0"]);
        rising(&["1.9", "1..0", "1...0"]);
        rising(&["a9", ".a1"]);
    }

    #[test]
    fn a_letter_beyond_ascii_is_as_many_separators_as_it_has_bytes() {
        equal(&["1é0", "1..0"]);
    }

    #[test]
    fn a_tilde_and_a_caret_mean_nothing_special() {
        rising(&["1.0", "1.0~rc1", "1.0~1"]);
        rising(&["1.0", "1.0^"]);
        equal(&["1.0~", "1.0^", "1.0."]);
    }

    #[test]
    fn a_separator_at_the_end_makes_a_version_newer() {
        rising(&["1", "1.", "1.0"]);
        equal(&["1.", "1.."]);
    }

    #[test]
    fn leading_zeros_say_nothing() {
        equal(&["001.02-03", "1.2-3"]);
        equal(&["00:1", "0:1", "1"]);
    }

    #[test]
    fn a_number_may_be_longer_than_any_integer_the_epoch_too() {
        rising(&["18446744073709551615", "18446744073709551616", "99999999999999999999999"]);
        rising(&["1:1", "4294967296:1", "18446744073709551617:1"]);
    }

    #[test]
    fn a_missing_or_empty_epoch_is_zero() {
        equal(&["1", "0:1", ":1"]);
        rising(&["9-1", "1:0-1", "2:0-1", "10:0-1"]);
    }

    #[test]
    fn a_colon_that_does_not_follow_digits_is_a_separator() {
        equal(&["a:1", "a.1"]);
        rising(&["1:2", "1:2:3"]);
    }

    #[test]
    fn the_pkgrel_starts_at_the_last_hyphen() {
        rising(&["1-3", "1-2-3"]);
        rising(&["1-2-3", "1-2-4", "1-10-1"]);
    }

    #[test]
    fn a_missing_pkgrel_equals_every_pkgrel_though_they_differ() {
        equal(&["1-1", "1", "1-2"]);
        rising(&["1-1", "1-2"]);
    }

    #[test]
    fn an_empty_pkgrel_is_not_a_missing_one() {
        rising(&["1-a", "1-", "1-1"]);
        equal(&["1-", "1"]);
    }

    #[test]
    fn a_separator_at_the_end_can_close_a_circle() {
        rising(&["1..a", "1.", "1.1", "1..a"]);
    }

    #[test]
    fn the_empty_string_is_a_version_with_nothing_in_it() {
        rising(&["a", "", "0"]);
        rising(&["", "."]);
        equal(&["", "-1", "0:"]);
    }

    #[test]
    fn none_is_letters_behind_a_separator() {
        rising(&["0", "(none)"]);
        rising(&["1", "(none):1"]);
    }

    #[test]
    fn a_megabyte_of_version_is_read_once() {
        let long = String::from_iter(std::iter::repeat_n("1.a.", 1 << 18));
        assert_eq!(compare(&long, &long), Ordering::Equal);
        assert_eq!(compare(&long, &(long.clone() + "1")), Ordering::Less);
    }
}
