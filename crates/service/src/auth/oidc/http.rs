//! HTTP requests to an identity provider: limited in size and time, over HTTPS, without redirects.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use reqwest::redirect::Policy;
use reqwest::{RequestBuilder, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::auth::oidc::{Config, OidcError, TokenResponse};
use crate::fetch;
use crate::fetch::Limits;

/// Short, because a user is waiting in front of a browser.
const LIMITS: Limits = Limits {
    bytes_max: 256 * 1024,
    connect: Duration::from_secs(5),
    idle: Duration::from_secs(10),
    whole: Duration::from_secs(10),
};
/// The maximum length of a provider's error code in messages.
const ERROR_CODE_CHARS_MAX: usize = 60;

/// Whether requests to this URL are protected from eavesdropping and tampering: HTTPS, or a
/// provider on this host.
pub(super) fn is_safe(url: &Url) -> bool {
    let scheme = url.scheme();
    url.has_host() && (scheme == "https" || (scheme == "http" && fetch::is_loopback(url)))
}

/// Parses a URL that the provider names, if it is safe to use.
pub(super) fn parse_url(what: &'static str, text: &str) -> Result<Url, OidcError> {
    let url = Url::parse(text).ok().filter(is_safe);
    url.ok_or_else(|| {
        let why = "its URL does not begin with https://".to_owned();
        OidcError::Unusable { what, why }
    })
}

/// Fetches a JSON document.
pub(super) async fn get<T: DeserializeOwned>(
    what: &'static str,
    url: &Url,
    token: Option<&str>,
) -> Result<T, OidcError> {
    let mut request = client(what, url)?.get(url.clone()).header(ACCEPT, "application/json");
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let (status, bytes) = send(what, request).await?;
    if status != StatusCode::OK {
        return Err(OidcError::Unusable { what, why: format!("it returned {status}") });
    }
    parse(what, &bytes)
}

/// Exchanges an authorization code for tokens.
pub(super) async fn redeem(
    url: &Url,
    form: &[(&str, &str)],
    config: &Config,
    by_form: bool,
) -> Result<TokenResponse, OidcError> {
    const WHAT: &str = "token endpoint";
    let mut form = form.to_vec();
    let mut request = client(WHAT, url)?.post(url.clone()).header(ACCEPT, "application/json");
    match &config.client_secret {
        Some(secret) if !by_form => {
            // Both parts are form-encoded first (RFC 6749, section 2.3.1).
            let words = format!("{}:{}", form_encode(&config.client_id), form_encode(&secret.0));
            request = request.header(AUTHORIZATION, format!("Basic {}", STANDARD.encode(words)));
        }
        secret => {
            form.push(("client_id", &config.client_id));
            form.extend(secret.as_ref().map(|secret| ("client_secret", secret.0.as_str())));
        }
    }
    let body = serde_html_form::to_string(form).unwrap_or_default();
    let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body);
    let (status, bytes) = send(WHAT, request).await?;
    if status == StatusCode::OK {
        return parse(WHAT, &bytes);
    }
    let response: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let code: String = match response.get("error").and_then(Value::as_str) {
        Some(word) => word.chars().filter(|c| !c.is_control()).take(ERROR_CODE_CHARS_MAX).collect(),
        None => status.to_string(),
    };
    Err(match code.as_str() {
        "invalid_grant" => OidcError::RejectedCode(code),
        "invalid_client" | "unauthorized_client" | "unsupported_grant_type" | "invalid_request" => {
            OidcError::RejectedClient(code)
        }
        _ => OidcError::Unusable { what: WHAT, why: format!("it returned {code}") },
    })
}

fn form_encode(text: &str) -> String {
    let pair = serde_html_form::to_string([("", text)]).unwrap_or_default();
    pair.trim_start_matches('=').to_owned()
}

fn client(what: &'static str, url: &Url) -> Result<reqwest::Client, OidcError> {
    fetch::client(url, LIMITS, Policy::none)
        .map_err(|error| OidcError::Unusable { what, why: error.to_string() })
}

async fn send(
    what: &'static str,
    request: RequestBuilder,
) -> Result<(StatusCode, Vec<u8>), OidcError> {
    let failed =
        |error: reqwest::Error| OidcError::Unreachable { what, source: error.without_url() };
    let mut response = request.send().await.map_err(failed)?;
    let mut bytes = Vec::new();
    while let Some(part) = response.chunk().await.map_err(failed)? {
        bytes.extend_from_slice(&part);
        if bytes.len() as u64 > LIMITS.bytes_max {
            let why = format!("the response is larger than {} bytes", LIMITS.bytes_max);
            return Err(OidcError::Unusable { what, why });
        }
    }
    Ok((response.status(), bytes))
}

fn parse<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, OidcError> {
    serde_json::from_slice(bytes).map_err(|error| {
        // The response of a token endpoint is secret: the error names the position, not the text.
        let why = format!(
            "the response is malformed (line {}, {})",
            error.line(),
            error_category(&error)
        );
        OidcError::Unusable { what, why }
    })
}

fn error_category(error: &serde_json::Error) -> &'static str {
    match error.classify() {
        serde_json::error::Category::Data => "a field is missing or has the wrong type",
        _ => "not JSON",
    }
}
