//! What an update is for: advisories, joined to updates by range.
//!
//! An advisory names the version that fixes, and the update on offer is often newer than that: the fix
//! came with -43, the repository offers -44. So an advisory counts for an update if its version is newer
//! than the installed one and not newer than the candidate. Neither equality nor the advisory's name
//! decides; some vendors' prefixes were overlooked that way.

use std::cmp::Ordering::Greater;
use std::collections::HashMap;

use vocab::listing::{Pending, REFERENCES_MAX};
use vocab::{Severity, UpdateType};

/// One package of one advisory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fix {
    /// The advisory: `RHSA-2024:0001`.
    pub(crate) advisory: String,
    /// What the advisory is for.
    pub(crate) update_type: UpdateType,
    /// How bad it is, if the vendor says.
    pub(crate) severity: Option<Severity>,
    /// The CVEs that it fixes.
    pub(crate) cves: Vec<String>,
    /// The package.
    pub(crate) name: String,
    /// Its architecture; empty if the advisory does not say.
    pub(crate) arch: String,
    /// The version from which on it is fixed.
    pub(crate) evr: String,
}

/// How a vendor's word for severity is ours. Red Hat says important and moderate where others say high
/// and medium.
pub(crate) fn severity(word: &str) -> Option<Severity> {
    match word.to_ascii_lowercase().as_str() {
        "critical" => Some(Severity::Critical),
        "important" | "high" => Some(Severity::High),
        "moderate" | "medium" => Some(Severity::Medium),
        "low" => Some(Severity::Low),
        _ => None,
    }
}

/// What a vendor's word for the kind of an advisory means.
pub(crate) fn update_type(word: &str) -> UpdateType {
    match word.to_ascii_lowercase().as_str() {
        "security" => UpdateType::Security,
        "bugfix" | "recommended" => UpdateType::Bugfix,
        "enhancement" | "feature" | "newpackage" | "optional" => UpdateType::Enhancement,
        _ => UpdateType::Other,
    }
}

/// Writes into each update what the advisories say of it.
pub(crate) fn join(updates: &mut [Pending], fixes: &[Fix]) {
    let mut by_name: HashMap<&str, Vec<&Fix>> = HashMap::new();
    for fix in fixes {
        by_name.entry(&fix.name).or_default().push(fix);
    }
    for update in updates {
        let known = by_name.get(update.name.as_str()).map(Vec::as_slice).unwrap_or_default();
        for fix in known {
            if counts(fix, update) {
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

/// Whether this fix comes with this update.
fn counts(fix: &Fix, update: &Pending) -> bool {
    let order = pkgver::rpm::compare;
    (fix.arch.is_empty() || fix.arch == update.arch)
        && order(&fix.evr, &update.installed) == Greater
        && order(&fix.evr, &update.candidate) != Greater
}

fn apply(update: &mut Pending, fix: &Fix) {
    // The words are in order: security first, and the worst severity last.
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

    fn fix(advisory: &str, kind: &str, name: &str, evr: &str) -> Fix {
        Fix {
            advisory: advisory.to_owned(),
            update_type: update_type(kind),
            severity: (kind == "security").then_some(Severity::High),
            cves: vec![format!("CVE-{advisory}")],
            name: name.to_owned(),
            arch: "x86_64".to_owned(),
            evr: evr.to_owned(),
        }
    }

    #[test]
    fn an_advisory_for_43_makes_an_update_to_44_a_security_update() {
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
    fn an_update_without_an_advisory_is_other_and_another_architecture_is_not_ours() {
        let mut updates = [Pending::new("bash", "noarch", "1-1", "2-1")];
        join(&mut updates, &[fix("a", "security", "bash", "2-1")]);
        assert_eq!(updates[0], Pending::new("bash", "noarch", "1-1", "2-1"));
        let any_arch = Fix { arch: String::new(), ..fix("a", "newpackage", "bash", "2-1") };
        join(&mut updates, &[any_arch]);
        assert_eq!(updates[0].update_type, UpdateType::Enhancement);
        assert!(!updates[0].security);
    }

    #[test]
    fn the_worst_severity_is_kept_and_only_security_has_one() {
        let mut updates = [Pending::new("k", "x86_64", "1-1", "9-1")];
        let of = |severity, evr: &str| Fix { severity, ..fix("a", "security", "k", evr) };
        let low = of(Some(Severity::Low), "2-1");
        let critical = of(Some(Severity::Critical), "3-1");
        join(&mut updates, &[low.clone(), critical, low, of(None, "4-1")]);
        assert_eq!(updates[0].severity, Some(Severity::Critical));
        assert_eq!(severity("Moderate"), Some(Severity::Medium));
        assert_eq!(severity("None"), None);
    }
}
