//! A proxy without any key between real agents (`agent-client`) and the service: nothing that it
//! changes, repeats, swaps or forges takes effect, and the agent continues afterwards.

use std::sync::{Arc, Mutex};

use agent_client::{
    AgentClient, ClientError, ConnectOptions, EnrollOptions, HostKey, Identity, ListingKind, Pin,
    SyncCounter, nonce, verify_order,
};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};
use server::app::App;

use vocab::{Digest, TaskId};
use wire::agent::{SyncRequest, SyncResponse};
use wire::v1::Activity;

use crate::agent::facts;
use crate::support::{World, eventually};

/// A change that the proxy makes to a response.
type ResponseChange = Box<dyn FnOnce(&mut ProxiedResponse) + Send>;

#[derive(Debug, Clone, Default)]
struct ProxiedResponse {
    status: u16,
    signature: Option<String>,
    body: Vec<u8>,
}

impl ProxiedResponse {
    /// Sets a field of the body, whether it exists or not.
    fn set(&mut self, field: &str, value: Value) {
        let mut body: Value = serde_json::from_slice(&self.body).unwrap();
        body[field] = value;
        self.body = body.to_string().into_bytes();
    }
}

#[derive(Clone)]
struct Proxy {
    upstream: String,
    client: reqwest::Client,
    state: Arc<Mutex<ProxyState>>,
}

#[derive(Default)]
struct ProxyState {
    /// For the next response.
    change: Option<ResponseChange>,
    /// Whether the next request arrives with another body or nonce.
    other_body: bool,
    other_nonce: bool,
    /// The last unmodified response of the service.
    last: ProxiedResponse,
}

async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

impl Proxy {
    async fn in_front_of(app: &App) -> (Proxy, AgentClient) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let upstream = serve(gateway::router(app.gateway())).await;
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let proxy = Proxy { upstream, client, state: Arc::default() };
        let url = serve(Router::new().fallback(forward).with_state(proxy.clone())).await;
        (
            proxy,
            AgentClient::new(ConnectOptions { url: &url, pin: Pin::Plain, from: None }).unwrap(),
        )
    }

    fn change_next(&self, change: impl FnOnce(&mut ProxiedResponse) + Send + 'static) {
        self.state.lock().unwrap().change = Some(Box::new(change));
    }

    fn last(&self) -> ProxiedResponse {
        self.state.lock().unwrap().last.clone()
    }
}

async fn forward(State(proxy): State<Proxy>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let mut body = axum::body::to_bytes(body, usize::MAX).await.unwrap().to_vec();
    {
        let mut state = proxy.state.lock().unwrap();
        if std::mem::take(&mut state.other_body) {
            body.push(b' ');
        }
        if std::mem::take(&mut state.other_nonce) {
            parts.headers.insert("fleetmend-nonce", "AAAAAAAAAAAAAAAAAAAAAA==".parse().unwrap());
        }
    }
    parts.headers.remove("host");
    parts.headers.remove("content-length");
    let path = parts.uri.path_and_query().unwrap().as_str();
    let request = proxy.client.request(parts.method, format!("{}{path}", proxy.upstream));
    let answer = request.headers(parts.headers).body(body).send().await.unwrap();
    let signature = answer.headers().get("fleetmend-signature");
    let mut answer = ProxiedResponse {
        status: answer.status().as_u16(),
        signature: signature.map(|value| value.to_str().unwrap().to_owned()),
        body: answer.bytes().await.unwrap().to_vec(),
    };
    let mut state = proxy.state.lock().unwrap();
    state.last = answer.clone();
    if let Some(change) = state.change.take() {
        change(&mut answer);
    }
    let mut response = Response::builder().status(answer.status);
    if let Some(signature) = answer.signature {
        response = response.header("fleetmend-signature", signature);
    }
    response.body(Body::from(answer.body)).unwrap()
}

/// An agent that syncs as the real one does.
struct Agent {
    client: AgentClient,
    identity: Identity,
    sync_counter: SyncCounter,
}

impl Agent {
    async fn join(link: &AgentClient, token: &str, hostname: &str) -> Agent {
        let options = EnrollOptions {
            facts: serde_json::from_value(facts(hostname)).unwrap(),
            environment: None,
            tags: Vec::new(),
        };
        let key = HostKey::generate();
        let response = link.enroll(&token.parse().unwrap(), &key, options).await.unwrap();
        assert!(response.signs_answers);
        let counter = SyncCounter::new(response.counter, nonce());
        Agent {
            client: link.clone(),
            identity: Identity::new(key, response).unwrap(),
            sync_counter: counter,
        }
    }

