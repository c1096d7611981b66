//! Which package manager a system has.
//!
//! Judged by whose database lies there, not by which programs can be found: a Debian system may well have
//! `rpm` or `dnf` installed as packages like any other.

use std::fs;
use std::sync::Arc;

use super::Backend;
use super::apk::Apk;
use super::apt::Apt;
use super::dnf::Dnf;
use super::pacman::Pacman;
use super::zypper::Zypper;
use crate::root::Root;

/// The system has no package manager that is known here.
#[derive(Debug, thiserror::Error)]
#[error(
    "no package manager was found under {}: apt, dnf, zypper, pacman and apk are known, each by its \
     database of installed packages", dir.display()
)]
pub struct NoManager {
    /// Where was looked.
    pub dir: std::path::PathBuf,
}

/// The package manager of the system under `root`.
pub fn detect(root: &Root) -> Result<Arc<dyn Backend>, NoManager> {
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
    // The last is where Debian's rpm, from outside, keeps the database of a system that it made.
    if ["/var/lib/rpm", "/usr/lib/sysimage/rpm", "/root/.rpmdb"].into_iter().any(filled) {
        // SUSE has dnf among its packages too, and others have no zypper.
        return match Zypper::is_here(root) {
            true => Ok(Arc::new(Zypper::of(root.clone()))),
            false => Ok(Arc::new(Dnf::of(root.clone()))),
        };
    }
    Err(NoManager { dir: root.dir().to_owned() })
}
