//! Proxies between a real agent and the service: one without keys that forges and replays
//! responses, and one with a public certificate in front of a service without TLS.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::Response;
use lab::apt::{Deb, Pocket, Repo, Server};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::support::{Fleet, Host, batch_path, package_changes, text};

/// A Debian host with one pending update.
fn server() -> Option<Server> {
    let repo = Repo::with(&[
        (Pocket::Stable, Deb::new("hello", "1.0")),
        (Pocket::Security, Deb::new("hello", "1.1").counts_runs()),
    ])?;
    Server::with_installed(&repo, &["hello"])
}

fn runtime() -> Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread();
    { runtime }.worker_threads(1).enable_all().build().unwrap()
}

/// What the proxy does with syncs.
#[derive(Debug, Clone)]
enum Mode {
    Forward,
    /// Responds that the host was removed.
    ForgeRemoval,
    /// Withholds and captures a response with an order.
    WithholdOrder,
    /// Sends this response instead.
    Replay(Captured),
}

#[derive(Debug, Clone)]
struct Captured {
    headers: HeaderMap,
    body: Value,
}

struct Proxy {
    upstream: String,
    client: reqwest::Client,
    mode: watch::Sender<Mode>,
    captured: watch::Sender<Option<Captured>>,
    /// Number of forged responses since the mode was set.
    forged: AtomicU32,
}

impl Proxy {
    fn start(runtime: &Runtime, upstream: &str) -> (Arc<Proxy>, String) {
        let proxy = Arc::new(Proxy {
            upstream: upstream.to_owned(),
            client: reqwest::Client::builder().no_proxy().build().unwrap(),
            mode: watch::Sender::new(Mode::Forward),
            captured: watch::Sender::new(None),
            forged: AtomicU32::new(0),
        });
        let router = axum::Router::new().fallback(forward).with_state(proxy.clone());
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        runtime.spawn(async move { axum::serve(listener, router).await });
        (proxy, address)
    }

    fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
        self.forged.store(0, Ordering::SeqCst);
    }

    /// Forges responses until the agent has synced several times.
    fn forge_until_synced(&self, fleet: &Fleet, mode: Mode) {
        self.set(mode);
        fleet.until_true("the agent syncs again", || self.forged.load(Ordering::SeqCst) >= 2);
    }
}

fn response(status: u16, headers: HeaderMap, body: impl Into<Body>) -> Response {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status.try_into().unwrap();
    *answer.headers_mut() = headers;
    for name in ["content-length", "transfer-encoding", "connection"] {
        answer.headers_mut().remove(name);
    }
    answer
}

async fn forward(State(proxy): State<Arc<Proxy>>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let mut changed = proxy.mode.subscribe();
    let is_sync = parts.uri.path() == "/agent/v1/sync";
    let mode = if is_sync { changed.borrow_and_update().clone() } else { Mode::Forward };
    match &mode {
        Mode::ForgeRemoval => {
            proxy.forged.fetch_add(1, Ordering::SeqCst);
            let problem = json!({"status": 410, "code": "server_removed", "detail": "removed"});
            return response(410, HeaderMap::new(), problem.to_string());
        }
        Mode::Replay(Captured { headers, body }) => {
            proxy.forged.fetch_add(1, Ordering::SeqCst);
            return response(200, headers.clone(), body.to_string());
        }
        Mode::Forward | Mode::WithholdOrder => {}
    }
    for name in ["host", "content-length"] {
        parts.headers.remove(name);
    }
    let path = parts.uri.path_and_query().unwrap().as_str();
    let request = proxy.client.request(parts.method, format!("{}{path}", proxy.upstream));
    let request = request.headers(parts.headers).body(body);
    let got = async {
        let got = request.send().await?;
        let (status, headers) = (got.status().as_u16(), got.headers().clone());
        Ok::<_, reqwest::Error>((status, headers, got.bytes().await?))
    };
    let got = tokio::select! {
        got = got => got,
        // Abort a held sync, so that the next one sees the new mode.
        _ = changed.changed(), if is_sync => return response(502, HeaderMap::new(), ""),
    };
    let Ok((status, headers, body)) = got else { return response(502, HeaderMap::new(), "") };
    let Ok(read) = serde_json::from_slice::<Value>(&body) else {
        return response(status, headers, body);
    };
    match mode {
        Mode::WithholdOrder if read["orders"].as_array().is_some_and(|some| !some.is_empty()) => {
            proxy.captured.send_replace(Some(Captured { headers, body: read }));
            response(502, HeaderMap::new(), "")
        }
        _ => response(status, headers, body),
    }
}

