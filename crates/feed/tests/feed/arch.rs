//! Tests of the Arch Linux tracker: the meaning of each status, and what the tracker omits.

use domain::advisory::{Advisory, Ecosystem, PackageNameKind, Span, SpanEnd};
use domain::finding::{AdvisoryIndex, Finding};
use feed::FeedKind;
use vocab::{FixState, Installed};

use crate::support::{Folder, advisories, chain, check};

fn group(number: u32, status: &str, fixed: &str) -> String {
    format!(
        r#"{{"name":"AVG-{number}","packages":["foo","lib32-foo"],"status":"{status}","severity":"High","type":"denial of service","affected":"1.0-1","fixed":{fixed},"ticket":null,"issues":["CVE-2026-0002","CVE-2026-0001","CVE-2026-0002"],"advisories":["ASA-1","ASA-1"]}}"#
    )
}

/// A document with one group for each of three statuses.
pub(crate) fn sample() -> String {
    let groups = [
        group(1, "Fixed", "\"1.1-1\""),
        group(2, "Vulnerable", "null"),
        group(3, "Fixed", "\"1:1.0-2\""),
    ];
    format!("[{}]", groups.join(","))
}

fn read(test: &str, groups: &[String]) -> Vec<Advisory> {
    let folder = Folder::new(test);
    advisories(&folder.write("all.json", format!("[{}]", groups.join(",\n"))), FeedKind::Arch)
}

#[test]
fn status_determines_meaning_of_fixed_version() {
    let until = |end| vec![Span { from: None, end }];
    let elsewhere = || until(SpanEnd::FixedElsewhere("1.1-1".to_owned()));
    for (status, fixed, spans, stance) in [
        ("Fixed", "\"1.1-1\"", until(SpanEnd::Fixed("1.1-1".to_owned())), None),
        ("Testing", "\"1.1-1\"", elsewhere(), None),
        ("Vulnerable", "\"1.1-1\"", elsewhere(), None),
        ("Vulnerable", "null", vec![Span::ALL], None),
        ("Vulnerable", "\"\"", vec![Span::ALL], None),
        ("Not affected", "\"1.1-1\"", vec![], Some(FixState::NotAffected)),
        ("Not affected", "null", vec![], Some(FixState::NotAffected)),
        ("Unknown", "\"1.1-1\"", elsewhere(), Some(FixState::Unknown)),
        ("Unknown", "null", vec![], Some(FixState::Unknown)),
        ("Fixed", "null", vec![], Some(FixState::Unknown)),
        ("Something new", "null", vec![], Some(FixState::Unknown)),
        // Without a pkgrel it cannot be ordered relative to other fixes.
        ("Fixed", "\"1.1\"", until(SpanEnd::FixedElsewhere("1.1".to_owned())), None),
    ] {
        let [advisory] = &read("arch-status", &[group(7, status, fixed)])[..] else { panic!() };
        assert_eq!(advisory.id, "AVG-7");
        assert_eq!(advisory.flaws, ["CVE-2026-0001", "CVE-2026-0002"]);
        assert_eq!(advisory.summary, "denial of service");
        let packages: Vec<&str> =
            advisory.affected.iter().map(|one| one.package.as_str()).collect();
        assert_eq!(packages, ["foo", "lib32-foo"]);
        for affected in &advisory.affected {
            assert_eq!(affected.ecosystem.as_str(), "Arch");
            assert_eq!(affected.name_kind(), PackageNameKind::Binary);
            assert_eq!((&affected.spans, affected.stance), (&spans, stance), "{status} {fixed}");
        }
    }
}

#[test]
fn installed_packages_match_tracker_groups() {
    let mut unfixed = group(2, "Vulnerable", "null").replace("CVE-2026-000", "CVE-2026-100");
    unfixed = unfixed.replace("lib32-foo", "bar");
    let all = read("arch-match", &[group(1, "Fixed", "\"1:1.1-1\""), unfixed]);
    let index = AdvisoryIndex::new(&Ecosystem::new("Arch"), &all);
    let found = |name: &str, version: &str| -> Vec<(String, FixState, Option<String>)> {
        let report = index.match_packages(&[Installed::new(name, version, "x86_64")]);
        let shown = |one: &Finding| {
            (one.cve.to_string(), one.state, one.fixed_version.as_deref().map(str::to_owned))
        };
        report.findings.iter().map(shown).collect()
    };
    let fixed = |cve: &str| (cve.to_owned(), FixState::Fixed, Some("1:1.1-1".to_owned()));
    let open = |cve: &str| (cve.to_owned(), FixState::Affected, None);
    assert_eq!(found("lib32-foo", "2.0-1"), [fixed("CVE-2026-0001"), fixed("CVE-2026-0002")]);
    assert_eq!(found("lib32-foo", "1:1.1-1"), []);
    assert_eq!(found("bar", "9-1"), [open("CVE-2026-1001"), open("CVE-2026-1002")]);
}

#[test]
fn document_of_another_format_is_refused() {
    let folder = Folder::new("arch-refused");
    for (text, why) in [
        (r#"[{"name":"X-1","packages":[],"status":"Fixed"}]"#, "is not a group"),
        (r#"[{"name":"AVG-1"}]"#, "missing field"),
        (r#"{"id":"DSA-1-1"}"#, "missing field"),
        ("[", "truncated"),
        ("[]", "contains no records"),
    ] {
        let error = check(&folder.write("x.json", text), FeedKind::Arch).expect_err(text);
        assert!(chain(&error).contains(why), "{text}: {}", chain(&error));
    }
}
