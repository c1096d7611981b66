//! Properties that hold for any advisories and any packages.

use proptest::prelude::*;
use vocab::{FixState, Installed};

use super::fixtures::advisory;
use super::invalidation::{ChangedNames, SourceGroup, group_by_source};
use super::{AdvisoryIndex, MatchReport};
use crate::advisory::{Advisory, Affected, Ecosystem, Span, SpanEnd};

const BASE: &str = "Ubuntu:22.04:LTS";

fn index(advisories: &[Advisory]) -> AdvisoryIndex {
    AdvisoryIndex::new(&Ecosystem::new(BASE), advisories)
}

fn span() -> impl Strategy<Value = Span> {
    let end = prop_oneof![
        4 => "[1-5]".prop_map(SpanEnd::Fixed),
        1 => "[1-5]".prop_map(SpanEnd::FixedElsewhere),
        1 => "[1-5]".prop_map(SpanEnd::Last),
        2 => Just(SpanEnd::Open),
        1 => Just(SpanEnd::Fixed("?".to_owned())),
        1 => Just(SpanEnd::Fixed("0".to_owned())),
    ];
    (proptest::option::of("[1-4]"), end).prop_map(|(from, end)| Span { from, end })
}

fn affected() -> impl Strategy<Value = Affected> {
    let ecosystem = prop_oneof![
        4 => Just(BASE),
        2 => Just("Ubuntu:Pro:22.04:LTS"),
        1 => Just("Ubuntu:24.04:LTS"),
    ];
    let stance = prop_oneof![
        6 => Just(None),
        1 => Just(Some(FixState::Deferred)),
        1 => Just(Some(FixState::NotAffected)),
    ];
    let spans = proptest::collection::vec(span(), 0..3);
    (ecosystem, "[abc]", spans, stance).prop_map(|(ecosystem, name, spans, stance)| {
        let mut affected = Affected::new(ecosystem, &name);
        affected.spans = spans;
        affected.stance = stance;
        affected
    })
}

fn one_advisory(id: u32) -> impl Strategy<Value = Advisory> {
    let cves = proptest::sample::subsequence(vec!["CVE-1", "CVE-2", "CVE-3"], 1..3);
    (cves, proptest::collection::vec(affected(), 1..4))
        .prop_map(move |(cves, affected)| advisory(&format!("USN-{id}-1"), &cves, &affected))
}

fn several_advisories() -> impl Strategy<Value = Vec<Advisory>> {
    (0..5_u32).prop_flat_map(|count| (0..count).map(one_advisory).collect::<Vec<_>>())
}

fn packages() -> impl Strategy<Value = Vec<Installed>> {
    let package = ("[xyz]", "[1-5]", "[abcd]").prop_map(|(name, version, source)| {
        Installed::new(&name, &version, "amd64").with_source(&source, &version)
    });
    proptest::collection::vec(package, 0..5)
}

