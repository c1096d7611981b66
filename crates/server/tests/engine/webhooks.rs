//! Webhooks with real receivers: order, retries, several leaders, receivers that misbehave.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Response, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt as _;
use jiff::SignedDuration;
use serde_json::{Value, json};
use server::app::{App, AppParts, Settings};
use service::commands::webhooks::{self as commands, WebhookInput};
use service::queries::Scope;
use service::queries::webhooks as queries;
use service::webhooks::{Client, Format, Message, SigningSecret};
use service::{EventKind, emit};
use store::Page;
use store::events::{self, Filter};
use store::webhooks::{self, Delivery, DeliveryState, Webhook};
use tokio::net::TcpListener;
use vocab::DeliveryId;

use crate::support::{World, eventually};

const ALL: Page = Page { limit: 500, offset: 0 };

/// A request that a receiver got.
#[derive(Clone)]
struct Received {
    headers: HeaderMap,
    text: String,
    body: Value,
}

impl Received {
    fn sequence(&self) -> i64 {
        self.body["data"]["sequence"].as_i64().unwrap()
    }

    fn subject(&self) -> &str {
        self.body["data"]["subject"]["id"].as_str().unwrap()
    }

    fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }
}

type Respond = dyn Fn(&Received) -> Response<Body> + Send + Sync;

/// A receiver on this host.
struct Receiver {
    url: String,
    heard: Arc<Mutex<Vec<Received>>>,
    respond: Arc<Mutex<Arc<Respond>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone)]
struct Shared(Arc<Mutex<Vec<Received>>>, Arc<Mutex<Arc<Respond>>>);

impl Receiver {
    async fn new(respond: impl Fn(&Received) -> Response<Body> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let heard = Arc::new(Mutex::new(Vec::new()));
        let respond: Arc<Mutex<Arc<Respond>>> = Arc::new(Mutex::new(Arc::new(respond)));
        let router =
            Router::new().fallback(receive).with_state(Shared(heard.clone(), respond.clone()));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Receiver { url, heard, respond, task }
    }

    fn set(&self, respond: impl Fn(&Received) -> Response<Body> + Send + Sync + 'static) {
        *self.respond.lock().unwrap() = Arc::new(respond);
    }

    fn heard(&self) -> Vec<Received> {
        self.heard.lock().unwrap().clone()
    }

    fn sequences(&self) -> Vec<i64> {
        self.heard().iter().map(Received::sequence).collect()
    }
}

async fn receive(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let text = String::from_utf8(body.to_vec()).unwrap();
    let body = serde_json::from_str(&text).unwrap_or(Value::Null);
    let received = Received { headers, text, body };
    let respond = shared.1.lock().unwrap().clone();
    let response = respond(&received);
    shared.0.lock().unwrap().push(received);
    response
}

fn status(status: u16) -> Response<Body> {
    let mut response = Response::new(Body::from("noted"));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}

/// A replica that may send to this host.
async fn app(world: &World, replica: &str) -> App {
    let app = world.app(replica).await;
    let parts = AppParts {
        db: app.db.clone(),
        clock: app.clock.clone(),
        secrets: service::secrets::Secrets::load(world.data_dir()).unwrap(),
        settings: Settings {
            replica: replica.into(),
            webhook_allow_local: true,
            public_url: Some("https://patch.example.org".into()),
            ..Settings::default()
        },
    };
    App::new(parts)
}

fn input(url: &str, types: &[&str]) -> WebhookInput {
    WebhookInput {
        name: url.to_owned(),
        url: url.to_owned(),
        types: types.iter().map(ToString::to_string).collect(),
        targets: None,
        format: Format::Standard,
        enabled: true,
    }
}

async fn create(world: &World, app: &App, input: WebhookInput) -> (Webhook, SigningSecret) {
    commands::create(app, &world.admin(), input).await.unwrap()
}

/// Writes one event per subject, in one transaction.
async fn happen(world: &World, app: &App, subjects: impl IntoIterator<Item = String>) {
    let mut tx = app.db.begin().await.unwrap();
    for subject in subjects {
        let data = json!({"reason": "canary_failed"});
        emit(&mut tx, world.org, world.now(), "engine", EventKind::BatchHalted, subject, data);
    }
    tx.commit().await.unwrap();
}

