//! Shared test helpers: temporary directories.

mod scenario;
mod sim;
mod simulated_host;

use std::ops::Deref;
use std::path::{Path, PathBuf};

/// A directory that is removed at the end of its test.
pub(super) struct Directory(PathBuf);

pub(super) fn directory(name: &str) -> Directory {
    let dir = std::env::temp_dir().join(format!("fleetmend-work-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    Directory(dir)
}

impl Deref for Directory {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
