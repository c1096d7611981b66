//! The way to one server: every request of `/agent/v1`, signed, bounded in size and in time.
//!
//! Never retries by itself: what to repeat, and when, is the caller's to say ([`jittered`] helps).

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

use super::answer::{Exchange, Proof};
use super::identity::is_tag;
use super::trust::{TrustStoreError, system_trust};
use super::{Authorization, HostKey, Identity, Pin, PinnedServer, Token, public_keys};

/// The most bytes of an answer. A host does not trust its server with its memory.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How long a request may take that is not held open.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the server may be late with the answer to a held sync.
const HOLD_GRACE: Duration = Duration::from_secs(20);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer than what a proxy would say in earnest is not obeyed.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// The way to one server. Cheap to clone; clones share their connections.
#[derive(Debug, Clone)]
pub struct AgentClient {
    client: Client,
    /// Scheme and authority: `https://fleet.example:7600`.
    origin: String,
}

/// What is needed to find a server.
#[derive(Debug, Clone, Copy)]
pub struct Connect<'a> {
    /// Its address: `https://fleet.example:7600`.
    pub url: &'a str,
    /// By what it is known.
    pub pin: Pin,
    /// From which address of this machine to connect, if it matters.
    pub from: Option<IpAddr>,
}

/// Why there is no way to a server.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The address is none, or has a part that it should not have.
    #[error("`{0}` is not a server's address: write it like https://fleet.example:7600")]
    Url(String),
    /// The token says by which certificate to know the server, and the address has no TLS.
    #[error("the token names the server's certificate: its address starts with https://")]
    WantsTls,
    /// The server is to be verified by the system's trust store, and that cannot be used.
    #[error(transparent)]
    TrustStore(#[from] TrustStoreError),
    /// The client could not be made.
    #[error("no client could be made")]
    Client(#[source] reqwest::Error),
}

/// Why a request had no effect, as far as the host can tell.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server was not reached, or its answer was not. Try again; it may have had its effect.
    #[error("the server did not answer")]
    Unreachable(#[source] reqwest::Error),
    /// The server cannot now, and may say for how long. Try again, not sooner.
    #[error("the server is busy ({status})")]
    Busy {
        /// What it answered.
        status: StatusCode,
        /// For how long to leave it alone.
        retry_after: Option<Duration>,
    },
    /// The server does not know this host any more. Do nothing ever again.
    #[error("this host was removed from its server")]
    Removed,
    /// The answer is not signed by the server, or not for this request: anyone in between may have
    /// written it. Do nothing that it says, and try again.
    #[error("{}", unproven(*status))]
    Unproven {
        /// What was answered.
        status: StatusCode,
    },
    /// The server does not want this request. Trying again would change nothing.
    #[error("the server refuses ({status} {code}): {detail}")]
    Refused {
        /// What it answered.
        status: StatusCode,
        /// Why, for programs.
        code: String,
        /// Why, for people.
        detail: String,
    },
    /// The answer cannot be read, or not be used.
    #[error("the server's answer cannot be understood: {0}")]
    Answer(String),
}

/// How a host wants to join.
#[derive(Debug, Clone)]
pub struct Joining {
    /// What the host is.
    pub facts: Facts,
    /// The environment that it says it is in.
    pub environment: Option<Environment>,
    /// The tags that it says it has.
    pub tags: Vec<Tag>,
}

/// Which listing.
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
    /// Makes ready; nothing is sent yet.
    pub fn new(to: Connect<'_>) -> Result<AgentClient, ConnectError> {
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
            // The client wants to know a TLS provider even where it will never speak TLS.
            (Pin::Plain, "http") => {
                builder.tls_backend_preconfigured(PinnedServer::client_config([0; 32]))
            }
            // The service has no TLS itself, and the proxy in front of it has a certificate that
            // any client of this host would verify.
            (Pin::Plain, "https") => {
                builder.https_only(true).tls_backend_preconfigured(system_trust()?)
            }
            (Pin::Certificate(_), "http") => return Err(ConnectError::WantsTls),
            _ => return Err(malformed()),
        };
        let client = builder.build().map_err(ConnectError::Client)?;
        Ok(AgentClient { client, origin: url.origin().ascii_serialization() })
    }

    /// Joins. A host that did not hear the answer asks again with the same key and gets the same;
    /// with a new key it would be a second host. [`Identity::new`] makes use of the answer.
    pub async fn enroll(
        &self,
        token: &Token,
        key: &HostKey,
        joining: Joining,
    ) -> Result<EnrollResponse, ClientError> {
        let Joining { facts, environment, tags } = joining;
        let token = token.as_str().to_owned();
        let request = EnrollRequest { token, public_key: key.public(), facts, environment, tags };
        let request = self
            .client
            .post(format!("{}/agent/v1/enroll", self.origin))
            .timeout(REQUEST_TIMEOUT)
            .header(CONTENT_TYPE, "application/json")
            .body(json(&request)?);
        read(&receive(request).await?.into_result()?)
    }

    /// Syncs. Held open by the server for up to `hold_seconds` while it has nothing to say; whoever
    /// drops the future has cut it off, and repeats it with the same [`Turn`](super::Turn).
    ///
    /// `orders_keys` of the answer is empty, or a list of valid keys that may be trusted. `renewed_tag`
    /// is there only if the server said so.
    pub async fn sync(
        &self,
        host: &Identity,
        request: &SyncRequest,
    ) -> Result<SyncResponse, ClientError> {
        let timeout = Duration::from_secs(request.hold_seconds.into()) + HOLD_GRACE;
        let body = json(request)?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, reqwest::header::HeaderValue::from_static("application/json"));
        let answer =
            self.signed(host, Method::POST, "/agent/v1/sync", headers, body, timeout).await?;
        let mut response: SyncResponse = read(&answer.body)?;
        // Whoever could write an unsigned answer could name a key of their own. And a server that
        // does not announce the key that it signs with is confused.
        let announced = public_keys(&response.orders_keys).unwrap_or_default();
        if !answer.signer.is_some_and(|signer| announced.contains(&signer)) {
            response.orders_keys.clear();
        }
        let signed = answer.signer.is_some();
        response.renewed_tag = response.renewed_tag.filter(|tag| signed && is_tag(tag));
        Ok(response)
    }

    /// Sends a listing that the server wants, compressed.
    pub async fn put_listing(
        &self,
        host: &Identity,
        kind: ListingKind,
        digest: Digest,
        listing: &[u8],
    ) -> Result<(), ClientError> {
        let path = format!("/agent/v1/listings/{}/{digest}", kind.as_str());
        let body = zstd::encode_all(listing, 3).map_err(|error| {
            ClientError::Answer(format!("the listing cannot be packed: {error}"))
        })?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, reqwest::header::HeaderValue::from_static("zstd"));
        self.signed(host, Method::PUT, &path, headers, body, REQUEST_TIMEOUT).await.map(drop)
    }

    /// Sends a part of an order's log. The same part twice is one part.
    pub async fn send_log(
        &self,
        host: &Identity,
        order: TaskId,
        offset: u64,
        text: Vec<u8>,
    ) -> Result<(), ClientError> {
        let path = format!("/agent/v1/orders/{order}/log?offset={offset}");
        let headers = HeaderMap::new();
        self.signed(host, Method::POST, &path, headers, text, REQUEST_TIMEOUT).await.map(drop)
    }

    async fn signed(
        &self,
        host: &Identity,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Vec<u8>,
        timeout: Duration,
    ) -> Result<Verified, ClientError> {
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
        let answer = receive(request).await?;
        let signer = match answer.only_delays() {
            true => None,
            false => {
                let proof = answer.signature.as_deref();
                match exchange.check(proof, answer.status.as_u16(), &answer.body) {
                    Proof::SignedBy(key) => Some(key),
                    Proof::Missing => None,
                    Proof::Invalid => return Err(ClientError::Unproven { status: answer.status }),
                }
            }
        };
        Ok(Verified { body: answer.into_result()?, signer })
    }
}

