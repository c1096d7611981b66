//! rpm's version order: `[epoch:]version[-release]`.
//!
//! Verified against `rpm.vercmp` of rpm 4.18. Pure comparison of two strings.
//!
//! Pitfalls:
//! * Only runs of ASCII letters and runs of digits count; every other byte (except `~` and `^`) is
//!   just a separator: `1.0` = `1_0` = `1..0` = `1.0.`, `é` = `è`, `1.a` = `1a`.
//! * A number is newer than letters: `1.a` < `1.1`. Uppercase letters are older than lowercase
//!   ones.
//! * The version with more left at the end is newer, even if that is letters: `1.0` < `1.0rc1` <
//!   `1.0.1`.
//! * `~` sorts before everything, even before the end: `1.0~rc1` < `1.0`.
//! * `^` sorts after the end, but before everything else: `1.0` < `1.0^git1` < `1.0.1`.
//! * Leading zeros are ignored, and a number (including the epoch) may have any length.
//! * A missing or empty epoch is 0: `:1` = `0:1` = `1`. A colon that does not follow digits is a
//!   separator like any other: `a:1` = `a1`.
//! * `(none)`, which a query prints for a missing epoch, is not an epoch: `(none):1` < `1`. Query
//!   rpm for `EPOCHNUM` instead.
//! * The release starts at the last hyphen: `1-2-3` has the version `1-2`.
//! * A missing release is older than any release, even an empty one: `1` < `1-` < `1-0`, and `1` <
//!   `1-~`. (In dependencies rpm has a different rule, by which a missing release matches every
//!   release. That is not an order, and is not implemented here.)
//!
//! rpm rejects the empty string; here it is a version without content: `~` < `` < `0`, and `` =
//! `.`.

use crate::{compare_numbers, drop_common_prefix, take_run};
use core::cmp::Ordering;

/// Compares two rpm versions; `Less` if `b` is newer.
pub fn compare(a: &str, b: &str) -> Ordering {
    let (a, b) = (Evr::parse(a), Evr::parse(b));
    compare_numbers(a.epoch, b.epoch).then_with(|| compare_part(a.version, b.version)).then_with(
        || match (a.release, b.release) {
            (Some(a), Some(b)) => compare_part(a, b),
            (a, b) => a.is_some().cmp(&b.is_some()),
        },
    )
}

/// Epoch, version and release. pacman splits its versions in the same way.
pub(crate) struct Evr<'a> {
    /// Digits; empty for epoch 0.
    pub(crate) epoch: &'a [u8],
    pub(crate) version: &'a [u8],
    pub(crate) release: Option<&'a [u8]>,
}

impl<'a> Evr<'a> {
    pub(crate) fn parse(evr: &'a str) -> Self {
        let mut rest = evr.as_bytes();
        let (epoch, rest) = match (take_run(&mut rest, u8::is_ascii_digit), rest) {
            (epoch, [b':', rest @ ..]) => (epoch, rest),
            _ => (&b""[..], evr.as_bytes()),
        };
        match rest.iter().rposition(|&byte| byte == b'-') {
            Some(hyphen) => {
                Evr { epoch, version: &rest[..hyphen], release: Some(&rest[hyphen + 1..]) }
            }
            None => Evr { epoch, version: rest, release: None },
        }
    }
}

/// The next token of a version or release; the order of the variants is rpm's.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum NextToken {
    Tilde,
    End,
    Caret,
    Letters,
    Digits,
}

impl NextToken {
    fn classify(part: &[u8]) -> Self {
        match part.first() {
            None => NextToken::End,
            Some(b'~') => NextToken::Tilde,
            Some(b'^') => NextToken::Caret,
            Some(byte) if byte.is_ascii_digit() => NextToken::Digits,
            Some(_) => NextToken::Letters,
        }
    }
}