async fn states(world: &World, app: &App, webhook: &Webhook) -> Vec<(i64, &'static str, u32)> {
    let scope = Scope { org: world.org, environments: None };
    let found = queries::deliveries(app, &scope, webhook.id, &[], ALL).await.unwrap();
    let mut rows: Vec<_> = found
        .items
        .into_iter()
        .map(|one| {
            let state = match one.state {
                wire::v1::DeliveryState::Pending => "pending",
                wire::v1::DeliveryState::Delivered => "delivered",
                wire::v1::DeliveryState::Failed => "failed",
            };
            (i64::try_from(one.sequence).unwrap(), state, one.attempts)
        })
        .collect();
    rows.sort_unstable();
    rows
}

/// Whether the sequence numbers of each subject arrived in order, except for repetitions.
fn assert_in_order(heard: &[Received]) {
    let mut last: BTreeMap<&str, i64> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for one in heard.iter().filter(|one| seen.insert(one.sequence())) {
        let before = last.insert(one.subject(), one.sequence());
        assert!(before.is_none_or(|before| before < one.sequence()), "{}", one.sequence());
    }
}

async fn events_arrive_signed_and_in_order(world: &World) {
    let receiver = Receiver::new(|_| status(200)).await;
    let app = app(world, "a").await;
    let (webhook, secret) = create(world, &app, input(&receiver.url, &["batch.halted"])).await;
    let (app, engine) = world.lead(app).await;
    for _ in 0..30 {
        happen(world, &app, (0..10).map(|n| format!("bat_{n}"))).await;
    }
    eventually("all events arrive", async || receiver.heard().len() == 300).await;
    let heard = receiver.heard();
    assert_in_order(&heard);
    // The creation of the webhook itself is event 1, and was not asked for.
    let sequences: BTreeSet<i64> = receiver.sequences().into_iter().collect();
    assert_eq!(sequences, (2..=301).collect());
    let first = &heard[0];
    assert_eq!(first.body["type"], "batch.halted");
    assert_eq!(first.body["data"]["data"]["reason"], "canary_failed");
    let page = format!("https://patch.example.org/batches/{}", first.subject());
    assert_eq!(first.body["data"]["url"], page.as_str());
    assert_eq!(first.header("webhook-id"), first.body["data"]["id"].as_str().unwrap());
    let at: i64 = first.header("webhook-timestamp").parse().unwrap();
    assert_eq!(at, world.now().as_second());
    let key = STANDARD.decode(secret.text().strip_prefix("whsec_").unwrap()).unwrap();
    let signed = format!("{}.{at}.{}", first.header("webhook-id"), first.text);
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &key);
    let expected = STANDARD.encode(ring::hmac::sign(&key, signed.as_bytes()));
    assert_eq!(first.header("webhook-signature"), format!("v1,{expected}"));
    eventually("the log is complete", async || {
        states(world, &app, &webhook).await.iter().filter(|row| row.1 == "delivered").count() == 300
    })
    .await;
    engine.stop().await;
}

async fn failed_delivery_is_tried_again_and_later_ones_about_it_wait(world: &World) {
    let receiver =
        Receiver::new(|one| status(if one.subject() == "bat_1" { 500 } else { 204 })).await;
    let app = app(world, "a").await;
    let (webhook, _) = create(world, &app, input(&receiver.url, &["batch.*"])).await;
    let (app, engine) = world.lead(app).await;
    happen(world, &app, ["bat_1", "bat_2", "bat_1"].map(str::to_owned)).await;
    happen(world, &app, ["bat_1".to_owned()]).await;
    let wanted = [(2, "pending", 1), (3, "delivered", 1), (4, "pending", 0), (5, "pending", 0)];
    eventually("the first attempts", async || states(world, &app, &webhook).await == wanted).await;
    assert_eq!(receiver.sequences().into_iter().collect::<BTreeSet<_>>(), [2, 3].into());

    // The second attempt fails, too.
    world.advance(SignedDuration::from_secs(5));
    eventually("the second attempt", async || states(world, &app, &webhook).await[0].2 == 2).await;
    receiver.set(|_| status(200));
    world.advance(SignedDuration::from_secs(299));
    happen(world, &app, ["bat_3".to_owned()]).await;
    eventually("events about other subjects are sent", async || receiver.sequences().contains(&6))
        .await;
    assert_eq!(states(world, &app, &webhook).await[0], (2, "pending", 2));
    world.advance(SignedDuration::from_secs(1));
    let wanted = [
        (2, "delivered", 3),
        (3, "delivered", 1),
        (4, "delivered", 1),
        (5, "delivered", 1),
        (6, "delivered", 1),
    ];
    eventually("all arrive", async || states(world, &app, &webhook).await == wanted).await;
    assert_in_order(&receiver.heard());

    // Sent again on request.
    let scope = Scope { org: world.org, environments: None };
    let log = queries::deliveries(&app, &scope, webhook.id, &[], ALL).await.unwrap().items;
    let (hook, delivery) =
        queries::find_delivery(&app, &scope, webhook.id, log[0].id).await.unwrap();
    let before = receiver.heard().len();
    commands::redeliver(&app, &world.admin(), &hook, &delivery).await.unwrap();
    eventually("it is sent again", async || receiver.heard().len() == before + 1).await;
    engine.stop().await;
}

