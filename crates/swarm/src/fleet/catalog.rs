//! The packages that a distribution offers, with every version of each.
//!
//! There is one catalog per system, shared by all of its hosts. The versions of a package are
//! called levels: level 0 is the version at the release of the system, and each update adds one
//! level.

use std::collections::BTreeSet;

use vocab::{PackageManager, Severity, UpdateType};

use super::names::{EXTRAS, LIBRARIES, PERL, PROGRAMS, PYTHON, ROLES};
use super::system::{System, Upstream};
use crate::Rng;

/// Everything that one system offers.
#[derive(Debug)]
pub(super) struct Catalog {
    pub(super) system: System,
    pub(super) packages: Vec<Package>,
}

/// One package of a distribution.
#[derive(Debug)]
pub(super) struct Package {
    pub(super) name: Box<str>,
    pub(super) source: Box<str>,
    pub(super) any_arch: bool,
    pub(super) scope: PackageScope,
    /// Whether a host needs a reboot after an update of this package.
    pub(super) reboot: bool,
    upstream: Upstream,
    /// The updates, oldest first. Release `n - 1` introduced level `n`.
    pub(super) releases: Vec<Release>,
}

/// Which hosts have a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PackageScope {
    /// Every host.
    Base,
    /// Some host groups.
    Common,
    /// The hosts of one role, by its index in `ROLES`.
    Role(usize),
    /// A few individual hosts.
    Extra,
}

/// One update.
#[derive(Debug)]
pub(super) struct Release {
    pub(super) update_type: UpdateType,
    pub(super) severity: Option<Severity>,
    pub(super) advisory: Option<String>,
    pub(super) cves: Vec<String>,
}

impl Catalog {
    /// Generates the catalog of `system` for this seed.
    pub(super) fn new(seed: u64, system: System) -> Catalog {
        let mut maker =
            CatalogBuilder { seed, system, names: BTreeSet::new(), packages: Vec::new() };
        let kernel = system.kernel_packages();
        for name in kernel {
            maker.add(name, kernel[0], PackageScope::Base);
        }
        maker.add(system.libc(), libc_source(system), PackageScope::Base);
        // Half of the programs are on every host, like a minimal installation.
        for (place, name) in PROGRAMS.split_whitespace().enumerate() {
            maker.add(
                name,
                name,
                if place % 2 == 0 { PackageScope::Base } else { PackageScope::Common },
            );
        }
        for (stem, number) in LIBRARIES.split_whitespace().filter_map(|word| word.split_once(':')) {
            let number = number.parse().unwrap_or(0);
            for name in system.library(stem, number) {
                maker.add(&name, stem, PackageScope::Common);
            }
        }
        for module in PYTHON.split_whitespace() {
            maker.add(&system.python(module), &format!("python-{module}"), PackageScope::Common);
        }
        for module in PERL.split_whitespace() {
            maker.add(&system.perl(module), &format!("perl-{module}"), PackageScope::Common);
        }
        for (role, (_, names)) in ROLES.iter().enumerate() {
            for name in names.split_whitespace() {
                let source = name.split('-').next().unwrap_or(name);
                maker.add(name, source, PackageScope::Role(role));
            }
        }
        for name in EXTRAS.split_whitespace() {
            maker.add(name, name, PackageScope::Extra);
        }
        Catalog { system, packages: maker.packages }
    }

    /// The version of a package at an update level.
    pub(super) fn version(&self, package: &Package, level: usize) -> String {
        self.system.version(package.upstream, level as u64)
    }

    /// The package architecture.
    pub(super) fn arch(&self, package: &Package) -> &'static str {
        if package.any_arch { self.system.any_arch() } else { self.system.arch() }
    }
}

struct CatalogBuilder {
    seed: u64,
    system: System,
    names: BTreeSet<String>,
    packages: Vec<Package>,
}

