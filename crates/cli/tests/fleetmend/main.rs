//! The binary as users run it: `init`, exit codes, settings, graceful shutdown and TLS. The other
//! commands are in the modules.

#![expect(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod audited;
mod automatic_feeds;
mod backup;
mod commands;
mod database;
mod demo;
mod dev;
mod docs;
mod doctor;
mod email;
mod feeds;
mod help;
mod hostile_agent;
mod hostile_backup;
mod hostile_feed;
mod hostile_server;
mod local_commands;
mod logs;
mod migrate;
mod operator;
mod operator_commands;
mod orgs;
mod receiver;
mod schema;
mod support;
mod terminal;
mod terminal_layout;
mod tls_reload;
mod users;
mod webhook_kills;
mod whole_machine;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

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
fn health_reports_whether_the_service_is_ready() {
    let dir = Dir::new();
    first_key(&dir.data());
    let service = Running::start(&dir.data(), &[]);
    let address = service.address.clone();
    let health = |more: &[&str]| {
        fleetmend(&[&["health", "--url", &address], more].concat()).output().unwrap()
    };
    let ready = health(&["--json"]);
    assert_eq!(ready.status.code(), Some(0));
    let body: serde_json::Value = serde_json::from_slice(&ready.stdout).unwrap();
    assert_eq!((&body["status"], &body["database"]), (&"ok".into(), &"sqlite".into()));
    assert_eq!(health(&[]).stdout, b"The service is ready.\n");
    drop(service);
    let gone = health(&[]);
    assert_eq!((gone.status.code(), gone.stdout.is_empty()), (Some(1), true));
    assert!(String::from_utf8_lossy(&gone.stderr).contains(&address), "{gone:?}");
}

/// Runs `init` with these arguments and variables, and then the command that it prints. That fails
/// unless the database is the one that `init` set up.
fn start_as_init_says(data: &Path, more: &[&str], variables: &[(&str, &str)]) {
    let args = ["init", "--data-dir", data.to_str().unwrap(), "--org", "Acme"];
    let variables = variables.iter().copied();
    let made = fleetmend(&[&args[..], more].concat()).envs(variables.clone()).output().unwrap();
    let output = String::from_utf8(made.stdout).unwrap();
    let command = output.lines().find(|line| line.starts_with("  fleetmend server")).unwrap();
    let programs = Path::new(env!("CARGO_BIN_EXE_fleetmend")).parent().unwrap();
    let mut child = Command::new("/bin/sh")
        .args(["-c", &format!("exec {command} --listen 127.0.0.1:0")])
        .env_clear()
        .env("PATH", programs)
        .env("FLEETMEND_FEEDS", "manual")
        .envs(variables)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.starts_with("fleetmend is listening on "), "{output}");
}

#[test]
fn init_prints_the_command_for_its_database() {
    let dir = Dir::new();
    let at = |name: &str| format!("sqlite:{}/{name}", dir.0.display());
    let database = at("it's another.db");
    start_as_init_says(&dir.0.join("by flag"), &["--database", &database], &[]);
    let database = at("variable.db");
    start_as_init_says(&dir.0.join("variable"), &[], &[("FLEETMEND_DATABASE", &database)]);
    let data = dir.0.join("settings");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("fleetmend.toml"), format!("database = {:?}\n", at("set.db")))
        .unwrap();
    start_as_init_says(&data, &[], &[]);
    assert!(!data.join("fleetmend.db").exists());
}

#[tokio::test]
async fn init_prints_the_command_for_postgres() {
    let Some(database) = database::Database::new().await else { return };
    let dir = Dir::new();
    start_as_init_says(&dir.data(), &["--database", &database.url], &[]);
    database.remove().await;
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

/// The response must also arrive through TLS, whose own closing message the service sends first.
#[test]
fn client_that_sends_a_large_body_first_gets_413_over_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = Dir::new();
    let key = first_key(&dir.data());
    let certificate = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (cert, private) = (dir.0.join("cert.pem"), dir.0.join("key.pem"));
    std::fs::write(&cert, certificate.cert.pem()).unwrap();
    std::fs::write(&private, certificate.signing_key.serialize_pem()).unwrap();
    let more = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", private.to_str().unwrap()];
    let service = Running::start(&dir.data(), &more);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.cert.der().clone()).unwrap();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let config = rustls::ClientConfig::builder_with_protocol_versions(&[version])
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        let name = "127.0.0.1".try_into().unwrap();
        let session = rustls::ClientConnection::new(config.into(), name).unwrap();
        let address = service.address.strip_prefix("https://").unwrap();
        let stream = std::net::TcpStream::connect(address).unwrap();
        let mut stream = rustls::StreamOwned::new(session, stream);
        // More than all buffers between the two hold.
        let part = vec![b' '; 1 << 20];
        let head = format!(
            "POST /v1/preview HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            40 * part.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        for _ in 0..40 {
            stream.write_all(&part).unwrap();
        }
        stream.flush().unwrap();
        let mut answer = String::new();
        // Ends without an error only after TLS's own closing message.
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 413 "), "{version:?}: {answer}");
        assert!(answer.contains("\"body_too_large\""), "{version:?}: {answer}");
    }
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

/// A self-signed certificate for this name that says it is an authority, as `openssl req -x509`
/// creates by default. Returns it and its key in PEM format.
fn self_signed_authority(name: &str, year: i32) -> [String; 2] {
    let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.not_after = rcgen::date_time_ymd(year, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    [params.self_signed(&key).unwrap().pem(), key.serialize_pem()]
}

/// With `--ca-cert`, the service's certificate may be an authority, but only that one, and only
/// with the right name and dates.
#[test]
fn self_signed_authority_is_accepted_only_if_named() {
    let dir = Dir::new();
    let key = first_key(&dir.data());
    let write = |name: &str, pem: &str| {
        let path = dir.0.join(name);
        std::fs::write(&path, pem).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let other = write("other.pem", &self_signed_authority("127.0.0.1", 2100)[0]);
    for (name, year, reason) in [
        ("127.0.0.1", 2100, None),
        ("fleet.example", 2100, Some("not valid for name")),
        ("127.0.0.1", 2001, Some("expired")),
    ] {
        let [cert, private] = self_signed_authority(name, year);
        let (cert, private) = (write("cert.pem", &cert), write("key.pem", &private));
        let service = Running::start(&dir.data(), &["--tls-cert", &cert, "--tls-key", &private]);
        let cli = terminal::Cli { url: service.address.clone(), key: key.clone() };
        let named = cli.run_piped(&["summary", "--ca-cert", &cert]);
        match reason {
            None => assert_eq!(named.code, 0, "{}", named.err),
            Some(reason) => {
                assert_eq!(named.code, 1, "{name} {year}");
                assert!(named.err.contains(reason), "{}", named.err);
            }
        }
        for more in [&[][..], &["--ca-cert", &other]] {
            let refused = cli.run_piped(&[&["summary"], more].concat());
            assert_eq!(refused.code, 1, "{name} {year} {more:?}");
            assert!(refused.err.contains("--ca-cert"), "{}", refused.err);
        }
    }
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
