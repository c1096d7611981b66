//! The system that is managed: the running one, or one that is installed under a directory.

use std::path::{Path, PathBuf};

use crate::command::Command;

/// Where the managed system lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    dir: PathBuf,
}

impl Root {
    /// The running system.
    pub fn running() -> Root {
        Root { dir: PathBuf::from("/") }
    }

    /// The system installed under `dir`, an absolute path.
    pub fn under(dir: &Path) -> Root {
        Root { dir: dir.to_owned() }
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether this is the system that the agent itself runs on.
    pub fn is_running_system(&self) -> bool {
        self.dir == Path::new("/")
    }

    /// Where a file of the managed system lies: `/etc/os-release` of it.
    pub fn path(&self, inside: &str) -> PathBuf {
        self.dir.join(inside.trim_start_matches('/'))
    }

    /// Whether the managed system has this program, under the usual directories.
    pub fn has_program(&self, name: &str) -> bool {
        DIRECTORIES.iter().any(|directory| self.path(directory).join(name).is_file())
    }

    /// A command that runs inside the managed system with the system's own program: there it sees
    /// the system as `/`.
    pub fn inside(&self, program: &str) -> Command {
        if self.is_running_system() {
            return Command::new(program);
        }
        Command::new("chroot").arg(&self.dir.to_string_lossy()).arg(program)
    }
}

/// Where programs are looked for.
pub(crate) const DIRECTORIES: [&str; 4] = ["usr/sbin", "usr/bin", "sbin", "bin"];
