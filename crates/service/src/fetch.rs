//! Fetches a file from where it is published, within limits of size and of time.
//!
//! `https` is verified by the authorities that this system trusts; `SSL_CERT_FILE` names others. The proxy that
//! `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` name is used, but never on the way to this very machine. What was fetched
//! lies in a directory of its own, which goes with the [`Fetched`].

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

use crate::clock::dice;

/// How many times one is sent elsewhere.
const REDIRECTS_MAX: usize = 5;
/// The longest name for a copy that is remembered.
const VALIDATOR_BYTES_MAX: usize = 1_000;

/// How much, and how long.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The most bytes of a file.
    pub bytes_max: u64,
    /// How long it may take to reach the publisher.
    pub connect: Duration,
    /// How long nothing may come.
    pub idle: Duration,
    /// How long the whole may take.
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

/// What a publisher calls a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Validators {
    /// Its tag.
    pub etag: Option<String>,
    /// Of when it is, in the publisher's words.
    pub last_modified: Option<String>,
}

/// What a publisher answered.
#[derive(Debug)]
pub enum Answer {
    /// It is the copy that is known.
    Unchanged,
    /// Another one.
    New(Fetched),
}

/// A file that was fetched. It is gone when this is.
#[derive(Debug)]
pub struct Fetched {
    /// Where it is. As old as its publisher says.
    pub path: PathBuf,
    /// What its publisher calls it.
    pub validators: Validators,
    _place: Place,
}

