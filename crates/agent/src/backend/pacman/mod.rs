//! pacman: Arch Linux and derivatives.
//!
//! **Queries change nothing.** Package lists are refreshed in the agent's own directory, with a
//! link to the real database of installed packages. Lists refreshed in pacman's own directory would
//! turn an administrator's next `pacman -S something` into a partial upgrade.
//!
//! **Partial upgrades.** Arch supports upgrading everything or nothing: its packages rarely declare
//! which version of a library they need. An order for some packages is executed anyway, with
//! exactly these packages and the dependencies that pacman knows of, because that is what was
//! ordered; an order for all packages is the supported case. Installing refreshes pacman's own
//! lists in the same transaction (`-Sy NAME=VERSION`), which is necessary to find the new versions.
//! If the mirrors have newer versions by then, pacman does not find the requested ones and nothing
//! is installed.
//!
//! **Exact versions.** A repository offers one version of a package. An older one can be installed
//! only from pacman's package cache (`cache`), by `-U`.
//!
//! pacman has no security information: no update is marked as a security update here.

mod cache;
mod conflicts;
mod local;
mod parse;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vocab::listing::{Installed, Pending};
use vocab::{BlockedBy, Line, PackageManager};

use super::{
    Backend, BackendError, Change, Choice, Diagnosis, LockHolder, OfferedVersion, Transaction,
    kernel,
};
use crate::command::{Command, CommandOutput};
use crate::root::Root;
use cache::{CachedPackage, Signatures};
use conflicts::ConflictParty;
use local::LocalDatabase;

/// The agent's own directory of package lists, inside the root.
const LISTS_DIR: &str = "/var/cache/fleetmend/pacman";
/// Timeout of a query; resolving reads about ten megabytes of lists.
const QUERY_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug, Clone)]
pub struct Pacman {
    root: Root,
    proc: PathBuf,
}

impl Pacman {
    pub fn new(root: Root) -> Pacman {
        Pacman { root, proc: PathBuf::from("/proc") }
    }

    /// Whether the system under this root is managed by pacman.
    pub fn manages(root: &Root) -> bool {
        root.has_program("pacman") && root.path("/var/lib/pacman/local").is_dir()
    }

    /// A pacman command that never prompts.
    fn pacman(&self, action: &str) -> Command {
        self.root.command("pacman").args([action, "--noconfirm", "--color", "never"])
    }

    /// A pacman command that uses the agent's own lists and does not touch pacman's.
    fn query_command(&self, action: &str) -> Command {
        self.pacman(action).args(["--dbpath", LISTS_DIR, "--logfile", "/dev/null"])
    }

    fn query(&self, what: &'static str, command: &Command) -> Result<CommandOutput, BackendError> {
        let output = command.query(QUERY_TIMEOUT)?;
        if output.exit == Some(0) {
            return Ok(output);
        }
        let diagnosis = self.diagnose(output.exit, &format!("{}{}", output.stdout, output.stderr));
        Err(BackendError::Failed { what, diagnosis })
    }

    /// The values of a pacman setting, one per line.
    fn setting(&self, name: &str) -> Result<Vec<String>, BackendError> {
        let output = self.query("pacman-conf", &self.root.command("pacman-conf").arg(name))?;
        Ok(output.stdout.lines().map(str::to_owned).collect())
    }

    /// The directory of pacman's database, inside the root.
    fn database(&self) -> Result<String, BackendError> {
        let place = self.setting("DBPath")?.pop();
        Ok(place.unwrap_or_else(|| "/var/lib/pacman".to_owned()).trim_end_matches('/').to_owned())
    }

    fn local(&self) -> Result<LocalDatabase, BackendError> {
        LocalDatabase::read(&self.root.path(&self.database()?).join("local"))
    }

    /// What the lists offer of these packages.
    fn listed_versions(&self, names: &BTreeSet<&str>) -> Result<Vec<OfferedVersion>, BackendError> {
        let lists = self.query("pacman -Sl", &self.query_command("-Sl"))?;
        let mut offered = parse::parse_lists(&lists.stdout);
        offered.retain(|offer| names.contains(offer.name.as_str()));
        Ok(offered)
    }

    /// The package files of these names in pacman's cache.
    fn cached_packages(&self, names: &BTreeSet<&str>) -> Result<Vec<CachedPackage>, BackendError> {
        let configuration = self.query("pacman-conf", &self.root.command("pacman-conf"))?;
        let signatures = Signatures::parse(&configuration.stdout);
        let dirs = self.setting("CacheDir")?;
        Ok(cache::packages(&self.root, &dirs, signatures, |name| names.contains(name)))
    }