fn json<T: serde::Serialize>(body: &T) -> Result<Vec<u8>, ClientError> {
    serde_json::to_vec(body).map_err(|error| ClientError::Answer(error.to_string()))
}

fn read<T: for<'de> Deserialize<'de>>(answer: &[u8]) -> Result<T, ClientError> {
    serde_json::from_slice(answer).map_err(|error| ClientError::Answer(error.to_string()))
}

fn unproven(status: StatusCode) -> String {
    let what = match status {
        StatusCode::GONE => "an answer says that this host was removed".to_owned(),
        status => format!("an answer came ({status})"),
    };
    format!(
        "{what}, but it is not signed by this host's server; check what lies between the two, such \
         as a proxy, and that the server was not replaced by an older version"
    )
}

/// The body of a success that may be acted on.
struct Verified {
    body: Vec<u8>,
    /// The key that it was signed with, unless the server is one that does not sign.
    signer: Option<[u8; 32]>,
}

/// A whole answer.
struct Answer {
    status: StatusCode,
    retry_after: Option<Duration>,
    /// What [`SIGNATURE_HEADER`] says.
    signature: Option<String>,
    body: Vec<u8>,
}

/// Sends a request and reads the whole answer.
async fn receive(request: reqwest::RequestBuilder) -> Result<Answer, ClientError> {
    let mut response = request.send().await.map_err(ClientError::Unreachable)?;
    let status = response.status();
    let retry_after = retry_after(response.headers());
    let signature = response.headers().get(SIGNATURE_HEADER);
    let signature = signature.and_then(|value| value.to_str().ok()).map(str::to_owned);
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(ClientError::Unreachable)? {
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Err(ClientError::Answer(format!("it has more than {ANSWER_BYTES_MAX} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Answer { status, retry_after, signature, body })
}

impl Answer {
    /// Whether all that it says is "later". A proxy may say so, too; it could as well not answer.
    fn only_delays(&self) -> bool {
        let status = self.status;
        status.is_server_error()
            || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
    }

    /// The body of a success, or why there is none.
    fn into_result(self) -> Result<Vec<u8>, ClientError> {
        let only_delays = self.only_delays();
        let Answer { status, retry_after, body, .. } = self;
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

/// How long to wait before the next try after `failures` in a row: doubled from half a second up
/// to `most`, and then between a half and the whole of it, as `share` (0 to 1) has it. Chance comes
/// after the cap: before it, everyone who waits longest would come back in the same instant.
pub fn jittered(failures: u32, most: Duration, share: f64) -> Duration {
    let doubled =
        Duration::from_millis(500).saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(most).mul_f64(0.5 + share.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(url: &str, pin: Pin) -> Result<AgentClient, ConnectError> {
        AgentClient::new(Connect { url, pin, from: None })
    }

    #[test]
    fn a_pinned_server_is_never_reached_in_the_clear() {
        assert!(connect("https://fleet.test:7600", Pin::Certificate([1; 32])).is_ok());
        assert!(connect("http://127.0.0.1:7600/", Pin::Plain).is_ok());
        assert!(matches!(
            connect("http://fleet.test", Pin::Certificate([1; 32])),
            Err(ConnectError::WantsTls)
        ));
        // Verified by the system's trust store, if this machine has one.
        let public = connect("https://fleet.test", Pin::Plain);
        assert!(matches!(public, Ok(_) | Err(ConnectError::TrustStore(_))), "{public:?}");
    }

    #[test]
    fn an_address_is_a_scheme_and_an_authority_and_nothing_else() {
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
    fn waits_grow_to_the_cap_and_are_spread_below_it() {
        let most = Duration::from_secs(8);
        assert_eq!(jittered(1, most, 1.0), Duration::from_millis(500));
        assert_eq!(jittered(2, most, 0.0), Duration::from_millis(500));
        assert_eq!(jittered(30, most, 1.0), most);
        assert_eq!(jittered(u32::MAX, most, 0.0), most / 2);
    }

    #[test]
    fn how_long_to_leave_the_server_alone_is_read_and_bounded() {
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