async fn dead_receiver_delays_nobody_and_is_disabled_after_five_days(world: &World) {
    let alive = Receiver::new(|_| status(200)).await;
    // Nobody listens on this port any more.
    let dead = Receiver::new(|_| status(200)).await;
    let url = dead.url.clone();
    drop(dead);
    let app = app(world, "a").await;
    let (broken, _) = create(world, &app, input(&url, &["batch.*"])).await;
    let (works, _) = create(world, &app, input(&alive.url, &["batch.*"])).await;
    let (app, engine) = world.lead(app).await;
    happen(world, &app, (0..500).map(|n| format!("bat_{n}"))).await;
    eventually("the others arrive", async || alive.heard().len() == 500).await;
    eventually("the dead one has its queue", async || {
        states(world, &app, &broken).await.len() == 500
    })
    .await;
    let log = states(world, &app, &broken).await;
    assert!(log.iter().all(|row| row.1 == "pending"), "{log:?}");
    // Of a receiver that is down, few deliveries are tried.
    assert!(log.iter().filter(|row| row.2 > 0).count() <= 250, "{log:?}");
    let scope = Scope { org: world.org, environments: None };
    let (_, shown) = queries::get(&app, &scope, broken.id).await.unwrap();
    assert!(shown.enabled && shown.failing_since.is_some() && shown.pending == 500);
    world.advance(SignedDuration::from_hours(5 * 24));
    eventually("it is disabled", async || {
        !queries::get(&app, &scope, broken.id).await.unwrap().1.enabled
    })
    .await;
    eventually("the event of the disabling", async || {
        let mut reader = app.db.read().await.unwrap();
        let filter = Filter { kinds: vec!["webhook.disabled".into()], ..Filter::default() };
        events::after(&mut reader, world.org, 0, &filter, 10).await.unwrap().len() == 1
    })
    .await;
    assert!(queries::get(&app, &scope, works.id).await.unwrap().1.enabled);
    // Enabled again, it does not get what happened before.
    let broken = queries::find(&app, &scope, broken.id).await.unwrap();
    let again = WebhookInput { enabled: true, ..input(&alive.url, &["batch.*"]) };
    let before = alive.heard().len();
    commands::edit(&app, &world.admin(), &broken, WebhookInput { name: "again".into(), ..again })
        .await
        .unwrap();
    happen(world, &app, ["bat_1".to_owned()]).await;
    eventually("both get it", async || alive.heard().len() == before + 2).await;
    // The log shows the newest 500 deliveries: the new one, and those that were given up.
    let log = states(world, &app, &broken).await;
    assert_eq!(log.iter().filter(|row| row.1 == "failed").count(), 499, "{log:?}");
    engine.stop().await;
}

/// One success ends a time of failures, even if a delivery beside it fails.
async fn failing_since_ends_with_a_success_beside_a_failure(world: &World) {
    let receiver =
        Receiver::new(|one| status(if one.subject() == "bat_2" { 400 } else { 200 })).await;
    let app = app(world, "a").await;
    let (webhook, _) = create(world, &app, input(&receiver.url, &["batch.*"])).await;
    let (app, engine) = world.lead(app).await;
    let start = world.now();
    // The failure is the last of each chunk.
    for _ in 0..3 {
        happen(world, &app, ["bat_1".to_owned(), "bat_2".to_owned()]).await;
        eventually("an attempt", async || {
            let log = states(world, &app, &webhook).await;
            log.iter().filter(|row| row.1 == "delivered").count() * 2 == log.len()
                && !log.is_empty()
        })
        .await;
        world.advance(SignedDuration::from_hours(48));
    }
    let scope = Scope { org: world.org, environments: None };
    happen(world, &app, ["bat_1".to_owned(), "bat_2".to_owned()]).await;
    eventually("the last attempt", async || states(world, &app, &webhook).await.len() == 8).await;
    let (_, shown) = queries::get(&app, &scope, webhook.id).await.unwrap();
    assert!(shown.enabled && shown.failing_since.is_none_or(|since| since > start), "{shown:?}");
    engine.stop().await;
}

