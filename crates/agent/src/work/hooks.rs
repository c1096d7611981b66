//! Hooks: the administrator's own programs in
//! `/etc/fleetmend/hooks/{pre-install,post-install,pre-reboot}.d/`.
//!
//! Hooks run in the order of their names, each for at most [`HOOK_SECONDS_MAX`] seconds. A failing
//! pre-install or pre-reboot hook stops the order as `hook_failed`. Post-install hooks run whenever
//! the pre-install hooks ran, whatever happened in between; if one fails, the order fails too and
//! the host is not rebooted. A hook that users other than its owner can write is not run and stops
//! the order: skipping it silently could patch a host that the hook was meant to protect.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use vocab::FailureCode;

use super::failure::Failure;
use super::limits::untrusted_reason;
use super::step::Action;
use crate::command::Command;

/// Timeout of a hook.
pub(super) const HOOK_SECONDS_MAX: u64 = 600;

/// The hooks of an action, ready to run with this environment.
pub(super) fn commands(
    hooks: &Path,
    act: Action,
    environment: &[(&str, String)],
) -> Result<Vec<Command>, Failure> {
    let dir = hooks.join(format!("{}.d", act.name()));
    let refuse = |path: &Path, why: String| {
        Failure::new(FailureCode::HookFailed, format!("{}: {why}", path.display()))
    };
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(refuse(&dir, format!("cannot be read: {error}"))),
    };
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| refuse(&dir, error.to_string()))?;
        if is_hook(&entry.path()) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    if let (false, Some(why)) = (paths.is_empty(), untrusted_reason(&dir)) {
        return Err(refuse(&dir, why));
    }
    let mut commands = Vec::new();
    for path in paths {
        if let Some(why) = untrusted_reason(&path) {
            return Err(refuse(&path, why));
        }
        let mut command = Command::new(&path.to_string_lossy());
        for (name, value) in environment {
            command = command.env(name, value);
        }
        commands.push(command);
    }
    Ok(commands)
}

/// Whether a file is meant to be run: executable, and not left behind by an editor or a package
/// manager.
fn is_hook(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let left = name.starts_with('.')
        || name.ends_with('~')
        || [".dpkg-", ".rpm", ".pac", ".bak"].iter().any(|part| name.contains(part));
    let found = fs::metadata(path);
    !left && found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}
