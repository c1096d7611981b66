//! HTTP client for the public API. No other module of the operator commands uses HTTP.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use reqwest::{Method, RequestBuilder, Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use service::clock::random_u128;
use wire::v1::Problem;

use super::trust;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The service responds within 30 s or not at all.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of an event.
const EVENT_BYTES_MAX: usize = 4 << 20;
/// A stream is opened again after this time, in case the connection is dead.
const STREAM_TIMEOUT: Duration = Duration::from_secs(3600);
/// Maximum page size of the API.
pub(super) const PAGE_MAX: u32 = 500;
/// Maximum size of a response body. The largest, the details of one server, is tens of MiB.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

pub(crate) struct Api {
    http: reqwest::Client,
    base: Url,
    key: String,
}

pub(crate) struct ApiResponse {
    pub(crate) text: String,
    /// The version of the resource, for conditional requests.
    pub(super) etag: Option<String>,
    /// The `Location` header.
    pub(super) location: Option<String>,
}

impl ApiResponse {
    pub(crate) fn read<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        serde_json::from_str(&self.text)
            .context("the response is not in the format that this release of fleetmend expects")
    }
}

/// Query parameters; those without a value are omitted.
#[derive(Default)]
pub(super) struct Query(Vec<(&'static str, String)>);

impl Query {
    pub(super) fn with(mut self, name: &'static str, value: Option<impl ToString>) -> Query {
        self.0.extend(value.map(|value| (name, value.to_string())));
        self
    }

    /// Adds several values of one parameter, separated by commas.
    pub(super) fn with_all(self, name: &'static str, values: &[String]) -> Query {
        self.with(name, (!values.is_empty()).then(|| values.join(",")))
    }
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum ApiError {
    /// No connection, or it ended early.
    Unreachable { url: String, source: reqwest::Error },
    /// The API returned an error in its own format.
    Problem(Box<Problem>),
    /// The response is an error, but not in the API's format.
    UnknownFormat { url: String, status: u16 },
    /// A redirect to another address, to which the key is not sent.
    Redirect { url: String, to: String, replayed: bool },
    /// The response is larger than [`RESPONSE_BYTES_MAX`].
    TooLarge { url: String },
}

impl ApiError {
    /// Whether a field was rejected with this code.
    pub(super) fn has_error(&self, code: &str) -> bool {
        self.details(code).next().is_some()
    }

    /// Whether the request may succeed later.
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            ApiError::Unreachable { .. } => true,
            ApiError::Problem(problem) => problem.status == 429 || problem.status >= 500,
            ApiError::UnknownFormat { status, .. } => *status >= 500,
            ApiError::Redirect { .. } | ApiError::TooLarge { .. } => false,
        }
    }

    /// The details of the fields that were rejected with this code.
    pub(super) fn details(&self, code: &str) -> impl Iterator<Item = &str> {
        let errors = match self {
            ApiError::Problem(problem) => problem.errors.as_slice(),
            ApiError::Unreachable { .. }
            | ApiError::UnknownFormat { .. }
            | ApiError::Redirect { .. }
            | ApiError::TooLarge { .. } => &[],
        };
        errors.iter().filter(move |error| error.code == code).map(|error| error.detail.as_str())
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApiError::Unreachable { url, source } => {
                let why = match (source.is_timeout(), source.is_connect()) {
                    (true, _) => "did not respond in time",
                    (_, true) => "is not reachable",
                    _ => "closed the connection",
                };
                write!(f, "{url} {why}")?;
                let cause = root_cause(source).unwrap_or_default();
                if !cause.is_empty() {
                    write!(f, " ({cause})")?;
                }
                // The second is an authority's certificate, which is most often self-signed.
                match cause.contains("certificate") || cause.contains("CaUsedAsEndEntity") {
                    true => write!(
                        f,
                        ": if the service uses a self-signed certificate, set it with --ca-cert"
                    ),
                    false => {
                        write!(
                            f,
                            ": check the address, and that `fleetmend server` is running there"
                        )
                    }
                }
            }
            ApiError::Problem(problem) => {
                write!(f, "{} [{} {}]", problem.detail, problem.status, problem.code)?;
                for error in &problem.errors {
                    let field = error.pointer.trim_start_matches('/').replace('/', ".");
                    write!(f, "\n  {field}: {} [{}]", error.detail, error.code)?;
                }
                write!(f, "\n  request {}", problem.request_id)
            }
            ApiError::UnknownFormat { url, status } => {
                write!(
                    f,
                    "{url} responded with {status}, but not in the format of the Fleetmend API"
                )
            }
            ApiError::Redirect { url, to, .. } => write!(
                f,
                "{url} redirects to {to}: the address is probably wrong. Redirects are not followed; if you trust \
                 the new address, use it instead"
            ),
            ApiError::TooLarge { url } => {
                let mib = RESPONSE_BYTES_MAX >> 20;
                write!(f, "the response from {url} exceeds the limit of {mib} MiB")
            }
        }
    }
}

