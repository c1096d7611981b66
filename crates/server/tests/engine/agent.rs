//! A small test agent: it enrolls, signs, syncs and carries out its orders, one call at a time.

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gateway::signed_text;
use jiff::Timestamp;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde_json::{Value, json};
use server::app::App;
use service::clock::random_bytes;
use tower::ServiceExt as _;
use vocab::{ServerId, Stage, TaskId};
use wire::agent::{
    EnrollResponse, Order, OrderProgress, OrderResult, Outcome, SyncRequest, SyncResponse,
};
use wire::v1::Activity;

/// Why a request was rejected: status and code.
pub(crate) type Rejection = (u16, String);

/// An agent. A Rust clone of it behaves like a clone of its host.
#[derive(Clone)]
pub(crate) struct Agent {
    pub(crate) router: Router,
    seed: [u8; 32],
    pub(crate) id: ServerId,
    pub(crate) tag: String,
    orders_key: Vec<u8>,
    pub(crate) counter: u64,
    pub(crate) nonce: u64,
    /// The content of the next sync.
    pub(crate) next_sync: SyncRequest,
}

pub(crate) fn facts(hostname: &str) -> Value {
    json!({"hostname": hostname, "os": {"id": "debian", "version": "12", "name": "Debian 12"},
        "kernel": "6.1.0", "arch": "x86_64", "package_manager": "apt", "agent_version": "0.1.0",
        "from_a_newer_agent": [1, 2]})
}

/// A sync without content.
fn empty_sync() -> SyncRequest {
    SyncRequest {
        boot_id: "boot-1".into(),
        counter: 0,
        nonce: 0,
        hold_seconds: 0,
        facts: None,
        installed: None,
        pending: None,
        scanned_at: None,
        activity: Activity::Idle,
        results: Vec::new(),
        progress: Vec::new(),
        health: None,
    }
}

pub(crate) async fn send(router: &Router, request: Request<Body>) -> Result<Vec<u8>, Rejection> {
    let response = router.clone().oneshot(request).await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    if status.is_success() {
        return Ok(body.to_vec());
    }
    assert_eq!(headers["content-type"], "application/problem+json");
    let problem: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(problem["status"], status.as_u16());
    Err((status.as_u16(), problem["code"].as_str().unwrap().to_owned()))
}

pub(crate) async fn enroll(
    app: &App,
    token: &str,
    key: &[u8],
    hostname: &str,
) -> Result<EnrollResponse, Rejection> {
    let body = json!({"token": token, "public_key": STANDARD.encode(key), "facts": facts(hostname),
        "environment": "staging", "tags": ["role=web"], "mood": "calm"});
    let request = Request::post("/agent/v1/enroll").body(Body::from(body.to_string())).unwrap();
    let response = send(&gateway::router(app.gateway()), request).await?;
    Ok(serde_json::from_slice(&response).unwrap())
}

impl Agent {
    pub(crate) async fn join(app: &App, token: &str, hostname: &str) -> Agent {
        let seed = random_bytes();
        let response = enroll(app, token, &public_key(&seed), hostname).await.unwrap();
        Agent::from_enrollment(app, seed, response)
    }

    /// An agent that was enrolled with the key of this seed.
    pub(crate) fn from_enrollment(app: &App, seed: [u8; 32], response: EnrollResponse) -> Agent {
        Agent {
            router: gateway::router(app.gateway()),
            seed,
            id: response.server_id,
            tag: response.tag,
            orders_key: STANDARD.decode(response.orders_key).unwrap(),
            counter: response.counter,
            nonce: 1,
            next_sync: empty_sync(),
        }
    }

    pub(crate) fn switch_to(&mut self, app: &App) {
        self.router = gateway::router(app.gateway());
    }

    pub(crate) fn key(&self) -> Vec<u8> {
        public_key(&self.seed)
    }

    /// Signs a request as an agent does.
    pub(crate) fn signed(&self, method: &str, path: &str, body: Vec<u8>) -> Request<Body> {
        let pair = Ed25519KeyPair::from_seed_unchecked(&self.seed).unwrap();
        let signature = pair.sign(signed_text(method, path, &body).as_bytes());
        let credential = format!(
            "Agent id={},key={},tag={},sig={}",
            self.id,
            STANDARD.encode(self.key()),
            self.tag,
            STANDARD.encode(signature)
        );
        let request = Request::builder().method(method).uri(path);
        request.header("authorization", credential).body(Body::from(body)).unwrap()
    }

