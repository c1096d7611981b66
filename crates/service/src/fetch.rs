//! Downloads a file over HTTP, with limits on size and time.
//!
//! HTTPS certificates are verified with the system's trusted authorities; `SSL_CERT_FILE` names
//! others. The proxy settings `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` apply, but never to URLs
//! of this host. A downloaded file is in a temporary directory that is deleted with its
//! [`FetchedFile`].

use async_recursion::async_recursion as boxed;
use std::fs::{DirBuilder, File};
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::header::{
    CONTENT_LENGTH, ETAG, HeaderMap, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, RETRY_AFTER,
};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Response, StatusCode, Url};

use crate::clock::random_u128;

/// The maximum number of redirects.
const REDIRECTS_MAX: usize = 5;
/// The maximum length of a stored ETag or Last-Modified value.
const VALIDATOR_BYTES_MAX: usize = 1_000;

/// Limits of a download.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The maximum size of the file.
    pub bytes_max: u64,
    /// The timeout for connecting.
    pub connect: Duration,
    /// The maximum time without receiving data.
    pub idle: Duration,
    /// The timeout for the whole download.
    pub whole: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            bytes_max: 2 * 1024 * 1024 * 1024,
            connect: Duration::from_secs(30),
            idle: Duration::from_secs(60),
            whole: Duration::from_secs(30 * 60),
        }
    }
}

/// The HTTP validators of a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Validators {
    pub etag: Option<String>,
    /// The `Last-Modified` header, unchanged.
    pub last_modified: Option<String>,
}

/// The result of a download.
#[derive(Debug)]
pub enum FetchOutcome {
    /// The copy that is already known.
    Unchanged,
    /// A new copy.
    New(FetchedFile),
}

/// A downloaded file. It is deleted when this value is dropped.
#[derive(Debug)]
pub struct FetchedFile {
    /// Its modification time is the publisher's `Last-Modified`.
    pub path: PathBuf,
    pub validators: Validators,
    /// The files of a directory, with the URLs that they come from.
    parts: Vec<(PathBuf, Url)>,
    _dir: TempDir,
}

