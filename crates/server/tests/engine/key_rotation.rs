//! Rotation of `orders.key` with real agents (`agent-client`): no agent and no order is lost, and a
//! retired or forged key has no effect.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use agent_client::{
    AgentClient, ClientError, ConnectOptions, EnrollOptions, HostKey, Identity, Pin, SyncCounter,
    nonce, public_keys, verify_order,
};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use server::app::App;
use service::secrets::Secrets;

use service::auth::orders_keys::untrusting_agents;
use tower::ServiceExt as _;
use vocab::Line;
use wire::agent::{Facts, Order, OrderResult, Outcome, SyncRequest, SyncResponse, orders_key_id};
use wire::v1::Activity;

use crate::agent::{Agent as OldAgent, facts};
use crate::support::{World, eventually};

async fn serve(router: Router) -> AgentClient {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    AgentClient::new(ConnectOptions { url: &url, pin: Pin::Plain, from: None }).unwrap()
}

pub(crate) async fn client_for(app: &App) -> AgentClient {
    serve(gateway::router(app.gateway())).await
}

/// A test agent that verifies and replaces keys like the real agent.
pub(crate) struct Agent {
    pub(crate) client: AgentClient,
    pub(crate) identity: Identity,
    sync_counter: SyncCounter,
    results: Vec<OrderResult>,
}

impl Agent {
    pub(crate) async fn join(link: &AgentClient, token: &str, hostname: &str) -> Agent {
        let facts = serde_json::from_value(facts(hostname)).unwrap();
        let options = EnrollOptions { facts, environment: None, tags: Vec::new() };
        let key = HostKey::generate();
        let response = link.enroll(&token.parse().unwrap(), &key, options).await.unwrap();
        let counter = SyncCounter::new(response.counter, nonce());
        let identity = Identity::new(key, response).unwrap();
        Agent { client: link.clone(), identity, sync_counter: counter, results: Vec::new() }
    }

    pub(crate) async fn sync(&mut self) -> Result<SyncResponse, ClientError> {
        let trusted_keys = self.identity.orders_keys.ids().into_iter().map(Line::from).collect();
        let known: Facts = serde_json::from_value(facts("web-1")).unwrap();
        let request = SyncRequest {
            boot_id: "boot-1".into(),
            counter: self.sync_counter.counter,
            nonce: self.sync_counter.nonce,
            hold_seconds: 0,
            facts: Some(Facts { trusted_keys, ..known }),
            installed: None,
            pending: None,
            scanned_at: None,
            activity: Activity::Idle,
            results: self.results.clone(),
            progress: Vec::new(),
            health: None,
        };
        let response = self.client.sync(&self.identity, &request).await?;
        self.sync_counter = SyncCounter::new(response.counter, nonce());
        self.results.retain(|result| !response.acknowledged.contains(&result.order_id));
        if let Some(keys) = public_keys(&response.orders_keys) {
            self.identity.orders_keys.replace(keys);
        }
        if let Some(tag) = &response.renewed_tag {
            self.identity.tag.replace(tag);
        }
        Ok(response)
    }