    async fn sync(&mut self) -> Result<SyncResponse, ClientError> {
        let request = SyncRequest {
            boot_id: "boot-1".into(),
            counter: self.sync_counter.counter,
            nonce: self.sync_counter.nonce,
            hold_seconds: 0,
            facts: None,
            installed: None,
            pending: None,
            scanned_at: None,
            activity: Activity::Idle,
            results: Vec::new(),
            progress: Vec::new(),
            health: None,
        };
        let response = self.client.sync(&self.identity, &request).await?;
        self.sync_counter = SyncCounter::new(response.counter, nonce());
        Ok(response)
    }
}

fn is_unverified<T>(response: &Result<T, ClientError>) -> bool {
    matches!(response, Err(ClientError::Unverified { .. }))
}

async fn forged_responses_have_no_effect(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let (proxy, link) = Proxy::in_front_of(&app).await;
    let mut web = Agent::join(&link, &token, "web-1").await;
    let mut other = Agent::join(&link, &token, "web-2").await;
    other.sync().await.unwrap();
    let of_other = proxy.last();

    // An order is on its way when the proxy holds the response back and the operator cancels.
    let options = json!({"packages": ["bash"]});
    let created = service::commands::batches::create(
        &app,
        world.new_rollout(vec![web.identity.server_id], options),
    );
    let created = created.await.unwrap();
    eventually("a response contains the order", async || {
        !web.sync().await.unwrap().orders.is_empty()
    })
    .await;
    let with_order = proxy.last();
    let order = serde_json::from_slice::<Value>(&with_order.body).unwrap()["orders"].clone();
    let id = created.id;
    service::commands::batches::cancel(&app, &world.admin(), world.org, id).await.unwrap();
    world.minutes(11);
    eventually("the order is no longer sent", async || web.sync().await.unwrap().orders.is_empty())
        .await;
    let then = world.now() - jiff::SignedDuration::from_mins(11);

    let task = TaskId::new(world.now(), 7);
    let field = |name: &'static str, value: Value| -> (&'static str, ResponseChange) {
        (name, Box::new(move |answer| answer.set(name, value)))
    };
    let attacks: Vec<(&str, ResponseChange)> = vec![
        field("counter", json!(1_000_000)),
        field("orders", order.clone()),
        field("wanted", json!([Digest::compute(b"x")])),
        field("wants_facts", json!(true)),
        field("acknowledged", json!([task])),
        field("withdrawn", json!([task])),
        field("sync_seconds", json!(3_600)),
        field("server_time", json!(then)),
        field("from_a_newer_server", json!(1)),
        (
            "order and time",
            Box::new(move |answer| {
                answer.set("orders", order);
                answer.set("server_time", json!(then));
            }),
        ),
        ("replayed response", Box::new(move |answer| *answer = with_order)),
        ("response to another agent", Box::new(move |answer| *answer = of_other)),
        ("no signature", Box::new(|answer| answer.signature = None)),
        ("invalid Base64", Box::new(|answer| answer.signature = Some("k !".to_owned()))),
        ("410 with a good signature", Box::new(|answer| answer.status = 410)),
        ("201 with a good signature", Box::new(|answer| answer.status = 201)),
        (
            "410 without one",
            Box::new(|answer| {
                *answer = ProxiedResponse { status: 410, body: b"{}".to_vec(), signature: None };
            }),
        ),
        (
            "401 without one",
            Box::new(|answer| {
                *answer = ProxiedResponse { status: 401, body: b"{}".to_vec(), signature: None };
            }),
        ),
        ("empty", Box::new(|answer| answer.body.clear())),
    ];
    for (name, change) in attacks {
        proxy.change_next(change);
        let turn = web.sync_counter;
        let answer = web.sync().await;
        assert!(is_unverified(&answer), "{name}: {answer:?}");
        assert_eq!(web.sync_counter, turn);
        // A retry of the sync is answered as if nothing had happened.
        let good = web.sync().await.unwrap();
        assert!(good.orders.is_empty() && good.counter <= turn.counter + 1, "{name}: {good:?}");
    }
    // A delayed response is not valid for a retry of its request.
    proxy.change_next(|answer| answer.status = 502);
    assert!(matches!(web.sync().await, Err(ClientError::Busy { .. })));
    let delayed = proxy.last();
    proxy.change_next(move |answer| *answer = delayed);
    assert!(is_unverified(&web.sync().await));
    web.sync().await.unwrap();
    // A request that was modified in transit gets no valid response either.
    proxy.state.lock().unwrap().other_nonce = true;
    assert!(is_unverified(&web.sync().await));
    proxy.state.lock().unwrap().other_body = true;
    assert!(is_unverified(&web.sync().await));
    web.sync().await.unwrap();
    engine.stop().await;
}

