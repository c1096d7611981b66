//! `fleetmend-agent enroll`: a key is made on this host, and the host joins.

use std::path::PathBuf;

use agent_client::{AgentClient, ClientError, Connect, Identity, Joining, Token, Turn, nonce};
use anyhow::{Context as _, bail};
use vocab::{Environment, Tag};

use super::clock::now;
use super::state::{Enrolled, State};
use super::{root_of, state_dir_of};
use crate::backend;
use crate::host::Host;

/// Join a fleet: make a key on this host and tell the server about it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The token names the server's certificate, so the server is verified even if it signed its certificate
itself. A token that ends with `.plain` names none: an https:// server is then verified by this system's
trust store. Make one with `fleetmend tokens create` or in the dashboard.

Example:
  fleetmend-agent enroll --server https://fleet.example:7600 --token fme_… --environment production")]
pub struct Enroll {
    /// The server's address, such as `https://fleet.example:7600`
    #[arg(long, env = "FLEETMEND_SERVER")]
    server: String,
    /// The enrolment token; read from the environment it does not show in the list of processes
    #[arg(long, env = "FLEETMEND_ENROLLMENT_TOKEN", hide_env_values = true)]
    token: String,
    /// Where the agent keeps its state [default: /var/lib/fleetmend-agent of the managed system]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Manage the system that is installed under this directory instead of the running one
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// The environment that this host is in; the token's own comes first
    #[arg(long)]
    environment: Option<Environment>,
    /// A tag of this host; may be given several times
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<Tag>,
}

impl Enroll {
    /// Joins, and says under which id.
    pub async fn run(self) -> anyhow::Result<String> {
        let token: Token = self.token.parse()?;
        let root = root_of(self.root.as_deref())?;
        let state = State::open(&state_dir_of(self.state_dir, &root))?;
        let _lock = state.lock()?;
        if let Some(enrolled) = state.enrolled()?
            && state.removed()?.is_none()
        {
            bail!(
                "this host is enrolled already, as {} at {}: to join anew, remove it there and \
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

/// What to do about it, where that can be said.
fn advised(error: ClientError, server: &str) -> anyhow::Error {
    let advice = match &error {
        ClientError::Unreachable(_) => format!(
            "{server} cannot be reached, or it is not the server that the token names; check the \
             address, and that the token was made there"
        ),
        ClientError::Refused { .. } => "the server did not let this host in".to_owned(),
        ClientError::Busy { .. } => format!("{server} has no time now; try again in a minute"),
        ClientError::Removed | ClientError::Answer(_) | ClientError::Unproven { .. } => {
            format!("{server} is not a Fleetmend server")
        }
    };
    anyhow::Error::new(error).context(advice)
}

/// The context that every command needs who is enrolled already.
pub(super) fn enrolled(state: &State) -> anyhow::Result<Enrolled> {
    state.enrolled()?.with_context(|| {
        format!(
            "this host is not enrolled ({} holds no identity): run `fleetmend-agent enroll \
             --server URL --token TOKEN` first",
            state.dir().display()
        )
    })
}
