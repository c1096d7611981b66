//! HTTP client for `/agent/v1`: every request is signed and limited in size and time.
//!
//! It never retries. The caller decides what to repeat and when ([`backoff_with_jitter`] computes
//! the delay).

use std::net::IpAddr;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::{Client, Method, StatusCode, Url};
use serde::Deserialize;
use vocab::{Digest, Environment, Tag, TaskId};
use wire::agent::{
    EnrollRequest, EnrollResponse, Facts, NONCE_HEADER, SIGNATURE_HEADER, SyncRequest,
    SyncResponse, TRUSTED_KEYS_HEADER,
};

use super::identity::is_tag;
use super::response_signature::{Exchange, SignatureCheck};
use super::trust::{TrustStoreError, system_trust_config};
use super::{Authorization, HostKey, Identity, Pin, PinnedServer, Token, public_keys};

/// Maximum size of a response body, so that the service cannot exhaust the host's memory.
const RESPONSE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Timeout of requests that are not held open.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// How much later than `hold_seconds` the response to a held sync may arrive.
const HOLD_GRACE: Duration = Duration::from_secs(20);
/// The largest program that is downloaded, and the time for it.
const RELEASE_BYTES_MAX: u64 = 128 * 1024 * 1024;
const RELEASE_TIMEOUT: Duration = Duration::from_secs(600);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer `Retry-After` values are cut to this; no proxy needs more.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// Client for one service. Cheap to clone; clones share connections.
#[derive(Debug, Clone)]
pub struct AgentClient {
    client: Client,
    /// Scheme and authority: `https://fleet.example:7600`.
    origin: String,
}

/// How to connect to a service.
#[derive(Debug, Clone, Copy)]
pub struct ConnectOptions<'a> {
    /// Server address, such as `https://fleet.example:7600`.
    pub url: &'a str,
    /// How the service's certificate is verified.
    pub pin: Pin,
    /// Local address to connect from, if it matters.
    pub from: Option<IpAddr>,
}

/// Why no client can be created.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The address is malformed or has a part that is not allowed.
    #[error(
        "`{0}` is not a valid service address; expected something like https://fleet.example:7600"
    )]
    Url(String),
    /// The token contains a certificate hash, but the address does not use TLS.
    #[error("the token requires TLS: the service address must start with https://")]
    TlsRequired,
    /// The service must be verified by the system's trust store, which cannot be used.
    #[error(transparent)]
    TrustStore(#[from] TrustStoreError),
    #[error("cannot create the HTTP client")]
    Client(#[source] reqwest::Error),
}

/// Why a request failed, as far as the host can tell.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The service was not reached, or its response was lost. Try again; the request may have taken
    /// effect.
    #[error("no response from the service")]
    Unreachable(#[source] reqwest::Error),
    /// The service is temporarily unavailable. Try again, not before `retry_after`.
    #[error("the service is busy ({status})")]
    Busy {
        status: StatusCode,
        /// How long to wait before the next request.
        retry_after: Option<Duration>,
    },
    /// The service has removed this host. Stop permanently.
    #[error("this host was removed from its service")]
    Removed,
    /// The response is not signed by the service, or not for this request: anyone on the network
    /// path may have written it. Ignore its content and try again.
    #[error("{}", unverified_message(*status))]
    Unverified { status: StatusCode },
    /// The service rejects this request. Trying again would change nothing.
    #[error("the service rejected the request ({status} {code}): {detail}")]
    Refused {
        status: StatusCode,
        /// Machine-readable reason.
        code: String,
        /// Human-readable reason.
        detail: String,
    },
    /// The response cannot be parsed or used.
    #[error("invalid response from the service: {0}")]
    InvalidResponse(String),
}

/// Why the agent's program could not be downloaded.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    #[error("the download failed")]
    Download(#[from] reqwest::Error),
    #[error("the download does not have the size that the order names")]
    Size,
    #[error("the download does not have the digest that the order names")]
    Digest,
}

/// What a host sends to enroll.
#[derive(Debug, Clone)]
pub struct EnrollOptions {
    pub facts: Facts,
    /// The environment that the host requests.
    pub environment: Option<Environment>,
    /// The tags that the host requests.
    pub tags: Vec<Tag>,
}

/// Type of a package set: installed packages or pending updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListingKind {
    /// Installed packages.
    Packages,
    /// Pending updates.
    Updates,
}

