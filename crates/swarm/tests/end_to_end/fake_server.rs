//! A fake server without a database: it checks every request of the protocol and records
//! violations.
//!
//! It shares no code with `agent-client`, so that a mistake in the protocol goes unnoticed only if
//! both implementations make it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{post, put};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jiff::Timestamp;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde_json::json;
use tokio::sync::Notify;
use vocab::listing::{Installed, Pending, decode};
use vocab::{Digest, Line, ServerId, Stage, TaskId};
use wire::agent::{
    EnrollRequest, EnrollResponse, Envelope, Facts, Order, OrderResult, SyncRequest, SyncResponse,
    Work,
};

/// The fixed time of the server.
pub(crate) const NOW: &str = "2026-11-15T04:00:00Z";
const SYNC_SECONDS: u32 = 3;

#[derive(Clone)]
pub(crate) struct FakeServer(Arc<Inner>);

struct Inner {
    orders: Ed25519KeyPair,
    secret: String,
    records: Mutex<Records>,
    /// Percentage of sync responses that are lost after the sync took effect.
    lost_percent: AtomicU64,
    syncs: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Records {
    pub(crate) servers: BTreeMap<ServerId, ServerRecord>,
    /// Number of uploads of each inventory.
    pub(crate) listings: BTreeMap<Digest, u32>,
    pub(crate) logs: BTreeMap<TaskId, Vec<u8>>,
    /// Protocol violations by agents.
    pub(crate) violations: Vec<String>,
    pub(crate) enrollments: u64,
    nonces: BTreeSet<String>,
}

pub(crate) struct ServerRecord {
    key: Vec<u8>,
    expected: u64,
    nonce: Option<u64>,
    pub(crate) removed: bool,
    wakeup: Arc<Notify>,
    orders: BTreeMap<TaskId, Work>,
    expires_at: Timestamp,
    pub(crate) withdrawn: BTreeSet<TaskId>,
    pub(crate) stages: BTreeMap<TaskId, BTreeSet<Stage>>,
    pub(crate) results: BTreeMap<TaskId, OrderResult>,
    pub(crate) installed: Option<Digest>,
    pub(crate) pending: Option<Digest>,
    pub(crate) boots: BTreeSet<Line>,
    pub(crate) facts: Facts,
    pub(crate) syncs: u64,
}

impl FakeServer {
    pub(crate) fn new() -> FakeServer {
        let orders = Ed25519KeyPair::from_seed_unchecked(&[5; 32]).unwrap();
        let secret = format!("fme_{}", URL_SAFE_NO_PAD.encode([6; 32]));
        FakeServer(Arc::new(Inner {
            orders,
            secret,
            records: Mutex::default(),
            lost_percent: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
        }))
    }

    pub(crate) fn router(&self) -> Router {
        Router::new()
            .route("/agent/v1/enroll", post(enroll))
            .route("/agent/v1/sync", post(sync))
            .route("/agent/v1/listings/{kind}/{digest}", put(listing))
            .route("/agent/v1/orders/{task}/log", post(log))
            .layer(from_fn_with_state(self.clone(), sign))
            .with_state(self.clone())
    }

    /// Listens on this machine without TLS. Returns the URL and a token.
    pub(crate) async fn listen(&self) -> (String, String) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = self.router();
        tokio::spawn(async move { axum::serve(listener, router).await });
        (format!("http://{address}"), self.token("plain"))
    }

    pub(crate) fn token(&self, pin: &str) -> String {
        format!("{}.{pin}", self.0.secret)
    }

