//! apk, the package manager of Alpine Linux and its derivatives.
//!
//! Upgrades single packages with `apk fix --upgrade`. Unlike `apk add` it does not write to
//! `/etc/apk/world`, so dependencies stay dependencies; unlike `apk upgrade` it does not upgrade
//! apk itself first. It accepts no versions, so the back end simulates the upgrade first and
//! rejects it if the result is not exactly what was chosen.
//!
//! apk has no security information, so no update is marked as a security update. `origin` finds the
//! repository of installed packages. Debian has no apk, so the tests do not run apk; they use text
//! in apk's formats, written after its manual and source.

mod database;
mod origin;
mod parse;

#[cfg(test)]
mod tests;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use vocab::listing::{Installed, Pending};
use vocab::{BlockedBy, Line, PackageManager};

use super::{Backend, BackendError, Choice, Diagnosis, LockHolder, Transaction, kernel};
use crate::command::{Command, CommandOutput};
use crate::root::Root;
use database::ApkDatabase;

/// The directories of apk's database; the second one since Alpine merged `/usr`.
const DATABASE_DIRS: [&str; 2] = ["/lib/apk/db", "/usr/lib/apk/db"];
/// Timeout of a query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(120);
/// How long apk itself waits for its lock.
const LOCK_WAIT_SECONDS: &str = "600";

#[derive(Debug, Clone)]
pub struct Apk {
    root: Root,
    proc: PathBuf,
}

impl Apk {
    pub fn new(root: Root) -> Apk {
        Apk { root, proc: PathBuf::from("/proc") }
    }

    pub fn manages(root: &Root) -> bool {
        root.has_program("apk") && DATABASE_DIRS.iter().any(|place| root.path(place).is_dir())
    }

    fn database_dir(&self) -> PathBuf {
        let places = DATABASE_DIRS.map(|place| self.root.path(place));
        places.iter().find(|place| place.join("installed").is_file()).unwrap_or(&places[0]).clone()
    }

    fn database(&self) -> Result<ApkDatabase, BackendError> {
        let world = fs::read_to_string(self.root.path("/etc/apk/world")).unwrap_or_default();
        let path = self.database_dir().join("installed");
        let bytes = fs::read(&path).map_err(|error| BackendError::Unreadable {
            what: path.display().to_string(),
            why: error.to_string(),
        })?;
        Ok(ApkDatabase::parse(&String::from_utf8_lossy(&bytes), &world))
    }

    /// The installed packages, without origins.
    fn installed_without_origins(database: &ApkDatabase) -> Vec<Installed> {
        let listed = |package: &database::InstalledPackage| {
            let mut installed = Installed::new(&package.name, &package.version, &package.arch)
                .with_source(&package.origin, &package.version);
            installed.held =
                database.pin(&package.name).is_some_and(database::VersionPin::is_exact);
            installed
        };
        database.packages.iter().map(listed).collect()
    }

    fn apk(&self, action: &str) -> Command {
        self.root.command("apk").args([action, "--no-progress"])
    }

    fn query(&self, what: &'static str, command: &Command) -> Result<CommandOutput, BackendError> {
        let output = command.query(QUERY_TIMEOUT)?;
        if output.exit == Some(0) {
            return Ok(output);
        }
        let diagnosis = self.diagnose(output.exit, &format!("{}{}", output.stderr, output.stdout));
        Err(BackendError::Failed { what, diagnosis })
    }

    /// Simulates `apk fix --upgrade` of these packages.
    fn simulate(&self, names: &[&str]) -> Result<CommandOutput, BackendError> {
        let question = self.apk("fix").args(["--simulate", "--upgrade", "--"]);
        Ok(question.args(names.iter().copied()).query(QUERY_TIMEOUT)?)
    }
}

impl Backend for Apk {
    fn manager(&self) -> PackageManager {
        PackageManager::Apk
    }

    fn installed(&self) -> Result<Vec<Installed>, BackendError> {
        let database = self.database()?;
        let mut installed = Apk::installed_without_origins(&database);
        let origins = origin::origins(&self.root, &database.packages);
        for package in &mut installed {
            package.origin = origins.get(package.name.as_str()).cloned();
        }
        Ok(installed)
    }

    fn installed_versions(&self) -> Result<Vec<Installed>, BackendError> {
        Ok(Apk::installed_without_origins(&self.database()?))
    }

    fn refresh(&self) -> Vec<Command> {
        vec![self.apk("update").args(["--wait", LOCK_WAIT_SECONDS])]
    }

    fn pending(&self, installed: &[Installed]) -> Result<Vec<Pending>, BackendError> {
        let listed = self.query("apk list", &self.apk("list").arg("--upgradable"))?;
        let mut pending = parse::parse_upgradable(&listed.stdout, installed);
        if pending.is_empty() {
            return Ok(pending);
        }
        let names: Vec<&str> = pending.iter().map(|update| update.name.as_str()).collect();
        // The combination may be impossible; then no update is marked as kept back without need.
        let output = self.simulate(&names)?;
        let would = (output.exit == Some(0))
            .then(|| parse::parse_transaction(&output.stdout, installed))
            .transpose()?;
        let database = self.database()?;
        for update in &mut pending {
            let comes = would.as_ref().is_none_or(|would| {
                would.changes.iter().any(|change| {
                    change.name == update.name && change.to.as_ref() == Some(&update.candidate)
                })
            });
            let pin = database.pin(&update.name);
            update.blocked_by = match pin.filter(|pin| !pin.allows(&update.candidate)) {
                Some(pin) if pin.is_exact() => Some(BlockedBy::Held),
                Some(_) => Some(BlockedBy::Pinned),
                None => (!comes).then_some(BlockedBy::KeptBack),
            };
        }
        Ok(pending)
    }

