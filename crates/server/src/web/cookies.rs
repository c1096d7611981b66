//! The two cookies: who is signed in, and which browser has signed in before.

use axum::http::header::COOKIE;
use axum::http::{HeaderMap, HeaderValue};

use crate::app::App;

/// The session.
pub(crate) const SESSION: &str = "fleetmend_session";
/// What a browser keeps that has signed in: its owner's guesses are counted apart from strangers'.
pub(crate) const DEVICE: &str = "fleetmend_device";

/// The value of a cookie; of several the first, which is the one for the longest path.
pub(crate) fn read<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let pairs =
        lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// A cookie that no script reads and no other site sends.
pub(crate) fn make(
    app: &App,
    headers: &HeaderMap,
    name: &str,
    value: &str,
    seconds: i64,
) -> HeaderValue {
    // Behind a proxy that speaks TLS, the browser does too. Whoever lies about it only keeps themselves out.
    let proxied = headers.get("x-forwarded-proto").is_some_and(|proto| proto == "https");
    let secure = if app.settings.certificate_sha256.is_some() || proxied { "; Secure" } else { "" };
    let text =
        format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}
