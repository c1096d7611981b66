//! Parses `apt-cache policy`: the versions of a package, the sources of each, and apt's candidate.
//! Derives the pending update, whether it is a security update, and whether a pin blocks it.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use pkgver::deb::compare;
use serde::{Deserialize, Serialize};
use vocab::listing::{Installed, Pending};
use vocab::{BlockedBy, UpdateType};

/// The release of each source, by the source's line: `http://… bookworm/main amd64 Packages`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Releases(BTreeMap<String, Release>);

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Release {
    origin: String,
    label: String,
    archive: String,
}

impl Release {
    /// Whether this release contains security updates.
    fn is_security(&self) -> bool {
        self.label == "Debian-Security"
            || self.archive.ends_with("-security")
            || self.origin.starts_with("UbuntuESM")
    }
}

impl Releases {
    /// Parses the output of `apt-cache policy` without package names.
    pub(super) fn parse(said: &str) -> Releases {
        let mut releases = BTreeMap::new();
        let mut source = None;
        for line in said.lines() {
            if line.starts_with("Pinned packages") {
                break;
            }
            let text = line.trim_start();
            if let Some(fields) = text.strip_prefix("release ") {
                let Some(source) = source.take() else { continue };
                releases.insert(source, parse_release(fields));
            } else if let Some((_, rest)) = split_priority(text) {
                source = Some(rest.to_owned());
            }
        }
        Releases(releases)
    }
}

fn parse_release(fields: &str) -> Release {
    let mut release = Release::default();
    for field in fields.split(',') {
        match field.split_once('=') {
            Some(("o", value)) => value.clone_into(&mut release.origin),
            Some(("l", value)) => value.clone_into(&mut release.label),
            Some(("a", value)) => value.clone_into(&mut release.archive),
            _ => {}
        }
    }
    release
}

/// Splits `500 http://…` into its number and the rest.
fn split_priority(text: &str) -> Option<(i32, &str)> {
    let (number, rest) = text.split_once(' ')?;
    Some((number.parse().ok()?, rest))
}

/// One package in the output.
#[derive(Debug)]
pub(super) struct PackagePolicy {
    /// The name in apt-cache's spelling: with its architecture only if that is not the native one.
    pub(super) name: String,
    candidate: String,
    versions: Vec<Version>,
}

#[derive(Debug)]
struct Version {
    version: String,
    is_phased: bool,
    sources: Vec<(i32, String)>,
}

/// Parses the output of `apt-cache policy NAME…`.
pub(super) fn parse_policy(said: &str) -> Vec<PackagePolicy> {
    let mut packages: Vec<PackagePolicy> = Vec::new();
    for line in said.lines() {
        if !line.starts_with(' ') {
            let Some(name) = line.strip_suffix(':') else { continue };
            let name = name.to_owned();
            packages.push(PackagePolicy { name, candidate: String::new(), versions: Vec::new() });
            continue;
        }
        let Some(package) = packages.last_mut() else { continue };
        if let Some(candidate) = line.strip_prefix("  Candidate: ") {
            candidate.clone_into(&mut package.candidate);
        } else if let Some(source) = line.strip_prefix("        ") {
            let Some((priority, source)) = split_priority(source.trim_start()) else { continue };
            let Some(version) = package.versions.last_mut() else { continue };
            version.sources.push((priority, source.to_owned()));
        } else if let Some(version) =
            line.strip_prefix(" *** ").or_else(|| line.strip_prefix("     "))
        {
            package.versions.push(Version {
                version: version.split(' ').next().unwrap_or_default().to_owned(),
                is_phased: version.contains("(phased "),
                sources: Vec::new(),
            });
        }
    }
    packages
}

/// The lowest priority of a source from which apt installs new versions without being told.
/// Backports and the like have a lower one: versions that only they contain are not pending.
const DEFAULT_PRIORITY: i32 = 500;

impl PackagePolicy {
    /// The pending update of an installed package, if any. Holds and kept-back updates are not
    /// visible here.
    pub(super) fn pending(&self, installed: &Installed, releases: &Releases) -> Option<Pending> {
        let from = installed.version.as_str();
        let is_newer = |version: &Version| compare(&version.version, from) == Ordering::Greater;
        let candidate = self.versions.iter().find(|v| v.version == self.candidate && is_newer(v));
        // A newer version that apt would install if no pin prevented it.
        let newest = || {
            let newer = self.versions.iter().filter(|v| is_newer(v) && v.is_offered());
            newer.max_by(|a, b| compare(&a.version, &b.version))
        };
        let (to, pinned) = match candidate {
            Some(version) => (version, false),
            None => (newest()?, true),
        };
        let security = self.versions.iter().any(|version| {
            is_newer(version)
                && compare(&version.version, &to.version) != Ordering::Greater
                && version.releases(releases).any(Release::is_security)
        });
        let mut pending = Pending::new(&installed.name, &installed.arch, from, &to.version);
        pending.security = security;
        pending.update_type = if security { UpdateType::Security } else { UpdateType::Other };
        pending.blocked_by = pinned.then_some(BlockedBy::Pinned);
        Some(pending)
    }

    /// The versions that a source offers, unless its priority is that of backports and the like.
    pub(super) fn offered(&self) -> impl Iterator<Item = &str> {
        self.versions.iter().filter(|v| v.is_offered()).map(|v| v.version.as_str())
    }

    /// Whether the candidate is a phased update.
    pub(super) fn is_phased(&self) -> bool {
        self.versions.iter().any(|v| v.version == self.candidate && v.is_phased)
    }

