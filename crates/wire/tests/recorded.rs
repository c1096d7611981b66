//! Reads messages that the agent and the server of version 0.1.0 exchanged (`recorded/0.1.0.json`).
//! Every later version must be able to read them. They were recorded between the two programs on a
//! Debian host; the token, the host name and the kernel release were replaced. Never change a
//! recording; add a new one for a version whose messages differ.

#![expect(clippy::unwrap_used, reason = "a recording that cannot be read is a failure")]

use std::collections::BTreeSet;
use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use wire::agent::{EnrollRequest, EnrollResponse, Order, SyncRequest, SyncResponse, Work};

/// Fields that version 0.1.0 cannot deserialize a message without. A later version may require
/// fewer of them. It must not require others, because the previous version may omit them.
const REQUIRED: [&str; 32] = [
    "enroll request: facts",
    "enroll request: facts.hostname",
    "enroll request: facts.os",
    "enroll request: facts.os.id",
    "enroll request: facts.package_manager",
    "enroll request: public_key",
    "enroll request: token",
    "enroll answer: counter",
    "enroll answer: orders_key",
    "enroll answer: orders_keys.id",
    "enroll answer: orders_keys.public_key",
    "enroll answer: server_id",
    "enroll answer: sync_seconds",
    "enroll answer: tag",
    "sync request: boot_id",
    "sync request: counter",
    "sync request: facts.hostname",
    "sync request: facts.os",
    "sync request: facts.os.id",
    "sync request: facts.package_manager",
    "sync request: progress.at",
    "sync request: progress.order_id",
    "sync request: results.finished_at",
    "sync request: results.order_id",
    "sync request: results.outcome",
    "sync request: results.packages.name",
    "sync request: results.started_at",
    "sync answer: counter",
    "sync answer: orders.key",
    "sync answer: orders.order",
    "sync answer: orders.signature",
    "sync answer: sync_seconds",
];

fn recording() -> Value {
    serde_json::from_str(include_str!("recorded/0.1.0.json")).unwrap()
}

/// Calls `change` with every object in a value and the path of field names that leads to it.
fn each_object(value: &mut Value, path: &str, change: &mut dyn FnMut(&mut Value, &str)) {
    match value {
        Value::Object(_) => {
            for (name, inner) in value.as_object_mut().unwrap() {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                each_object(inner, &path, change);
            }
            // Last, so that objects added by `change` are not visited.
            change(value, path);
        }
        Value::Array(values) => {
            values.iter_mut().for_each(|value| each_object(value, path, change));
        }
        _ => {}
    }
}

/// Whether `large` contains everything in `small`.
fn contains(large: &Value, small: &Value) -> bool {
    match (large, small) {
        (Value::Object(large), Value::Object(small)) => {
            small.iter().all(|(name, value)| large.get(name).is_some_and(|l| contains(l, value)))
        }
        (Value::Array(large), Value::Array(small)) => {
            large.len() == small.len() && large.iter().zip(small).all(|(l, s)| contains(l, s))
        }
        _ => large == small,
    }
}

/// Deserializes a message unchanged, with unknown fields added, and with each field removed in
/// turn. Returns the fields that it requires.
fn required_fields<T: DeserializeOwned + Serialize + PartialEq + Debug>(
    recorded: &Value,
) -> Vec<String> {
    let plain: T = serde_json::from_value(recorded.clone()).unwrap();
    let again = serde_json::to_value(&plain).unwrap();
    assert!(contains(&again, recorded), "fields were lost:\n{recorded}\n{again}");
    let mut more = recorded.clone();
    each_object(&mut more, "", &mut |object, _| {
        object["from_a_newer_version"] = json!({"of": ["any", 1, null]});
    });
    assert_eq!(
        serde_json::from_value::<T>(more).unwrap(),
        plain,
        "an unknown field changed the result"
    );
    let mut paths = BTreeSet::new();
    each_object(&mut recorded.clone(), "", &mut |object, path| {
        let names = object.as_object().unwrap().keys();
        paths.extend(names.map(|name| (path.to_owned(), name.clone())));
    });
    let mut required = Vec::new();
    for (at, name) in paths {
        let mut less = recorded.clone();
        each_object(&mut less, "", &mut |object, path| {
            if path == at {
                object.as_object_mut().unwrap().remove(&name);
            }
        });
        if serde_json::from_value::<T>(less).is_err() {
            required.push(if at.is_empty() { name } else { format!("{at}.{name}") });
        }
    }
    required
}

#[test]
fn messages_of_version_0_1_0_are_readable() {
    let recording = recording();
    let mut required = BTreeSet::new();
    for (step, exchange) in recording["exchanges"].as_object().unwrap() {
        let (request, answer) = (&exchange["request"], &exchange["answer"]);
        let (kind, of_request, of_answer) = match step.as_str() {
            "enroll" => (
                "enroll",
                required_fields::<EnrollRequest>(request),
                required_fields::<EnrollResponse>(answer),
            ),
            _ => (
                "sync",
                required_fields::<SyncRequest>(request),
                required_fields::<SyncResponse>(answer),
            ),
        };
        required.extend(of_request.iter().map(|field| format!("{kind} request: {field}")));
        required.extend(of_answer.iter().map(|field| format!("{kind} answer: {field}")));
    }
    let known: BTreeSet<String> = REQUIRED.map(str::to_owned).into();
    let new: Vec<_> = required.difference(&known).collect();
    assert!(new.is_empty(), "version 0.1.0 may omit these fields: {new:?}");
}

#[test]
fn orders_of_version_0_1_0_are_readable() {
    let mut orders = 0;
    for exchange in recording()["exchanges"].as_object().unwrap().values() {
        for envelope in exchange["answer"]["orders"].as_array().into_iter().flatten() {
            orders += 1;
            let order = serde_json::from_str(envelope["order"].as_str().unwrap()).unwrap();
            let required = required_fields::<Order>(&order);
            assert_eq!(required, ["expires_at", "id", "issued_at", "server_id", "work"]);
            // Every omitted field has the most restrictive default, or the order is rejected.
            let mut less: Value = order.clone();
            for name in ["exclude", "security_only", "security_packages", "reboot", "boot_id"] {
                less["work"].as_object_mut().unwrap().remove(name);
            }
            let less = serde_json::from_value::<Order>(less).unwrap();
            let work = serde_json::to_value(less).unwrap()["work"].clone();
            let kind = &order["work"]["kind"];
            assert_eq!((&work["kind"], &work["packages"]), (kind, &json!(["hello"])));
            assert_eq!(work["reboot"], "never");
        }
    }
    assert_eq!(orders, 3);
}

/// What version 0.1.0 does not know is absent in both directions: its service never asks for the
/// health of a host, and what its agent reports is not taken for a healthy host.
#[test]
fn version_0_1_0_neither_asks_for_health_nor_reports_it() {
    let mut results = 0;
    for (step, exchange) in recording()["exchanges"].as_object().unwrap() {
        if step == "enroll" {
            continue;
        }
        let request: SyncRequest = serde_json::from_value(exchange["request"].clone()).unwrap();
        let response: SyncResponse = serde_json::from_value(exchange["answer"].clone()).unwrap();
        assert_eq!((request.health, response.watch_health_until), (None, None));
        for result in request.results {
            assert_eq!((result.health, result.newer_available.len()), (None, 0));
            results += 1;
        }
        for envelope in response.orders {
            let order: Order = serde_json::from_str(&envelope.order).unwrap();
            let (Work::Install(install) | Work::Plan(install)) = &order.work else { continue };
            assert!(!install.health);
        }
    }
    assert!(results > 0);
}