proptest! {
    #[test]
    fn order_of_advisories_does_not_matter(
        mut advisories in several_advisories(),
        packages in packages(),
    ) {
        let report = index(&advisories).match_packages(&packages);
        advisories.reverse();
        prop_assert_eq!(index(&advisories).match_packages(&packages), report);
    }

    /// A new statement closes a finding only if it is about the same CVE in the same package, and
    /// says that the installed version is not affected or past a fix.
    #[test]
    fn new_advisory_closes_only_findings_it_covers(
        known in several_advisories(),
        added in one_advisory(99),
        packages in packages(),
    ) {
        let mut all = known.clone();
        all.push(added.clone());
        let after = index(&all).match_packages(&packages).findings;
        let speaks_about = |cve: &str, source: &str, version: &str| {
            let names = |affected: &&Affected| affected.package == source;
            let ends = |affected: &Affected| {
                affected.stance == Some(FixState::NotAffected)
                    || affected.spans.iter().any(|span| match &span.end {
                        SpanEnd::Fixed(fixed) => pkgver::deb::compare(version, fixed).is_ge(),
                        _ => false,
                    })
            };
            added.flaws.iter().any(|covered| covered == cve)
                && added.affected.iter().filter(names).any(ends)
        };
        for finding in index(&known).match_packages(&packages).findings {
            let (cve, package) = (&finding.cve, &finding.package);
            let is_kept = after.iter().any(|one| one.cve == *cve && one.package.source == package.source);
            prop_assert!(
                is_kept || speaks_about(cve, &package.source, &package.version),
                "{added:?} removed {finding:?}"
            );
        }
    }

    /// Only `not affected` closes a range with a fix or a last affected version.
    #[test]
    fn version_inside_fixed_range_is_always_a_finding(
        advisories in several_advisories(),
        packages in packages(),
    ) {
        let not_affected = |cve: &str, source: &str| advisories.iter().any(|one| {
            one.flaws.iter().any(|covered| covered == cve)
                && one.affected.iter().any(|affected| {
                    affected.package == source && affected.stance == Some(FixState::NotAffected)
                })
        });
        let found = index(&advisories).match_packages(&packages).findings;
        for (package, advisory) in packages.iter().flat_map(|p| advisories.iter().map(move |a| (p, a))) {
            let here = |one: &&Affected| {
                one.package == package.source() && one.ecosystem.as_str() == BASE
            };
            let version = package.source_version();
            let contains = |span: &Span| {
                let after_start = span.from.as_deref()
                    .is_none_or(|from| pkgver::deb::compare(version, from).is_ge());
                after_start && match &span.end {
                    SpanEnd::Fixed(fixed) => {
                        !["0", "?"].contains(&fixed.as_str())
                            && pkgver::deb::compare(version, fixed).is_lt()
                    }
                    SpanEnd::Last(last) => pkgver::deb::compare(version, last).is_le(),
                    SpanEnd::Open | SpanEnd::FixedElsewhere(_) => false,
                }
            };
            if !advisory.affected.iter().filter(here).any(|one| one.spans.iter().any(contains)) {
                continue;
            }
            for cve in &advisory.flaws {
                let is_found = found.iter().any(|one| {
                    *one.cve == **cve && one.package.source == package.source()
                        && one.package.version == version
                });
                prop_assert!(is_found || not_affected(cve, package.source()), "{cve} in {package:?}");
            }
        }
    }

    /// The reason why it is enough to match each group of a set separately, with only the
    /// advisories that name one of its packages, and after a change only the groups that it
    /// affects.
    #[test]
    fn matching_groups_separately_equals_matching_whole_set(
        advisories in several_advisories(),
        packages in packages(),
        changed in proptest::option::of(one_advisory(0)),
        base in proptest::sample::select(vec![BASE, "AlmaLinux:9"]),
    ) {
        let moved = |advisory: &Advisory| {
            let mut advisory = advisory.clone();
            for affected in &mut advisory.affected {
                if affected.ecosystem.as_str() == BASE {
                    affected.ecosystem = Ecosystem::new(base);
                    // Here, advisories use the names of binary packages.
                    if base != BASE {
                        affected.package = affected.package.replace('a', "x").replace('b', "y");
                    }
                }
            }
            advisory
        };
        let base = Ecosystem::new(base);
        let before: Vec<Advisory> = advisories.iter().map(moved).collect();
        let changed = changed.as_ref().map(moved);
        let rest = before.iter().filter(|advisory| advisory.id != "USN-0-1");
        let after: Vec<Advisory> = rest.cloned().chain(changed.clone()).collect();

        let mut changed_names = ChangedNames::default();
        changed_names.record(before.iter().find(|advisory| advisory.id == "USN-0-1"), changed.as_ref());
        let touched: Vec<&str> = changed_names.names(&base).collect();
        let judged = |group: &SourceGroup| {
            let is_touched = group.names.iter().any(|name| touched.contains(&name.as_str()));
            let known = if is_touched { &after } else { &before };
            let names_some = |advisory: &&Advisory| {
                advisory.affected.iter().any(|affected| group.names.contains(&affected.package))
            };
            let relevant: Vec<&Advisory> = known.iter().filter(names_some).collect();
            AdvisoryIndex::new(&base, relevant).match_packages(&group.packages)
        };
        let reports: Vec<MatchReport> = group_by_source(&base, &packages).iter().map(judged).collect();
        let whole = MatchReport::merge(&reports);
        prop_assert_eq!(whole, AdvisoryIndex::new(&base, &after).match_packages(&packages));
    }

    #[test]
    fn installing_the_fix_closes_the_finding(
        advisories in several_advisories(),
        packages in packages(),
    ) {
        let index = index(&advisories);
        for finding in index.match_packages(&packages).findings {
            let Some(fixed) = finding.fixed_version.filter(|_| finding.state == FixState::Fixed)
            else { continue };
            let updated = [Installed::new(&finding.package.source, &fixed, "amd64")];
            let still = index.match_packages(&updated).findings.into_iter().find(|other| {
                other.cve == finding.cve && other.state == FixState::Fixed
            });
            // Only a later span of the same kind may reintroduce it.
            if let Some(still) = still {
                let later = still.fixed_version.expect("it is fixed");
                prop_assert!(pkgver::deb::compare(&later, &fixed).is_gt());
                prop_assert!(still.found.span.from.is_some());
            }
        }
    }

    #[test]
    fn packages_are_matched_independently(advisories in several_advisories(), packages in packages()) {
        let index = index(&advisories);
        let mut singly: Vec<_> = packages
            .iter()
            .flat_map(|package| index.match_packages(std::slice::from_ref(package)).findings)
            .map(|finding| (finding.cve, finding.package.source.clone(), finding.state))
            .collect();
        singly.sort();
        singly.dedup();
        let MatchReport { findings, .. } = index.match_packages(&packages);
        let mut together: Vec<_> = findings
            .into_iter()
            .map(|finding| (finding.cve, finding.package.source.clone(), finding.state))
            .collect();
        together.sort();
        together.dedup();
        prop_assert_eq!(together, singly);
    }
}
