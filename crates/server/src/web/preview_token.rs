//! Ties a start to the preview that the user saw.
//!
//! A token is a keyed digest of the session, the user, the organization, the action with everything
//! that the preview covered, and an expiry time. The server stores nothing. `order`, `schedules` and
//! `batches` issue a token with every preview and check it before they start anything.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::SignedDuration;
use vocab::ServerId;

use crate::app::App;
use crate::clock::chance;
use crate::web::Viewer;
use crate::web::flow::is_same;

/// How long a preview can be started.
pub(crate) const VALID_FOR: SignedDuration = SignedDuration::from_mins(30);
const PURPOSE: &str = "fleetmend preview v1";

/// Why a token does not permit a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// Issued for something else or somebody else, or not issued by this installation.
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
pub(crate) fn issue(app: &App, viewer: &Viewer, action: &str, content: &str) -> String {
    let expires = (app.clock.now() + VALID_FOR).as_second();
    let nonce = URL_SAFE_NO_PAD.encode(chance::<12>());
    sign(app, viewer, action, content, expires, &nonce)
}

/// Checks that `token` was issued to this session for exactly this action and content.
pub(crate) fn check(
    app: &App,
    viewer: &Viewer,
    action: &str,
    content: &str,
    token: &str,
) -> Result<(), Rejection> {
    let mut parts = token.split('.');
    let (Some(expires), Some(nonce)) = (parts.next(), parts.next()) else {
        return Err(Rejection::Mismatch);
    };
    let Ok(expires) = expires.parse::<i64>() else { return Err(Rejection::Mismatch) };
    if !is_same(token, &sign(app, viewer, action, content, expires, nonce)) {
        return Err(Rejection::Mismatch);
    }
    if expires <= app.clock.now().as_second() { Err(Rejection::Expired) } else { Ok(()) }
}

/// A set of servers as content of a token: each once, in a fixed order.
pub(crate) fn server_set(servers: &[ServerId]) -> String {
    let ids: BTreeSet<String> = servers.iter().map(ToString::to_string).collect();
    ids.into_iter().collect::<Vec<_>>().join(" ")
}

fn sign(
    app: &App,
    viewer: &Viewer,
    action: &str,
    content: &str,
    expires: i64,
    nonce: &str,
) -> String {
    let (user, org) = (viewer.user.id.to_string(), viewer.user.org_id.to_string());
    let signed = [&viewer.session, &user, &org, action, content, &expires.to_string(), nonce];
    let tag = app.secrets.tag(PURPOSE, &signed.map(str::as_bytes));
    format!("{expires}.{nonce}.{}", URL_SAFE_NO_PAD.encode(tag))
}
