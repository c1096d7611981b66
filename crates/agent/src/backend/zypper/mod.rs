//! zypper: SUSE Linux Enterprise and openSUSE.
//!
//! Works with packages and never with patches: `zypper patch` skips a patch that requires a reboot,
//! and exits with 0. Packages are named in full and always installed by `update`, which never
//! installs a package that is not present. Only `refresh` and package downloads use the network.

mod locks;
mod parse;
mod xml;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use vocab::listing::{Installed, Pending};
use vocab::{BlockedBy, FailureCode, Line, PackageManager};

use super::rpm::advisory;
use super::rpm::advisory::AdvisoryFix;
use super::rpm::nevra::is_plain_name;
use super::rpm::transaction::check_complete;
use super::rpm::{Rpm, check_plain_names, diagnose, installed_version, kernel, lock};
use super::{Backend, BackendError, Choice, Diagnosis, LockHolder, OfferedVersion, Transaction};
use crate::command::{Command, CommandOutput};
use crate::root::Root;
use parse::{AvailableUpdate, UpdateSummary};

/// Timeout of a query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(900);

/// Where zypper records automatically installed packages.
const AUTO_INSTALLED_FILE: &str = "/var/lib/zypp/AutoInstalled";
/// A copy of that file from before an order.
const AUTO_INSTALLED_BACKUP: &str = "/var/lib/zypp/AutoInstalled.before";

/// Resolver options: no recommended packages, and no forced resolution.
const RESOLVER_OPTIONS: [&str; 2] = ["--no-recommends", "--no-force-resolution"];

#[derive(Debug, Clone)]
pub struct Zypper {
    rpm: Rpm,
}

impl Zypper {
    /// Whether this system is managed with zypper: it contains zypper, or zypper on another system
    /// installed it with `--root`.
    pub fn manages(root: &Root) -> bool {
        root.has_program("zypper") || root.path("/etc/zypp").is_dir()
    }

    /// zypper on the system under `root`: the system's own, or the running system's with `--root`.
    pub fn new(root: Root) -> Zypper {
        Zypper { rpm: Rpm::new(root, "zypper") }
    }

    fn zypper(&self) -> Command {
        self.rpm.program("zypper", "--root").arg("--non-interactive")
    }

    /// A query that is answered from the last downloaded metadata.
    fn query(&self, args: &[&str], what: &'static str) -> Result<String, BackendError> {
        let question = self.zypper().args(["--no-refresh", "--xmlout"]).args(args.iter().copied());
        let output = question.query(QUERY_TIMEOUT)?;
        match output.exit {
            // 100 and 101: updates are available; 102 and 103: a reboot or restart is needed.
            Some(0 | 100..=103) => Ok(output.stdout),
            _ => Err(self.query_error(&output, what)),
        }
    }

    fn query_error(&self, command_output: &CommandOutput, what: &'static str) -> BackendError {
        let output =
            format!("{}\n{}", parse::messages(&command_output.stdout), command_output.stderr);
        BackendError::Failed { what, diagnosis: self.diagnose(command_output.exit, &output) }
    }

    fn preview(&self, specs: &[String]) -> Result<UpdateSummary, BackendError> {
        let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
        let question = [&["update", "--dry-run"], &RESOLVER_OPTIONS[..], &specs].concat();
        parse::parse_summary(&self.query(&question, "zypper update --dry-run")?)
    }

    fn fixes(&self) -> Result<Vec<AdvisoryFix>, BackendError> {
        let patches = parse::parse_patches(&self.query(&["list-patches"], "zypper list-patches")?)?;
        // zypper expands globs here; the patch names of vendors are plain.
        let names: Vec<&str> = patches
            .iter()
            .map(|patch| patch.name.as_str())
            .filter(|name| is_plain_name(name))
            .collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let question = self.zypper().args(["--no-refresh", "info", "-t", "patch"]).args(names);
        let output = question.query(QUERY_TIMEOUT)?;
        match output.exit {
            Some(0) => Ok(parse::parse_fixes(&patches, &output.stdout)),
            _ => Err(self.query_error(&output, "zypper info -t patch")),
        }
    }

    /// The names of updates that would remove another package. A dry run of all updates shows what
    /// is removed, and a search for packages that obsolete it shows by which update.
    fn replacers(&self) -> Result<Vec<String>, BackendError> {
        let everything = match self.preview(&[]) {
            Ok(summary) => summary,
            // In this case, each update is checked when it is chosen.
            Err(BackendError::Failed { .. }) => return Ok(Vec::new()),
            Err(other) => return Err(other),
        };
        let mut names = Vec::new();
        for gone in everything.moves.changes().iter().filter(|change| change.to.is_none()) {
            let question = ["search", "--obsoletes", "--match-exact", &gone.name];
            if let Ok(answer) = self.query(&question, "zypper search --obsoletes") {
                names.extend(parse::parse_search(&answer)?);
            }
        }
        Ok(names)
    }

