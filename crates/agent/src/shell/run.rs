//! `fleetmend-agent run`: the agent process. Runs until it gets a signal, or until the service
//! removes the host.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent_client::{AgentClient, ConnectOptions};
use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use super::clock::now;
use super::enroll::require_enrollment;
use super::state::StateDir;
use super::sync_loop::{SyncLoop, SyncState};
use super::upgrade::check_replaceable;
use super::{HEALTH_HOOKS_DIR, HOOKS_DIR, LIMITS_FILE, resolve_root, resolve_state_dir};
use crate::backend;
use crate::host::Host;
use crate::output::note;
use crate::work::{AgentReplacement, Worker, WorkerConfig};

/// Interval between periodic scans.
const SCAN_INTERVAL: Duration = Duration::from_secs(4 * 3_600);

/// How long the first scan may take before the package lists are refreshed anyway.
const FIRST_SCAN_TIMEOUT: Duration = Duration::from_secs(30);
const FIRST_SCAN_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Report packages and execute orders until stopped
#[derive(Debug, clap::Args)]
#[command(after_help = "\
SIGUSR1 starts a scan immediately. When the agent stops, a running package manager continues; the
agent collects its result when it starts again.

Example:
  fleetmend-agent run --state-dir /var/lib/fleetmend-agent")]
pub struct Run {
    /// State directory [default: /var/lib/fleetmend-agent of the managed system]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Managed system, if it differs from the one given at enrollment
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Server address, if it has changed since enrollment
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Host limits [default: /etc/fleetmend/limits.toml of the managed system]
    #[arg(long, value_name = "FILE")]
    limits: Option<PathBuf>,
    /// How long a new agent has to reach the service after an upgrade, before the previous one is
    /// restored
    #[arg(long, value_name = "SECONDS", default_value_t = 120,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    upgrade_timeout: u64,
    /// Report the current packages first, and only then refresh the package lists
    #[arg(long, hide = true)]
    look_first: bool,
}

impl Run {
    /// Runs until it gets a signal, or until the service removes this host. Returns why it ended.
    pub async fn run(self) -> anyhow::Result<String> {
        let named = resolve_root(self.root.as_deref())?;
        let state = StateDir::open(&resolve_state_dir(self.state_dir, &named))?;
        let _lock = state.lock()?;
        let mut enrolled = require_enrollment(&state)?;
        if let Some(at) = state.removed_at()? {
            return Ok(format!(
                "{} removed this host at {at}; the agent is inactive. To enroll again, run \
                 `fleetmend-agent enroll`",
                enrolled.url
            ));
        }
        if let Err(error) = state.copy_identity(&enrolled) {
            note(&format!("{error:#}"));
        }
        if let Some(moved) = self.server {
            enrolled.url = moved;
        }
        let root = resolve_root(self.root.as_deref().or(enrolled.root.as_deref()))?;
        let backend = backend::detect(&root)?;
        let host = Arc::new(Host::new(root.clone()));
        let found = (now(), host.facts(backend.as_ref()));
        let wakeup = Arc::new(Notify::new());
        let notifier = wakeup.clone();
        // Read now: after an upgrade, the link points to the previous program.
        let program = std::env::current_exe().context("cannot find the agent's own program")?;
        let worker = Worker::start(WorkerConfig {
            replace: AgentReplacement {
                allowed: check_replaceable(&program, &root),
                program: program.clone(),
                timeout_seconds: self.upgrade_timeout,
            },
            state_dir: state.dir().to_owned(),
            limits: self.limits.unwrap_or_else(|| root.path(LIMITS_FILE)),
            hooks: root.path(HOOKS_DIR),
            health_hooks: root.path(HEALTH_HOOKS_DIR),
            root,
            backend,
            host: host.clone(),
            program: "/proc/self/exe".into(),
            notify: Box::new(move || notifier.notify_one()),
            clock: Box::new(now),
        })
        .context("cannot resume from the order journal")?;
        let worker = Arc::new(worker);
        let client = AgentClient::new(ConnectOptions {
            url: &enrolled.url,
            pin: enrolled.pin()?,
            from: None,
        })?;
        let identity = Arc::new(enrolled.identity()?);
        let memory =
            SyncState::new(state.sync_counter(now())?, state.contact(), identity.signs_answers());
        let mut sync_loop = SyncLoop {
            client,
            identity,
            state,
            worker: worker.clone(),
            host,
            wakeup,
            startup_facts: found,
            sync_state: memory,
        };
        note(&format!("started as {}, connecting to {}", enrolled.server_id, enrolled.url));
        let (mut term, mut int) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let mut replaced = signal(SignalKind::user_defined2())?;
        tokio::select! {
            talked = sync_loop.run() => {
                talked?;
                Ok(format!("{} removed this host; the agent is inactive", enrolled.url))
            }
            _ = term.recv() => Ok("stopped".to_owned()),
            _ = int.recv() => Ok("stopped".to_owned()),
            _ = replaced.recv() => {
                note("the agent was upgraded; starting the new version");
                // Only returns if it fails. The service manager then starts the new version.
                let failed = std::process::Command::new(&program)
                    .args(std::env::args_os().skip(1))
                    .exec();
                Err(failed).with_context(|| format!("cannot start {}", program.display()))
            }
            never = scan_periodically(&worker, self.look_first) => never,
        }
    }
}

/// Starts scans: at startup, every few hours, and on SIGUSR1.
async fn scan_periodically(worker: &Worker, look_first: bool) -> anyhow::Result<String> {
    let mut scan_signal = signal(SignalKind::user_defined1())?;
    if look_first {
        worker.scan_without_refresh();
        // A failed scan leaves no report; the refreshing scan below runs after the timeout.
        let looked = async {
            while worker.report().scan.is_none() {
                tokio::time::sleep(FIRST_SCAN_POLL_INTERVAL).await;
            }
        };
        let _ = tokio::time::timeout(FIRST_SCAN_TIMEOUT, looked).await;
    }
    loop {
        worker.scan();
        tokio::select! { () = tokio::time::sleep(SCAN_INTERVAL) => {} _ = scan_signal.recv() => {} }
    }
}
