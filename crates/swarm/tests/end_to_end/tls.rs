//! The same over TLS: an agent connects only to a server whose certificate matches the hash in its
//! token.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use swarm::{Config, Swarm};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::fake_server::FakeServer;
use super::{NO_FAULTS, wait_until};

struct TlsListener(TcpListener, TlsAcceptor);

impl axum::serve::Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.0.accept().await.unwrap();
            // An agent that does not trust the certificate closes the connection; accept the next
            // one.
            if let Ok(stream) = self.1.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

/// Starts the fake server with its own certificate. Returns its URL and the certificate.
async fn listen_with_tls(fake_server: &FakeServer) -> (String, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let listener = TlsListener(listener, TlsAcceptor::from(Arc::new(config)));
    let router = fake_server.router();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (format!("https://{address}"), certificate)
}

fn pin(certificate: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(ring::digest::digest(&ring::digest::SHA256, certificate))
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_connect_only_to_the_pinned_server() {
    let fake_server = FakeServer::new();
    let (url, certificate) = listen_with_tls(&fake_server).await;
    let start = |pin: &str| {
        let mut config = Config::new(&url, fake_server.token(pin).parse().unwrap(), 10);
        (config.behavior, config.reconnect_max) = (NO_FAULTS, Duration::from_millis(20));
        Swarm::start(config).unwrap()
    };
    let deceived = start(&pin(b"the certificate of another server"));
    wait_until("all agents have tried to connect", || deceived.counts().failed > 20).await;
    assert_eq!(deceived.counts().enrolled, 0);
    drop(deceived.stop().await);
    assert_eq!(fake_server.records().enrollments, 0, "no token was sent to the wrong server");
    let trusting = start(&pin(&certificate));
    trusting.wait_until_enrolled().await.unwrap();
    wait_until("all agents synced", || trusting.counts().syncs >= 10).await;
    assert_eq!(fake_server.records().violations, Vec::<String>::new());
}
