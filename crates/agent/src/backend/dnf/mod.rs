//! dnf 4 and dnf 5: RHEL 8 to 10 and derivatives, Fedora.
//!
//! Queries use only the cache; only `refresh` and `download` use the network. Packages are named in
//! full, with epoch and architecture, and always installed by `upgrade`: it never installs a
//! package that is not present, and it does not mark a dependency as user-installed. Obsoletes are
//! disabled, because they would replace the chosen package with another; if the chosen version
//! itself obsoletes a package, that shows up as a removal.

mod answers;
mod five;
mod four;

use std::path::PathBuf;
use std::time::Duration;

use vocab::listing::{Installed, Pending};
use vocab::{BlockedBy, FailureCode, Line, PackageManager};

use super::rpm::advisory;
use super::rpm::advisory::Fix;
use super::rpm::holds;
use super::rpm::holds::{Holds, Pattern};
use super::rpm::nevra::{Nevra, split_epoch};
use super::rpm::transaction::{Moves, complete};
use super::rpm::{Rpm, installed_version, kernel, lock, only_plain_words, said};
use super::{Backend, BackendError, Choice, Diagnosis, LockHolder, Transaction};
use crate::command::{Answer, Command};
use crate::root::Root;

/// Timeout of a query: dnf rebuilds its caches when needed, which takes minutes on small hosts.
const PATIENCE: Duration = Duration::from_secs(900);

/// Options for every query and command.
const SETTINGS: [&str; 4] = [
    "--setopt=obsoletes=0",
    "--setopt=install_weak_deps=0",
    "--setopt=clean_requirements_on_remove=0",
    // The agent decides how long to wait for a lock, and reports its holder; dnf would wait
    // forever.
    "--setopt=exit_on_lock=1",
];