    /// The files of these packages, if one of them is not in the lists. `None` for the usual order,
    /// whose packages the lists offer.
    fn needed_cache_files(
        &self,
        chosen: &[Choice],
    ) -> Result<Option<Vec<CacheFile>>, BackendError> {
        let names: BTreeSet<&str> = chosen.iter().map(|choice| choice.name.as_str()).collect();
        let listed = self.listed_versions(&names)?;
        let is_listed = |choice: &Choice| {
            listed.iter().any(|offer| offer.name == choice.name && offer.version == choice.to)
        };
        if chosen.iter().all(is_listed) {
            return Ok(None);
        }
        let cached = self.cached_packages(&names)?;
        let file = |choice: &Choice| {
            let found = cached.iter().find(|package| {
                package.offer.name == choice.name
                    && package.offer.version == choice.to
                    && [choice.arch.as_str(), "any"].contains(&package.offer.arch.as_str())
            });
            found.map(|package| package.path.clone())
        };
        Ok(Some(chosen.iter().map(|choice| (choice.clone(), file(choice))).collect()))
    }

    /// What `-S` of packages in the lists would install.
    fn print_listed(&self, chosen: &[Choice]) -> Result<Printed, BackendError> {
        let question = self.query_command("-S").args(PRINT_TARGETS).args(exact_specs(chosen));
        let targets = self.print(&question)?;
        if targets.is_empty() {
            return Ok((targets, Vec::new()));
        }
        let names = targets.iter().map(|target| format!("{}/{}", target.repository, target.name));
        let about = self.query_command("-Si").arg("--").args(names);
        let about = parse::parse_info(&self.query("pacman -Si", &about)?.stdout);
        Ok((targets, about))
    }

    /// What `-U` of package files would install. It uses pacman's own lists, as the installation
    /// will.
    fn print_files(&self, files: &[String]) -> Result<Printed, BackendError> {
        let files = || files.iter().cloned();
        let targets = self.print(&self.pacman("-U").args(PRINT_TARGETS).args(files()))?;
        let about = self.query("pacman -Qip", &self.pacman("-Qip").arg("--").args(files()))?;
        let mut about = parse::parse_info(&about.stdout);
        let more = targets.iter().filter(|target| target.repository != LOCAL_FILE);
        let more: Vec<String> =
            more.map(|target| format!("{}/{}", target.repository, target.name)).collect();
        if !more.is_empty() {
            let question = self.pacman("-Si").arg("--").args(more);
            about.extend(parse::parse_info(&self.query("pacman -Si", &question)?.stdout));
        }
        Ok((targets, about))
    }

    fn print(&self, question: &Command) -> Result<Vec<parse::InstallTarget>, BackendError> {
        let output = question.query(QUERY_TIMEOUT)?;
        if output.exit != Some(0) {
            let words = format!("{}{}", output.stdout, output.stderr);
            return Err(BackendError::Conflict(self.diagnose(output.exit, &words).message));
        }
        parse::parse_targets(&output.stdout)
    }

    fn lock_path(&self) -> Result<PathBuf, BackendError> {
        Ok(self.root.path(&self.database()?).join("db.lck"))
    }
}

/// A package, and its file in pacman's cache if there is one.
type CacheFile = (Choice, Option<String>);
/// The packages that would be installed, and what is known of them.
type Printed = (Vec<parse::InstallTarget>, Vec<parse::PackageInfo>);

/// Options that print what would be installed, for [`parse::parse_targets`].
const PRINT_TARGETS: [&str; 5] = ["--needed", "--print", "--print-format", "%n\t%v\t%r\t%s", "--"];
/// What pacman prints as the repository of a package file.
const LOCAL_FILE: &str = "local";

/// `NAME=VERSION`, which pacman matches exactly.
fn exact_specs(chosen: &[Choice]) -> impl Iterator<Item = String> + '_ {
    chosen.iter().map(|choice| format!("{}={}", choice.name, choice.to))
}

impl Backend for Pacman {
    fn manager(&self) -> PackageManager {
        PackageManager::Pacman
    }

    fn installed(&self) -> Result<Vec<Installed>, BackendError> {
        let ignored = (self.setting("IgnorePkg")?, self.setting("IgnoreGroup")?);
        let held = |package: &local::InstalledPackage| {
            ignored.0.iter().any(|pattern| local::matches(pattern, &package.name))
                || package
                    .groups
                    .iter()
                    .any(|group| ignored.1.iter().any(|pattern| local::matches(pattern, group)))
        };
        let listed = |package: &local::InstalledPackage| {
            let mut installed = Installed::new(&package.name, &package.version, &package.arch)
                .with_source(&package.base, &package.version);
            // No origin: pacman does not record the repository, and the packager is a person.
            installed.held = held(package);
            installed
        };
        Ok(self.local()?.packages.iter().map(listed).collect())
    }

