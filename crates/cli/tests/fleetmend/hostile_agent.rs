//! An agent that puts escape sequences into every text it can send must not control the operator's
//! terminal.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use vocab::terminal::is_unsafe;
use vocab::{Digest, Installed, Pending, listing};

use crate::operator::{Operator, POLL_INTERVAL};
use crate::support::{Dir, Running, first_key};
use crate::terminal::{Cli, CommandOutput};

/// Sets the title, rings the bell, clears the screen in two ways, and reverses the text direction.
const ATTACK: &str = "\x1b]0;owned\x07\x1b[2J\u{9b}2J\u{7f}\u{202e}\u{2066}\r";
/// Allowed in a package name: control characters are rejected there.
const REVERSED: &str = "evil\u{202e}\u{2066}";

/// An agent whose requests the test writes one by one.
struct Agent {
    http: reqwest::Client,
    url: String,
    pair: Ed25519KeyPair,
    id: String,
    tag: String,
    counter: u64,
    nonce: u64,
}

impl Agent {
    async fn join(url: &str, token: &str) -> Agent {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let http = reqwest::Client::new();
        let body = json!({"token": token, "public_key": STANDARD.encode(pair.public_key()),
            "facts": facts(), "tags": ["web"]});
        let response =
            http.post(format!("{url}/agent/v1/enroll")).json(&body).send().await.unwrap();
        assert!(response.status().is_success(), "{}", response.text().await.unwrap());
        let response: Value = response.json().await.unwrap();
        let text = |name: &str| response[name].as_str().unwrap().to_owned();
        let counter = response["counter"].as_u64().unwrap();
        let (id, tag) = (text("server_id"), text("tag"));
        Agent { http, url: url.to_owned(), pair, id, tag, counter, nonce: 1 }
    }

    async fn send(&self, method: reqwest::Method, path: &str, body: Vec<u8>) -> Vec<u8> {
        let signed = gateway::signed_text(method.as_str(), path, &body);
        let credential = format!(
            "Agent id={},key={},tag={},sig={}",
            self.id,
            STANDARD.encode(self.pair.public_key()),
            self.tag,
            STANDARD.encode(self.pair.sign(signed.as_bytes()))
        );
        let request = self.http.request(method, format!("{}{path}", self.url));
        let response = request.header("authorization", credential).body(body).send().await.unwrap();
        let (status, body) = (response.status(), response.bytes().await.unwrap());
        assert!(status.is_success(), "{path}: {}", String::from_utf8_lossy(&body));
        body.to_vec()
    }

    async fn sync(&mut self, more: Value) -> Value {
        let mut body = json!({"boot_id": "boot-1", "counter": self.counter, "nonce": self.nonce,
            "hold_seconds": 0, "facts": facts()});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let response =
            self.send(reqwest::Method::POST, "/agent/v1/sync", body.to_string().into()).await;
        let response: Value = serde_json::from_slice(&response).unwrap();
        self.counter = response["counter"].as_u64().unwrap();
        self.nonce += 1;
        response
    }

    async fn uploads(&self, kind: &str, bytes: Vec<u8>) {
        let path = format!("/agent/v1/listings/{kind}/{}", Digest::compute(&bytes));
        self.send(reqwest::Method::PUT, &path, bytes).await;
    }
}

fn facts() -> Value {
    json!({"hostname": "evil-1", "os": {"id": "debian", "version": "12", "name": "Debian 12"},
        "kernel": format!("6.1.0{ATTACK}"), "arch": format!("x86_64{ATTACK}"), "package_manager": "apt",
        "agent_version": format!("0.1.0{ATTACK}"), "reboot_required": true,
        "reboot_reasons": [format!("kernel{ATTACK}")], "other_updaters": [format!("updater{ATTACK}")],
        "old_code": [{"package": format!("pkg{ATTACK}"), "unit": format!("a.service{ATTACK}"),
            "process": format!("sshd{ATTACK}")}]})
}