impl ListingKind {
    fn as_str(self) -> &'static str {
        match self {
            ListingKind::Packages => "packages",
            ListingKind::Updates => "updates",
        }
    }
}

impl AgentClient {
    /// Creates a client. Sends nothing yet.
    pub fn new(to: ConnectOptions<'_>) -> Result<AgentClient, ConnectError> {
        let malformed = || ConnectError::Url(to.url.to_owned());
        let url = Url::parse(to.url).map_err(|_| malformed())?;
        let bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        if !bare || !url.has_host() || !url.username().is_empty() || url.password().is_some() {
            return Err(malformed());
        }
        let builder = Client::builder()
            .http1_only()
            .no_proxy()
            .tcp_nodelay(true)
            .local_address(to.from)
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never());
        let builder = match (to.pin, url.scheme()) {
            (Pin::Certificate(sha256), "https") => builder
                .https_only(true)
                .tls_backend_preconfigured(PinnedServer::client_config(sha256)),
            // The client requires a TLS provider even if it never uses TLS.
            (Pin::Plain, "http") => {
                builder.tls_backend_preconfigured(PinnedServer::client_config([0; 32]))
            }
            // The service itself has no TLS, and the proxy in front of it has a certificate that
            // any client on this host can verify.
            (Pin::Plain, "https") => {
                builder.https_only(true).tls_backend_preconfigured(system_trust_config()?)
            }
            (Pin::Certificate(_), "http") => return Err(ConnectError::TlsRequired),
            _ => return Err(malformed()),
        };
        let client = builder.build().map_err(ConnectError::Client)?;
        Ok(AgentClient { client, origin: url.origin().ascii_serialization() })
    }

    /// Enrolls. A host that missed the response asks again with the same key and gets the same
    /// response; with a new key it would be a second host. Pass the response to [`Identity::new`].
    pub async fn enroll(
        &self,
        token: &Token,
        key: &HostKey,
        options: EnrollOptions,
    ) -> Result<EnrollResponse, ClientError> {
        let EnrollOptions { facts, environment, tags } = options;
        let token = token.as_str().to_owned();
        let request =
            EnrollRequest { token, public_key: key.public_key(), facts, environment, tags };
        let request = self
            .client
            .post(format!("{}/agent/v1/enroll", self.origin))
            .timeout(REQUEST_TIMEOUT)
            .header(CONTENT_TYPE, "application/json")
            .body(to_json(&request)?);
        parse_json(&receive(request).await?.into_result()?)
    }

    /// Syncs. The service holds the request open for up to `hold_seconds` while it has nothing to
    /// send. A caller that drops the future aborts the sync, and repeats it with the same
    /// [`SyncCounter`](super::SyncCounter).
    ///
    /// In the returned response, `orders_keys` is either empty or a list of valid keys that may be
    /// trusted, and `renewed_tag` is set only if the response was signed by the service.
    pub async fn sync(
        &self,
        host: &Identity,
        request: &SyncRequest,
    ) -> Result<SyncResponse, ClientError> {
        let timeout = Duration::from_secs(request.hold_seconds.into()) + HOLD_GRACE;
        let body = to_json(request)?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, reqwest::header::HeaderValue::from_static("application/json"));
        let answer =
            self.send_signed(host, Method::POST, "/agent/v1/sync", headers, body, timeout).await?;
        let mut response: SyncResponse = parse_json(&answer.body)?;
        // Anyone who could forge an unsigned response could announce their own key. And a service
        // that does not announce the key that it signs with is misconfigured.
        let announced = public_keys(&response.orders_keys).unwrap_or_default();
        if !answer.signer.is_some_and(|signer| announced.contains(&signer)) {
            response.orders_keys.clear();
        }
        let signed = answer.signer.is_some();
        response.renewed_tag = response.renewed_tag.filter(|tag| signed && is_tag(tag));
        Ok(response)
    }

    /// Uploads a package set that the service requested, compressed.
    pub async fn put_listing(
        &self,
        host: &Identity,
        kind: ListingKind,
        digest: Digest,
        listing: &[u8],
    ) -> Result<(), ClientError> {
        let path = format!("/agent/v1/listings/{}/{digest}", kind.as_str());
        let body = zstd::encode_all(listing, 3).map_err(|error| {
            ClientError::InvalidResponse(format!("cannot compress the package set: {error}"))
        })?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, reqwest::header::HeaderValue::from_static("zstd"));
        self.send_signed(host, Method::PUT, &path, headers, body, REQUEST_TIMEOUT).await.map(drop)
    }

    /// Uploads a part of an order's log. Sending the same part twice has no further effect.
    pub async fn send_log(
        &self,
        host: &Identity,
        order: TaskId,
        offset: u64,
        text: Vec<u8>,
    ) -> Result<(), ClientError> {
        let path = format!("/agent/v1/orders/{order}/log?offset={offset}");
        let headers = HeaderMap::new();
        self.send_signed(host, Method::POST, &path, headers, text, REQUEST_TIMEOUT).await.map(drop)
    }

    /// Downloads the agent's program that the service carries, and verifies its size and digest.
    /// Not signed: the digest comes from a signed order.
    pub async fn download_release(
        &self,
        architecture: &str,
        size_bytes: u64,
        sha256: &str,
    ) -> Result<Vec<u8>, ReleaseError> {
        if size_bytes > RELEASE_BYTES_MAX {
            return Err(ReleaseError::Size);
        }
        let url = format!("{}/agent/v1/releases/{architecture}", self.origin);
        let request = self.client.get(url).timeout(RELEASE_TIMEOUT);
        let mut response = request.send().await?.error_for_status()?;
        let mut bytes = Vec::new();
        while let Some(part) = response.chunk().await? {
            if (bytes.len() + part.len()) as u64 > size_bytes {
                return Err(ReleaseError::Size);
            }
            bytes.extend_from_slice(&part);
        }
        let digest = ring::digest::digest(&ring::digest::SHA256, &bytes);
        let digest: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        if bytes.len() as u64 != size_bytes {
            return Err(ReleaseError::Size);
        }
        if digest != sha256 {
            return Err(ReleaseError::Digest);
        }
        Ok(bytes)
    }

    async fn send_signed(
        &self,
        host: &Identity,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Vec<u8>,
        timeout: Duration,
    ) -> Result<VerifiedBody, ClientError> {
        let Authorization { header, signature } = host.authorization(method.as_str(), path, &body);
        let exchange = Exchange::new(host, signature);
        let request = self
            .client
            .request(method, format!("{}{path}", self.origin))
            .timeout(timeout)
            .headers(headers)
            .header(AUTHORIZATION, header)
            .header(NONCE_HEADER, exchange.nonce())
            .header(TRUSTED_KEYS_HEADER, host.orders_keys.ids().join(","))
            .body(body);
        let response = receive(request).await?;
        let signer = match response.is_retryable() {
            true => None,
            false => {
                let proof = response.signature.as_deref();
                match exchange.check(proof, response.status.as_u16(), &response.body) {
                    SignatureCheck::SignedBy(key) => Some(key),
                    SignatureCheck::Missing => None,
                    SignatureCheck::Invalid => {
                        return Err(ClientError::Unverified { status: response.status });
                    }
                }
            }
        };
        Ok(VerifiedBody { body: response.into_result()?, signer })
    }
}

