//! The client's side of `/agent/v1`: how a host joins, signs, syncs, uploads, and checks its
//! answers and orders.
//!
//! Nothing here simulates anything or decides what is done with an order; whoever calls it brings the
//! requests and obeys or refuses what was verified. It asks the operating system for chance where a
//! key or a nonce is made, and never for the time: an order's age is judged by the server's clock.

mod answer;
mod client;
mod identity;
mod order;
mod sync_throttle;
mod token;
mod trust;

pub use client::{AgentClient, ClientError, Connect, ConnectError, Joining, ListingKind, jittered};
pub use identity::{
    Authorization, HostKey, Identity, IdentityError, TrustedKeys, Turn, nonce, public_keys,
    signed_text,
};
pub use order::{OrderRefusal, verify};
pub use sync_throttle::SyncThrottle;
pub use token::{Pin, Token, TokenError};
pub use trust::{PinnedServer, TrustStoreError};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

/// Base 64 as headers and bodies have it.
fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// Base 64 as tokens have it, fit for a command line.
fn from_base64_url(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}
