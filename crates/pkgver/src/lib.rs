//! Compares package versions exactly as dpkg, rpm, apk and pacman do.
//!
//! There is one module per tool; each lists the pitfalls of its order at the top, and has a test
//! for each of them. Where the tool accepts both strings, the result is the tool's; where it
//! rejects one, the module documents the result. Nothing here fails, panics, allocates (the crate
//! does not link `alloc`) or validates versions.
//!
//! `deb`, `rpm` and `apk` are total orders over all strings. `pacman` is not, because pacman's own
//! order is not: never pass it to a sort, which may panic on such an order; `max_by` is safe.
//!
//! Equal does not mean the same text: most of the tools treat `1.0` and `1.00` as the same version.
//!
//! Used by `domain` and `vocab`.
#![no_std]

#[cfg(test)]
extern crate std;

/// Assertions for the tests of each scheme: `rising(["1", "2"])` and `equal(["1", "1.0"])`.
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

/// A version scheme: the rules by which versions are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// Debian, Ubuntu and derivatives.
    Deb,
    /// Fedora, RHEL and its rebuilds, SUSE.
    Rpm,
    /// Alpine.
    Apk,
    /// Arch and derivatives.
    Pacman,
}

impl Scheme {
    pub const ALL: [Scheme; 4] = [Scheme::Deb, Scheme::Rpm, Scheme::Apk, Scheme::Pacman];

    /// Compares two versions; `Less` if `b` is newer.
    pub fn compare(self, a: &str, b: &str) -> Ordering {
        match self {
            Scheme::Deb => deb::compare(a, b),
            Scheme::Rpm => rpm::compare(a, b),
            Scheme::Apk => apk::compare(a, b),
            Scheme::Pacman => pacman::compare(a, b),
        }
    }

    /// Returns the name of the scheme, which [`FromStr`] parses.
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

/// The name matches no scheme. Names are lowercase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownScheme;

impl fmt::Display for UnknownScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a version scheme: expected `deb`, `rpm`, `apk` or `pacman`")
    }
}

impl core::error::Error for UnknownScheme {}

/// Compares two runs of digits as numbers of any length: leading zeros are ignored, an empty run is
/// 0.
fn compare_numbers(mut a: &[u8], mut b: &[u8]) -> Ordering {
    take_run(&mut a, |&digit| digit == b'0');
    take_run(&mut b, |&digit| digit == b'0');
    // Byte by byte: slices compare through `memcmp`, and for two empty slices that cost 140 ns on a
    // CPU with AVX-512. Most epochs are empty.
    a.len().cmp(&b.len()).then_with(|| a.iter().cmp(b))
}

/// Drops the common prefix of two parts, back to the beginning of the run of letters and digits in
/// which they differ. Most pairs are two versions of one package, and this makes them a fifth
/// faster.
fn drop_common_prefix(a: &mut &[u8], b: &mut &[u8]) {
    let shared = a.iter().zip(b.iter()).take_while(|(a, b)| a == b).count();
    let run = a[..shared].iter().rev().take_while(|byte| byte.is_ascii_alphanumeric()).count();
    *a = &a[shared - run..];
    *b = &b[shared - run..];
}

/// Removes and returns the longest prefix of `bytes` in which every byte is `wanted`.
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
    fn every_scheme_round_trips_through_its_name() {
        for scheme in Scheme::ALL {
            assert_eq!(scheme.to_string().parse(), Ok(scheme));
        }
    }

    #[test]
    fn unknown_scheme_is_rejected_with_list_of_schemes() {
        for word in ["", "Deb", "dpkg", "deb "] {
            let refusal = word.parse::<Scheme>().unwrap_err().to_string();
            assert_eq!(refusal, "not a version scheme: expected `deb`, `rpm`, `apk` or `pacman`");
        }
    }

    /// Pairs on which the four schemes give different results.
    #[test]
    fn each_scheme_uses_its_own_rules() {
        use Ordering::{Equal, Greater, Less};
        let results = |a, b| Scheme::ALL.map(|scheme| scheme.compare(a, b));
        assert_eq!(results("1.0a", "1.0"), [Greater, Greater, Greater, Less]);
        assert_eq!(results("1.0", "1.00"), [Equal, Equal, Less, Equal]);
        assert_eq!(results("1.0", "1.0-0"), [Equal, Less, Greater, Equal]);
    }
}
