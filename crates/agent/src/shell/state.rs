//! The agent's state directory: the host's identity, the sync counter and the service address.
//!
//! The directory is readable by root only. Every file is written to a temporary name and renamed,
//! with the file and the directory flushed, so that a crash at any moment leaves the old file or
//! the new one.
//!
//! A file that is damaged anyway is moved to `NAME.damaged` and rebuilt: the identity from its
//! copy, the sync counter from the time of day, the rest empty. Only an identity without a usable
//! copy stops the agent.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

use agent_client::{HostKey, Identity, Pin, SyncCounter, TrustedKeys, nonce};
use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};
use rustix::process::Pid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use vocab::{Line, ServerId};

use super::upgrade::parse_process_id;
use crate::output::note;
use crate::work::files;

#[derive(Debug, Clone)]
pub struct StateDir {
    dir: PathBuf,
}

/// The stored enrollment: who the host is and which server it talks to.
#[derive(Clone, Serialize, Deserialize)]
pub struct Enrollment {
    pub server_id: ServerId,
    pub url: String,
    /// The managed system, if it is not the running one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<PathBuf>,
    pub enrolled_at: Timestamp,
    /// Whether the service is known to sign its responses. Once set, unsigned responses are
    /// rejected.
    #[serde(default)]
    signs_answers: bool,
    pin: String,
    tag: String,
    /// The oldest trusted key, for the previous agent version.
    orders_key: String,
    /// All trusted keys, oldest first. Empty if the previous agent version wrote the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    orders_keys: Vec<String>,
    key: String,
}

/// The state of the running agent, as shown by `status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContactStatus {
    /// When the service last responded.
    pub last_sync_at: Option<Timestamp>,
    /// Why the service cannot be reached, if it cannot.
    pub trouble: Option<Line>,
    pub trouble_since: Option<Timestamp>,
    pub last_scan_at: Option<Timestamp>,
    /// Number of installed packages.
    pub packages: Option<usize>,
    /// Number of pending updates.
    pub updates: Option<usize>,
    /// What the agent is doing now.
    pub activity: String,
    /// The version of the agent that wrote this.
    pub agent_version: Option<String>,
}

const IDENTITY_FILE: &str = "identity.json";
/// A copy of the identity, in case the disk loses the first file.
const IDENTITY_COPY_FILE: &str = "identity.json.previous";
const ENROLLMENT_KEY_FILE: &str = "joining.key";
const SYNC_COUNTER_FILE: &str = "turn.json";
const CONTACT_FILE: &str = "contact.json";
const REMOVED_FILE: &str = "removed";
const LOCK_FILE: &str = "agent.lock";
/// The order journals of `work`.
const ORDERS_DIR: &str = "orders";

impl Enrollment {
    /// Builds the record to store for an identity.
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
        Enrollment {
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

    pub fn identity(&self) -> anyhow::Result<Identity> {
        let orders_keys = match self.orders_keys.as_slice() {
            [] => std::slice::from_ref(&self.orders_key),
            all => all,
        };
        let orders_keys: Option<Vec<_>> = orders_keys.iter().map(|key| decode_key(key)).collect();
        let orders_keys = orders_keys.and_then(TrustedKeys::new);
        Ok(Identity {
            server_id: self.server_id,
            tag: self.tag.clone().into(),
            orders_keys: orders_keys.context("the service's signing key is damaged")?,
            key: HostKey::from_seed(
                decode_key(&self.key).context("the host's private key is damaged")?,
            ),
            signs_answers: self.signs_answers.into(),
        })
    }

    /// How the service's certificate is verified.
    pub fn pin(&self) -> anyhow::Result<Pin> {
        match self.pin.as_str() {
            "plain" => Ok(Pin::Plain),
            hash => decode_key(hash)
                .map(Pin::Certificate)
                .context("the hash of the service's certificate is damaged"),
        }
    }
}

fn decode_key(text: &str) -> Option<[u8; 32]> {
    STANDARD.decode(text).ok()?.try_into().ok()
}

impl StateDir {
    /// Opens the directory, and creates it if needed. Only its owner may access it.
    pub fn open(dir: &Path) -> anyhow::Result<StateDir> {
        let result = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        result.with_context(|| format!("cannot create the state directory {}", dir.display()))?;
        let state = StateDir { dir: dir.to_owned() };
        let meta = fs::metadata(dir).with_context(|| format!("cannot read {}", dir.display()))?;
        if meta.uid() != rustix::process::geteuid().as_raw() {
            bail!("{} belongs to another user; run the agent as that user", dir.display());
        }
        // The directory may have been created with a wider mode before it held secrets.
        if meta.mode() & 0o077 != 0 {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
        }
        Ok(state)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Ensures that only one agent uses this directory, for as long as the returned file is open.
    pub fn lock(&self) -> anyhow::Result<File> {
        let path = self.dir.join(LOCK_FILE);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .with_context(|| {
                format!("cannot open {}; if it is not a regular file, remove it", path.display())
            })?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!(
                "another fleetmend-agent is using {}; stop it first \
                 (`systemctl stop fleetmend-agent`)",
                self.dir.display()
            );
        }
        // Best effort: only an upgrade of the agent reads it.
        let _ = file.set_len(0);
        let _ = writeln!(&file, "{}", std::process::id());
        Ok(file)
    }

