//! The same over TLS: the token's hash decides who the server is.

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

use super::door::Door;
use super::{CALM, eventually};

struct Secured(TcpListener, TlsAcceptor);

impl axum::serve::Listener for Secured {
    type Io = TlsStream<TcpStream>;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.0.accept().await.unwrap();
            // Who does not trust us hangs up, and the next one is let in.
            if let Ok(stream) = self.1.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

/// Opens a door with a certificate of its own: its address and the certificate.
async fn open(door: &Door) -> (String, CertificateDer<'static>) {
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
    let listener = Secured(listener, TlsAcceptor::from(Arc::new(config)));
    let router = door.router();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (format!("https://{address}"), certificate)
}

fn pin(certificate: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(ring::digest::digest(&ring::digest::SHA256, certificate))
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_talk_to_the_server_that_their_token_names_and_to_no_other() {
    let door = Door::new();
    let (url, certificate) = open(&door).await;
    let start = |pin: &str| {
        let mut config = Config::new(&url, door.token(pin).parse().unwrap(), 10);
        (config.nature, config.reconnect_max) = (CALM, Duration::from_millis(20));
        Swarm::start(config).unwrap()
    };
    let deceived = start(&pin(b"the certificate of another server"));
    eventually("they have tried", || deceived.counts().failed > 20).await;
    assert_eq!(deceived.counts().enrolled, 0);
    drop(deceived.stop().await);
    assert_eq!(door.book().enrolments, 0, "no token was shown to the wrong server");
    let trusting = start(&pin(&certificate));
    trusting.wait_until_enrolled().await.unwrap();
    eventually("all were heard", || trusting.counts().syncs >= 10).await;
    assert_eq!(door.book().protests, Vec::<String>::new());
}
