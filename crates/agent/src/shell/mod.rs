//! The binary's own part: the state directory, joining, the loop of syncs, and what is printed.
//!
//! It has the clock and the network and decides nothing about packages: `work` carries orders out.

mod clock;
pub mod enroll;
pub mod run;
pub mod scan;
pub mod state;
pub mod status;
mod talk;

use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::root::Root;

/// Where the agent keeps its state, inside the managed system.
pub const STATE_DIR: &str = "/var/lib/fleetmend-agent";
/// What the host's administrator allows; it has the last word.
pub const LIMITS: &str = "/etc/fleetmend/limits.toml";
/// The administrator's own programs.
pub const HOOKS: &str = "/etc/fleetmend/hooks";

/// The system that is meant: the running one, or the one under `dir`.
pub fn root_of(dir: Option<&Path>) -> anyhow::Result<Root> {
    let Some(dir) = dir else { return Ok(Root::running()) };
    let Ok(absolute) = dir.canonicalize() else {
        bail!("there is no directory {}", dir.display());
    };
    Ok(Root::under(&absolute))
}

/// The state directory that is meant: the one named, or the usual one of the managed system.
pub fn state_dir_of(named: Option<PathBuf>, root: &Root) -> PathBuf {
    named.unwrap_or_else(|| root.path(STATE_DIR))
}