impl std::error::Error for ApiError {}

/// The innermost cause is the most specific, such as "connection refused".
fn root_cause(error: &reqwest::Error) -> Option<String> {
    let mut cause = std::error::Error::source(error)?;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    Some(cause.to_string())
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

type ApiResult = Result<ApiResponse, ApiError>;

impl Api {
    pub(crate) fn new(url: &str, key: &str, ca_cert: Option<&Path>) -> anyhow::Result<Api> {
        let base = Url::parse(url).ok().filter(|url| ["http", "https"].contains(&url.scheme()));
        let base = base.with_context(|| {
            format!("invalid service URL `{url}`: use a URL such as http://127.0.0.1:7600")
        })?;
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(REQUEST_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("fleetmend/", env!("CARGO_PKG_VERSION")));
        // Loopback addresses never go through a proxy, whatever the environment says.
        if base.host_str().is_some_and(is_loopback) {
            builder = builder.no_proxy();
        }
        if let Some(path) = ca_cert {
            let config = trust::client_config(path)
                .with_context(|| format!("cannot use the certificate in {}", path.display()))?;
            builder = builder.tls_backend_preconfigured(config);
        }
        Ok(Api { http: builder.build()?, base, key: key.trim().to_owned() })
    }

    pub(super) fn url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// The URL of a resource. Each element of `path` becomes one path segment and is
    /// percent-encoded.
    fn url_for(&self, path: &[&str], query: &Query) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("v1").extend(path);
        }
        if !query.0.is_empty() {
            url.query_pairs_mut().extend_pairs(&query.0);
        }
        url
    }

    pub(crate) async fn get(&self, path: &[&str]) -> ApiResult {
        self.get_with_query(path, &Query::default()).await
    }

    /// Requests `/readyz`.
    pub(crate) async fn readiness(&self) -> ApiResult {
        let mut url = self.base.clone();
        url.set_path("/readyz");
        self.send(self.http.get(url)).await
    }

    /// Sends a GET request with query parameters.
    pub(super) async fn get_with_query(&self, path: &[&str], query: &Query) -> ApiResult {
        self.send(self.http.get(self.url_for(path, query))).await
    }

    /// Requests the URL in a response's `Location` header. Fails if it is on another origin, so the
    /// API key is never sent there.
    pub(super) async fn follow(&self, location: &str) -> ApiResult {
        match self.base.join(location) {
            Ok(url) if url.origin() == self.base.origin() => self.send(self.http.get(url)).await,
            _ => Err(self.redirect(location, false)),
        }
    }

    fn redirect(&self, to: &str, replayed: bool) -> ApiError {
        let to = match to {
            "" => "no address".to_owned(),
            to => to.chars().take(200).collect(),
        };
        ApiError::Redirect { url: self.base.to_string(), to, replayed }
    }

    /// Sends a POST request that takes effect once: if the connection breaks, it is repeated with
    /// the same idempotency key.
    pub(super) async fn post(&self, path: &[&str], body: Option<&impl Serialize>) -> ApiResult {
        let mut request = self.http.post(self.url_for(path, &Query::default()));
        request = request.header("idempotency-key", format!("{:032x}", random_u128()));
        if let Some(body) = body {
            request = request.json(body);
        }
        let again = request.try_clone();
        let response = match (self.send(request).await, again) {
            (Err(ApiError::Unreachable { source, .. }), Some(again)) if !source.is_connect() => {
                self.send(again).await
            }
            (answer, _) => answer,
        };
        match response {
            // The first attempt succeeded but its response was lost: the redirect names the created
            // resource.
            Err(ApiError::Redirect { to, replayed: true, .. }) => self.follow(&to).await,
            answer => answer,
        }
    }

    /// Replaces a resource if it still has this ETag.
    pub(super) async fn put(
        &self,
        path: &[&str],
        etag: Option<&str>,
        body: &impl Serialize,
    ) -> ApiResult {
        self.send(self.conditional_request(Method::PUT, path, etag).json(body)).await
    }

    /// Changes fields of a resource if it still has this ETag.
    pub(super) async fn patch(
        &self,
        path: &[&str],
        etag: Option<&str>,
        body: &impl Serialize,
    ) -> ApiResult {
        self.send(self.conditional_request(Method::PATCH, path, etag).json(body)).await
    }

    pub(super) async fn delete(&self, path: &[&str], etag: Option<&str>) -> ApiResult {
        self.send(self.conditional_request(Method::DELETE, path, etag)).await
    }

    fn conditional_request(
        &self,
        method: Method,
        path: &[&str],
        etag: Option<&str>,
    ) -> RequestBuilder {
        let request = self.http.request(method, self.url_for(path, &Query::default()));
        match etag {
            Some(etag) => request.header("if-match", etag),
            None => request,
        }
    }

    /// Opens the event stream.
    pub(super) async fn event_stream(&self, query: &Query) -> Result<EventStream, ApiError> {
        let request = self.http.get(self.url_for(&["events", "stream"], query));
        // The stream stays open. The service sends something every 15 seconds.
        let request = request.timeout(STREAM_TIMEOUT).bearer_auth(&self.key);
        let unreachable = |source| self.unreachable(source);
        let response = request.send().await.map_err(unreachable)?;
        if response.status().is_success() {
            return Ok(EventStream { response, buffer: Vec::new() });
        }
        Err(self.read(response).await.err().unwrap_or_else(|| self.redirect("", false)))
    }

    /// Starts to download a text of any size.
    pub(super) async fn download(
        &self,
        path: &[&str],
        query: &Query,
    ) -> Result<Download<'_>, ApiError> {
        let request = self.http.get(self.url_for(path, query));
        let request = request.timeout(STREAM_TIMEOUT).bearer_auth(&self.key);
        let response = request.send().await.map_err(|source| self.unreachable(source))?;
        if response.status().is_success() {
            return Ok(Download { api: self, response, rest: Vec::new() });
        }
        Err(self.read(response).await.err().unwrap_or_else(|| self.redirect("", false)))
    }

    fn unreachable(&self, source: reqwest::Error) -> ApiError {
        ApiError::Unreachable { url: self.base.to_string(), source: source.without_url() }
    }

    async fn send(&self, request: RequestBuilder) -> ApiResult {
        let unreachable = |source| self.unreachable(source);
        self.read(request.bearer_auth(&self.key).send().await.map_err(unreachable)?).await
    }

    async fn read(&self, mut response: Response) -> ApiResult {
        let unreachable = |source| self.unreachable(source);
        let status = response.status();
        let header = |response: &Response, name: &str| {
            response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        let (etag, location) = (header(&response, "etag"), header(&response, "location"));
        if status.is_redirection() {
            let replayed = header(&response, "idempotent-replayed").is_some();
            return Err(self.redirect(location.as_deref().unwrap_or_default(), replayed));
        }
        let mut bytes = Vec::new();
        while let Some(part) = response.chunk().await.map_err(unreachable)? {
            if bytes.len() + part.len() > RESPONSE_BYTES_MAX {
                return Err(ApiError::TooLarge { url: self.base.to_string() });
            }
            bytes.extend_from_slice(&part);
        }
        let text = String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        if status.is_success() {
            return Ok(ApiResponse { text, etag, location });
        }
        Err(match serde_json::from_str(&text) {
            Ok(problem) => ApiError::Problem(Box::new(problem)),
            Err(_) => {
                ApiError::UnknownFormat { url: self.base.to_string(), status: status.as_u16() }
            }
        })
    }
}

