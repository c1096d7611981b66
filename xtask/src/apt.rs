//! Installs Debian packages without side effects such as a running PostgreSQL cluster.
//!
//! Only `requirements` calls this module, as root.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::clock;
use crate::process::{INTERRUPT_AND_WAIT, Processes, TaskError};
use crate::screen::Screen;
use crate::workspace::directory_entries;

const LISTS: &str = "/var/lib/apt/lists";
const LISTS_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Installs packages and their dependencies, but no recommended packages.
pub(crate) fn install(
    packages: &[&str],
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<(), TaskError> {
    screen.line(&format!("installing {}", packages.join(", ")));
    let _no_cluster = NoCluster::create(Path::new(NoCluster::DIRECTORY))?;
    let mut updated = false;
    if !lists_are_fresh() {
        updated = update(processes, screen)?;
    }
    let mut outcome = try_install(packages, processes, screen)?;
    if outcome.is_err() && !updated && update(processes, screen)? {
        outcome = try_install(packages, processes, screen)?;
    }
    outcome.map_err(TaskError::Failed)
}

/// Failure is not fatal: if outdated lists are a problem, the installation fails.
fn update(processes: &mut Processes, screen: &mut Screen) -> Result<bool, TaskError> {
    screen.show_activity("apt-get update");
    Ok(apt_get(&["update"], processes)?.is_ok())
}

fn try_install(
    packages: &[&str],
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<Result<(), String>, TaskError> {
    screen.show_activity("apt-get install");
    let archives = DownloadDir::create().map_err(|error| {
        TaskError::Failed(format!("cannot create a download directory for apt-get: {error}"))
    })?;
    let option = format!("Dir::Cache::archives={}", archives.dir.display());
    let mut arguments = vec!["install", "--yes", "--no-install-recommends", "--no-upgrade"];
    arguments.extend(["-o", &option]);
    arguments.extend(packages);
    apt_get(&arguments, processes)
}

/// The download directory for apt-get. Container images empty the default directory after each run
/// of dpkg. If apt itself is upgraded during an installation, there are several runs, and the
/// second one would find its archives deleted.
struct DownloadDir {
    dir: PathBuf,
}

impl DownloadDir {
    fn create() -> std::io::Result<DownloadDir> {
        let name = format!("fleetmend-xtask-apt-{}", std::process::id());
        let archives = DownloadDir { dir: std::env::temp_dir().join(name) };
        std::fs::create_dir_all(archives.dir.join("partial"))?;
        Ok(archives)
    }
}

impl Drop for DownloadDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The inner error contains the complete output of apt-get.
fn apt_get(arguments: &[&str], processes: &mut Processes) -> Result<Result<(), String>, TaskError> {
    let mut apt = Command::new("apt-get");
    apt.args(["-q", "-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0"]).args(arguments);
    apt.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
    let mut output = String::new();
    let status = processes.run_with_lines(&mut apt, INTERRUPT_AND_WAIT, &mut |line| {
        output.push_str(line);
        output.push('\n');
    })?;
    if status.success() {
        return Ok(Ok(()));
    }
    Ok(Err(format!("apt-get {} failed ({status}):\n{output}", arguments.join(" "))))
}

fn lists_are_fresh() -> bool {
    let some = directory_entries(Path::new(LISTS))
        .iter()
        .any(|p| p.to_string_lossy().contains("_Packages"));
    // The lists have the dates of the archive. The directory's time tells when apt last updated
    // them.
    let written = std::fs::metadata(LISTS).and_then(|meta| meta.modified());
    some && written.is_ok_and(|written| {
        clock::system_time().duration_since(written).unwrap_or_default() < LISTS_AGE_MAX
    })
}

/// Prevents Debian's server package from creating and starting its own cluster.
///
/// The package's maintainer script reads `create_main_cluster` only at the first installation, from
/// the configuration of postgresql-common, which includes this directory. Removing the file
/// afterwards leaves no trace, and a later upgrade still creates no cluster.
struct NoCluster {
    file: PathBuf,
    /// The directories that this guard created, innermost first.
    created_directories: Vec<PathBuf>,
}

impl NoCluster {
    const DIRECTORY: &str = "/etc/postgresql-common/createcluster.d";

    fn create(directory: &Path) -> Result<NoCluster, TaskError> {
        let made = directory
            .ancestors()
            .take_while(|path| !path.exists())
            .map(Path::to_path_buf)
            .collect();
        // The last file in sort order overrides the others.
        let file = directory.join("zz-fleetmend-xtask.conf");
        let guard = NoCluster { file, created_directories: made };
        std::fs::create_dir_all(directory)
            .and_then(|()| std::fs::write(&guard.file, "create_main_cluster = false\n"))
            .map_err(|error| {
                TaskError::Failed(format!("cannot write {}: {error}", guard.file.display()))
            })?;
        Ok(guard)
    }
}

impl Drop for NoCluster {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
        for directory in &self.created_directories {
            // Fails if the package has put files there in the meantime; the directory then belongs
            // to the package.
            let _ = std::fs::remove_dir(directory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_setting_and_its_directories_are_removed() {
        let base = std::env::temp_dir().join(format!("xtask-apt-{}", std::process::id()));
        std::fs::create_dir(&base).unwrap();
        let directory = base.join("postgresql-common/createcluster.d");

        let guard = NoCluster::create(&directory).unwrap();
        let note = directory_entries(&directory).pop().unwrap();
        assert_eq!(std::fs::read_to_string(note).unwrap(), "create_main_cluster = false\n");
        drop(guard);
        assert!(
            directory_entries(&base).is_empty(),
            "created directories are removed with the file"
        );

        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("site.conf"), "").unwrap();
        drop(NoCluster::create(&directory).unwrap());
        assert_eq!(directory_entries(&directory), [directory.join("site.conf")]);
        std::fs::remove_dir_all(&base).unwrap();
    }
}
