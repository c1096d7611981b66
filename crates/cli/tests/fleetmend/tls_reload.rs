//! A renewed certificate is loaded without a restart, checked with real handshakes.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;

use nix::sys::signal::Signal;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

use crate::operator::POLL_INTERVAL;
use crate::support::{Dir, Running, first_key};
use crate::url_safe;

type Connection = StreamOwned<ClientConnection, TcpStream>;

/// A self-signed certificate and its key.
struct Pair {
    der: CertificateDer<'static>,
    pem: [String; 2],
}

impl Pair {
    fn new() -> Pair {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let pem = [made.cert.pem(), made.signing_key.serialize_pem()];
        Pair { der: made.cert.der().clone(), pem }
    }
}

struct Client {
    address: String,
    config: Arc<ClientConfig>,
}

impl Client {
    /// A client that accepts any of these certificates and never resumes a session.
    fn new(service: &Running, pairs: &[Pair]) -> Client {
        let mut roots = RootCertStore::empty();
        pairs.iter().for_each(|pair| roots.add(pair.der.clone()).unwrap());
        let mut config =
            ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        config.resumption = rustls::client::Resumption::disabled();
        let address = service.address.strip_prefix("https://").unwrap().to_owned();
        Client { address, config: Arc::new(config) }
    }

    /// Connects, and returns the certificate that the service presented.
    fn connect(&self) -> (Connection, CertificateDer<'static>) {
        let name = "127.0.0.1".try_into().unwrap();
        let session = ClientConnection::new(self.config.clone(), name).unwrap();
        let mut connection = StreamOwned::new(session, TcpStream::connect(&self.address).unwrap());
        get(&mut connection, "/healthz");
        let shown = connection.conn.peer_certificates().unwrap()[0].clone().into_owned();
        (connection, shown)
    }

    fn readyz(&self) -> Value {
        get(&mut self.connect().0, "/readyz")
    }

    fn until(&self, enough: impl Fn() -> bool) {
        for _ in 0..300 {
            if enough() {
                return;
            }
            #[expect(clippy::disallowed_methods, reason = "polls a service that runs on its own")]
            std::thread::sleep(POLL_INTERVAL);
        }
        panic!("the expected state was never reached: {}", self.readyz());
    }
}

fn get(connection: &mut Connection, path: &str) -> Value {
    send(connection, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"))
}

/// The part of a new enrollment token that names the certificate.
fn token_pin(connection: &mut Connection, key: &str) -> String {
    let head =
        "POST /v1/enrollment-tokens HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
    let rest = format!("Authorization: Bearer {key}\r\nContent-Length: 2\r\n\r\n{{}}");
    let created = send(connection, &format!("{head}{rest}"));
    created["token"].as_str().unwrap().rsplit('.').next().unwrap().to_owned()
}

/// Sends a request on an open connection, and returns the JSON body of the response.
fn send(connection: &mut Connection, request: &str) -> Value {
    connection.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    loop {
        let mut piece = [0; 4_096];
        let length = connection.read(&mut piece).unwrap();
        assert!(length > 0, "the connection ended: {}", String::from_utf8_lossy(&response));
        response.extend_from_slice(&piece[..length]);
        let text = String::from_utf8_lossy(&response);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        assert!(head.starts_with("HTTP/1.1 20"), "{text}");
        if let Ok(body) = serde_json::from_str(body) {
            return body;
        }
    }
}

#[test]
fn renewed_certificate_is_served_without_a_restart() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = Dir::new();
    let api_key = first_key(&dir.data());
    let pairs = [Pair::new(), Pair::new(), Pair::new()];
    let paths: [PathBuf; 2] = ["cert.pem", "key.pem"].map(|name| dir.0.join(name));
    let write = |contents: [&str; 2]| {
        paths.iter().zip(contents).for_each(|(path, text)| std::fs::write(path, text).unwrap());
    };
    write(pairs[0].pem.each_ref().map(String::as_str));
    let [cert, key] = paths.each_ref().map(|path| path.to_str().unwrap());
    let service = Running::start(&dir.data(), &["--tls-cert", cert, "--tls-key", key]);
    let client = Client::new(&service, &pairs);
    let (mut old, shown) = client.connect();
    assert_eq!(shown, pairs[0].der);
    assert!(client.readyz()["certificate"].is_null());

    // Half of the new certificate, then all of it without its key: the old one stays in use.
    let [new_cert, new_key] = pairs[1].pem.each_ref().map(String::as_str);
    for broken in [&new_cert[..new_cert.len() / 2], new_cert] {
        write([broken, &pairs[0].pem[1]]);
        service.signal(Signal::SIGHUP);
        client.until(|| client.readyz()["certificate"].is_string());
        assert_eq!(client.connect().1, pairs[0].der);
        write(pairs[0].pem.each_ref().map(String::as_str));
        service.signal(Signal::SIGHUP);
        client.until(|| client.readyz()["certificate"].is_null());
    }

    write([new_cert, new_key]);
    service.signal(Signal::SIGHUP);
    client.until(|| client.connect().1 == pairs[1].der);
    // Without a signal, the change is found as well.
    write(pairs[2].pem.each_ref().map(String::as_str));
    client.until(|| client.connect().1 == pairs[2].der);
    assert!(client.readyz()["certificate"].is_null());
    // New tokens name the new certificate. The first connection was never interrupted.
    let hash = ring::digest::digest(&ring::digest::SHA256, &pairs[2].der);
    assert_eq!(token_pin(&mut old, &api_key), url_safe(hash.as_ref()));
    assert_eq!(get(&mut old, "/healthz")["status"], "ok");
}

/// The default action of SIGHUP would end the process.
#[test]
fn service_without_tls_ignores_sighup() {
    let dir = Dir::new();
    first_key(&dir.data());
    let mut service = Running::start(&dir.data(), &[]);
    service.signal(Signal::SIGHUP);
    let mut stream = service.connect();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    service.signal(Signal::SIGTERM);
    assert!(service.ended_well());
}
