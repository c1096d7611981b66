//! The secrets of an installation: files in its data directory, never rows in its database.
//!
//! `orders.key` signs what agents are told to do. `root.key` is the root of everything that is derived:
//! the tags that make a forged credential recognizable without asking the database, and the
//! seal of the audit log. Replicas share both files.
//!
//! While `orders.key` is rotated, `orders.next.key` is there as well. Agents learn the new public key from
//! answers that are signed with the old one, and each agent gets signatures of the newest key that it
//! trusts. Retiring the old key renames the new one to `orders.key`.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use wire::agent::{ORDERS_KEYS_MAX, OrdersKey, TRUSTED_KEYS_HEADER, orders_key_id};

use crate::clock::chance;

/// The file of the root key.
pub const ROOT: &str = "root.key";
/// The file of the key that signs.
pub const ORDERS: &str = "orders.key";
/// The file of the key that will replace it, while it is rotated.
pub const ORDERS_NEXT: &str = "orders.next.key";

/// The secrets, loaded.
pub struct Secrets {
    /// The key that every agent trusts.
    orders: SigningKey,
    /// The one that replaces it, while it is rotated.
    orders_next: Option<SigningKey>,
    root: [u8; 32],
}

/// A key that signs orders and answers.
pub struct SigningKey {
    id: String,
    pair: Ed25519KeyPair,
}

impl SigningKey {
    fn load(path: PathBuf) -> Result<SigningKey, SecretsError> {
        let pair = Ed25519KeyPair::from_seed_unchecked(&read(&path)?)
            .map_err(|_| SecretsError::Malformed { path })?;
        Ok(SigningKey { id: orders_key_id(pair.public_key().as_ref()), pair })
    }

    /// By what agents tell which key signed.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The key with which agents check orders and answers, in base 64.
    pub fn public_key(&self) -> String {
        STANDARD.encode(self.pair.public_key())
    }

    /// Signs an order, or an answer to an agent: see [`wire::agent::answer_text`].
    pub fn sign(&self, text: &[u8]) -> Vec<u8> {
        self.pair.sign(text).as_ref().to_vec()
    }
}

/// The ids of the keys that an agent says it trusts. Empty for an agent that cannot change its key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TrustedKeys(Vec<String>);

impl TrustedKeys {
    /// As the header says. It is not signed, and need not be: see [`TRUSTED_KEYS_HEADER`].
    pub(crate) fn read(headers: &axum::http::HeaderMap) -> TrustedKeys {
        let text = headers.get(TRUSTED_KEYS_HEADER).and_then(|value| value.to_str().ok());
        let ids = text.unwrap_or_default().split(',').map(str::trim).filter(|id| !id.is_empty());
        TrustedKeys(ids.take(ORDERS_KEYS_MAX).map(str::to_owned).collect())
    }

    fn contains(&self, key: &SigningKey) -> bool {
        self.0.contains(&key.id)
    }
}

/// Why the secrets cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    /// A file cannot be read or written.
    #[error("cannot use {}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{} does not hold a key; restore it from a backup", path.display())]
    Malformed {
        /// Which one.
        path: PathBuf,
    },
}

impl Secrets {
    /// Makes new secrets in `dir`; ones that are there are never replaced.
    pub fn create(dir: &Path) -> Result<Secrets, SecretsError> {
        write_new(&dir.join(ORDERS), &chance::<32>())?;
        write_new(&dir.join(ROOT), &chance::<32>())?;
        Secrets::load(dir)
    }

    /// The secrets in `dir`.
    pub fn load(dir: &Path) -> Result<Secrets, SecretsError> {
        let orders = SigningKey::load(dir.join(ORDERS))?;
        let orders_next = match SigningKey::load(dir.join(ORDERS_NEXT)) {
            Err(SecretsError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                None
            }
            // A copy of the directory that was made while the old key was retired may have it twice.
            next => Some(next?).filter(|next| next.id != orders.id),
        };
        Ok(Secrets { orders, orders_next, root: read(&dir.join(ROOT))? })
    }