    fn refresh(&self) -> Vec<Command> {
        let database = self.database().unwrap_or_else(|_| "/var/lib/pacman".to_owned());
        let inside = |program: &str| self.root.command(program);
        vec![
            inside("mkdir").args(["-p", LISTS_DIR]),
            inside("ln").args([
                "-sfn",
                &format!("{database}/local"),
                &format!("{LISTS_DIR}/local"),
            ]),
            // Only the agent uses this directory, and it runs one command at a time: a lock in it
            // was left by an interrupted query. pacman's own lock is never removed.
            inside("rm").args(["-f", &format!("{LISTS_DIR}/db.lck")]),
            self.query_command("-Sy"),
        ]
    }

    fn pending(&self, installed: &[Installed]) -> Result<Vec<Pending>, BackendError> {
        let command = self.query_command("-Qu");
        let output = command.query(QUERY_TIMEOUT)?;
        // Exit code 1 means "none" as well as "failed": the output distinguishes them.
        let none = output.exit == Some(1) && !parse::has_error(&output.stderr);
        if output.exit != Some(0) && !none {
            let diagnosis = self.diagnose(output.exit, &output.stderr);
            return Err(BackendError::Failed { what: "pacman -Qu", diagnosis });
        }
        let arch = |name: &str| {
            let found = installed.iter().find(|package| package.name == name);
            found.map_or("", |package| package.arch.as_str())
        };
        let updates = parse::parse_updates(&output.stdout)?;
        Ok(updates
            .iter()
            .map(|update| {
                let mut pending =
                    Pending::new(&update.name, arch(&update.name), &update.from, &update.to);
                pending.blocked_by = update.ignored.then_some(BlockedBy::Held);
                pending
            })
            .collect())
    }

    fn offered_versions(
        &self,
        _installed: &[Installed],
        names: &BTreeSet<&str>,
    ) -> Result<Vec<OfferedVersion>, BackendError> {
        let mut offered = self.listed_versions(names)?;
        offered.extend(self.cached_packages(names)?.into_iter().map(|package| package.offer));
        Ok(offered)
    }

