//! The binary as users run it: `init`, exit codes, settings, graceful shutdown and TLS. The other
//! commands are in the modules.

#![expect(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod backup;
mod commands;
mod database;
mod demo;
mod dev;
mod doctor;
mod feeds;
mod fleet;
mod help;
mod hostile_agent;
mod hostile_backup;
mod hostile_feed;
mod hostile_server;
mod local_commands;
mod logs;
mod memory;
mod operator;
mod operator_commands;
mod orgs;
mod outage;
mod replicas;
mod schema;
mod support;
mod terminal;
mod terminal_layout;
mod users;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use support::{Dir, Running, first_key, fleetmend, init};

fn ask(stream: &mut TcpStream, key: &str, request: &str) {
    let request = request.replace("KEY", &format!("Authorization: Bearer {key}"));
    stream.write_all(request.as_bytes()).unwrap();
}

#[test]
fn init_prints_a_working_key_and_refuses_to_run_twice() {
    let dir = Dir::new();
    let key = first_key(&dir.data());
    let before = std::fs::read(dir.data().join("root.key")).unwrap();
    let again = init(&dir.data(), "Other");
    assert_eq!(again.status.code(), Some(1));
    let output = String::from_utf8(again.stderr).unwrap();
    assert!(output.contains("is already set up, for the organization `Acme`"), "{output}");
    assert!(again.stdout.is_empty());
    assert_eq!(std::fs::read(dir.data().join("root.key")).unwrap(), before);

    let service = Running::start(&dir.data(), &[]);
    let mut stream = service.connect();
    ask(
        &mut stream,
        &key,
        "GET /v1/api-keys HTTP/1.1\r\nHost: x\r\nKEY\r\nConnection: close\r\n\r\n",
    );
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn secrets_are_readable_by_the_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = Dir::new();
    first_key(&dir.data());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir.data()), 0o700);
    for secret in ["root.key", "orders.key"] {
        assert_eq!(mode(&dir.data().join(secret)), 0o600, "{secret}");
    }
}

#[test]
fn usage_errors_exit_with_2_and_failures_with_1() {
    let dir = Dir::new();
    let data = dir.data();
    let data = data.to_str().unwrap();
    for wrong in
        [&["server"][..], &["nothing"], &["server", "--data-dir", data, "--durability", "half"]]
    {
        assert_eq!(fleetmend(wrong).output().unwrap().status.code(), Some(2), "{wrong:?}");
    }
    let absent = fleetmend(&["server", "--data-dir", data]).output().unwrap();
    assert_eq!(absent.status.code(), Some(1));
    assert!(String::from_utf8(absent.stderr).unwrap().contains("run `fleetmend init"));
    first_key(&dir.data());
    let half = fleetmend(&["server", "--data-dir", data, "--tls-cert", "x"]).output().unwrap();
    assert_eq!(half.status.code(), Some(1));
    assert!(
        String::from_utf8(half.stderr)
            .unwrap()
            .contains("--tls-cert and --tls-key must be used together")
    );
    for help in
        [&["--help"][..], &["init", "--help"], &["server", "--help"], &["openapi", "--help"]]
    {
        let shown = fleetmend(help).output().unwrap();
        assert!(
            shown.status.success() && String::from_utf8(shown.stdout).unwrap().contains("Example"),
            "{help:?}"
        );
    }
}

