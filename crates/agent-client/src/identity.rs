//! A host's identity: its key pair, its server id, the keys it trusts, and the sync counter.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use vocab::ServerId;
use wire::agent::{EnrollResponse, ORDERS_KEYS_MAX, OrdersKey, orders_key_id};

use super::{base64, from_base64};

/// The host's private key. It never leaves the host.
pub struct HostKey {
    pair: Ed25519KeyPair,
    seed: [u8; 32],
}

impl HostKey {
    /// Generates a new key.
    ///
    /// # Panics
    /// If the operating system provides no randomness. Nothing can be done safely in that case.
    pub fn generate() -> HostKey {
        HostKey::from_seed(random_bytes())
    }

    /// Restores a key from its stored seed.
    ///
    /// # Panics
    /// Never: any 32 bytes are a valid seed.
    pub fn from_seed(seed: [u8; 32]) -> HostKey {
        let pair =
            Ed25519KeyPair::from_seed_unchecked(&seed).expect("any 32 bytes are a valid seed");
        HostKey { pair, seed }
    }

    /// The secret to store, readable by root only.
    pub fn seed(&self) -> &[u8; 32] {
        &self.seed
    }

    /// The public key, in base64.
    pub fn public_key(&self) -> String {
        base64(self.pair.public_key().as_ref())
    }
}

pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("the operating system provides random bytes");
    bytes
}

/// A random nonce for a [`SyncCounter`]. A clone of this host will not draw the same.
///
/// # Panics
/// If the operating system provides no randomness.
pub fn nonce() -> u64 {
    u64::from_be_bytes(random_bytes())
}

/// An enrolled host. Every request is signed with this identity.
pub struct Identity {
    pub server_id: ServerId,
    /// The service's proof that this id and this key belong together, exactly as the service sent
    /// it.
    pub tag: IdentityTag,
    /// The service's keys for signing orders and responses.
    pub orders_keys: TrustedKeys,
    pub key: HostKey,
    /// Whether the service is known to sign its responses. Once true, a response without a
    /// signature is never accepted; until then, the service may be a version that does not sign
    /// yet.
    pub signs_answers: AtomicBool,
}

/// The tag of an identity, in base64. The service may replace it.
pub struct IdentityTag(RwLock<String>);

/// Length of a replacement tag.
const TAG_BYTES: usize = 32;

impl From<String> for IdentityTag {
    fn from(tag: String) -> IdentityTag {
        IdentityTag(RwLock::new(tag))
    }
}