/// Commands use the package lists that were downloaded last, whatever their age: the versions that
/// were chosen from them are the ones that are installed.
const SAME_LISTS: [&str; 2] = ["--setopt=metadata_expire=-1", "--setopt=*.metadata_expire=-1"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Generation {
    Four,
    Five,
}

#[derive(Debug, Clone)]
pub struct Dnf {
    rpm: Rpm,
    generation: Generation,
    program: &'static str,
}

impl Dnf {
    /// Whether this system is managed with dnf: it has the program, or was created by dnf from
    /// outside.
    pub fn is_here(root: &Root) -> bool {
        root.has_program("dnf") || root.has_program("dnf5") || root.path("/etc/dnf").is_dir()
    }

    /// dnf on the system under `root`: the system's own, or the running system's with
    /// `--installroot`.
    pub fn of(root: Root) -> Dnf {
        let own = root.has_program("dnf") || root.has_program("dnf5");
        let home = if own { root.clone() } else { Root::running() };
        let (generation, program) = generation(&home);
        Dnf { rpm: Rpm::of(root, program), generation, program }
    }

    fn dnf(&self) -> Command {
        self.rpm.program(self.program, "--installroot=").args(SETTINGS)
    }

    /// A query that is answered from the cache.
    fn ask(&self, args: &[&str], what: &'static str) -> Result<String, BackendError> {
        let answer = self.dnf().args(["-q", "-C"]).args(args.iter().copied()).ask(PATIENCE)?;
        match answer.exit {
            Some(0) => Ok(answer.stdout),
            _ => Err(self.failed(&answer, what)),
        }
    }

    fn failed(&self, answer: &Answer, what: &'static str) -> BackendError {
        let said = format!("{}\n{}", answer.stdout, answer.stderr);
        BackendError::Failed { what, diagnosis: self.diagnose(answer.exit, &said) }
    }

    /// The transaction that dnf would run, and its whole output. dnf resolves it and then stops at
    /// `--assumeno`.
    fn would(&self, best: bool, specs: &[String]) -> Result<(Moves, String), BackendError> {
        let (told, best) = match (self.generation, best) {
            (Generation::Four, true) => (&["-v"][..], "--best"),
            (Generation::Four, false) => (&["-v"][..], "--nobest"),
            (Generation::Five, true) => (&[][..], "--best"),
            (Generation::Five, false) => (&[][..], "--no-best"),
        };
        let question = self.dnf().args(["-C", "--assumeno", best]).args(told.iter().copied());
        let answer = question.arg("upgrade").args(specs.iter().cloned()).ask(PATIENCE)?;
        let said = format!("{}\n{}", answer.stdout, answer.stderr);
        if answer.exit != Some(0) && !said.contains("Operation aborted") {
            return Err(self.failed(&answer, "dnf upgrade --assumeno"));
        }
        let moves = match self.generation {
            Generation::Four => self.with_downgrades(four::moves(&said))?,
            Generation::Five => five::moves(&said),
        };
        Ok((moves, said))
    }

    fn with_downgrades(
        &self,
        (mut moves, downgrades): (Moves, Vec<Nevra>),
    ) -> Result<Moves, BackendError> {
        if !downgrades.is_empty() {
            let installed = self.rpm.installed()?;
            for package in downgrades {
                let now = installed_version(&installed, &package.name, &package.arch);
                moves.goes.extend(now.map(|now| Nevra {
                    name: now.name.clone(),
                    evr: now.version.clone(),
                    arch: now.arch.clone(),
                }));
                moves.comes.push(package);
            }
        }
        Ok(moves)
    }

    fn fixes(&self) -> Result<Vec<Fix>, BackendError> {
        match self.generation {
            Generation::Four => {
                let list = self.ask(&["updateinfo", "list"], "dnf updateinfo list")?;
                let cves =
                    self.ask(&["updateinfo", "list", "--with-cve"], "dnf updateinfo list")?;
                Ok(four::fixes(&list, &cves))
            }
            Generation::Five => {
                five::fixes(&self.ask(&["advisory", "info", "--json"], "dnf advisory")?)
            }
        }
    }

    /// All available updates, including locked and excluded ones.
    fn candidates(&self) -> Result<Vec<Nevra>, BackendError> {
        let everything: &[&str] = match self.generation {
            Generation::Four => &["--disableexcludes=all", "--disableplugin=versionlock"],
            Generation::Five => &["--setopt=disable_excludes=*"],
        };
        let question = ["repoquery", "--upgrades", "--qf", answers::FORMAT];
        let args: Vec<&str> = everything.iter().chain(&question).copied().collect();
        answers::candidates(&self.ask(&args, "dnf repoquery --upgrades")?)
    }

    fn holds(&self) -> Result<Holds, BackendError> {
        let keys = ["exclude", "excludepkgs"];
        let patterns = |values: Vec<String>| values.into_iter().map(Pattern).collect::<Vec<_>>();
        let main = self.rpm.text("/etc/dnf/dnf.conf")?;
        let mut excludes = patterns(holds::ini_values(&main, |section| section == "main", &keys));
        for drop_in in self.files_of("/etc/dnf/libdnf5.conf.d", ".conf") {
            let text = self.rpm.text(&drop_in)?;
            excludes.extend(patterns(holds::ini_values(&text, |section| section == "main", &keys)));
        }
        let mut repository_excludes = Vec::new();
        for file in self.files_of("/etc/yum.repos.d", ".repo") {
            let text = self.rpm.text(&file)?;
            repository_excludes.extend(patterns(holds::ini_values(&text, |_| true, &keys)));
        }
        Ok(Holds { locks: self.locks()?, excludes, repository_excludes })
    }

    fn locks(&self) -> Result<Vec<holds::Lock>, BackendError> {
        if self.generation == Generation::Five {
            return Ok(holds::read_toml(&self.rpm.text("/etc/dnf/versionlock.toml")?));
        }
        // Without its own configuration, the plugin is not installed, and a lock list has no
        // effect.
        let plugin = self.rpm.text("/etc/dnf/plugins/versionlock.conf")?;
        let setting = |key: &str| holds::ini_values(&plugin, |_| true, &[key]).into_iter().next();
        let off = |word: String| ["0", "no", "false"].contains(&word.to_ascii_lowercase().as_str());
        if plugin.is_empty() || setting("enabled").is_some_and(off) {
            return Ok(Vec::new());
        }
        let list =
            setting("locklist").unwrap_or_else(|| "/etc/dnf/plugins/versionlock.list".to_owned());
        Ok(holds::read_list(&self.rpm.text(&list)?))
    }

    fn files_of(&self, dir: &str, end: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.rpm.root.path(dir)).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.ends_with(end)).map(|name| format!("{dir}/{name}")).collect()
    }

    fn upgrade(&self, options: &[&str], chosen: &[Choice]) -> Command {
        let order = self.dnf().args(SAME_LISTS).args(["-y", "--best", "upgrade"]);
        order.args(options.iter().copied()).args(chosen.iter().map(spec))
    }
}

