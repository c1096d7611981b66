//! The host: its facts, its processes, and whether it can be rebooted.
//!
//! Everything is read from files, under the managed root and in `/proc`, so that tests can fake
//! both. The only programs that are run are `rpm`, because nothing else can read its file list, and
//! `systemctl`, to list units ([`health`]).
//! Commands that change the host are returned as a [`Command`]; `work` decides and runs them.

mod apt_conf;
mod environment;
pub mod health;
mod os_release;
mod owners;
mod processes;
mod restart;
mod updaters;

#[cfg(test)]
mod tests;

use std::fs;
use std::path::PathBuf;

use vocab::{Hostname, Line};
use wire::agent::{Facts, OLD_CODE_MAX, OldCode};

use crate::backend::{Backend, BackendError};
use crate::command::Command;
use crate::root::Root;

#[derive(Debug, Clone)]
pub struct Host {
    root: Root,
    /// The proc file system.
    proc: PathBuf,
    /// Whether the managed system is the running one.
    is_running: bool,
}

impl Host {
    /// The host whose system is under this root.
    pub fn new(root: Root) -> Host {
        let runs = root.is_running_system();
        Host { root, proc: PathBuf::from("/proc"), is_running: runs }
    }

    /// The boot id. Empty if the kernel provides none.
    pub fn boot_id(&self) -> Line {
        self.kernel_setting("random/boot_id")
    }

    /// The release of the running kernel, as in `uname -r`, even if the managed system is under a
    /// directory.
    pub fn kernel(&self) -> Line {
        self.kernel_setting("osrelease")
    }

    pub fn facts(&self, backend: &dyn Backend) -> Facts {
        let (reboot_required, reboot_reasons) = match self.reboot_reasons(backend) {
            Ok(reasons) => (!reasons.is_empty(), reasons),
            // A failed check requires no reboot, but is not reported as a clean result either.
            Err(error) => {
                let why = format!("cannot determine whether a reboot is needed: {error}");
                (false, vec![Line::sanitize(&why)])
            }
        };
        Facts {
            hostname: self.hostname(),
            os: os_release::detect_os(&self.root),
            kernel: self.kernel(),
            arch: Line::sanitize(&rustix::system::uname().machine().to_string_lossy()),
            package_manager: backend.manager(),
            agent_version: Line::from(crate::version()),
            reboot_required,
            reboot_reasons,
            old_code: self.outdated_processes(backend),
            other_updaters: updaters::detect_updaters(&self.root),
            foreign_kernel: !self.has_own_kernel(),
            // Read again for each sync, so that a change is reported within a minute.
            limits: None,
            // Filled in by the sync loop.
            trusted_keys: Vec::new(),
        }
    }

    /// Whether the running kernel belongs to the managed system: not in a container, and not under
    /// a directory.
    fn has_own_kernel(&self) -> bool {
        self.is_running && self.container().is_none()
    }

    /// Why the host needs a reboot, as far as the package manager knows.
    ///
    /// In a container and under a directory, the running kernel does not belong to the managed
    /// system, so the system's packages say nothing about it: the back end gets an empty kernel
    /// release.
    pub fn reboot_reasons(&self, backend: &dyn Backend) -> Result<Vec<Line>, BackendError> {
        let kernel = if self.has_own_kernel() { self.kernel() } else { Line::default() };
        backend.reboot_reasons(kernel.as_str())
    }

