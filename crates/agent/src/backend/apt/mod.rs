//! Debian, Ubuntu and derivatives: dpkg and apt-get, always those of the managed system.
//!
//! Listing installed and damaged packages starts no process (`status`). Listing pending updates
//! starts three, regardless of the number of packages, and none if nothing has changed
//! (`query_cache`). Resolving an order for named packages starts one (`preview`). `query` runs the
//! queries; `parse`, `policy` and `diagnose` parse their output; `system` inspects files and locks.

mod diagnose;
mod parse;
mod policy;
mod preview;
mod query;
mod query_cache;
mod status;
mod system;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use vocab::listing::{Installed, Pending};
use vocab::{Line, PackageManager};

use super::{Backend, BackendError, Choice, Diagnosis, LockHolder, OfferedVersion, Transaction};
use crate::command::Command;
use crate::root::Root;
use query_cache::QueryCache;

/// How long apt-get itself waits for the lock.
const LOCK_TIMEOUT_OPTION: &str = "DPkg::Lock::Timeout=600";
/// Maximum length of one argument; the kernel's limit is 131,072.
const ARGUMENT_BYTES_MAX: usize = 100_000;
/// Only upgrade installed packages, and take names literally.
const INSTALL_EXACT: [&str; 4] = ["--only-upgrade", "-o", "APT::Cmd::Pattern-Only=true", "install"];
/// Keep edited configuration files, and store new versions next to them.
const KEEP_CONFFILES: [&str; 2] = ["--force-confdef", "--force-confold"];

#[derive(Debug)]
pub struct Apt {
    root: Root,
    cache: Mutex<QueryCache>,
}

/// Name, architecture and version of a package.
type PackageKey = (String, String, String);

impl Apt {
    pub fn new(root: Root) -> Apt {
        Apt { root, cache: Mutex::default() }
    }

    /// apt-get for commands that change the system or download for it: no prompt, nothing removed,
    /// no recommended packages, edited configuration kept.
    fn apt_get(&self, options: &[&str]) -> Command {
        let command = unattended(self.root.command("apt-get"));
        let keep = KEEP_CONFFILES.map(|option| format!("Dpkg::Options::={option}"));
        command
            .args(["-q", "-y", "--no-remove", "--no-install-recommends"])
            .args([
                "-o",
                LOCK_TIMEOUT_OPTION,
                "-o",
                "Dpkg::Use-Pty=0",
                "-o",
                &keep[0],
                "-o",
                &keep[1],
            ])
            .args(["-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=30"])
            .args(["-o", "Acquire::https::Timeout=30"])
            .args(options.iter().copied())
    }

    /// Hooks that restore the auto-installed marks of packages: `apt-get install` removes the mark
    /// from everything that it is asked to install. apt's own hook runs even if a script fails or
    /// the agent is killed; a separate command afterwards would not.
    fn auto_marks(&self, chosen: &[Choice]) -> Vec<String> {
        let text = system::read_file(&self.root, "/var/lib/apt/extended_states");
        let marked: BTreeSet<String> = text
            .ok()
            .flatten()
            .map(|text| parse::auto_marked(&text))
            .into_iter()
            .flatten()
            .collect();
        let marks = chosen.iter().filter(|choice| is_valid_choice(choice));
        let marks = marks.map(|choice| format!("{}:{}", choice.name, native_if_all(&choice.arch)));
        let mut hooks: Vec<String> = Vec::new();
        for name in marks.filter(|name| marked.contains(name)) {
            match hooks.last_mut() {
                Some(hook) if hook.len() + name.len() < ARGUMENT_BYTES_MAX => {
                    hook.push(' ');
                    hook.push_str(&name);
                }
                _ => hooks.push(format!("DPkg::Post-Invoke::=apt-mark auto {name}")),
            }
        }
        hooks.into_iter().flat_map(|hook| ["-o".to_owned(), hook]).collect()
    }

    /// A simulation of an order. It takes no lock, so it can run at any time.
    fn simulation_command(&self, options: &[&str]) -> Command {
        unattended(self.root.command("apt-get")).args(options.iter().copied()).args([
            "--no-remove",
            "--no-install-recommends",
            "-o",
            "Debug::NoLocking=1",
        ])
    }
}

impl Backend for Apt {
    fn manager(&self) -> PackageManager {
        PackageManager::Apt
    }

    fn load_cache(&self, cache: &[u8]) {
        // If the cache cannot be parsed, the queries run again.
        if let Ok(cache) = serde_json::from_slice(cache) {
            *self.cache.lock().unwrap_or_else(PoisonError::into_inner) = cache;
        }
    }