    /// Syncs until an order comes. Returns the key that signed it, and the order.
    pub(crate) async fn wait_for_order(&mut self) -> (String, Order) {
        for _ in 0..500 {
            let response = self.sync().await.unwrap();
            if let Some(envelope) = response.orders.first() {
                let order = verify_order(envelope, &self.identity, response.server_time).unwrap();
                return (envelope.key.clone(), order);
            }
            tokio::task::yield_now().await;
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("no order came");
    }

    pub(crate) async fn report_success(&mut self, order: &Order) {
        self.results.push(OrderResult {
            order_id: order.id,
            outcome: Outcome::Succeeded,
            failure_code: None,
            message: None,
            packages: Vec::new(),
            reboot_needed: false,
            reboot_seconds: None,
            exit: Some(0),
            set_aside: Vec::new(),
            restarted: Vec::new(),
            notes: Vec::new(),
            newer_available: Vec::new(),
            health: None,
            started_at: order.issued_at,
            finished_at: order.issued_at,
        });
        while !self.results.is_empty() {
            self.sync().await.unwrap();
        }
    }

    fn trusted_keys(&self) -> Vec<String> {
        self.identity.orders_keys.ids()
    }
}

async fn untrusting_agent_count(app: &App, key: &str) -> usize {
    untrusting_agents(&mut app.db.read().await.unwrap(), key).await.unwrap().count
}

fn key_ids(dir: &Path) -> (String, Option<String>) {
    let keys = Secrets::load(dir).unwrap();
    (keys.orders_key().id().to_owned(), keys.next_orders_key().map(|key| key.id().to_owned()))
}

/// Answers every sync in the name of the service, with a key that no agent knows.
async fn forge(State(signature): State<Option<String>>, _: Request) -> Response {
    let key = Ed25519KeyPair::from_seed_unchecked(&[9; 32]).unwrap();
    let public = key.public_key().as_ref();
    let body = json!({"counter": 7, "sync_seconds": 60, "orders_keys":
        [{"id": orders_key_id(public), "public_key": STANDARD.encode(public)}]});
    let mut response = Response::builder().status(200);
    if let Some(signature) = signature {
        response = response.header("fleetmend-signature", signature);
    }
    response.body(Body::from(body.to_string())).unwrap()
}

async fn key_rotation_during_a_batch_loses_nothing(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let client = client_for(&app).await;
    let mut web = Agent::join(&client, &token, "web-1").await;
    let mut away = Agent::join(&client, &token, "away-1").await;
    let mut old = OldAgent::join(&app, &token, "old-1").await;
    away.sync().await.unwrap();
    let (first, none) = key_ids(world.data_dir());
    assert_eq!(none, None);
    let servers = vec![web.identity.server_id, away.identity.server_id, old.id];
    let created = service::commands::batches::create(
        &app,
        world.new_rollout(servers, json!({"packages": ["bash"]})),
    );
    let batch = created.await.unwrap().id;
    let (key, begun) = web.wait_for_order().await;
    assert_eq!(key, first);

    // The service is restarted with a second key while the batch runs.
    engine.stop().await;
    app.db.close().await;
    Secrets::rotate_orders(world.data_dir()).unwrap();
    assert!(Secrets::rotate_orders(world.data_dir()).is_err(), "a new key is never replaced");
    let (same, second) = key_ids(world.data_dir());
    let second = second.unwrap();
    assert_eq!(same, first);
    let (app, engine) = world.leader("b").await;
    let client = client_for(&app).await;
    (web.client, away.client) = (client.clone(), client.clone());
    old.switch_to(&app);
    assert_eq!(untrusting_agent_count(&app, &second).await, 3);
    web.sync().await.unwrap();
    assert_eq!(web.trusted_keys(), [first.clone(), second.clone()]);
    let (key, again) = web.wait_for_order().await;
    assert_eq!(
        (key, again.id),
        (second.clone(), begun.id),
        "the same order, signed with the new key"
    );
    web.report_success(&begun).await;
    let late = Agent::join(&client, &token, "late-1").await;
    assert_eq!(late.trusted_keys(), [first.clone(), second.clone()]);
    // An agent that cannot change its key gets its order signed with the old one.
    let order = old.wait_for_order().await;
    old.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;

    // An agent that was offline in the meantime works as before, too.
    let left = untrusting_agents(&mut app.db.read().await.unwrap(), &second).await.unwrap();
    let names: Vec<_> = left.first.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.contains(&"old-1") && names.len() == left.count, "{left:?}");
    assert!(left.first.iter().any(|(_, id)| *id == away.identity.server_id), "{left:?}");
    assert!(!left.first.iter().any(|(_, id)| *id == web.identity.server_id), "{left:?}");
    let (_, order) = away.wait_for_order().await;
    away.report_success(&order).await;
    eventually("the batch ends", async || {
        let mut reader = app.db.read().await.unwrap();
        let row = store::rollouts::get(&mut reader, world.org, batch).await.unwrap();
        row.ended_at.is_some()
    })
    .await;
    engine.stop().await;
}

async fn retired_key_has_no_effect(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let client = client_for(&app).await;
    let mut web = Agent::join(&client, &token, "web-1").await;
    let mut away = Agent::join(&client, &token, "away-1").await;
    let old_app = app;
    Secrets::rotate_orders(world.data_dir()).unwrap();
    let app = world.app("b").await;
    let (first, second) = key_ids(world.data_dir());
    let second = second.unwrap();
    web.client = client_for(&app).await;
    web.sync().await.unwrap();
    web.sync().await.unwrap();
    assert_eq!(untrusting_agent_count(&app, &second).await, 1, "the agent that was offline");

    Secrets::retire_orders(world.data_dir()).unwrap();
    assert_eq!(key_ids(world.data_dir()), (second.clone(), None));
    let app = world.app("c").await;
    let client = client_for(&app).await;
    web.client = client.clone();
    web.sync().await.unwrap();
    assert_eq!(web.trusted_keys(), std::slice::from_ref(&second));
    // The old key can no longer sign a response for this agent.
    web.client = client_for(&old_app).await;
    assert_ne!(first, second);
    assert!(matches!(web.sync().await, Err(ClientError::Unverified { .. })));
    web.client = client.clone();
    web.sync().await.unwrap();
    // An agent that has only the old key does not trust the new one.
    away.client = client;
    assert!(matches!(away.sync().await, Err(ClientError::Unverified { .. })));
    assert_eq!(away.trusted_keys(), [first]);
}

