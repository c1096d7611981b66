//! The secrets of an installation: files in its data directory, never rows in its database.
//!
//! `orders.key` signs the orders to agents. From `root.key`, all other keys are derived: those for
//! the tags that make a forged credential recognizable without a database query, and for the seal
//! of the audit log. Replicas share both files.
//!
//! While `orders.key` is being rotated, `orders.next.key` exists as well. Agents learn the new
//! public key from responses that are signed with the old one, and each agent gets signatures of
//! the newest key that it trusts. Retiring the old key renames the new one to `orders.key`.
//!
//! While `root.key` is being rotated, `root.old.key` contains the previous key. Everything new is
//! made with the new key, and both are accepted: see [`Secrets::verifies`] and
//! [`crate::auth::root_keys`].

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use wire::agent::{ORDERS_KEYS_MAX, OrdersKey, orders_key_id};

use crate::clock::random_bytes;

/// The file of the root key.
pub const ROOT: &str = "root.key";
/// The file of the previous root key, during a rotation.
pub const ROOT_OLD: &str = "root.old.key";
/// The temporary file of a new root key.
const ROOT_TEMP: &str = "root.key.new";
/// The file of the signing key.
pub const ORDERS: &str = "orders.key";
/// The file of the next signing key, during a rotation.
pub const ORDERS_NEXT: &str = "orders.next.key";

pub struct Secrets {
    /// The key that every agent trusts.
    orders: SigningKey,
    /// The key that replaces `orders`, during a rotation.
    orders_next: Option<SigningKey>,
    root: RootKey,
    /// The previous key, during a rotation.
    root_old: Option<RootKey>,
}

/// A key from which others are derived.
#[derive(Clone)]
struct RootKey {
    id: String,
    key: [u8; 32],
}

impl RootKey {
    fn load(path: &Path) -> Result<RootKey, SecretsError> {
        let key = read(path)?;
        let id = keyed_digest(&key, "fleetmend root key id v1", &[]);
        Ok(RootKey { id: vocab::Digest::compute(&id).to_string()[..16].to_owned(), key })
    }
}

/// Which root key a tag was made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootKeyAge {
    Current,
    /// The previous key, which is being rotated out.
    Old,
}

/// A key that signs orders and responses to agents.
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

    /// A key from a seed, for keys that are derived from the root key.
    fn from_seed(seed: &[u8; 32]) -> SigningKey {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed)
            .expect("every seed of 32 bytes is an Ed25519 key");
        SigningKey { id: orders_key_id(pair.public_key().as_ref()), pair }
    }

    /// The id by which agents identify the signing key.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The public key with which agents verify orders and responses, in Base64.
    pub fn public_key(&self) -> String {
        STANDARD.encode(self.pair.public_key())
    }

    /// Signs an order, or a response to an agent: see [`wire::agent::response_signing_text`].
    pub fn sign(&self, text: &[u8]) -> Vec<u8> {
        self.pair.sign(text).as_ref().to_vec()
    }
}

/// The ids of the keys that an agent reports as trusted. Empty for an agent that cannot change its
/// key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedKeys(Vec<String>);

impl TrustedKeys {
    /// Parses the value of [`TRUSTED_KEYS_HEADER`](wire::agent::TRUSTED_KEYS_HEADER). It is not
    /// signed and does not have to be.
    pub fn parse(header: &str) -> TrustedKeys {
        let ids = header.split(',').map(str::trim).filter(|id| !id.is_empty());
        TrustedKeys(ids.take(ORDERS_KEYS_MAX).map(str::to_owned).collect())
    }

    fn contains(&self, key: &SigningKey) -> bool {
        self.0.contains(&key.id)
    }
}

/// Why the secrets cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    #[error("cannot read or write {}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// The file does not contain a key.
    #[error("{} does not contain a key; restore it from a backup", path.display())]
    Malformed { path: PathBuf },
}

impl Secrets {
    /// Creates secrets in `dir`. Existing ones are never replaced.
    pub fn create(dir: &Path) -> Result<Secrets, SecretsError> {
        write_new(&dir.join(ORDERS), &random_bytes::<32>())?;
        write_new(&dir.join(ROOT), &random_bytes::<32>())?;
        Secrets::load(dir)
    }

    /// Loads the secrets in `dir`.
    pub fn load(dir: &Path) -> Result<Secrets, SecretsError> {
        let orders = SigningKey::load(dir.join(ORDERS))?;
        let orders_next = match SigningKey::load(dir.join(ORDERS_NEXT)) {
            Err(SecretsError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                None
            }
            // A copy of the directory that was made while the old key was retired may contain the
            // key twice.
            next => Some(next?).filter(|next| next.id != orders.id),
        };
        let root = RootKey::load(&dir.join(ROOT))?;
        let root_old = match RootKey::load(&dir.join(ROOT_OLD)) {
            Err(SecretsError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                None
            }
            // A crash in `rotate_root` leaves the same key under both names.
            old => Some(old?).filter(|old| old.id != root.id),
        };
        Ok(Secrets { orders, orders_next, root, root_old })
    }

