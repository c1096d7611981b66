//! The agent that runs on every server. It reports installed packages and pending updates, and
//! installs updates with the host's own package manager.
//!
//! - [`backend`]: the supported package managers, which commands to run and how to parse their
//!   output.
//! - [`work`]: executes orders and records every step, so that a crash never loses a result.
//! - [`shell`]: the command line, the state directory and the connection to the service.
//! - [`host`]: facts about the host, its processes and whether it can be rebooted.
//! - [`root`]: the managed system, which may differ from the running one.

pub mod backend;
pub mod command;
pub mod host;
pub mod output;
pub mod root;
pub mod shell;
pub mod work;