async fn delivery_log_is_bounded(world: &World) {
    let app = app(world, "a").await;
    let (webhook, _) = create(world, &app, input("http://127.0.0.1:9/", &["batch.*"])).await;
    let mut tx = app.db.begin().await.unwrap();
    let rows: Vec<Delivery> = (1..=12)
        .map(|n| Delivery {
            state: match n % 3 {
                0 => DeliveryState::Pending,
                1 => DeliveryState::Failed,
                _ => DeliveryState::Delivered,
            },
            sequence: n,
            id: DeliveryId::new(world.now(), n.unsigned_abs().into()),
            ..delivery(&webhook, n, world.now())
        })
        .collect();
    store::webhooks::insert_deliveries(&mut tx, &rows).await.unwrap();
    let mut deleted = Vec::new();
    for _ in 0..5 {
        deleted.push(store::webhooks::purge_excess(&mut tx, 2, 1).await.unwrap());
    }
    assert_eq!(deleted, [1, 1, 1, 1, 0]);
    assert_eq!(store::webhooks::give_up_disabled(&mut tx, 10).await.unwrap(), 0);
    tx.commit().await.unwrap();
    let left: Vec<i64> =
        states(world, &app, &webhook).await.into_iter().map(|(sequence, ..)| sequence).collect();
    assert_eq!(left, [3, 6, 7, 8, 9, 10, 11, 12]);
    let off = WebhookInput { enabled: false, ..input("http://127.0.0.1:9/", &["batch.*"]) };
    commands::edit(&app, &world.admin(), &webhook, off).await.unwrap();
    let mut tx = app.db.begin().await.unwrap();
    for given_up in [3, 1, 0] {
        assert_eq!(store::webhooks::give_up_disabled(&mut tx, 3).await.unwrap(), given_up);
    }
    tx.commit().await.unwrap();
}

async fn leaders_that_die_lose_no_event(world: &World) {
    let half = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = half.clone();
    let fails = Receiver::new(move |_| {
        let nth = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        status(if nth.is_multiple_of(2) { 503 } else { 200 })
    })
    .await;
    let works = Receiver::new(|_| status(200)).await;
    let first = app(world, "a").await;
    create(world, &first, input(&works.url, &["batch.*"])).await;
    create(world, &first, input(&fails.url, &["batch.*"])).await;
    for round in 0..4 {
        let app = app(world, &format!("r{round}")).await;
        let (app, engine) = world.lead(app).await;
        for n in 0..3 {
            happen(world, &app, (0..40).map(|k| format!("bat_{}", k + n))).await;
        }
        // As in a crash: nothing is released, and the lease must run out.
        drop(engine);
        world.advance(SignedDuration::from_mins(6));
    }
    let app = app(world, "last").await;
    let (_app, engine) = world.lead(app).await;
    let all: BTreeSet<i64> = (3..483).collect();
    let complete = |receiver: &Receiver| {
        let heard: BTreeSet<i64> = receiver.sequences().into_iter().collect();
        all.is_subset(&heard)
    };
    eventually("everything arrives", async || complete(&works)).await;
    eventually("everything arrives at the one that fails", async || {
        world.advance(SignedDuration::from_hours(1));
        complete(&fails)
    })
    .await;
    assert_in_order(&works.heard());
    println!("{} requests for 480 events after 4 crashes", works.heard().len());
    engine.stop().await;
}

