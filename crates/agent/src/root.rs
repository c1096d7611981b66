//! The managed system: the running one, or one installed under a directory.
//!
//! Paths inside a root never resolve to a file of the running system.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::command::Command;

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

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn is_running_system(&self) -> bool {
        self.dir == Path::new("/")
    }

    /// The location of a file of the managed system, such as `/etc/os-release`. Under a directory,
    /// symbolic links are resolved inside the managed system, so that the agent never reads a file
    /// of the running system by mistake.
    pub fn path(&self, inside: &str) -> PathBuf {
        let plain = self.dir.join(inside.trim_start_matches('/'));
        match self.is_running_system() {
            true => plain,
            false => self.resolve(inside).unwrap_or(plain),
        }
    }

    /// Like [`Root::path`], but a symbolic link at the end of the path is not followed. For callers
    /// that ask about the link itself.
    pub fn entry(&self, inside: &str) -> PathBuf {
        let path = Path::new(inside.trim_end_matches('/'));
        match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => self.path(&parent.to_string_lossy()).join(name),
            _ => self.path(inside),
        }
    }

    /// Resolves the symbolic links of a path that was found in a directory of the managed system.
    pub fn follow(&self, found: &Path) -> PathBuf {
        match found.strip_prefix(&self.dir) {
            Ok(inside) if !self.is_running_system() => {
                self.resolve_path(inside).unwrap_or_else(|| found.to_owned())
            }
            _ => found.to_owned(),
        }
    }

    /// Resolves all symbolic links of a path inside the managed system: a link to `/media` or
    /// `../..` never leads out of the root. `None` if links form a loop. The path does not have to
    /// exist.
    pub fn resolve(&self, inside: &str) -> Option<PathBuf> {
        self.resolve_path(Path::new(inside))
    }

    fn resolve_path(&self, inside: &Path) -> Option<PathBuf> {
        let parts = |path: &Path| -> Vec<OsString> {
            path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
        };
        let mut left = parts(inside);
        let (mut path, mut links) = (self.dir.clone(), 0);
        while let Some(part) = left.pop() {
            if part == "/" {
                path.clone_from(&self.dir);
            } else if part == ".." {
                if path != self.dir {
                    path.pop();
                }
            } else if part != "." {
                match fs::read_link(path.join(&part)) {
                    Ok(_) if links == LINKS_MAX => return None,
                    Ok(target) => {
                        links += 1;
                        left.extend(parts(&target));
                    }
                    Err(_) => path.push(part),
                }
            }
        }
        Some(path)
    }

    /// Whether the managed system has this program in one of the usual directories.
    pub fn has_program(&self, name: &str) -> bool {
        PROGRAM_DIRS.iter().any(|directory| self.path(&format!("{directory}/{name}")).is_file())
    }

    /// A command that runs inside the managed system with that system's own program, which sees the
    /// system as `/`.
    pub fn command(&self, program: &str) -> Command {
        if self.is_running_system() {
            return Command::new(program);
        }
        Command::new("chroot").arg(&self.dir.to_string_lossy()).arg(program)
    }
}

/// Maximum number of symbolic links followed in one path, as in Linux.
const LINKS_MAX: usize = 40;
/// Directories that are searched for programs.
pub(crate) const PROGRAM_DIRS: [&str; 4] = ["usr/sbin", "usr/bin", "sbin", "bin"];

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn symlinks_never_lead_out_of_the_root() {
        let dir = std::env::temp_dir().join(format!("fleetmend-root-{}", std::process::id()));
        fs::create_dir_all(dir.join("etc/apk")).unwrap();
        let links = [
            ("absolute", "/var/cache/apk"),
            ("relative", "../../var/cache"),
            ("above", "../../../../../../var/cache"),
            ("twice", "/etc/apk/absolute/more"),
            ("loop", "loop"),
        ];
        for (link, target) in links {
            symlink(target, dir.join("etc/apk").join(link)).unwrap();
        }
        let root = Root::under(&dir);
        let resolved = |inside: &str| root.resolve(inside);
        assert_eq!(resolved("/etc/apk/plain"), Some(dir.join("etc/apk/plain")));
        assert_eq!(resolved("/etc/apk/absolute"), Some(dir.join("var/cache/apk")));
        assert_eq!(resolved("/etc/apk/relative/x"), Some(dir.join("var/cache/x")));
        assert_eq!(resolved("/etc/apk/above"), Some(dir.join("var/cache")));
        assert_eq!(resolved("/etc/apk/twice"), Some(dir.join("var/cache/apk/more")));
        assert_eq!(resolved("/etc/apk/loop"), None);
        assert_eq!(root.path("/etc/apk/absolute"), dir.join("var/cache/apk"));
        assert_eq!(root.follow(&dir.join("etc/apk/above")), dir.join("var/cache"));
        assert_eq!(root.entry("/etc/apk/absolute"), dir.join("etc/apk/absolute"));
        assert_eq!(root.entry("/etc/apk/absolute/x"), dir.join("var/cache/apk/x"));
        fs::remove_dir_all(&dir).unwrap();
    }
}
