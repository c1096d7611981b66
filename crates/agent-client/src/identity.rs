//! Who a host is: a key that was made on it, an id, and a counter that rolls with each sync.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use vocab::ServerId;
use wire::agent::{EnrollResponse, ORDERS_KEYS_MAX, OrdersKey, orders_key_id};

use super::{base64, from_base64};

/// The host's own key. Its secret half never leaves the host.
pub struct HostKey {
    pair: Ed25519KeyPair,
    seed: [u8; 32],
}

impl HostKey {
    /// A new key.
    ///
    /// # Panics
    /// If the operating system has no randomness to give; nothing could be done safely then.
    pub fn generate() -> HostKey {
        HostKey::from_seed(chance())
    }

    /// The key that was kept as its seed.
    ///
    /// # Panics
    /// Never: any 32 bytes are a seed.
    pub fn from_seed(seed: [u8; 32]) -> HostKey {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).expect("any 32 bytes are a seed");
        HostKey { pair, seed }
    }

    /// What to keep, where only root can read it.
    pub fn seed(&self) -> &[u8; 32] {
        &self.seed
    }

    /// The half that others may know, in base 64.
    pub fn public(&self) -> String {
        base64(self.pair.public_key().as_ref())
    }
}

pub(crate) fn chance<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}

/// A number for a [`Turn`] that no copy of this host will draw as well.
///
/// # Panics
/// If the operating system has no randomness to give.
pub fn nonce() -> u64 {
    u64::from_be_bytes(chance())
}

/// An enrolled host: with this, and only with this, requests are signed.
pub struct Identity {
    /// Its id.
    pub server_id: ServerId,
    /// The server's proof that this id and this key belong together, as it gave it.
    pub tag: IdentityTag,
    /// The keys with which orders and answers are signed.
    pub orders_keys: TrustedKeys,
    /// The host's own key.
    pub key: HostKey,
    /// Whether the server is known to sign its answers. From then on an answer without a signature
    /// is never accepted; before, the server may be one that does not sign yet.
    pub signs_answers: AtomicBool,
}

/// The tag of an identity, in base 64. The server may replace it.
pub struct IdentityTag(RwLock<String>);

/// The length of a tag that replaces another.
const TAG_BYTES: usize = 32;

impl From<String> for IdentityTag {
    fn from(tag: String) -> IdentityTag {
        IdentityTag(RwLock::new(tag))
    }
}

