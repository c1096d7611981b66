//! Findings from the host's own package manager: the CVEs that its pending updates fix, for systems
//! without a feed.

use std::collections::BTreeSet;
use std::sync::Arc;

use vocab::{FixState, Pending, Severity};

use super::{Binary, Evidence, Finding, FindingPackage};
use crate::advisory::{PackageNameKind, Span};

/// The severity source of findings that the host's package manager reports.
pub const PACKAGE_MANAGER: &str = "package_manager";

/// Returns the CVEs that pending updates fix according to the host's package manager, each once per
/// package. `system` is the host's operating system: `fedora 41`.
///
/// It covers pending updates only: a package manager knows nothing about CVEs without a fix.
pub fn vendor_reported(system: &str, pending: &[Pending]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for_each_vendor_reported(system, pending, |finding| findings.push(finding));
    findings
}

/// Passes the same findings to `take` one at a time. Use it to avoid a large list: there may be
/// 100,000.
pub fn for_each_vendor_reported(system: &str, pending: &[Pending], mut take: impl FnMut(Finding)) {
    let ecosystem: Arc<str> = Arc::from(system);
    let source: Arc<str> = Arc::from(PACKAGE_MANAGER);
    let mut known: BTreeSet<(&str, &str)> = BTreeSet::new();
    for update in pending.iter().filter(|update| !update.cves.is_empty()) {
        let package = Arc::new(FindingPackage {
            source: update.name.clone(),
            version: update.installed.clone(),
            binaries: vec![Binary {
                name: update.name.clone(),
                arch: update.arch.clone(),
                version: update.installed.clone(),
            }],
            kernel: None,
            elsewhere: None,
            epoch_unknown: false,
        });
        let candidate: Arc<str> = Arc::from(update.candidate.as_str());
        let evidence = Evidence {
            advisory: Arc::from(update.advisories.join(", ")),
            ecosystem: ecosystem.clone(),
            name: Arc::from(update.name.as_str()),
            names: PackageNameKind::Binary,
            span: Arc::new(Span::until(&update.candidate)),
            told: true,
        };
        for cve in update.cves.iter().filter(|cve| known.insert((&update.name, cve.as_str()))) {
            take(Finding {
                cve: Arc::from(cve.as_str()),
                aliases: Arc::default(),
                package: package.clone(),
                state: FixState::Fixed,
                fixed_version: Some(candidate.clone()),
                severity: update.severity.unwrap_or(Severity::Unknown),
                severity_source: update.severity.map(|_| source.clone()),
                cvss: None,
                published: None,
                found: evidence.clone(),
            });
        }
    }
}

pub(super) fn explanation(finding: &Finding) -> String {
    let Evidence { advisory, ecosystem, name, .. } = &finding.found;
    let by = if advisory.is_empty() { String::new() } else { format!(" ({advisory})") };
    format!(
        "the package manager of the host ({ecosystem}) reports that the pending update of `{name}` fixes it{by}; \
         no feed confirms it"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_manager_reports_become_findings() {
        let mut curl = Pending::new("curl", "x86_64", "1.0-1", "1.0-3");
        curl.cves = vec!["CVE-1".into(), "CVE-2".into(), "CVE-1".into()];
        curl.advisories = vec!["FEDORA-2026-1".into()];
        curl.severity = Some(Severity::High);
        let mut other = curl.clone();
        other.arch = "i686".into();
        let findings =
            vendor_reported("fedora 41", &[curl, other, Pending::new("vim", "x86_64", "1", "2")]);
        let cves: Vec<&str> = findings.iter().map(|one| one.cve.as_ref()).collect();
        assert_eq!(cves, ["CVE-1", "CVE-2"], "no duplicates");
        assert_eq!(findings[0].severity_source.as_deref(), Some(PACKAGE_MANAGER));
        assert_eq!(findings[0].fixed_version.as_deref(), Some("1.0-3"));
        let words = findings[0].explanation();
        assert!(words.contains("package manager of the host (fedora 41)"), "{words}");
        assert!(words.contains("(FEDORA-2026-1)"), "{words}");
    }
}