    pub(crate) fn sync_body(&self, hold_seconds: u32) -> Vec<u8> {
        let sync = SyncRequest {
            counter: self.counter,
            nonce: self.nonce,
            hold_seconds,
            ..self.next_sync.clone()
        };
        let mut body = serde_json::to_value(&sync).unwrap();
        body["from_a_newer_agent"] = json!({"mood": "calm"});
        body.to_string().into_bytes()
    }

    /// Syncs and applies the response: the counter, and what was acknowledged.
    pub(crate) async fn sync(&mut self, hold_seconds: u32) -> Result<SyncResponse, Rejection> {
        let request = self.signed("POST", "/agent/v1/sync", self.sync_body(hold_seconds));
        let response = send(&self.router, request).await?;
        let response: SyncResponse = serde_json::from_slice(&response).unwrap();
        self.counter = response.counter;
        self.nonce = u64::from_be_bytes(random_bytes());
        self.next_sync.results.retain(|result| !response.acknowledged.contains(&result.order_id));
        self.next_sync.progress.clear();
        self.next_sync.facts = None;
        Ok(response)
    }

    /// Syncs, held open, until an order comes. Verifies its signature and its recipient.
    pub(crate) async fn wait_for_order(&mut self) -> Order {
        for _ in 0..20 {
            if let Some(order) = self.orders(10).await.pop() {
                return order;
            }
        }
        panic!("no order came");
    }

    /// Syncs and returns the verified orders.
    pub(crate) async fn orders(&mut self, hold_seconds: u32) -> Vec<Order> {
        let response = self.sync(hold_seconds).await.unwrap();
        let read = |envelope: &wire::agent::Envelope| {
            UnparsedPublicKey::new(&ED25519, &self.orders_key)
                .verify(envelope.order.as_bytes(), &STANDARD.decode(&envelope.signature).unwrap())
                .expect("orders are signed with the key from the enrollment");
            let order: Order = serde_json::from_str(&envelope.order).unwrap();
            assert_eq!(order.server_id, self.id);
            order
        };
        response.orders.iter().map(read).collect()
    }

    pub(crate) fn report_stage(&mut self, order: TaskId, stage: Stage, at: Timestamp) {
        let progress = OrderProgress { order_id: order, stage: Some(stage), at, message: None };
        self.next_sync.progress.push(progress);
    }

    pub(crate) fn report_result(&mut self, order: TaskId, outcome: Outcome, at: Timestamp) {
        self.next_sync.results.push(OrderResult {
            order_id: order,
            outcome,
            failure_code: None,
            message: Some("as it went".into()),
            packages: Vec::new(),
            reboot_needed: false,
            reboot_seconds: None,
            exit: Some(0),
            set_aside: Vec::new(),
            restarted: Vec::new(),
            notes: Vec::new(),
            newer_available: Vec::new(),
            health: None,
            started_at: at,
            finished_at: at,
        });
    }

    /// Finishes an order and reports its result until it is acknowledged.
    pub(crate) async fn report_until_acknowledged(
        &mut self,
        order: TaskId,
        outcome: Outcome,
        at: Timestamp,
    ) {
        self.report_result(order, outcome, at);
        let response = self.sync(0).await.unwrap();
        assert!(response.acknowledged.contains(&order));
    }

    pub(crate) async fn upload(
        &self,
        kind: &str,
        digest: vocab::Digest,
        body: Vec<u8>,
        encoding: Option<&'static str>,
    ) -> Result<(), Rejection> {
        let path = format!("/agent/v1/listings/{kind}/{digest}");
        let mut request = self.signed("PUT", &path, body);
        if let Some(encoding) = encoding {
            request.headers_mut().insert("content-encoding", encoding.parse().unwrap());
        }
        send(&self.router, request).await.map(drop)
    }

    pub(crate) async fn send_log(
        &self,
        task: TaskId,
        offset: usize,
        body: &[u8],
    ) -> Result<(), Rejection> {
        let path = format!("/agent/v1/orders/{task}/log?offset={offset}");
        send(&self.router, self.signed("POST", &path, body.to_vec())).await.map(drop)
    }
}

pub(crate) fn public_key(seed: &[u8; 32]) -> Vec<u8> {
    Ed25519KeyPair::from_seed_unchecked(seed).unwrap().public_key().as_ref().to_vec()
}

pub(crate) fn rejection(status: StatusCode, code: &str) -> Rejection {
    (status.as_u16(), code.to_owned())
}
