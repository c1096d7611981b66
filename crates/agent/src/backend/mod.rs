//! The package managers, behind one narrow interface.
//!
//! A back end knows which commands to run and how to parse their output. It runs queries itself,
//! since they change nothing. Commands that change the system are only described, as [`Command`]s:
//! the executor records them in the journal, runs them in their own session, and judges the result
//! by comparing inventories. No back end decides what to install: it is given exact names and
//! versions from its own output.

pub mod apk;
pub mod apt;
mod detect;
pub mod dnf;
mod glob;
mod kernel;
pub mod pacman;
mod rpm;
pub mod zypper;

pub use detect::{UnsupportedSystem, detect, missing_program};

use std::collections::BTreeSet;
use std::path::PathBuf;

use vocab::listing::{Installed, Pending};
use vocab::{FailureCode, Line, PackageManager};

use crate::command::{Command, QueryError};

/// One package manager, on the system under one root.
pub trait Backend: Send + Sync {
    fn manager(&self) -> PackageManager;

    /// Loads data from an earlier [`Backend::take_changed_cache`], possibly from before a restart
    /// of the agent. Data that may have changed since is not used.
    fn load_cache(&self, cache: &[u8]) {
        let _ = cache;
    }

    /// Cached query results to store, if they changed since the last call. They save queries later.
    fn take_changed_cache(&self) -> Option<Vec<u8>> {
        None
    }

    /// Every installed package, with its source, its origin if known, and whether it is held.
    /// Partly installed packages are included; [`Backend::damage`] lists them.
    fn installed(&self) -> Result<Vec<Installed>, BackendError>;

    /// Like [`Backend::installed`], to compare versions: the origin may be missing.
    fn installed_versions(&self) -> Result<Vec<Installed>, BackendError> {
        self.installed()
    }

    /// The commands that refresh the package lists. Run before [`Backend::pending`] by scans and
    /// orders; each must exit with 0.
    fn refresh(&self) -> Vec<Command>;

    /// The pending updates of the installed packages, with all information that the package manager
    /// has, and why one would not be installed.
    fn pending(&self, installed: &[Installed]) -> Result<Vec<Pending>, BackendError>;

    /// Like [`Backend::pending`], for an order that names packages: the updates of at least those.
    /// Whether an update is a security update need only be set if the order asks for it.
    fn pending_for(
        &self,
        installed: &[Installed],
        names: &BTreeSet<&str>,
        security: bool,
    ) -> Result<Vec<Pending>, BackendError> {
        let _ = (names, security);
        self.pending(installed)
    }

    /// The versions of these packages that the package manager can be asked to install, in addition
    /// to those of [`Backend::pending`]. `names` are names of installed packages.
    fn offered_versions(
        &self,
        installed: &[Installed],
        names: &BTreeSet<&str>,
    ) -> Result<Vec<OfferedVersion>, BackendError> {
        let _ = (installed, names);
        Ok(Vec::new())
    }

    /// Why an older version cannot be installed although a repository may have it, for an order for
    /// exact versions. `None` if this package manager can install any version that it offers.
    fn version_restriction(&self) -> Option<&'static str> {
        None
    }

    /// What would happen if exactly these packages were updated to exactly these versions. Changes
    /// nothing. An order that cannot be resolved is a [`BackendError::Conflict`].
    fn resolve(&self, chosen: &[Choice]) -> Result<Transaction, BackendError>;

    /// The commands that download what [`Backend::install`] needs. Empty if the package manager
    /// cannot download separately.
    fn download(&self, chosen: &[Choice]) -> Vec<Command>;

    /// Whether [`Backend::install`] downloads missing packages itself.
    fn downloads_on_install(&self) -> bool {
        false
    }

    /// The commands that install exactly these versions: no prompt, edited configuration kept,
    /// nothing removed, nothing downgraded, nothing added except what the resolver needs,
    /// auto-installed marks kept.
    fn install(&self, chosen: &[Choice]) -> Vec<Command>;

    /// Who holds the package database lock, if it is held.
    fn lock_holder(&self) -> Result<Option<LockHolder>, BackendError>;

    /// Incomplete operations in the package database, one line per package. Empty if it is intact.
    fn damage(&self) -> Result<Vec<Line>, BackendError>;

    /// The commands that finish or repair incomplete operations, without prompts and without
    /// removing anything.
    fn repair(&self) -> Vec<Command>;

    /// New configuration files that the package manager stored next to edited ones (`.dpkg-dist`,
    /// `.rpmnew`, `.pacnew`, …), as paths inside the root.
    fn new_config_files(&self) -> Result<Vec<PathBuf>, BackendError>;

    /// Why the host needs a reboot, as far as this package manager knows. A failed check is an
    /// error, and an error never causes a reboot. An empty `running_kernel` means that the running
    /// kernel does not belong to the managed system, as in a container, so no kernel package is a
    /// reason.
    fn reboot_reasons(&self, running_kernel: &str) -> Result<Vec<Line>, BackendError>;

    /// Diagnoses a failed command by its exit code and the end of its output.
    fn diagnose(&self, exit: Option<i32>, output: &str) -> Diagnosis;
}

/// A selected update: exactly this version of an installed package.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Choice {
    /// The name, from the host's own list of installed packages.
    pub name: String,
    /// The architecture, in the package manager's spelling.
    pub arch: String,
    /// The installed version.
    pub from: String,
    /// The version to install, as offered by the host's own package manager.
    pub to: String,
}

/// A version of an installed package that the package manager can install.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OfferedVersion {
    pub name: String,
    /// The architecture, in the package manager's spelling; empty if it does not say.
    pub arch: String,
    pub version: String,
}

/// What a package manager would change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transaction {
    /// The changes, without duplicates.
    pub changes: Vec<Change>,
    /// Download size, if the package manager reports it.
    pub download_bytes: Option<u64>,
    /// Additional disk usage afterwards, if the package manager reports it; negative if space is
    /// freed.
    pub disk_bytes: Option<i64>,
}

/// One package in a transaction.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    pub name: String,
    pub arch: String,
    /// The old version; `None` if the package is new.
    pub from: Option<String>,
    /// The new version; `None` if the package is removed.
    pub to: Option<String>,
}

/// The process that holds the package database lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockHolder {
    /// Its process id, if known.
    pub pid: Option<i32>,
    /// A display name: `unattended-upgr (pid 812)`.
    pub name: Line,
}

/// The cause of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnosis {
    pub code: FailureCode,
    /// A message for people, in the package manager's own words where possible.
    pub message: Line,
}

/// Why a back end failed.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// A query could not be run.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The package manager reported a failure.
    #[error("{what}: {}", .diagnosis.message)]
    Failed {
        /// The command that failed: `apt-get update`.
        what: &'static str,
        diagnosis: Diagnosis,
    },
    /// The request cannot be fulfilled: the resolver's own words.
    #[error("{0}")]
    Conflict(Line),
    /// Output or a file has an unexpected format.
    #[error("cannot read {what}: {why}")]
    Unreadable {
        /// The command or file.
        what: String,
        why: String,
    },
}