    /// The process that is using this directory now.
    pub fn agent_process(&self) -> Option<Pid> {
        if !self.is_locked() {
            return None;
        }
        parse_process_id(&fs::read_to_string(self.dir.join(LOCK_FILE)).ok()?)
    }

    /// Whether an agent is using this directory now.
    pub fn is_locked(&self) -> bool {
        let Ok(file) = File::open(self.dir.join(LOCK_FILE)) else { return false };
        flock(&file, FlockOperation::NonBlockingLockShared).is_err()
    }

    /// The stored enrollment; `None` before the host is enrolled. If the file is damaged or
    /// missing, it is restored from its copy.
    pub fn enrollment(&self) -> anyhow::Result<Option<Enrollment>> {
        let first = self.read::<Enrollment>(IDENTITY_FILE).and_then(check_usable);
        if let Ok(Some(enrolled)) = first {
            return Ok(Some(enrolled));
        }
        match (self.read::<Enrollment>(IDENTITY_COPY_FILE).and_then(check_usable), first) {
            (Ok(Some(enrolled)), first) => {
                let path = self.dir.join(IDENTITY_FILE);
                if first.is_err() {
                    files::move_aside(&path)?;
                }
                self.write(IDENTITY_FILE, &enrolled)?;
                note(&format!("{} was damaged or missing; restored it from its copy", path.display()));
                Ok(Some(enrolled))
            }
            (_, Err(error)) => Err(error.context(format!(
                "cannot read the identity of this host. Restore {dir}/{IDENTITY_FILE} from a backup, or enroll the \
                 host again: move {dir} away, remove the server from the fleet, create a token \
                 (`fleetmend tokens create`) and run `fleetmend-agent enroll --server URL --token TOKEN`",
                dir = self.dir.display()
            ))),
            (_, Ok(_)) => Ok(None),
        }
    }

    /// Ensures that a copy of the identity exists. Hosts enrolled by an older agent have none.
    pub fn copy_identity(&self, enrollment: &Enrollment) -> anyhow::Result<()> {
        match self.read::<Enrollment>(IDENTITY_COPY_FILE).and_then(check_usable) {
            Ok(Some(copy)) if serde_json::to_vec(&copy)? == serde_json::to_vec(enrollment)? => {
                Ok(())
            }
            Ok(_) => self.write(IDENTITY_COPY_FILE, enrollment),
            Err(_) => {
                files::move_aside(&self.dir.join(IDENTITY_COPY_FILE))?;
                self.write(IDENTITY_COPY_FILE, enrollment)
            }
        }
    }

    /// The key used for enrollment. Every attempt uses the same key, so that an attempt whose
    /// response was lost does not create a second server.
    pub fn enrollment_key(&self) -> anyhow::Result<HostKey> {
        let kept: Option<String> = self.read_or_rebuild(ENROLLMENT_KEY_FILE)?;
        if let Some(seed) = kept.and_then(|kept| decode_key(&kept)) {
            return Ok(HostKey::from_seed(seed));
        }
        let key = HostKey::generate();
        self.write(ENROLLMENT_KEY_FILE, &STANDARD.encode(key.seed()))?;
        Ok(key)
    }

