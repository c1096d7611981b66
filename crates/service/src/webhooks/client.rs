//! Sends a request to a receiver that may be slow, broken or hostile.
//!
//! A request takes at most 15 seconds, redirects are not followed, and of the response only the
//! first bytes are read. Addresses of this host and link-local addresses are refused after the name
//! was resolved, so that a webhook cannot reach services that trust this host, such as the metadata
//! service of a cloud. The proxy settings do not apply, because a proxy would resolve the name
//! itself.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{ClientBuilder, Url};
use store::webhooks::Webhook;

use super::{Message, signature};
use crate::App;
use crate::clock::Stopwatch;
use crate::fetch::{self, FetchError};

const TIMEOUT: Duration = Duration::from_secs(15);
/// How much of a response is kept.
const RESPONSE_BYTES_MAX: usize = 1024;
const URL_BYTES_MAX: usize = 2_000;

/// The result of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status, if there was a response.
    pub status: Option<u16>,
    /// The first bytes of the body.
    pub body: Option<String>,
    /// Why it is not delivered.
    pub error: Option<String>,
    pub duration_ms: u64,
}

impl Response {
    pub fn is_delivered(&self) -> bool {
        self.error.is_none()
    }
}

/// Sends requests.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    allow_local: bool,
    timeout: Duration,
}

impl Client {
    /// Creates a client. With `allow_local`, addresses of this host are allowed.
    pub fn new(allow_local: bool) -> Result<Client, reqwest::Error> {
        Client::with_timeout(allow_local, TIMEOUT)
    }

    /// Creates a client with another timeout, for tests.
    pub fn with_timeout(allow_local: bool, timeout: Duration) -> Result<Client, reqwest::Error> {
        // Sets the process-wide default. An error means that it was already set to the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = || {
            ClientBuilder::new()
                .http1_only()
                .no_proxy()
                .redirect(Policy::none())
                .timeout(timeout)
                .user_agent(concat!("fleetmend/", env!("CARGO_PKG_VERSION")))
                .dns_resolver(GuardedResolver { allow_local })
        };
        // A system without trusted authorities can still use plain HTTP.
        let http = builder().build().or_else(|_| builder().tls_certs_only([]).build())?;
        Ok(Client { http, allow_local, timeout })
    }

    /// Sends a message once.
    pub async fn send(&self, app: &App, webhook: &Webhook, message: &Message) -> Response {
        let stopwatch = Stopwatch::start();
        let elapsed = || Duration::from_secs_f64(stopwatch.seconds());
        let sent = tokio::time::timeout(self.timeout, self.try_send(app, webhook, message)).await;
        let (status, body, error) = match sent {
            Ok(Ok(response)) => {
                let status = response.status().as_u16();
                let left = self.timeout.saturating_sub(elapsed());
                (Some(status), Some(first_bytes(response, left).await), status_error(status))
            }
            Ok(Err(error)) => (None, None, Some(error)),
            Err(_) => (None, None, Some(timeout_error(self.timeout))),
        };
        let duration_ms = u64::try_from(elapsed().as_millis()).unwrap_or(0);
        Response { status, body, error, duration_ms }
    }

    async fn try_send(
        &self,
        app: &App,
        webhook: &Webhook,
        message: &Message,
    ) -> Result<reqwest::Response, String> {
        let url = check_url(&webhook.url, self.allow_local)?;
        let now = app.clock.now();
        let signature = signature(&app.secrets, webhook, &message.id, &message.body, now)
            .ok_or("the signing secret cannot be decrypted: rotate it")?;
        let request = self
            .http
            .post(url)
            .header("content-type", "application/json")
            .header("webhook-id", &message.id)
            .header("webhook-timestamp", now.as_second().to_string())
            .header("webhook-signature", signature)
            .body(message.body.clone());
        request.send().await.map_err(|error| describe(&error, self.timeout))
    }
}