async fn refusals_count_only_with_a_valid_signature(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let (proxy, link) = Proxy::in_front_of(&app).await;
    let mut web = Agent::join(&link, &token, "web-1").await;
    let task = TaskId::new(world.now(), 7);
    let send = async |web: &Agent| link.send_log(&web.identity, task, 0, b"x".to_vec()).await;
    // There is no such task, and the service says so.
    let refused = send(&web).await;
    assert!(matches!(refused, Err(ClientError::Refused { .. })), "{refused:?}");
    // The agent would never send this part of the log again.
    proxy.change_next(|answer| answer.signature = None);
    assert!(is_unverified(&send(&web).await));
    proxy.state.lock().unwrap().other_body = true;
    assert!(is_unverified(&send(&web).await));
    proxy.change_next(|answer| {
        *answer = ProxiedResponse { status: 204, ..ProxiedResponse::default() }
    });
    assert!(is_unverified(&send(&web).await));
    // A signed statement that a server was removed counts on every route.
    let mut reader = app.db.read().await.unwrap();
    let row = store::servers::get(&mut reader, world.org, web.identity.server_id);
    let row = row.await.unwrap();
    drop(reader);
    service::commands::servers::remove(&app, &world.admin(), &row).await.unwrap();
    eventually("it is removed", async || matches!(web.sync().await, Err(ClientError::Removed)))
        .await;
    assert!(matches!(send(&web).await, Err(ClientError::Removed)));
    let digest = Digest::compute(b"x");
    let listing = link.put_listing(&web.identity, ListingKind::Packages, digest, b"x").await;
    assert!(matches!(listing, Err(ClientError::Removed)), "{listing:?}");
    engine.stop().await;
}

/// A server of the previous version does not sign; a proxy must not be able to pass for one
/// later.
async fn unsigned_responses_are_accepted_only_before_a_signed_one(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let (proxy, link) = Proxy::in_front_of(&app).await;
    let mut web = Agent::join(&link, &token, "web-1").await;
    web.identity.signs_answers = false.into();
    proxy.change_next(|answer| answer.signature = None);
    web.sync().await.unwrap();
    assert!(!web.identity.signs_answers());
    web.sync().await.unwrap();
    assert!(web.identity.signs_answers());
    proxy.change_next(|answer| answer.signature = None);
    assert!(is_unverified(&web.sync().await));
}

/// The agent uses the time in the latest response, even if an earlier response had a later
/// time.
async fn server_clock_that_was_ahead_blocks_no_orders(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let (_, link) = Proxy::in_front_of(&app).await;
    let mut web = Agent::join(&link, &token, "web-1").await;
    let day = jiff::SignedDuration::from_hours(24);
    world.set_clock(day);
    let ahead = web.sync().await.unwrap().server_time;
    world.set_clock(-day);
    let options = json!({"packages": ["bash"]});
    let order = world.new_rollout(vec![web.identity.server_id], options);
    service::commands::batches::create(&app, order).await.unwrap();
    eventually("an order comes and is accepted", async || {
        let response = web.sync().await.unwrap();
        assert!(response.server_time < ahead);
        let believed =
            |envelope| verify_order(envelope, &web.identity, response.server_time).is_ok();
        response.orders.iter().any(believed)
    })
    .await;
    engine.stop().await;
}

testkit::both!(
    crate::support:
    forged_responses_have_no_effect,
    refusals_count_only_with_a_valid_signature,
    unsigned_responses_are_accepted_only_before_a_signed_one,
    server_clock_that_was_ahead_blocks_no_orders,
);
