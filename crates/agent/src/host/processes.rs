//! Finds processes that run code which is no longer on disk.
//!
//! An update replaces a file with a new one of the same name. A process that has mapped the old
//! file keeps running it, and the kernel appends `(deleted)` to its path. Only executable mappings
//! count: caches, logs and fonts are replaced all the time and are not code.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::root::Root;

/// A process that runs outdated code.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) name: String,
    /// The systemd service that it belongs to.
    pub(super) unit: Option<String>,
    /// The deleted files that it runs, as paths inside the root.
    pub(super) deleted_files: BTreeSet<String>,
}

/// Maximum number of processes inspected, to limit the time.
const PROCESSES_MAX: usize = 50_000;
/// Maximum number of bytes read of a process's mappings.
const MAPS_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Where packages install code. Deleted files elsewhere are created by programs themselves:
/// `/memfd:`, `/dev/zero`, `/SYSV00000000`, compiler output under `/tmp`.
const CODE_DIRS: [&str; 7] = ["/usr/", "/lib/", "/lib32/", "/lib64/", "/bin/", "/sbin/", "/opt/"];
/// Directories for files of the administrator, which belong to no package.
const UNPACKAGED_DIRS: [&str; 1] = ["/usr/local/"];

/// Every process of the managed system that runs outdated code. Processes that end during the
/// inspection, or that may not be inspected, are skipped.
pub(super) fn find_outdated(proc: &Path, root: &Root) -> Vec<Process> {
    let Ok(own) = fs::metadata(root.dir()) else { return Vec::new() };
    let Ok(entries) = fs::read_dir(proc) else { return Vec::new() };
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_str().is_some_and(is_process))
        .take(PROCESSES_MAX)
        .filter(|entry| {
            // Compared by device and inode, not by path: the root of a container is called `/` as
            // well.
            fs::metadata(entry.path().join("root"))
                .is_ok_and(|root| (root.dev(), root.ino()) == (own.dev(), own.ino()))
        })
        .filter_map(|entry| inspect(&entry.path(), root))
        .collect()
}

fn inspect(process: &Path, root: &Root) -> Option<Process> {
    // A kernel thread has no executable.
    let program = fs::read_link(process.join("exe")).ok()?;
    let mut maps = Vec::new();
    File::open(process.join("maps")).ok()?.take(MAPS_BYTES_MAX).read_to_end(&mut maps).ok()?;
    let mut gone = deleted_mappings(&String::from_utf8_lossy(&maps));
    gone.extend(
        program.to_str().and_then(|path| path.strip_suffix(DELETED_SUFFIX)).map(str::to_owned),
    );
    let gone: BTreeSet<String> =
        gone.iter().map(|path| path_in_root(path, root)).filter(|path| is_code(path)).collect();
    if gone.is_empty() {
        return None;
    }
    let name = fs::read_to_string(process.join("comm")).ok()?;
    let groups = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
    Some(Process {
        name: name.trim_end().to_owned(),
        unit: unit_from_cgroup(&groups),
        deleted_files: gone,
    })
}

const DELETED_SUFFIX: &str = " (deleted)";

/// The deleted files among the executable mappings:
/// `7f…-7f… r-xp 00001000 08:01 1234    /usr/lib/libfoo.so.1 (deleted)`.
fn deleted_mappings(maps: &str) -> BTreeSet<String> {
    let deleted = |line: &str| {
        let line = line.strip_suffix(DELETED_SUFFIX)?;
        let rights = line.split(' ').nth(1)?;
        let path = &line[line.find('/')?..];
        rights.contains('x').then(|| path.to_owned())
    };
    maps.lines().filter_map(deleted).collect()
}

/// The kernel reports paths as the reader sees them: under `--root` they start with the root
/// directory, unless the process has its own mounts.
fn path_in_root(path: &str, root: &Root) -> String {
    match Path::new(path).strip_prefix(root.dir()) {
        Ok(rest) => format!("/{}", rest.display()),
        Err(_) => path.to_owned(),
    }
}

fn is_code(path: &str) -> bool {
    let below = |folders: &[&str]| folders.iter().any(|folder| path.starts_with(folder));
    below(&CODE_DIRS) && !below(&UNPACKAGED_DIRS)
}

/// The system service of this cgroup. User services are not the system's to restart.
fn unit_from_cgroup(groups: &str) -> Option<String> {
    // systemd's own hierarchy: the only one (`0::`), or, next to others, the one named `systemd`.
    let systemd = |line: &&str| line.starts_with("0::") || line.contains(":name=systemd:");
    groups.lines().filter(systemd).find_map(|line| {
        let parts: Vec<&str> = line.splitn(3, ':').nth(2)?.split('/').collect();
        let at = parts.iter().position(|part| part.ends_with(".service"))?;
        let users = |part: &&str| *part == "user.slice" || part.starts_with("user@");
        (!parts[..=at].iter().any(users)).then(|| parts[at].to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_deleted_executable_files_count() {
        let maps = "\
55d0c0a00000-55d0c0a2f000 r--p 00000000 08:01 131 /usr/sbin/sshd (deleted)
55d0c0a2f000-55d0c0ab4000 r-xp 0002f000 08:01 131 /usr/sbin/sshd (deleted)
7f1b5c000000-7f1b5c021000 r--p 00000000 08:01 900 /usr/lib/locale/locale-archive (deleted)
7f1b5d000000-7f1b5d155000 r-xp 00026000 08:01 901 /usr/lib/x86_64-linux-gnu/libc.so.6
7f1b5e000000-7f1b5e155000 r-xp 00026000 08:01 902 /opt/with space/lib a.so (deleted)
7f1b5f000000-7f1b5f155000 rwxs 00000000 00:01 903 /memfd:jit (deleted)
7f1b60000000-7f1b60155000 r-xp 00000000 00:01 904 /usr/local/lib/own.so (deleted)
7ffd3e5f0000-7ffd3e611000 rw-p 00000000 00:00 0 [stack]
";
        let gone: Vec<_> =
            deleted_mappings(maps).into_iter().filter(|path| is_code(path)).collect();
        assert_eq!(gone, ["/opt/with space/lib a.so", "/usr/sbin/sshd"]);
    }

    #[test]
    fn service_is_derived_from_the_cgroup() {
        let unit = |groups: &str| unit_from_cgroup(groups);
        let ssh = Some("ssh.service".to_owned());
        assert_eq!(unit("0::/system.slice/ssh.service\n"), ssh);
        assert_eq!(unit("12:pids:/x.service\n1:name=systemd:/system.slice/ssh.service\n"), ssh);
        assert_eq!(unit("0::/lxc/web/system.slice/ssh.service\n"), ssh);
        let getty = "0::/system.slice/system-getty.slice/getty@tty1.service";
        assert_eq!(unit(getty).as_deref(), Some("getty@tty1.service"));
        let below = "0::/system.slice/docker.service/payload/x.service";
        assert_eq!(unit(below).as_deref(), Some("docker.service"));
        assert_eq!(unit("0::/user.slice/user-1000.slice/session-3.scope\n"), None);
        let users = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/vim.service\n";
        assert_eq!(unit(users), None);
        assert_eq!(unit("0::/init.scope\n"), None);
        assert_eq!(unit(""), None);
    }
}
