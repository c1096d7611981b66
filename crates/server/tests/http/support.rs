//! Test support: a service with a fresh database for each test, and a client.
//!
//! The clock stands still until a test advances it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use httpkit::Peer;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use server::app::{App, AppParts, Settings};
use service::Actor;
use service::auth::api_keys as keys;
use service::auth::api_keys::NewKey;
use service::clock::{Clock, random_u128};
use service::commands::setup;
use service::mail::MailSettings;
use service::secrets::Secrets;
use testkit::TestDatabase;
use tower::ServiceExt as _;
use vocab::{Environment, OrgId, Role};

/// Runs a test on SQLite.
pub(crate) async fn sqlite(test: impl AsyncFnOnce(&Service)) {
    run_on(TestDatabase::sqlite(), test).await;
}

/// Runs a test on PostgreSQL, if there is one.
pub(crate) async fn postgres(test: impl AsyncFnOnce(&Service)) {
    let _shared = CLUSTER.read().await;
    if let Some(database) = TestDatabase::postgres().await {
        run_on(database, test).await;
    }
}

async fn run_on(database: TestDatabase, test: impl AsyncFnOnce(&Service)) {
    let service = Service::on(database).await;
    test(&service).await;
    service.remove().await;
}

/// All tests of this program use the same PostgreSQL. A test that makes it fail needs it alone:
/// while one of its disks is full there are no checkpoints, so databases cannot be created or
/// dropped.
pub(crate) static CLUSTER: tokio::sync::RwLock<()> = tokio::sync::RwLock::const_new(());

/// A clock that a test advances.
#[derive(Clone)]
pub(crate) struct TestClock(Arc<AtomicI64>);

impl TestClock {
    fn new() -> TestClock {
        let start: Timestamp = "2026-11-15T04:00:00Z".parse().unwrap();
        TestClock(Arc::new(AtomicI64::new(start.as_microsecond())))
    }

    pub(crate) fn as_clock(&self) -> Clock {
        let clock = self.clone();
        Clock::controlled(move || clock.now())
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_microsecond(self.0.load(Ordering::SeqCst)).unwrap()
    }

    pub(crate) fn advance(&self, by: SignedDuration) {
        self.0.fetch_add(i64::try_from(by.as_micros()).unwrap(), Ordering::SeqCst);
    }
}

/// A service with one organization, and an API key of each role.
pub(crate) struct Service {
    pub(crate) app: App,
    pub(crate) router: Router,
    pub(crate) clock: TestClock,
    pub(crate) org: OrgId,
    pub(crate) admin: String,
    pub(crate) operator: String,
    pub(crate) viewer: String,
    pub(crate) database: TestDatabase,
    others: Mutex<Vec<App>>,
}

impl Service {
    pub(crate) async fn on(database: TestDatabase) -> Service {
        let clock = TestClock::new();
        let app = open(&database, &clock, default_settings()).await;
        let (org, admin) = organization(&app, "Acme").await;
        let operator = key(&app, org, Role::Operator, None).await;
        let viewer = key(&app, org, Role::Viewer, None).await;
        let router = server::router(&app);
        let others = Mutex::new(Vec::new());
        Service { app, router, clock, org, admin, operator, viewer, database, others }
    }

    /// The same installation opened once more: another replica, or other settings.
    pub(crate) async fn again(&self, settings: Settings) -> (App, Router) {
        let app = open(&self.database, &self.clock, settings).await;
        self.others.lock().unwrap().push(app.clone());
        (app.clone(), server::router(&app))
    }

    /// Called only after a successful test: a failed one leaves its database for inspection.
    pub(crate) async fn remove(self) {
        let others = self.others.into_inner().unwrap();
        for app in others.iter().chain([&self.app]) {
            app.db.close().await;
        }
        self.database.remove().await;
    }

    /// Runs SQL directly, bypassing the service.
    pub(crate) async fn by_hand(&self, sql: &str) {
        self.database.execute_sql(sql).await;
    }