    /// Records that the host is enrolled. The sync counter is written first: an identity without
    /// one would not know where to start. Orders from a previous enrollment are deleted, because no
    /// server waits for their results.
    pub fn save_enrollment(
        &self,
        enrollment: &Enrollment,
        sync_counter: SyncCounter,
    ) -> anyhow::Result<()> {
        let orders = self.dir.join(ORDERS_DIR);
        match fs::remove_dir_all(&orders) {
            Err(error) if error.kind() == ErrorKind::NotADirectory => files::move_aside(&orders)?,
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        self.write(SYNC_COUNTER_FILE, &sync_counter)?;
        self.write(IDENTITY_FILE, enrollment)?;
        self.copy_identity(enrollment)?;
        self.remove(REMOVED_FILE)?;
        self.remove(CONTACT_FILE)?;
        self.remove(ENROLLMENT_KEY_FILE)
    }

    /// The sync counter. If the file is lost, the counter restarts from the current time. The
    /// service accepts a counter that is higher than the last one. A lower one looks like a clone
    /// of this host.
    pub fn sync_counter(&self, now: Timestamp) -> anyhow::Result<SyncCounter> {
        if let Some(sync_counter) = self.read_or_rebuild(SYNC_COUNTER_FILE)? {
            return Ok(sync_counter);
        }
        // Higher than the counters of every epoch that the service may have started
        // (`store::presence::EPOCH`).
        let counter = u64::try_from(now.as_millisecond()).unwrap_or(0) << 18;
        note(&format!(
            "{}/{SYNC_COUNTER_FILE} was lost; restarting the sync counter at {counter}. If this host's clock is wrong, the \
             service may quarantine this server; release it with `fleetmend servers release`",
            self.dir.display()
        ));
        let sync_counter = SyncCounter::new(counter, nonce());
        self.write(SYNC_COUNTER_FILE, &sync_counter)?;
        Ok(sync_counter)
    }

    /// Stores the next sync counter. Must be called before acting on the response that brought it.
    pub fn set_sync_counter(&self, sync_counter: SyncCounter) -> anyhow::Result<()> {
        self.write(SYNC_COUNTER_FILE, &sync_counter)
    }

    /// Records that the service signs its responses. A restart must not forget this: otherwise a
    /// proxy could pose as a service that does not sign yet.
    pub fn set_signs_answers(&self) -> anyhow::Result<()> {
        match self.enrollment()? {
            Some(enrolled) if !enrolled.signs_answers => {
                self.write(IDENTITY_FILE, &Enrollment { signs_answers: true, ..enrolled })
            }
            _ => Ok(()),
        }
    }

    /// Stores the keys whose orders and responses this host accepts from now on, in the copy of the
    /// identity too: a copy with only a retired key would reject every order and response.
    pub fn set_trusted_keys(&self, keys: &[[u8; 32]]) -> anyhow::Result<()> {
        let Some(enrolled) = self.enrollment()? else { return Ok(()) };
        let orders_keys: Vec<String> = keys.iter().map(|key| STANDARD.encode(key)).collect();
        let Some(oldest) = orders_keys.first().cloned() else { return Ok(()) };
        let enrollment = Enrollment { orders_key: oldest, orders_keys, ..enrolled };
        self.write(IDENTITY_FILE, &enrollment)?;
        self.copy_identity(&enrollment)
    }

    /// Stores the tag that this host sends from now on, in the copy of the identity too: the
    /// service would reject a copy that has only the tag of a retired key.
    pub fn set_tag(&self, tag: &str) -> anyhow::Result<()> {
        let Some(enrolled) = self.enrollment()? else { return Ok(()) };
        let enrollment = Enrollment { tag: tag.to_owned(), ..enrolled };
        self.write(IDENTITY_FILE, &enrollment)?;
        self.copy_identity(&enrollment)
    }

    /// Stores the state of the running agent. Nothing depends on it, so it is not flushed.
    pub fn set_contact(&self, contact: &ContactStatus) -> anyhow::Result<()> {
        let path = self.dir.join(CONTACT_FILE);
        replace_file(&self.dir, &path, &serde_json::to_vec(contact)?, Flush::No)
    }

    /// The last stored state of the running agent. It is only displayed, so a damaged file counts
    /// as empty.
    pub fn contact(&self) -> ContactStatus {
        self.read(CONTACT_FILE).ok().flatten().unwrap_or_default()
    }

    /// Records that the service removed this host.
    pub fn set_removed(&self, at: Timestamp) -> anyhow::Result<()> {
        self.write(REMOVED_FILE, &at)
    }

    /// When the service removed this host, if it did. If the file is damaged, the service reports
    /// the removal again.
    pub fn removed_at(&self) -> anyhow::Result<Option<Timestamp>> {
        self.read_or_rebuild(REMOVED_FILE)
    }

    /// Reads a file that can be rebuilt. A damaged file is moved to `NAME.damaged`.
    fn read_or_rebuild<T: DeserializeOwned>(&self, name: &str) -> anyhow::Result<Option<T>> {
        match self.read(name) {
            Err(error) => {
                let path = self.dir.join(name);
                files::move_aside(&path).with_context(|| {
                    format!("{} is damaged and cannot be moved; remove it", path.display())
                })?;
                note(&format!("{error:#}; moved it aside"));
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
        replace_file(&self.dir, &self.dir.join(name), &serde_json::to_vec(value)?, Flush::Yes)
    }

    fn remove(&self, name: &str) -> anyhow::Result<()> {
        let path = self.dir.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == ErrorKind::IsADirectory => Ok(files::move_aside(&path)?),
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// Checks that the keys in the stored enrollment can be decoded.
fn check_usable(found: Option<Enrollment>) -> anyhow::Result<Option<Enrollment>> {
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

/// Replaces a file atomically.
fn replace_file(dir: &Path, path: &Path, bytes: &[u8], flush: Flush) -> anyhow::Result<()> {
    let temporary = path.with_extension("new");
    let failed = || format!("cannot write {}", path.display());
    for place in [&*temporary, path] {
        if fs::symlink_metadata(place).is_ok_and(|found| found.is_dir()) {
            files::move_aside(place).with_context(failed)?;
        }
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .with_context(failed)?;
    file.write_all(bytes).with_context(failed)?;
    if flush == Flush::Yes {
        file.sync_all().with_context(failed)?;
    }
    fs::rename(&temporary, path).with_context(failed)?;
    if flush == Flush::Yes {
        File::open(dir).and_then(|dir| dir.sync_all()).with_context(failed)?;
    }
    Ok(())
}
