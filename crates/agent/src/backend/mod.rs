//! The package managers behind one narrow door.
//!
//! A back end knows what to run and how to read what was said. Questions it asks by itself, since they
//! change nothing. What changes the system it only describes, as [`Command`]s: `perform` runs them in a
//! session of their own, written down first, and judges what came of it by comparing inventories.
//! No back end decides what is to be installed: it is handed exact names and versions of what it said.

pub mod apk;
pub mod apt;
mod detect;
pub mod dnf;
mod glob;
mod kernel;
pub mod pacman;
mod rpm;
pub mod zypper;

pub use detect::{NoManager, detect};

use std::collections::BTreeSet;
use std::path::PathBuf;

use vocab::listing::{Installed, Pending};
use vocab::{FailureCode, Line, PackageManager};

use crate::command::{AskError, Command};

/// One package manager, on the system under one root.
pub trait Backend: Send + Sync {
    /// Which one.
    fn manager(&self) -> PackageManager;

    /// Takes in what [`Backend::memory_if_new`] said before, maybe in another life of the agent. Nothing of it is believed
    /// that could have changed since.
    fn recall(&self, memory: &[u8]) {
        let _ = memory;
    }

    /// What it has learned since it was last asked that saves questions, to be kept.
    fn memory_if_new(&self) -> Option<Vec<u8>> {
        None
    }

    /// Every package that is installed: with source, origin where it is known, and what is held.
    /// What is half installed is here too; [`Backend::damage`] tells of it.
    fn installed(&self) -> Result<Vec<Installed>, BackendError>;

    /// The same, for whoever compares versions: where a package came from may be missing.
    fn versions(&self) -> Result<Vec<Installed>, BackendError> {
        self.installed()
    }

    /// What brings the lists of available packages up to date. Run before [`Backend::pending`] by
    /// scans and by orders; each of them must end with 0.
    fn refresh(&self) -> Vec<Command>;

    /// The updates that are pending for what is installed, with whatever the manager knows of them, and
    /// why one would not be installed.
    fn pending(&self, installed: &[Installed]) -> Result<Vec<Pending>, BackendError>;

    /// The same for an order that names packages of the host: of those at least. What fixes a security flaw need only be
    /// told if the order asks for it.
    fn offered(
        &self,
        installed: &[Installed],
        names: &BTreeSet<&str>,
        security: bool,
    ) -> Result<Vec<Pending>, BackendError> {
        let _ = (names, security);
        self.pending(installed)
    }

    /// What would really happen if exactly these were updated to exactly these versions. Nothing is
    /// changed. An order that cannot be resolved is [`BackendError::Conflict`].
    fn resolve(&self, chosen: &[Choice]) -> Result<Transaction, BackendError>;

    /// Fetches what [`Backend::install`] will need. Empty if the manager cannot do that apart.
    fn download(&self, chosen: &[Choice]) -> Vec<Command>;

    /// Whether [`Backend::install`] fetches by itself what was not fetched before.
    fn fetches_to_install(&self) -> bool {
        false
    }

    /// Installs exactly these versions: no prompt, edited configuration kept, nothing removed, nothing
    /// downgraded, nothing else but what the resolver needs, auto marks kept.
    fn install(&self, chosen: &[Choice]) -> Vec<Command>;

    /// Who works on the package database right now, if someone does.
    fn lock_holder(&self) -> Result<Option<LockHolder>, BackendError>;

    /// What is half done in the package database, one line a package. None: it is sound.
    fn damage(&self) -> Result<Vec<Line>, BackendError>;

    /// What finishes or mends what is half done, without prompts and without removing anything.
    fn repair(&self) -> Vec<Command>;

    /// Configuration that packages brought and the manager put beside an edited file (`.dpkg-dist`,
    /// `.rpmnew`, `.pacnew`, …), as paths inside the root.
    fn set_aside(&self) -> Result<Vec<PathBuf>, BackendError>;

    /// Why the system should be rebooted, as far as this manager knows. A check that cannot be read is
    /// an error, and an error never reboots anything. An empty kernel: what runs is not the system's
    /// own, as in a container, and no kernel of its packages is a reason.
    fn reboot_reasons(&self, running_kernel: &str) -> Result<Vec<Line>, BackendError>;

    /// What an ended command means that did not do its work: its exit code, and the end of what it said.
    fn diagnose(&self, exit: Option<i32>, said: &str) -> Diagnosis;
}

/// An update that was chosen: exactly this version of an installed package.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Choice {
    /// The name, which stands in the host's own list of installed packages.
    pub name: String,
    /// The architecture, as the manager spells it.
    pub arch: String,
    /// The version that is installed.
    pub from: String,
    /// The version to install, which the host's own manager offered.
    pub to: String,
}

/// What a package manager would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transaction {
    /// What changes, each once.
    pub changes: Vec<Change>,
    /// How many bytes would be fetched, if the manager says.
    pub download_bytes: Option<u64>,
    /// How many bytes more would be used afterwards, if the manager says; less than 0 if fewer.
    pub disk_bytes: Option<i64>,
}

/// One package in a transaction.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// The name.
    pub name: String,
    /// The architecture.
    pub arch: String,
    /// The version that goes; nothing if it is new.
    pub from: Option<String>,
    /// The version that comes; nothing if it is removed.
    pub to: Option<String>,
}

/// Who holds the package manager's lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockHolder {
    /// Its process, if it could be found out.
    pub pid: Option<i32>,
    /// What it is called, for people: `unattended-upgr (pid 812)`.
    pub name: Line,
}

/// What a failure means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnosis {
    /// For programs.
    pub code: FailureCode,
    /// For people: the manager's own words where they say it best.
    pub message: Line,
}

/// Why a back end has no answer.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// A question could not be asked.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The manager answered with a failure.
    #[error("{what}: {}", .diagnosis.message)]
    Failed {
        /// What was asked: `apt-get update`.
        what: &'static str,
        /// What it means.
        diagnosis: Diagnosis,
    },
    /// The wish cannot be fulfilled: the resolver's own words.
    #[error("{0}")]
    Conflict(Line),
    /// An answer or a file does not read as it should.
    #[error("{what} cannot be read: {why}")]
    Unreadable {
        /// Which answer, or which file.
        what: String,
        /// What is wrong with it.
        why: String,
    },
}
