//! What must hold of each order whatever the strings: it answers, it is even-handed, and where
//! it claims to be total it is.
//!
//! `deb`, `rpm` and `apk` are total everywhere; `pacman` where [`pacman_is_total_on`] says so.

use pkgver::Scheme;
use proptest::prelude::{Just, Strategy, any, prop, prop_assert_eq, prop_oneof, proptest};
use proptest::test_runner::{Config, RngSeed};
use std::cmp::Ordering;

/// A seed of our own, so that a red run is red again.
fn config(cases: u32) -> Config {
    Config { cases, rng_seed: RngSeed::Fixed(7), failure_persistence: None, ..Config::default() }
}

/// More than a `u64` holds.
const HUGE: &str = "18446744073709551617";

/// Pieces on which the rule books turn, and some that none of them knows.
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

/// Three versions that share a start: strangers differ at once and try nothing.
fn kin() -> impl Strategy<Value = [String; 3]> {
    (version_like(), [version_like(), version_like(), version_like()])
        .prop_map(|(start, ends)| ends.map(|end| start.clone() + &end))
}

/// All with a pkgrel or all without, and no part that ends in a separator.
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
    fn turning_a_pair_around_turns_the_answer_around(scheme in scheme(), [a, b, _] in kin()) {
        prop_assert_eq!(scheme.compare(&a, &b), scheme.compare(&b, &a).reverse());
    }

    #[test]
    fn a_version_equals_itself(scheme in scheme(), a in version_like()) {
        prop_assert_eq!(scheme.compare(&a, &a), Ordering::Equal);
    }

    #[test]
    fn what_lies_between_two_versions_keeps_them_in_order(
        scheme in prop::sample::select(vec![Scheme::Deb, Scheme::Rpm, Scheme::Apk]),
        [a, b, c] in kin(),
    ) {
        in_line(scheme, [&a, &b, &c])?;
    }

    #[test]
    fn pacman_keeps_its_order_among_versions_as_repositories_have_them(
        pkgrel in prop_oneof![Just(""), Just("-1"), Just("-2"), Just("-1.1")],
        ends in prop::array::uniform3(prop::collection::vec(
            prop::sample::select(&["a", "b", "1", "02", ".a", ".b", ".1", ".2", "..a", "..1"][..]),
            0..4,
        )),
    ) {
        let [a, b, c] = ends.map(|end| format!("1:1.2{}{pkgrel}", end.concat()));
        assert!(pacman_is_total_on(&[&a, &b, &c]), "{a} {b} {c}");
        in_line(Scheme::Pacman, [&a, &b, &c])?;
    }
}

proptest! {
    #![proptest_config(config(50))]

    /// Any text at all, thousands of characters of it.
    #[test]
    fn no_text_is_too_odd_or_too_long(
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

/// Whatever the order of the three, no two answers contradict the third.
fn in_line(
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

/// Every string of up to `length` of these pieces.
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

/// Ranks the strings and holds every pair against the ranks: an order that is not total has no
/// ranking that survives this.
#[track_caller]
fn assert_total(scheme: Scheme, mut versions: Vec<String>) {
    versions.sort_by(|a, b| scheme.compare(a, b));
    let mut ranks = vec![0; versions.len()];
    for at in 1..versions.len() {
        let step = scheme.compare(&versions[at - 1], &versions[at]) != Ordering::Equal;
        ranks[at] = ranks[at - 1] + usize::from(step);
    }
    assert!(ranks.last() > Some(&100), "too few distinct versions to say anything");
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
fn pacman_is_total_over_every_short_string_of_the_kind_it_can_rank() {
    let versions = all_strings(&["0", "1", "a", ".", "-"], 5);
    for with_pkgrel in [false, true] {
        let of_a_kind = versions
            .iter()
            .filter(|version| version.contains('-') == with_pkgrel)
            .filter(|version| pacman_is_total_on(&[version]))
            .cloned()
            .collect();
        assert_total(Scheme::Pacman, of_a_kind);
    }
}