#[test]
fn proxy_without_keys_can_only_delay_an_agent() {
    let Some(server) = server() else { return };
    let fleet = Fleet::new();
    let runtime = runtime();
    let (proxy, address) = Proxy::start(&runtime, &fleet.service.address);
    let mut host = Host::not_enrolled(&fleet, server.root.dir());
    host.enroll_at(&fleet, &address);
    host.start();
    fleet.wait_for_scan(&host.id);

    // "This host was removed", repeatedly: the agent logs it once and keeps syncing.
    proxy.forge_until_synced(&fleet, Mode::ForgeRemoval);
    let shown = text(&host.run(&["status"]).stdout);
    assert!(shown.contains("running, "), "{shown}");
    assert!(shown.contains("that this host was removed, but it is not signed"), "{shown}");
    assert_eq!(host.log_text().matches("this host was removed").count(), 1, "{}", host.log_text());

    // An order is withheld, canceled, and replayed later.
    proxy.set(Mode::WithholdOrder);
    let order = json!({"packages": ["hello"]});
    let batch = fleet.post(&format!("/v1/servers/{}/patch", host.id), &order);
    fleet.until_true("the order is on its way", || proxy.captured.borrow().is_some());
    let captured = proxy.captured.borrow().clone().unwrap();
    fleet.post(&format!("{}/cancel", batch_path(&batch)), &json!({}));
    proxy.forge_until_synced(&fleet, Mode::Replay(captured));
    proxy.set(Mode::Forward);

    // Without forgeries, the agent follows current requests, and has done nothing else.
    let before = fleet.server(&host.id)["last_scan_at"].clone();
    fleet.post(&format!("/v1/servers/{}/refresh", host.id), &json!({}));
    fleet.until(&format!("/v1/servers/{}", host.id), |seen| seen["last_scan_at"] != before);
    assert_eq!(server.version("hello").unwrap(), "1.0");
    assert!(server.runs("hello").is_empty());
    assert!(host.log_text().contains("the service is reachable again"), "{}", host.log_text());
    let seen = fleet.get(&batch_path(&batch));
    assert_eq!(
        (&seen["state"], &seen["results"][0]["state"]),
        (&json!("canceled"), &json!("canceled"))
    );
    assert_eq!(seen["results"][0]["result"]["packages"], json!([]), "{seen}");
    assert!(host.stop());
}

/// A certificate authority, its certificate as a file, and a certificate issued for 127.0.0.1.
struct Authority {
    file: PathBuf,
    tls: rustls::ServerConfig,
}

impl Authority {
    fn new(fleet: &Fleet, name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap();
        let file = fleet.dir.0.join(format!("{name}.pem"));
        std::fs::write(&file, authority.pem()).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let tls = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        Authority { file, tls }
    }
}

/// Terminates TLS in front of the service.
fn tls_proxy(runtime: &Runtime, tls: rustls::ServerConfig, upstream: &str) -> String {
    let upstream: SocketAddr = upstream.strip_prefix("http://").unwrap().parse().unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    runtime.spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut client) = acceptor.accept(client).await else { return };
                let Ok(mut service) = TcpStream::connect(upstream).await else { return };
                let _ = tokio::io::copy_bidirectional(&mut client, &mut service).await;
            });
        }
    });
    address
}

#[test]
fn token_without_a_pin_works_behind_a_proxy_with_a_trusted_certificate() {
    let Some(server) = server() else { return };
    let fleet = Fleet::new();
    let runtime = runtime();
    let (public, stranger) = (Authority::new(&fleet, "public"), Authority::new(&fleet, "stranger"));
    let address = tls_proxy(&runtime, public.tls, &fleet.service.address);
    let token = fleet.token();
    assert!(token.ends_with(".plain"), "{token}");
    let mut host = Host::not_enrolled(&fleet, server.root.dir());
    // Rejects both a certificate from an unknown authority and one for another name.
    let (port, enroll) = (address.rsplit_once(':').unwrap().1, "enroll");
    for (trust_store, server) in
        [(&stranger.file, address.clone()), (&public.file, format!("https://localhost:{port}"))]
    {
        host.trust_store = Some(trust_store.clone());
        let refused = host.run(&[enroll, "--server", &server, "--token", &token]);
        let words = text(&refused.stderr);
        assert!(!refused.status.success() && words.contains("certificate"), "{words}");
    }
    host.trust_store = Some(public.file);
    host.enroll_at(&fleet, &address);
    host.start();
    fleet.wait_for_scan(&host.id);
    let task = fleet.patch(&host.id, &json!({"packages": ["hello"]}));
    assert_eq!(package_changes(&task), ["hello 1.0 > 1.1"], "{task}");
    assert!(host.stop());
}
