//! Client side of `/agent/v1`: a host's enrollment, signing, syncs and uploads, and the
//! verification of responses and orders.
//!
//! This crate does not decide what to do with an order: the caller builds the requests and acts on
//! what was verified. It asks the operating system for randomness to create keys and nonces, and
//! never for the time: an order's age is measured by the service's clock.

mod client;
mod identity;
mod order;
mod response_signature;
mod sync_throttle;
mod token;
mod trust;

pub use client::{
    AgentClient, ClientError, ConnectError, ConnectOptions, EnrollOptions, ListingKind,
    ReleaseError, backoff_with_jitter,
};
pub use identity::{
    Authorization, HostKey, Identity, IdentityError, SyncCounter, TrustedKeys, nonce, public_keys,
    request_signing_text,
};
pub use order::{OrderRefusal, verify_order};
pub use sync_throttle::SyncThrottle;
pub use token::{Pin, Token, TokenError};
pub use trust::{PinnedServer, TrustStoreError};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

/// Standard base64, used in headers and bodies.
fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// URL-safe base64 without padding, used in tokens: needs no quoting on a command line.
fn from_base64_url(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// Whether an Ed25519 signature over a text was made with this key.
pub fn is_signed_by(public_key: &[u8], text: &[u8], signature: &[u8]) -> bool {
    let key = ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, public_key);
    key.verify(text, signature).is_ok()
}
