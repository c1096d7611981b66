//! Sends events to other systems.
//!
//! Requests are signed as [Standard Webhooks](https://www.standardwebhooks.com) describes: the
//! secret of the webhook authenticates the id, the time and the body. The id is that of the event,
//! so a receiver that gets an event twice can tell. The engine decides what to send when
//! (`engine::webhooks`); this module builds, signs and sends requests.

mod client;
mod formats;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use ring::hmac;
use store::webhooks::Webhook;

pub use client::{Client, Response, check_url};
pub use formats::{Format, Message, sentence};
pub use wire::v1::Event;

use crate::clock::random_bytes;
use crate::secrets::Secrets;

const SECRET_BYTES: usize = 32;
const SECRET_PREFIX: &str = "whsec_";
const SECRET_PURPOSE: &str = "fleetmend webhook secret v1";

/// After this time without a successful attempt, a webhook is disabled.
pub const DISABLE_AFTER: SignedDuration = SignedDuration::from_hours(5 * 24);

/// The delays before the second and later attempts to deliver an event.
const RETRY_DELAYS: [SignedDuration; 9] = [
    SignedDuration::from_secs(5),
    SignedDuration::from_mins(5),
    SignedDuration::from_mins(30),
    SignedDuration::from_hours(2),
    SignedDuration::from_hours(5),
    SignedDuration::from_hours(10),
    SignedDuration::from_hours(14),
    SignedDuration::from_hours(20),
    SignedDuration::from_hours(24),
];

/// When to try again after this number of failed attempts; `None` if it is given up.
pub fn next_attempt(attempts: u32, now: Timestamp) -> Option<Timestamp> {
    let delay = RETRY_DELAYS.get(usize::try_from(attempts).ok()?.checked_sub(1)?)?;
    now.checked_add(*delay).ok()
}

/// A signing secret.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningSecret(Vec<u8>);

impl SigningSecret {
    pub fn generate() -> SigningSecret {
        SigningSecret(random_bytes::<SECRET_BYTES>().to_vec())
    }

    /// The text that receivers need; shown once.
    pub fn text(&self) -> String {
        format!("{SECRET_PREFIX}{}", STANDARD.encode(&self.0))
    }

    /// Encrypts the secret of a webhook, to store it.
    pub fn encrypt(&self, secrets: &Secrets, webhook: vocab::WebhookId) -> Vec<u8> {
        secrets.encrypt(SECRET_PURPOSE, &webhook.to_string(), &self.0)
    }

    fn decrypt(secrets: &Secrets, webhook: vocab::WebhookId, sealed: &[u8]) -> Option<Self> {
        secrets.decrypt(SECRET_PURPOSE, &webhook.to_string(), sealed).map(SigningSecret)
    }

    fn sign(&self, id: &str, timestamp: i64, body: &str) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let tag = hmac::sign(&key, format!("{id}.{timestamp}.{body}").as_bytes());
        format!("v1,{}", STANDARD.encode(tag))
    }
}

/// Encrypts a stored secret again that was encrypted with the old root key.
pub(crate) fn reencrypt(
    secrets: &Secrets,
    webhook: vocab::WebhookId,
    sealed: &[u8],
) -> Option<Vec<u8>> {
    secrets.reencrypt(SECRET_PURPOSE, &webhook.to_string(), sealed)
}

/// The `webhook-signature` header: one signature, or two while a secret is being rotated. `None` if
/// the stored secret cannot be decrypted.
pub fn signature(
    secrets: &Secrets,
    webhook: &Webhook,
    id: &str,
    body: &str,
    now: Timestamp,
) -> Option<String> {
    let timestamp = now.as_second();
    let current = SigningSecret::decrypt(secrets, webhook.id, &webhook.secret)?;
    let mut signatures = vec![current.sign(id, timestamp, body)];
    if let Some(old) = &webhook.old_secret
        && webhook.old_secret_until.is_some_and(|until| now < until)
        && let Some(old) = SigningSecret::decrypt(secrets, webhook.id, old)
    {
        signatures.push(old.sign(id, timestamp, body));
    }
    Some(signatures.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_follow_the_documented_delays_and_end() {
        let now = Timestamp::UNIX_EPOCH;
        let delay = |attempts| next_attempt(attempts, now).map(|at| at.duration_since(now));
        assert_eq!(delay(1), Some(SignedDuration::from_secs(5)));
        assert_eq!(delay(2), Some(SignedDuration::from_mins(5)));
        assert_eq!(delay(9), Some(SignedDuration::from_hours(24)));
        assert_eq!((delay(0), delay(10), delay(u32::MAX)), (None, None, None));
    }

    /// The example of the specification.
    #[test]
    fn signature_matches_the_example_of_standard_webhooks() {
        let key = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let body = r#"{"test": 2432232314}"#;
        let signature =
            SigningSecret(key).sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}
