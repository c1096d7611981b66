//! dnf 4 and dnf 5: RHEL 8 to 10 and derivatives, Fedora.
//!
//! Queries use only the cache; only `refresh` and `download` use the network. Packages are named in
//! full, with epoch and architecture, and always installed by `upgrade`: it never installs a
//! package that is not present, and it does not mark a dependency as user-installed. Obsoletes are
//! disabled, because they would replace the chosen package with another; if the chosen version
//! itself obsoletes a package, that shows up as a removal.

mod dnf4;
mod dnf5;
mod parse;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use vocab::listing::{Installed, Pending};
use vocab::{BlockedBy, FailureCode, Line, PackageManager};

use super::rpm::advisory;
use super::rpm::advisory::AdvisoryFix;
use super::rpm::holds;
use super::rpm::holds::{Holds, Pattern};
use super::rpm::nevra::{Nevra, is_plain_name, split_epoch};
use super::rpm::transaction::{PackageMoves, check_complete};
use super::rpm::{Rpm, check_plain_names, diagnose, installed_version, kernel, lock};
use super::{Backend, BackendError, Choice, Diagnosis, LockHolder, OfferedVersion, Transaction};
use crate::command::{Command, CommandOutput};
use crate::root::Root;

/// Timeout of a query: dnf rebuilds its caches when needed, which takes minutes on small hosts.
const QUERY_TIMEOUT: Duration = Duration::from_secs(900);

/// Options for every query and command.
const COMMON_OPTIONS: [&str; 4] = [
    "--setopt=obsoletes=0",
    "--setopt=install_weak_deps=0",
    "--setopt=clean_requirements_on_remove=0",
    // The agent decides how long to wait for a lock, and reports its holder; dnf would wait
    // forever.
    "--setopt=exit_on_lock=1",
];

