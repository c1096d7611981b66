//! The operating systems of the fleet, and their formats for versions, advisories and kernels.

use vocab::{Os, PackageManager};

use crate::Rng;

/// An operating system of a simulated host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum System {
    Debian12,
    Ubuntu2204,
    Ubuntu2404,
    Rocky9,
    Alma9,
    Leap156,
    Alpine322,
    /// A rolling release without versions.
    Arch,
}

/// An upstream version, to which each distribution adds its own revision.
#[derive(Debug, Clone, Copy)]
pub(super) struct Upstream {
    pub(super) epoch: u64,
    pub(super) major: u64,
    pub(super) minor: u64,
    pub(super) patch: u64,
    /// The distribution's revision at the release of the system.
    pub(super) revision: u64,
}

impl System {
    pub const ALL: [System; 8] = [
        System::Debian12,
        System::Ubuntu2204,
        System::Ubuntu2404,
        System::Rocky9,
        System::Alma9,
        System::Leap156,
        System::Alpine322,
        System::Arch,
    ];

    /// Percentage of host groups that run this system: two thirds apt, a quarter rpm, the rest
    /// others.
    pub(super) fn share(self) -> u64 {
        match self {
            System::Debian12 => 26,
            System::Ubuntu2204 => 16,
            System::Ubuntu2404 => 20,
            System::Rocky9 => 13,
            System::Alma9 => 8,
            System::Leap156 => 6,
            System::Alpine322 => 8,
            System::Arch => 3,
        }
    }

    /// The system as `/etc/os-release` describes it.
    ///
    /// # Panics
    /// Never: the names below are well-formed.
    pub fn os(self) -> Os {
        let (id, version, name) = match self {
            System::Debian12 => ("debian", "12", "Debian GNU/Linux 12 (bookworm)"),
            System::Ubuntu2204 => ("ubuntu", "22.04", "Ubuntu 22.04.5 LTS"),
            System::Ubuntu2404 => ("ubuntu", "24.04", "Ubuntu 24.04.3 LTS"),
            System::Rocky9 => ("rocky", "9.6", "Rocky Linux 9.6 (Blue Onyx)"),
            System::Alma9 => ("almalinux", "9.6", "AlmaLinux 9.6 (Sage Margay)"),
            System::Leap156 => ("opensuse-leap", "15.6", "openSUSE Leap 15.6"),
            System::Alpine322 => ("alpine", "3.22.2", "Alpine Linux v3.22"),
            System::Arch => ("arch", "", "Arch Linux"),
        };
        Os::new(id, version, name).expect("the names above are well-formed")
    }

    pub fn manager(self) -> PackageManager {
        match self {
            System::Debian12 | System::Ubuntu2204 | System::Ubuntu2404 => PackageManager::Apt,
            System::Rocky9 | System::Alma9 => PackageManager::Dnf,
            System::Leap156 => PackageManager::Zypper,
            System::Alpine322 => PackageManager::Apk,
            System::Arch => PackageManager::Pacman,
        }
    }

    /// The package architecture of a 64-bit machine.
    pub(super) fn arch(self) -> &'static str {
        match self.manager() {
            PackageManager::Apt => "amd64",
            _ => "x86_64",
        }
    }

    /// The package architecture of architecture-independent packages.
    pub(super) fn any_arch(self) -> &'static str {
        match self.manager() {
            PackageManager::Apt => "all",
            PackageManager::Dnf | PackageManager::Zypper | PackageManager::Apk => "noarch",
            PackageManager::Pacman => "any",
        }
    }

    /// The version after `updates` updates of the same upstream release. Later versions sort higher
    /// in the order of the system's own package manager.
    pub(super) fn version(self, package: Upstream, updates: u64) -> String {
        let Upstream { epoch, major, minor, patch, revision } = package;
        let upstream = format!("{major}.{minor}.{patch}");
        let epoch = if epoch == 0 { String::new() } else { format!("{epoch}:") };
        match self {
            System::Debian12 if updates == 0 => format!("{epoch}{upstream}-{revision}"),
            System::Debian12 => format!("{epoch}{upstream}-{revision}+deb12u{updates}"),
            System::Ubuntu2204 | System::Ubuntu2404 => {
                format!("{epoch}{upstream}-{revision}ubuntu0.{}", updates + 1)
            }
            System::Rocky9 | System::Alma9 if updates == 0 => {
                format!("{epoch}{upstream}-{revision}.el9")
            }
            System::Rocky9 | System::Alma9 => {
                format!("{epoch}{upstream}-{revision}.el9_6.{updates}")
            }
            System::Leap156 => format!("{upstream}-150600.{revision}.{}.1", 3 + 3 * updates),
            System::Alpine322 => format!("{upstream}-r{}", revision - 1 + updates),
            System::Arch => {
                format!("{epoch}{major}.{minor}.{}-1", patch + updates)
            }
        }
    }

    /// The running kernel after `updates` kernel updates.
    pub(super) fn kernel(self, updates: u64) -> String {
        match self {
            System::Debian12 => format!("6.1.0-{}-amd64", 37 + updates),
            System::Ubuntu2204 => format!("5.15.0-{}-generic", 151 + updates),
            System::Ubuntu2404 => format!("6.8.0-{}-generic", 79 + updates),
            System::Rocky9 | System::Alma9 => {
                format!("5.14.0-570.{}.1.el9_6.x86_64", 32 + updates)
            }
            System::Leap156 => format!("6.4.0-150600.23.{}-default", 60 + updates),
            System::Alpine322 => format!("6.12.{}-0-lts", 50 + updates),
            System::Arch => format!("6.17.{}-arch1-1", 1 + updates),
        }
    }

    /// A typical advisory id of the system's security team. `None` if the system has no advisories.
    pub(super) fn advisory(self, rng: &mut Rng) -> Option<String> {
        Some(match self {
            System::Debian12 => format!("DSA-{}-1", rng.between(5700, 6050)),
            System::Ubuntu2204 | System::Ubuntu2404 => {
                format!("USN-{}-1", rng.between(7000, 7850))
            }
            System::Rocky9 => format!("RLSA-2026:{}", rng.between(1000, 19000)),
            System::Alma9 => format!("ALSA-2026:{}", rng.between(1000, 19000)),
            System::Leap156 => format!("openSUSE-SLE-15.6-2026-{}", rng.between(100, 3900)),
            System::Arch => {
                format!("ASA-2026{:02}-{}", rng.between(1, 11), rng.between(1, 9))
            }
            System::Alpine322 => return None,
        })
    }

    /// The line that the package manager logs when it installs a package.
    pub fn log_line(self, name: &str, version: &str) -> String {
        match self.manager() {
            PackageManager::Apt => format!("Setting up {name} ({version}) ...\n"),
            PackageManager::Dnf => format!("  Upgrading        : {name}-{version}\n"),
            PackageManager::Zypper => format!("Installing: {name}-{version} [done]\n"),
            PackageManager::Apk => format!("Upgrading {name} (-> {version})\n"),
            PackageManager::Pacman => format!("upgrading {name}...\n"),
        }
    }
}
