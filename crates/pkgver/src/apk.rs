//! apk's version order: `number{.number}[letter]{_suffix[number]}[~hash][-rnumber]`.
//!
//! The rules are those of apk-tools 3. Pure comparison of two strings.
//!
//! Pitfalls:
//! * Versions are read token by token, and the first pair of tokens that differs decides. The enum
//!   `Token` lists the possible tokens, oldest first.
//! * Suffixes have ranks: `_alpha` < `_beta` < `_pre` < `_rc` < no suffix < `_cvs` < `_svn` <
//!   `_git` < `_hg` < `_p`. They chain: `1_alpha_pre` < `1_alpha` < `1_alpha_p`.
//! * A suffix without a number is older than one with a number: `1_rc` < `1_rc0` < `1_rc1`. But
//!   `_cvs` to `_p` directly after the suffix are newer than any number: `1_rc9` < `1_rc_p`.
//! * One letter may follow the numbers; it is newer than no letter: `1.0` < `1.0a` < `1.0.1`.
//! * A missing revision is older than `-r0`, unlike in Debian.
//! * Numbers after a dot with a leading zero are compared as text, like decimals: `1.01` < `1.1`,
//!   `1.001` < `1.01`, `1.0` < `1.00`, `1.09` < `1.1`. The first number, suffix numbers and
//!   revisions are plain numbers: `007` = `7`, `1-r01` = `1-r1`.
//! * Numbers wrap around at 2^64, as in apk: `18446744073709551617` = `1`.
//! * A commit hash (`~` and lowercase hexadecimal digits) is compared as text; no hash is older.
//! * There are no epochs; `:` is invalid, and so is any uppercase letter.
//! * An invalid version is read up to the error. At that point it is older than a version that ends
//!   there, but newer than one with `_alpha`, `_beta`, `_pre` or `_rc`: `1.0_rc` < `1.0!` < `1.0` <
//!   `1.0-r0`. Text after the error is ignored: `1.0!` = `1.0?1`.
//! * The empty string, `(none)`, `v1` and `.1` are invalid from the start: all are equal, and older
//!   than every valid version.
//!
//! apk-tools 2 differs in some cases: `1.00` < `1.0`, digits after the letter, no hashes.

use crate::take_run;
use core::cmp::Ordering;

/// Compares two Alpine versions; `Less` if `b` is newer.
pub fn compare(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (Reader::new(a), Reader::new(b));
    loop {
        let (a_token, b_token) = (a.next(), b.next());
        let order = a_token.cmp(&b_token);
        if order.is_ne() || a_token.is_last() {
            return order;
        }
    }
}

/// A token of a version. The variants are ordered from oldest to newest; two tokens of the same
/// variant compare by content.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Token<'a> {
    /// `_alpha` and similar: the only token that makes a longer version older.
    PreRelease(Suffix),
    Invalid,
    End,
    Revision(u64),
    Hash(&'a [u8]),
    SuffixNumber(u64),
    /// `_p` and similar.
    PostRelease(Suffix),
    Letter(u8),
    /// A number after a dot that starts with a zero. Compared as text, it sorts before every number
    /// without a leading zero, so no rule is needed between the two.
    Decimal(&'a [u8]),
    Number(u64),
}

impl Token<'_> {
    fn is_last(&self) -> bool {
        matches!(self, Token::End | Token::Invalid)
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Suffix {
    Alpha,
    Beta,
    Pre,
    Rc,
    Cvs,
    Svn,
    Git,
    Hg,
    P,
}

/// Position of a reader in a version. Each part is valid only after certain other parts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Position {
    Start,
    Numbers,
    Letter,
    Suffix,
    SuffixNumber,
    Hash,
    Revision,
}

struct Reader<'a> {
    rest: &'a [u8],
    position: Position,
}

impl<'a> Reader<'a> {
    fn new(version: &'a str) -> Self {
        Reader { rest: version.as_bytes(), position: Position::Start }
    }

