//! What the agent keeps on disk about itself: who it is, whose turn it is, whom it talks to.
//!
//! The directory is for root alone. Every file is written beside its place and renamed into it, with
//! the file and the directory flushed, so that a cut at any instant leaves the old one or the new one.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use link::{HostKey, Identity, Pin, Turn};
use rustix::fs::{FlockOperation, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use vocab::{Line, ServerId};

/// The state directory.
#[derive(Debug, Clone)]
pub struct State {
    dir: PathBuf,
}

/// Who the host is and whom it talks to, as it is kept.
#[derive(Clone, Serialize, Deserialize)]
pub struct Enrolled {
    /// Its id.
    pub server_id: ServerId,
    /// The server's address.
    pub url: String,
    /// The system that is managed, if it is not the running one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<PathBuf>,
    /// When it joined.
    pub enrolled_at: Timestamp,
    pin: String,
    tag: String,
    orders_key: String,
    key: String,
}

/// What `status` shows of the running agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Contact {
    /// When the server last answered.
    pub last_sync_at: Option<Timestamp>,
    /// Why it does not answer, if it does not.
    pub trouble: Option<Line>,
    /// Since when.
    pub trouble_since: Option<Timestamp>,
    /// When the packages were last looked at.
    pub last_scan_at: Option<Timestamp>,
    /// How many packages are installed.
    pub packages: Option<usize>,
    /// How many updates are pending.
    pub updates: Option<usize>,
    /// What the agent is doing.
    pub activity: String,
}

const IDENTITY: &str = "identity.json";
const KEY: &str = "joining.key";
const TURN: &str = "turn.json";
const CONTACT: &str = "contact.json";
const REMOVED: &str = "removed";
const LOCK: &str = "agent.lock";
/// The journals of `work`.
const ORDERS: &str = "orders";

impl Enrolled {
    /// What is to be kept of an identity.
    pub fn new(
        identity: &Identity,
        url: &str,
        pin: Pin,
        root: Option<&Path>,
        at: Timestamp,
    ) -> Self {
        let pin = match pin {
            Pin::Plain => "plain".to_owned(),
            Pin::Certificate(sha256) => STANDARD.encode(sha256),
        };
        Enrolled {
            server_id: identity.server_id,
            url: url.to_owned(),
            root: root.map(Path::to_owned),
            enrolled_at: at,
            pin,
            tag: identity.tag.clone(),
            orders_key: STANDARD.encode(identity.orders_key),
            key: STANDARD.encode(identity.key.seed()),
        }
    }

    /// Who the host is.
    pub fn identity(&self) -> anyhow::Result<Identity> {
        Ok(Identity {
            server_id: self.server_id,
            tag: self.tag.clone(),
            orders_key: bytes(&self.orders_key).context("the key for orders is damaged")?,
            key: HostKey::from_seed(bytes(&self.key).context("the host's key is damaged")?),
        })
    }

    /// By what the server is known.
    pub fn pin(&self) -> anyhow::Result<Pin> {
        match self.pin.as_str() {
            "plain" => Ok(Pin::Plain),
            hash => bytes(hash).map(Pin::Certificate).context("the server's hash is damaged"),
        }
    }
}

fn bytes(text: &str) -> Option<[u8; 32]> {
    STANDARD.decode(text).ok()?.try_into().ok()
}