/// The generation of dnf, and the name of its program. Fedora's `dnf` is a link to dnf 5, Red Hat's
/// one to `dnf-3`; on a host with both, the link decides.
fn generation(root: &Root) -> (Generation, &'static str) {
    let link = std::fs::read_link(root.entry("/usr/bin/dnf")).unwrap_or_default();
    let links_to_five = link.file_name().is_some_and(|name| name == "dnf5");
    if root.has_program("dnf") && !links_to_five {
        return (Generation::Four, "dnf");
    }
    match links_to_five || root.has_program("dnf5") {
        true => (Generation::Five, "dnf5"),
        false => (Generation::Four, "dnf"),
    }
}

/// `openssl-libs-1:3.0.1-43.el9_0.noarch`, with the epoch even if it is 0: without one, dnf accepts
/// any.
fn spec(choice: &Choice) -> String {
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
            package.held = holds.hold(&package.name, &package.version, &package.arch);
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
        // Without `--best`, updates that cannot be resolved are left out and the others are not.
        let (moves, said) = match self.would(false, &[]) {
            Ok(answer) => answer,
            Err(BackendError::Failed { diagnosis, .. })
                if diagnosis.code == FailureCode::DependencyConflict =>
            {
                (Moves::default(), String::new())
            }
            Err(other) => return Err(other),
        };
        let (holds, replacers) = (self.holds()?, answers::replacers(&said));
        let mut updates = Vec::new();
        for Nevra { name, evr, arch } in &candidates {
            let Some(now) = installed_version(installed, name, arch) else { continue };
            let comes = moves.comes.iter().find(|new| new.name == *name && new.arch == *arch);
            let candidate = comes.map_or(evr, |new| &new.evr);
            let mut update = Pending::new(name, arch, &now.version, candidate);
            update.blocked_by = match comes {
                Some(_) => replacers.contains(name).then_some(BlockedBy::KeptBack),
                None => {
                    let reason = holds.reason(name, &now.version, evr, arch);
                    Some(reason.unwrap_or(BlockedBy::KeptBack))
                }
            };
            updates.push(update);
        }
        advisory::join(&mut updates, &self.fixes()?);
        Ok(updates)
    }

    fn resolve(&self, chosen: &[Choice]) -> Result<Transaction, BackendError> {
        only_plain_words(chosen)?;
        if chosen.is_empty() {
            return Ok(Transaction::default());
        }
        let specs: Vec<String> = chosen.iter().map(spec).collect();
        let (moves, said) = self.would(true, &specs).map_err(|error| match error {
            BackendError::Failed { diagnosis, .. }
                if diagnosis.code == FailureCode::DependencyConflict =>
            {
                BackendError::Conflict(diagnosis.message)
            }
            other => other,
        })?;
        let transaction = Transaction {
            changes: moves.changes(),
            download_bytes: answers::download_bytes(&said),
            disk_bytes: answers::disk_bytes(&said),
        };
        complete(transaction, chosen)
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
        let by_name = named.iter().find_map(|file| lock::of_pid_file(&path(file)));
        let locked = || lock::of_record(&path("/run/dnf/rpmtransaction.lock"));
        match by_name.or_else(locked) {
            Some(holder) => Ok(Some(holder)),
            None => self.rpm.writer(),
        }
    }

    fn damage(&self) -> Result<Vec<Line>, BackendError> {
        self.rpm.damage()
    }

    fn repair(&self) -> Vec<Command> {
        self.rpm.repair(|again| {
            self.dnf().args(SAME_LISTS).args(["-y", "reinstall"]).args(again.iter().map(spec))
        })
    }

    fn set_aside(&self) -> Result<Vec<PathBuf>, BackendError> {
        self.rpm.set_aside()
    }

    fn reboot_reasons(&self, running_kernel: &str) -> Result<Vec<Line>, BackendError> {
        let installed = self.rpm.installed()?;
        let mut reasons: Vec<Line> =
            kernel::newer_than_running(&installed, running_kernel).into_iter().collect();
        // It compares installation times with the boot time, which is that of the running system.
        if self.rpm.root.is_running_system() {
            let answer = self.dnf().args(["-q", "-C", "needs-restarting", "-r"]).ask(PATIENCE)?;
            let said = format!("{}\n{}", answer.stdout, answer.stderr);
            match answers::reboot(&said) {
                Some(more) => reasons.extend(more),
                None if answers::is_unknown_command(&said) => {}
                None => return Err(self.failed(&answer, "dnf needs-restarting")),
            }
        }
        Ok(reasons)
    }

    fn diagnose(&self, exit: Option<i32>, said: &str) -> Diagnosis {
        let by_words = said::by_words(said);
        match (exit, by_words) {
            (Some(200), _) => {
                Diagnosis { code: FailureCode::PkgLockTimeout, message: said::last_complaint(said) }
            }
            (_, Some(diagnosis)) => diagnosis,
            _ => {
                Diagnosis { code: FailureCode::InstallFailed, message: said::last_complaint(said) }
            }
        }
    }
}