    pub(crate) fn records(&self) -> MutexGuard<'_, Records> {
        self.0.records.lock().unwrap()
    }

    pub(crate) fn lose_responses(&self, percent: u64) {
        self.0.lost_percent.store(percent, Ordering::Relaxed);
    }

    /// Queues an order for a server. The order's boot id must be that of the current boot.
    pub(crate) fn order(&self, server: ServerId, task: TaskId, work: Work) {
        let mut records = self.records();
        let row = records.servers.get_mut(&server).unwrap();
        row.orders.insert(task, work);
        row.wakeup.notify_one();
    }

    pub(crate) fn withdraw(&self, server: ServerId, task: TaskId) {
        let mut records = self.records();
        let row = records.servers.get_mut(&server).unwrap();
        row.withdrawn.insert(task);
        row.wakeup.notify_one();
    }

    pub(crate) fn remove(&self, server: ServerId) {
        let mut records = self.records();
        let row = records.servers.get_mut(&server).unwrap();
        row.removed = true;
        row.wakeup.notify_one();
    }

    /// From now on, the orders of this server have expired.
    pub(crate) fn let_orders_expire(&self, server: ServerId) {
        self.records().servers.get_mut(&server).unwrap().expires_at = NOW.parse().unwrap();
    }

    fn envelope(
        &self,
        server: ServerId,
        task: TaskId,
        work: &Work,
        expires_at: Timestamp,
    ) -> Envelope {
        let issued_at = "2026-11-15T03:00:00Z".parse().unwrap();
        let work = work.clone();
        let order = Order { id: task, server_id: server, issued_at, expires_at, work };
        let order = serde_json::to_string(&order).unwrap();
        let signature = STANDARD.encode(self.0.orders.sign(order.as_bytes()));
        Envelope { order, key: "k1".to_owned(), signature }
    }

    /// Authenticates a request. Returns the server, or the response to send instead.
    fn authenticate(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<ServerId, Box<Response>> {
        let refused = |why: &str| {
            self.records().violations.push(format!("{method} {uri}: {why}"));
            Box::new((StatusCode::UNAUTHORIZED, why.to_owned()).into_response())
        };
        let header = headers.get("authorization").and_then(|value| value.to_str().ok());
        let parts: BTreeMap<&str, &str> = header
            .and_then(|header| header.strip_prefix("Agent "))
            .into_iter()
            .flat_map(|header| header.split(','))
            .filter_map(|part| part.split_once('='))
            .collect();
        let part = |name: &str| STANDARD.decode(parts.get(name).copied().unwrap_or("")).unwrap();
        let Some(id) = parts.get("id").and_then(|id| id.parse::<ServerId>().ok()) else {
            return Err(refused("no id"));
        };
        let hash = blake3::hash(body).to_hex();
        let text = format!("fleetmend-agent-v1\n{method}\n{uri}\n{hash}");
        let genuine = UnparsedPublicKey::new(&ED25519, part("key"))
            .verify(text.as_bytes(), &part("sig"))
            .is_ok();
        if !genuine || part("tag") != tag(id, &part("key")) {
            return Err(refused("invalid signature or tag"));
        }
        match self.records().servers.get(&id) {
            Some(row) if row.key == part("key") && !row.removed => Ok(id),
            _ => Err(Box::new(StatusCode::GONE.into_response())),
        }
    }
}

fn tag(id: ServerId, key: &[u8]) -> Vec<u8> {
    blake3::hash(&[id.to_string().as_bytes(), key].concat()).as_bytes().to_vec()
}

/// The server id, signature and nonce of a request.
fn signed_parts(headers: &HeaderMap) -> Option<(String, String, String)> {
    let header = |name: &str| headers.get(name)?.to_str().ok();
    let parts = header("authorization")?.strip_prefix("Agent ")?.split(',');
    let parts: BTreeMap<&str, &str> = parts.filter_map(|part| part.split_once('=')).collect();
    let nonce = header("fleetmend-nonce")?.to_owned();
    Some(((*parts.get("id")?).to_owned(), (*parts.get("sig")?).to_owned(), nonce))
}