async fn selector_limits_events_about_servers_only(world: &World) {
    let receiver = Receiver::new(|_| status(200)).await;
    let app = app(world, "a").await;
    let token = world
        .token_with(&app, |token| store::enrollment_tokens::EnrollmentToken {
            environment: Some("production".parse().unwrap()),
            ..token
        })
        .await;
    let plain = world.token(&app).await;
    let targets = vocab::Selector::parse(&json!({"environment": "production"})).unwrap();
    let wanted = WebhookInput { targets: Some(targets), ..input(&receiver.url, &["*"]) };
    let (webhook, _) = create(world, &app, wanted).await;
    let (app, engine) = world.lead(app).await;
    crate::agent::Agent::join(&app, &plain, "web-1").await;
    crate::agent::Agent::join(&app, &token, "web-2").await;
    happen(world, &app, ["bat_1".to_owned()]).await;
    eventually("the batch's event is delivered", async || {
        states(world, &app, &webhook).await.last().is_some_and(|row| row.1 == "delivered")
            && receiver.heard().iter().any(|one| one.body["type"] == "batch.halted")
    })
    .await;
    let enrolled: Vec<Received> = receiver.heard();
    let enrolled: Vec<&str> = enrolled
        .iter()
        .filter(|one| one.body["type"] == "server.enrolled")
        .map(|one| one.body["data"]["subject"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(enrolled, ["web-2"]);
    engine.stop().await;
}

async fn chat_gets_one_message_for_many_events(world: &World) {
    let receiver = Receiver::new(|_| status(200)).await;
    let app = app(world, "a").await;
    let wanted = WebhookInput { format: Format::Slack, ..input(&receiver.url, &["batch.*"]) };
    let (webhook, _) = create(world, &app, wanted).await;
    let (app, engine) = world.lead(app).await;
    happen(world, &app, (0..150).map(|n| format!("bat_{n}"))).await;
    eventually("all are delivered", async || {
        states(world, &app, &webhook).await.iter().filter(|row| row.1 == "delivered").count() == 150
    })
    .await;
    let heard = receiver.heard();
    assert_eq!(heard.len(), 1);
    let text = heard[0].body["text"].as_str().unwrap();
    assert!(
        text.starts_with("bat_0: A batch halted automatically")
            && text.ends_with("and 140 more events"),
        "{text}"
    );
    engine.stop().await;
}

/// Time and memory of a request are limited, whatever the receiver does.
async fn receivers_that_misbehave_are_failures_in_the_log(world: &World) {
    let app = app(world, "a").await;
    let endless = Receiver::new(|_| {
        let parts = futures_util::stream::repeat_with(|| {
            Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; 65_536]))
        });
        Response::new(Body::from_stream(parts))
    })
    .await;
    let redirecting = Receiver::new(|_| {
        Response::builder()
            .status(302)
            .header("location", "http://127.0.0.1/")
            .body(Body::empty())
            .unwrap()
    })
    .await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_url = format!("http://{}/", silent.local_addr().unwrap());
    let client = Client::with_timeout(true, Duration::from_millis(300)).unwrap();
    let message = Message { id: "evt_1".into(), body: "{}".into() };
    let send = async |client: &Client, url: &str| {
        let (webhook, _) = create(world, &app, input(url, &["*"])).await;
        client.send(&app, &webhook, &message).await
    };
    let answer = send(&client, &endless.url).await;
    assert_eq!((answer.status, answer.error), (Some(200), None));
    assert_eq!(answer.body.unwrap().len(), 1_024);
    let answer = send(&client, &redirecting.url).await;
    assert_eq!(answer.status, Some(302));
    assert!(answer.error.unwrap().contains("redirects are not followed"));
    assert_eq!(redirecting.heard().len(), 1);
    let answer = send(&client, &silent_url).await;
    assert!(answer.error.unwrap().starts_with("no response within"));
    // The status arrives in time, and the body never ends.
    let dripping = Receiver::new(|_| {
        let parts = futures_util::stream::once(async { Ok::<_, std::io::Error>(Bytes::from("a")) });
        let parts = parts.chain(futures_util::stream::pending());
        Response::new(Body::from_stream(parts))
    })
    .await;
    let answer = send(&client, &dripping.url).await;
    assert_eq!((answer.status, answer.body.as_deref(), answer.error), (Some(200), Some("a"), None));
    // By name, after it was resolved.
    let guarded = Client::new(false).unwrap();
    let port = endless.url.rsplit(':').next().unwrap().to_owned();
    let answer = send(&guarded, &format!("http://localhost:{port}")).await;
    assert!(answer.error.as_ref().unwrap().contains("link-local"), "{answer:?}");
    let answer = send(&guarded, "http://169.254.169.254/latest/meta-data").await;
    assert!(answer.error.unwrap().contains("link-local"));
    assert_eq!(endless.heard().len(), 1);
}

