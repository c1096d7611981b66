//! Debian, Ubuntu and their kin: dpkg and apt-get, always the managed system's own.
//!
//! Whatever is asked takes a fixed number of processes, however many packages there are: one for what is
//! installed, three for what is pending, two to resolve. `read`, `policy` and `diagnose` understand the
//! answers; `system` looks at files and locks.

mod diagnose;
mod policy;
mod read;
mod system;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use vocab::listing::{Installed, Pending};
use vocab::{BlockedBy, Line, PackageManager};

use super::{Backend, BackendError, Choice, Diagnosis, LockHolder, Transaction};
use crate::command::{Answer, Command};
use crate::root::Root;
use policy::Releases;

/// How long dpkg and apt may take to answer a question. Lists of a slow machine take their time.
const PATIENCE: Duration = Duration::from_secs(180);
/// How long apt-get waits for someone else's lock by itself.
const LOCK_SECONDS: &str = "DPkg::Lock::Timeout=600";
/// How many packages are asked about at once, so that their names stay below the kernel's limit for
/// the arguments of a process.
const NAMES_MAX: usize = 10_000;
/// The most bytes of one argument; the kernel's limit is 131,072.
const ARGUMENT_BYTES_MAX: usize = 100_000;
/// Of how many updates that apt keeps back it is asked whether they could come without the others.
const BYSTANDERS_MAX: usize = 20;
/// Only what is there, and a name is nothing but a name.
const EXACTLY: [&str; 4] = ["--only-upgrade", "-o", "APT::Cmd::Pattern-Only=true", "install"];
/// Edited configuration is kept, and what a package brings is put beside it.
const KEEP_EDITED: [&str; 2] = ["--force-confdef", "--force-confold"];

/// apt on the system under one root.
#[derive(Debug)]
pub struct Apt {
    root: Root,
    /// Where each package came from that was asked about: to ask takes a hundred times as long as to
    /// list what is installed, and the answer for a version does not change.
    origins: Mutex<BTreeMap<Key, Option<String>>>,
}

/// A version of a package.
type Key = (String, String, String);

impl Apt {
    /// The one of a system.
    pub fn new(root: Root) -> Apt {
        Apt { root, origins: Mutex::new(BTreeMap::new()) }
    }

    fn ask(&self, command: &Command) -> Result<Answer, BackendError> {
        Ok(command.ask(PATIENCE)?)
    }

    /// What a question was answered with that ended well.
    fn answer(&self, command: &Command, what: &'static str) -> Result<String, BackendError> {
        let answer = self.ask(command)?;
        if answer.exit == Some(0) {
            return Ok(answer.stdout);
        }
        let said = format!("{}{}", answer.stdout, answer.stderr);
        Err(BackendError::Failed { what, diagnosis: self.diagnose(answer.exit, &said) })
    }

    /// What is installed, without where it came from.
    fn listed(&self) -> Result<Vec<Installed>, BackendError> {
        let query = self.root.inside("dpkg-query").args(["-W", read::FORMAT]);
        let said = self.answer(&query, "dpkg-query")?;
        let unreadable = |why| BackendError::Unreadable { what: "dpkg-query".to_owned(), why };
        read::installed(&said).map_err(unreadable)
    }

    /// What apt knows of these packages, each beside its own.
    fn known<'a>(
        &self,
        installed: &[&'a Installed],
    ) -> Result<Vec<(&'a Installed, policy::Known)>, BackendError> {
        let mut by_name: BTreeMap<String, &Installed> = BTreeMap::new();
        for package in installed {
            by_name.insert(spelled(package), package);
        }
        let names: Vec<&String> = by_name.keys().collect();
        let mut known = Vec::with_capacity(names.len());
        for names in names.chunks(NAMES_MAX) {
            let names = names.iter().map(|name| name.as_str());
            let ask = self.root.inside("apt-cache").arg("policy").args(names);
            for package in policy::read(&self.answer(&ask, "apt-cache policy")?) {
                // It leaves the machine's own architecture unsaid.
                let mine = [package.name.clone(), format!("{}:{}", package.name, native())];
                if let Some(installed) = mine.iter().find_map(|name| by_name.get(name)) {
                    known.push((*installed, package));
                }
            }
        }
        Ok(known)
    }

    fn releases(&self) -> Result<Releases, BackendError> {
        let ask = self.root.inside("apt-cache").arg("policy");
        Ok(Releases::read(&self.answer(&ask, "apt-cache policy")?))
    }

