//! Small advisories and packages for the tests of this module.

use vocab::{FixState, Installed};

use crate::advisory::{Advisory, Affected, Ecosystem, Span};

use super::{AdvisoryIndex, Finding, MatchReport};

pub(super) const CVE: &str = "CVE-2026-0001";

pub(super) fn advisory(id: &str, cves: &[&str], affected: &[Affected]) -> Advisory {
    Advisory {
        id: id.to_owned(),
        flaws: cves.iter().map(|cve| (*cve).to_owned()).collect(),
        aliases: Vec::new(),
        summary: String::new(),
        description: String::new(),
        published: None,
        modified: None,
        withdrawn: None,
        ratings: Vec::new(),
        affected: affected.to_vec(),
    }
}

/// An advisory for [`CVE`] alone.
pub(super) fn advisory_for_cve(id: &str, affected: &[Affected]) -> Advisory {
    advisory(id, &[CVE], affected)
}

pub(super) fn fixed(ecosystem: &str, package: &str, version: &str) -> Affected {
    with_span(ecosystem, package, Span::until(version))
}

pub(super) fn unfixed(ecosystem: &str, package: &str) -> Affected {
    with_span(ecosystem, package, Span::ALL)
}

pub(super) fn with_span(ecosystem: &str, package: &str, span: Span) -> Affected {
    let mut affected = Affected::new(ecosystem, package);
    affected.spans.push(span);
    affected
}

pub(super) fn with_stance(mut affected: Affected, stance: FixState) -> Affected {
    affected.stance = Some(stance);
    affected
}

/// `"libssl3 3.0.11-1 openssl 3.0.11-1"`, or without a source `"openssl 3.0.11-1"`.
pub(super) fn package(text: &str) -> Installed {
    match text.split(' ').collect::<Vec<_>>()[..] {
        [name, version] => Installed::new(name, version, "amd64"),
        [name, version, source, source_version] => {
            Installed::new(name, version, "amd64").with_source(source, source_version)
        }
        _ => panic!("{text}"),
    }
}

pub(super) fn packages(texts: &[&str]) -> Vec<Installed> {
    texts.iter().map(|text| package(text)).collect()
}

pub(super) fn report(base: &str, advisories: &[Advisory], packages: &[Installed]) -> MatchReport {
    AdvisoryIndex::new(&Ecosystem::new(base), advisories).match_packages(packages)
}

/// Returns `CVE source version state [fixed version]` for each finding.
pub(super) fn match_and_describe(
    base: &str,
    advisories: &[Advisory],
    texts: &[&str],
) -> Vec<String> {
    describe_all(&report(base, advisories, &packages(texts)))
}

pub(super) fn describe_all(report: &MatchReport) -> Vec<String> {
    report.findings.iter().map(describe).collect()
}

pub(super) fn describe(finding: &Finding) -> String {
    let Finding { cve, package, state, fixed_version, .. } = finding;
    let fixed = fixed_version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
    format!("{cve} {} {} {state}{fixed}", package.source, package.version)
}
