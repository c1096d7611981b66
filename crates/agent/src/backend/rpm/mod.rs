//! The parts shared by dnf and zypper: the rpm database.
//!
//! [`Rpm`] runs the queries; the other modules only parse output.

pub(crate) mod advisory;
pub(crate) mod diagnose;
pub(crate) mod holds;
mod installed;
pub(crate) mod kernel;
pub(crate) mod lock;
pub(crate) mod nevra;
pub(crate) mod transaction;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use vocab::listing::Installed;
use vocab::{FailureCode, Line};

use super::{BackendError, Choice, Diagnosis};
use crate::command::{Command, CommandOutput};
use crate::root::Root;

/// Timeout of an rpm query. Two thousand packages take half a second; on a busy disk, much longer.
const QUERY_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Debug, Clone)]
pub(crate) struct Rpm {
    pub(crate) root: Root,
    /// Whether the managed system contains the package manager. If so, it runs with the managed
    /// system as `/`.
    pub(crate) runs_inside: bool,
}

impl Rpm {
    /// The database of the system in which `program` manages packages.
    pub(crate) fn new(root: Root, program: &str) -> Rpm {
        let inside = root.is_running_system() || root.has_program(program);
        Rpm { root, runs_inside: inside }
    }

    /// A command that acts on the managed system. It runs the managed system's own program if there
    /// is one. Otherwise it runs the host's program and passes the managed directory with `option`.
    /// An option that ends with `=` takes the directory in the same argument.
    pub(crate) fn program(&self, name: &str, option: &str) -> Command {
        let dir = self.root.dir().to_string_lossy();
        match (self.runs_inside, option.ends_with('=')) {
            (true, _) => self.root.command(name),
            (false, true) => Command::new(name).arg(&format!("{option}{dir}")),
            (false, false) => Command::new(name).args([option, &dir]),
        }
    }

    fn rpm(&self) -> Command {
        self.program("rpm", "--root")
    }

    /// The installed packages. None is marked as held, because rpm has no holds.
    pub(crate) fn installed(&self) -> Result<Vec<Installed>, BackendError> {
        let output = self.rpm().args(["-qa", "--qf", installed::FORMAT]).query(QUERY_TIMEOUT)?;
        if output.exit != Some(0) {
            return Err(database_error(&output));
        }
        installed::parse_installed(&output.stdout)
    }

    /// Who is writing to the database now.
    pub(crate) fn database_writer(&self) -> Result<Option<super::LockHolder>, BackendError> {
        let output = self.rpm().args(["--eval", "%{_dbpath}"]).query(QUERY_TIMEOUT)?;
        let home = PathBuf::from(output.stdout.trim()).join(".rpm.lock");
        Ok(lock::file_lock_holder(&self.root.path(&home.to_string_lossy())))
    }

    /// Packages left by an interrupted transaction in two versions, although only one can be
    /// installed: the newer one was added and the older one not yet removed. Newest last.
    ///
    /// rpm has no other half-done state. Its `--verifydb` reads the whole database, and damage that
    /// it would find also makes the query for all packages fail.
    pub(crate) fn duplicates(&self) -> Result<Vec<Vec<Installed>>, BackendError> {
        let mut by_name: BTreeMap<(String, String), Vec<Installed>> = BTreeMap::new();
        for package in self.installed()? {
            by_name.entry((package.name.clone(), package.arch.clone())).or_default().push(package);
        }
        let mut doubled = Vec::new();
        for ((name, _), mut versions) in by_name {
            if versions.len() > 1 && !self.allows_multiple_versions(&name)? {
                versions.sort_by(|a, b| pkgver::rpm::compare(&a.version, &b.version));
                doubled.push(versions);
            }
        }
        Ok(doubled)
    }

    /// Whether several versions of a package can be installed at once, as with kernels.
    fn allows_multiple_versions(&self, name: &str) -> Result<bool, BackendError> {
        let format = "[%{PROVIDENAME}\\n]";
        let output = self.rpm().args(["-q", "--qf", format, name]).query(QUERY_TIMEOUT)?;
        Ok(kernel::is_kernel_package(name)
            || output.stdout.lines().any(|provided| {
                provided.starts_with("installonlypkg(") || provided.starts_with("multiversion(")
            }))
    }

    /// The damage, one line each.
    pub(crate) fn damage(&self) -> Result<Vec<Line>, BackendError> {
        let doubled = match self.duplicates() {
            Ok(doubled) => doubled,
            Err(BackendError::Failed { diagnosis, .. }) => return Ok(vec![diagnosis.message]),
            Err(other) => return Err(other),
        };
        let line = |versions: &Vec<Installed>| {
            let texts: Vec<&str> = versions.iter().map(|p| p.version.as_str()).collect();
            let Installed { name, arch, .. } = &versions[0];
            Line::from(format!(
                "{name}.{arch} is installed in several versions: {}",
                texts.join(", ")
            ))
        };
        Ok(doubled.iter().map(line).collect())
    }