fn to_json<T: serde::Serialize>(body: &T) -> Result<Vec<u8>, ClientError> {
    serde_json::to_vec(body).map_err(|error| ClientError::InvalidResponse(error.to_string()))
}

fn parse_json<T: for<'de> Deserialize<'de>>(response: &[u8]) -> Result<T, ClientError> {
    serde_json::from_slice(response)
        .map_err(|error| ClientError::InvalidResponse(error.to_string()))
}

fn unverified_message(status: StatusCode) -> String {
    let what = match status {
        StatusCode::GONE => "received a response that this host was removed".to_owned(),
        status => format!("received a response ({status})"),
    };
    format!(
        "{what}, but it is not signed by this host's service; check for a proxy in between, and \
         that the service was not replaced by an older version"
    )
}

/// The body of a successful response that may be acted on.
struct VerifiedBody {
    body: Vec<u8>,
    /// The key that signed the response. `None` if the service does not sign.
    signer: Option<[u8; 32]>,
}

struct RawResponse {
    status: StatusCode,
    retry_after: Option<Duration>,
    /// The value of [`SIGNATURE_HEADER`].
    signature: Option<String>,
    body: Vec<u8>,
}

/// Sends a request and reads the whole response.
async fn receive(request: reqwest::RequestBuilder) -> Result<RawResponse, ClientError> {
    let mut response = request.send().await.map_err(ClientError::Unreachable)?;
    let status = response.status();
    let retry_after = retry_after(response.headers());
    let signature = response.headers().get(SIGNATURE_HEADER);
    let signature = signature.and_then(|value| value.to_str().ok()).map(str::to_owned);
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(ClientError::Unreachable)? {
        if body.len() + chunk.len() > RESPONSE_BYTES_MAX {
            return Err(ClientError::InvalidResponse(format!(
                "it is larger than {RESPONSE_BYTES_MAX} bytes"
            )));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(RawResponse { status, retry_after, signature, body })
}

impl RawResponse {
    /// Whether the response only asks to try again later. It needs no signature: a proxy can
    /// cause the same delay by not responding.
    fn is_retryable(&self) -> bool {
        let status = self.status;
        status.is_server_error()
            || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
    }

    /// The body of a successful response, or the error.
    fn into_result(self) -> Result<Vec<u8>, ClientError> {
        let only_delays = self.is_retryable();
        let RawResponse { status, retry_after, body, .. } = self;
        match status {
            status if status.is_success() => Ok(body),
            StatusCode::GONE => Err(ClientError::Removed),
            status if only_delays => Err(ClientError::Busy { status, retry_after }),
            status => {
                let Problem { code, detail } = serde_json::from_slice(&body).unwrap_or_default();
                Err(ClientError::Refused { status, code, detail })
            }
        }
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Problem {
    code: String,
    detail: String,
}

/// The delay before the next attempt after `failures` consecutive failures: doubled from half a
/// second up to `max`, then multiplied by a jitter factor from 0.5 to 1, chosen by `share` (0 to
/// 1). The jitter is applied after the cap: otherwise all hosts at the cap would return at the same
/// time.
pub fn backoff_with_jitter(failures: u32, max: Duration, share: f64) -> Duration {
    let doubled =
        Duration::from_millis(500).saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(max).mul_f64(0.5 + share.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(url: &str, pin: Pin) -> Result<AgentClient, ConnectError> {
        AgentClient::new(ConnectOptions { url, pin, from: None })
    }

    #[test]
    fn pinned_server_is_never_contacted_without_tls() {
        assert!(connect("https://fleet.test:7600", Pin::Certificate([1; 32])).is_ok());
        assert!(connect("http://127.0.0.1:7600/", Pin::Plain).is_ok());
        assert!(matches!(
            connect("http://fleet.test", Pin::Certificate([1; 32])),
            Err(ConnectError::TlsRequired)
        ));
        // Verified by the system's trust store, if this system has one.
        let public = connect("https://fleet.test", Pin::Plain);
        assert!(matches!(public, Ok(_) | Err(ConnectError::TrustStore(_))), "{public:?}");
    }

    #[test]
    fn address_has_only_a_scheme_and_an_authority() {
        for url in [
            "fleet.test",
            "http://x/path",
            "http://x/?a=1",
            "http://a:b@x",
            "ftp://x",
            "http://x/#f",
        ] {
            assert!(matches!(connect(url, Pin::Plain), Err(ConnectError::Url(_))), "{url}");
        }
        let link = connect("HTTP://Fleet.Test:80", Pin::Plain).unwrap();
        assert_eq!(link.origin, "http://fleet.test");
    }

    #[test]
    fn backoff_grows_to_the_cap_with_jitter_below_it() {
        let max = Duration::from_secs(8);
        assert_eq!(backoff_with_jitter(1, max, 1.0), Duration::from_millis(500));
        assert_eq!(backoff_with_jitter(2, max, 0.0), Duration::from_millis(500));
        assert_eq!(backoff_with_jitter(30, max, 1.0), max);
        assert_eq!(backoff_with_jitter(u32::MAX, max, 0.0), max / 2);
    }

    #[test]
    fn retry_after_is_parsed_and_capped() {
        let after = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, reqwest::header::HeaderValue::from_static(text));
            retry_after(&headers)
        };
        assert_eq!(after("7"), Some(Duration::from_secs(7)));
        assert_eq!(after("99999999"), Some(RETRY_AFTER_MAX));
        assert_eq!(after("tomorrow"), None);
    }
}