impl CatalogBuilder {
    fn add(&mut self, name: &str, source: &str, belongs: PackageScope) {
        if !self.names.insert(name.to_owned()) {
            return;
        }
        let mut rng = Rng::for_entity(self.seed, source, self.system as u64);
        let epochs = !matches!(self.system.manager(), PackageManager::Zypper | PackageManager::Apk);
        let upstream = Upstream {
            epoch: if epochs && rng.with_probability(0.06) { rng.between(1, 3) } else { 0 },
            major: if rng.with_probability(0.35) { 0 } else { rng.between(1, 12) },
            minor: rng.between(0, 34),
            patch: rng.between(0, 15),
            revision: rng.between(1, 9),
        };
        let reboot =
            source == self.system.kernel_packages()[0] || source == libc_source(self.system);
        self.packages.push(Package {
            name: name.into(),
            source: source.into(),
            any_arch: name.contains("python")
                || name.ends_with("-common")
                || name.ends_with("-doc"),
            scope: belongs,
            reboot,
            upstream,
            // Packages of one source are released together, so they use the same random numbers.
            releases: releases(self.seed, self.system, source, reboot, &mut rng),
        });
    }
}

fn libc_source(system: System) -> &'static str {
    if system.manager() == PackageManager::Apk { "musl" } else { "glibc" }
}

/// The updates of a source package since the release of the system.
fn releases(seed: u64, system: System, source: &str, always: bool, rng: &mut Rng) -> Vec<Release> {
    let count = match rng.below(100) {
        0..=77 if !always => 0,
        0..=91 => 1,
        92..=97 => 2,
        _ => 3,
    };
    // A vulnerability is in the software, not in a distribution: all distributions fix the same
    // CVEs.
    let mut vulnerability_rng = Rng::for_entity(seed, source, u64::MAX);
    (0..count).map(|_| release(system, &mut vulnerability_rng, rng)).collect()
}

fn release(system: System, cve_rng: &mut Rng, rng: &mut Rng) -> Release {
    let security = cve_rng.with_probability(0.45);
    let severity = match cve_rng.below(100) {
        0..=5 => Severity::Critical,
        6..=30 => Severity::High,
        31..=75 => Severity::Medium,
        _ => Severity::Low,
    };
    let cves = (0..cve_rng.between(1, 4))
        .map(|_| format!("CVE-{}-{}", cve_rng.between(2024, 2026), cve_rng.between(1_000, 59_999)));
    let cves: Vec<String> = cves.collect();
    // apk and pacman do not report the type of an update, so a real agent cannot know it either.
    let silent = matches!(system.manager(), PackageManager::Apk | PackageManager::Pacman);
    match (security && !silent, system.manager()) {
        (true, _) => Release {
            update_type: UpdateType::Security,
            severity: Some(severity),
            advisory: system.advisory(rng),
            cves,
        },
        (false, manager) => Release {
            update_type: match manager {
                PackageManager::Dnf | PackageManager::Zypper if rng.with_probability(0.7) => {
                    UpdateType::Bugfix
                }
                PackageManager::Dnf | PackageManager::Zypper => UpdateType::Enhancement,
                _ => UpdateType::Other,
            },
            severity: None,
            advisory: None,
            cves: Vec::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vocab::PackageName;

    #[test]
    fn package_names_are_valid_for_each_package_manager() {
        for system in System::ALL {
            let catalog = Catalog::new(1, system);
            assert!(catalog.packages.len() > 700, "{system:?} {}", catalog.packages.len());
            for package in &catalog.packages {
                let name = PackageName::parse(system.manager(), &package.name);
                assert!(name.is_ok(), "{system:?}: {name:?}");
            }
        }
    }

    /// Versions must increase in the package manager's own order, or an update would be a
    /// downgrade.
    #[test]
    fn each_release_has_a_higher_version() {
        for system in System::ALL {
            let catalog = Catalog::new(1, system);
            let mut updates = 0;
            for package in &catalog.packages {
                for level in 0..package.releases.len() {
                    let older = catalog.version(package, level);
                    let newer = catalog.version(package, level + 1);
                    let order = system.manager().scheme().compare(&older, &newer);
                    assert_eq!(order, std::cmp::Ordering::Less, "{system:?} {older} {newer}");
                    updates += 1;
                }
            }
            assert!(updates > 100, "{system:?} has {updates} updates");
        }
    }

    #[test]
    fn distributions_fix_the_same_cves() {
        let fixed = |system| -> BTreeSet<String> {
            let catalog = Catalog::new(1, system);
            let releases = catalog.packages.into_iter().flat_map(|package| package.releases);
            releases.flat_map(|release| release.cves).collect()
        };
        let (debian, rocky) = (fixed(System::Debian12), fixed(System::Rocky9));
        assert!(debian.intersection(&rocky).count() > 20);
        assert!(fixed(System::Alpine322).is_empty(), "apk does not report CVEs");
    }
}