    /// The processes of the managed system that run code which is no longer on disk, with the
    /// package that it came from and the service to restart. Sorted, without duplicates, at most
    /// [`OLD_CODE_MAX`].
    pub fn outdated_processes(&self, backend: &dyn Backend) -> Vec<OldCode> {
        let running = processes::find_outdated(&self.proc, &self.root);
        let paths =
            running.iter().flat_map(|process| process.deleted_files.iter().map(String::as_str));
        let owners = owners::find_owners(&self.root, backend.manager(), paths);
        let mut found: Vec<OldCode> = Vec::new();
        for process in &running {
            let mut packages: Vec<Option<&String>> =
                process.deleted_files.iter().map(|path| owners.get(path)).collect();
            // If a process runs code of a known package, its files without a package are not
            // listed.
            if packages.iter().any(Option::is_some) {
                packages.retain(Option::is_some);
            }
            found.extend(packages.into_iter().map(|package| OldCode {
                package: package.map(|name| Line::sanitize(name)),
                unit: process.unit.as_deref().map(Line::sanitize),
                process: Line::sanitize(&process.name),
            }));
        }
        found.sort();
        found.dedup();
        found.truncate(OLD_CODE_MAX);
        found
    }

    /// The container type, such as `lxc` or `docker`; `None` outside containers.
    pub fn container(&self) -> Option<Line> {
        environment::container(&self.root, &self.proc)
    }

    /// Whether the host can be rebooted from here, or why not.
    ///
    /// A container is rebooted only if its administrator allows it (`in_container_allowed`). A
    /// system container with its own systemd reboots normally; a container that runs a single
    /// program would stop and not come back.
    pub fn check_reboot_allowed(&self, in_container_allowed: bool) -> Result<(), Line> {
        if !self.is_running {
            let dir = self.root.dir().display();
            let why = format!("the managed system under {dir} is not the running one");
            return Err(Line::sanitize(&why));
        }
        environment::check_reboot_allowed(&self.root, &self.proc, in_container_allowed)
    }

    /// The command that reboots the host.
    pub fn reboot_command(&self) -> Command {
        if environment::has_systemd(&self.root) {
            return Command::new("systemctl").arg("reboot");
        }
        if self.root.has_program("shutdown") {
            return Command::new("shutdown").args(["-r", "now"]);
        }
        Command::new("reboot")
    }

    /// The command that restarts a service if it is running.
    pub fn restart_command(&self, unit: &str) -> Command {
        self.root.command("systemctl").args(["try-restart", "--", unit])
    }

    /// Whether a service may be restarted automatically: never the agent itself, nor services that
    /// sessions, the network or other systems depend on.
    pub fn is_restartable(&self, unit: &str) -> bool {
        restart::is_safe_to_restart(unit)
    }

    /// Free bytes on the file system that contains this path of the managed system.
    pub fn free_bytes(&self, inside: &str) -> Option<u64> {
        let path = self.root.path(inside);
        // A path that does not exist yet will be on the file system of its parent; never outside
        // the root.
        let there = path.ancestors().take_while(|path| path.starts_with(self.root.dir()));
        let status = there.map(rustix::fs::statvfs).find_map(Result::ok)?;
        Some(status.f_bavail.saturating_mul(status.f_frsize))
    }

    /// The command that notifies logged-in users. `None` if the host has no `wall`.
    pub fn notify_users_command(&self, message: &str) -> Option<Command> {
        // The prefix prevents `wall` from taking the message for a file name and printing that
        // file.
        let message = format!("fleetmend: {}", Line::sanitize(message));
        let can = self.is_running && self.root.has_program("wall");
        can.then(|| Command::new("wall").arg(&message))
    }

    /// The host name; for a system under a directory, the configured one.
    fn hostname(&self) -> Hostname {
        let configured = || fs::read_to_string(self.root.path("/etc/hostname")).ok();
        let name = match self.is_running {
            true => None,
            false => configured().filter(|text| !text.trim().is_empty()),
        };
        let kernel = self.kernel_setting("hostname");
        Hostname::sanitize(name.as_deref().unwrap_or(kernel.as_str()).trim())
    }

    /// A value from `/proc/sys/kernel`.
    fn kernel_setting(&self, name: &str) -> Line {
        let path = self.proc.join("sys/kernel").join(name);
        Line::sanitize(&fs::read_to_string(path).unwrap_or_default())
    }
}
