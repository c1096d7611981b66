//! The order of package versions, exactly as dpkg, rpm, apk and pacman have it.
//!
//! One module a rule book; each lists at its top what surprises about it, and has a test for
//! each surprise. Where the tool accepts both strings the answer is the tool's; where it
//! refuses one, the module says what we answer instead. Nothing here fails, panics, allocates
//! (there is no `alloc` to do it with) or asks whether a version is well formed.
//!
//! `deb`, `rpm` and `apk` are total orders over all strings. `pacman` is not, because pacman
//! is not: never hand it to a sort, which may panic on such an order; `max_by` is safe.
//!
//! Equal does not mean the same text: `1.0` and `1.00` are one version to most of the tools.
//!
//! Called by `domain` and `vocab`.
#![no_std]

#[cfg(test)]
extern crate std;

/// What the tests of each rule book claim: `rising(["1", "2"])` and `equal(["1", "1.0"])`.
#[cfg(test)]
macro_rules! claims {
    ($compare:path) => {
        #[track_caller]
        fn rising(versions: &[&str]) {
            each_pair(versions, Ordering::Less);
        }

        #[track_caller]
        fn equal(versions: &[&str]) {
            each_pair(versions, Ordering::Equal);
        }

        #[track_caller]
        fn each_pair(versions: &[&str], expected: Ordering) {
            for pair in versions.windows(2) {
                assert_eq!($compare(pair[0], pair[1]), expected, "{} and {}", pair[0], pair[1]);
            }
        }
    };
}
#[cfg(test)]
use claims;

pub mod apk;
pub mod deb;
pub mod pacman;
pub mod rpm;

use core::cmp::Ordering;
use core::fmt;
use core::str::FromStr;

/// Whose rule book orders a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// Debian, Ubuntu and their kin.
    Deb,
    /// Fedora, RHEL and its rebuilds, SUSE.
    Rpm,
    /// Alpine.
    Apk,
    /// Arch and its kin.
    Pacman,
}

impl Scheme {
    /// Every scheme there is.
    pub const ALL: [Scheme; 4] = [Scheme::Deb, Scheme::Rpm, Scheme::Apk, Scheme::Pacman];

    /// Which of two versions is the newer one; `Less` when it is `b`.
    pub fn compare(self, a: &str, b: &str) -> Ordering {
        match self {
            Scheme::Deb => deb::compare(a, b),
            Scheme::Rpm => rpm::compare(a, b),
            Scheme::Apk => apk::compare(a, b),
            Scheme::Pacman => pacman::compare(a, b),
        }
    }

    /// The word for this scheme; [`FromStr`] reads it back.
    pub const fn name(self) -> &'static str {
        match self {
            Scheme::Deb => "deb",
            Scheme::Rpm => "rpm",
            Scheme::Apk => "apk",
            Scheme::Pacman => "pacman",
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Scheme {
    type Err = UnknownScheme;

    fn from_str(name: &str) -> Result<Self, UnknownScheme> {
        Self::ALL.into_iter().find(|scheme| scheme.name() == name).ok_or(UnknownScheme)
    }
}

/// The word names none of the schemes. Words are lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownScheme;

impl fmt::Display for UnknownScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a version scheme: expected `deb`, `rpm`, `apk` or `pacman`")
    }
}

impl core::error::Error for UnknownScheme {}

/// Two runs of digits as numbers of any length: leading zeros say nothing, an empty run is 0.
fn compare_numbers(mut a: &[u8], mut b: &[u8]) -> Ordering {
    take_run(&mut a, |&digit| digit == b'0');
    take_run(&mut b, |&digit| digit == b'0');
    // Byte by byte: slices compare through `memcmp`, and with two empty ones, which point
    // nowhere, that cost 140 ns on a CPU with AVX-512. Most epochs are empty.
    a.len().cmp(&b.len()).then_with(|| a.iter().cmp(b))
}

/// Drops what two parts share at the start, back to the beginning of the run of letters and
/// digits in which they part. Most pairs are two versions of one package: a fifth faster.
fn drop_shared_start(a: &mut &[u8], b: &mut &[u8]) {
    let shared = a.iter().zip(b.iter()).take_while(|(a, b)| a == b).count();
    let run = a[..shared].iter().rev().take_while(|byte| byte.is_ascii_alphanumeric()).count();
    *a = &a[shared - run..];
    *b = &b[shared - run..];
}

/// Takes the longest start in which every byte is `wanted` off `bytes`.
fn take_run<'a>(bytes: &mut &'a [u8], wanted: impl Fn(&u8) -> bool) -> &'a [u8] {
    let end = bytes.iter().position(|byte| !wanted(byte)).unwrap_or(bytes.len());
    let run;
    (run, *bytes) = bytes.split_at(end);
    run
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn every_scheme_is_read_back_from_what_it_prints() {
        for scheme in Scheme::ALL {
            assert_eq!(scheme.to_string().parse(), Ok(scheme));
        }
    }

    #[test]
    fn a_word_that_is_no_scheme_is_refused_with_the_words_that_are() {
        for word in ["", "Deb", "dpkg", "deb "] {
            let refusal = word.parse::<Scheme>().unwrap_err().to_string();
            assert_eq!(refusal, "not a version scheme: expected `deb`, `rpm`, `apk` or `pacman`");
        }
    }

    /// One pair on which all four rule books can be told apart.
    #[test]
    fn each_scheme_asks_its_own_rule_book() {
        use Ordering::{Equal, Greater, Less};
        let answers = |a, b| Scheme::ALL.map(|scheme| scheme.compare(a, b));
        assert_eq!(answers("1.0a", "1.0"), [Greater, Greater, Greater, Less]);
        assert_eq!(answers("1.0", "1.00"), [Equal, Equal, Less, Equal]);
        assert_eq!(answers("1.0", "1.0-0"), [Equal, Less, Greater, Equal]);
    }
}