    /// Adds where packages came from, as far as apt knows. That it does not know, or does not answer, is
    /// no reason to hide what is installed.
    fn add_origins(&self, installed: &mut [Installed]) {
        let mut origins = self.origins.lock().unwrap_or_else(PoisonError::into_inner);
        let new: Vec<&Installed> =
            installed.iter().filter(|package| !origins.contains_key(&key(package))).collect();
        if !new.is_empty()
            && let (Ok(releases), Ok(known)) = (self.releases(), self.known(&new))
        {
            let nothing = new.iter().map(|package| (key(package), None));
            let found = known
                .iter()
                .map(|(package, known)| (key(package), known.origin(&package.version, &releases)));
            let learned: BTreeMap<Key, Option<String>> = nothing.chain(found).collect();
            origins.extend(learned);
        }
        let there: BTreeSet<Key> = installed.iter().map(key).collect();
        origins.retain(|key, _| there.contains(key));
        for package in installed {
            package.origin = origins.get(&key(package)).cloned().flatten();
        }
    }

    /// apt-get for something that changes the system or fetches for it: no prompt, nothing removed,
    /// nothing that is only recommended, edited configuration kept.
    fn apt_get(&self, options: &[&str]) -> Command {
        let command = unattended(self.root.inside("apt-get"));
        let keep = KEEP_EDITED.map(|option| format!("Dpkg::Options::={option}"));
        command
            .args(["-q", "-y", "--no-remove", "--no-install-recommends"])
            .args(["-o", LOCK_SECONDS, "-o", "Dpkg::Use-Pty=0", "-o", &keep[0], "-o", &keep[1]])
            .args(["-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=30"])
            .args(["-o", "Acquire::https::Timeout=30"])
            .args(options.iter().copied())
    }

    /// Hooks that give packages their auto marks back: `apt-get install` takes the mark from everything
    /// that it is told to install. A hook of apt's own runs also if a script fails or the agent is
    /// killed, which a command of ours after it would not.
    fn auto_marks(&self, chosen: &[Choice]) -> Vec<String> {
        let text = system::read(&self.root, "/var/lib/apt/extended_states");
        let marked: BTreeSet<String> = text
            .ok()
            .flatten()
            .map(|text| read::auto_marked(&text))
            .into_iter()
            .flatten()
            .collect();
        let marks = chosen.iter().filter(|choice| is_sound(choice));
        let marks = marks.map(|choice| format!("{}:{}", choice.name, at_home(&choice.arch)));
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

    /// A simulation of an order. It takes no lock, so it may be asked at any time.
    fn simulated(&self, options: &[&str], chosen: &[Choice]) -> Command {
        unattended(self.root.inside("apt-get"))
            .args(options.iter().copied())
            .args(["--no-remove", "--no-install-recommends", "-o", "Debug::NoLocking=1"])
            .args(to_install(chosen))
    }

    /// The names of those that `apt-get upgrade` would update if it may also install what is new but
    /// remove nothing: exactly what an order may do.
    fn upgradable(&self) -> Result<BTreeSet<(String, String)>, BackendError> {
        let ask = self.root.inside("apt-get");
        let ask = ask.args(["-s", "-o", "Debug::NoLocking=1", "--with-new-pkgs", "upgrade"]);
        let said = self.answer(&ask, "apt-get -s upgrade")?;
        let changes = simulation(&said)?;
        Ok(changes.into_iter().map(|change| (change.name, at_home(&change.arch))).collect())
    }
}

impl Apt {
    /// What dpkg says must be installed again.
    fn messed(&self) -> Vec<Choice> {
        let format = "-f=${Package}\\t${Architecture}\\t${Version}\\t${db:Status-Eflag}\\n";
        let ask = self.root.inside("dpkg-query").args(["-W", format]);
        let said = self.answer(&ask, "dpkg-query").unwrap_or_default();
        let messed = said.lines().filter_map(|line| {
            let [name, arch, version, "reinstreq"] = line.split('\t').collect::<Vec<_>>()[..]
            else {
                return None;
            };
            let [name, arch, from, to] = [name, arch, version, version].map(str::to_owned);
            Some(Choice { name, arch, from, to })
        });
        messed.collect()
    }

    /// `apt-get upgrade` also keeps back what only another update, itself kept back, does not get on with. Whoever
    /// could come alone, and together with all who come, is not kept back.
    fn free_bystanders(&self, found: &mut [(Pending, bool)]) {
        let comes = |update: &Pending| update.blocked_by.is_none();
        let mut all: Vec<Choice> =
            found.iter().map(|(update, _)| update).filter(|u| comes(u)).map(choice).collect();
        let kept = found.iter_mut().map(|(update, _)| update);
        let kept = kept.filter(|update| update.blocked_by == Some(BlockedBy::KeptBack));
        for update in kept.take(BYSTANDERS_MAX) {
            all.push(choice(update));
            let answer = self.ask(&self.simulated(&["-s"], &all));
            if answer.is_ok_and(|answer| answer.exit == Some(0)) {
                update.blocked_by = None;
            } else {
                all.pop();
            }
        }
    }
}

fn choice(update: &Pending) -> Choice {
    Choice {
        name: update.name.clone(),
        arch: update.arch.clone(),
        from: update.installed.clone(),
        to: update.candidate.clone(),
    }
}

impl Backend for Apt {
    fn manager(&self) -> PackageManager {
        PackageManager::Apt
    }

