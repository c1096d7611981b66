//! A minimal client: it sends prepared bytes and reads the response. It runs on the same cores as
//! the service, so it must cost next to nothing.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gateway::{Credential, signed_text};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use service::secrets::Secrets;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use vocab::ServerId;

/// A persistent connection.
pub(crate) struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    pub(crate) async fn connect(address: &str) -> std::io::Result<Client> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Client { stream, received: Vec::new() })
    }

    /// Sends a request without waiting for the response.
    pub(crate) async fn send(&mut self, request: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(request).await
    }

    /// Sends a request and returns the body of its response, which must be successful.
    pub(crate) async fn request(&mut self, request: &[u8]) -> std::io::Result<Vec<u8>> {
        self.send(request).await?;
        self.received.clear();
        let mut head = None;
        loop {
            if head.is_none() {
                head = self
                    .received
                    .windows(4)
                    .position(|four| four == b"\r\n\r\n")
                    .map(|end| end + 4);
            }
            if let Some(start) = head {
                let text = String::from_utf8_lossy(&self.received[..start]).to_ascii_lowercase();
                let good = text.starts_with("http/1.1 2");
                let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
                let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
                if self.received.len() >= start + length {
                    let body = self.received[start..].to_vec();
                    assert!(good, "{text}{}", String::from_utf8_lossy(&body));
                    return Ok(body);
                }
            }
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// An API request.
pub(crate) fn get(key: &str, path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n\r\n").into()
}

/// A simulated agent that signs its requests.
pub(crate) struct Agent {
    pair: Ed25519KeyPair,
    credential: Credential,
    tag: String,
    pub(crate) counter: u64,
}

/// The key of the nth server of a fleet, the same in every run.
pub(crate) fn key_pair(nth: u64) -> Ed25519KeyPair {
    let mut seed = [7; 32];
    seed[..8].copy_from_slice(&nth.to_be_bytes());
    Ed25519KeyPair::from_seed_unchecked(&seed).unwrap()
}

impl Agent {
    pub(crate) fn new(secrets: &Secrets, nth: u64, server: ServerId) -> Agent {
        let pair = key_pair(nth);
        let key: [u8; 32] = pair.public_key().as_ref().try_into().unwrap();
        let who = Credential { server, key };
        let tag = STANDARD.encode(who.tag(secrets));
        Agent { pair, credential: who, tag, counter: 1 }
    }

    fn signed_request(&self, method: &str, path: &str, more: &str, body: &[u8]) -> Vec<u8> {
        let signature = self.pair.sign(signed_text(method, path, body).as_bytes());
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nhost: bench\r\n{more}content-length: {}\r\n\
             fleetmend-nonce: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
             authorization: Agent id={},key={},tag={},sig={}\r\n\r\n",
            body.len(),
            self.credential.server,
            STANDARD.encode(self.credential.key),
            self.tag,
            STANDARD.encode(signature),
        )
        .into_bytes();
        request.extend_from_slice(body);
        request
    }

    /// The next sync; `more` has additional fields.
    pub(crate) fn sync(&mut self, hold_seconds: u32, more: &str) -> Vec<u8> {
        let counter = self.counter;
        self.counter += 1;
        let body = format!(
            "{{\"boot_id\":\"6f1c9a52\",\"counter\":{counter},\"nonce\":{counter},\
             \"hold_seconds\":{hold_seconds},\"activity\":\"idle\"{more}}}"
        );
        self.signed_request(
            "POST",
            "/agent/v1/sync",
            "content-type: application/json\r\n",
            body.as_bytes(),
        )
    }

    /// An upload of a package set.
    pub(crate) fn packages(&self, digest: vocab::Digest, packed: &[u8]) -> Vec<u8> {
        let path = format!("/agent/v1/listings/packages/{digest}");
        self.signed_request("PUT", &path, "content-encoding: zstd\r\n", packed)
    }
}