    pub(crate) async fn get(&self, path: &str) -> TestResponse {
        TestRequest::get(path).with_key(&self.admin).send(&self.router).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> TestResponse {
        TestRequest::post(path, body).with_key(&self.admin).send(&self.router).await
    }

    pub(crate) async fn delete(&self, path: &str) -> TestResponse {
        TestRequest::new(Method::DELETE, path).with_key(&self.admin).send(&self.router).await
    }

    /// A key with a role, limited to environments or not.
    pub(crate) async fn key(&self, role: Role, environments: Option<&[&str]>) -> String {
        key(&self.app, self.org, role, environments).await
    }

    /// The admin key of another organization.
    pub(crate) async fn stranger(&self) -> String {
        organization(&self.app, "Umbrella").await.1
    }
}

/// The settings of a service whose mail server cannot be reached.
fn default_settings() -> Settings {
    let mail = MailSettings::parse("smtp://127.0.0.1:9?tls=none", Some("fleetmend@example.org"));
    Settings { mail: Some(mail.unwrap()), ..Settings::default() }
}

async fn open(database: &TestDatabase, clock: &TestClock, settings: Settings) -> App {
    let secrets = Secrets::create(&database.dir).unwrap();
    let mut options = store::Options::new(&database.url, setup::seal(&secrets));
    // The machine may be busy; timeouts are tested elsewhere.
    options.timeout = std::time::Duration::from_secs(30);
    let db = store::Db::open(&options).await.unwrap();
    App::new(AppParts { db, clock: clock.as_clock(), secrets, settings })
}

async fn organization(app: &App, name: &str) -> (OrgId, String) {
    let (organization, key) = setup::create_organization(app, name).await.unwrap();
    (organization.id, key)
}

async fn key(app: &App, org: OrgId, role: Role, environments: Option<&[&str]>) -> String {
    let environments = environments
        .map(|names| names.iter().map(|name| name.parse::<Environment>().unwrap()).collect());
    let actor = Actor { org, id: "test".into(), role: Role::Admin };
    let name = format!("{role} {}", random_u128());
    let new = NewKey { name, role, environments, expires_at: None };
    keys::create(app, &actor, new).await.unwrap().1
}

/// A request to send.
#[derive(Clone)]
pub(crate) struct TestRequest {
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    peer: Option<SocketAddr>,
}

impl TestRequest {
    pub(crate) fn new(method: Method, path: &str) -> TestRequest {
        TestRequest { method, path: path.into(), headers: Vec::new(), body: Vec::new(), peer: None }
    }

    pub(crate) fn get(path: &str) -> TestRequest {
        TestRequest::new(Method::GET, path)
    }

    pub(crate) fn post(path: &str, body: Value) -> TestRequest {
        TestRequest::new(Method::POST, path).with_json(body)
    }

    pub(crate) fn with_json(self, body: Value) -> TestRequest {
        self.with("content-type", "application/json").with_body(body.to_string())
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> TestRequest {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub(crate) fn with_key(self, key: &str) -> TestRequest {
        self.with("authorization", &format!("Bearer {key}"))
    }

    /// Sends from a distinct address.
    pub(crate) fn from(mut self, host: u8) -> TestRequest {
        self.peer = Some(SocketAddr::from(([127, 0, 1, host], 4_000)));
        self
    }

    pub(crate) fn with_body(mut self, body: impl Into<Vec<u8>>) -> TestRequest {
        self.body = body.into();
        self
    }

    pub(crate) async fn send(self, router: &Router) -> TestResponse {
        let path = self.path.clone();
        let mut request = Request::builder().method(self.method).uri(self.path);
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        let mut request = request.body(Body::from(self.body)).unwrap();
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(Peer(peer));
        }
        let answer = router.clone().oneshot(request).await.unwrap();
        let (parts, body) = answer.into_parts();
        // The event stream never ends.
        let endless = path.starts_with("/v1/events/stream") && parts.status.is_success();
        let body = if endless { Body::empty() } else { body };
        let bytes = axum::body::to_bytes(body, 64 << 20).await.unwrap();
        TestResponse { status: parts.status, headers: parts.headers, bytes: bytes.to_vec() }
    }
}

/// A response.
#[derive(Debug)]
pub(crate) struct TestResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Vec<u8>,
}

impl TestResponse {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Asserts success with this status.
    #[track_caller]
    pub(crate) fn is(self, status: u16) -> TestResponse {
        assert_eq!(self.status.as_u16(), status, "{}", String::from_utf8_lossy(&self.bytes));
        self
    }

    /// Asserts a well-formed problem with this status and code.
    #[track_caller]
    #[expect(clippy::wrong_self_convention, reason = "it returns the response for further checks")]
    pub(crate) fn is_problem(self, status: u16, code: &str) -> TestResponse {
        let text = String::from_utf8_lossy(&self.bytes).into_owned();
        assert_eq!(self.status.as_u16(), status, "{text}");
        assert_eq!(self.header("content-type"), "application/problem+json", "{text}");
        let problem = self.json();
        assert_eq!(problem["code"], code, "{text}");
        assert_eq!(problem["status"], status, "{text}");
        assert_eq!(problem["request_id"], self.header("x-request-id"), "{text}");
        for field in ["type", "title", "detail"] {
            assert!(!problem[field].as_str().unwrap().is_empty(), "{text}");
        }
        self
    }
}
