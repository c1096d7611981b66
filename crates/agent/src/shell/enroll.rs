//! `fleetmend-agent enroll`: creates a key on this host and enrolls the host with a service.

use std::path::PathBuf;

use agent_client::{
    AgentClient, ClientError, ConnectOptions, EnrollOptions, Identity, SyncCounter, Token, nonce,
};
use anyhow::{Context as _, bail};
use vocab::{Environment, Tag};

use super::clock::now;
use super::state::{Enrollment, StateDir};
use super::{resolve_root, resolve_state_dir};
use crate::backend;
use crate::host::Host;

/// Enroll this host: create a key and register it with the service
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The token contains the hash of the service's certificate, so the agent can verify a self-signed
certificate too. A token that ends with `.plain` contains no hash: at an https:// address, the agent
uses this host's trust store. Create a token with `fleetmend tokens create` or in the dashboard.

Example:
  fleetmend-agent enroll --server https://fleet.example:7600 --token fme_… --environment production")]
pub struct Enroll {
    /// Address of the service, such as `https://fleet.example:7600`
    #[arg(long, env = "FLEETMEND_SERVER")]
    server: String,
    /// Enrollment token (set the environment variable to keep it out of the process list)
    #[arg(long, env = "FLEETMEND_ENROLLMENT_TOKEN", hide_env_values = true)]
    token: String,
    /// State directory [default: /var/lib/fleetmend-agent of the managed system]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Manage the system installed under this directory instead of the running one
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Environment of this host; an environment set by the token takes precedence
    #[arg(long)]
    environment: Option<Environment>,
    /// Tag of this host; can be repeated
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<Tag>,
}

impl Enroll {
    /// Enrolls the host and returns its server id.
    pub async fn run(self) -> anyhow::Result<String> {
        let token: Token = self.token.parse()?;
        let root = resolve_root(self.root.as_deref())?;
        let state = StateDir::open(&resolve_state_dir(self.state_dir, &root))?;
        let _lock = state.lock()?;
        if let Some(enrolled) = state.enrollment()?
            && state.removed_at()?.is_none()
        {
            bail!(
                "this host is already enrolled as {} at {}; to enroll again, remove it there and \
                 delete {}",
                enrolled.server_id,
                enrolled.url,
                state.dir().display()
            );
        }
        let backend = backend::detect(&root)?;
        let facts = Host::new(root).facts(backend.as_ref());
        let link =
            AgentClient::new(ConnectOptions { url: &self.server, pin: token.pin(), from: None })?;
        let key = state.enrollment_key()?;
        let options = EnrollOptions { facts, environment: self.environment, tags: self.tags };
        let response = link
            .enroll(&token, &key, options)
            .await
            .map_err(|error| with_advice(error, &self.server))?;
        let counter = SyncCounter::new(response.counter, nonce());
        let identity = Identity::new(key, response)?;
        let root = self.root.as_deref().map(std::path::Path::canonicalize).transpose()?;
        let enrolled =
            Enrollment::new(&identity, &self.server, token.pin(), root.as_deref(), now());
        state.save_enrollment(&enrolled, counter)?;
        Ok(identity.server_id.to_string())
    }
}

/// Adds advice on what to do about the error.
fn with_advice(error: ClientError, server: &str) -> anyhow::Error {
    let advice = match &error {
        ClientError::Unreachable(_) => format!(
            "cannot reach {server}, or its certificate does not match the token; check the \
             address, and that the token was created on that service"
        ),
        ClientError::Refused { .. } => "the service rejected the enrollment".to_owned(),
        ClientError::Busy { .. } => format!("{server} is busy; try again in a minute"),
        ClientError::Removed | ClientError::InvalidResponse(_) | ClientError::Unverified { .. } => {
            format!("{server} is not a Fleetmend service")
        }
    };
    anyhow::Error::new(error).context(advice)
}

/// The stored enrollment, or an error that says how to enroll.
pub(super) fn require_enrollment(state: &StateDir) -> anyhow::Result<Enrollment> {
    state.enrollment()?.with_context(|| {
        format!(
            "this host is not enrolled (no identity in {}): run `fleetmend-agent enroll \
             --server URL --token TOKEN` first",
            state.dir().display()
        )
    })
}
