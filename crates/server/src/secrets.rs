//! The secrets of an installation: files in its data directory, never rows in its database.
//!
//! `orders.key` signs what agents are told to do. `root.key` is the root of everything that is derived:
//! the tags that make a forged credential recognizable without asking the database, and the
//! seal of the audit log. Replicas share both files.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use ring::signature::{Ed25519KeyPair, KeyPair as _};

use crate::clock::chance;

/// The two secrets, loaded.
pub struct Secrets {
    orders: Ed25519KeyPair,
    root: [u8; 32],
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
        write_new(&dir.join("orders.key"), &chance::<32>())?;
        write_new(&dir.join("root.key"), &chance::<32>())?;
        Secrets::load(dir)
    }

    /// The secrets in `dir`.
    pub fn load(dir: &Path) -> Result<Secrets, SecretsError> {
        let path = dir.join("orders.key");
        let orders = Ed25519KeyPair::from_seed_unchecked(&read(&path)?)
            .map_err(|_| SecretsError::Malformed { path })?;
        Ok(Secrets { orders, root: read(&dir.join("root.key"))? })
    }

    /// Signs an order.
    pub fn sign_order(&self, order: &[u8]) -> Vec<u8> {
        self.orders.sign(order).as_ref().to_vec()
    }

    /// The key with which agents check orders.
    pub fn orders_public_key(&self) -> &[u8] {
        self.orders.public_key().as_ref()
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