    /// Must not be called again after a token for which `is_last` is true.
    fn next(&mut self) -> Token<'a> {
        let position = self.position;
        match *self.rest {
            _ if position == Position::Start => self.read_number(Position::Numbers, Token::Number),
            [] => Token::End,
            [b'.', ref rest @ ..] if position == Position::Numbers => {
                self.rest = rest;
                match rest {
                    [b'0', ..] => Token::Decimal(take_run(&mut self.rest, u8::is_ascii_digit)),
                    _ => self.read_number(Position::Numbers, Token::Number),
                }
            }
            [letter @ b'a'..=b'z', ref rest @ ..] if position == Position::Numbers => {
                (self.rest, self.position) = (rest, Position::Letter);
                Token::Letter(letter)
            }
            [b'_', ref rest @ ..] if position <= Position::SuffixNumber => {
                (self.rest, self.position) = (rest, Position::Suffix);
                parse_suffix(take_run(&mut self.rest, u8::is_ascii_lowercase))
            }
            [b'0'..=b'9', ..] if position == Position::Suffix => {
                self.read_number(Position::SuffixNumber, Token::SuffixNumber)
            }
            [b'~', ref rest @ ..] if position < Position::Hash => {
                (self.rest, self.position) = (rest, Position::Hash);
                match take_run(&mut self.rest, |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
                    [] => Token::Invalid,
                    hash => Token::Hash(hash),
                }
            }
            [b'-', b'r', ref rest @ ..] if position < Position::Revision => {
                self.rest = rest;
                self.read_number(Position::Revision, Token::Revision)
            }
            _ => Token::Invalid,
        }
    }

    fn read_number(&mut self, position: Position, token: fn(u64) -> Token<'a>) -> Token<'a> {
        self.position = position;
        match take_run(&mut self.rest, u8::is_ascii_digit) {
            [] => Token::Invalid,
            digits => token(digits.iter().fold(0, |number: u64, digit| {
                number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'))
            })),
        }
    }
}

