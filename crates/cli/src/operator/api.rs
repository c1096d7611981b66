//! The public API, as a client sees it. Nothing else in the operator's commands knows HTTP.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use reqwest::{Method, RequestBuilder, Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use service::clock::dice;
use wire::v1::Problem;

const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// The service answers within 30 s or not at all.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most rows that the API gives at once.
pub(super) const PAGE_MAX: u32 = 500;
/// The largest answer that is read. The longest of the service, the details of one server, have tens of MiB.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A service, and a key to it.
pub(crate) struct Api {
    http: reqwest::Client,
    base: Url,
    key: String,
}

/// An answer.
pub(crate) struct Body {
    /// As it came.
    pub(super) text: String,
    /// Which version of the resource it shows.
    pub(super) etag: Option<String>,
    /// Where it goes on.
    pub(super) location: Option<String>,
}

impl Body {
    pub(crate) fn read<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        serde_json::from_str(&self.text)
            .context("the answer is not what this release of fleetmend expects")
    }
}

/// The parameters of a request; those without a value are left out.
#[derive(Default)]
pub(super) struct Query(Vec<(&'static str, String)>);

impl Query {
    pub(super) fn with(mut self, name: &'static str, value: Option<impl ToString>) -> Query {
        self.0.extend(value.map(|value| (name, value.to_string())));
        self
    }

    /// Several values of one parameter.
    pub(super) fn with_all(self, name: &'static str, values: &[String]) -> Query {
        self.with(name, (!values.is_empty()).then(|| values.join(",")))
    }
}

/// Why the API did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Nobody answers.
    Unreachable { url: String, source: reqwest::Error },
    /// It says why.
    Problem(Box<Problem>),
    /// It says something, but not as our API would.
    Stranger { url: String, status: u16 },
    /// It names another address, to which the key is not sent.
    Redirect { url: String, to: String, replayed: bool },
    /// It sends more than is read.
    TooLarge { url: String },
}

impl Refusal {
    /// Whether a field was refused with this code.
    pub(super) fn has_error(&self, code: &str) -> bool {
        self.details(code).next().is_some()
    }

    /// What is wrong with the fields that were refused with this code.
    pub(super) fn details(&self, code: &str) -> impl Iterator<Item = &str> {
        let errors = match self {
            Refusal::Problem(problem) => problem.errors.as_slice(),
            Refusal::Unreachable { .. }
            | Refusal::Stranger { .. }
            | Refusal::Redirect { .. }
            | Refusal::TooLarge { .. } => &[],
        };
        errors.iter().filter(move |error| error.code == code).map(|error| error.detail.as_str())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Unreachable { url, source } => {
                let why = match (source.is_timeout(), source.is_connect()) {
                    (true, _) => "does not answer in time",
                    (_, true) => "cannot be reached",
                    _ => "broke off",
                };
                write!(f, "{url} {why}")?;
                let cause = innermost(source).unwrap_or_default();
                if !cause.is_empty() {
                    write!(f, " ({cause})")?;
                }
                match cause.contains("certificate") {
                    true => write!(
                        f,
                        ": if the service signed its own certificate, name it with --ca-cert"
                    ),
                    false => {
                        write!(f, ": check the address, and that `fleetmend server` runs there")
                    }
                }
            }
            Refusal::Problem(problem) => {
                write!(f, "{} [{} {}]", problem.detail, problem.status, problem.code)?;
                for error in &problem.errors {
                    let field = error.pointer.trim_start_matches('/').replace('/', ".");
                    write!(f, "\n  {field}: {} [{}]", error.detail, error.code)?;
                }
                write!(f, "\n  request {}", problem.request_id)
            }
            Refusal::Stranger { url, status } => {
                write!(f, "{url} answers with {status}, but it does not speak as Fleetmend does")
            }
            Refusal::Redirect { url, to, .. } => write!(
                f,
                "{url} redirects to {to}: the address is probably wrong. Redirects are not followed; if you trust \
                 the new address, use it instead"
            ),
            Refusal::TooLarge { url } => {
                let mib = ANSWER_BYTES_MAX >> 20;
                write!(f, "{url} sends an answer of more than {mib} MiB, which is the limit")
            }
        }
    }
}

impl std::error::Error for Refusal {}

/// The last cause says the most: "connection refused".
fn innermost(error: &reqwest::Error) -> Option<String> {
    let mut cause = std::error::Error::source(error)?;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    Some(cause.to_string())
}

