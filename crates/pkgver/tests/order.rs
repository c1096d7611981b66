//! Properties of each order for arbitrary strings: it never fails, it is antisymmetric, and it is
//! total where it claims to be.
//!
//! `deb`, `rpm` and `apk` are total everywhere; `pacman` is total where [`pacman_is_total_on`]
//! returns true.

use pkgver::Scheme;
use proptest::prelude::{Just, Strategy, any, prop, prop_assert_eq, prop_oneof, proptest};
use proptest::test_runner::{Config, RngSeed};
use std::cmp::Ordering;

/// A fixed seed, so that a failure is reproducible.
fn config(cases: u32) -> Config {
    Config { cases, rng_seed: RngSeed::Fixed(7), failure_persistence: None, ..Config::default() }
}

/// More than a `u64` can hold.
const HUGE: &str = "18446744073709551617";

/// Fragments that matter to at least one scheme, and some that none of them knows.
const PIECES: [&str; 48] = [
    "0", "0", "00", "01", "1", "1", "1", "2", "9", "10", "010", HUGE, ".", ".", ".", ".", "..",
    ":", "0:", "1:", "~", "~", "^", "+", "_", "-", "-", "-1", "a", "a", "b", "ab", "Z", "_alpha",
    "_beta", "_rc", "_rc", "_git", "_p", "_p", "-r", "~0af", "(none)", " ", "\t", "\0", "é", "字",
];

fn version_like() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(&PIECES[..]), 0..6)
        .prop_map(|pieces| pieces.concat())
}

fn scheme() -> impl Strategy<Value = Scheme> {
    prop::sample::select(&Scheme::ALL[..])
}

/// Three versions with a common prefix: unrelated versions differ at once and test nothing.
fn related_versions() -> impl Strategy<Value = [String; 3]> {
    (version_like(), [version_like(), version_like(), version_like()])
        .prop_map(|(start, ends)| ends.map(|end| start.clone() + &end))
}

/// Whether all have a pkgrel or all have none, and no part ends in a separator.
fn pacman_is_total_on(versions: &[&str]) -> bool {
    let has_pkgrel = |version: &str| version.contains('-');
    let ends_well = |version: &str| {
        let part_ends_well =
            |part: &str| part.bytes().last().is_none_or(|byte| byte.is_ascii_alphanumeric());
        let colon = version.bytes().position(|byte| !byte.is_ascii_digit());
        let version = match colon {
            Some(colon) if version.as_bytes()[colon] == b':' => &version[colon + 1..],
            _ => version,
        };
        match version.rsplit_once('-') {
            Some((pkgver, pkgrel)) => part_ends_well(pkgver) && part_ends_well(pkgrel),
            None => part_ends_well(version),
        }
    };
    versions.windows(2).all(|pair| has_pkgrel(pair[0]) == has_pkgrel(pair[1]))
        && versions.iter().all(|version| ends_well(version))
}

proptest! {
    #![proptest_config(config(10_000))]

    #[test]
    fn swapping_a_pair_reverses_the_result(scheme in scheme(), [a, b, _] in related_versions()) {
        prop_assert_eq!(scheme.compare(&a, &b), scheme.compare(&b, &a).reverse());
    }

    #[test]
    fn version_equals_itself(scheme in scheme(), a in version_like()) {
        prop_assert_eq!(scheme.compare(&a, &a), Ordering::Equal);
    }

    #[test]
    fn deb_rpm_and_apk_orders_are_transitive(
        scheme in prop::sample::select(vec![Scheme::Deb, Scheme::Rpm, Scheme::Apk]),
        [a, b, c] in related_versions(),
    ) {
        assert_transitive(scheme, [&a, &b, &c])?;
    }

    #[test]
    fn pacman_order_is_transitive_for_repository_versions(
        pkgrel in prop_oneof![Just(""), Just("-1"), Just("-2"), Just("-1.1")],
        ends in prop::array::uniform3(prop::collection::vec(
            prop::sample::select(&["a", "b", "1", "02", ".a", ".b", ".1", ".2", "..a", "..1"][..]),
            0..4,
        )),
    ) {
        let [a, b, c] = ends.map(|end| format!("1:1.2{}{pkgrel}", end.concat()));
        assert!(pacman_is_total_on(&[&a, &b, &c]), "{a} {b} {c}");
        assert_transitive(Scheme::Pacman, [&a, &b, &c])?;
    }
}