fn compare_part(mut a: &[u8], mut b: &[u8]) -> Ordering {
    drop_common_prefix(&mut a, &mut b);
    loop {
        take_run(&mut a, is_separator);
        take_run(&mut b, is_separator);
        let next = NextToken::classify(a);
        let order = next.cmp(&NextToken::classify(b));
        if order.is_ne() {
            return order;
        }
        let order = match next {
            NextToken::End => return Ordering::Equal,
            NextToken::Tilde | NextToken::Caret => {
                (a, b) = (&a[1..], &b[1..]);
                continue;
            }
            NextToken::Letters => {
                let letters = u8::is_ascii_alphabetic;
                take_run(&mut a, letters).cmp(take_run(&mut b, letters))
            }
            NextToken::Digits => {
                let digits = u8::is_ascii_digit;
                compare_numbers(take_run(&mut a, digits), take_run(&mut b, digits))
            }
        };
        if order.is_ne() {
            return order;
        }
    }
}

fn is_separator(byte: &u8) -> bool {
    !byte.is_ascii_alphanumeric() && !matches!(byte, b'~' | b'^')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;

    crate::claims!(compare);

    #[test]
    fn separators_separate_but_do_not_count() {
        equal(&["1.0", "1_0", "1..0", "1+0", ".1.0.", "1é0", "1\u{0}0"]);
        equal(&["1.a", "1a"]);
        equal(&["é", "è", "."]);
        rising(&["1.1", "11"]);
    }

    #[test]
    fn numbers_are_newer_than_letters_and_lowercase_than_uppercase() {
        rising(&["1.Z", "1.a", "1.ab", "1.b", "1.0"]);
    }

    #[test]
    fn longer_version_is_newer() {
        rising(&["1.0", "1.0rc1", "1.0.1", "1.0.1.a"]);
    }

    #[test]
    fn tilde_sorts_before_everything_even_the_end() {
        rising(&["1.0~~", "1.0~", "1.0~rc1", "1.0~rc2", "1.0", "1.0^"]);
        rising(&["1-1~", "1-1"]);
    }

    #[test]
    fn caret_sorts_after_the_end_but_before_everything_else() {
        rising(&["1.0", "1.0^", "1.0^git1", "1.0^git1^", "1.0.a", "1.0.1"]);
        rising(&["1.0^git1~", "1.0^git1"]);
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
        rising(&["9", "1:0", "2:0", "10:0"]);
    }

    #[test]
    fn colon_not_after_digits_is_a_separator() {
        equal(&["a:1", "a1"]);
        rising(&["1:2", "1:2:3"]);
    }

    #[test]
    fn none_is_not_an_epoch() {
        rising(&["(none):1", "1"]);
        rising(&["(none)", "0"]);
    }

    #[test]
    fn release_starts_at_last_hyphen() {
        rising(&["1-3", "1-2-3"]);
        rising(&["1-2", "1-2-3", "1-2-4", "1-10-1"]);
    }

    #[test]
    fn missing_release_is_older_than_empty_release() {
        rising(&["1", "1-~", "1-", "1-0", "1-1"]);
        rising(&["1:", "1:-"]);
    }

    #[test]
    fn empty_string_is_a_version_without_content() {
        rising(&["~", "", "^", "a", "0"]);
        equal(&["", ".", "0:"]);
    }

    #[test]
    fn distribution_releases_are_ordered() {
        rising(&["3.0.7-24.el9", "3.0.7-24.el9_2.1", "3.0.7-25.el9", "1:1.0-1.el9"]);
        rising(&["5.14.0-70.el9", "5.14.0-70.13.1.el9_0", "5.14.0-162.6.1.el9_1"]);
    }

    #[test]
    fn megabyte_version_is_compared_in_linear_time() {
        let long = String::from_iter(std::iter::repeat_n("1.a^", 1 << 18));
        assert_eq!(compare(&long, &long), Ordering::Equal);
        assert_eq!(compare(&long, &(long.clone() + "~")), Ordering::Greater);
    }
}