    /// Creates the key that will replace `orders.key`, in `dir`. One that is there is never replaced.
    pub fn rotate_orders(dir: &Path) -> Result<Secrets, SecretsError> {
        let (path, beside) = (dir.join(ORDERS_NEXT), dir.join("orders.next.key.new"));
        let failed = |path: &Path, source| SecretsError::File { path: path.to_owned(), source };
        // Written beside its place, so that a crash leaves no half a key there.
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed(&beside, error));
            }
            _ => {}
        }
        write_new(&beside, &chance::<32>())?;
        let linked =
            same_owner(&dir.join(ORDERS), &beside).and_then(|()| fs::hard_link(&beside, &path));
        let _ = fs::remove_file(&beside);
        linked.and_then(|()| sync_dir(dir)).map_err(|error| failed(&path, error))?;
        Secrets::load(dir)
    }

    /// Deletes the old key in `dir`: the next one becomes `orders.key`.
    pub fn retire_orders(dir: &Path) -> Result<Secrets, SecretsError> {
        let next = dir.join(ORDERS_NEXT);
        // What cannot be read must not replace what can.
        SigningKey::load(next.clone())?;
        fs::rename(&next, dir.join(ORDERS))
            .and_then(|()| sync_dir(dir))
            .map_err(|source| SecretsError::File { path: next, source })?;
        Secrets::load(dir)
    }

    /// The key that every agent trusts.
    pub fn orders_key(&self) -> &SigningKey {
        &self.orders
    }

    /// The key that replaces it, while it is rotated.
    pub fn next_orders_key(&self) -> Option<&SigningKey> {
        self.orders_next.as_ref()
    }

    /// The newest key that an agent trusts. For one that trusts none of them, or does not say, that is
    /// the old key: agents that do not say were enrolled with it.
    pub(crate) fn key_for(&self, trusted: &TrustedKeys) -> &SigningKey {
        self.orders_next.as_ref().filter(|next| trusted.contains(next)).unwrap_or(&self.orders)
    }

    /// All keys that sign, oldest first, as agents are told.
    pub(crate) fn announced(&self) -> Vec<OrdersKey> {
        let keys = [Some(&self.orders), self.orders_next.as_ref()].into_iter().flatten();
        keys.map(|key| OrdersKey { id: key.id.clone(), public_key: key.public_key() }).collect()
    }

    /// Whether an agent trusts other keys than those that sign, and can be told.
    pub(crate) fn should_announce(&self, trusted: &TrustedKeys) -> bool {
        let count = 1 + usize::from(self.orders_next.is_some());
        let same = trusted.0.len() == count
            && trusted.contains(&self.orders)
            && self.orders_next.as_ref().is_none_or(|next| trusted.contains(next));
        !trusted.0.is_empty() && !same
    }

    /// An id of `root.key`, to compare the files of replicas by. It tells nothing about the key.
    pub fn root_key_id(&self) -> String {
        let id = self.tag("fleetmend root key id v1", &[]);
        vocab::Digest::of(&id).to_string()[..16].to_owned()
    }

    /// A keyed digest of `parts` for one purpose. Parts are framed, so that moving a byte from one
    /// to the next gives another digest.
    pub fn tag(&self, purpose: &'static str, parts: &[&[u8]]) -> [u8; 32] {
        let key = blake3::derive_key(purpose, &self.root);
        let mut hasher = blake3::Hasher::new_keyed(&key);
        for part in parts {
            hasher.update(&(part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
        *hasher.finalize().as_bytes()
    }
}

fn read(path: &Path) -> Result<[u8; 32], SecretsError> {
    let bytes =
        fs::read(path).map_err(|source| SecretsError::File { path: path.to_owned(), source })?;
    bytes.try_into().map_err(|_| SecretsError::Malformed { path: path.to_owned() })
}

fn write_new(path: &Path, bytes: &[u8]) -> Result<(), SecretsError> {
    let write = || -> io::Result<()> {
        let mut file =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    match write() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        done => done.map_err(|source| SecretsError::File { path: path.to_owned(), source }),
    }
}

/// Gives `file` to the owner of `like`: root may run this for the user of the service.
fn same_owner(like: &Path, file: &Path) -> io::Result<()> {
    let (like, found) = (fs::metadata(like)?, fs::metadata(file)?);
    if (like.uid(), like.gid()) == (found.uid(), found.gid()) {
        return Ok(());
    }
    std::os::unix::fs::chown(file, Some(like.uid()), Some(like.gid()))
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    fs::File::open(dir)?.sync_all()
}
