//! Detects the package manager of a system.
//!
//! Detection is based on the package database that exists, not on the installed programs: a Debian
//! system may have `rpm` or `dnf` installed as packages like any other.

use std::fs;
use std::sync::Arc;

use vocab::PackageManager;

use super::Backend;
use super::apk::Apk;
use super::apt::Apt;
use super::dnf::Dnf;
use super::pacman::Pacman;
use super::zypper::Zypper;
use crate::root::Root;

/// The system has no supported package manager.
#[derive(Debug, thiserror::Error)]
#[error(
    "no supported package manager found under {}: apt, dnf, zypper, pacman and apk are detected by their \
     database of installed packages", dir.display()
)]
pub struct UnsupportedSystem {
    /// The root directory that was searched.
    pub dir: std::path::PathBuf,
}

/// Why the package manager of the system under `root` cannot be used, if its program is missing
/// there. dnf and zypper of the running system can manage another directory; the others cannot.
pub fn missing_program(root: &Root, manager: PackageManager) -> Option<String> {
    let program = match manager {
        PackageManager::Apt => "apt-get",
        PackageManager::Apk => "apk",
        PackageManager::Pacman => "pacman",
        PackageManager::Dnf | PackageManager::Zypper => return None,
    };
    let missing = !root.is_running_system() && !root.has_program(program);
    missing.then(|| {
        let dir = root.dir().display();
        format!("{dir} has no `{program}`; with --root, apt, apk and pacman must be installed in the directory")
    })
}

/// The package manager of the system under `root`.
pub fn detect(root: &Root) -> Result<Arc<dyn Backend>, UnsupportedSystem> {
    let holds = |path: &str| fs::metadata(root.path(path)).is_ok_and(|meta| meta.len() > 0);
    let filled = |path: &str| {
        fs::read_dir(root.path(path)).is_ok_and(|mut entries| entries.next().is_some())
    };
    if holds("/var/lib/dpkg/status") {
        return Ok(Arc::new(Apt::new(root.clone())));
    }
    if holds("/lib/apk/db/installed") || holds("/usr/lib/apk/db/installed") {
        return Ok(Arc::new(Apk::new(root.clone())));
    }
    if filled("/var/lib/pacman/local") {
        return Ok(Arc::new(Pacman::new(root.clone())));
    }
    // The last one is where Debian's rpm, run from outside, keeps the database of a system that it
    // created.
    if ["/var/lib/rpm", "/usr/lib/sysimage/rpm", "/root/.rpmdb"].into_iter().any(filled) {
        // SUSE offers dnf as a package too, but other systems have no zypper.
        return match Zypper::manages(root) {
            true => Ok(Arc::new(Zypper::new(root.clone()))),
            false => Ok(Arc::new(Dnf::new(root.clone()))),
        };
    }
    Err(UnsupportedSystem { dir: root.dir().to_owned() })
}
