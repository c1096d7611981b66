//! Detects whether the running kernel was replaced, for package managers that do not record this.

use std::fs;
use std::path::PathBuf;

use vocab::Line;

use super::BackendError;
use crate::root::Root;

/// A reason to reboot if the modules of the running kernel are gone while another kernel's exist:
/// its package was updated, and the running kernel can no longer load modules. `None` for a system
/// without its own kernel, or with an empty `running`.
pub(super) fn replaced_kernel(root: &Root, running: &str) -> Result<Option<Line>, BackendError> {
    let folders = ["/usr/lib/modules", "/lib/modules"].map(|path| root.path(path));
    if running.is_empty() || folders.iter().any(|folder| folder.join(running).is_dir()) {
        return Ok(None);
    }
    let mut installed: Vec<String> = Vec::new();
    for folder in folders {
        installed.extend(kernels_in(&folder)?);
    }
    installed.sort();
    installed.dedup();
    let reason = format!("running kernel {running}, installed {}", installed.join(", "));
    Ok((!installed.is_empty()).then(|| Line::sanitize(&reason)))
}

/// The kernels that have modules here. A directory left behind by an old kernel contains no module
/// list.
fn kernels_in(folder: &PathBuf) -> Result<Vec<String>, BackendError> {
    let unreadable = |error: std::io::Error| BackendError::Unreadable {
        what: folder.display().to_string(),
        why: error.to_string(),
    };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(unreadable)?.path();
        let is_kernel = ["modules.builtin", "modules.order", "modules.dep"]
            .iter()
            .any(|list| path.join(list).is_file());
        if is_kernel && let Some(name) = path.file_name().and_then(|name| name.to_str()) {
            found.push(name.to_owned());
        }
    }
    Ok(found)
}
