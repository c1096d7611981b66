//! The key of the publisher: agents accept an upgrade only if it is signed with the key that was
//! built into them. It belongs to the publisher of the packages, and never to a service.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair as _};

use crate::process::TaskError;

pub(crate) struct ReleaseKey(Ed25519KeyPair);

/// Reads the private key, or creates it, readable only by its owner.
pub(crate) fn load_or_create(file: &Path) -> Result<ReleaseKey, TaskError> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        TaskError::Failed(format!("cannot {what} {}: {error}", file.display()))
    };
    if !file.exists() {
        let mut seed = [0; 32];
        SystemRandom::new().fill(&mut seed).map_err(|error| failed("create", &error))?;
        let mut options = fs::OpenOptions::new();
        let created = options.write(true).create_new(true).mode(0o600).open(file);
        created
            .and_then(|mut file| writeln!(file, "{}", STANDARD.encode(seed)))
            .map_err(|error| failed("create", &error))?;
    }
    let text = fs::read_to_string(file).map_err(|error| failed("read", &error))?;
    let seed = STANDARD.decode(text.trim()).map_err(|error| failed("read", &error))?;
    let key = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|error| failed("read", &error))?;
    Ok(ReleaseKey(key))
}

impl ReleaseKey {
    /// The public key, in base64.
    pub(crate) fn public(&self) -> String {
        STANDARD.encode(self.0.public_key())
    }

    /// The signature of an agent that was just built, in base64.
    pub(crate) fn sign(&self, program: &Path) -> Result<String, TaskError> {
        let bytes = fs::read(program).map_err(|error| {
            TaskError::Failed(format!("cannot read {}: {error}", program.display()))
        })?;
        let digest = ring::digest::digest(&ring::digest::SHA256, &bytes);
        let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let (version, architecture) = (env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
        // As in `wire::agent::release_signing_text`.
        let text = format!("fleetmend-agent-release-v1\n{version}\n{architecture}\n{hex}");
        Ok(STANDARD.encode(self.0.sign(text.as_bytes())) + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_created_once_and_signs_a_program() {
        let dir =
            std::env::temp_dir().join(format!("fleetmend-release-key-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("release.key");
        let key = load_or_create(&file).unwrap_or_else(|_| panic!("the key is created"));
        let again = load_or_create(&file).unwrap_or_else(|_| panic!("the key is read"));
        assert_eq!(key.public(), again.public());
        let signature = again.sign(&file).unwrap_or_else(|_| panic!("any file can be signed"));
        assert_eq!(STANDARD.decode(signature.trim()).unwrap().len(), 64);
        assert_eq!(key.public().len(), 44, "the place for it in the agent has this length");
        fs::remove_dir_all(dir).unwrap();
    }
}