proptest! {
    #![proptest_config(config(50))]

    /// Arbitrary text, thousands of characters long.
    #[test]
    fn arbitrary_long_text_is_compared(
        scheme in scheme(),
        a in prop::collection::vec(any::<char>(), 0..5000).prop_map(String::from_iter),
        b in prop::collection::vec(version_like(), 0..500).prop_map(|parts| parts.concat()),
    ) {
        prop_assert_eq!(scheme.compare(&a, &b), scheme.compare(&b, &a).reverse());
        let longer = a.clone() + &b;
        prop_assert_eq!(scheme.compare(&a, &longer), scheme.compare(&longer, &a).reverse());
        prop_assert_eq!(scheme.compare(&longer, &longer), Ordering::Equal);
    }
}

/// Checks that the three comparisons of three versions do not contradict each other.
fn assert_transitive(
    scheme: Scheme,
    [a, b, c]: [&str; 3],
) -> Result<(), proptest::test_runner::TestCaseError> {
    let (ab, bc, ac) = (scheme.compare(a, b), scheme.compare(b, c), scheme.compare(a, c));
    if ab == bc || bc == Ordering::Equal {
        prop_assert_eq!(ac, ab, "{:?}: {:?} {:?} {:?}", scheme, a, b, c);
    } else if ab == Ordering::Equal {
        prop_assert_eq!(ac, bc, "{:?}: {:?} {:?} {:?}", scheme, a, b, c);
    }
    Ok(())
}

/// Returns every string of up to `length` of these pieces.
fn all_strings(pieces: &[&str], length: usize) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut start = 0;
    for _ in 0..length {
        let end = all.len();
        for known in start..end {
            for piece in pieces {
                all.push(all[known].clone() + piece);
            }
        }
        start = end;
    }
    all
}

/// Sorts and ranks the strings, and compares every pair with its ranks: an order that is not total
/// has no ranking that passes this.
#[track_caller]
fn assert_total(scheme: Scheme, mut versions: Vec<String>) {
    versions.sort_by(|a, b| scheme.compare(a, b));
    let mut ranks = vec![0; versions.len()];
    for at in 1..versions.len() {
        let step = scheme.compare(&versions[at - 1], &versions[at]) != Ordering::Equal;
        ranks[at] = ranks[at - 1] + usize::from(step);
    }
    assert!(ranks.last() > Some(&100), "too few distinct versions for a meaningful test");
    for (a, a_rank) in versions.iter().zip(&ranks) {
        for (b, b_rank) in versions.iter().zip(&ranks) {
            assert_eq!(scheme.compare(a, b), a_rank.cmp(b_rank), "{scheme}: {a:?} {b:?}");
        }
    }
}

#[test]
fn deb_is_total_over_every_short_string() {
    assert_total(Scheme::Deb, all_strings(&["0", "1", "a", "~", ".", "-", ":"], 4));
}

#[test]
fn rpm_is_total_over_every_short_string() {
    assert_total(Scheme::Rpm, all_strings(&["0", "1", "a", "~", "^", ".", "-"], 4));
}

#[test]
fn apk_is_total_over_every_short_string() {
    let pieces = ["0", "1", "a", ".", "_rc", "_p", "~", "-r", "!"];
    assert_total(Scheme::Apk, all_strings(&pieces, 4));
}

#[test]
fn pacman_is_total_over_comparable_short_strings() {
    let versions = all_strings(&["0", "1", "a", ".", "-"], 5);
    for with_pkgrel in [false, true] {
        let comparable = versions
            .iter()
            .filter(|version| version.contains('-') == with_pkgrel)
            .filter(|version| pacman_is_total_on(&[version]))
            .cloned()
            .collect();
        assert_total(Scheme::Pacman, comparable);
    }
}