/// The worker and a rotation of the root key write to the same row.
async fn edit_keeps_position_and_secrets(world: &World) {
    let app = app(world, "a").await;
    let (seen, _) = create(world, &app, input("http://127.0.0.1:9/", &["batch.*"])).await;
    let mut tx = app.db.begin().await.unwrap();
    assert!(webhooks::advance(&mut tx, seen.id, 40, Some(world.now())).await.unwrap());
    webhooks::replace_secrets(&mut tx, seen.id, &seen.secret, b"renewed", None).await.unwrap();
    tx.commit().await.unwrap();
    let other = input("http://127.0.0.1:9/", &["server.*"]);
    let edited = commands::edit(&app, &world.admin(), &seen, other.clone()).await.unwrap();
    let read = async || {
        webhooks::get(&mut app.db.read().await.unwrap(), world.org, seen.id).await.unwrap()
    };
    let stored = read().await;
    assert_eq!((stored.position, stored.secret.as_slice()), (40, b"renewed".as_slice()));
    assert_eq!(stored.failing_since, Some(world.now()));
    // A rotation that did not see the renewed secret is refused.
    let stale = commands::rotate(&app, &world.admin(), &edited, SignedDuration::ZERO).await;
    assert!(matches!(stale, Err(service::ServiceError::Stale)));
    // Enabled again, it skips what happened meanwhile.
    let off = WebhookInput { enabled: false, ..other.clone() };
    let edited = commands::edit(&app, &world.admin(), &stored, off).await.unwrap();
    commands::edit(&app, &world.admin(), &edited, other).await.unwrap();
    let stored = read().await;
    assert_eq!((stored.position, stored.failing_since), (3, None));

    let rows = [1, 2, 3].map(|sequence| delivery(&stored, sequence, world.now()));
    let mut tx = app.db.begin().await.unwrap();
    webhooks::insert_deliveries(&mut tx, &rows).await.unwrap();
    assert_eq!(webhooks::purge_deleted(&mut tx, 10).await.unwrap(), 0);
    webhooks::delete(&mut tx, &stored).await.unwrap();
    assert_eq!(webhooks::purge_deleted(&mut tx, 2).await.unwrap(), 2);
    assert_eq!(webhooks::purge_deleted(&mut tx, 2).await.unwrap(), 1);
    tx.commit().await.unwrap();
}

fn delivery(webhook: &Webhook, sequence: i64, now: jiff::Timestamp) -> Delivery {
    let number = u128::try_from(sequence).unwrap();
    Delivery {
        webhook_id: webhook.id,
        sequence,
        id: vocab::DeliveryId::new(now, number),
        event_id: vocab::EventId::new(now, number),
        kind: "batch.halted".into(),
        subject_id: format!("bat_{sequence}"),
        subject_name: "Nightly".into(),
        state: DeliveryState::Delivered,
        attempts: 1,
        next_at: None,
        created_at: now,
        tried_at: Some(now),
        duration_ms: Some(1),
        status: Some(200),
        response: None,
        error: None,
    }
}

async fn rotated_secret_signs_beside_the_old_one_for_a_time(world: &World) {
    let receiver = Receiver::new(|_| status(200)).await;
    let app = app(world, "a").await;
    let (webhook, _) = create(world, &app, input(&receiver.url, &["*"])).await;
    let overlap = SignedDuration::from_hours(1);
    let (webhook, _) = commands::rotate(&app, &world.admin(), &webhook, overlap).await.unwrap();
    commands::test(&app, &world.admin(), &webhook).await.unwrap();
    world.advance(overlap);
    commands::test(&app, &world.admin(), &webhook).await.unwrap();
    let signatures: Vec<usize> = receiver
        .heard()
        .iter()
        .map(|one| one.header("webhook-signature").split(' ').count())
        .collect();
    assert_eq!(signatures, [2, 1]);
}

testkit::both!(
    crate::support:
    events_arrive_signed_and_in_order,
    failed_delivery_is_tried_again_and_later_ones_about_it_wait,
    dead_receiver_delays_nobody_and_is_disabled_after_five_days,
    failing_since_ends_with_a_success_beside_a_failure,
    delivery_log_is_bounded,
    leaders_that_die_lose_no_event,
    selector_limits_events_about_servers_only,
    chat_gets_one_message_for_many_events,
    receivers_that_misbehave_are_failures_in_the_log,
    edit_keeps_position_and_secrets,
    rotated_secret_signs_beside_the_old_one_for_a_time,
);