/// Commands use the package lists that were downloaded last, whatever their age: the versions that
/// were chosen from them are the ones that are installed.
const KEEP_METADATA: [&str; 2] = ["--setopt=metadata_expire=-1", "--setopt=*.metadata_expire=-1"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Generation {
    Dnf4,
    Dnf5,
}

#[derive(Debug, Clone)]
pub struct Dnf {
    rpm: Rpm,
    generation: Generation,
    program: &'static str,
}

impl Dnf {
    /// Whether this system is managed with dnf: it contains dnf, or the dnf of another system created
    /// it (`--installroot`).
    pub fn manages(root: &Root) -> bool {
        root.has_program("dnf") || root.has_program("dnf5") || root.path("/etc/dnf").is_dir()
    }

    /// dnf on the system under `root`: the system's own, or the running system's with
    /// `--installroot`.
    pub fn new(root: Root) -> Dnf {
        let own = root.has_program("dnf") || root.has_program("dnf5");
        let home = if own { root.clone() } else { Root::running() };
        let (generation, program) = detect_generation(&home);
        Dnf { rpm: Rpm::new(root, program), generation, program }
    }

    fn dnf(&self) -> Command {
        self.rpm.program(self.program, "--installroot=").args(COMMON_OPTIONS)
    }

    /// Runs a query that uses only dnf's cache, not the network.
    fn query(&self, args: &[&str], what: &'static str) -> Result<String, BackendError> {
        let answer =
            self.dnf().args(["-q", "-C"]).args(args.iter().copied()).query(QUERY_TIMEOUT)?;
        match answer.exit {
            Some(0) => Ok(answer.stdout),
            _ => Err(self.query_error(&answer, what)),
        }
    }

    fn query_error(&self, answer: &CommandOutput, what: &'static str) -> BackendError {
        let output = format!("{}\n{}", answer.stdout, answer.stderr);
        BackendError::Failed { what, diagnosis: self.diagnose(answer.exit, &output) }
    }

    /// The transaction that dnf would run, and its whole output. dnf resolves it and then stops at
    /// `--assumeno`.
    fn preview(
        &self,
        best: bool,
        specs: &[String],
    ) -> Result<(PackageMoves, String), BackendError> {
        let (verbosity, best) = match (self.generation, best) {
            (Generation::Dnf4, true) => (&["-v"][..], "--best"),
            (Generation::Dnf4, false) => (&["-v"][..], "--nobest"),
            (Generation::Dnf5, true) => (&[][..], "--best"),
            (Generation::Dnf5, false) => (&[][..], "--no-best"),
        };
        let question = self.dnf().args(["-C", "--assumeno", best]).args(verbosity.iter().copied());
        let command_output =
            question.arg("upgrade").args(specs.iter().cloned()).query(QUERY_TIMEOUT)?;
        let output = format!("{}\n{}", command_output.stdout, command_output.stderr);
        if command_output.exit != Some(0) && !output.contains("Operation aborted") {
            return Err(self.query_error(&command_output, "dnf upgrade --assumeno"));
        }
        let moves = match self.generation {
            Generation::Dnf4 => self.with_downgrades(dnf4::parse_moves(&output))?,
            Generation::Dnf5 => dnf5::parse_moves(&output),
        };
        Ok((moves, output))
    }

    fn with_downgrades(
        &self,
        (mut moves, downgrades): (PackageMoves, Vec<Nevra>),
    ) -> Result<PackageMoves, BackendError> {
        if !downgrades.is_empty() {
            let installed = self.rpm.installed()?;
            for package in downgrades {
                let now = installed_version(&installed, &package.name, &package.arch);
                moves.removed.extend(now.map(|now| Nevra {
                    name: now.name.clone(),
                    evr: now.version.clone(),
                    arch: now.arch.clone(),
                }));
                moves.added.push(package);
            }
        }
        Ok(moves)
    }

    fn fixes(&self) -> Result<Vec<AdvisoryFix>, BackendError> {
        match self.generation {
            Generation::Dnf4 => {
                let list = self.query(&["updateinfo", "list"], "dnf updateinfo list")?;
                let cves =
                    self.query(&["updateinfo", "list", "--with-cve"], "dnf updateinfo list")?;
                Ok(dnf4::parse_fixes(&list, &cves))
            }
            Generation::Dnf5 => {
                dnf5::parse_fixes(&self.query(&["advisory", "info", "--json"], "dnf advisory")?)
            }
        }
    }

    /// All available updates, including locked and excluded ones.
    fn candidates(&self) -> Result<Vec<Nevra>, BackendError> {
        let everything: &[&str] = match self.generation {
            Generation::Dnf4 => &["--disableexcludes=all", "--disableplugin=versionlock"],
            Generation::Dnf5 => &["--setopt=disable_excludes=*"],
        };
        let question = ["repoquery", "--upgrades", "--qf", parse::FORMAT];
        let args: Vec<&str> = everything.iter().chain(&question).copied().collect();
        parse::parse_candidates(&self.query(&args, "dnf repoquery --upgrades")?)
    }

    fn holds(&self) -> Result<Holds, BackendError> {
        let keys = ["exclude", "excludepkgs"];
        let patterns = |values: Vec<String>| values.into_iter().map(Pattern).collect::<Vec<_>>();
        let main = self.rpm.read_text("/etc/dnf/dnf.conf")?;
        let mut excludes = patterns(holds::ini_values(&main, |section| section == "main", &keys));
        for drop_in in self.config_files("/etc/dnf/libdnf5.conf.d", ".conf") {
            let text = self.rpm.read_text(&drop_in)?;
            excludes.extend(patterns(holds::ini_values(&text, |section| section == "main", &keys)));
        }
        let mut repository_excludes = Vec::new();
        for file in self.config_files("/etc/yum.repos.d", ".repo") {
            let text = self.rpm.read_text(&file)?;
            repository_excludes.extend(patterns(holds::ini_values(&text, |_| true, &keys)));
        }
        Ok(Holds { locks: self.locks()?, excludes, repository_excludes })
    }

    fn locks(&self) -> Result<Vec<holds::Lock>, BackendError> {
        if self.generation == Generation::Dnf5 {
            return Ok(holds::parse_lock_toml(&self.rpm.read_text("/etc/dnf/versionlock.toml")?));
        }
        // Without its own configuration, the plugin is not installed, and a lock list has no
        // effect.
        let plugin = self.rpm.read_text("/etc/dnf/plugins/versionlock.conf")?;
        let setting = |key: &str| holds::ini_values(&plugin, |_| true, &[key]).into_iter().next();
        let off = |word: String| ["0", "no", "false"].contains(&word.to_ascii_lowercase().as_str());
        if plugin.is_empty() || setting("enabled").is_some_and(off) {
            return Ok(Vec::new());
        }
        let list =
            setting("locklist").unwrap_or_else(|| "/etc/dnf/plugins/versionlock.list".to_owned());
        Ok(holds::parse_lock_list(&self.rpm.read_text(&list)?))
    }

    fn config_files(&self, dir: &str, end: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.rpm.root.path(dir)).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.ends_with(end)).map(|name| format!("{dir}/{name}")).collect()
    }

    fn upgrade(&self, options: &[&str], chosen: &[Choice]) -> Command {
        let order = self.dnf().args(KEEP_METADATA).args(["-y", "--best", "upgrade"]);
        order.args(options.iter().copied()).args(chosen.iter().map(package_spec))
    }
}

