//! The command-line interface: the state directory, enrollment, the sync loop and printed output.
//!
//! This module owns the clock and the network. It makes no decisions about packages; `work`
//! executes orders.

mod clock;
pub mod enroll;
pub mod run;
pub mod scan;
pub mod state;
pub mod status;
mod sync_loop;
pub mod upgrade;

use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::root::Root;

/// The default state directory, inside the managed system.
pub const STATE_DIR: &str = "/var/lib/fleetmend-agent";
/// The host limits, set by the host's administrator. They override every order.
pub const LIMITS_FILE: &str = "/etc/fleetmend/limits.toml";
/// Directory of the administrator's hooks.
pub const HOOKS_DIR: &str = "/etc/fleetmend/hooks";
pub const HEALTH_HOOKS_DIR: &str = "/etc/fleetmend/health.d";

/// The running system, or the one under `dir`.
pub fn resolve_root(dir: Option<&Path>) -> anyhow::Result<Root> {
    let Some(dir) = dir else { return Ok(Root::running()) };
    let Ok(absolute) = dir.canonicalize() else {
        bail!("directory {} does not exist", dir.display());
    };
    Ok(Root::under(&absolute))
}

/// The given state directory, or the default one of the managed system.
pub fn resolve_state_dir(named: Option<PathBuf>, root: &Root) -> PathBuf {
    named.unwrap_or_else(|| root.path(STATE_DIR))
}
