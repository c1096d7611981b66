//! What the agent keeps on disk about itself: who it is, whose turn it is, whom it talks to.
//!
//! The directory is for root alone. Every file is written beside its place and renamed into it, with
//! the file and the directory flushed, so that a cut at any instant leaves the old one or the new one.
//!
//! A file that is damaged all the same is moved aside to `NAME.damaged` and rebuilt: the identity from its copy, the
//! turn by counting on from the time of day, the rest from nothing. Only an identity without a copy ends the agent.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

use agent_client::{HostKey, Identity, Pin, TrustedKeys, Turn, nonce};
use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use vocab::{Line, ServerId};

use crate::output::note;
use crate::work::files;

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
    /// Whether the server is known to sign its answers: from then on no other answer counts.
    #[serde(default)]
    signs_answers: bool,
    pin: String,
    tag: String,
    /// The oldest trusted key, for an agent of the version before.
    orders_key: String,
    /// All trusted keys, oldest first. Empty if an agent of the version before wrote the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    orders_keys: Vec<String>,
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
/// The same once more, for the day on which the disk loses the first one.
const IDENTITY_COPY: &str = "identity.json.previous";
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
        let orders_keys: Vec<String> =
            identity.orders_keys.keys().iter().map(|key| STANDARD.encode(key)).collect();
        Enrolled {
            server_id: identity.server_id,
            url: url.to_owned(),
            root: root.map(Path::to_owned),
            enrolled_at: at,
            signs_answers: identity.signs_answers(),
            pin,
            tag: identity.tag.get(),
            orders_key: orders_keys.first().cloned().unwrap_or_default(),
            orders_keys,
            key: STANDARD.encode(identity.key.seed()),
        }
    }

    /// Who the host is.
    pub fn identity(&self) -> anyhow::Result<Identity> {
        let orders_keys = match self.orders_keys.as_slice() {
            [] => std::slice::from_ref(&self.orders_key),
            all => all,
        };
        let orders_keys: Option<Vec<_>> = orders_keys.iter().map(|key| bytes(key)).collect();
        let orders_keys = orders_keys.and_then(TrustedKeys::new);
        Ok(Identity {
            server_id: self.server_id,
            tag: self.tag.clone().into(),
            orders_keys: orders_keys.context("a key for orders is damaged")?,
            key: HostKey::from_seed(bytes(&self.key).context("the host's key is damaged")?),
            signs_answers: self.signs_answers.into(),
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
            .with_context(|| {
                format!("cannot open {}: if it is not a file, remove it", path.display())
            })?;
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

    /// Who the host is; nothing before it joined. If the file is damaged or missing, its copy is used, and the file
    /// written anew from it.
    pub fn enrolled(&self) -> anyhow::Result<Option<Enrolled>> {
        let first = self.read::<Enrolled>(IDENTITY).and_then(usable);
        if let Ok(Some(enrolled)) = first {
            return Ok(Some(enrolled));
        }
        match (self.read::<Enrolled>(IDENTITY_COPY).and_then(usable), first) {
            (Ok(Some(enrolled)), first) => {
                let path = self.dir.join(IDENTITY);
                if first.is_err() {
                    files::move_aside(&path)?;
                }
                self.write(IDENTITY, &enrolled)?;
                note(&format!("{} was damaged: it was restored from its copy", path.display()));
                Ok(Some(enrolled))
            }
            (_, Err(error)) => Err(error.context(format!(
                "the identity of this host cannot be read. Restore {dir}/{IDENTITY} from a backup, or enroll the \
                 host again: move {dir} away, remove the server from the fleet, create a token \
                 (`fleetmend tokens create`) and run `fleetmend-agent enroll --server URL --token TOKEN`",
                dir = self.dir.display()
            ))),
            (_, Ok(_)) => Ok(None),
        }
    }

    /// Makes sure that there is a copy of the identity. Hosts that joined with an older agent have none.
    pub fn copy_identity(&self, enrolled: &Enrolled) -> anyhow::Result<()> {
        match self.read::<Enrolled>(IDENTITY_COPY).and_then(usable) {
            Ok(Some(copy)) if serde_json::to_vec(&copy)? == serde_json::to_vec(enrolled)? => Ok(()),
            Ok(_) => self.write(IDENTITY_COPY, enrolled),
            Err(_) => {
                files::move_aside(&self.dir.join(IDENTITY_COPY))?;
                self.write(IDENTITY_COPY, enrolled)
            }
        }
    }

    /// The key with which the host joins: the same in every try, so that one whose answer was lost
    /// does not make a second server.
    pub fn joining_key(&self) -> anyhow::Result<HostKey> {
        let kept: Option<String> = self.read_or_rebuild(KEY)?;
        if let Some(seed) = kept.and_then(|kept| bytes(&kept)) {
            return Ok(HostKey::from_seed(seed));
        }
        let key = HostKey::generate();
        self.write(KEY, &STANDARD.encode(key.seed()))?;
        Ok(key)
    }

    /// Writes down that the host has joined. The turn comes first: an identity without one would not
    /// know where to begin. Orders that it had as another server are nobody's any more.
    pub fn join(&self, enrolled: &Enrolled, turn: Turn) -> anyhow::Result<()> {
        let orders = self.dir.join(ORDERS);
        match fs::remove_dir_all(&orders) {
            Err(error) if error.kind() == ErrorKind::NotADirectory => files::move_aside(&orders)?,
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        self.write(TURN, &turn)?;
        self.write(IDENTITY, enrolled)?;
        self.copy_identity(enrolled)?;
        self.forget(REMOVED)?;
        self.forget(CONTACT)?;
        self.forget(KEY)
    }

    /// Whose turn it is. If that is lost, the count goes on from the time of day: a server takes a counter that is ahead
    /// of its own, and one that is behind for that of a copy of this host.
    pub fn turn(&self, now: Timestamp) -> anyhow::Result<Turn> {
        if let Some(turn) = self.read_or_rebuild(TURN)? {
            return Ok(turn);
        }
        // Beyond the counters of every epoch that the server may have begun (`store::presence::EPOCH`).
        let counter = u64::try_from(now.as_millisecond()).unwrap_or(0) << 18;
        note(&format!(
            "{}/{TURN} was lost: counting on from {counter}. If this host's clock is wrong, its server may put it \
             into quarantine; then release it there",
            self.dir.display()
        ));
        let turn = Turn::after(counter, nonce());
        self.write(TURN, &turn)?;
        Ok(turn)
    }

    /// The next turn; written before anything of the answer that brought it is obeyed.
    pub fn set_turn(&self, turn: Turn) -> anyhow::Result<()> {
        self.write(TURN, &turn)
    }

    /// Writes down that the server signs its answers. A restart must not forget it: a proxy could then
    /// pass for a server that does not sign yet.
    pub fn set_signs_answers(&self) -> anyhow::Result<()> {
        match self.enrolled()? {
            Some(enrolled) if !enrolled.signs_answers => {
                self.write(IDENTITY, &Enrolled { signs_answers: true, ..enrolled })
            }
            _ => Ok(()),
        }
    }

    /// Stores the keys whose orders and answers this host accepts from now on, in the copy of the
    /// identity too: a copy with a retired key only would believe nothing any more.
    pub fn set_trusted_keys(&self, keys: &[[u8; 32]]) -> anyhow::Result<()> {
        let Some(enrolled) = self.enrolled()? else { return Ok(()) };
        let orders_keys: Vec<String> = keys.iter().map(|key| STANDARD.encode(key)).collect();
        let Some(oldest) = orders_keys.first().cloned() else { return Ok(()) };
        let enrolled = Enrolled { orders_key: oldest, orders_keys, ..enrolled };
        self.write(IDENTITY, &enrolled)?;
        self.copy_identity(&enrolled)
    }

    /// Stores the tag that this host sends from now on, in the copy of the identity too: a copy with
    /// the tag of a retired key only would be refused.
    pub fn set_tag(&self, tag: &str) -> anyhow::Result<()> {
        let Some(enrolled) = self.enrolled()? else { return Ok(()) };
        let enrolled = Enrolled { tag: tag.to_owned(), ..enrolled };
        self.write(IDENTITY, &enrolled)?;
        self.copy_identity(&enrolled)
    }

    /// How the running agent fares. Nothing depends on it, so it is not flushed.
    pub fn set_contact(&self, contact: &Contact) -> anyhow::Result<()> {
        let path = self.dir.join(CONTACT);
        put(&self.dir, &path, &serde_json::to_vec(contact)?, Flush::No)
    }

    /// How the running agent fares, as far as it said. It is only shown, so damage is no more than a gap.
    pub fn contact(&self) -> Contact {
        self.read(CONTACT).ok().flatten().unwrap_or_default()
    }

    /// Writes down that the server does not know this host any more.
    pub fn set_removed(&self, at: Timestamp) -> anyhow::Result<()> {
        self.write(REMOVED, &at)
    }

    /// When the server removed this host, if it did. If that cannot be read, the server says so again.
    pub fn removed(&self) -> anyhow::Result<Option<Timestamp>> {
        self.read_or_rebuild(REMOVED)
    }

    /// Reads a file that can be rebuilt: one that is damaged is moved aside.
    fn read_or_rebuild<T: DeserializeOwned>(&self, name: &str) -> anyhow::Result<Option<T>> {
        match self.read(name) {
            Err(error) => {
                let path = self.dir.join(name);
                files::move_aside(&path).with_context(|| {
                    format!("{} is damaged and cannot be moved: remove it", path.display())
                })?;
                note(&format!("{error:#}: it was moved aside"));
                Ok(None)
            }
            found => found,
        }
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
        let path = self.dir.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == ErrorKind::IsADirectory => Ok(files::move_aside(&path)?),
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// An identity with which something can be signed.
fn usable(found: Option<Enrolled>) -> anyhow::Result<Option<Enrolled>> {
    if let Some(enrolled) = &found {
        enrolled.identity()?;
        enrolled.pin()?;
    }
    Ok(found)
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
    for place in [&*beside, path] {
        if fs::symlink_metadata(place).is_ok_and(|found| found.is_dir()) {
            files::move_aside(place).with_context(failed)?;
        }
    }
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