    fn take_changed_cache(&self) -> Option<Vec<u8>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::take(&mut cache.is_dirty) {
            return None;
        }
        serde_json::to_vec(&*cache).ok()
    }

    fn installed(&self) -> Result<Vec<Installed>, BackendError> {
        let mut installed = self.installed_packages()?;
        self.add_origins(&mut installed);
        Ok(installed)
    }

    fn installed_versions(&self) -> Result<Vec<Installed>, BackendError> {
        self.installed_packages()
    }

    fn refresh(&self) -> Vec<Command> {
        // A source that fails must be an error, not a warning with exit code 0.
        vec![self.apt_get(&["-o", "APT::Update::Error-Mode=any", "update"])]
    }

    fn pending(&self, installed: &[Installed]) -> Result<Vec<Pending>, BackendError> {
        self.all_pending(installed)
    }

    fn pending_for(
        &self,
        installed: &[Installed],
        names: &BTreeSet<&str>,
        security: bool,
    ) -> Result<Vec<Pending>, BackendError> {
        match self.preview_named(installed, names, security)? {
            Some(offered) => Ok(offered),
            None => self.all_pending(installed),
        }
    }

    fn offered_versions(
        &self,
        installed: &[Installed],
        names: &BTreeSet<&str>,
    ) -> Result<Vec<OfferedVersion>, BackendError> {
        self.versions_in_sources(installed, names)
    }

    fn resolve(&self, chosen: &[Choice]) -> Result<Transaction, BackendError> {
        self.transaction(chosen)
    }

    fn download(&self, chosen: &[Choice]) -> Vec<Command> {
        vec![self.apt_get(&["--download-only"]).args(install_args(chosen))]
    }

    fn downloads_on_install(&self) -> bool {
        true
    }

    fn install(&self, chosen: &[Choice]) -> Vec<Command> {
        vec![self.apt_get(&[]).args(self.auto_marks(chosen)).args(install_args(chosen))]
    }

    fn lock_holder(&self) -> Result<Option<LockHolder>, BackendError> {
        system::lock_holder(&self.root)
    }

    fn damage(&self) -> Result<Vec<Line>, BackendError> {
        if let Some(packages) = status::read_packages(&self.root)? {
            return Ok(status::damage(&packages));
        }
        // It exits with 1 if it finds something, but older versions with 0.
        let output = self.run_query(&self.root.command("dpkg").arg("--audit"))?;
        if !matches!(output.exit, Some(0 | 1)) {
            let diagnosis = self.diagnose(output.exit, &output.stderr);
            return Err(BackendError::Failed { what: "dpkg --audit", diagnosis });
        }
        let mut damage = parse::parse_audit(&output.stdout);
        if damage.is_empty() && system::is_interrupted(&self.root)? {
            damage.push("dpkg was interrupted while writing its database".into());
        }
        Ok(damage)
    }

    fn repair(&self) -> Vec<Command> {
        let dpkg = unattended(self.root.command("dpkg")).args(KEEP_CONFFILES);
        let mut commands =
            vec![dpkg.args(["--configure", "-a"]), self.apt_get(&["--fix-broken", "install"])];
        // Neither of them repairs a package whose unpacking was interrupted: dpkg requires that it
        // is unpacked again.
        let messed = self.to_reinstall();
        if !messed.is_empty() {
            let again = self.apt_get(&["--reinstall"]).args(self.auto_marks(&messed));
            commands.push(again.args(install_args_by_name(&messed)));
        }
        commands
    }

    fn new_config_files(&self) -> Result<Vec<PathBuf>, BackendError> {
        system::new_config_files(&self.root)
    }

    fn reboot_reasons(&self, running_kernel: &str) -> Result<Vec<Line>, BackendError> {
        // Installed kernels matter only if the running kernel belongs to this system.
        let installed =
            if running_kernel.is_empty() { Vec::new() } else { self.installed_packages()? };
        system::reboot_reasons(&self.root, running_kernel, &installed)
    }

    fn diagnose(&self, exit: Option<i32>, output: &str) -> Diagnosis {
        diagnose::diagnose(exit, output)
    }
}

/// Adds the environment that keeps debconf, needrestart, apt-listchanges and ucf from prompting.
fn unattended(command: Command) -> Command {
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("NEEDRESTART_MODE", "l")
        .env("APT_LISTCHANGES_FRONTEND", "none")
        .env("UCF_FORCE_CONFFOLD", "1")
}

/// `install NAME:ARCH=VERSION…`, with every other interpretation of a name disabled: as a pattern,
/// or as a package that is not installed.
fn install_args(chosen: &[Choice]) -> Vec<String> {
    let exact = |choice: &Choice| format!("{}:{}={}", choice.name, choice.arch, choice.to);
    let exact = chosen.iter().filter(|choice| is_valid_choice(choice)).map(exact);
    INSTALL_EXACT.into_iter().map(str::to_owned).chain(exact).collect()
}