/// Flags override environment variables, which override the file.
#[test]
fn settings_come_from_flags_then_environment_then_file() {
    let dir = Dir::new();
    first_key(&dir.data());
    let listens = |command: &mut Command| {
        let output = command.output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let data = dir.data();
    let data = data.to_str().unwrap();
    std::fs::write(dir.data().join("fleetmend.toml"), "listen = \"from-file.invalid\"\n").unwrap();
    let output = listens(&mut fleetmend(&["server", "--data-dir", data]));
    assert!(output.contains("cannot listen on from-file.invalid"), "{output}");
    let output = listens(
        fleetmend(&["server", "--data-dir", data]).env("FLEETMEND_LISTEN", "from-env.invalid"),
    );
    assert!(output.contains("cannot listen on from-env.invalid"), "{output}");
    let output = listens(
        fleetmend(&["server", "--data-dir", data, "--listen", "from-flag.invalid"])
            .env("FLEETMEND_LISTEN", "from-env.invalid"),
    );
    assert!(output.contains("cannot listen on from-flag.invalid"), "{output}");
}

/// The request is half sent when the service is signaled. The service finishes it, and then ends.
#[test]
fn current_requests_finish_before_the_service_ends() {
    let dir = Dir::new();
    let key = first_key(&dir.data());
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut service = Running::start(&dir.data(), &[]);
        let mut idle = service.connect();
        let mut stream = service.connect();
        let body = r#"{"name": "made while ending", "role": "viewer"}"#;
        let (start, rest) = body.split_at(10);
        let head = format!(
            "POST /v1/api-keys HTTP/1.1\r\nHost: x\r\nKEY\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        ask(&mut stream, &key, &head);
        // The service sends 100 Continue only once a handler reads the body: now the request is in
        // progress.
        let mut asked_for = [0; 25];
        stream.read_exact(&mut asked_for).unwrap();
        assert_eq!(&asked_for, b"HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(start.as_bytes()).unwrap();
        service.signal(signal);
        // An idle connection is closed: the shutdown has begun.
        assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0);
        stream.write_all(rest.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
        assert!(service.ended_well());
    }
}

/// Some clients read nothing before they have sent the whole body.
#[test]
fn client_that_sends_a_large_body_first_gets_413() {
    let dir = Dir::new();
    let key = first_key(&dir.data());
    let service = Running::start(&dir.data(), &[]);
    let part = vec![b' '; 1 << 20];
    let bytes = 100 * part.len();
    let mut stream = service.connect();
    let head = format!(
        "POST /v1/preview HTTP/1.1\r\nHost: x\r\nKEY\r\nContent-Type: application/json\r\nContent-Length: {bytes}\r\n\r\n"
    );
    ask(&mut stream, &key, &head);
    for _ in 0..100 {
        stream.write_all(&part).unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("\"body_too_large\""), "{answer}");

    // A client that never ends is disconnected.
    let mut stream = service.connect();
    ask(&mut stream, &key, &head.replace(&bytes.to_string(), &(1_u64 << 40).to_string()));
    let sent = (0..1_000).take_while(|_| stream.write_all(&part).is_ok()).count();
    assert!((256..300).contains(&sent), "{sent} MiB");
}

#[tokio::test]
async fn tls_is_served_and_tokens_carry_the_certificate_hash() {
    let dir = Dir::new();
    let key = first_key(&dir.data());
    let certificate = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (cert, private) = (dir.0.join("cert.pem"), dir.0.join("key.pem"));
    std::fs::write(&cert, certificate.cert.pem()).unwrap();
    std::fs::write(&private, certificate.signing_key.serialize_pem()).unwrap();
    let more = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", private.to_str().unwrap()];
    let service = Running::start(&dir.data(), &more);
    assert!(service.address.starts_with("https://"), "{}", service.address);

    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .tls_certs_only([reqwest::Certificate::from_der(certificate.cert.der()).unwrap()])
        .no_proxy()
        .build()
        .unwrap();
    let response = client
        .post(format!("{}/v1/enrollment-tokens", service.address))
        .bearer_auth(&key)
        .json(&serde_json::json!({}))
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 201);
    let token = response.json::<Value>().await.unwrap()["token"].as_str().unwrap().to_owned();
    let cli = terminal::Cli { url: service.address.clone(), key };
    let strange = cli.run_piped(&["summary"]);
    assert_eq!(strange.code, 1);
    assert!(strange.err.contains("--ca-cert"), "{}", strange.err);
    cli.run_ok(&["summary", "--ca-cert", cert.to_str().unwrap()]);
    let hash = ring::digest::digest(&ring::digest::SHA256, certificate.cert.der());
    let carried = token.rsplit('.').next().unwrap();
    assert_eq!(carried, url_safe(hash.as_ref()));
}

/// A separate base64url encoder, so that an encoder is not tested against itself.
fn url_safe(bytes: &[u8]) -> String {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bits: Vec<u8> =
        bytes.iter().flat_map(|byte| (0..8).rev().map(move |n| byte >> n & 1)).collect();
    let digit = |six: &[u8]| {
        let mut six = six.to_vec();
        six.resize(6, 0);
        char::from(alphabet[six.iter().fold(0, |value, bit| value << 1 | usize::from(*bit))])
    };
    bits.chunks(6).map(digit).collect()
}

#[test]
fn openapi_command_prints_the_document() {
    let printed = fleetmend(&["openapi"]).output().unwrap();
    let document: Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    assert!(document["paths"]["/v1/api-keys"]["post"].is_object());
}