    /// Replaces `root.key` in `dir` with a new key, and keeps the previous one as `root.old.key`.
    /// Refused if there already is a different old key. At whatever point a crash occurs,
    /// `root.key` contains a usable key, and the previous key is not lost.
    pub fn rotate_root(dir: &Path) -> Result<Secrets, SecretsError> {
        for step in ROTATE_ROOT {
            step(dir)?;
        }
        Secrets::load(dir)
    }

    /// Deletes the old root key in `dir`.
    pub fn retire_root(dir: &Path) -> Result<Secrets, SecretsError> {
        let path = dir.join(ROOT_OLD);
        remove(&path)?;
        sync_dir(dir).map_err(|source| SecretsError::File { path, source })?;
        Secrets::load(dir)
    }

    /// The secrets without the old root key, after it was retired.
    #[must_use]
    pub fn without_old_root(self) -> Secrets {
        Secrets { root_old: None, ..self }
    }

    /// The secrets as they were before the current rotation of `root.key`. Unchanged if there is
    /// none.
    #[must_use]
    pub fn before_root_rotation(self) -> Secrets {
        let Secrets { orders, orders_next, root, root_old } = self;
        Secrets { orders, orders_next, root: root_old.unwrap_or(root), root_old: None }
    }

    /// Creates the key that will replace `orders.key` in `dir`. An existing one is never replaced.
    pub fn rotate_orders(dir: &Path) -> Result<Secrets, SecretsError> {
        let (path, beside) = (dir.join(ORDERS_NEXT), dir.join("orders.next.key.new"));
        let failed = |path: &Path, source| SecretsError::File { path: path.to_owned(), source };
        // Written to a temporary file, so that a crash leaves no incomplete key.
        remove(&beside)?;
        write_new(&beside, &random_bytes::<32>())?;
        let linked =
            same_owner(&dir.join(ORDERS), &beside).and_then(|()| fs::hard_link(&beside, &path));
        let _ = fs::remove_file(&beside);
        linked.and_then(|()| sync_dir(dir)).map_err(|error| failed(&path, error))?;
        Secrets::load(dir)
    }

