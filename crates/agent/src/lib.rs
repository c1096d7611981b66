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

/// The version of the agent, in a form that a service finds in the program's file. The service may
/// run on another architecture, so it cannot run the program to ask.
#[used]
static RELEASE: &str =
    concat!("fleetmend-agent release ", env!("CARGO_PKG_VERSION"), " (end of release)");

/// The version of this agent.
pub fn version() -> &'static str {
    // Reads the static, so that the version in the file and the reported one are always the same.
    let release = std::hint::black_box(RELEASE);
    release.split(' ').nth(2).unwrap_or_default()
}

/// The public key of the publisher of this agent, in base64: upgrades must be signed with it. Set
/// when a package is built; without it, the agent accepts no upgrade. The control plane does not
/// have the private key, so even a hostile one cannot replace agents with its own program.
#[used]
static RELEASE_KEY: &str = match option_env!("FLEETMEND_RELEASE_PUBLIC_KEY") {
    Some(key) => key,
    None => "NO-RELEASE-KEY-NO-RELEASE-KEY-NO-RELEASE-KEY",
};

/// The key that verifies upgrades of this agent, if it was built with one.
pub fn release_key() -> Option<&'static str> {
    let key = std::hint::black_box(RELEASE_KEY);
    (!key.starts_with("NO-RELEASE-KEY")).then_some(key)
}