/// A text that is being downloaded.
pub(super) struct Download<'a> {
    api: &'a Api,
    response: Response,
    /// Received, but not a whole line yet.
    rest: Vec<u8>,
}

impl Download<'_> {
    /// The next lines; `None` after the last one. Fails if the connection ends early.
    pub(super) async fn next_lines(&mut self) -> Result<Option<String>, ApiError> {
        loop {
            let part = self.response.chunk().await;
            let is_end = match part.map_err(|source| self.api.unreachable(source))? {
                Some(part) => {
                    self.rest.extend_from_slice(&part);
                    false
                }
                None if self.rest.is_empty() => return Ok(None),
                None => true,
            };
            let end = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            let end = if is_end { self.rest.len() } else { end };
            if end > 0 {
                let lines: Vec<u8> = self.rest.drain(..end).collect();
                return Ok(Some(String::from_utf8_lossy(&lines).into_owned()));
            }
            if self.rest.len() > RESPONSE_BYTES_MAX {
                return Err(ApiError::TooLarge { url: self.api.base.to_string() });
            }
        }
    }
}

/// The open event stream.
pub(super) struct EventStream {
    response: Response,
    /// Received, but not a whole line yet.
    buffer: Vec<u8>,
}

impl EventStream {
    /// The next event; `None` when the connection ends.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<wire::v1::Event>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                // An event is one line of data. The sequence number and the type are in it, too.
                if let Some(data) = line.strip_prefix(b"data:") {
                    let event = serde_json::from_slice(data);
                    return event.map(Some).context(
                        "an event is not in the format that this release of fleetmend expects",
                    );
                }
                continue;
            }
            anyhow::ensure!(self.buffer.len() <= EVENT_BYTES_MAX, "an event is too large");
            match self.response.chunk().await {
                Ok(Some(part)) => self.buffer.extend_from_slice(&part),
                // The caller opens the stream again.
                Ok(None) | Err(_) => return Ok(None),
            }
        }
    }
}
