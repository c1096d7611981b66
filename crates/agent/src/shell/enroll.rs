//! `fleetmend-agent enroll`: creates a key on this host and enrolls the host with a server.

use std::path::PathBuf;

use agent_client::{AgentClient, ClientError, Connect, Identity, Joining, Token, Turn, nonce};
use anyhow::{Context as _, bail};
use vocab::{Environment, Tag};

use super::clock::now;
use super::state::{Enrolled, State};
use super::{root_of, state_dir_of};
use crate::backend;
use crate::host::Host;

/// Enroll this host: create a key and register it with the server
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The token contains the hash of the server's certificate, so a self-signed server is verified too.
A token that ends with `.plain` contains no hash: an https:// server is then verified by this host's
trust store. Create a token with `fleetmend tokens create` or in the dashboard.

Example:
  fleetmend-agent enroll --server https://fleet.example:7600 --token fme_… --environment production")]
pub struct Enroll {
    /// Server address, such as `https://fleet.example:7600`
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
        let root = root_of(self.root.as_deref())?;
        let state = State::open(&state_dir_of(self.state_dir, &root))?;
        let _lock = state.lock()?;
        if let Some(enrolled) = state.enrolled()?
            && state.removed()?.is_none()
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
        let link = AgentClient::new(Connect { url: &self.server, pin: token.pin(), from: None })?;
        let key = state.joining_key()?;
        let joining = Joining { facts, environment: self.environment, tags: self.tags };
        let answer = link
            .enroll(&token, &key, joining)
            .await
            .map_err(|error| advised(error, &self.server))?;
        let turn = Turn::after(answer.counter, nonce());
        let identity = Identity::new(key, answer)?;
        let root = self.root.as_deref().map(std::path::Path::canonicalize).transpose()?;
        let enrolled = Enrolled::new(&identity, &self.server, token.pin(), root.as_deref(), now());
        state.join(&enrolled, turn)?;
        Ok(identity.server_id.to_string())
    }
}

/// Adds advice on what to do about the error.
fn advised(error: ClientError, server: &str) -> anyhow::Error {
    let advice = match &error {
        ClientError::Unreachable(_) => format!(
            "cannot reach {server}, or its certificate does not match the token; check the \
             address, and that the token was created on that server"
        ),
        ClientError::Refused { .. } => "the server rejected the enrollment".to_owned(),
        ClientError::Busy { .. } => format!("{server} is busy; try again in a minute"),
        ClientError::Removed | ClientError::Answer(_) | ClientError::Unproven { .. } => {
            format!("{server} is not a Fleetmend server")
        }
    };
    anyhow::Error::new(error).context(advice)
}

/// The stored enrollment, or an error that says how to enroll.
pub(super) fn enrolled(state: &State) -> anyhow::Result<Enrolled> {
    state.enrolled()?.with_context(|| {
        format!(
            "this host is not enrolled (no identity in {}): run `fleetmend-agent enroll \
             --server URL --token TOKEN` first",
            state.dir().display()
        )
    })
}
