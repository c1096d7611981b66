//! Ties a start to the preview that the user saw.
//!
//! A token is a keyed digest of the session, the user, the organization, the action with everything
//! that the preview covered, and an expiry time. The service stores nothing. `patch_form`,
//! `schedules` and `batches` issue a token with every preview and check it before they start
//! anything.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::SignedDuration;
use service::clock::random_bytes;
use vocab::ServerId;

use crate::{Dashboard, Viewer};

/// How long a preview can be started.
pub(crate) const VALID_FOR: SignedDuration = SignedDuration::from_mins(30);
const PURPOSE: &str = "fleetmend preview v1";
const TAG_BYTES: usize = 32;

/// Why a token does not permit a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// Issued for another action or another user, or not issued by this installation.
    Mismatch,
    Expired,
}

impl Rejection {
    /// The message for the user, who sees a fresh preview below it.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Rejection::Mismatch => {
                "The options changed since the preview. Review it and start again."
            }
            Rejection::Expired => "The preview has expired. Review the new one and start again.",
        }
    }
}

/// A token for a preview of `action` with `content`.
pub(crate) fn issue(app: &Dashboard, viewer: &Viewer, action: &str, content: &str) -> String {
    let expires = (app.clock.now() + VALID_FOR).as_second();
    let nonce = URL_SAFE_NO_PAD.encode(random_bytes::<12>());
    let tag = with_signed_parts(viewer, action, content, expires, &nonce, |parts| {
        app.secrets.tag(PURPOSE, parts)
    });
    format_token(expires, &nonce, &tag)
}

fn format_token(expires: i64, nonce: &str, tag: &[u8]) -> String {
    format!("{expires}.{nonce}.{}", URL_SAFE_NO_PAD.encode(tag))
}

/// Checks that `token` was issued to this session for exactly this action and content.
pub(crate) fn check(
    app: &Dashboard,
    viewer: &Viewer,
    action: &str,
    content: &str,
    token: &str,
) -> Result<(), Rejection> {
    let mut parts = token.split('.');
    let (Some(expires), Some(nonce), Some(shown), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(Rejection::Mismatch);
    };
    let Ok(expires) = expires.parse::<i64>() else { return Err(Rejection::Mismatch) };
    let shown = URL_SAFE_NO_PAD.decode(shown).unwrap_or_default();
    let is_ours = with_signed_parts(viewer, action, content, expires, nonce, |parts| {
        app.secrets.verifies(PURPOSE, parts, TAG_BYTES, &shown)
    });
    // One token has one spelling, because a start counts once per token.
    if !is_ours || token != format_token(expires, nonce, &shown) {
        return Err(Rejection::Mismatch);
    }
    if expires <= app.clock.now().as_second() { Err(Rejection::Expired) } else { Ok(()) }
}

/// A set of servers as content of a token: each once, in a fixed order.
pub(crate) fn server_set(servers: &[ServerId]) -> String {
    let mut ids = servers.to_vec();
    ids.sort_unstable();
    ids.dedup();
    let mut text = String::new();
    for id in ids {
        // Writing to a string cannot fail.
        let _ = write!(text, "{id} ");
    }
    text
}

/// What a token is a digest of.
fn with_signed_parts<T>(
    viewer: &Viewer,
    action: &str,
    content: &str,
    expires: i64,
    nonce: &str,
    make: impl FnOnce(&[&[u8]]) -> T,
) -> T {
    let (user, org) = (viewer.user.id.to_string(), viewer.user.org_id.to_string());
    let signed = [&viewer.session, &user, &org, action, content, &expires.to_string(), nonce];
    make(&signed.map(str::as_bytes))
}