    fn locks(&self) -> Result<Vec<locks::Lock>, BackendError> {
        Ok(locks::parse_locks(&self.rpm.read_text("/etc/zypp/locks")?))
    }

    fn update(&self, options: &[&str], chosen: &[Choice]) -> Command {
        let order = self.zypper().args(["--no-refresh", "update", "--auto-agree-with-licenses"]);
        let order = order.args(RESOLVER_OPTIONS).args(options.iter().copied());
        order.args(chosen.iter().map(package_spec)).accept_exit_codes(&RESTART_NEEDED_EXITS)
    }
}

/// The command succeeded, and the host or zypper itself needs a restart.
const RESTART_NEEDED_EXITS: [i32; 2] = [102, 103];

/// `openssl-libs.noarch=1:3.0.1-43.el9_0`.
fn package_spec(choice: &Choice) -> String {
    format!("{}.{}={}", choice.name, choice.arch, choice.to)
}

impl Backend for Zypper {
    fn manager(&self) -> PackageManager {
        PackageManager::Zypper
    }

    fn installed(&self) -> Result<Vec<Installed>, BackendError> {
        let locks = self.locks()?;
        let mut list = self.rpm.installed()?;
        for package in &mut list {
            package.held = locks.iter().any(|lock| lock.matches(&package.name, &package.version));
        }
        Ok(list)
    }

    fn refresh(&self) -> Vec<Command> {
        vec![self.zypper().arg("refresh")]
    }

    fn pending(&self, installed: &[Installed]) -> Result<Vec<Pending>, BackendError> {
        let everything = self.query(&["list-updates", "--all"], "zypper list-updates")?;
        let everything = parse::parse_updates(&everything)?;
        if everything.is_empty() {
            return Ok(Vec::new());
        }
        let possible =
            parse::parse_updates(&self.query(&["list-updates"], "zypper list-updates")?)?;
        let (locks, replacers) = (self.locks()?, self.replacers()?);
        let mut updates = Vec::new();
        for AvailableUpdate { name, arch, candidate } in &everything {
            let Some(now) = installed_version(installed, name, arch) else { continue };
            let comes = possible.iter().find(|update| update.name == *name && update.arch == *arch);
            let candidate = comes.map_or(candidate, |update| &update.candidate);
            let mut update = Pending::new(name, arch, &now.version, candidate);
            let locked = |evr: &str| locks.iter().any(|lock| lock.matches(name, evr));
            update.blocked_by = match comes {
                Some(_) => replacers.contains(name).then_some(BlockedBy::KeptBack),
                None if locked(&now.version) => Some(BlockedBy::Held),
                None if locked(candidate) => Some(BlockedBy::Pinned),
                None => Some(BlockedBy::KeptBack),
            };
            updates.push(update);
        }
        advisory::join(&mut updates, &self.fixes()?);
        Ok(updates)
    }

    fn offered_versions(
        &self,
        _installed: &[Installed],
        names: &BTreeSet<&str>,
    ) -> Result<Vec<OfferedVersion>, BackendError> {
        let names: Vec<&str> = names.iter().copied().filter(|name| is_plain_name(name)).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let question = ["search", "--details", "--match-exact", "--type", "package"];
        let question = [&question[..], names.as_slice()].concat();
        parse::parse_versions(&self.query(&question, "zypper search")?)
    }

    fn resolve(&self, chosen: &[Choice]) -> Result<Transaction, BackendError> {
        check_plain_names(chosen)?;
        if chosen.is_empty() {
            return Ok(Transaction::default());
        }
        let specs: Vec<String> = chosen.iter().map(package_spec).collect();
        let summary = self.preview(&specs).map_err(|error| match error {
            BackendError::Failed { diagnosis, .. }
                if diagnosis.code == FailureCode::DependencyConflict =>
            {
                BackendError::Conflict(diagnosis.message)
            }
            other => other,
        })?;
        let UpdateSummary { moves, download_bytes, disk_bytes } = summary;
        let transaction = Transaction { changes: moves.changes(), download_bytes, disk_bytes };
        check_complete(transaction, chosen)
    }

    fn download(&self, chosen: &[Choice]) -> Vec<Command> {
        vec![self.update(&["--download-only"], chosen)]
    }

    /// zypper marks packages that it is asked to install as user-installed. So the list of
    /// automatically installed packages is saved first, and merged back afterwards.
    fn install(&self, chosen: &[Choice]) -> Vec<Command> {
        let update = self.update(&[], chosen);
        let path = |inside: &str| self.rpm.root.path(inside).to_string_lossy().into_owned();
        if !self.rpm.root.path(AUTO_INSTALLED_FILE).is_file() {
            return vec![update];
        }
        let keep =
            Command::new("cp").args([path(AUTO_INSTALLED_FILE), path(AUTO_INSTALLED_BACKUP)]);
        let add = Command::new("sort").args([
            "-u",
            "-o",
            &path(AUTO_INSTALLED_FILE),
            &path(AUTO_INSTALLED_FILE),
            &path(AUTO_INSTALLED_BACKUP),
        ]);
        vec![keep, update, add]
    }

