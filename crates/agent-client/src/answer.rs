//! Whether an answer is the server's own answer to this very request.
//!
//! The server signs the text of [`answer_text`] with its key for orders. A proxy can then drop or delay
//! an answer, until the request times out, and do nothing else with it.

use std::sync::atomic::Ordering;

use wire::agent::answer_text;

use super::identity::chance;
use super::{Identity, base64, from_base64};

/// One request whose answer is awaited.
pub(crate) struct Exchange<'a> {
    host: &'a Identity,
    /// Drawn for this request alone, also if it repeats another one, so that the answer to that one
    /// is none to this.
    nonce: String,
    request_signature: String,
}

impl<'a> Exchange<'a> {
    pub(crate) fn new(host: &'a Identity, request_signature: String) -> Exchange<'a> {
        Exchange { host, nonce: base64(&chance::<16>()), request_signature }
    }

    pub(crate) fn nonce(&self) -> &str {
        &self.nonce
    }

    /// Whether the answer may be acted on, and why. One without a signature may only as long as the
    /// server was never known to sign: it is of the version before.
    pub(crate) fn check(&self, proof: Option<&str>, status: u16, body: &[u8]) -> Proof {
        let Some(proof) = proof else {
            return if self.host.signs_answers() { Proof::Invalid } else { Proof::Missing };
        };
        match self.signer(proof, status, body) {
            Some(key) => {
                self.host.signs_answers.store(true, Ordering::Relaxed);
                Proof::SignedBy(key)
            }
            None => Proof::Invalid,
        }
    }

    /// The trusted key that signed the answer.
    fn signer(&self, proof: &str, status: u16, body: &[u8]) -> Option<[u8; 32]> {
        // The header says which key signed; the keys that this host trusts decide.
        let (_, signature) = proof.split_once(' ')?;
        let signature = from_base64(signature)?;
        let Exchange { host, nonce, request_signature } = self;
        let text = answer_text(host.server_id, nonce, request_signature, status, body);
        host.orders_keys.signer(text.as_bytes(), &signature)
    }
}

/// How far an answer is proven to be the server's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Signed with this trusted key.
    SignedBy([u8; 32]),
    /// Not signed, by a server that was never known to sign.
    Missing,
    /// Not to be acted on.
    Invalid,
}

#[cfg(test)]
mod tests {
    use super::super::HostKey;
    use super::*;
    use ring::signature::{Ed25519KeyPair, KeyPair as _};
    use wire::agent::EnrollResponse;

    const SERVER: &str = "srv_01jcqk3m8ye0fr5cq0k6s8v2xw";

    fn key(byte: u8) -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&[byte; 32]).unwrap()
    }

    fn host(signs_answers: bool) -> Identity {
        let answer = EnrollResponse {
            server_id: SERVER.parse().unwrap(),
            tag: base64(&[1]),
            orders_key: base64(key(1).public_key().as_ref()),
            orders_keys: Vec::new(),
            counter: 0,
            sync_seconds: 60,
            signs_answers,
        };
        Identity::new(HostKey::generate(), answer).unwrap()
    }

    impl Exchange<'_> {
        fn accepts(&self, proof: Option<&str>, status: u16, body: &[u8]) -> bool {
            self.check(proof, status, body) != Proof::Invalid
        }
    }

    fn proof(by: u8, text: &str) -> String {
        format!("any {}", base64(key(by).sign(text.as_bytes()).as_ref()))
    }

    /// Both sides must put the same bytes under a signature, for as long as there are agents.
    #[test]
    fn signed_text_of_an_answer_never_changes() {
        assert_eq!(
            answer_text(SERVER.parse().unwrap(), "bm9uY2U=", "c2ln", 410, b""),
            format!(
                "fleetmend-answer-v1\n{SERVER}\nbm9uY2U=\nc2ln\n410\n\
                 af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
            )
        );
    }

    #[test]
    fn only_the_servers_answer_to_this_request_is_accepted() {
        let host = host(true);
        let (first, second) =
            (Exchange::new(&host, "sig".to_owned()), Exchange::new(&host, "sig".to_owned()));
        assert_ne!(first.nonce, second.nonce, "a repeated request is another one");
        let text = |server: &str, nonce: &str, sig: &str, status: u16, body: &[u8]| {
            answer_text(server.parse().unwrap(), nonce, sig, status, body)
        };
        let good = proof(1, &text(SERVER, &first.nonce, "sig", 200, b"{}"));
        assert!(first.accepts(Some(&good), 200, b"{}"));
        assert!(!first.accepts(Some(&good), 410, b"{}"));
        assert!(!first.accepts(Some(&good), 200, b"{ }"));
        assert!(!second.accepts(Some(&good), 200, b"{}"));
        let other = "srv_01jcqk3m8ye0fr5cq0k6s8v2xx";
        for bad in [
            proof(2, &text(SERVER, &first.nonce, "sig", 200, b"{}")),
            proof(1, &text(other, &first.nonce, "sig", 200, b"{}")),
            proof(1, &text(SERVER, &first.nonce, "gis", 200, b"{}")),
            proof(1, "{}"),
            String::new(),
            "key".to_owned(),
            "key !".to_owned(),
        ] {
            assert!(!first.accepts(Some(&bad), 200, b"{}"), "{bad}");
        }
        assert!(!first.accepts(None, 200, b"{}"));
    }

    #[test]
    fn unsigned_answers_are_accepted_until_the_first_signed_one() {
        let host = host(false);
        let exchange = Exchange::new(&host, "sig".to_owned());
        assert!(exchange.accepts(None, 200, b"{}"));
        assert!(!exchange.accepts(Some("key AAAA"), 200, b"{}"), "a wrong signature is worse");
        assert!(!host.signs_answers());
        let text = answer_text(host.server_id, &exchange.nonce, "sig", 200, b"{}");
        assert!(exchange.accepts(Some(&proof(1, &text)), 200, b"{}"));
        assert!(host.signs_answers());
        assert!(!exchange.accepts(None, 200, b"{}"));
    }
}
