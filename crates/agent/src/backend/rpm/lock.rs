//! Finds the holder of a lock: from pid files, and from locks that the kernel knows of.

use std::fs::{self, OpenOptions};
use std::path::Path;

use rustix::process::{Flock, FlockType, fcntl_getlk};

use crate::backend::LockHolder;

/// The process named in a pid file, if it is alive. An ended process may leave its file behind; the
/// package managers ignore such files too.
pub(crate) fn pid_file_holder(path: &Path) -> Option<LockHolder> {
    let pid: i32 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    (pid > 0 && Path::new(&format!("/proc/{pid}")).exists()).then(|| lock_holder(pid))
}

/// Like [`pid_file_holder`], for a file that is always left behind: its pid may have been reused by
/// another program, so the process must have loaded `library`.
pub(crate) fn pid_file_holder_with_library(path: &Path, library: &str) -> Option<LockHolder> {
    let found = pid_file_holder(path)?;
    let loaded = fs::read_to_string(format!("/proc/{}/maps", found.pid?)).unwrap_or_default();
    loaded.contains(library).then_some(found)
}

/// The process that has locked a file or a part of it.
pub(crate) fn file_lock_holder(path: &Path) -> Option<LockHolder> {
    // The query requires a file opened for writing; nothing is written.
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    let found = fcntl_getlk(&file, &Flock::from(FlockType::WriteLock)).ok()??;
    match found.pid {
        Some(pid) => Some(lock_holder(pid.as_raw_nonzero().get())),
        // A process of another PID namespace has no pid here.
        None => Some(LockHolder { pid: None, name: "a process in another PID namespace".into() }),
    }
}

fn lock_holder(pid: i32) -> LockHolder {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = if name.trim().is_empty() { "a process" } else { name.trim() };
    LockHolder { pid: Some(pid), name: format!("{name} (pid {pid})").into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_file_counts_only_while_its_process_is_alive() {
        let path = std::env::temp_dir().join(format!("lock-{}.pid", std::process::id()));
        fs::write(&path, std::process::id().to_string()).unwrap();
        let ours = pid_file_holder(&path).unwrap();
        assert_eq!(ours.pid, i32::try_from(std::process::id()).ok());
        assert!(ours.name.as_str().ends_with(&format!("(pid {})", std::process::id())));
        assert_eq!(
            pid_file_holder_with_library(&path, "libzypp"),
            None,
            "the test process is not zypper"
        );
        assert!(pid_file_holder_with_library(&path, "libc").is_some());
        // The kernel's highest pid is far below this number.
        for stale in ["2147483647", "", "zypper", "-1"] {
            fs::write(&path, stale).unwrap();
            assert_eq!(pid_file_holder(&path), None, "{stale}");
        }
        assert_eq!(file_lock_holder(&path), None, "the file is not locked");
        fs::remove_file(&path).unwrap();
        assert_eq!(pid_file_holder(&path), None);
        assert_eq!(file_lock_holder(&path), None);
    }
}