/// Signs every response to a signed request.
async fn sign(State(server): State<FakeServer>, request: Request, next: Next) -> Response {
    let Some((id, signature, nonce)) = signed_parts(request.headers()) else {
        return next.run(request).await;
    };
    let is_new = server.records().nonces.insert(nonce.clone());
    if !is_new {
        server.records().violations.push(format!("{id} reused the nonce {nonce}"));
    }
    let (mut parts, body) = next.run(request).await.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let (status, hash) = (parts.status.as_u16(), blake3::hash(&body).to_hex());
    let text = format!("fleetmend-answer-v1\n{id}\n{nonce}\n{signature}\n{status}\n{hash}");
    let proof = format!("k1 {}", STANDARD.encode(server.0.orders.sign(text.as_bytes())));
    parts.headers.insert("fleetmend-signature", proof.parse().unwrap());
    Response::from_parts(parts, Body::from(body))
}

async fn enroll(State(server): State<FakeServer>, body: Bytes) -> Response {
    let request: EnrollRequest = serde_json::from_slice(&body).unwrap();
    if !request.token.starts_with(&server.0.secret) {
        let problem = json!({"code": "bad_token", "detail": "the token does not exist"});
        return (StatusCode::UNAUTHORIZED, problem.to_string()).into_response();
    }
    let key = STANDARD.decode(&request.public_key).unwrap();
    let mut records = server.records();
    records.enrollments += 1;
    let id = ServerId::new(NOW.parse().unwrap(), u128::from(records.enrollments));
    let response = EnrollResponse {
        server_id: id,
        tag: STANDARD.encode(tag(id, &key)),
        orders_key: STANDARD.encode(server.0.orders.public_key()),
        orders_keys: Vec::new(),
        counter: 1,
        sync_seconds: SYNC_SECONDS,
        signs_answers: true,
    };
    let row = ServerRecord {
        key,
        expected: 1,
        nonce: None,
        removed: false,
        wakeup: Arc::default(),
        orders: BTreeMap::new(),
        expires_at: "2026-11-15T05:00:00Z".parse().unwrap(),
        withdrawn: BTreeSet::new(),
        stages: BTreeMap::new(),
        results: BTreeMap::new(),
        installed: None,
        pending: None,
        boots: BTreeSet::new(),
        facts: request.facts,
        syncs: 0,
    };
    records.servers.insert(id, row);
    (StatusCode::CREATED, serde_json::to_string(&response).unwrap()).into_response()
}

