//! Inspects the system without running dpkg or apt: locks, new configuration files, reboot reasons.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::process::{Flock, FlockType, fcntl_getlk};
use vocab::Line;
use vocab::listing::Installed;

use crate::backend::{BackendError, LockHolder};
use crate::root::Root;

/// The locks of the package manager: frontend, database, lists, downloads.
const LOCKS: [&str; 4] = [
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
];

/// Who holds one of the locks. The kernel is asked about the lock itself: the mere existence of a
/// lock file means nothing.
pub(super) fn lock_holder(root: &Root) -> Result<Option<LockHolder>, BackendError> {
    for lock in LOCKS {
        let path = root.path(lock);
        let file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(read_error(&path, &error)),
        };
        let lock_query = fcntl_getlk(&file, &Flock::from(FlockType::WriteLock));
        let Some(held) = lock_query.map_err(|error| read_error(&path, &error.into()))? else {
            continue;
        };
        let pid = held.pid.map(rustix::process::Pid::as_raw_pid).filter(|pid| *pid > 0);
        return Ok(Some(LockHolder { pid, name: display_name(pid) }));
    }
    Ok(None)
}

fn display_name(pid: Option<i32>) -> Line {
    let Some(pid) = pid else { return "a process in another PID namespace".into() };
    let called = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let called = if called.trim().is_empty() { "a process" } else { called.trim() };
    Line::sanitize(&format!("{called} (pid {pid})"))
}

/// Whether dpkg left changes that are not in its database yet: files whose names are numbers.
pub(super) fn is_interrupted(root: &Root) -> Result<bool, BackendError> {
    let updates = root.path("/var/lib/dpkg/updates");
    let entries = match fs::read_dir(&updates) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(read_error(&updates, &error)),
    };
    let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    Ok(entries.flatten().any(|entry| is_number(&entry.file_name().to_string_lossy())))
}

/// New configuration files that dpkg, or a script using `ucf`, stored next to edited ones.
pub(super) fn new_config_files(root: &Root) -> Result<Vec<PathBuf>, BackendError> {
    const NEW_CONFIG_SUFFIXES: [&str; 2] = [".dpkg-dist", ".ucf-dist"];
    let mut found = Vec::new();
    let mut open = vec![PathBuf::from("/etc")];
    while let Some(inside) = open.pop() {
        let dir = root.path(&inside.to_string_lossy());
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            // Another process may be removing files at the same time.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(read_error(&dir, &error)),
        };
        for entry in entries {
            let entry = entry.map_err(|error| read_error(&dir, &error))?;
            let kind = entry.file_type().map_err(|error| read_error(&entry.path(), &error))?;
            let name = entry.file_name();
            if kind.is_dir() {
                open.push(inside.join(name));
            } else if NEW_CONFIG_SUFFIXES.iter().any(|end| name.to_string_lossy().ends_with(end)) {
                found.push(inside.join(name));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Why the host needs a reboot: requests of packages, and a newer kernel that is not running yet.
pub(super) fn reboot_reasons(
    root: &Root,
    running_kernel: &str,
    installed: &[Installed],
) -> Result<Vec<Line>, BackendError> {
    let mut reasons = Vec::new();
    if read_file(root, "/run/reboot-required")?.is_some() {
        let packages = read_file(root, "/run/reboot-required.pkgs")?.unwrap_or_default();
        let mut names: Vec<&str> = packages.lines().map(str::trim).collect();
        names.retain(|name| !name.is_empty());
        names.sort_unstable();
        names.dedup();
        let reason = |name: &&str| Line::sanitize(&format!("{name} requires a reboot"));
        reasons.extend(names.iter().map(reason));
        if reasons.is_empty() {
            reasons.push("the system requires a reboot".into());
        }
    }
    reasons.extend(newer_kernel(running_kernel, installed));
    Ok(reasons)
}

/// A newer kernel of the same flavor as the running one. If the running kernel is not a package of
/// this system, in a container or on a host that boots from elsewhere, the installed kernels are
/// irrelevant.
fn newer_kernel(running: &str, installed: &[Installed]) -> Option<Line> {
    let release = |package: &Installed| -> Option<String> {
        let name = package.name.strip_prefix("linux-image-")?;
        let name = name.strip_prefix("unsigned-").unwrap_or(name);
        name.starts_with(|first: char| first.is_ascii_digit()).then(|| name.to_owned())
    };
    let releases: Vec<String> = installed.iter().filter_map(release).collect();
    if !releases.iter().any(|release| release == running) {
        return None;
    }
    let (_, flavor) = split_release(running);
    let newest = releases
        .iter()
        .filter(|release| split_release(release).1 == flavor)
        .max_by(|a, b| pkgver::deb::compare(split_release(a).0, split_release(b).0))?;
    (newest != running)
        .then(|| Line::sanitize(&format!("kernel {newest} is installed, {running} is running")))
}

/// Splits `6.1.0-21-cloud-amd64` into `6.1.0-21` and `cloud-amd64`.
fn split_release(release: &str) -> (&str, &str) {
    let is_flavor = |(at, _): &(usize, &str)| {
        release[at + 1..].starts_with(|first: char| first.is_ascii_alphabetic())
    };
    match release.match_indices('-').find(is_flavor) {
        Some((at, _)) => (&release[..at], &release[at + 1..]),
        None => (release, ""),
    }
}

/// The content of a file of the system; `None` if it does not exist.
pub(super) fn read_file(root: &Root, inside: &str) -> Result<Option<String>, BackendError> {
    let path = root.path(inside);
    match fs::read(&path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(read_error(&path, &error)),
    }
}

pub(super) fn read_error(path: &Path, error: &std::io::Error) -> BackendError {
    BackendError::Unreadable { what: path.display().to_string(), why: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernels(running: &str, names: &[&str]) -> Option<String> {
        let package = |name: &&str| Installed::new(&format!("linux-image-{name}"), "1", "amd64");
        let installed: Vec<_> = names.iter().map(package).collect();
        newer_kernel(running, &installed).map(|line| line.to_string())
    }

    #[test]
    fn newer_kernel_of_the_same_flavor_requires_a_reboot() {
        assert_eq!(
            kernels("6.1.0-9-amd64", &["6.1.0-9-amd64", "6.1.0-21-amd64", "amd64"]).as_deref(),
            Some("kernel 6.1.0-21-amd64 is installed, 6.1.0-9-amd64 is running")
        );
        assert_eq!(kernels("6.1.0-21-amd64", &["6.1.0-9-amd64", "6.1.0-21-amd64"]), None);
        assert_eq!(kernels("6.1.0-9-amd64", &["6.1.0-9-amd64", "6.1.0-21-cloud-amd64"]), None);
        assert_eq!(
            kernels("5.15.0-91-generic", &["5.15.0-91-generic", "unsigned-5.15.0-101-generic"])
                .as_deref(),
            Some("kernel 5.15.0-101-generic is installed, 5.15.0-91-generic is running")
        );
    }

    #[test]
    fn kernels_in_a_container_require_no_reboot() {
        assert_eq!(kernels("6.8.0-host", &["6.1.0-9-amd64", "6.1.0-21-amd64"]), None);
        assert_eq!(kernels("6.1.0-9-amd64", &[]), None);
    }
}