    /// The repair: duplicate packages are reinstalled in their newest version, which runs their
    /// scripts and removes the older one. A database that cannot be opened is rebuilt.
    pub(crate) fn repair(&self, reinstall: impl Fn(&[Choice]) -> Command) -> Vec<Command> {
        match self.duplicates() {
            Err(_) => vec![self.rpm().arg("--rebuilddb")],
            Ok(doubled) if doubled.is_empty() => Vec::new(),
            Ok(doubled) => {
                let newest = doubled.iter().filter_map(|versions| versions.last());
                let again: Vec<Choice> = newest
                    .map(|p| Choice {
                        name: p.name.clone(),
                        arch: p.arch.clone(),
                        from: p.version.clone(),
                        to: p.version.clone(),
                    })
                    .collect();
                vec![reinstall(&again)]
            }
        }
    }

    /// New configuration files next to edited ones, as paths inside the root.
    pub(crate) fn new_config_files(&self) -> Result<Vec<PathBuf>, BackendError> {
        let mut found = Vec::new();
        let mut open = vec![PathBuf::from("etc")];
        while let Some(dir) = open.pop() {
            // Directories that disappear during the search are skipped.
            let Ok(entries) = std::fs::read_dir(self.root.dir().join(&dir)) else { continue };
            for entry in entries.flatten() {
                let path = dir.join(entry.file_name());
                let name = entry.file_name();
                let name = name.to_string_lossy();
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => open.push(path),
                    Ok(_) if NEW_CONFIG_SUFFIXES.iter().any(|end| name.ends_with(end)) => {
                        found.push(PathBuf::from("/").join(path));
                    }
                    _ => {}
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// A text file of the system; empty if it does not exist.
    pub(crate) fn read_text(&self, inside: &str) -> Result<String, BackendError> {
        match std::fs::read(self.root.path(inside)) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => {
                Err(BackendError::Unreadable { what: inside.to_owned(), why: error.to_string() })
            }
        }
    }
}

const NEW_CONFIG_SUFFIXES: [&str; 3] = [".rpmnew", ".rpmsave", ".rpmorig"];

/// The newest installed version of the package that an update is for. If the update changes the
/// architecture, the package is found by its name.
pub(crate) fn installed_version<'a>(
    installed: &'a [Installed],
    name: &str,
    arch: &str,
) -> Option<&'a Installed> {
    let newest = |same: &mut dyn Iterator<Item = &'a Installed>| {
        same.max_by(|a, b| pkgver::rpm::compare(&a.version, &b.version))
    };
    let named = || installed.iter().filter(|package| package.name == name);
    newest(&mut named().filter(|package| package.arch == arch)).or_else(|| newest(&mut named()))
}

/// Rejects choices that a package manager would not interpret as plain names and versions.
pub(crate) fn check_plain_names(chosen: &[Choice]) -> Result<(), BackendError> {
    let odd = chosen.iter().find(|choice| {
        ![&choice.name, &choice.arch, &choice.to].iter().all(|word| nevra::is_plain_name(word))
    });
    match odd {
        None => Ok(()),
        Some(Choice { name, to, arch, .. }) => {
            let text = format!("`{name}-{to}.{arch}` is not a valid package name");
            Err(BackendError::Conflict(text.into()))
        }
    }
}

fn database_error(output: &CommandOutput) -> BackendError {
    let error_line = diagnose::last_error_line(&output.stderr);
    BackendError::Failed {
        what: "rpm -qa",
        diagnosis: Diagnosis {
            code: FailureCode::PackageDbBroken,
            message: format!("cannot open the package database: {error_line}").into(),
        },
    }
}

/// Runs every parser of rpm output and configuration on arbitrary text.
#[cfg(feature = "fuzzing")]
pub(super) fn fuzz(text: &str) {
    if let Ok(installed) = installed::parse_installed(text) {
        let _ = kernel::newer_kernel_reason(&installed, "5.14.0-427.el9.x86_64");
    }
    let _ = (holds::parse_lock_list(text), holds::parse_lock_toml(text));
    let _ = holds::ini_values(text, |section| !section.is_empty(), &["exclude", "excludepkgs"]);
    let (pattern, name) = text.split_once('\n').unwrap_or((text, "kernel-core"));
    let _ = holds::glob(pattern, name);
    let _ = (nevra::split_epoch(text), nevra::parse_source_file(text), nevra::is_plain_name(text));
    let _ = (diagnose::from_output(text), diagnose::last_error_line(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_version_of_the_same_architecture_is_updated() {
        let list = [
            Installed::new("kernel-core", "5.14.0-70.el9", "x86_64"),
            Installed::new("kernel-core", "5.14.0-162.el9", "x86_64"),
            Installed::new("zlib", "9-1", "i686"),
            Installed::new("zlib", "1-1", "x86_64"),
        ];
        let version = |name: &str, arch: &str| {
            installed_version(&list, name, arch).map(|package| package.version.as_str())
        };
        assert_eq!(version("kernel-core", "x86_64"), Some("5.14.0-162.el9"));
        assert_eq!(version("zlib", "x86_64"), Some("1-1"));
        assert_eq!(version("kernel-core", "noarch"), Some("5.14.0-162.el9"));
        assert_eq!(version("bash", "noarch"), None);
    }
}