async fn sync(
    State(server): State<FakeServer>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let id = match server.authenticate(&method, &uri, &headers, &body) {
        Ok(id) => id,
        Err(refusal) => return *refusal,
    };
    let sync: SyncRequest = serde_json::from_slice(&body).unwrap();
    let hold = Duration::from_secs(sync.hold_seconds.into());
    let wakeup = server.records().servers[&id].wakeup.clone();
    let received = server.receive(id, sync);
    if received.is_quiet() && !server.has_work_for(id) && !hold.is_zero() {
        let _ = tokio::time::timeout(hold, wakeup.notified()).await;
    }
    let number = server.0.syncs.fetch_add(1, Ordering::Relaxed);
    if number * 37 % 100 < server.0.lost_percent.load(Ordering::Relaxed) {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    server.respond(id, received)
}

struct ReceivedSync {
    counter: u64,
    acknowledged: Vec<TaskId>,
    wanted: Vec<Digest>,
}

impl ReceivedSync {
    fn is_quiet(&self) -> bool {
        self.acknowledged.is_empty() && self.wanted.is_empty()
    }
}

impl FakeServer {
    fn receive(&self, id: ServerId, sync: SyncRequest) -> ReceivedSync {
        let mut records = self.records();
        let Records { servers, listings, violations: protests, .. } = &mut *records;
        let row = servers.get_mut(&id).unwrap();
        row.syncs += 1;
        let again = sync.counter + 1 == row.expected && row.nonce == Some(sync.nonce);
        if sync.counter == row.expected && row.nonce != Some(sync.nonce) {
            (row.expected, row.nonce) = (sync.counter + 1, Some(sync.nonce));
        } else if !again {
            let (got, due) = (sync.counter, row.expected);
            protests.push(format!(
                "{id} sent counter {got} with an unexpected nonce, expected counter {due}"
            ));
        }
        row.boots.insert(sync.boot_id);
        (row.installed, row.pending) = (sync.installed, sync.pending);
        row.facts = sync.facts.unwrap_or(row.facts.clone());
        for progress in sync.progress {
            row.stages.entry(progress.order_id).or_default().extend(progress.stage);
            row.orders.remove(&progress.order_id);
        }
        let mut acknowledged = Vec::new();
        for result in sync.results {
            row.orders.remove(&result.order_id);
            row.withdrawn.remove(&result.order_id);
            acknowledged.push(result.order_id);
            let known = row.results.entry(result.order_id).or_insert_with(|| result.clone());
            if *known != result {
                protests.push(format!("{id} sent two different results for {}", result.order_id));
            }
        }
        let digests = [sync.installed, sync.pending];
        let wanted = digests.into_iter().flatten().filter(|digest| !listings.contains_key(digest));
        ReceivedSync { counter: row.expected, acknowledged, wanted: wanted.collect() }
    }

    fn has_work_for(&self, id: ServerId) -> bool {
        let row = &self.records().servers[&id];
        !row.orders.is_empty() || !row.withdrawn.is_empty() || row.removed
    }

    fn respond(&self, id: ServerId, received: ReceivedSync) -> Response {
        let records = self.records();
        let row = &records.servers[&id];
        if row.removed {
            return StatusCode::GONE.into_response();
        }
        let orders = row.orders.iter();
        let response = SyncResponse {
            counter: received.counter,
            orders: orders
                .map(|(task, work)| self.envelope(id, *task, work, row.expires_at))
                .collect(),
            wanted: received.wanted,
            wants_facts: false,
            acknowledged: received.acknowledged,
            unreported: Vec::new(),
            withdrawn: row.withdrawn.iter().copied().collect(),
            sync_seconds: SYNC_SECONDS,
            server_time: NOW.parse().unwrap(),
            renewed_tag: None,
            orders_keys: Vec::new(),
            watch_health_until: None,
        };
        serde_json::to_string(&response).unwrap().into_response()
    }
}

async fn listing(
    State(server): State<FakeServer>,
    Path((kind, digest)): Path<(String, String)>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if let Err(refusal) = server.authenticate(&method, &uri, &headers, &body) {
        return *refusal;
    }
    let bytes = zstd::decode_all(&*body).unwrap();
    let digest: Digest = digest.parse().unwrap();
    let lines = match kind.as_str() {
        "packages" => decode::<Installed>(&bytes).map(|list| list.len()),
        _ => decode::<Pending>(&bytes).map(|list| list.len()),
    };
    let mut records = server.records();
    if Digest::compute(&bytes) != digest || lines.is_err() {
        records.violations.push(format!("{kind} {digest}: wrong content ({lines:?})"));
        return StatusCode::UNPROCESSABLE_ENTITY.into_response();
    }
    *records.listings.entry(digest).or_default() += 1;
    StatusCode::NO_CONTENT.into_response()
}

#[derive(serde::Deserialize)]
struct Offset {
    offset: usize,
}

async fn log(
    State(server): State<FakeServer>,
    Path(task): Path<TaskId>,
    Query(Offset { offset }): Query<Offset>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if let Err(refusal) = server.authenticate(&method, &uri, &headers, &body) {
        return *refusal;
    }
    let mut records = server.records();
    let log = records.logs.entry(task).or_default();
    if offset > log.len() {
        return StatusCode::CONFLICT.into_response();
    }
    log.truncate(offset);
    log.extend_from_slice(&body);
    StatusCode::NO_CONTENT.into_response()
}