    /// The origin of a version, if a source still has it.
    pub(super) fn origin(&self, version: &str, releases: &Releases) -> Option<String> {
        let version = self.versions.iter().find(|known| known.version == version)?;
        let named = version.releases(releases).find(|release| !release.origin.is_empty());
        named.map(|release| release.origin.clone())
    }
}

impl Version {
    fn is_offered(&self) -> bool {
        self.sources.iter().any(|(priority, _)| *priority >= DEFAULT_PRIORITY)
    }

    fn releases<'a>(&'a self, releases: &'a Releases) -> impl Iterator<Item = &'a Release> {
        self.sources.iter().filter_map(|(_, source)| releases.0.get(source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELEASES: &str = "Package files:
 100 /var/lib/dpkg/status
     release a=now
 500 http://deb.example/debian-security bookworm-security/main amd64 Packages
     release v=12,o=Debian,a=stable-security,n=bookworm-security,l=Debian-Security,c=main,b=amd64
     origin deb.example
 500 http://deb.example/debian bookworm-updates/main amd64 Packages
     release o=Debian,a=stable-updates,n=bookworm-updates,l=Debian,c=main,b=amd64
     origin deb.example
 100 http://deb.example/debian bookworm-backports/main amd64 Packages
     release o=Debian Backports,a=stable-backports,n=bookworm-backports,l=Debian Backports,c=main
     origin deb.example
 510 https://esm.example/apps/ubuntu jammy-apps/main amd64 Packages
     release v=22.04,o=UbuntuESMApps,a=jammy-apps-updates,n=jammy,l=UbuntuESMApps,c=main,b=amd64
     origin esm.example
 500 http://deb.example/debian bookworm/main amd64 Packages
     release v=12.7,o=Debian,a=stable,n=bookworm,l=Debian,c=main,b=amd64
     origin deb.example
Pinned packages:
     odd -> 1.0 with priority 1001
";

    /// The pending update of a package at 1.0 with these versions: `version priority source`.
    fn pending(candidate: &str, versions: &[(&str, &str, &str)]) -> Option<Pending> {
        let mut output =
            format!("p:\n  Installed: 1.0\n  Candidate: {candidate}\n  Version table:\n");
        for (version, priority, source) in versions {
            output.push_str(&format!("     {version} {priority}\n"));
            output.push_str(&format!("        {source} amd64 Packages\n"));
        }
        output.push_str(" *** 1.0 100\n        100 /var/lib/dpkg/status\n");
        let known = parse_policy(&output);
        assert_eq!(known.len(), 1);
        known[0].pending(&Installed::new("p", "1.0", "amd64"), &Releases::parse(RELEASES))
    }

    const MAIN: &str = "500 http://deb.example/debian bookworm/main";
    const UPDATES: &str = "500 http://deb.example/debian bookworm-updates/main";
    const SECURITY: &str = "500 http://deb.example/debian-security bookworm-security/main";
    const BACKPORTS: &str = "100 http://deb.example/debian bookworm-backports/main";
    const ESM: &str = "510 https://esm.example/apps/ubuntu jammy-apps/main";

    #[test]
    fn superseded_security_fix_still_makes_a_security_update() {
        let overtaken = pending("1.2", &[("1.2", "500", UPDATES), ("1.1", "500", SECURITY)]);
        assert!(overtaken.is_some_and(|update| update.security && update.candidate == "1.2"));
        let own = pending("1.1", &[("1.1", "500", SECURITY)]).unwrap();
        assert!(own.security && own.update_type == UpdateType::Security);
        assert!(pending("1.1", &[("1.1", "510", ESM)]).unwrap().security);
    }

    #[test]
    fn fix_outside_the_version_range_is_no_security_update() {
        let old = pending("1.2", &[("1.2", "500", MAIN), ("0.9", "500", SECURITY)]).unwrap();
        assert!(!old.security && old.update_type == UpdateType::Other);
        let beyond = pending("1.2", &[("1.3", "-1", SECURITY), ("1.2", "990", MAIN)]).unwrap();
        assert!(!beyond.security && beyond.candidate == "1.2");
    }

    #[test]
    fn pinned_updates_are_listed_and_backports_are_not() {
        let pinned = pending("1.0", &[("2.0", "-1", SECURITY)]).unwrap();
        assert_eq!(pinned.blocked_by, Some(BlockedBy::Pinned));
        assert!(pinned.security && pinned.candidate == "2.0");
        assert_eq!(pending("1.0", &[("2.0~bpo12+1", "100", BACKPORTS)]), None);
        assert_eq!(pending("1.0", &[("0.9", "500", MAIN)]), None);
        assert_eq!(pending("(none)", &[]), None);
    }

    #[test]
    fn phasing_and_origin_belong_to_the_version() {
        let output = "libc6:i386:\n  Installed: 1.0\n  Candidate: 2.0\n  Version table:\n     \
                    2.0 500 (phased 10%)\n        \
                    500 http://deb.example/debian bookworm-updates/main amd64 Packages\n \
                    *** 1.0 100\n        100 /var/lib/dpkg/status\n";
        let known = parse_policy(output);
        let releases = Releases::parse(RELEASES);
        assert_eq!(known[0].name, "libc6:i386");
        assert!(known[0].is_phased());
        assert_eq!(known[0].origin("2.0", &releases).as_deref(), Some("Debian"));
        assert_eq!(known[0].origin("1.0", &releases), None);
    }
}