    fn installed(&self) -> Result<Vec<Installed>, BackendError> {
        let mut installed = self.listed()?;
        self.add_origins(&mut installed);
        Ok(installed)
    }

    fn versions(&self) -> Result<Vec<Installed>, BackendError> {
        self.listed()
    }

    fn refresh(&self) -> Vec<Command> {
        // Any source that does not answer is an error, not a warning with exit code 0.
        vec![self.apt_get(&["-o", "APT::Update::Error-Mode=any", "update"])]
    }

    fn pending(&self, installed: &[Installed]) -> Result<Vec<Pending>, BackendError> {
        let releases = self.releases()?;
        let known = self.known(&installed.iter().collect::<Vec<_>>())?;
        let mut found: Vec<(Pending, bool)> = known
            .iter()
            .filter_map(|(package, known)| {
                Some((known.pending(package, &releases)?, known.is_phased()))
            })
            .collect();
        if found.iter().any(|(update, _)| update.blocked_by.is_none()) {
            // While the database is damaged apt-get answers nothing here. `damage` tells of that, and
            // what is pending is still worth knowing.
            if let Ok(upgradable) = self.upgradable() {
                let may = |update: &Pending| {
                    upgradable.contains(&(update.name.clone(), at_home(&update.arch)))
                };
                for (update, is_phased) in &mut found {
                    if update.blocked_by.is_none() && !may(update) {
                        let phased = is_phased.then_some(BlockedBy::Phased);
                        update.blocked_by = phased.or(Some(BlockedBy::KeptBack));
                    }
                }
                self.free_bystanders(&mut found);
            }
        }
        let mut pending: Vec<Pending> = found.into_iter().map(|(update, _)| update).collect();
        vocab::listing::sort(&mut pending);
        Ok(pending)
    }

    fn resolve(&self, chosen: &[Choice]) -> Result<Transaction, BackendError> {
        let there: BTreeSet<Key> = self.listed()?.iter().map(key).collect();
        for choice in chosen {
            let key = (choice.name.clone(), choice.arch.clone(), choice.from.clone());
            if !is_sound(choice) || !there.contains(&key) {
                let (name, from) = (&choice.name, &choice.from);
                let words = format!("{name} is not installed at version {from}");
                return Err(BackendError::Conflict(Line::made_of(&words)));
            }
        }
        let answer = self.ask(&self.simulated(&["-s"], chosen))?;
        if answer.exit != Some(0) {
            let said = format!("{}{}", answer.stdout, answer.stderr);
            return Err(BackendError::Conflict(diagnose::conflict(&said)));
        }
        let changes = simulation(&answer.stdout)?;
        // The sizes are worth a second question, not a failure: what is missing shows when it is fetched.
        let sizes = self.ask(&self.simulated(&["--print-uris"], chosen))?;
        let known = sizes.exit == Some(0);
        Ok(Transaction {
            changes,
            download_bytes: known.then(|| read::bytes_to_fetch(&sizes.stdout)),
            disk_bytes: read::disk_bytes(&sizes.stdout).filter(|_| known),
        })
    }

    fn download(&self, chosen: &[Choice]) -> Vec<Command> {
        vec![self.apt_get(&["--download-only"]).args(to_install(chosen))]
    }

    fn install(&self, chosen: &[Choice]) -> Vec<Command> {
        vec![self.apt_get(&[]).args(self.auto_marks(chosen)).args(to_install(chosen))]
    }

    fn lock_holder(&self) -> Result<Option<LockHolder>, BackendError> {
        system::lock_holder(&self.root)
    }

    fn damage(&self) -> Result<Vec<Line>, BackendError> {
        // It ends with 1 if it finds something, and did not always.
        let answer = self.ask(&self.root.inside("dpkg").arg("--audit"))?;
        if !matches!(answer.exit, Some(0 | 1)) {
            let diagnosis = self.diagnose(answer.exit, &answer.stderr);
            return Err(BackendError::Failed { what: "dpkg --audit", diagnosis });
        }
        let mut damage = read::audit(&answer.stdout);
        if damage.is_empty() && system::is_interrupted(&self.root)? {
            damage.push("dpkg was interrupted while it wrote its database".into());
        }
        Ok(damage)
    }