/// Why a file was not fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// There is nothing that could be asked.
    #[error("`{url}` cannot be fetched: {why}")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// This machine is not ready to ask.
    #[error("no connection could be prepared")]
    Client(#[source] reqwest::Error),
    /// No answer, or not all of it.
    #[error("it was not reached")]
    Unreachable(#[source] reqwest::Error),
    /// The answer broke off.
    #[error("the answer is cut off after {got} bytes")]
    CutOff {
        /// How much came.
        got: u64,
        /// Why not more.
        source: reqwest::Error,
    },
    /// It took too long.
    #[error("it took too long: nothing for {} s, or more than {} s in all", .0.idle.as_secs_f32(), .0.whole.as_secs_f32())]
    Slow(Limits),
    /// Something else than a file.
    #[error("its publisher answers {status}")]
    Status {
        /// What came.
        status: StatusCode,
        /// For how long to leave it alone.
        retry_after: Option<Duration>,
    },
    /// More than is taken.
    #[error("it has more than {max} bytes")]
    TooLarge {
        /// How many are taken.
        max: u64,
    },
    /// It cannot be put down here.
    #[error("it cannot be written to {}", path.display())]
    Disk {
        /// Where to.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

/// An address that can be fetched from. Nothing secret may be in it: it is shown to whoever may read.
pub fn address(text: &str) -> Result<Url, FetchError> {
    let refused = |why| FetchError::Url { url: text.to_owned(), why };
    let url = Url::parse(text).map_err(|_| refused("it is no address"))?;
    match url.scheme() {
        _ if !url.has_host() => Err(refused("it names no host")),
        "http" | "https" if url.username().is_empty() && url.password().is_none() => Ok(url),
        "http" | "https" => {
            // Not repeated: it holds a password.
            let url = format!("{}://…", url.scheme());
            let why = "it holds a user's name, and would be shown to whoever may read";
            Err(FetchError::Url { url, why })
        }
        _ => Err(refused("it begins neither with https:// nor with http://")),
    }
}

/// Fetches `url`, unless it is the copy that `known` names.
#[boxed]
pub async fn fetch(url: &Url, known: &Validators, limits: Limits) -> Result<Answer, FetchError> {
    let mut request = client(url, limits, || Policy::custom(redirect))?.get(url.clone());
    if let Some(etag) = &known.etag {
        request = request.header(IF_NONE_MATCH, etag);
    }
    if let Some(time) = &known.last_modified {
        request = request.header(IF_MODIFIED_SINCE, time);
    }
    let response = request.send().await.map_err(|error| failed(error, limits, None))?;
    match response.status() {
        StatusCode::NOT_MODIFIED if *known != Validators::default() => Ok(Answer::Unchanged),
        StatusCode::OK => keep(url, response, limits).await.map(Answer::New),
        status => Err(FetchError::Status { status, retry_after: retry_after(response.headers()) }),
    }
}

/// Who asks at this address; `elsewhere` says what to do when sent to another.
pub fn client(url: &Url, limits: Limits, elsewhere: fn() -> Policy) -> Result<Client, FetchError> {
    // Asked for once and for all; whoever was faster has chosen the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = || {
        let builder = ClientBuilder::new()
            .http1_only()
            // Whoever sends one elsewhere may hang up behind it: a connection is asked once.
            .pool_max_idle_per_host(0)
            .user_agent(concat!("fleetmend/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(limits.connect)
            .read_timeout(limits.idle)
            .timeout(limits.whole)
            .redirect(elsewhere());
        if is_here(url) { builder.no_proxy() } else { builder }
    };
    let made = builder().build();
    let made = match url.scheme() {
        // A system that trusts nobody can still be told something in the clear.
        "http" => made.or_else(|_| builder().tls_certs_only([]).build()),
        _ => made,
    };
    made.map_err(FetchError::Client)
}

fn redirect(attempt: reqwest::redirect::Attempt<'_>) -> reqwest::redirect::Action {
    let secure = |url: &Url| url.scheme() == "https";
    if attempt.previous().len() > REDIRECTS_MAX {
        attempt.error("it sends one elsewhere too often")
    } else if attempt.previous().iter().any(secure) && !secure(attempt.url()) {
        attempt.error("it sends one from https to http")
    } else {
        attempt.follow()
    }
}

/// Whether an address is of this machine, where no proxy could find it.
pub fn is_here(url: &Url) -> bool {
    let host = url.host_str().unwrap_or("").trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

fn failed(error: reqwest::Error, limits: Limits, got: Option<u64>) -> FetchError {
    let error = error.without_url();
    match got {
        _ if error.is_timeout() => FetchError::Slow(limits),
        Some(got) => FetchError::CutOff { got, source: error },
        None => FetchError::Unreachable(error),
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

async fn keep(url: &Url, mut response: Response, limits: Limits) -> Result<Fetched, FetchError> {
    let too_large = || FetchError::TooLarge { max: limits.bytes_max };
    let stated = response.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if stated.and_then(|text| text.parse().ok()).is_some_and(|size: u64| size > limits.bytes_max) {
        return Err(too_large());
    }
    let validators = validators(response.headers());
    let place = Place::new()?;
    let path = place.0.join(file_name(url));
    let disk = |source| FetchError::Disk { path: path.clone(), source };
    let mut file = File::create_new(&path).map_err(disk)?;
    let mut got = 0;
    while let Some(part) =
        response.chunk().await.map_err(|error| failed(error, limits, Some(got)))?
    {
        got += part.len() as u64;
        if got > limits.bytes_max {
            return Err(too_large());
        }
        // A part is what one read gave: the page cache takes it at once.
        file.write_all(&part).map_err(disk)?;
    }
    let time = validators.last_modified.as_deref().and_then(stamp);
    if let Some(time) = time {
        file.set_modified(SystemTime::from(time)).map_err(disk)?;
    }
    Ok(Fetched { path, validators, _place: place })
}

fn validators(headers: &HeaderMap) -> Validators {
    let text = |name| {
        let text: &str = headers.get(name)?.to_str().ok()?;
        (!text.is_empty() && text.len() <= VALIDATOR_BYTES_MAX).then(|| text.to_owned())
    };
    Validators { etag: text(ETAG), last_modified: text(LAST_MODIFIED) }
}

fn stamp(text: &str) -> Option<Timestamp> {
    rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

/// The last part of an address, as a name that a file may have.
fn file_name(url: &Url) -> String {
    let last = url.path_segments().and_then(|mut parts| parts.next_back()).unwrap_or("");
    let kept = |letter: &char| letter.is_ascii_alphanumeric() || "._-".contains(*letter);
    let name: String = last.chars().filter(kept).take(100).collect();
    if name.trim_matches('.').is_empty() { "feed".to_owned() } else { name }
}

/// A directory of one's own, with everything in it.
#[derive(Debug)]
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Place, FetchError> {
        let path = std::env::temp_dir().join(format!("fleetmend-feed-{:032x}", dice()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|source| FetchError::Disk { path: path.clone(), source })?;
        Ok(Place(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What cannot be removed is in the system's directory for such things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Fetched {
    /// Puts the address into a sentence that names the file.
    pub fn in_words_of(&self, url: &str, sentence: &str) -> String {
        let shown = |path: &Path| path.display().to_string();
        sentence.replace(&shown(&self.path), url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_of_the_web_and_holds_no_password() {
        assert!(address("https://feeds.test/Debian/all.zip").is_ok());
        for text in ["Debian.zip", "ftp://feeds.test/x", "file:///etc/passwd", "https://"] {
            assert!(matches!(address(text), Err(FetchError::Url { .. })), "{text}");
        }
        let refusal = address("https://anna:geheim@feeds.test/x").unwrap_err().to_string();
        assert!(refusal.contains("shown") && !refusal.contains("geheim"), "{refusal}");
    }

    #[test]
    fn a_file_is_named_as_the_end_of_its_address_and_never_leads_elsewhere() {
        let name = |text: &str| file_name(&Url::parse(text).unwrap());
        assert_eq!(name("https://feeds.test/Debian/all.zip?x=1"), "all.zip");
        assert_eq!(name("https://feeds.test/"), "feed");
        assert_eq!(name("https://feeds.test/a%2F..%2F..%2Fetc"), "a2F..2F..2Fetc");
        assert_eq!(name("https://feeds.test/%2e%2e%2e"), "2e2e2e");
    }

    #[test]
    fn this_machine_is_reached_without_a_proxy() {
        for (text, here) in [
            ("http://127.0.0.1:1/x", true),
            ("http://[::1]/x", true),
            ("http://localhost/", true),
            ("https://feeds.test/", false),
            ("http://10.0.0.1/", false),
        ] {
            assert_eq!(is_here(&Url::parse(text).unwrap()), here, "{text}");
        }
    }

    #[test]
    fn a_publishers_date_is_read() {
        let time = stamp("Sun, 15 Nov 2026 04:00:00 GMT").unwrap();
        assert_eq!(time.to_string(), "2026-11-15T04:00:00Z");
        assert_eq!(stamp("yesterday"), None);
    }
}