impl State {
    /// The directory, made if it is not there, for its owner alone.
    pub fn open(dir: &Path) -> anyhow::Result<State> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.with_context(|| format!("cannot make the state directory {}", dir.display()))?;
        let state = State { dir: dir.to_owned() };
        let meta = fs::metadata(dir).with_context(|| format!("cannot read {}", dir.display()))?;
        if meta.uid() != rustix::process::geteuid().as_raw() {
            bail!("{} belongs to another user; run the agent as that user", dir.display());
        }
        // Whoever made it with a wider mode did not know what would lie in it.
        if meta.mode() & 0o077 != 0 {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
        }
        Ok(state)
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes sure that one agent works with this directory. Kept for as long as the value lives.
    pub fn lock(&self) -> anyhow::Result<File> {
        let path = self.dir.join(LOCK);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!(
                "another fleetmend-agent works with {}: stop it first \
                 (`systemctl stop fleetmend-agent`)",
                self.dir.display()
            );
        }
        Ok(file)
    }

    /// Whether an agent works with this directory right now.
    pub fn is_locked(&self) -> bool {
        let Ok(file) = File::open(self.dir.join(LOCK)) else { return false };
        flock(&file, FlockOperation::NonBlockingLockShared).is_err()
    }

    /// Who the host is; nothing before it joined.
    pub fn enrolled(&self) -> anyhow::Result<Option<Enrolled>> {
        self.read(IDENTITY)
    }

    /// The key with which the host joins: the same in every try, so that one whose answer was lost
    /// does not make a second server.
    pub fn joining_key(&self) -> anyhow::Result<HostKey> {
        let kept: Option<String> = self.read(KEY)?;
        if let Some(kept) = kept {
            return Ok(HostKey::from_seed(
                bytes(&kept).context("joining.key is damaged: remove it")?,
            ));
        }
        let key = HostKey::generate();
        self.write(KEY, &STANDARD.encode(key.seed()))?;
        Ok(key)
    }

    /// Writes down that the host has joined. The turn comes first: an identity without one would not
    /// know where to begin. Orders that it had as another server are nobody's any more.
    pub fn join(&self, enrolled: &Enrolled, turn: Turn) -> anyhow::Result<()> {
        match fs::remove_dir_all(self.dir.join(ORDERS)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        self.write(TURN, &turn)?;
        self.write(IDENTITY, enrolled)?;
        self.forget(REMOVED)?;
        self.forget(CONTACT)?;
        self.forget(KEY)
    }

    /// Whose turn it is.
    pub fn turn(&self) -> anyhow::Result<Turn> {
        self.read(TURN)?.context("turn.json is missing: enrol this host again")
    }

    /// The next turn; written before anything of the answer that brought it is obeyed.
    pub fn set_turn(&self, turn: Turn) -> anyhow::Result<()> {
        self.write(TURN, &turn)
    }

    /// How the running agent fares. Nothing depends on it, so it is not flushed.
    pub fn set_contact(&self, contact: &Contact) -> anyhow::Result<()> {
        let path = self.dir.join(CONTACT);
        put(&self.dir, &path, &serde_json::to_vec(contact)?, Flush::No)
    }

    /// How the running agent fares, as far as it said.
    pub fn contact(&self) -> anyhow::Result<Contact> {
        Ok(self.read(CONTACT)?.unwrap_or_default())
    }

    /// Writes down that the server does not know this host any more.
    pub fn set_removed(&self, at: Timestamp) -> anyhow::Result<()> {
        self.write(REMOVED, &at)
    }

    /// When the server removed this host, if it did.
    pub fn removed(&self) -> anyhow::Result<Option<Timestamp>> {
        self.read(REMOVED)
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> anyhow::Result<Option<T>> {
        let path = self.dir.join(name);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let value = serde_json::from_slice(&bytes);
        value.map(Some).with_context(|| format!("{} is damaged", path.display()))
    }

    fn write<T: Serialize>(&self, name: &str, value: &T) -> anyhow::Result<()> {
        put(&self.dir, &self.dir.join(name), &serde_json::to_vec(value)?, Flush::Yes)
    }

    fn forget(&self, name: &str) -> anyhow::Result<()> {
        match fs::remove_file(self.dir.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

#[derive(PartialEq)]
enum Flush {
    Yes,
    No,
}

/// Puts a file into its place, the whole of it or nothing.
fn put(dir: &Path, path: &Path, bytes: &[u8], flush: Flush) -> anyhow::Result<()> {
    let beside = path.with_extension("new");
    let failed = || format!("cannot write {}", path.display());
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&beside)
        .with_context(failed)?;
    file.write_all(bytes).with_context(failed)?;
    if flush == Flush::Yes {
        file.sync_all().with_context(failed)?;
    }
    fs::rename(&beside, path).with_context(failed)?;
    if flush == Flush::Yes {
        File::open(dir).and_then(|dir| dir.sync_all()).with_context(failed)?;
    }
    Ok(())
}
