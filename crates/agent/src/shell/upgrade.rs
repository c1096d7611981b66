//! `fleetmend-agent upgrade` and `restore`: replace the agent's own program, and undo that.
//!
//! An order to upgrade the agent runs `upgrade` as a job in its own session, so it survives the
//! restart of the agent and the restarted agent reports its result:
//!
//! 1. Verify that the publisher of this agent signed the digest in the order. The control plane does
//!    not have the publisher's key. Then download the program from the service, and verify its size,
//!    its digest and its version.
//! 2. Keep the current program as `fleetmend-agent.previous`, and rename the new one over it.
//! 3. Signal the agent, which replaces its process with the new program.
//! 4. Wait until the new agent has synced. If it does not within the timeout, put the previous
//!    program back and end the new agent, so that the service manager starts the previous one.
//!
//! If the host goes down in between, the service manager runs `restore` with the previous program
//! before it starts the agent.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_client::{AgentClient, ConnectOptions};
use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use vocab::Line;
use wire::agent::release_signing_text;

use super::STATE_DIR;
use super::clock::pause;
use super::enroll::require_enrollment;
use super::state::StateDir;
use crate::command::Command;
use crate::host::Host;
use crate::root::Root;

/// Exists from before the program is replaced until the new agent has synced.
const PENDING_FILE: &str = "upgrade.json";
/// How often the state of the agents is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an agent has to stop after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Replace this agent with the one that the service carries (started by the agent, not by users)
#[derive(Debug, clap::Args)]
pub struct Upgrade {
    #[arg(long, value_name = "DIR")]
    state_dir: PathBuf,
    /// The agent's program
    #[arg(long, value_name = "FILE")]
    program: PathBuf,
    /// The expected version
    #[arg(long)]
    version: String,
    #[arg(long)]
    sha256: String,
    #[arg(long)]
    size_bytes: u64,
    /// The publisher's signature
    #[arg(long)]
    signature: String,
    /// How long the new agent has to reach the service
    #[arg(long, value_name = "SECONDS")]
    timeout: u64,
}

/// Put the previous agent back if the host went down during an upgrade (started by the service
/// manager)
#[derive(Debug, clap::Args)]
pub struct Restore {
    /// State directory [default: /var/lib/fleetmend-agent]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// An upgrade that no sync of the new agent has confirmed.
#[derive(Debug, Serialize, Deserialize)]
struct PendingUpgrade {
    program: PathBuf,
    boot_id: Line,
}

/// Why the agent at this path cannot replace itself, if it cannot.
pub(super) fn check_replaceable(program: &Path, root: &Root) -> Result<(), Line> {
    if !root.is_running_system() {
        return Err("this agent manages another directory; upgrade it by hand".into());
    }
    if crate::release_key().is_none() {
        return Err("this agent was built without the key of a publisher, so it cannot verify an \
                    upgrade; run the install command again to upgrade it"
            .into());
    }
    if program.starts_with("/usr/bin") || program.starts_with("/bin") {
        return Err(
            "the agent was installed as a package; upgrade it with the package manager".into()
        );
    }
    match program.is_file() {
        true => Ok(()),
        false => Err(Line::sanitize(&format!("{} does not exist", program.display()))),
    }
}

/// The path of the previous program.
fn previous(program: &Path) -> PathBuf {
    let mut path = program.as_os_str().to_owned();
    path.push(".previous");
    path.into()
}

impl Upgrade {
    /// Upgrades the agent. Prints what happens: the output becomes the log of the order.
    pub async fn run(self) -> anyhow::Result<String> {
        if !self.is_signed() {
            bail!("the new agent is not signed by the publisher of this one; nothing was replaced");
        }
        let state = StateDir::open(&self.state_dir)?;
        let new = self.program.with_file_name(".fleetmend-agent.new");
        let replaced = self.replace(&state, &new).await;
        let _ = fs::remove_file(&new);
        replaced?;
        let before = state.contact().last_sync_at;
        // An agent that does not run now is started with the new program by the service manager.
        if let Some(pid) = state.agent_process() {
            let _ = kill_process(pid, Signal::USR2);
        }
        if self.wait_for_sync(&state, before) {
            remove_pending(&state)?;
            return Ok(format!("the agent {} has synced", self.version));
        }
        put_back(&self.program)?;
        remove_pending(&state)?;
        stop_agent(&state);
        bail!(
            "the agent {} did not reach the service within {} seconds; {} was restored",
            self.version,
            self.timeout,
            crate::version()
        )
    }