fn parse_suffix(word: &[u8]) -> Token<'static> {
    match word {
        b"alpha" => Token::PreRelease(Suffix::Alpha),
        b"beta" => Token::PreRelease(Suffix::Beta),
        b"pre" => Token::PreRelease(Suffix::Pre),
        b"rc" => Token::PreRelease(Suffix::Rc),
        b"cvs" => Token::PostRelease(Suffix::Cvs),
        b"svn" => Token::PostRelease(Suffix::Svn),
        b"git" => Token::PostRelease(Suffix::Git),
        b"hg" => Token::PostRelease(Suffix::Hg),
        b"p" => Token::PostRelease(Suffix::P),
        _ => Token::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;

    crate::claims!(compare);

    /// One ascending list with every token that can follow `1.2`.
    #[test]
    fn every_token_after_a_number_has_its_rank() {
        rising(&[
            "1.1",
            "1.2_alpha",
            "1.2_beta",
            "1.2_pre",
            "1.2_rc",
            "1.2!",
            "1.2",
            "1.2-r0",
            "1.2-r1",
            "1.2~0a",
            "1.2~0a-r0",
            "1.2_cvs",
            "1.2_svn",
            "1.2_git",
            "1.2_hg",
            "1.2_p",
            "1.2a",
            "1.2b",
            "1.2.0",
            "1.2.1",
            "1.3_alpha",
            "1.10",
            "2",
        ]);
    }

    #[test]
    fn suffixes_chain() {
        rising(&["1_alpha_pre2", "1_alpha", "1_alpha_p", "1_alpha_p_p", "1_beta"]);
        rising(&["1_p_alpha", "1_p", "1_p_git", "1_p_p"]);
    }

    #[test]
    fn second_suffix_is_newer_than_number_after_first() {
        rising(&["1_alpha", "1_alpha9", "1_alpha9_p", "1_alpha10", "1_alpha_p", "1_beta"]);
    }

    #[test]
    fn suffix_without_number_is_older_than_with_number() {
        rising(&["1_rc", "1_rc-r9", "1_rc0", "1_rc1", "1_rc2", "1_rc10", "1"]);
        rising(&["1", "1_p", "1_p0", "1_p9-r0", "1_p10-r0"]);
        rising(&["1_git20230102030405-r0", "1_git20240102030405-r0"]);
    }

    #[test]
    fn suffix_must_match_its_whole_name() {
        equal(&["1_prefix", "1_ph", "1_foo", "1_", "1_Alpha", "1!"]);
    }

    #[test]
    fn letter_after_numbers_is_newer_than_none() {
        rising(&["1.0.2", "1.0.2a", "1.0.2a-r0", "1.0.2a_p1", "1.0.2b", "1.0.2u", "1.0.2.1"]);
        equal(&["1.0ab", "1.0a.1", "1.0a1", "1.0a!"]);
        rising(&["1.0a!", "1.0a"]);
    }

    #[test]
    fn missing_revision_is_older_than_revision_zero() {
        rising(&["1.0", "1.0-r0", "1.0-r1", "1.0-r9", "1.0-r10"]);
        rising(&["1.3-r0", "1.3.1-r0"]);
    }

    #[test]
    fn numbers_with_leading_zero_after_dot_compare_as_text() {
        rising(&[
            "1.0", "1.00", "1.001", "1.01", "1.02.03", "1.02.30", "1.09", "1.1", "1.9", "1.10",
        ]);
    }

    #[test]
    fn other_numbers_ignore_leading_zeros() {
        equal(&["007", "7"]);
        equal(&["1-r01", "1-r1"]);
        equal(&["1_p01", "1_p1"]);
        rising(&["1.9", "002"]);
    }

    #[test]
    fn numbers_wrap_around_as_in_apk() {
        equal(&["18446744073709551617", "1"]);
        equal(&["1.18446744073709551617", "1.1"]);
        rising(&["18446744073709551616", "1", "18446744073709551615"]);
    }

    #[test]
    fn numbers_with_leading_zero_do_not_wrap() {
        rising(&["1.018446744073709551617", "1.1"]);
        rising(&["1.01", "1.018446744073709551617", "1.02"]);
    }

    #[test]
    fn commit_hash_compares_as_text_and_is_newer_than_none() {
        rising(&["1.0", "1.0~1234-r1", "1.0~2345-r0", "1.0~9", "1.0~a", "1.0~ab", "1.0_p"]);
        rising(&["1.0a_p1!", "1.0a_p1", "1.0a_p1-r0", "1.0a_p1~ab"]);
        equal(&["1.0~", "1.0~g", "1.0~A", "1.0!"]);
    }

    #[test]
    fn epochs_and_uppercase_letters_are_invalid() {
        equal(&["1:2", "1:3", "1A", "1!"]);
    }

    #[test]
    fn invalid_version_counts_up_to_the_error() {
        rising(&["1.0_rc9", "1.0!", "1.0", "1.0-r0"]);
        rising(&["1.0!", "1.1!", "2.0-1"]);
        equal(&["1.0!", "1.0?1", "1.0.", "1.0-1", "1.0-r", "1.0..1", "1.0 ", "1.0é", "1.0\u{0}"]);
        equal(&["1.0-r1_p1", "1.0-r1-r1", "1.0-r1~a", "1.0-r1.1", "1.0-r1a"]);
        rising(&["1.0-r1a", "1.0-r1"]);
    }

    #[test]
    fn versions_invalid_from_start_are_equal_and_oldest() {
        equal(&["", "(none)", "v1", ".1", "-r1", "é", " 1"]);
        rising(&["", "0_alpha"]);
        rising(&["v1", "0"]);
    }

    #[test]
    fn typical_package_versions_are_ordered() {
        rising(&["1.1.1c-r0", "1.1.1c-r4", "1.1.1z-r0", "3.0.0-r0"]);
        rising(&["9.8_p9-r0", "9.8_p10-r0", "9.9_p1-r0", "10.0_p1-r0", "10.0_p1-r10"]);
        rising(&["0.99_beta9-r3", "0.99_beta10-r0", "0.99-r0"]);
        rising(&["0_git20230102-r0", "0.5_alpha-r1", "0.5.3_git20240203-r0"]);
        rising(&["0.05-r0", "0.071-r0", "0.08-r0", "0.10.0-r0", "0.151-r1"]);
        rising(&["20230102-r9", "20240102-r0"]);
    }

    #[test]
    fn megabyte_version_is_compared_in_linear_time() {
        let long = String::from("1") + &String::from_iter(std::iter::repeat_n(".1.0", 1 << 18));
        assert_eq!(compare(&long, &long), Ordering::Equal);
        assert_eq!(compare(&long, &(long.clone() + "_rc")), Ordering::Greater);
    }
}