/// The generation of dnf, and the name of its program. Fedora's `dnf` is a link to dnf 5,
/// and Red Hat's is a link to `dnf-3`. On a host with both, the link determines which one is used.
fn detect_generation(root: &Root) -> (Generation, &'static str) {
    let link = std::fs::read_link(root.entry("/usr/bin/dnf")).unwrap_or_default();
    let links_to_five = link.file_name().is_some_and(|name| name == "dnf5");
    if root.has_program("dnf") && !links_to_five {
        return (Generation::Dnf4, "dnf");
    }
    match links_to_five || root.has_program("dnf5") {
        true => (Generation::Dnf5, "dnf5"),
        false => (Generation::Dnf4, "dnf"),
    }
}

/// `openssl-libs-1:3.0.1-43.el9_0.noarch`, with the epoch even if it is 0: without one, dnf accepts
/// any.
fn package_spec(choice: &Choice) -> String {
    let (epoch, rest) = split_epoch(&choice.to);
    format!("{}-{epoch}:{rest}.{}", choice.name, choice.arch)
}

impl Backend for Dnf {
    fn manager(&self) -> PackageManager {
        PackageManager::Dnf
    }

    fn installed(&self) -> Result<Vec<Installed>, BackendError> {
        let holds = self.holds()?;
        let mut list = self.rpm.installed()?;
        for package in &mut list {
            package.held = holds.is_held(&package.name, &package.version, &package.arch);
        }
        Ok(list)
    }

    fn refresh(&self) -> Vec<Command> {
        vec![self.dnf().args(["-y", "--refresh", "makecache"])]
    }

    fn pending(&self, installed: &[Installed]) -> Result<Vec<Pending>, BackendError> {
        let candidates = self.candidates()?;
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        // Without `--best`, dnf skips only the updates that cannot be resolved.
        let (moves, output) = match self.preview(false, &[]) {
            Ok(answer) => answer,
            Err(BackendError::Failed { diagnosis, .. })
                if diagnosis.code == FailureCode::DependencyConflict =>
            {
                (PackageMoves::default(), String::new())
            }
            Err(other) => return Err(other),
        };
        let (holds, replacers) = (self.holds()?, parse::parse_replacers(&output));
        let mut updates = Vec::new();
        for Nevra { name, evr, arch } in &candidates {
            let Some(now) = installed_version(installed, name, arch) else { continue };
            let comes = moves.added.iter().find(|new| new.name == *name && new.arch == *arch);
            let candidate = comes.map_or(evr, |new| &new.evr);
            let mut update = Pending::new(name, arch, &now.version, candidate);
            update.blocked_by = match comes {
                Some(_) => replacers.contains(name).then_some(BlockedBy::KeptBack),
                None => {
                    let reason = holds.block_reason(name, &now.version, evr, arch);
                    Some(reason.unwrap_or(BlockedBy::KeptBack))
                }
            };
            updates.push(update);
        }
        advisory::join(&mut updates, &self.fixes()?);
        Ok(updates)
    }