/// Why a file was not downloaded.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The URL cannot be used.
    #[error("cannot fetch `{url}`: {why}")]
    Url { url: String, why: &'static str },
    /// The HTTP client cannot be created.
    #[error("cannot create the HTTP client")]
    Client(#[source] reqwest::Error),
    /// No response.
    #[error("the server cannot be reached")]
    Unreachable(#[source] reqwest::Error),
    /// The connection was closed before the end of the file.
    #[error("the response was truncated after {got} bytes")]
    Truncated {
        /// The number of bytes received.
        got: u64,
        source: reqwest::Error,
    },
    #[error("timed out: no data for {} s, or more than {} s in total", .0.idle.as_secs_f32(), .0.whole.as_secs_f32())]
    TimedOut(Limits),
    /// A status other than 200.
    #[error("the server returned {status}")]
    Status {
        status: StatusCode,
        /// The delay that the server asks for before the next request.
        retry_after: Option<Duration>,
    },
    #[error("the file is larger than {max} bytes")]
    TooLarge {
        /// The limit in bytes.
        max: u64,
    },
    #[error("cannot write to {}", path.display())]
    Disk { path: PathBuf, source: std::io::Error },
}

/// Parses a URL to fetch from. It must not contain credentials, because it is shown to all users.
pub fn parse_url(text: &str) -> Result<Url, FetchError> {
    let refused = |why| FetchError::Url { url: text.to_owned(), why };
    let url = Url::parse(text).map_err(|_| refused("not a valid URL"))?;
    match url.scheme() {
        _ if !url.has_host() => Err(refused("the URL has no host")),
        "http" | "https" if url.username().is_empty() && url.password().is_none() => Ok(url),
        "http" | "https" => {
            // Not repeated, because it may contain a password.
            let url = format!("{}://…", url.scheme());
            let why = "the URL contains credentials, which would be shown to all users";
            Err(FetchError::Url { url, why })
        }
        _ => Err(refused("the URL must begin with https:// or http://")),
    }
}

/// Downloads `url`, unless the server still has the copy with the validators `validators`.
/// `progress` gets the number of bytes so far, and the total if the server states it.
#[boxed]
pub async fn fetch(
    url: &Url,
    validators: &Validators,
    limits: Limits,
    progress: &mut (dyn FnMut(u64, Option<u64>) + Send),
) -> Result<FetchOutcome, FetchError> {
    let mut request = client(url, limits, || Policy::custom(redirect))?.get(url.clone());
    if let Some(etag) = &validators.etag {
        request = request.header(IF_NONE_MATCH, etag);
    }
    if let Some(time) = &validators.last_modified {
        request = request.header(IF_MODIFIED_SINCE, time);
    }
    let response = request.send().await.map_err(|error| to_fetch_error(error, limits, None))?;
    match response.status() {
        StatusCode::NOT_MODIFIED if *validators != Validators::default() => {
            Ok(FetchOutcome::Unchanged)
        }
        StatusCode::OK => download(url, response, limits, progress).await.map(FetchOutcome::New),
        status => Err(FetchError::Status { status, retry_after: retry_after(response.headers()) }),
    }
}

/// Creates an HTTP client for this URL. `redirect_policy` is the redirect policy.
pub fn client(
    url: &Url,
    limits: Limits,
    redirect_policy: fn() -> Policy,
) -> Result<Client, FetchError> {
    // Sets the process-wide default. An error means that it was already set to the same provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = || {
        let builder = ClientBuilder::new()
            .http1_only()
            // A server may close the connection after a redirect, so connections are not reused.
            .pool_max_idle_per_host(0)
            .user_agent(concat!("fleetmend/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(limits.connect)
            .read_timeout(limits.idle)
            .timeout(limits.whole)
            .redirect(redirect_policy());
        if is_loopback(url) { builder.no_proxy() } else { builder }
    };
    let made = builder().build();
    let made = match url.scheme() {
        // A system without trusted authorities can still use plain HTTP.
        "http" => made.or_else(|_| builder().tls_certs_only([]).build()),
        _ => made,
    };
    made.map_err(FetchError::Client)
}

fn redirect(attempt: reqwest::redirect::Attempt<'_>) -> reqwest::redirect::Action {
    let secure = |url: &Url| url.scheme() == "https";
    if attempt.previous().len() > REDIRECTS_MAX {
        attempt.error("too many redirects")
    } else if attempt.previous().iter().any(secure) && !secure(attempt.url()) {
        attempt.error("redirect from https to http")
    } else {
        attempt.follow()
    }
}

/// Whether a URL names this host, which a proxy could not reach.
pub fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or("").trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

fn to_fetch_error(error: reqwest::Error, limits: Limits, got: Option<u64>) -> FetchError {
    let error = error.without_url();
    match got {
        _ if error.is_timeout() => FetchError::TimedOut(limits),
        Some(got) => FetchError::Truncated { got, source: error },
        None => FetchError::Unreachable(error),
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

async fn download(
    url: &Url,
    mut response: Response,
    limits: Limits,
    progress: &mut (dyn FnMut(u64, Option<u64>) + Send),
) -> Result<FetchedFile, FetchError> {
    let too_large = || FetchError::TooLarge { max: limits.bytes_max };
    let stated = response.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let total: Option<u64> = stated.and_then(|text| text.parse().ok());
    if total.is_some_and(|size| size > limits.bytes_max) {
        return Err(too_large());
    }
    progress(0, total);
    let validators = validators(response.headers());
    let place = TempDir::new()?;
    let path = place.0.join(file_name(url));
    let disk = |source| FetchError::Disk { path: path.clone(), source };
    let mut file = File::create_new(&path).map_err(disk)?;
    let mut got = 0;
    while let Some(part) =
        response.chunk().await.map_err(|error| to_fetch_error(error, limits, Some(got)))?
    {
        got += part.len() as u64;
        if got > limits.bytes_max {
            return Err(too_large());
        }
        // A chunk is the result of one read, so the page cache takes it without blocking.
        file.write_all(&part).map_err(disk)?;
        progress(got, total);
    }
    let time = validators.last_modified.as_deref().and_then(parse_http_date);
    if let Some(time) = time {
        file.set_modified(SystemTime::from(time)).map_err(disk)?;
    }
    Ok(FetchedFile { path, validators, parts: Vec::new(), _dir: place })
}

fn validators(headers: &HeaderMap) -> Validators {
    let text = |name| {
        let text: &str = headers.get(name)?.to_str().ok()?;
        (!text.is_empty() && text.len() <= VALIDATOR_BYTES_MAX).then(|| text.to_owned())
    };
    Validators { etag: text(ETAG), last_modified: text(LAST_MODIFIED) }
}

fn parse_http_date(text: &str) -> Option<Timestamp> {
    rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

/// The last segment of a URL, reduced to characters that are safe in a file name.
fn file_name(url: &Url) -> String {
    let last = url.path_segments().and_then(|mut parts| parts.next_back()).unwrap_or("");
    let kept = |letter: &char| letter.is_ascii_alphanumeric() || "._-".contains(*letter);
    let name: String = last.chars().filter(kept).take(100).collect();
    if name.trim_matches('.').is_empty() { "feed".to_owned() } else { name }
}

/// A private temporary directory, deleted with its content on drop.
#[derive(Debug)]
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Result<TempDir, FetchError> {
        let path = std::env::temp_dir().join(format!("fleetmend-feed-{:032x}", random_u128()));
        let result = DirBuilder::new().mode(0o700).create(&path);
        result.map_err(|source| FetchError::Disk { path: path.clone(), source })?;
        Ok(TempDir(path))
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // If it cannot be deleted, it stays in the system's directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl FetchedFile {
    /// Replaces the path of the file in a sentence with the URL.
    pub fn with_url(&self, url: &str, sentence: &str) -> String {
        let shown = |path: &Path| path.display().to_string();
        let part = |sentence: String, (path, url): &(PathBuf, Url)| {
            sentence.replace(&shown(path), url.as_str())
        };
        let sentence = self.parts.iter().fold(sentence.to_owned(), part);
        sentence.replace(&shown(&self.path), url)
    }

    /// Moves files into one directory, in this order. `validators` are those of all together.
    pub fn gather(
        files: Vec<(Url, FetchedFile)>,
        validators: Validators,
    ) -> Result<FetchedFile, FetchError> {
        let dir = TempDir::new()?;
        let mut parts = Vec::new();
        for (number, (url, file)) in files.into_iter().enumerate() {
            let to = dir.0.join(format!("{number:03}-{}", file_name(&url)));
            std::fs::rename(&file.path, &to)
                .map_err(|source| FetchError::Disk { path: to.clone(), source })?;
            parts.push((to, url));
        }
        Ok(FetchedFile { path: dir.0.clone(), validators, parts, _dir: dir })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_must_be_http_and_without_credentials() {
        assert!(parse_url("https://feeds.test/Debian/all.zip").is_ok());
        for text in ["Debian.zip", "ftp://feeds.test/x", "file:///etc/passwd", "https://"] {
            assert!(matches!(parse_url(text), Err(FetchError::Url { .. })), "{text}");
        }
        let refusal = parse_url("https://anna:geheim@feeds.test/x").unwrap_err().to_string();
        assert!(refusal.contains("shown") && !refusal.contains("geheim"), "{refusal}");
    }

    #[test]
    fn file_name_from_url_cannot_leave_the_directory() {
        let name = |text: &str| file_name(&Url::parse(text).unwrap());
        assert_eq!(name("https://feeds.test/Debian/all.zip?x=1"), "all.zip");
        assert_eq!(name("https://feeds.test/"), "feed");
        assert_eq!(name("https://feeds.test/a%2F..%2F..%2Fetc"), "a2F..2F..2Fetc");
        assert_eq!(name("https://feeds.test/%2e%2e%2e"), "2e2e2e");
    }

    #[test]
    fn loopback_urls_bypass_the_proxy() {
        for (text, here) in [
            ("http://127.0.0.1:1/x", true),
            ("http://[::1]/x", true),
            ("http://localhost/", true),
            ("https://feeds.test/", false),
            ("http://10.0.0.1/", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(text).unwrap()), here, "{text}");
        }
    }

    #[test]
    fn last_modified_date_is_parsed() {
        let time = parse_http_date("Sun, 15 Nov 2026 04:00:00 GMT").unwrap();
        assert_eq!(time.to_string(), "2026-11-15T04:00:00Z");
        assert_eq!(parse_http_date("yesterday"), None);
    }
}