    /// Retires the old key in `dir`: the next one becomes `orders.key`.
    pub fn retire_orders(dir: &Path) -> Result<Secrets, SecretsError> {
        let next = dir.join(ORDERS_NEXT);
        // An unreadable key must not replace a usable one.
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

    /// The key that will replace it, during a rotation.
    pub fn next_orders_key(&self) -> Option<&SigningKey> {
        self.orders_next.as_ref()
    }

    /// The newest key that an agent trusts. For an agent that trusts none of them, or does not
    /// report any, this is the old key: agents that do not report their keys were enrolled with it.
    pub fn key_for(&self, trusted: &TrustedKeys) -> &SigningKey {
        self.orders_next.as_ref().filter(|next| trusted.contains(next)).unwrap_or(&self.orders)
    }

    /// All signing keys, oldest first, as announced to agents.
    pub fn announced_keys(&self) -> Vec<OrdersKey> {
        let keys = [Some(&self.orders), self.orders_next.as_ref()].into_iter().flatten();
        keys.map(|key| OrdersKey { id: key.id.clone(), public_key: key.public_key() }).collect()
    }

    /// Whether an agent trusts other keys than the current signing keys, and can learn new ones.
    pub fn should_announce(&self, trusted: &TrustedKeys) -> bool {
        let count = 1 + usize::from(self.orders_next.is_some());
        let same = trusted.0.len() == count
            && trusted.contains(&self.orders)
            && self.orders_next.as_ref().is_none_or(|next| trusted.contains(next));
        !trusted.0.is_empty() && !same
    }

    /// The key that signs feed bundles. It is derived from `root.key`, so it changes when that is
    /// rotated, and it signs nothing else.
    pub fn bundle_key(&self) -> SigningKey {
        SigningKey::from_seed(&self.tag("fleetmend feed bundle key v1", &[]))
    }

    /// The key that signs compliance reports, derived like [`Secrets::bundle_key`].
    pub fn report_key(&self) -> SigningKey {
        SigningKey::from_seed(&self.tag("fleetmend compliance report key v1", &[]))
    }

    /// An id of `root.key`, to compare the files of replicas. It reveals nothing about the key.
    pub fn root_key_id(&self) -> &str {
        &self.root.id
    }

    /// The id of the previous root key, during a rotation.
    pub fn old_root_key_id(&self) -> Option<&str> {
        self.root_old.as_ref().map(|old| old.id.as_str())
    }

    /// The id of the root key of this age.
    pub fn root_key_id_of(&self, age: RootKeyAge) -> &str {
        &self.root_key(age).id
    }

    /// A keyed digest of `parts` for one purpose, with the current key. Each part is prefixed with
    /// its length, so that moving a byte from one part to the next gives another digest. To check a
    /// digest, use [`Secrets::verifies`].
    pub fn tag(&self, purpose: &'static str, parts: &[&[u8]]) -> [u8; 32] {
        self.tag_of(RootKeyAge::Current, purpose, parts)
    }

    /// Like [`Secrets::tag`], with the key of this age, to derive again what an older key derived.
    /// If there is no old key, the current one is used.
    pub fn tag_of(&self, age: RootKeyAge, purpose: &'static str, parts: &[&[u8]]) -> [u8; 32] {
        keyed_digest(&self.root_key(age).key, purpose, parts)
    }

    /// Whether `shown` is the digest of `parts` for this purpose, truncated to `length` bytes, by
    /// the current or the old key. Compares in constant time.
    pub fn verifies(
        &self,
        purpose: &'static str,
        parts: &[&[u8]],
        length: usize,
        shown: &[u8],
    ) -> bool {
        self.tag_age(purpose, parts, length, shown).is_some()
    }

    /// The key that made `shown`, if [`Secrets::verifies`] accepts it.
    pub fn tag_age(
        &self,
        purpose: &'static str,
        parts: &[&[u8]],
        length: usize,
        shown: &[u8],
    ) -> Option<RootKeyAge> {
        // `blake3::Hash` compares in constant time.
        let is = |age: &RootKeyAge| {
            let expected = self.tag_of(*age, purpose, parts);
            shown.len() == length
                && blake3::hash(shown) == blake3::hash(&expected[..length.min(expected.len())])
        };
        self.root_key_ages().find(is)
    }

    /// The available root keys, newest first, to decrypt data that either may have encrypted.
    pub fn root_key_ages(&self) -> impl Iterator<Item = RootKeyAge> {
        let old = self.root_old.as_ref().map(|_| RootKeyAge::Old);
        [Some(RootKeyAge::Current), old].into_iter().flatten()
    }

    /// Encrypts a secret that is stored in the database. `owner` is the id of what it belongs to.
    pub fn encrypt(&self, purpose: &'static str, owner: &str, secret: &[u8]) -> Vec<u8> {
        let nonce = random_bytes::<NONCE_LEN>();
        let mut sealed = secret.to_vec();
        let closed =
            self.encryption_key(RootKeyAge::Current, purpose, owner).seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::empty(),
                &mut sealed,
            );
        closed.expect("the secret is far shorter than the limit of AES-GCM");
        [&nonce[..], &sealed].concat()
    }

    /// Decrypts what [`Secrets::encrypt`] encrypted with the current or the old key.
    pub fn decrypt(&self, purpose: &'static str, owner: &str, sealed: &[u8]) -> Option<Vec<u8>> {
        self.root_key_ages().find_map(|age| self.decrypt_with(age, purpose, owner, sealed))
    }

    /// Encrypts a secret again that was encrypted with the old root key. `None` if it was not: it
    /// needs no change, or cannot be decrypted.
    pub fn reencrypt(&self, purpose: &'static str, owner: &str, sealed: &[u8]) -> Option<Vec<u8>> {
        let current = RootKeyAge::Current;
        if self.root_old.is_none() || self.decrypt_with(current, purpose, owner, sealed).is_some() {
            return None;
        }
        let secret = self.decrypt_with(RootKeyAge::Old, purpose, owner, sealed)?;
        Some(self.encrypt(purpose, owner, &secret))
    }

    fn encryption_key(&self, age: RootKeyAge, purpose: &'static str, owner: &str) -> LessSafeKey {
        let key = self.tag_of(age, purpose, &[owner.as_bytes()]);
        LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).expect("AES-256 keys have 32 bytes"))
    }

    fn decrypt_with(
        &self,
        age: RootKeyAge,
        purpose: &'static str,
        owner: &str,
        sealed: &[u8],
    ) -> Option<Vec<u8>> {
        let (nonce, rest) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let mut rest = rest.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let key = self.encryption_key(age, purpose, owner);
        Some(key.open_in_place(nonce, Aad::empty(), &mut rest).ok()?.to_vec())
    }

    fn root_key(&self, age: RootKeyAge) -> &RootKey {
        match age {
            RootKeyAge::Current => &self.root,
            RootKeyAge::Old => self.root_old.as_ref().unwrap_or(&self.root),
        }
    }
}