impl IdentityTag {
    pub fn get(&self) -> String {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Uses this tag from now on. A malformed tag changes nothing.
    pub fn replace(&self, tag: &str) {
        if is_tag(tag) {
            tag.clone_into(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// Whether this text is a well-formed tag.
pub(crate) fn is_tag(text: &str) -> bool {
    from_base64(text).is_some_and(|bytes| bytes.len() == TAG_BYTES)
}

/// The public keys whose orders and responses a host accepts, oldest first. Usually one; two while
/// the service rotates its key. Never empty.
pub struct TrustedKeys(RwLock<Vec<[u8; 32]>>);

impl TrustedKeys {
    /// `None` if there are no keys or more than [`ORDERS_KEYS_MAX`].
    pub fn new(keys: Vec<[u8; 32]>) -> Option<TrustedKeys> {
        (1..=ORDERS_KEYS_MAX).contains(&keys.len()).then(|| TrustedKeys(RwLock::new(keys)))
    }

    /// The keys, oldest first.
    pub fn keys(&self) -> Vec<[u8; 32]> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The key ids, in the same order.
    pub fn ids(&self) -> Vec<String> {
        self.keys().iter().map(|key| orders_key_id(key)).collect()
    }

    /// Trusts exactly these keys. An empty or too long list changes nothing.
    pub fn replace(&self, keys: Vec<[u8; 32]>) {
        if (1..=ORDERS_KEYS_MAX).contains(&keys.len()) {
            *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys;
        }
    }

    /// The trusted key that made this signature.
    pub(crate) fn signer(&self, text: &[u8], signature: &[u8]) -> Option<[u8; 32]> {
        self.keys()
            .into_iter()
            .find(|key| UnparsedPublicKey::new(&ED25519, key).verify(text, signature).is_ok())
    }
}

/// Decodes a list of announced keys. `None` if a key is invalid or there are too many. The ids in
/// the list are not used: an id is derived from its key.
pub fn public_keys(announced: &[OrdersKey]) -> Option<Vec<[u8; 32]>> {
    if !(1..=ORDERS_KEYS_MAX).contains(&announced.len()) {
        return None;
    }
    announced.iter().map(|key| from_base64(&key.public_key)?.try_into().ok()).collect()
}

/// The authentication of a request.
pub struct Authorization {
    /// The value of the `Authorization` header.
    pub header: String,
    /// The signature in the header, in base64. The response is bound to it.
    pub signature: String,
}

/// Why an enrollment response cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    #[error("the service's signing key is not 32 bytes in base64")]
    OrdersKey,
    /// The tag could not be sent in a header.
    #[error("the service's tag is not base64")]
    Tag,
}

impl Identity {
    /// Builds the identity from the service's enrollment response.
    pub fn new(key: HostKey, response: EnrollResponse) -> Result<Identity, IdentityError> {
        let orders_key = from_base64(&response.orders_key)
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or(IdentityError::OrdersKey)?;
        // The previous server version sends only one key.
        let orders_keys = match response.orders_keys.is_empty() {
            true => Some(vec![orders_key]),
            false => public_keys(&response.orders_keys),
        };
        let orders_keys = orders_keys.and_then(TrustedKeys::new).ok_or(IdentityError::OrdersKey)?;
        from_base64(&response.tag).ok_or(IdentityError::Tag)?;
        let signs_answers = AtomicBool::new(response.signs_answers);
        let (server_id, tag) = (response.server_id, response.tag.into());
        Ok(Identity { server_id, tag, orders_keys, key, signs_answers })
    }

    /// Whether the service is known to sign its responses.
    pub fn signs_answers(&self) -> bool {
        self.signs_answers.load(Ordering::Relaxed)
    }

    pub fn authorization(&self, method: &str, path_and_query: &str, body: &[u8]) -> Authorization {
        let signature =
            self.key.pair.sign(request_signing_text(method, path_and_query, body).as_bytes());
        let signature = base64(signature.as_ref());
        let header = format!(
            "Agent id={},key={},tag={},sig={signature}",
            self.server_id,
            self.key.public_key(),
            self.tag.get(),
        );
        Authorization { header, signature }
    }
}

/// The signed text of a request: everything in it that has an effect.
pub fn request_signing_text(method: &str, path_and_query: &str, body: &[u8]) -> String {
    format!("fleetmend-agent-v1\n{method}\n{path_and_query}\n{}", blake3::hash(body).to_hex())
}

/// The sync counter: the counter that the service sent last, and a nonce that belongs to it.
///
/// Both are sent with each sync, and both change only when a response ARRIVES: a sync that was
/// aborted or lost is repeated with the same pair, by which the service distinguishes a retry
/// from the sync of a cloned host. Store both together on disk before acting on a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SyncCounter {
    pub counter: u64,
    pub nonce: u64,
}

impl SyncCounter {
    /// The sync counter after a response, with a fresh nonce.
    pub fn new(counter: u64, nonce: u64) -> SyncCounter {
        SyncCounter { counter, nonce }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both sides must sign the same bytes for as long as any agent of this version exists.
    #[test]
    fn signed_text_of_a_request_never_changes() {
        assert_eq!(
            request_signing_text("POST", "/agent/v1/orders/tsk_1/log?offset=10", b""),
            "fleetmend-agent-v1\nPOST\n/agent/v1/orders/tsk_1/log?offset=10\n\
             af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        );
    }

    fn enroll_response() -> EnrollResponse {
        EnrollResponse {
            server_id: "srv_01jcqk3m8ye0fr5cq0k6s8v2xw".parse().unwrap(),
            tag: base64(&[1; 32]),
            orders_key: base64(&[2; 32]),
            orders_keys: Vec::new(),
            counter: 1,
            sync_seconds: 60,
            signs_answers: true,
        }
    }

    /// RFC 8032, 7.1, test 1: the public key of this seed is published. Ed25519 is deterministic,
    /// so a changed header means a changed protocol.
    #[test]
    fn request_header_has_id_key_tag_and_valid_signature() {
        let seed: Vec<u8> = (0..64)
            .step_by(2)
            .map(|at| {
                let text = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
                u8::from_str_radix(&text[at..at + 2], 16).unwrap()
            })
            .collect();
        let identity =
            Identity::new(HostKey::from_seed(seed.try_into().unwrap()), enroll_response()).unwrap();
        assert_eq!(identity.key.public_key(), "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=");
        let header = identity.authorization("POST", "/agent/v1/sync", b"{}").header;
        let (head, signature) = header.split_once(",sig=").unwrap();
        assert_eq!(
            head,
            "Agent id=srv_01jcqk3m8ye0fr5cq0k6s8v2xw,\
             key=11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=,\
             tag=AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
        );
        let confirmed = |text: &str| {
            let key = from_base64(&identity.key.public_key()).unwrap();
            ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, key)
                .verify(text.as_bytes(), &from_base64(signature).unwrap())
                .is_ok()
        };
        assert!(confirmed(&request_signing_text("POST", "/agent/v1/sync", b"{}")));
        for other in [("PUT", "/agent/v1/sync", "{}"), ("POST", "/agent/v1/sync?", "{}")] {
            assert!(!confirmed(&request_signing_text(other.0, other.1, other.2.as_bytes())));
        }
        assert!(!confirmed(&request_signing_text("POST", "/agent/v1/sync", b"{ }")));
    }

    #[test]
    fn unusable_enrollment_response_is_rejected() {
        let made = |answer| Identity::new(HostKey::generate(), answer).map(|_| ()).unwrap_err();
        let short = EnrollResponse { orders_key: base64(&[2; 31]), ..enroll_response() };
        assert_eq!(made(short), IdentityError::OrdersKey);
        let header = EnrollResponse { tag: "x\r\nHost: evil".to_owned(), ..enroll_response() };
        assert_eq!(made(header), IdentityError::Tag);
    }

    #[test]
    fn key_is_restored_from_its_seed() {
        let key = HostKey::generate();
        assert_eq!(HostKey::from_seed(*key.seed()).public_key(), key.public_key());
        assert_ne!(HostKey::generate().public_key(), key.public_key());
    }
}
