//! `fleetmend feeds`: import, update, export and status.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

use crate::support::{Dir, first_key, fleetmend};

pub(crate) const ADVISORY: &str = r#"{"id": "DSA-1", "modified": "2026-11-13T00:00:00Z", "aliases": ["CVE-2026-1"], "affected": [
    {"package": {"ecosystem": "Debian:12", "name": "curl"}, "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1"}]}]}]}"#;

fn feeds(data: &Path, args: &[&str]) -> Output {
    let data = data.to_str().unwrap();
    fleetmend(&[&["feeds"], args, &["--data-dir", data]].concat()).output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn feed_is_imported_once_and_failures_are_recorded() {
    let dir = Dir::new();
    first_key(&dir.data());
    let none = feeds(&dir.data(), &["status"]);
    assert!(String::from_utf8_lossy(&none.stdout).contains("No feeds imported"));
    let file = dir.0.join("Debian.json");
    std::fs::write(&file, ADVISORY).unwrap();
    let name = file.to_str().unwrap();
    for changed in [1, 0] {
        let done = feeds(&dir.data(), &["import", name, "--json"]);
        assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(
            (&json(&done)["records"], &json(&done)["changed"]),
            (&1.into(), &changed.into())
        );
        assert!(done.stderr.is_empty(), "the progress bar is for terminals only");
    }
    std::fs::write(&file, &ADVISORY[..60]).unwrap();
    let refused = feeds(&dir.data(), &["import", name]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Debian.json was not imported"));
    let status = json(&feeds(&dir.data(), &["status", "--json"]));
    assert_eq!(
        (&status["feeds"][0]["records"], &status["feeds"][0]["kind"]),
        (&1.into(), &"osv".into())
    );
    assert!(status["feeds"][0]["last_error"].as_str().unwrap().contains("truncated"), "{status}");
    assert_eq!(feeds(&dir.data(), &["import"]).status.code(), Some(2));
}

/// Serves one feed over TLS, with an ETag: a client that sends the ETag gets 304. Returns the
/// feed's URL, and the request heads once there were `requests` of them.
pub(crate) fn publisher(dir: &Path, requests: usize) -> (String, JoinHandle<Vec<String>>) {
    let certificate = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(dir.join("authority.pem"), certificate.cert.pem()).unwrap();
    let key =
        PrivateKeyDer::from(PrivatePkcs8KeyDer::from(certificate.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.cert.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/osv/Debian/all.json", listener.local_addr().unwrap());
    let served = std::thread::spawn(move || {
        let mut heard = Vec::new();
        while heard.len() < requests {
            let connection = ServerConnection::new(config.clone()).unwrap();
            let (stream, _) = listener.accept().unwrap();
            let mut stream = BufReader::new(StreamOwned::new(connection, stream));
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                // A client that does not trust the certificate closes the connection.
                if !stream.read_line(&mut head).is_ok_and(|read| read > 0) {
                    break;
                }
            }
            if head.is_empty() {
                continue;
            }
            let known = head.to_lowercase().contains("if-none-match: \"one\"");
            let (status, body) =
                if known { ("304 Not Modified", "") } else { ("200 OK", ADVISORY) };
            let length = body.len();
            let mut stream = stream.into_inner();
            write!(stream, "HTTP/1.1 {status}\r\netag: \"one\"\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
                .unwrap();
            stream.flush().unwrap();
            heard.push(head);
        }
        heard
    });
    (url, served)
}

#[test]
fn feed_is_fetched_over_verified_tls_and_exported() {
    let dir = Dir::new();
    first_key(&dir.data());
    let (url, served) = publisher(&dir.0, 2);
    let run = |data: &Path, args: &[&str]| {
        let args = [&["feeds"], args, &["--data-dir", data.to_str().unwrap()]].concat();
        fleetmend(&args).env("SSL_CERT_FILE", dir.0.join("authority.pem")).output().unwrap()
    };
    let stranger = feeds(&dir.data(), &["import", &url]);
    assert_eq!(stranger.status.code(), Some(1), "the certificate is not trusted");
    assert_eq!(json(&feeds(&dir.data(), &["status", "--json"]))["feeds"][0]["records"], 0);
    let done = run(&dir.data(), &["import", &url, "--json"]);
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!((&json(&done)["name"], &json(&done)["changed"]), (&"Debian".into(), &1.into()));
    let same = run(&dir.data(), &["update"]);
    assert_eq!(String::from_utf8_lossy(&same.stdout), "Debian: unchanged\n");
    assert_eq!(served.join().unwrap().len(), 2);

    let bundle = dir.0.join("feeds.zst");
    let bundle = bundle.to_str().unwrap();
    assert_eq!(run(&dir.data(), &["export", bundle]).status.code(), Some(0));
    let there = dir.0.join("there");
    first_key(&there);
    for changed in [1, 0] {
        let done = feeds(&there, &["import", bundle, "--json"]);
        assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(json(&done)["changed"], changed);
    }
    let status = String::from_utf8(feeds(&there, &["status"]).stdout).unwrap();
    assert!(status.starts_with("FEED\tKIND\t"), "{status}");
    assert!(status.contains("manual") && status.contains("bundle"), "{status}");

    let status = json(&feeds(&dir.data(), &["status", "--json"]));
    assert!(status["feeds"][0]["next_update_at"].is_string(), "{status}");
    assert_eq!(feeds(&dir.data(), &["update", "Debain"]).status.code(), Some(1));
    assert_eq!(feeds(&dir.data(), &["forget", "Debian"]).status.code(), Some(0));
    let status = json(&feeds(&dir.data(), &["status", "--json"]));
    assert!(status["feeds"][0]["next_update_at"].is_null(), "{status}");
    assert_eq!(status["feeds"][0]["records"], 1, "imported records must stay");
}

#[test]
fn bundle_is_verified_with_the_key_of_its_exporter() {
    let dir = Dir::new();
    let (here, there) = (dir.0.join("here"), dir.0.join("there"));
    first_key(&here);
    first_key(&there);
    let file = dir.0.join("Debian.json");
    std::fs::write(&file, ADVISORY).unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(feeds(&here, &["import", file]).status.code(), Some(0));
    let bundle = dir.0.join("feeds.zst");
    let bundle = bundle.to_str().unwrap();
    let exported = json(&feeds(&here, &["export", bundle, "--json"]));
    let key = exported["key"].as_str().unwrap();
    assert_eq!(json(&feeds(&here, &["key", "--json"]))["key"], key);
    let printed = feeds(&here, &["key"]).stdout;
    assert_eq!(String::from_utf8(printed).unwrap().trim_end(), key);
    let other = json(&feeds(&there, &["key", "--json"]))["key"].as_str().unwrap().to_owned();
    assert_ne!(other, key, "every installation has its own key");

    let refused = |args: &[&str], code: i32, why: &str| {
        let output = feeds(&there, &[&["import"], args].concat());
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{message}");
        assert!(message.contains(why), "{why}: {message}");
    };
    refused(&[bundle, "--trust", &other], 1, "signed with another key than the trusted one");
    refused(&[bundle, "--trust", "no-key"], 2, "not a key");
    refused(&[file, "--trust", key], 1, "--trust is for bundles");
    let whole = std::fs::read(bundle).unwrap();
    let mut altered = whole.clone();
    let middle = altered.len() / 2;
    altered[middle] ^= 1;
    std::fs::write(bundle, altered).unwrap();
    refused(&[bundle, "--trust", key], 1, "was not imported");
    std::fs::write(bundle, &whole[..middle]).unwrap();
    refused(&[bundle, "--trust", key], 1, "was not imported");
    std::fs::write(bundle, &whole).unwrap();

    let done = feeds(&there, &["import", bundle, "--trust", key, "--json"]);
    assert_eq!((&json(&done)["changed"], &json(&done)["signed_by"]), (&1.into(), &key.into()));
    assert!(done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
    let unchecked = feeds(&there, &["import", bundle]);
    let warning = String::from_utf8(unchecked.stderr).unwrap();
    assert_eq!(unchecked.status.code(), Some(0));
    assert!(warning.contains("nobody checked who signed") && warning.contains(key), "{warning}");

    // A newer bundle, and then the old one again.
    let newer = dir.0.join("newer.zst");
    let newer = newer.to_str().unwrap();
    assert_eq!(feeds(&here, &["export", newer]).status.code(), Some(0));
    assert_eq!(feeds(&there, &["import", newer, "--trust", key]).status.code(), Some(0));
    let replayed = feeds(&there, &["import", bundle, "--trust", key]);
    let warning = String::from_utf8(replayed.stderr).unwrap();
    assert_eq!(replayed.status.code(), Some(0));
    assert!(warning.contains("older than one that was imported before"), "{warning}");
}