/// Like [`install_args`], in the version that the host's own sources and pins prefer: the installed
/// version may be gone from the archive, and is half replaced anyway.
fn install_args_by_name(chosen: &[Choice]) -> Vec<String> {
    let named = |choice: &Choice| format!("{}:{}", choice.name, native_if_all(&choice.arch));
    let named = chosen.iter().filter(|choice| is_valid_choice(choice)).map(named);
    INSTALL_EXACT.into_iter().map(str::to_owned).chain(named).collect()
}

/// Whether name, architecture and version contain only characters that Debian allows. This does not
/// check whether the package is installed; it keeps options and paths out of every command line.
fn is_valid_choice(choice: &Choice) -> bool {
    let made_of = |text: &str, more: &str| {
        text.starts_with(|first: char| first.is_ascii_alphanumeric())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
    };
    // apt-get interprets an argument that ends in `-` as a removal. No version ends in `-`.
    let version = made_of(&choice.to, ".+~:-") && !choice.to.ends_with('-');
    made_of(&choice.name, "+.-") && made_of(&choice.arch, "-") && version
}

fn simulated_changes(output: &str) -> Result<Vec<super::Change>, BackendError> {
    let unreadable = |why| BackendError::Unreadable { what: "apt-get -s".to_owned(), why };
    parse::parse_simulation(output, native_arch()).map_err(unreadable)
}

fn package_key(package: &Installed) -> PackageKey {
    (package.name.clone(), package.arch.clone(), package.version.clone())
}

/// The spelling for apt-cache. Packages for all architectures count as native.
fn qualified_name(package: &Installed) -> String {
    match package.arch.as_str() {
        "all" | "" => package.name.clone(),
        arch => format!("{}:{arch}", package.name),
    }
}

/// The architecture that apt assigns to a package. `all` counts as native, and a package may switch
/// between `all` and a specific architecture from one version to the next.
fn native_if_all(arch: &str) -> String {
    match arch {
        "all" => native_arch().to_owned(),
        arch => arch.to_owned(),
    }
}

/// The native architecture in Debian's naming. The agent is built for it.
fn native_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "i386",
        "arm" => "armhf",
        "powerpc64" => "ppc64el",
        other => other,
    }
}

/// Runs every parser of this back end on arbitrary text.
#[cfg(feature = "fuzzing")]
pub fn fuzz(text: &str) {
    let releases = policy::Releases::parse(text);
    if let Ok(installed) = parse::parse_installed(text) {
        for (known, package) in policy::parse_policy(text).iter().zip(&installed) {
            let _ = known.pending(package, &releases);
            let _ = known.origin(&package.version, &releases);
        }
    }
    for known in policy::parse_policy(text) {
        let _ = known.pending(&Installed::new("bash", "5.2-1", "amd64"), &releases);
        let _ = (known.is_phased(), known.origin("5.2-1", &releases));
    }
    let _ = parse::parse_simulation(text, "amd64");
    let _ = preview::parse_preview(text, "amd64", |name| name.len() % 2 == 0);
    let _ = (parse::total_download_bytes(text), parse::disk_bytes(text));
    let _ = (parse::parse_audit(text), parse::auto_marked(text));
    let _ = (diagnose::diagnose(Some(100), text), diagnose::conflict_message(text));
    status::fuzz(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(name: &str, to: &str) -> Choice {
        let arch = "amd64".to_owned();
        Choice { name: name.to_owned(), arch, from: "1".to_owned(), to: to.to_owned() }
    }

    #[test]
    fn only_exact_names_and_versions_reach_the_command_line() {
        let hostile = [
            choice("bash-", "2"),
            choice("/tmp/x.deb", "2"),
            choice("?upgradable", "2"),
            choice("standard^", "2"),
            choice("-oDPkg::Pre-Invoke::=x", "2"),
            choice("bash", "2 other=3"),
            choice("bash", "2/stable"),
            choice("bash", "2-"),
            choice("", "2"),
        ];
        // A name may end in `-`, but followed by an architecture and a version it is only a name.
        assert_eq!(install_args(&hostile)[4..], ["bash-:amd64=2"]);
        let apt = Apt::new(Root::running());
        let command = &apt.install(&[choice("libstdc++6", "1:2.0~rc1-1")])[0];
        assert_eq!(command.args.last().map(String::as_str), Some("libstdc++6:amd64=1:2.0~rc1-1"));
        for needed in ["--no-remove", "--only-upgrade", "APT::Cmd::Pattern-Only=true"] {
            assert!(command.args.iter().any(|arg| arg == needed), "{needed}");
        }
    }
}
