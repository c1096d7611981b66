//! Verifies that a response was signed by the service, for exactly this request.
//!
//! The service signs the text of [`response_signing_text`] with its orders key. A proxy can then
//! drop a response, or delay it until the request times out, but cannot change or replay it.

use std::sync::atomic::Ordering;

use wire::agent::response_signing_text;

use super::identity::random_bytes;
use super::{Identity, base64, from_base64};

/// A request that waits for its response.
pub(crate) struct Exchange<'a> {
    host: &'a Identity,
    /// Random for every request, including retries, so that the response to one request is not
    /// valid for another.
    nonce: String,
    request_signature: String,
}

impl<'a> Exchange<'a> {
    pub(crate) fn new(host: &'a Identity, request_signature: String) -> Exchange<'a> {
        Exchange { host, nonce: base64(&random_bytes::<16>()), request_signature }
    }

    pub(crate) fn nonce(&self) -> &str {
        &self.nonce
    }

    /// Whether the response may be acted on. An unsigned response is accepted only while the
    /// service has never signed one: it may be of the previous version, which does not sign.
    pub(crate) fn check(&self, proof: Option<&str>, status: u16, body: &[u8]) -> SignatureCheck {
        let Some(proof) = proof else {
            return if self.host.signs_answers() {
                SignatureCheck::Invalid
            } else {
                SignatureCheck::Missing
            };
        };
        match self.signer(proof, status, body) {
            Some(key) => {
                self.host.signs_answers.store(true, Ordering::Relaxed);
                SignatureCheck::SignedBy(key)
            }
            None => SignatureCheck::Invalid,
        }
    }

    /// The trusted key that signed the response.
    fn signer(&self, proof: &str, status: u16, body: &[u8]) -> Option<[u8; 32]> {
        // The header names a key, but it is not used: the signature must match a key that this host
        // trusts.
        let (_, signature) = proof.split_once(' ')?;
        let signature = from_base64(signature)?;
        let Exchange { host, nonce, request_signature } = self;
        let text = response_signing_text(host.server_id, nonce, request_signature, status, body);
        host.orders_keys.signer(text.as_bytes(), &signature)
    }
}

/// The result of verifying a response's signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignatureCheck {
    SignedBy([u8; 32]),
    /// Unsigned, from a service that has never signed a response.
    Missing,
    /// Must not be acted on.
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
        let response = EnrollResponse {
            server_id: SERVER.parse().unwrap(),
            tag: base64(&[1]),
            orders_key: base64(key(1).public_key().as_ref()),
            orders_keys: Vec::new(),
            counter: 0,
            sync_seconds: 60,
            signs_answers,
        };
        Identity::new(HostKey::generate(), response).unwrap()
    }

    impl Exchange<'_> {
        fn accepts(&self, proof: Option<&str>, status: u16, body: &[u8]) -> bool {
            self.check(proof, status, body) != SignatureCheck::Invalid
        }
    }

    fn proof(by: u8, text: &str) -> String {
        format!("any {}", base64(key(by).sign(text.as_bytes()).as_ref()))
    }

    /// Both sides must sign the same bytes for as long as any agent of this version exists.
    #[test]
    fn signed_text_of_a_response_never_changes() {
        assert_eq!(
            response_signing_text(SERVER.parse().unwrap(), "bm9uY2U=", "c2ln", 410, b""),
            format!(
                "fleetmend-answer-v1\n{SERVER}\nbm9uY2U=\nc2ln\n410\n\
                 af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
            )
        );
    }

    #[test]
    fn only_the_servers_response_to_this_request_is_accepted() {
        let host = host(true);
        let (first, second) =
            (Exchange::new(&host, "sig".to_owned()), Exchange::new(&host, "sig".to_owned()));
        assert_ne!(first.nonce, second.nonce, "a repeated request has its own nonce");
        let text = |server: &str, nonce: &str, sig: &str, status: u16, body: &[u8]| {
            response_signing_text(server.parse().unwrap(), nonce, sig, status, body)
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
    fn unsigned_responses_are_accepted_until_the_first_signed_one() {
        let host = host(false);
        let exchange = Exchange::new(&host, "sig".to_owned());
        assert!(exchange.accepts(None, 200, b"{}"));
        assert!(
            !exchange.accepts(Some("key AAAA"), 200, b"{}"),
            "a wrong signature is never accepted"
        );
        assert!(!host.signs_answers());
        let text = response_signing_text(host.server_id, &exchange.nonce, "sig", 200, b"{}");
        assert!(exchange.accepts(Some(&proof(1, &text)), 200, b"{}"));
        assert!(host.signs_answers());
        assert!(!exchange.accepts(None, 200, b"{}"));
    }
}
