//! Saves the identities of the agents, so that a swarm can restart with the same hosts.
//!
//! The file is written at a clean shutdown and renamed at the next start. Starting from a copy that
//! is older than the last sync would make every host look like a clone. Such a copy is never
//! available by accident: after an unclean shutdown the file still has the suffix `.taken`. A
//! caller that knows the counters of the service can use that file nevertheless
//! ([`SavedAgents::recover`]).

use std::fs;
use std::io::{self, BufRead as _, BufReader, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use agent_client::{HostKey, Identity, SyncCounter, TrustedKeys, nonce};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::ServerId;

use crate::behavior::{Behavior, PersistentState, Worker};
use crate::fleet::Host;

/// The counter of a host that is enrolled and has not synced yet.
const FIRST_COUNTER: u64 = 1;
/// Added to the counter that the service has stored: the last syncs before a kill may be missing.
const RECOVERED_COUNTER_GAP: u64 = 1_000;
/// The sync interval until the service sets another one.
const SYNC_SECONDS: u32 = 30;

/// The agents of a swarm that was shut down cleanly.
#[derive(Debug, Default)]
pub struct SavedAgents {
    pub(crate) seed: u64,
    pub(crate) agents: Vec<SavedAgent>,
}

/// The first line of the file.
#[derive(Serialize, Deserialize)]
struct FileHeader {
    fleetmend_swarm: u32,
    seed: u64,
}

/// One agent: its identity, its sync counter and its journal.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SavedAgent {
    pub(crate) index: u64,
    server_id: ServerId,
    tag: String,
    orders_keys: Vec<String>,
    #[serde(default)]
    signs_answers: bool,
    key: String,
    pub(crate) turn: SyncCounter,
    pub(crate) sync_seconds: u32,
    pub(crate) durable: PersistentState,
}

/// Why saved identities cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    #[error("cannot read or write {}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// The swarm that last used the file did not shut down cleanly.
    #[error(
        "{} is left over from a swarm that did not shut down cleanly. Its hosts would look like clones: \
         delete the file and enroll again", path.display()
    )]
    Unclean { path: PathBuf },
    /// The file has another format.
    #[error("line {line} of {} is not a saved agent", path.display())]
    Malformed {
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
    },
}

impl SavedAgent {
    pub(crate) fn new(
        index: u64,
        identity: &Identity,
        sync_counter: SyncCounter,
        sync_seconds: u32,
        persistent: PersistentState,
    ) -> SavedAgent {
        SavedAgent {
            index,
            server_id: identity.server_id,
            tag: identity.tag.get(),
            orders_keys: identity
                .orders_keys
                .keys()
                .iter()
                .map(|key| STANDARD.encode(key))
                .collect(),
            signs_answers: identity.signs_answers(),
            key: STANDARD.encode(identity.key.seed()),
            turn: sync_counter,
            sync_seconds,
            durable: persistent,
        }
    }

    pub(crate) fn identity(&self) -> Option<Identity> {
        let bytes = |text: &str| STANDARD.decode(text).ok()?.try_into().ok();
        let orders_keys: Option<Vec<_>> = self.orders_keys.iter().map(|key| bytes(key)).collect();
        Some(Identity {
            server_id: self.server_id,
            tag: self.tag.clone().into(),
            orders_keys: TrustedKeys::new(orders_keys?)?,
            key: HostKey::from_seed(bytes(&self.key)?),
            signs_answers: self.signs_answers.into(),
        })
    }
}

fn taken_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".taken");
    name.into()
}

impl SavedAgents {
    /// Reads the agents from a file. `None` if the file does not exist yet. After starting the
    /// agents, the caller must call [`SavedAgents::mark_taken`].
    pub fn read(path: &Path) -> Result<Option<SavedAgents>, SavedError> {
        if taken_path(path).exists() {
            return Err(SavedError::Unclean { path: taken_path(path) });
        }
        SavedAgents::read_file(path)
    }

    /// Reads the agents after an unclean shutdown, in the state of the last clean one. `counter`
    /// returns the last sync counter that the service has stored for a server; the agent continues
    /// after it, so that it does not look like a clone.
    pub fn recover(
        path: &Path,
        counter: impl Fn(ServerId) -> Option<u64>,
    ) -> Result<Option<SavedAgents>, SavedError> {
        let Some(mut saved) = SavedAgents::read_file(&taken_path(path))? else { return Ok(None) };
        for agent in &mut saved.agents {
            let stored = counter(agent.server_id).unwrap_or(agent.turn.counter);
            let next = stored.max(agent.turn.counter).saturating_add(RECOVERED_COUNTER_GAP);
            agent.turn = SyncCounter::new(next, nonce());
        }
        // A kill during the last shutdown may have left an incomplete file.
        match fs::remove_file(path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(SavedError::File { path: path.to_owned(), source })
            }
            _ => Ok(Some(saved)),
        }
    }

    fn read_file(path: &Path) -> Result<Option<SavedAgents>, SavedError> {
        let failed = |source| SavedError::File { path: path.to_owned(), source };
        let file = match fs::File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        let mut saved = SavedAgents::default();
        for (place, text) in BufReader::new(file).lines().enumerate() {
            let text = text.map_err(failed)?;
            let malformed = |_| SavedError::Malformed { path: path.to_owned(), line: place + 1 };
            if place == 0 {
                saved.seed = serde_json::from_str::<FileHeader>(&text).map_err(malformed)?.seed;
            } else {
                saved.agents.push(serde_json::from_str(&text).map_err(malformed)?);
            }
        }
        Ok(Some(saved))
    }

    /// Creates agents for hosts that were enrolled by other means. The hosts must come from a
    /// [`crate::fleet::Fleet`] with the same seed.
    pub fn enrolled(
        behavior: Behavior,
        agents: Vec<(Host, Identity)>,
        now: Timestamp,
    ) -> SavedAgents {
        let agent = |(host, identity): (Host, Identity)| {
            let (index, turn) = (host.index, SyncCounter::new(FIRST_COUNTER, nonce()));
            let durable = Worker::new(host, behavior, now).persistent_state();
            SavedAgent::new(index, &identity, turn, SYNC_SECONDS, durable)
        };
        SavedAgents { seed: behavior.seed, agents: agents.into_iter().map(agent).collect() }
    }

    /// Renames the file once its agents are started, because its content is outdated from then on.
    pub fn mark_taken(path: &Path) -> Result<(), SavedError> {
        match fs::rename(path, taken_path(path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            renamed => renamed.map_err(|source| SavedError::File { path: path.to_owned(), source }),
        }
    }

    /// Writes the agents to a file that only its owner can read, because it contains private keys.
    pub fn write(&self, path: &Path) -> Result<(), SavedError> {
        let write = || -> io::Result<()> {
            let file = fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(path)?;
            let mut out = BufWriter::new(file);
            serde_json::to_writer(&mut out, &FileHeader { fleetmend_swarm: 1, seed: self.seed })?;
            out.write_all(b"\n")?;
            for agent in &self.agents {
                serde_json::to_writer(&mut out, agent)?;
                out.write_all(b"\n")?;
            }
            out.into_inner()?.sync_all()?;
            match fs::remove_file(taken_path(path)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        };
        write().map_err(|source| SavedError::File { path: path.to_owned(), source })
    }

    pub fn len(&self) -> usize {
        self.agents.len()
    }

    pub fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }

    /// The seed of the fleet. With another seed, the agents would be other hosts.
    pub fn seed(&self) -> u64 {
        self.seed
    }
}