async fn keys_in_forged_responses_are_ignored(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let client = client_for(&app).await;
    let mut web = Agent::join(&client, &token, "web-1").await;
    let before = web.trusted_keys();
    for signature in [None, Some("k AAAA".to_owned())] {
        web.client = serve(Router::new().fallback(forge).with_state(signature)).await;
        assert!(matches!(web.sync().await, Err(ClientError::Unverified { .. })));
        assert_eq!(web.trusted_keys(), before);
    }
    // Unsigned responses of a service that never signed are accepted, but not for keys.
    web.identity.signs_answers = false.into();
    web.client = serve(Router::new().fallback(forge).with_state(None)).await;
    let response: Value = serde_json::to_value(web.sync().await.unwrap()).unwrap();
    assert_eq!(response["orders_keys"], Value::Null);
    assert_eq!(web.trusted_keys(), before);
}

/// The genuine responses to syncs, captured and sent again.
#[derive(Clone)]
struct Recorder {
    service: Router,
    /// The last response; sent instead of forwarding the request if `replays`.
    last: Arc<Mutex<Option<(HeaderMap, Bytes)>>>,
    replays: Arc<AtomicBool>,
}

impl Recorder {
    fn new(service: Router) -> Recorder {
        Recorder { service, last: Arc::default(), replays: Arc::default() }
    }

    async fn answer(State(recorder): State<Recorder>, request: Request) -> Response {
        if !recorder.replays.load(Ordering::SeqCst) {
            let response = recorder.service.clone().oneshot(request).await.unwrap();
            let (parts, body) = response.into_parts();
            let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
            *recorder.last.lock().unwrap() = Some((parts.headers.clone(), body.clone()));
            return Response::from_parts(parts, Body::from(body));
        }
        let (headers, body) = recorder.last.lock().unwrap().clone().unwrap();
        let mut response = Response::new(Body::from(body));
        *response.headers_mut() = headers;
        response
    }
}

/// A captured announcement of a key that was retired since, and that the attacker has.
async fn replayed_key_announcement_is_ignored(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&client_for(&app).await, &token, "web-1").await;
    let first = web.trusted_keys();
    Secrets::rotate_orders(world.data_dir()).unwrap();
    let app = world.app("b").await;
    let recorder = Recorder::new(gateway::router(app.gateway()));
    web.client = serve(Router::new().fallback(Recorder::answer).with_state(recorder.clone())).await;
    let announced = web.sync().await.unwrap();
    assert_eq!(announced.orders_keys.len(), 2);
    let during = web.trusted_keys();
    assert_eq!(during.len(), 2);
    let captured = recorder.clone();
    captured.replays.store(true, Ordering::SeqCst);
    // The signature covers the nonce of the request that it responds to.
    assert!(matches!(web.sync().await, Err(ClientError::Unverified { .. })));

    let through_attacker = web.client.clone();
    web.client = client_for(&app).await;
    web.sync().await.unwrap();
    Secrets::retire_orders(world.data_dir()).unwrap();
    let app = world.app("c").await;
    web.client = client_for(&app).await;
    web.sync().await.unwrap();
    let after = web.trusted_keys();
    assert_eq!(after, during[1..]);
    assert_ne!(after, first);
    web.client = through_attacker;
    assert!(matches!(web.sync().await, Err(ClientError::Unverified { .. })));
    assert_eq!(web.trusted_keys(), after, "the retired key does not come back");
}

/// An agent that is offline blocks the end of a rotation. If it is ended by force, twice, the agent
/// trusts none of the later keys, and nothing that they sign.
async fn agent_that_missed_two_forced_rotations_trusts_neither_key(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let client = client_for(&app).await;
    let mut away = Agent::join(&client, &token, "away-1").await;
    let mut web = Agent::join(&client, &token, "web-1").await;
    let first = away.trusted_keys();
    for name in ["b", "c"] {
        Secrets::rotate_orders(world.data_dir()).unwrap();
        let next = key_ids(world.data_dir()).1.unwrap();
        let app = world.app(name).await;
        web.client = client_for(&app).await;
        web.sync().await.unwrap();
        web.sync().await.unwrap();
        let left = untrusting_agents(&mut app.db.read().await.unwrap(), &next).await.unwrap();
        let names: Vec<_> = left.first.iter().map(|(name, _)| name.as_str()).collect();
        // Without `--force`, `fleetmend secrets retire` refuses and names this agent.
        assert_eq!(names, ["away-1"], "{left:?}");
        Secrets::retire_orders(world.data_dir()).unwrap();
    }
    let app = world.app("d").await;
    let client = client_for(&app).await;
    web.client = client.clone();
    web.sync().await.unwrap();
    assert_eq!(web.trusted_keys(), [key_ids(world.data_dir()).0]);
    away.client = client.clone();
    for _ in 0..2 {
        assert!(matches!(away.sync().await, Err(ClientError::Unverified { .. })));
        assert_eq!(away.trusted_keys(), first);
    }
    // It can be enrolled again.
    let again = Agent::join(&client, &token, "away-1").await;
    assert_eq!(again.trusted_keys(), web.trusted_keys());
}

testkit::both!(
    crate::support:
    key_rotation_during_a_batch_loses_nothing,
    retired_key_has_no_effect,
    replayed_key_announcement_is_ignored,
    agent_that_missed_two_forced_rotations_trusts_neither_key,
    keys_in_forged_responses_are_ignored,
);
