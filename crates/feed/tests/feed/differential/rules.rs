//! The intended differences from debsecan: one predicate for each entry of `differences.toml`.

use pkgver::deb::compare;

use super::facts::{Fact, Note, Sources, State, Urgency, archive_versions, is_signed_kernel};
use super::formats::Entry;

/// One CVE in one installed package on which debsecan and our matcher differ.
pub(crate) struct Case<'a> {
    pub(crate) fact: &'a Fact,
    pub(crate) package: &'a str,
    /// The feeds that our matcher read.
    pub(crate) formats: FeedFormats,
    /// The source package that dpkg names.
    pub(crate) source: &'a str,
    /// The version of the source package.
    pub(crate) version: &'a str,
    /// Whether we report it. debsecan does the opposite.
    pub(crate) is_ours: bool,
    /// What debsecan's data says about it.
    pub(crate) exported: Option<Entry>,
    pub(crate) sources: &'a Sources,
}

/// The feeds that a test reads. Advisories are included in each case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FeedFormats {
    TrackerList,
    Osv,
    Both,
}

type Rule = (&'static str, fn(&Case<'_>) -> bool);

/// The first rule that accepts a difference explains it.
pub(crate) const RULES: &[Rule] = &[
    ("kernel-by-products", |case| {
        !case.is_ours && is_kernel(case.source) && !is_bootable(case.package)
    }),
    ("signed-kernel", |case| case.is_ours && is_signed_kernel(case.source)),
    ("unstable-not-affected", |case| case.is_ours && case.fact.unstable_version() == Some("0")),
    ("end-of-life", |case| case.is_ours && case.fact.urgency() == Urgency::EndOfLife),
    ("other-release-not-affected", |case| {
        case.is_ours
            && case.fact.urgency() == Urgency::Unimportant
            && case.fact.older.as_ref().is_some_and(|note| note.state == State::NotAffected)
    }),
    ("version-below-zero", |case| {
        !case.is_ours && is_not_affected_here(case) && compare(case.version, "0").is_lt()
    }),
    ("version-not-in-archive", |case| {
        !case.is_ours
            && !archive_versions(case.sources, case.source).contains(&case.version)
            && (is_fixed_here(case) || is_not_affected_here(case))
    }),
    ("undetermined-with-epoch", |case| {
        let lines = [&case.fact.unstable, &case.fact.release].into_iter().flatten();
        case.is_ours
            && case.version.contains(':')
            && lines.into_iter().any(|note| note.state == State::Undetermined)
    }),
    ("version-of-another-release", |case| {
        case.is_ours
            && case.exported.as_ref().is_some_and(|entry| {
                entry.older.iter().any(|version| compare(version, case.version).is_eq())
            })
    }),
    ("unimportant-in-third-party-package", |case| {
        let marks = ["~bpo", "+deb.sury.org", "ppa", "+rpt", "fips"];
        let is_third_party = marks.iter().any(|mark| case.version.contains(mark));
        case.is_ours && is_third_party && is_unimportant(case.fact)
    }),
    ("unimportant-with-advisory", |case| {
        case.is_ours && is_unimportant(case.fact) && !case.fact.advisories.is_empty()
    }),
    ("osv-without-unstable-fix", |case| {
        let is_unfixed =
            |note: &Note| note.version().is_none_or(|version| version == "undetermined");
        case.is_ours
            && case.formats != FeedFormats::TrackerList
            && case.fact.release.as_ref().is_some_and(is_unfixed)
            && case.fact.unstable_version().is_some_and(|fix| compare(case.version, fix).is_ge())
    }),
    ("unstable-fix-reached", |case| {
        let before = |fix: &str| compare(case.version, fix).is_lt();
        case.is_ours
            && case.fact.release_fix().is_some_and(before)
            && case.fact.unstable_version().is_some_and(|fix| !before(fix))
    }),
];

/// `linux`, `linux-6.12`.
fn is_kernel(source: &str) -> bool {
    let series = source.strip_prefix("linux-").unwrap_or_default();
    source == "linux" || series.starts_with(|c: char| c.is_ascii_digit())
}

/// `linux-image-6.1.0-18-amd64`, but not its debug symbols.
fn is_bootable(package: &str) -> bool {
    let image = package.strip_prefix("linux-image-").unwrap_or_default();
    image.starts_with(|c: char| c.is_ascii_digit()) && !image.ends_with("-dbg")
}

fn is_unimportant(fact: &Fact) -> bool {
    fact.unstable.as_ref().is_some_and(|note| note.urgency == Urgency::Unimportant)
}

fn is_fixed_here(case: &Case<'_>) -> bool {
    case.fact.release_fix().is_some_and(|fix| compare(case.version, fix).is_ge())
}

fn is_not_affected_here(case: &Case<'_>) -> bool {
    case.fact.release.as_ref().is_some_and(|note| note.version() == Some("0"))
}