/// The first bytes of a response that arrive within `limit`. The status counts, whatever happens to
/// the body.
async fn first_bytes(mut response: reqwest::Response, limit: Duration) -> String {
    let mut body = Vec::new();
    let read = async {
        while let Ok(Some(part)) = response.chunk().await {
            body.extend_from_slice(&part[..part.len().min(RESPONSE_BYTES_MAX - body.len())]);
            if body.len() >= RESPONSE_BYTES_MAX {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(limit, read).await;
    let printable = |c: char| if c.is_control() && c != '\n' { '\u{fffd}' } else { c };
    String::from_utf8_lossy(&body).chars().map(printable).collect()
}

fn status_error(status: u16) -> Option<String> {
    match status {
        200..=299 => None,
        300..=399 => Some(format!("the receiver redirects ({status}); redirects are not followed")),
        _ => Some(format!("the receiver responded with {status}")),
    }
}

fn timeout_error(timeout: Duration) -> String {
    format!("no response within {} seconds", timeout.as_secs_f32())
}

/// The most specific cause, without the URL, which may contain a secret.
fn describe(error: &reqwest::Error, timeout: Duration) -> String {
    if error.is_timeout() {
        return timeout_error(timeout);
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    match error.is_connect() {
        true => format!("cannot connect: {cause}"),
        false => format!("the request failed: {cause}"),
    }
}

/// Parses the URL of a webhook.
pub fn check_url(text: &str, allow_local: bool) -> Result<Url, String> {
    if text.len() > URL_BYTES_MAX {
        return Err(format!("must have at most {URL_BYTES_MAX} characters"));
    }
    // Without the URL, which may contain a secret.
    let url = fetch::parse_url(text).map_err(|error| match error {
        FetchError::Url { why, .. } => why.to_owned(),
        other => other.to_string(),
    })?;
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let address = host.parse::<IpAddr>().ok();
    match address.filter(|address| !allow_local && is_local(*address)) {
        Some(address) => Err(local_error(address)),
        None => Ok(url),
    }
}

fn local_error(address: IpAddr) -> String {
    format!(
        "{address} is an address of this host or a link-local address; `fleetmend server --webhook-allow-local` allows it"
    )
}

/// Whether an address belongs to this host or this link.
fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            v4.is_loopback()
                || v4.is_link_local()
                || v4.is_broadcast()
                || v4.is_multicast()
                // 0.0.0.0/8 is "this host".
                || v4.octets()[0] == 0
        }
        IpAddr::V6(v6) => {
            let embedded = v6.to_ipv4().map(IpAddr::V4).or_else(|| {
                // NAT64 and 6to4 addresses contain an IPv4 address.
                let [a, b, c, d, e, f, g, h] = v6.segments();
                let join = |high: u16, low: u16| {
                    IpAddr::V4(((u32::from(high) << 16) | u32::from(low)).into())
                };
                match (a, b) {
                    (0x64, 0xff9b) if [c, d, e, f] == [0; 4] => Some(join(g, h)),
                    (0x2002, _) => Some(join(b, c)),
                    _ => None,
                }
            });
            v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_unicast_link_local()
                || v6.is_multicast()
                || embedded.is_some_and(is_local)
        }
    }
}

/// Resolves names, and refuses those with a local address.
struct GuardedResolver {
    allow_local: bool,
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let allow_local = self.allow_local;
        Box::pin(async move {
            let found: Vec<SocketAddr> =
                tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let local = found.iter().map(SocketAddr::ip).find(|address| is_local(*address));
            match local.filter(|_| !allow_local) {
                Some(address) => Err(local_error(address).into()),
                None => Ok(Box::new(found.into_iter()) as Addrs),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_and_this_link_are_refused() {
        let local = [
            "http://127.0.0.1/",
            "http://127.8.9.1:80/",
            "http://0.0.0.0/",
            "http://0.1.2.3/",
            "http://169.254.169.254/latest/meta-data",
            "http://255.255.255.255/",
            "http://224.0.0.1/",
            "http://[::1]/",
            "http://[::]/",
            "http://[fe80::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:169.254.169.254]/",
            "http://[64:ff9b::127.0.0.1]/",
            "http://[2002:7f00:1::]/",
            "http://[ff02::1]/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://[::127.0.0.1]/",
        ];
        for url in local {
            assert!(check_url(url, false).is_err(), "{url}");
            assert!(check_url(url, true).is_ok(), "{url}");
        }
        for url in [
            "https://10.0.0.8/hook",
            "https://203.0.113.9/",
            "https://[2001:db8::1]/",
            "http://chat.example.com/",
        ] {
            assert!(check_url(url, false).is_ok(), "{url}");
        }
        for url in
            ["ftp://example.com/", "https://user:secret@example.com/", "hook", "", "https://"]
        {
            assert!(check_url(url, true).is_err(), "{url}");
        }
    }
}
