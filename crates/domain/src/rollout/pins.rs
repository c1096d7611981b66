//! Pinned versions: what the first wave of a rollout installed, per kind of system.
//!
//! Pure. The engine calls [`Pins::add`] for every server that succeeded in the first wave, stores
//! the result, and later orders name exactly these versions. Versions of one system say nothing
//! about another: a server whose system is not among them never starts.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use vocab::{Os, PackageManager};

/// A kind of system: servers with the same one can install the same versions.
///
/// Point releases that share their repositories are one system: Rocky Linux 9.3 and 9.4, or Alpine
/// 3.19.1 and 3.19.4. A server may change its point release with the update itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct System {
    os: String,
    release: String,
    manager: Option<PackageManager>,
    arch: String,
}

impl System {
    pub fn new(os: &Os, manager: Option<PackageManager>, arch: &str) -> System {
        let parts = match manager {
            Some(PackageManager::Dnf) => 1,
            Some(PackageManager::Apk) => 2,
            _ => usize::MAX,
        };
        let release: Vec<&str> = os.version().split('.').take(parts).collect();
        System {
            os: os.id().to_owned(),
            release: release.join("."),
            manager,
            arch: arch.to_owned(),
        }
    }
}

/// `debian 12 apt x86_64`
impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let manager = self.manager.map_or("-", PackageManager::as_str);
        let known = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        write!(f, "{} {} {manager} {}", self.os, known(&self.release), known(&self.arch))
    }
}

/// A version of a package that was installed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PinnedVersion {
    pub name: String,
    /// The architecture, in the package manager's spelling. Empty: unknown.
    pub arch: String,
    pub version: String,
}

/// The versions that servers installed, by system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pins(BTreeMap<System, BTreeMap<(String, String), String>>);

impl Pins {
    /// Adds what one server installed. If servers with the same system installed different versions
    /// of a package, the newest counts: each was installed successfully, and the older one is more
    /// likely to be gone. A server that installed nothing proves nothing.
    pub fn add(&mut self, system: &System, installed: impl IntoIterator<Item = PinnedVersion>) {
        let scheme = system.manager.map(PackageManager::scheme);
        for PinnedVersion { name, arch, version } in installed {
            let versions = self.0.entry(system.clone()).or_default();
            let newest = versions.entry((name, arch)).or_insert_with(|| version.clone());
            let order = match scheme {
                Some(scheme) => scheme.compare(newest, &version),
                None => newest.as_str().cmp(&version),
            };
            // Versions that are equal to the package manager may be spelled differently.
            if order.then_with(|| newest.as_str().cmp(&version)) == Ordering::Less {
                *newest = version;
            }
        }
    }

    /// The versions of each system, by name and architecture: at most `max`.
    pub fn into_systems(self, max: usize) -> Vec<(System, Vec<PinnedVersion>)> {
        let list = |versions: BTreeMap<(String, String), String>| {
            let versions = versions.into_iter().take(max);
            versions.map(|((name, arch), version)| PinnedVersion { name, arch, version }).collect()
        };
        self.0.into_iter().map(|(system, versions)| (system, list(versions))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(id: &str, version: &str, manager: PackageManager) -> System {
        System::new(&Os::new(id, version, "").unwrap(), Some(manager), "x86_64")
    }

    fn pin(name: &str, version: &str) -> PinnedVersion {
        PinnedVersion { name: name.into(), arch: "amd64".into(), version: version.into() }
    }

    #[test]
    fn point_releases_with_the_same_repositories_are_one_system() {
        let cases = [
            ("rocky", PackageManager::Dnf, "9.3", "9.4", true),
            ("rocky", PackageManager::Dnf, "8.9", "9.4", false),
            ("alpine", PackageManager::Apk, "3.19.1", "3.19.4", true),
            ("alpine", PackageManager::Apk, "3.19.1", "3.20.0", false),
            ("ubuntu", PackageManager::Apt, "22.04", "22.10", false),
            ("sles", PackageManager::Zypper, "15.5", "15.6", false),
            ("arch", PackageManager::Pacman, "", "", true),
        ];
        for (id, manager, one, other, same) in cases {
            let equal = system(id, one, manager) == system(id, other, manager);
            assert_eq!(equal, same, "{id} {one} {other}");
        }
        let arm = System::new(
            &Os::new("debian", "12", "").unwrap(),
            Some(PackageManager::Apt),
            "aarch64",
        );
        assert_ne!(arm, system("debian", "12", PackageManager::Apt));
    }

    #[test]
    fn systems_have_a_readable_name() {
        assert_eq!(system("debian", "12", PackageManager::Apt).to_string(), "debian 12 apt x86_64");
        assert_eq!(
            System::new(&Os::new("arch", "", "").unwrap(), None, "").to_string(),
            "arch - - -"
        );
    }

    #[test]
    fn newest_of_different_versions_counts_in_any_order() {
        let debian = system("debian", "12", PackageManager::Apt);
        let versions = ["1.10-1", "1.9-1", "1.10-1~bpo1"];
        for turn in 0..versions.len() {
            let mut pins = Pins::default();
            for n in 0..versions.len() {
                pins.add(&debian, [pin("bash", versions[(turn + n) % versions.len()])]);
            }
            assert_eq!(pins.into_systems(10), [(debian.clone(), vec![pin("bash", "1.10-1")])]);
        }
    }

    #[test]
    fn systems_do_not_share_versions() {
        let debian = system("debian", "12", PackageManager::Apt);
        let rocky = system("rocky", "9.4", PackageManager::Dnf);
        let mut pins = Pins::default();
        pins.add(&debian, [pin("bash", "2"), pin("acl", "1")]);
        pins.add(&rocky, [pin("bash", "1")]);
        // It had nothing to install.
        pins.add(&system("alpine", "3.19.1", PackageManager::Apk), []);
        assert_eq!(
            pins.clone().into_systems(10),
            [
                (debian.clone(), vec![pin("acl", "1"), pin("bash", "2")]),
                (rocky, vec![pin("bash", "1")])
            ]
        );
        assert_eq!(pins.into_systems(1)[0], (debian, vec![pin("acl", "1")]));
    }
}
