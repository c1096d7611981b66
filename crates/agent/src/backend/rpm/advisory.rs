//! Joins advisories to pending updates by version range.
//!
//! An advisory names the first fixed version, and the available update is often newer: the fix came
//! with -43, the repository offers -44. So an advisory applies to an update if its version is newer
//! than the installed one and not newer than the candidate. The versions do not have to be equal,
//! and the advisory's name does not matter: some vendors use names with other prefixes.

use std::cmp::Ordering::Greater;
use std::collections::HashMap;

use vocab::listing::{Pending, REFERENCES_MAX};
use vocab::{Severity, UpdateType};

/// One package of one advisory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AdvisoryFix {
    /// The advisory id: `RHSA-2024:0001`.
    pub(crate) advisory: String,
    pub(crate) update_type: UpdateType,
    /// The vendor's severity, if given.
    pub(crate) severity: Option<Severity>,
    /// The CVEs that it fixes.
    pub(crate) cves: Vec<String>,
    pub(crate) name: String,
    /// The architecture; empty if the advisory does not name one.
    pub(crate) arch: String,
    /// The first fixed version.
    pub(crate) evr: String,
}

/// Maps a vendor's severity to ours. Red Hat uses important and moderate where others use high and
/// medium.
pub(crate) fn parse_severity(word: &str) -> Option<Severity> {
    match word.to_ascii_lowercase().as_str() {
        "critical" => Some(Severity::Critical),
        "important" | "high" => Some(Severity::High),
        "moderate" | "medium" => Some(Severity::Medium),
        "low" => Some(Severity::Low),
        _ => None,
    }
}

/// Maps a vendor's advisory type to ours.
pub(crate) fn parse_update_type(word: &str) -> UpdateType {
    match word.to_ascii_lowercase().as_str() {
        "security" => UpdateType::Security,
        "bugfix" | "recommended" => UpdateType::Bugfix,
        "enhancement" | "feature" | "newpackage" | "optional" => UpdateType::Enhancement,
        _ => UpdateType::Other,
    }
}

/// Adds the information of the advisories to each update.
pub(crate) fn join(updates: &mut [Pending], fixes: &[AdvisoryFix]) {
    let mut by_name: HashMap<&str, Vec<&AdvisoryFix>> = HashMap::new();
    for fix in fixes {
        by_name.entry(&fix.name).or_default().push(fix);
    }
    for update in updates {
        let known = by_name.get(update.name.as_str()).map(Vec::as_slice).unwrap_or_default();
        for fix in known {
            if applies_to(fix, update) {
                apply(update, fix);
            }
        }
        for list in [&mut update.advisories, &mut update.cves] {
            list.sort_unstable();
            list.dedup();
            list.truncate(REFERENCES_MAX);
        }
    }
}

/// Whether this update contains this fix.
fn applies_to(fix: &AdvisoryFix, update: &Pending) -> bool {
    let order = pkgver::rpm::compare;
    (fix.arch.is_empty() || fix.arch == update.arch)
        && order(&fix.evr, &update.installed) == Greater
        && order(&fix.evr, &update.candidate) != Greater
}

fn apply(update: &mut Pending, fix: &AdvisoryFix) {
    // Update types are ordered with security first, severities with the worst last.
    update.update_type = update.update_type.min(fix.update_type);
    if fix.update_type == UpdateType::Security {
        update.security = true;
        update.severity = update.severity.max(fix.severity);
    }
    update.advisories.push(fix.advisory.clone());
    update.cves.extend(fix.cves.iter().cloned());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fix(advisory: &str, kind: &str, name: &str, evr: &str) -> AdvisoryFix {
        AdvisoryFix {
            advisory: advisory.to_owned(),
            update_type: parse_update_type(kind),
            severity: (kind == "security").then_some(Severity::High),
            cves: vec![format!("CVE-{advisory}")],
            name: name.to_owned(),
            arch: "x86_64".to_owned(),
            evr: evr.to_owned(),
        }
    }

    #[test]
    fn advisory_for_43_makes_update_to_44_a_security_update() {
        let mut updates = [Pending::new("openssl-libs", "x86_64", "1:3.0.1-41", "1:3.0.1-44")];
        let fixes = [
            fix("too-old", "security", "openssl-libs", "1:3.0.1-41"),
            fix("fits", "security", "openssl-libs", "1:3.0.1-43"),
            fix("plain", "bugfix", "openssl-libs", "1:3.0.1-44"),
            fix("too-new", "security", "openssl-libs", "1:3.0.1-45"),
            fix("no-epoch", "security", "openssl-libs", "3.0.1-43"),
            fix("another", "security", "openssl", "1:3.0.1-43"),
        ];
        join(&mut updates, &fixes);
        let [update] = updates;
        assert!(update.security);
        assert_eq!(update.update_type, UpdateType::Security);
        assert_eq!(update.severity, Some(Severity::High));
        assert_eq!(update.advisories, ["fits", "plain"]);
        assert_eq!(update.cves, ["CVE-fits", "CVE-plain"]);
    }

    #[test]
    fn update_without_matching_advisory_has_type_other() {
        let mut updates = [Pending::new("bash", "noarch", "1-1", "2-1")];
        join(&mut updates, &[fix("a", "security", "bash", "2-1")]);
        assert_eq!(updates[0], Pending::new("bash", "noarch", "1-1", "2-1"));
        let any_arch = AdvisoryFix { arch: String::new(), ..fix("a", "newpackage", "bash", "2-1") };
        join(&mut updates, &[any_arch]);
        assert_eq!(updates[0].update_type, UpdateType::Enhancement);
        assert!(!updates[0].security);
    }

    #[test]
    fn worst_severity_of_security_advisories_is_kept() {
        let mut updates = [Pending::new("k", "x86_64", "1-1", "9-1")];
        let fix_of =
            |severity, evr: &str| AdvisoryFix { severity, ..fix("a", "security", "k", evr) };
        let low = fix_of(Some(Severity::Low), "2-1");
        let critical = fix_of(Some(Severity::Critical), "3-1");
        join(&mut updates, &[low.clone(), critical, low, fix_of(None, "4-1")]);
        assert_eq!(updates[0].severity, Some(Severity::Critical));
        assert_eq!(parse_severity("Moderate"), Some(Severity::Medium));
        assert_eq!(parse_severity("None"), None);
    }
}