    fn lock_holder(&self) -> Result<Option<LockHolder>, BackendError> {
        let file = self.rpm.root.path("/run/zypp.pid");
        match lock::pid_file_holder_with_library(&file, "libzypp") {
            Some(holder) => Ok(Some(holder)),
            None => self.rpm.database_writer(),
        }
    }

    fn damage(&self) -> Result<Vec<Line>, BackendError> {
        self.rpm.damage()
    }

    fn repair(&self) -> Vec<Command> {
        self.rpm.repair(|again| {
            let order = self.zypper().args(["--no-refresh", "install", "--force"]);
            order
                .args(RESOLVER_OPTIONS)
                .args(again.iter().map(package_spec))
                .accept_exit_codes(&RESTART_NEEDED_EXITS)
        })
    }

    fn new_config_files(&self) -> Result<Vec<PathBuf>, BackendError> {
        self.rpm.new_config_files()
    }

    fn reboot_reasons(&self, running_kernel: &str) -> Result<Vec<Line>, BackendError> {
        let installed = self.rpm.installed()?;
        let mut reasons: Vec<Line> =
            kernel::newer_kernel_reason(&installed, running_kernel).into_iter().collect();
        if self.rpm.root.path("/run/reboot-needed").exists() {
            reasons.push("an update created /run/reboot-needed".into());
        } else if self.rpm.root.is_running_system() {
            // It compares installation times with the boot time. Older versions do not have this
            // command.
            let answer =
                self.zypper().args(["--no-refresh", "needs-rebooting"]).query(QUERY_TIMEOUT)?;
            match answer.exit {
                Some(102) => reasons.push("zypper reports that a reboot is needed".into()),
                // Exit code 1 means that the command is unknown.
                Some(0 | 1) => {}
                _ => return Err(self.query_error(&answer, "zypper needs-rebooting")),
            }
        }
        Ok(reasons)
    }

    fn diagnose(&self, exit: Option<i32>, output: &str) -> Diagnosis {
        let by_exit = match exit {
            Some(7) => Some(FailureCode::PkgLockTimeout),
            Some(6 | 106) => Some(FailureCode::RepoUnreachable),
            Some(104) => Some(FailureCode::DependencyConflict),
            Some(107) => Some(FailureCode::InstallFailed),
            _ => None,
        };
        match (by_exit, diagnose::from_output(output)) {
            (Some(code), Some(by_words)) if by_words.code == code => by_words,
            (Some(code), _) => Diagnosis { code, message: diagnose::last_error_line(output) },
            (None, Some(by_words)) => by_words,
            (None, None) => Diagnosis {
                code: FailureCode::InstallFailed,
                message: diagnose::last_error_line(output),
            },
        }
    }
}

/// Runs every parser of this back end on arbitrary text.
#[cfg(feature = "fuzzing")]
pub fn fuzz(text: &str) {
    let _ = parse::parse_updates(text);
    let _ = parse::parse_fixes(&parse::parse_patches(text).unwrap_or_default(), text);
    let _ = (parse::parse_summary(text), parse::messages(text), parse::parse_search(text));
    for lock in locks::parse_locks(text) {
        let _ = lock.matches("kernel-default", "5.14.21-1.1");
    }
    super::rpm::fuzz(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_diagnosed_by_exit_code() {
        let zypper = Zypper::new(Root::running());
        let code = |exit, text: &str| zypper.diagnose(Some(exit), text).code;
        assert_eq!(
            code(7, "System management is locked by 812 (zypper).\n"),
            FailureCode::PkgLockTimeout
        );
        assert_eq!(code(104, "No provider of 'bash=9' found.\n"), FailureCode::DependencyConflict);
        assert_eq!(code(107, ""), FailureCode::InstallFailed);
        assert_eq!(
            code(106, "Some of the repositories have not been refreshed because of an error.\n"),
            FailureCode::RepoUnreachable
        );
        let output =
            "Problem: nothing provides nowhere needed by broken-2-1.noarch\n Solution 1: no\n";
        let conflict = zypper.diagnose(Some(4), output);
        assert_eq!(conflict.code, FailureCode::DependencyConflict);
        assert_eq!(
            conflict.message.as_str(),
            "Problem: nothing provides nowhere needed by broken-2-1.noarch"
        );
    }

    #[test]
    fn packages_are_named_in_full_and_updated_only() {
        let zypper = Zypper::new(Root::under("/srv/no-such-root".as_ref()));
        let choice = Choice {
            name: "openssl-libs".to_owned(),
            arch: "noarch".to_owned(),
            from: "1:3-1".to_owned(),
            to: "1:3-4".to_owned(),
        };
        let [command] = &zypper.install(&[choice])[..] else {
            panic!("without marks there is one command")
        };
        assert_eq!(
            command.args.join(" "),
            "--root /srv/no-such-root --non-interactive --no-refresh update --auto-agree-with-licenses \
             --no-recommends --no-force-resolution openssl-libs.noarch=1:3-4"
        );
    }
}