    fn version_restriction(&self) -> Option<&'static str> {
        Some("pacman installs only versions that its lists or its package cache contain")
    }

    fn resolve(&self, chosen: &[Choice]) -> Result<Transaction, BackendError> {
        let (targets, about) = match self.needed_cache_files(chosen)? {
            None => self.print_listed(chosen)?,
            Some(files) => {
                let (cached, listed): (Vec<_>, Vec<_>) =
                    files.into_iter().partition(|(_, file)| file.is_some());
                let listed: Vec<Choice> = listed.into_iter().map(|(choice, _)| choice).collect();
                let cached: Vec<String> = cached.into_iter().filter_map(|(_, file)| file).collect();
                let mut printed = match listed.is_empty() {
                    true => (Vec::new(), Vec::new()),
                    false => self.print_listed(&listed)?,
                };
                if !cached.is_empty() {
                    let more = self.print_files(&cached)?;
                    let new = |target: &parse::InstallTarget| {
                        !more.0.iter().any(|other| other.name == target.name)
                    };
                    printed.0.retain(new);
                    printed.0.extend(more.0);
                    printed.1.extend(more.1);
                }
                printed
            }
        };
        if targets.is_empty() {
            return Ok(Transaction::default());
        }
        let local = self.local()?;
        check_conflicts(&targets, &about, &local)?;
        let mut transaction = Transaction {
            download_bytes: Some(targets.iter().map(|target| target.bytes).sum()),
            disk_bytes: Some(0),
            ..Transaction::default()
        };
        for target in targets {
            let old = local.packages.iter().find(|package| package.name == target.name);
            let known = about.iter().find(|package| package.name == target.name);
            let more = known.map(|package| {
                package.installed_bytes.saturating_sub(old.map_or(0, |package| package.bytes))
            });
            let sum = transaction.disk_bytes.zip(more);
            transaction.disk_bytes = sum.map(|(sum, more)| sum.saturating_add(more));
            transaction.changes.push(Change {
                arch: known.map(|package| package.arch.clone()).unwrap_or_default(),
                from: old.map(|package| package.version.clone()),
                to: Some(target.version),
                name: target.name,
            });
        }
        transaction.changes.sort();
        Ok(transaction)
    }

    fn download(&self, chosen: &[Choice]) -> Vec<Command> {
        let listed: Vec<Choice> = match self.needed_cache_files(chosen) {
            Ok(Some(files)) => {
                files.into_iter().filter(|(_, file)| file.is_none()).map(|(c, _)| c).collect()
            }
            Ok(None) | Err(_) => chosen.to_vec(),
        };
        if listed.is_empty() {
            return Vec::new();
        }
        vec![
            self.query_command("-S")
                .args(["--downloadonly", "--needed", "--noprogressbar", "--"])
                .args(exact_specs(&listed)),
        ]
    }

    fn install(&self, chosen: &[Choice]) -> Vec<Command> {
        // One transaction, so all from the cache: what the lists offer was just downloaded.
        if let Ok(Some(files)) = self.needed_cache_files(chosen)
            && let Some(files) = files.into_iter().map(|(_, file)| file).collect::<Option<Vec<_>>>()
        {
            return vec![self.pacman("-U").args(["--needed", "--noprogressbar", "--"]).args(files)];
        }
        // Not `-Su`: that would also replace packages with others, which is a removal.
        vec![
            self.pacman("-Sy")
                .args(["--needed", "--noprogressbar", "--"])
                .args(exact_specs(chosen)),
        ]
    }

    fn lock_holder(&self) -> Result<Option<LockHolder>, BackendError> {
        let path = self.lock_path()?;
        let Ok(lock) = fs::symlink_metadata(&path) else { return Ok(None) };
        // The lock is the existence of the file; the process that created it keeps it open.
        if let Some(pid) = process_with_open_file(&self.proc, (lock.dev(), lock.ino())) {
            let comm = fs::read_to_string(self.proc.join(pid.to_string()).join("comm"));
            let name = comm.unwrap_or_default();
            let name = Line::sanitize(&format!("{} (pid {pid})", name.trim()));
            return Ok(Some(LockHolder { pid: Some(pid), name }));
        }
        // It may have been released in the meantime.
        if !path.exists() {
            return Ok(None);
        }
        let inside = path.strip_prefix(self.root.dir()).unwrap_or(&path).display();
        let why = format!(
            "a stale lock file (/{inside}, left by an interrupted pacman; remove it if no pacman \
             is running)"
        );
        Ok(Some(LockHolder { pid: None, name: Line::sanitize(&why) }))
    }

    fn damage(&self) -> Result<Vec<Line>, BackendError> {
        Ok(self.local()?.damage.iter().map(|line| Line::sanitize(line)).collect())
    }

    fn repair(&self) -> Vec<Command> {
        // pacman cannot finish an interrupted operation; a person must reinstall the package.
        Vec::new()
    }

    fn new_config_files(&self) -> Result<Vec<PathBuf>, BackendError> {
        let backups = self.local()?.packages.into_iter().flat_map(|package| package.backups);
        let new_files = backups.map(|path| format!("/{path}.pacnew"));
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

/// Rejects targets that could only be installed by removing a package.
fn check_conflicts(
    targets: &[parse::InstallTarget],
    package_infos: &[parse::PackageInfo],
    local: &LocalDatabase,
) -> Result<(), BackendError> {
    let known = |target: &parse::InstallTarget| {
        package_infos.iter().find(|about| about.name == target.name)
    };
    let coming: Vec<ConflictParty<'_>> = targets
        .iter()
        .filter_map(|target| {
            let about = known(target)?;
            Some(ConflictParty {
                name: &target.name,
                version: &target.version,
                provides: &about.provides,
                conflicts: &about.conflicts,
            })
        })
        .collect();
    let replaced = |name: &str| targets.iter().any(|target| target.name == name);
    let staying = local.packages.iter().filter(|package| !replaced(&package.name));
    let staying: Vec<ConflictParty<'_>> = staying
        .map(|package| ConflictParty {
            name: &package.name,
            version: &package.version,
            provides: &package.provides,
            conflicts: &package.conflicts,
        })
        .collect();
    let Some((one, other)) = conflicts::first_conflict(&coming, &staying) else { return Ok(()) };
    let why = format!(
        "pacman: {} {} conflicts with {} {}",
        one.name, one.version, other.name, other.version
    );
    Err(BackendError::Conflict(Line::sanitize(&why)))
}

/// The process that has this file open.
fn process_with_open_file(proc: &Path, file: (u64, u64)) -> Option<i32> {
    let processes = fs::read_dir(proc).into_iter().flatten().filter_map(Result::ok);
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers.into_iter().find(|pid| {
        let open = fs::read_dir(proc.join(pid.to_string()).join("fd"));
        open.into_iter().flatten().filter_map(Result::ok).any(|entry| {
            fs::metadata(entry.path()).is_ok_and(|open| (open.dev(), open.ino()) == file)
        })
    })
}

/// Runs every parser of this back end on arbitrary text.
#[cfg(feature = "fuzzing")]
pub fn fuzz(text: &str) {
    let _ = (parse::parse_updates(text), parse::has_error(text), parse::parse_targets(text));
    let _ = (parse::parse_info(text), parse::parse_lists(text), parse::diagnose(text));
    let (pattern, name) = text.split_once('\n').unwrap_or((text, "linux-lts"));
    let _ = local::matches(pattern, name);
}
