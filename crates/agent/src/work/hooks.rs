//! Hooks: the administrator's own programs in
//! `/etc/fleetmend/hooks/{pre-install,post-install,pre-reboot}.d/`.
//!
//! Hooks run in the order of their names, each for at most [`HOOK_SECONDS_MAX`] seconds. A failing
//! pre-install or pre-reboot hook stops the order as `hook_failed`. Post-install hooks run whenever
//! the pre-install hooks ran, whatever happened in between; if one fails, the order fails too and
//! the host is not rebooted. A hook that users other than its owner can write is not run and stops
//! the order: skipping it silently could patch a host that the hook was meant to protect.
//!
//! Health hooks in `/etc/fleetmend/health.d/` check the host before and after a change. They never
//! stop an order; their exit codes are part of the health report.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use vocab::FailureCode;

use super::failure::Failure;
use super::limits::untrusted_reason;
use super::step::Action;
use crate::command::{Command, wait};
use crate::host::health::HookState;

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

/// Timeout of a health hook.
const HEALTH_HOOK_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of health hooks that are run.
const HEALTH_HOOKS_MAX: usize = 20;
/// How often the agent checks whether it should stop, while a health hook runs.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum length of a hook's name in a report.
const NAME_LENGTH_MAX: usize = 200;

/// Runs the health hooks of the host's administrator, in the order of their names, each for at most
/// a minute. They check the host and change nothing, so one that takes longer is killed with its
/// process group. `on_poll` returns whether to continue; `None` if it does not. `log` receives why a
/// hook failed.
pub(super) fn run_health_hooks(
    dir: &Path,
    environment: &[(&str, String)],
    on_poll: &dyn Fn() -> bool,
    log: &dyn Fn(&str),
) -> Option<BTreeMap<String, HookState>> {
    let mut results = BTreeMap::new();
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(results),
        Err(error) => {
            log(&format!("{}: cannot be read: {error}", dir.display()));
            results.insert("health.d".to_owned(), HookState::Refused);
            return Some(results);
        }
    };
    let mut paths: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| is_hook(path)).collect();
    paths.sort();
    let dir_problem = untrusted_reason(dir);
    for (place, path) in paths.iter().enumerate() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name: String = name.chars().take(NAME_LENGTH_MAX).collect();
        let why = dir_problem.clone().or_else(|| untrusted_reason(path)).or_else(|| {
            (place >= HEALTH_HOOKS_MAX).then(|| format!("more than {HEALTH_HOOKS_MAX} hooks"))
        });
        let state = match why {
            Some(why) => {
                log(&format!("health hook {name} was not run: {why}"));
                HookState::Refused
            }
            None => match run_health_hook(path, environment, on_poll)? {
                Ok(()) => HookState::Passed,
                Err(why) => {
                    log(&format!("health hook {name} failed: {why}"));
                    HookState::Failed
                }
            },
        };
        results.insert(name, state);
        if place >= HEALTH_HOOKS_MAX {
            break;
        }
    }
    Some(results)
}

/// Runs one hook. The inner error says why it failed.
fn run_health_hook(
    path: &Path,
    environment: &[(&str, String)],
    on_poll: &dyn Fn() -> bool,
) -> Option<Result<(), String>> {
    let mut command = Command::new(&path.to_string_lossy());
    for (name, value) in environment {
        command = command.env(name, value);
    }
    let mut command = command.to_std_command();
    command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Some(Err(format!("cannot be started: {error}"))),
    };
    let mut left = HEALTH_HOOK_TIMEOUT;
    loop {
        match wait(&mut child, POLL_INTERVAL.min(left)) {
            Ok(Some(status)) if status.success() => return Some(Ok(())),
            Ok(Some(status)) => return Some(Err(status.to_string())),
            Err(error) => return Some(Err(error.to_string())),
            Ok(None) => left = left.saturating_sub(POLL_INTERVAL),
        }
        let goes_on = on_poll();
        if left.is_zero() || !goes_on {
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            let _ = child.wait();
            let seconds = HEALTH_HOOK_TIMEOUT.as_secs();
            return goes_on.then(|| Err(format!("killed after {seconds} s")));
        }
    }
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