/// A keyed digest of `parts` for one purpose.
fn keyed_digest(root: &[u8; 32], purpose: &'static str, parts: &[&[u8]]) -> [u8; 32] {
    let key = blake3::derive_key(purpose, root);
    let mut hasher = blake3::Hasher::new_keyed(&key);
    for part in parts {
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

/// One change of the files in a directory.
type RotationStep = fn(&Path) -> Result<(), SecretsError>;

/// The steps of [`Secrets::rotate_root`]. A crash between any two of them leaves a directory that
/// [`Secrets::load`] can use and in which the rotation can be started again.
const ROTATE_ROOT: [RotationStep; 5] = [
    // Clean up after a crash: an unused new key, and a second name of the same key.
    |dir| {
        remove(&dir.join(ROOT_TEMP))?;
        let (old, root) = (dir.join(ROOT_OLD), RootKey::load(&dir.join(ROOT))?);
        match RootKey::load(&old) {
            Ok(found) if found.id == root.id => remove(&old),
            _ => Ok(()),
        }
    },
    |dir| {
        let beside = dir.join(ROOT_TEMP);
        write_new(&beside, &random_bytes::<32>())?;
        same_owner(&dir.join(ROOT), &beside)
            .map_err(|source| SecretsError::File { path: beside, source })
    },
    // An existing old key is never replaced.
    |dir| {
        let old = dir.join(ROOT_OLD);
        fs::hard_link(dir.join(ROOT), &old)
            .and_then(|()| sync_dir(dir))
            .map_err(|source| SecretsError::File { path: old, source })
    },
    |dir| {
        let root = dir.join(ROOT);
        fs::rename(dir.join(ROOT_TEMP), &root)
            .map_err(|source| SecretsError::File { path: root, source })
    },
    |dir| sync_dir(dir).map_err(|source| SecretsError::File { path: dir.to_owned(), source }),
];

/// Removes a file if it exists.
fn remove(path: &Path) -> Result<(), SecretsError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(SecretsError::File { path: path.to_owned(), source: error })
        }
        _ => Ok(()),
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

/// Gives `file` the owner of `like`, because root may run this on behalf of the service's user.
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let dir = std::env::temp_dir().join(format!("fleetmend-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).unwrap();
            Dir(dir)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const PURPOSE: &str = "fleetmend test v1";

    #[test]
    fn crash_during_root_key_rotation_loses_no_key() {
        for done in 0..=ROTATE_ROOT.len() {
            let dir = Dir::new(&format!("rotate-root-{done}"));
            let before = Secrets::create(&dir.0).unwrap();
            let tag = before.tag(PURPOSE, &[b"x"]);
            for step in &ROTATE_ROOT[..done] {
                step(&dir.0).unwrap();
            }
            let found = Secrets::create(&dir.0).unwrap();
            assert!(found.verifies(PURPOSE, &[b"x"], 32, &tag), "after {done} steps");
            let rotated = found.old_root_key_id().is_some();
            assert_eq!(rotated, done >= 4, "after {done} steps");
            // The rotation can be started again, or is complete and is rejected.
            match Secrets::rotate_root(&dir.0) {
                Ok(after) => {
                    assert!(!rotated, "after {done} steps");
                    assert_eq!(after.old_root_key_id(), Some(before.root_key_id()));
                }
                Err(_) => assert!(rotated, "after {done} steps"),
            }
            let after = Secrets::load(&dir.0).unwrap();
            assert!(after.verifies(PURPOSE, &[b"x"], 32, &tag), "after {done} steps");
            assert_ne!(after.tag(PURPOSE, &[b"x"]), tag);
            let retired = Secrets::retire_root(&dir.0).unwrap();
            assert!(!retired.verifies(PURPOSE, &[b"x"], 32, &tag), "after {done} steps");
            assert_eq!(retired.root_key_id(), after.root_key_id());
        }
    }

    #[test]
    fn only_tags_of_the_right_length_verify() {
        let dir = Dir::new("tag-length");
        let secrets = Secrets::create(&dir.0).unwrap();
        let tag = secrets.tag(PURPOSE, &[b"x"]);
        assert!(secrets.verifies(PURPOSE, &[b"x"], 8, &tag[..8]));
        for (length, shown) in [(8, &tag[..7]), (8, &tag[..]), (8, b""), (32, &tag[..8])] {
            assert!(!secrets.verifies(PURPOSE, &[b"x"], length, shown), "{length} {shown:?}");
        }
        assert!(!secrets.verifies(PURPOSE, &[b"y"], 32, &tag));
    }
}
