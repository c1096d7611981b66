//! Installing Debian packages, without the side effects that a person might want.
//!
//! `requirements` calls it, as root.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::clock;
use crate::process::{GENTLY, Halt, Processes};
use crate::screen::Screen;
use crate::workspace::entries;

const LISTS: &str = "/var/lib/apt/lists";
const LISTS_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Installs packages and what they depend on, and nothing that is merely recommended.
pub(crate) fn install(
    packages: &[&str],
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<(), Halt> {
    screen.line(&format!("installing {}", packages.join(", ")));
    let _no_cluster = NoCluster::while_installing(Path::new(NoCluster::DIRECTORY))?;
    let mut updated = false;
    if !lists_are_fresh() {
        updated = update(processes, screen)?;
    }
    let mut outcome = try_install(packages, processes, screen)?;
    if outcome.is_err() && !updated && update(processes, screen)? {
        outcome = try_install(packages, processes, screen)?;
    }
    outcome.map_err(Halt::Failed)
}

/// Fresh lists are a help, not a must: what fails for want of them fails in the install.
fn update(processes: &mut Processes, screen: &mut Screen) -> Result<bool, Halt> {
    screen.at("apt-get update");
    Ok(apt_get(&["update"], processes)?.is_ok())
}

fn try_install(
    packages: &[&str],
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<Result<(), String>, Halt> {
    screen.at("apt-get install");
    let archives = Archives::make().map_err(|error| {
        Halt::Failed(format!("no directory could be made for what apt-get fetches: {error}"))
    })?;
    let option = format!("Dir::Cache::archives={}", archives.dir.display());
    let mut arguments = vec!["install", "--yes", "--no-install-recommends", "--no-upgrade"];
    arguments.extend(["-o", &option]);
    arguments.extend(packages);
    apt_get(&arguments, processes)
}

/// Where apt-get puts what it fetches. Images made for containers empty the usual place after each run
/// of dpkg, and where apt itself is upgraded along the way there are several runs in one install:
/// the second would find nothing.
struct Archives {
    dir: PathBuf,
}

impl Archives {
    fn make() -> std::io::Result<Archives> {
        let name = format!("fleetmend-xtask-apt-{}", std::process::id());
        let archives = Archives { dir: std::env::temp_dir().join(name) };
        std::fs::create_dir_all(archives.dir.join("partial"))?;
        Ok(archives)
    }
}

impl Drop for Archives {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The inner error is all that apt-get said.
fn apt_get(arguments: &[&str], processes: &mut Processes) -> Result<Result<(), String>, Halt> {
    let mut apt = Command::new("apt-get");
    apt.args(["-q", "-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0"]).args(arguments);
    apt.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
    let mut said = String::new();
    let status = processes.run_with_lines(&mut apt, GENTLY, &mut |line| {
        said.push_str(line);
        said.push('\n');
    })?;
    if status.success() {
        return Ok(Ok(()));
    }
    Ok(Err(format!("apt-get {} failed ({status}):\n{said}", arguments.join(" "))))
}

fn lists_are_fresh() -> bool {
    let some = entries(Path::new(LISTS)).iter().any(|p| p.to_string_lossy().contains("_Packages"));
    // The lists themselves carry the archive's dates; the directory tells when apt was last here.
    let written = std::fs::metadata(LISTS).and_then(|meta| meta.modified());
    some && written.is_ok_and(|written| {
        clock::wall().duration_since(written).unwrap_or_default() < LISTS_AGE_MAX
    })
}

/// Keeps Debian's server package from creating and starting a cluster of its own.
///
/// Its maintainer script asks `create_main_cluster` of postgresql-common's configuration, which
/// includes this directory, and only when the package is first installed: taken away afterwards,
/// the file leaves no trace and a later upgrade still creates nothing.
struct NoCluster {
    file: PathBuf,
    /// The directories that were not there before, innermost first.
    made: Vec<PathBuf>,
}

impl NoCluster {
    const DIRECTORY: &str = "/etc/postgresql-common/createcluster.d";

    fn while_installing(directory: &Path) -> Result<NoCluster, Halt> {
        let made = directory
            .ancestors()
            .take_while(|path| !path.exists())
            .map(Path::to_path_buf)
            .collect();
        // Read last, so that it overrules the others.
        let file = directory.join("zz-fleetmend-xtask.conf");
        let guard = NoCluster { file, made };
        std::fs::create_dir_all(directory)
            .and_then(|()| std::fs::write(&guard.file, "create_main_cluster = false\n"))
            .map_err(|error| {
                Halt::Failed(format!("cannot write {}: {error}", guard.file.display()))
            })?;
        Ok(guard)
    }
}

impl Drop for NoCluster {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
        for directory in &self.made {
            // Not empty if the package has since put something there; then it is the package's.
            let _ = std::fs::remove_dir(directory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_to_the_server_package_is_gone_afterwards_and_so_are_its_directories() {
        let base = std::env::temp_dir().join(format!("xtask-apt-{}", std::process::id()));
        std::fs::create_dir(&base).unwrap();
        let directory = base.join("postgresql-common/createcluster.d");

        let guard = NoCluster::while_installing(&directory).unwrap();
        let note = entries(&directory).pop().unwrap();
        assert_eq!(std::fs::read_to_string(note).unwrap(), "create_main_cluster = false\n");
        drop(guard);
        assert!(entries(&base).is_empty(), "what was made for the note goes with it");

        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("site.conf"), "").unwrap();
        drop(NoCluster::while_installing(&directory).unwrap());
        assert_eq!(entries(&directory), [directory.join("site.conf")]);
        std::fs::remove_dir_all(&base).unwrap();
    }
}