    /// Whether the publisher of this agent signed the digest of the new one.
    fn is_signed(&self) -> bool {
        let text = release_signing_text(&self.version, std::env::consts::ARCH, &self.sha256);
        let key = crate::release_key().and_then(|key| STANDARD.decode(key).ok());
        let signature = STANDARD.decode(&self.signature).ok();
        let (Some(key), Some(signature)) = (key, signature) else { return false };
        agent_client::is_signed_by(&key, text.as_bytes(), &signature)
    }

    async fn replace(&self, state: &StateDir, new: &Path) -> anyhow::Result<()> {
        let enrolled = require_enrollment(state)?;
        let client = AgentClient::new(ConnectOptions {
            url: &enrolled.url,
            pin: enrolled.pin()?,
            from: None,
        })?;
        let bytes = client
            .download_release(std::env::consts::ARCH, self.size_bytes, &self.sha256)
            .await
            .context("cannot download the agent")?;
        let mut file =
            fs::File::create(new).with_context(|| format!("cannot write to {}", new.display()))?;
        file.write_all(&bytes)
            .and_then(|()| file.sync_all())
            .with_context(|| format!("cannot write to {}", new.display()))?;
        drop((file, bytes));
        fs::set_permissions(new, fs::Permissions::from_mode(0o755))?;
        let shown = Command::new(&new.to_string_lossy()).arg("--version").query(VERSION_TIMEOUT);
        let shown = shown.context("the new agent does not run on this system")?;
        let expected = format!("fleetmend-agent {}", self.version);
        if shown.exit != Some(0) || shown.stdout.trim() != expected {
            bail!(
                "the new agent reports `{}` instead of `{expected}`; nothing was replaced",
                Line::sanitize(shown.stdout.trim())
            );
        }
        let backup = previous(&self.program);
        let copy = backup.with_extension("previous.new");
        fs::copy(&self.program, &copy)
            .and_then(|_| fs::File::open(&copy)?.sync_all())
            .and_then(|()| fs::rename(&copy, &backup))
            .with_context(|| format!("cannot keep the current agent as {}", backup.display()))?;
        let pending = PendingUpgrade {
            program: self.program.clone(),
            boot_id: Host::new(Root::running()).boot_id(),
        };
        crate::work::files::write_json(&state.dir().join(PENDING_FILE), &pending)?;
        fs::rename(new, &self.program)
            .with_context(|| format!("cannot replace {}", self.program.display()))
    }

    /// Waits until an agent of the new version has synced.
    fn wait_for_sync(&self, state: &StateDir, before: Option<jiff::Timestamp>) -> bool {
        let checks = u128::from(self.timeout) * 1_000 / CHECK_INTERVAL.as_millis();
        (0..=checks).any(|_| {
            pause(CHECK_INTERVAL);
            let contact = state.contact();
            contact.agent_version.as_deref() == Some(self.version.as_str())
                && contact.trouble.is_none()
                && contact.last_sync_at != before
        })
    }
}

impl Restore {
    pub fn run(self) -> anyhow::Result<String> {
        let dir = self.state_dir.unwrap_or_else(|| STATE_DIR.into());
        let file = dir.join(PENDING_FILE);
        let found: Option<PendingUpgrade> = crate::work::files::read_json(&file)?;
        let Some(pending) = found else { return Ok(String::new()) };
        // In the same boot, the upgrade itself is still waiting for the new agent.
        if pending.boot_id == Host::new(Root::running()).boot_id() {
            return Ok(String::new());
        }
        put_back(&pending.program)?;
        fs::remove_file(&file)?;
        Ok("the host went down during an upgrade of the agent; restored the previous one"
            .to_owned())
    }
}

/// Renames the previous program over the current one. A rename needs no disk space.
fn put_back(program: &Path) -> anyhow::Result<()> {
    let backup = previous(program);
    fs::rename(&backup, program).with_context(|| format!("cannot restore {}", backup.display()))
}

fn remove_pending(state: &StateDir) -> anyhow::Result<()> {
    let file = state.dir().join(PENDING_FILE);
    fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))
}

/// Ends the running agent, if there is one. The service manager starts it again.
fn stop_agent(state: &StateDir) {
    let Some(pid) = state.agent_process() else { return };
    let _ = kill_process(pid, Signal::TERM);
    let checks = STOP_TIMEOUT.as_millis() / CHECK_INTERVAL.as_millis();
    let stopped = (0..checks).any(|_| {
        pause(CHECK_INTERVAL);
        state.agent_process() != Some(pid)
    });
    if !stopped {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// The process id in a lock file.
pub(super) fn parse_process_id(text: &str) -> Option<Pid> {
    text.trim().parse().ok().and_then(Pid::from_raw)
}