    /// `apk add NAME=VERSION` would write the version to `/etc/apk/world`, where it stays and keeps
    /// every later update back.
    fn version_restriction(&self) -> Option<&'static str> {
        Some("apk installs only the newest version that its repositories offer")
    }

    fn resolve(&self, chosen: &[Choice]) -> Result<Transaction, BackendError> {
        let names: Vec<&str> = chosen.iter().map(|choice| choice.name.as_str()).collect();
        let output = self.simulate(&names)?;
        if output.exit != Some(0) {
            let words = format!("{}{}", output.stderr, output.stdout);
            return Err(BackendError::Conflict(self.diagnose(output.exit, &words).message));
        }
        let transaction = parse::parse_transaction(&output.stdout, &self.installed_versions()?)?;
        for choice in chosen {
            let comes = transaction.changes.iter().find(|change| change.name == choice.name);
            let comes = comes.and_then(|change| change.to.as_ref());
            if comes != Some(&choice.to) {
                let instead =
                    comes.map_or("leave it unchanged".to_owned(), |to| format!("install {to}"));
                let why = format!(
                    "apk would not upgrade {} to {}, but would {instead}",
                    choice.name, choice.to
                );
                return Err(BackendError::Conflict(Line::sanitize(&why)));
            }
        }
        Ok(transaction)
    }

    fn download(&self, _chosen: &[Choice]) -> Vec<Command> {
        // Without a cache, which few servers have, apk downloads while it installs.
        Vec::new()
    }

    fn install(&self, chosen: &[Choice]) -> Vec<Command> {
        let names = chosen.iter().map(|choice| choice.name.clone());
        vec![self.apk("fix").args(["--wait", LOCK_WAIT_SECONDS, "--upgrade", "--"]).args(names)]
    }

    fn lock_holder(&self) -> Result<Option<LockHolder>, BackendError> {
        let Ok(lock) = fs::metadata(self.database_dir().join("lock")) else { return Ok(None) };
        let path = self.proc.join("locks");
        let locks = fs::read_to_string(&path).map_err(|error| BackendError::Unreadable {
            what: path.display().to_string(),
            why: error.to_string(),
        })?;
        let Some(pid) = parse::lock_owner(&locks, lock.ino()) else { return Ok(None) };
        let comm = fs::read_to_string(self.proc.join(pid.to_string()).join("comm"));
        let name = format!("{} (pid {pid})", comm.unwrap_or_default().trim());
        Ok(Some(LockHolder { pid: Some(pid), name: Line::sanitize(&name) }))
    }

    fn damage(&self) -> Result<Vec<Line>, BackendError> {
        let database = self.database()?;
        let broken = database.packages.iter().filter_map(|package| {
            let what = package.broken.as_ref()?;
            Some(Line::sanitize(&format!("{} {}: {what}", package.name, package.version)))
        });
        Ok(broken.collect())
    }

    fn repair(&self) -> Vec<Command> {
        // Without names it reinstalls all packages that are marked as broken, in their installed
        // version.
        vec![self.apk("fix").args(["--wait", LOCK_WAIT_SECONDS])]
    }

    fn new_config_files(&self) -> Result<Vec<PathBuf>, BackendError> {
        let new_files = self.database()?.configuration;
        let new_files = new_files.into_iter().map(|path| format!("/{path}.apk-new"));
        let mut found: Vec<PathBuf> = new_files
            .filter(|path| self.root.entry(path).symlink_metadata().is_ok())
            .map(PathBuf::from)
            .collect();
        found.sort();
        Ok(found)
    }

    fn reboot_reasons(&self, running_kernel: &str) -> Result<Vec<Line>, BackendError> {
        Ok(kernel::replaced_kernel(&self.root, running_kernel)?.into_iter().collect())
    }

    fn diagnose(&self, _exit: Option<i32>, output: &str) -> Diagnosis {
        parse::diagnose(output)
    }
}

/// Runs every parser of this back end on arbitrary text.
#[cfg(feature = "fuzzing")]
pub fn fuzz(text: &str) {
    let (one, other) = text.split_at(text.floor_char_boundary(text.len() / 2));
    let database = database::ApkDatabase::parse(one, other);
    let _ = database.pin("busybox").map(|pin| (pin.is_exact(), pin.allows("1.36.1-r2")));
    let installed = [Installed::new("busybox", "1.36.1-r2", "x86_64")];
    let _ = (parse::parse_upgradable(text, &installed), parse::parse_transaction(text, &installed));
    let _ = (parse::lock_owner(text, 7), parse::diagnose(text));
}

/// Parses a package index in the format of apk's cache: a tar archive in gzip members.
#[cfg(feature = "fuzzing")]
pub fn fuzz_index(bytes: &[u8]) {
    origin::fuzz(bytes);
}