impl IdentityTag {
    /// The tag.
    pub fn get(&self) -> String {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Uses this one from now on. One that is malformed changes nothing.
    pub fn replace(&self, tag: &str) {
        if is_tag(tag) {
            tag.clone_into(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// Whether this can be the tag of an identity.
pub(crate) fn is_tag(text: &str) -> bool {
    from_base64(text).is_some_and(|bytes| bytes.len() == TAG_BYTES)
}

/// The public keys whose orders and answers a host accepts, oldest first. Usually one; two while the
/// server changes its key. Never empty.
pub struct TrustedKeys(RwLock<Vec<[u8; 32]>>);

impl TrustedKeys {
    /// Trusts these; `None` if there are none or more than [`ORDERS_KEYS_MAX`].
    pub fn new(keys: Vec<[u8; 32]>) -> Option<TrustedKeys> {
        (1..=ORDERS_KEYS_MAX).contains(&keys.len()).then(|| TrustedKeys(RwLock::new(keys)))
    }

    /// The keys, oldest first.
    pub fn keys(&self) -> Vec<[u8; 32]> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Their ids, in the same order.
    pub fn ids(&self) -> Vec<String> {
        self.keys().iter().map(|key| orders_key_id(key)).collect()
    }

    /// Trusts these and no others. An empty or too long list changes nothing.
    pub fn replace(&self, keys: Vec<[u8; 32]>) {
        if (1..=ORDERS_KEYS_MAX).contains(&keys.len()) {
            *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys;
        }
    }

    /// The trusted key that made a signature.
    pub(crate) fn signer(&self, text: &[u8], signature: &[u8]) -> Option<[u8; 32]> {
        self.keys()
            .into_iter()
            .find(|key| UnparsedPublicKey::new(&ED25519, key).verify(text, signature).is_ok())
    }
}

/// The public keys of a list, if each of them is one and there are not too many. The ids in the list
/// are not used: an id follows from its key.
pub fn public_keys(announced: &[OrdersKey]) -> Option<Vec<[u8; 32]>> {
    if !(1..=ORDERS_KEYS_MAX).contains(&announced.len()) {
        return None;
    }
    announced.iter().map(|key| from_base64(&key.public_key)?.try_into().ok()).collect()
}

/// The proof of who sent a request.
pub struct Authorization {
    /// The value of the `Authorization` header.
    pub header: String,
    /// The signature in it, in base 64. An answer is bound to it.
    pub signature: String,
}

/// Why an answer to an enrolment cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// A key for orders is not one.
    #[error("the server's key for orders is not 32 bytes in base 64")]
    OrdersKey,
    /// The tag cannot stand in a header.
    #[error("the server's tag is not base 64")]
    Tag,
}

impl Identity {
    /// Who the host is after the server's answer.
    pub fn new(key: HostKey, answer: EnrollResponse) -> Result<Identity, IdentityError> {
        let orders_key = from_base64(&answer.orders_key)
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or(IdentityError::OrdersKey)?;
        // A server of the version before names one key only.
        let orders_keys = match answer.orders_keys.is_empty() {
            true => Some(vec![orders_key]),
            false => public_keys(&answer.orders_keys),
        };
        let orders_keys = orders_keys.and_then(TrustedKeys::new).ok_or(IdentityError::OrdersKey)?;
        from_base64(&answer.tag).ok_or(IdentityError::Tag)?;
        let signs_answers = AtomicBool::new(answer.signs_answers);
        let (server_id, tag) = (answer.server_id, answer.tag.into());
        Ok(Identity { server_id, tag, orders_keys, key, signs_answers })
    }

    /// Whether the server is known to sign its answers.
    pub fn signs_answers(&self) -> bool {
        self.signs_answers.load(Ordering::Relaxed)
    }

    /// Signs a request.
    pub fn authorization(&self, method: &str, path_and_query: &str, body: &[u8]) -> Authorization {
        let signature = self.key.pair.sign(signed_text(method, path_and_query, body).as_bytes());
        let signature = base64(signature.as_ref());
        let header = format!(
            "Agent id={},key={},tag={},sig={signature}",
            self.server_id,
            self.key.public(),
            self.tag.get(),
        );
        Authorization { header, signature }
    }
}

/// What is signed of a request: all of it that has an effect.
pub fn signed_text(method: &str, path_and_query: &str, body: &[u8]) -> String {
    format!("fleetmend-agent-v1\n{method}\n{path_and_query}\n{}", blake3::hash(body).to_hex())
}

/// Whose turn it is: the counter that the server gave last, and a nonce that belongs to it.
///
/// Both are sent with each sync, and both change only when an answer ARRIVES: a sync that was cut
/// off or lost is repeated with the same pair, by which the server tells a repetition from the sync of
/// a copy of this host. Keep it on disk, both parts together, before acting on an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Turn {
    /// The counter to send.
    pub counter: u64,
    /// The nonce to send.
    pub nonce: u64,
}

impl Turn {
    /// The turn after an answer with this counter, with a nonce that was just drawn.
    pub fn after(counter: u64, nonce: u64) -> Turn {
        Turn { counter, nonce }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both sides must put the same bytes under a signature, for as long as there are agents.
    #[test]
    fn what_is_signed_is_written_in_stone() {
        assert_eq!(
            signed_text("POST", "/agent/v1/orders/tsk_1/log?offset=10", b""),
            "fleetmend-agent-v1\nPOST\n/agent/v1/orders/tsk_1/log?offset=10\n\
             af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        );
    }

    fn answer() -> EnrollResponse {
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

    /// RFC 8032, 7.1, test 1: the seed's public key is published; Ed25519 has one signature for one
    /// text, so a header that changes is a protocol that changed.
    #[test]
    fn a_request_carries_id_key_tag_and_a_signature_that_the_key_confirms() {
        let seed: Vec<u8> = (0..64)
            .step_by(2)
            .map(|at| {
                let text = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
                u8::from_str_radix(&text[at..at + 2], 16).unwrap()
            })
            .collect();
        let identity =
            Identity::new(HostKey::from_seed(seed.try_into().unwrap()), answer()).unwrap();
        assert_eq!(identity.key.public(), "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=");
        let header = identity.authorization("POST", "/agent/v1/sync", b"{}").header;
        let (head, signature) = header.split_once(",sig=").unwrap();
        assert_eq!(
            head,
            "Agent id=srv_01jcqk3m8ye0fr5cq0k6s8v2xw,\
             key=11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=,\
             tag=AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
        );
        let confirmed = |text: &str| {
            let key = from_base64(&identity.key.public()).unwrap();
            ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, key)
                .verify(text.as_bytes(), &from_base64(signature).unwrap())
                .is_ok()
        };
        assert!(confirmed(&signed_text("POST", "/agent/v1/sync", b"{}")));
        for other in [("PUT", "/agent/v1/sync", "{}"), ("POST", "/agent/v1/sync?", "{}")] {
            assert!(!confirmed(&signed_text(other.0, other.1, other.2.as_bytes())));
        }
        assert!(!confirmed(&signed_text("POST", "/agent/v1/sync", b"{ }")));
    }

    #[test]
    fn an_answer_that_no_request_could_be_made_with_is_refused_at_once() {
        let made = |answer| Identity::new(HostKey::generate(), answer).map(|_| ()).unwrap_err();
        let short = EnrollResponse { orders_key: base64(&[2; 31]), ..answer() };
        assert_eq!(made(short), IdentityError::OrdersKey);
        let header = EnrollResponse { tag: "x\r\nHost: evil".to_owned(), ..answer() };
        assert_eq!(made(header), IdentityError::Tag);
    }

    #[test]
    fn a_key_comes_back_from_its_seed() {
        let key = HostKey::generate();
        assert_eq!(HostKey::from_seed(*key.seed()).public(), key.public());
        assert_ne!(HostKey::generate().public(), key.public());
    }
}