/// Runs every parser of this back end on arbitrary text.
#[cfg(feature = "fuzzing")]
pub fn fuzz(text: &str) {
    let _ = answers::candidates(text);
    let _ = (answers::replacers(text), answers::download_bytes(text), answers::disk_bytes(text));
    let _ = (answers::reboot(text), answers::is_unknown_command(text));
    let (one, other) = text.split_at(text.floor_char_boundary(text.len() / 2));
    let fixes = [five::fixes(text).unwrap_or_default(), four::fixes(one, other)].concat();
    let mut pending = vec![vocab::Pending::new("bash", "x86_64", "5.2-1", "5.2-2")];
    super::rpm::advisory::join(&mut pending, &fixes);
    let _ = (five::moves(text), four::moves(text));
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
            rpm: Rpm { root: Root::under("/srv/r".as_ref()), inside: false },
            generation: Generation::Four,
            program: "dnf",
        };
        let commands = dnf.install(&[choice("bash", "2-1"), choice("openssl-libs", "1:3-4")]);
        let line = commands[0].args.join(" ");
        assert!(line.starts_with("--installroot=/srv/r "), "{line}");
        let end = "-y --best upgrade bash-0:2-1.noarch openssl-libs-1:3-4.noarch";
        assert!(line.ends_with(end), "{line}");
        let inside = Dnf { rpm: Rpm { inside: true, ..dnf.rpm.clone() }, ..dnf };
        let command = &inside.refresh()[0];
        assert_eq!(
            (command.program.as_str(), &command.args[..2]),
            ("chroot", &["/srv/r".to_owned(), "dnf".to_owned()][..])
        );
    }

    #[test]
    fn special_arguments_are_rejected_before_dnf_runs() {
        let dnf = Dnf::of(Root::under("/srv/r".as_ref()));
        for odd in ["@core", "ba*", "/tmp/x.rpm", "-y"] {
            let error = dnf.resolve(&[choice(odd, "2-1")]).unwrap_err();
            assert!(matches!(error, BackendError::Conflict(_)), "{odd}: {error}");
        }
    }

    #[test]
    fn lock_failure_is_detected_by_exit_code() {
        let dnf = Dnf::of(Root::running());
        let diagnosis = dnf.diagnose(Some(200), "Error: Failed to acquire\n");
        assert_eq!(diagnosis.code, FailureCode::PkgLockTimeout);
        assert_eq!(dnf.diagnose(None, "").code, FailureCode::InstallFailed);
    }
}