/// Fails if the terminal received anything but text and the command's own colors and cursor
/// movements.
#[track_caller]
fn assert_harmless(args: &[&str], output: &CommandOutput) {
    let mut rest = output.out.as_str();
    let mut text = String::new();
    while let Some((before, after)) = rest.split_once("\x1b[") {
        text += before;
        let end = after.find(|c: char| c.is_ascii_alphabetic()).unwrap();
        let sequence = &after[..=end];
        let own = ["0m", "1m", "2m", "31m", "1;31m", "32m", "33m", "34m", "1G", "K", "J"];
        let up = sequence.strip_suffix('A').is_some_and(|lines| lines.parse::<u16>().is_ok());
        assert!(own.contains(&sequence) || up, "{args:?} sent {sequence:?}: {:?}", output.out);
        rest = &after[end + 1..];
    }
    text += rest;
    let bad: Vec<char> =
        text.chars().filter(|c| is_unsafe(*c) && *c != '\n' && *c != '\t').collect();
    assert!(bad.is_empty(), "{args:?} sent {bad:?}: {text:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn text_from_agents_cannot_control_the_terminal() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = Dir::new();
    let key = first_key(&dir.data());
    let service = Running::start(&dir.data(), &[]);
    let operator = Operator::new(&service.address, &key);
    let token = operator.post("/v1/enrollment-tokens", json!({"name": "fleet"})).await;
    let mut agent = Agent::join(&service.address, token["token"].as_str().unwrap()).await;

    let package = format!("{REVERSED}pkg");
    let installed = listing::encode(&[Installed::new(&package, REVERSED, REVERSED)]);
    let mut update = Pending::new(&package, REVERSED, REVERSED, &format!("2{REVERSED}"));
    (update.security, update.advisories) = (true, vec![format!("DSA-1{REVERSED}")]);
    update.cves = vec![format!("CVE-2026-0001{REVERSED}"), "CVE-2026-0002".to_owned()];
    let pending = listing::encode(&[update]);
    let scan = json!({"installed": Digest::compute(&installed), "pending": Digest::compute(&pending),
        "scanned_at": jiff::Timestamp::UNIX_EPOCH});
    let wants = |response: &Value| response["wanted"].as_array().is_some_and(|all| !all.is_empty());
    while wants(&agent.sync(scan.clone()).await) {
        agent.uploads("packages", installed.clone()).await;
        agent.uploads("updates", pending.clone()).await;
    }
    let cli = Cli { url: service.address.clone(), key: key.clone() };
    let batch =
        operator.post("/v1/batches", json!({"server_ids": [agent.id], "packages": []})).await;
    let batch = batch["id"].as_str().unwrap().to_owned();
    let order = loop {
        let response = agent.sync(scan.clone()).await;
        if let Some(envelope) = response["orders"].get(0) {
            let order: Value = serde_json::from_str(envelope["order"].as_str().unwrap()).unwrap();
            break order["id"].as_str().unwrap().to_owned();
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    let now = "2026-11-15T04:00:00Z";
    let log = format!("Reading package lists…{ATTACK}\nline\r\n\u{feff}{ATTACK}\n");
    let path = format!("/agent/v1/orders/{order}/log?offset=0");
    agent.send(reqwest::Method::POST, &path, [log.as_bytes(), b"\x9b2J\xff\n"].concat()).await;
    let progress = json!([{"order_id": order, "stage": "installing", "at": now,
        "message": format!("installing{ATTACK}")}]);
    agent.sync(json!({"progress": progress})).await;
    let batches = ["batches", "show", &batch];
    assert_harmless(&batches, &cli.run_on_terminal(200, &batches, ""));
    let result = json!([{"order_id": order, "outcome": "failed", "failure_code": "package_manager_failed",
        "message": format!("dpkg failed{ATTACK}"),
        "packages": [{"name": format!("p{ATTACK}"), "arch": ATTACK, "from": ATTACK, "to": ATTACK}],
        "set_aside": [format!("/etc/x{ATTACK}")], "restarted": [format!("y{ATTACK}")],
        "notes": [format!("note{ATTACK}")], "started_at": now, "finished_at": now}]);
    agent.sync(json!({"results": result})).await;
    operator.until_ended(&batch).await;

    let commands: [&[&str]; 20] = [
        &["summary"],
        &["servers", "list"],
        &["servers", "show", "evil-1"],
        &["patches", "list"],
        &["patches", "show", &package],
        &["cves", "list"],
        &["cves", "show", "CVE-2026-0002"],
        &["suppressions", "list"],
        &["batches", "list"],
        &["batches", "show", &batch],
        &["batches", "watch", &batch],
        &["batches", "log", &batch, "evil-1"],
        &["batches", "log", &batch, ATTACK],
        &["schedules", "list"],
        &["tokens", "list"],
        &["keys", "list"],
        &["servers", "patch", "evil-1", "--all-updates"],
        &["servers", "show", ATTACK],
        &["patches", "show", ATTACK],
        &["batches", "show", ATTACK],
    ];
    for args in commands {
        for args in [args.to_vec(), [args, &["--json"]].concat()] {
            let output = cli.run_on_terminal(200, &args, "n\n");
            assert_harmless(&args, &output);
        }
    }
    let shown = cli.run_on_terminal(200, &["batches", "log", &batch, "evil-1"], "").out;
    assert!(shown.contains("Reading package lists…\\x1b]0;owned\\x07"), "{shown}");
    // A file or a program gets the log unchanged.
    let piped = cli.run_ok(&["batches", "log", &batch, "evil-1"]);
    assert!(piped.starts_with(&log), "{piped:?}");
}

#[test]
fn server_responses_cannot_control_the_terminal() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answers = std::thread::spawn(move || {
        for status in ["403 Forbidden", "500 Internal Server Error", "200 OK"] {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4_096]).unwrap();
            let body = json!({"type": "/docs#x", "request_id": ATTACK, "status": 403, "code": format!("x{ATTACK}"), "title": ATTACK, "detail": ATTACK});
            let body = format!("{ATTACK}{body}");
            let body = if status.starts_with('2') { body } else { body[ATTACK.len()..].to_owned() };
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/problem+json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all((head + &body).as_bytes()).unwrap();
        }
    });
    let cli = Cli { url, key: "fmk_x".to_owned() };
    for _ in 0..3 {
        let output = cli.run_on_terminal(200, &["keys", "list"], "");
        assert_ne!(output.code, 0);
        assert_harmless(&["keys", "list"], &output);
    }
    drop(answers);
}