    /// Without versions that are excluded or locked: dnf would not install them.
    fn offered_versions(
        &self,
        _installed: &[Installed],
        names: &BTreeSet<&str>,
    ) -> Result<Vec<OfferedVersion>, BackendError> {
        let names: Vec<&str> = names.iter().copied().filter(|name| is_plain_name(name)).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        // `repoquery` lists every version unless it is told otherwise.
        let question = [&["repoquery", "--qf", parse::FORMAT], names.as_slice()].concat();
        parse::parse_versions(&self.query(&question, "dnf repoquery")?)
    }

    fn resolve(&self, chosen: &[Choice]) -> Result<Transaction, BackendError> {
        check_plain_names(chosen)?;
        if chosen.is_empty() {
            return Ok(Transaction::default());
        }
        let specs: Vec<String> = chosen.iter().map(package_spec).collect();
        let (moves, output) = self.preview(true, &specs).map_err(|error| match error {
            BackendError::Failed { diagnosis, .. }
                if diagnosis.code == FailureCode::DependencyConflict =>
            {
                BackendError::Conflict(diagnosis.message)
            }
            other => other,
        })?;
        let transaction = Transaction {
            changes: moves.changes(),
            download_bytes: parse::parse_download_bytes(&output),
            disk_bytes: parse::parse_disk_bytes(&output),
        };
        check_complete(transaction, chosen)
    }

    fn download(&self, chosen: &[Choice]) -> Vec<Command> {
        vec![self.upgrade(&["--downloadonly"], chosen)]
    }

    fn install(&self, chosen: &[Choice]) -> Vec<Command> {
        vec![self.upgrade(&[], chosen)]
    }

    fn lock_holder(&self) -> Result<Option<LockHolder>, BackendError> {
        let path = |inside: &str| self.rpm.root.path(inside);
        let named = [
            "/var/lib/dnf/rpmdb_lock.pid",
            "/var/cache/dnf/metadata_lock.pid",
            "/var/cache/dnf/download_lock.pid",
        ];
        let by_name = named.iter().find_map(|file| lock::pid_file_holder(&path(file)));
        let locked = || lock::file_lock_holder(&path("/run/dnf/rpmtransaction.lock"));
        match by_name.or_else(locked) {
            Some(holder) => Ok(Some(holder)),
            None => self.rpm.database_writer(),
        }
    }

    fn damage(&self) -> Result<Vec<Line>, BackendError> {
        self.rpm.damage()
    }

    fn repair(&self) -> Vec<Command> {
        self.rpm.repair(|again| {
            self.dnf()
                .args(KEEP_METADATA)
                .args(["-y", "reinstall"])
                .args(again.iter().map(package_spec))
        })
    }

    fn new_config_files(&self) -> Result<Vec<PathBuf>, BackendError> {
        self.rpm.new_config_files()
    }

    fn reboot_reasons(&self, running_kernel: &str) -> Result<Vec<Line>, BackendError> {
        let installed = self.rpm.installed()?;
        let mut reasons: Vec<Line> =
            kernel::newer_kernel_reason(&installed, running_kernel).into_iter().collect();
        // It compares installation times with the boot time, which is that of the running system.
        if self.rpm.root.is_running_system() {
            let command_output =
                self.dnf().args(["-q", "-C", "needs-restarting", "-r"]).query(QUERY_TIMEOUT)?;
            let output = format!("{}\n{}", command_output.stdout, command_output.stderr);
            match parse::parse_reboot_reasons(&output) {
                Some(more) => reasons.extend(more),
                None if parse::is_unknown_command(&output) => {}
                None => return Err(self.query_error(&command_output, "dnf needs-restarting")),
            }
        }
        Ok(reasons)
    }

