//! Replays requests that the agent of version 0.1.0 sent (`crates/wire/tests/recorded.rs`):
//! unchanged, with fields of a newer version, and without every field that an older version may
//! omit.

use axum::body::Body;
use axum::http::Request;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use server::app::App;
use service::clock::random_bytes;

use crate::agent::{Agent, public_key, send};
use crate::rollouts::wait_for_state;

use crate::support::World;

/// How a recorded request is changed.
#[derive(Debug, Clone, Copy)]
enum Variation {
    Recorded,
    Newer,
    Older,
}

/// Optional fields, by the names that may precede them.
const OPTIONAL: [(&str, &[&str]); 4] = [
    ("", &["nonce", "hold_seconds", "activity", "environment", "tags"]),
    (
        "facts",
        &[
            "kernel",
            "arch",
            "agent_version",
            "reboot_required",
            "reboot_reasons",
            "foreign_kernel",
            "limits",
            "trusted_keys",
        ],
    ),
    ("results", &["message", "packages", "reboot_needed", "exit", "notes"]),
    ("progress", &["stage"]),
];

fn add_fields(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(add_fields);
            fields.insert("from_a_newer_agent".to_owned(), json!({"any": [1, null]}));
        }
        Value::Array(values) => values.iter_mut().for_each(add_fields),
        _ => {}
    }
}

fn remove_fields(request: &mut Value) {
    for (place, names) in OPTIONAL {
        let objects: Vec<&mut Value> = match place {
            "" => vec![&mut *request],
            _ => match request.get_mut(place) {
                Some(Value::Array(values)) => values.iter_mut().collect(),
                Some(value) => vec![value],
                None => Vec::new(),
            },
        };
        for object in objects {
            let fields = object.as_object_mut().unwrap();
            fields.retain(|name, _| !names.contains(&name.as_str()));
        }
    }
}

/// A recorded request in another form.
fn request(recording: &Value, variation: Variation, step: &str) -> Value {
    let mut request = recording["exchanges"][step]["request"].clone();
    match variation {
        Variation::Recorded => {}
        Variation::Newer => add_fields(&mut request),
        Variation::Older => remove_fields(&mut request),
    }
    request
}

/// Every field that an agent of version 0.1.0 received exists, with the same type.
#[track_caller]
fn assert_contains_recorded_response(recording: &Value, step: &str, response: &Value) {
    for (name, value) in recording["exchanges"][step]["answer"].as_object().unwrap() {
        let same = std::mem::discriminant(value) == std::mem::discriminant(&response[name]);
        assert!(same, "{step}: {name}: {value} was {}", response[name]);
    }
}

/// The agent of version 0.1.0, replayed.
struct RecordedAgent {
    recording: Value,
    variation: Variation,
    agent: Agent,
}

impl RecordedAgent {
    async fn join(app: &App, token: &str, variation: Variation) -> RecordedAgent {
        let recording = include_str!("../../../wire/tests/recorded/0.1.0.json");
        let recording: Value = serde_json::from_str(recording).unwrap();
        let seed = random_bytes();
        let mut body = request(&recording, variation, "enroll");
        body["token"] = json!(token);
        body["public_key"] = json!(STANDARD.encode(public_key(&seed)));
        let join = Request::post("/agent/v1/enroll").body(Body::from(body.to_string())).unwrap();
        let response = send(&gateway::router(app.gateway()), join).await.unwrap();
        let response: Value = serde_json::from_slice(&response).unwrap();
        assert_contains_recorded_response(&recording, "enroll", &response);
        let agent = Agent::from_enrollment(app, seed, serde_json::from_value(response).unwrap());
        RecordedAgent { recording, variation, agent }
    }

    /// Sends a recorded sync, with this order id if it is about an order.
    async fn sync(&mut self, step: &str, order: Option<&str>) -> Value {
        let mut body = request(&self.recording, self.variation, step);
        body["counter"] = json!(self.agent.counter);
        body["hold_seconds"] = json!(0);
        for part in ["results", "progress"] {
            for about in body.get_mut(part).and_then(Value::as_array_mut).into_iter().flatten() {
                about["order_id"] = json!(order.unwrap());
            }
        }
        let body = body.to_string().into_bytes();
        let request = self.agent.signed("POST", "/agent/v1/sync", body);
        let response: Value =
            serde_json::from_slice(&send(&self.agent.router, request).await.unwrap()).unwrap();
        self.agent.counter = response["counter"].as_u64().unwrap();
        response
    }

    /// Sends a recorded package set.
    async fn upload(&self, kind: &str) {
        let listing = &self.recording["listings"][kind];
        let body = STANDARD.decode(listing["body_base64"].as_str().unwrap()).unwrap();
        let mut request = self.agent.signed("PUT", listing["path"].as_str().unwrap(), body);
        request.headers_mut().insert("content-encoding", "zstd".parse().unwrap());
        send(&self.agent.router, request).await.unwrap();
    }

    /// Syncs until an order comes, and returns its id.
    async fn wait_for_order(&mut self, step: &str) -> String {
        for _ in 0..2_000 {
            let response = self.sync(step, None).await;
            if let Some(envelope) = response["orders"].get(0) {
                assert_contains_recorded_response(&self.recording, step, &response);
                let order: Value =
                    serde_json::from_str(envelope["order"].as_str().unwrap()).unwrap();
                return order["id"].as_str().unwrap().to_owned();
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("no order came");
    }
}

async fn agent_of_version_0_1_0_is_understood(world: &World) {
    let (app, engine) = world.leader("a").await;
    for form in [Variation::Recorded, Variation::Newer, Variation::Older] {
        let token = world.token(&app).await;
        let mut old = RecordedAgent::join(&app, &token, form).await;
        let response = old.sync("facts", None).await;
        assert_contains_recorded_response(&old.recording, "facts", &response);
        old.sync("scanned", None).await;
        // Package sets are shared, so only the first of these hosts is asked for them.
        if let Variation::Recorded = form {
            old.upload("updates").await;
            old.upload("packages").await;
        }
        let order = world.new_rollout(vec![old.agent.id], json!({}));
        let created = service::commands::batches::create(&app, order).await.unwrap();
        let id = old.wait_for_order("install_order").await;
        old.sync("plan_progress", Some(&id)).await;
        let response = old.sync("install_result", Some(&id)).await;
        assert_contains_recorded_response(&old.recording, "install_result", &response);
        assert_eq!(response["acknowledged"], json!([id]), "{form:?}");
        wait_for_state(&app, world, created.id, "succeeded: succeeded").await;
        let mut reader = app.db.read().await.unwrap();
        let row = store::servers::get(&mut reader, world.org, old.agent.id).await.unwrap();
        drop(reader);
        assert!(row.package_set.is_some() && row.update_set.is_some(), "{form:?}");
    }
    engine.stop().await;
}

testkit::both!(
    crate::support:
    agent_of_version_0_1_0_is_understood,
);