    fn repair(&self) -> Vec<Command> {
        let dpkg = unattended(self.root.inside("dpkg")).args(KEEP_EDITED);
        let mut commands =
            vec![dpkg.args(["--configure", "-a"]), self.apt_get(&["--fix-broken", "install"])];
        // What was cut off while it was unpacked neither of them mends: dpkg wants it unpacked again.
        let messed = self.messed();
        if !messed.is_empty() {
            let again = self.apt_get(&["--reinstall"]).args(self.auto_marks(&messed));
            commands.push(again.args(by_name(&messed)));
        }
        commands
    }

    fn set_aside(&self) -> Result<Vec<PathBuf>, BackendError> {
        system::set_aside(&self.root)
    }

    fn reboot_reasons(&self, running_kernel: &str) -> Result<Vec<Line>, BackendError> {
        // Kernels that are installed only matter to a kernel that runs.
        let installed = if running_kernel.is_empty() { Vec::new() } else { self.listed()? };
        system::reboot_reasons(&self.root, running_kernel, &installed)
    }

    fn diagnose(&self, exit: Option<i32>, said: &str) -> Diagnosis {
        diagnose::diagnose(exit, said)
    }
}

/// With what keeps packages from asking: debconf, needrestart, apt-listchanges and ucf.
fn unattended(command: Command) -> Command {
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("NEEDRESTART_MODE", "l")
        .env("APT_LISTCHANGES_FRONTEND", "none")
        .env("UCF_FORCE_CONFFOLD", "1")
}

/// `install NAME:ARCH=VERSION…`, with every other way switched off in which apt-get could understand a
/// name: as a pattern, or as something to install that is not there.
fn to_install(chosen: &[Choice]) -> Vec<String> {
    let exact = |choice: &Choice| format!("{}:{}={}", choice.name, choice.arch, choice.to);
    let exact = chosen.iter().filter(|choice| is_sound(choice)).map(exact);
    EXACTLY.into_iter().map(str::to_owned).chain(exact).collect()
}

/// The same in whichever version the host's own sources and pins prefer: the one that was there may be gone
/// from the archive, and is half replaced anyway.
fn by_name(chosen: &[Choice]) -> Vec<String> {
    let named = |choice: &Choice| format!("{}:{}", choice.name, at_home(&choice.arch));
    let named = chosen.iter().filter(|choice| is_sound(choice)).map(named);
    EXACTLY.into_iter().map(str::to_owned).chain(named).collect()
}

/// Whether name, architecture and version are made of what Debian's may be made of. Whether it is
/// installed is another question; this one keeps options and paths away from every command line.
fn is_sound(choice: &Choice) -> bool {
    let made_of = |text: &str, more: &str| {
        text.starts_with(|first: char| first.is_ascii_alphanumeric())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
    };
    // An argument that ends in `-` is a removal to apt-get, and no version does.
    let version = made_of(&choice.to, ".+~:-") && !choice.to.ends_with('-');
    made_of(&choice.name, "+.-") && made_of(&choice.arch, "-") && version
}

fn simulation(said: &str) -> Result<Vec<super::Change>, BackendError> {
    let unreadable = |why| BackendError::Unreadable { what: "apt-get -s".to_owned(), why };
    read::simulation(said, native()).map_err(unreadable)
}

fn key(package: &Installed) -> Key {
    (package.name.clone(), package.arch.clone(), package.version.clone())
}

/// As apt-cache takes it. What is of no architecture counts to the machine's own.
fn spelled(package: &Installed) -> String {
    match package.arch.as_str() {
        "all" | "" => package.name.clone(),
        arch => format!("{}:{arch}", package.name),
    }
}

/// The architecture that apt counts a package to. What is of no architecture counts to the machine's
/// own, and a package may become so, or cease to be, from one version to the next.
fn at_home(arch: &str) -> String {
    match arch {
        "all" => native().to_owned(),
        arch => arch.to_owned(),
    }
}

/// The machine's own architecture, as Debian calls it. The agent is built for it.
fn native() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "i386",
        "arm" => "armhf",
        "powerpc64" => "ppc64el",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(name: &str, to: &str) -> Choice {
        let arch = "amd64".to_owned();
        Choice { name: name.to_owned(), arch, from: "1".to_owned(), to: to.to_owned() }
    }

    #[test]
    fn nothing_but_exact_names_and_versions_reaches_a_command_line() {
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
        // A name may end in `-`, but with an architecture and a version behind it it is only a name.
        assert_eq!(to_install(&hostile)[4..], ["bash-:amd64=2"]);
        let apt = Apt::new(Root::running());
        let command = &apt.install(&[choice("libstdc++6", "1:2.0~rc1-1")])[0];
        assert_eq!(command.args.last().map(String::as_str), Some("libstdc++6:amd64=1:2.0~rc1-1"));
        for needed in ["--no-remove", "--only-upgrade", "APT::Cmd::Pattern-Only=true"] {
            assert!(command.args.iter().any(|arg| arg == needed), "{needed}");
        }
    }
}
