//! The cookies: who is signed in, which browser has signed in before, and which is on its way to a provider of identities.

use axum::http::header::{COOKIE, HOST};
use axum::http::{HeaderMap, HeaderValue};

use crate::Dashboard;

/// The session.
pub(crate) const SESSION: &str = "fleetmend_session";
/// What a browser keeps that has signed in: its owner's guesses are counted apart from strangers'.
pub(crate) const DEVICE: &str = "fleetmend_device";
/// What a browser brings back from a provider.
pub(crate) const FLOW: &str = "fleetmend_flow";

/// The value of a cookie; of several the first, which is the one for the longest path.
pub(crate) fn read<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let pairs =
        lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// A cookie that no script reads and no other site sends.
pub(crate) fn make(
    app: &Dashboard,
    headers: &HeaderMap,
    name: &str,
    value: &str,
    seconds: i64,
) -> HeaderValue {
    written(app, headers, &format!("{name}={value}; Path=/; Max-Age={seconds}; SameSite=Strict"))
}

/// A cookie for the way back from another site, and for nothing else: a provider sends the browser by a link, with which a strict one
/// would not come along.
pub(crate) fn for_the_way_back(
    app: &Dashboard,
    headers: &HeaderMap,
    value: &str,
    seconds: i64,
) -> HeaderValue {
    let text = format!("{FLOW}={value}; Path=/sign-in/oidc; Max-Age={seconds}; SameSite=Lax");
    written(app, headers, &text)
}

fn written(app: &Dashboard, headers: &HeaderMap, text: &str) -> HeaderValue {
    let secure = if is_secure(app, headers) { "; Secure" } else { "" };
    let text = format!("{text}; HttpOnly{secure}");
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

/// Whether this browser reaches us by TLS. Behind a proxy that speaks it, the browser does too; whoever lies about it only keeps
/// themselves out.
fn is_secure(app: &Dashboard, headers: &HeaderMap) -> bool {
    let proxied = headers.get("x-forwarded-proto").is_some_and(|proto| proto == "https");
    app.settings.certificate_sha256.is_some() || proxied
}

/// The address that this browser reaches us by.
pub(crate) fn base(app: &Dashboard, headers: &HeaderMap) -> String {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost:7600");
    format!("{}://{host}", if is_secure(app, headers) { "https" } else { "http" })
}