    fn diagnose(&self, exit: Option<i32>, output: &str) -> Diagnosis {
        let by_words = diagnose::from_output(output);
        match (exit, by_words) {
            (Some(200), _) => Diagnosis {
                code: FailureCode::PkgLockTimeout,
                message: diagnose::last_error_line(output),
            },
            (_, Some(diagnosis)) => diagnosis,
            _ => Diagnosis {
                code: FailureCode::InstallFailed,
                message: diagnose::last_error_line(output),
            },
        }
    }
}

/// Runs every parser of this back end on arbitrary text.
#[cfg(feature = "fuzzing")]
pub fn fuzz(text: &str) {
    let _ = parse::parse_candidates(text);
    let _ = (
        parse::parse_replacers(text),
        parse::parse_download_bytes(text),
        parse::parse_disk_bytes(text),
    );
    let _ = (parse::parse_reboot_reasons(text), parse::is_unknown_command(text));
    let (one, other) = text.split_at(text.floor_char_boundary(text.len() / 2));
    let fixes =
        [dnf5::parse_fixes(text).unwrap_or_default(), dnf4::parse_fixes(one, other)].concat();
    let mut pending = vec![vocab::Pending::new("bash", "x86_64", "5.2-1", "5.2-2")];
    super::rpm::advisory::join(&mut pending, &fixes);
    let _ = (dnf5::parse_moves(text), dnf4::parse_moves(text));
    super::rpm::fuzz(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(name: &str, to: &str) -> Choice {
        Choice {
            name: name.to_owned(),
            arch: "noarch".to_owned(),
            from: "1-1".to_owned(),
            to: to.to_owned(),
        }
    }

    #[test]
    fn packages_are_named_in_full_and_upgraded_only() {
        let dnf = Dnf {
            rpm: Rpm { root: Root::under("/srv/r".as_ref()), runs_inside: false },
            generation: Generation::Dnf4,
            program: "dnf",
        };
        let commands = dnf.install(&[choice("bash", "2-1"), choice("openssl-libs", "1:3-4")]);
        let line = commands[0].args.join(" ");
        assert!(line.starts_with("--installroot=/srv/r "), "{line}");
        let end = "-y --best upgrade bash-0:2-1.noarch openssl-libs-1:3-4.noarch";
        assert!(line.ends_with(end), "{line}");
        let inside = Dnf { rpm: Rpm { runs_inside: true, ..dnf.rpm.clone() }, ..dnf };
        let command = &inside.refresh()[0];
        assert_eq!(
            (command.program.as_str(), &command.args[..2]),
            ("chroot", &["/srv/r".to_owned(), "dnf".to_owned()][..])
        );
    }

    #[test]
    fn special_arguments_are_rejected_before_dnf_runs() {
        let dnf = Dnf::new(Root::under("/srv/r".as_ref()));
        for odd in ["@core", "ba*", "/tmp/x.rpm", "-y"] {
            let error = dnf.resolve(&[choice(odd, "2-1")]).unwrap_err();
            assert!(matches!(error, BackendError::Conflict(_)), "{odd}: {error}");
        }
    }

    #[test]
    fn lock_failure_is_detected_by_exit_code() {
        let dnf = Dnf::new(Root::running());
        let diagnosis = dnf.diagnose(Some(200), "Error: Failed to acquire\n");
        assert_eq!(diagnosis.code, FailureCode::PkgLockTimeout);
        assert_eq!(dnf.diagnose(None, "").code, FailureCode::InstallFailed);
    }
}
