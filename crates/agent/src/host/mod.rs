//! The machine itself: what it is, what runs on it, and whether it may be rebooted.
//!
//! Everything is read from files, under the managed root and in `/proc`, so that tests plant both. The
//! only program ever asked is `rpm`, whose list of files has no other reader. What would change the
//! machine is described as a [`Command`]; `work` decides and runs it.

mod apt_conf;
mod os_release;
mod owners;
mod place;
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

/// What the agent must know of the machine itself.
#[derive(Debug, Clone)]
pub struct Host {
    root: Root,
    /// Where the kernel tells of processes and of itself.
    proc: PathBuf,
    /// Whether the managed system is the one that runs.
    runs: bool,
}

impl Host {
    /// The machine whose system lies under this root.
    pub fn new(root: Root) -> Host {
        let runs = root.is_running_system();
        Host { root, proc: PathBuf::from("/proc"), runs }
    }

    /// Which boot this is. Empty if the kernel does not say.
    pub fn boot_id(&self) -> Line {
        self.kernel_says("random/boot_id")
    }

    /// The release of the kernel that runs, as `uname -r` says it; that of the machine even if the
    /// managed system lies under a directory.
    pub fn kernel(&self) -> Line {
        self.kernel_says("osrelease")
    }

    /// What the host is.
    pub fn facts(&self, backend: &dyn Backend) -> Facts {
        let (reboot_required, reboot_reasons) = match self.reboot_reasons(backend) {
            Ok(reasons) => (!reasons.is_empty(), reasons),
            // A check that cannot be read asks for no reboot, and does not pass for a clean one.
            Err(error) => {
                let why = format!("whether a reboot is needed could not be found out: {error}");
                (false, vec![Line::made_of(&why)])
            }
        };
        Facts {
            hostname: self.hostname(),
            os: os_release::of(&self.root),
            kernel: self.kernel(),
            arch: Line::made_of(&rustix::system::uname().machine().to_string_lossy()),
            package_manager: backend.manager(),
            agent_version: Line::from(env!("CARGO_PKG_VERSION")),
            reboot_required,
            reboot_reasons,
            old_code: self.old_code(backend),
            other_updaters: updaters::of(&self.root),
            foreign_kernel: !self.has_own_kernel(),
            // Read again for each sync, so that a change is reported within a minute.
            limits: None,
            // The shell knows them.
            trusted_keys: Vec::new(),
        }
    }

    /// Whether the kernel that runs is the system's own: not in a container, and not under a directory.
    fn has_own_kernel(&self) -> bool {
        self.runs && self.container().is_none()
    }

    /// Why the machine should be rebooted, as far as the package manager knows.
    ///
    /// In a container and under a directory the kernel that runs is not the system's own, so none of
    /// its packages says anything about it: the back end is told of no kernel, an empty text.
    pub fn reboot_reasons(&self, backend: &dyn Backend) -> Result<Vec<Line>, BackendError> {
        let kernel = if self.has_own_kernel() { self.kernel() } else { Line::default() };
        backend.reboot_reasons(kernel.as_str())
    }

    /// The processes of the managed system that run code which is no longer on the disk, with the
    /// package that it came from and the service to restart. Sorted, each once, at most
    /// [`OLD_CODE_MAX`].
    pub fn old_code(&self, backend: &dyn Backend) -> Vec<OldCode> {
        let running = processes::with_old_code(&self.proc, &self.root);
        let paths = running.iter().flat_map(|process| process.gone.iter().map(String::as_str));
        let owners = owners::of(&self.root, backend.manager(), paths);
        let mut found: Vec<OldCode> = Vec::new();
        for process in &running {
            let mut packages: Vec<Option<&String>> =
                process.gone.iter().map(|path| owners.get(path)).collect();
            // What a process runs of a package tells more than that it runs something unknown too.
            if packages.iter().any(Option::is_some) {
                packages.retain(Option::is_some);
            }
            found.extend(packages.into_iter().map(|package| OldCode {
                package: package.map(|name| Line::made_of(name)),
                unit: process.unit.as_deref().map(Line::made_of),
                process: Line::made_of(&process.name),
            }));
        }
        found.sort();
        found.dedup();
        found.truncate(OLD_CODE_MAX);
        found
    }

    /// What kind of container the machine is: `lxc`, `docker`; nothing if it is none.
    pub fn container(&self) -> Option<Line> {
        place::container(&self.root, &self.proc)
    }

    /// Whether the machine can be rebooted from here, or why not.
    ///
    /// A container is rebooted only if its administrator allows it (`in_container_allowed`): for a
    /// system container, with systemd of its own, that is a reboot like any other; for one around a
    /// single program it would be its end.
    pub fn may_reboot(&self, in_container_allowed: bool) -> Result<(), Line> {
        if !self.runs {
            let dir = self.root.dir().display();
            let why = format!("the system under {dir} is managed, not the one that runs");
            return Err(Line::made_of(&why));
        }
        place::may_reboot(&self.root, &self.proc, in_container_allowed)
    }

    /// Reboots the machine.
    pub fn reboot(&self) -> Command {
        if place::has_systemd(&self.root) {
            return Command::new("systemctl").arg("reboot");
        }
        if self.root.has_program("shutdown") {
            return Command::new("shutdown").args(["-r", "now"]);
        }
        Command::new("reboot")
    }

    /// Restarts a service, if it runs.
    pub fn restart(&self, unit: &str) -> Command {
        self.root.inside("systemctl").args(["try-restart", "--", unit])
    }

    /// Whether a service may be restarted behind its users' backs: never the agent itself, nor what
    /// carries sessions, the network or other systems.
    pub fn is_restartable(&self, unit: &str) -> bool {
        restart::is_safe(unit)
    }

    /// How many bytes are free on the file system that holds this path of the managed system.
    pub fn free_bytes(&self, inside: &str) -> Option<u64> {
        let path = self.root.path(inside);
        // What does not exist yet will lie where its parent lies; never outside the root.
        let there = path.ancestors().take_while(|path| path.starts_with(self.root.dir()));
        let status = there.map(rustix::fs::statvfs).find_map(Result::ok)?;
        Some(status.f_bavail.saturating_mul(status.f_frsize))
    }

    /// Tells whoever is logged in. Nothing if the machine has no means for it.
    pub fn wall(&self, message: &str) -> Option<Command> {
        // A message that is the name of a file would be that file's content.
        let message = format!("fleetmend: {}", Line::made_of(message));
        let can = self.runs && self.root.has_program("wall");
        can.then(|| Command::new("wall").arg(&message))
    }

    /// What the machine calls itself; a system under a directory, what it would.
    fn hostname(&self) -> Hostname {
        let configured = || fs::read_to_string(self.root.path("/etc/hostname")).ok();
        let name = match self.runs {
            true => None,
            false => configured().filter(|text| !text.trim().is_empty()),
        };
        let kernel = self.kernel_says("hostname");
        Hostname::made_of(name.as_deref().unwrap_or(kernel.as_str()).trim())
    }

    /// A line of `/proc/sys/kernel`.
    fn kernel_says(&self, name: &str) -> Line {
        let path = self.proc.join("sys/kernel").join(name);
        Line::made_of(&fs::read_to_string(path).unwrap_or_default())
    }
}