fn is_here(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

type Answer = Result<Body, Refusal>;

impl Api {
    pub(crate) fn new(url: &str, key: &str, ca_cert: Option<&Path>) -> anyhow::Result<Api> {
        let base = Url::parse(url).ok().filter(|url| ["http", "https"].contains(&url.scheme()));
        let base = base.with_context(|| {
            format!("`{url}` is not the address of a service, such as http://127.0.0.1:7600")
        })?;
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_PATIENCE)
            .timeout(PATIENCE)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("fleetmend/", env!("CARGO_PKG_VERSION")));
        // No proxy leads to this very machine, whatever the environment says.
        if base.host_str().is_some_and(is_here) {
            builder = builder.no_proxy();
        }
        if let Some(path) = ca_cert {
            let unusable = || format!("cannot use the certificate in {}", path.display());
            let pem = std::fs::read(path).with_context(unusable)?;
            let certificates =
                reqwest::Certificate::from_pem_bundle(&pem).with_context(unusable)?;
            builder = builder.tls_certs_merge(certificates);
        }
        Ok(Api { http: builder.build()?, base, key: key.trim().to_owned() })
    }

    /// The service's address.
    pub(super) fn url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Where something is: each part of the path is one name, whatever it holds.
    fn at(&self, path: &[&str], query: &Query) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("v1").extend(path);
        }
        if !query.0.is_empty() {
            url.query_pairs_mut().extend_pairs(&query.0);
        }
        url
    }

    pub(crate) async fn get(&self, path: &[&str]) -> Answer {
        self.find(path, &Query::default()).await
    }

    /// Reads with parameters.
    pub(super) async fn find(&self, path: &[&str], query: &Query) -> Answer {
        self.send(self.http.get(self.at(path, query))).await
    }

    /// Reads a place of this service that an answer named. The key is sent to no other.
    pub(super) async fn follow(&self, location: &str) -> Answer {
        match self.base.join(location) {
            Ok(url) if url.origin() == self.base.origin() => self.send(self.http.get(url)).await,
            _ => Err(self.redirect(location, false)),
        }
    }

    fn redirect(&self, to: &str, replayed: bool) -> Refusal {
        let to = match to {
            "" => "no address".to_owned(),
            to => to.chars().take(200).collect(),
        };
        Refusal::Redirect { url: self.base.to_string(), to, replayed }
    }

    /// Orders something, once: if the connection breaks off the same order is sent again under the same name.
    pub(super) async fn post(&self, path: &[&str], body: Option<&impl Serialize>) -> Answer {
        let mut request = self.http.post(self.at(path, &Query::default()));
        request = request.header("idempotency-key", format!("{:032x}", dice()));
        if let Some(body) = body {
            request = request.json(body);
        }
        let again = request.try_clone();
        let answer = match (self.send(request).await, again) {
            (Err(Refusal::Unreachable { source, .. }), Some(again)) if !source.is_connect() => {
                self.send(again).await
            }
            (answer, _) => answer,
        };
        match answer {
            // The service did it the first time, and its answer was lost: it names what it made.
            Err(Refusal::Redirect { to, replayed: true, .. }) => self.follow(&to).await,
            answer => answer,
        }
    }

    /// Replaces what was seen under `etag`.
    pub(super) async fn put(
        &self,
        path: &[&str],
        etag: Option<&str>,
        body: &impl Serialize,
    ) -> Answer {
        self.send(self.guarded(Method::PUT, path, etag).json(body)).await
    }

    pub(super) async fn delete(&self, path: &[&str], etag: Option<&str>) -> Answer {
        self.send(self.guarded(Method::DELETE, path, etag)).await
    }

    fn guarded(&self, method: Method, path: &[&str], etag: Option<&str>) -> RequestBuilder {
        let request = self.http.request(method, self.at(path, &Query::default()));
        match etag {
            Some(etag) => request.header("if-match", etag),
            None => request,
        }
    }

    async fn send(&self, request: RequestBuilder) -> Answer {
        let unreachable = |source: reqwest::Error| Refusal::Unreachable {
            url: self.base.to_string(),
            source: source.without_url(),
        };
        let mut answer = request.bearer_auth(&self.key).send().await.map_err(unreachable)?;
        let status = answer.status();
        let header = |answer: &Response, name: &str| {
            answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        let (etag, location) = (header(&answer, "etag"), header(&answer, "location"));
        if status.is_redirection() {
            let replayed = header(&answer, "idempotent-replayed").is_some();
            return Err(self.redirect(location.as_deref().unwrap_or_default(), replayed));
        }
        let mut bytes = Vec::new();
        while let Some(part) = answer.chunk().await.map_err(unreachable)? {
            if bytes.len() + part.len() > ANSWER_BYTES_MAX {
                return Err(Refusal::TooLarge { url: self.base.to_string() });
            }
            bytes.extend_from_slice(&part);
        }
        let text = String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        if status.is_success() {
            return Ok(Body { text, etag, location });
        }
        Err(match serde_json::from_str(&text) {
            Ok(problem) => Refusal::Problem(Box::new(problem)),
            Err(_) => Refusal::Stranger { url: self.base.to_string(), status: status.as_u16() },
        })
    }
}
