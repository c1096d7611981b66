//! The pages of the webhooks, with a real receiver.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use serde_json::{Value, json};
use server::app::Settings;
use service::EventKind;
use service::clock::random_u128;
use store::webhooks::{Delivery, DeliveryState, insert_deliveries};
use vocab::{DeliveryId, EventId, Role};

use crate::browser::Browser;
use crate::fleet::{Host, join};
use crate::support::Service;

/// Adds an entry to the log of a webhook.
pub(crate) async fn add_delivery(
    service: &Service,
    webhook: &str,
    sequence: i64,
    state: DeliveryState,
) -> String {
    let now = service.clock.now();
    let id = DeliveryId::new(now, random_u128());
    let (is_pending, is_failed) = (state == DeliveryState::Pending, state == DeliveryState::Failed);
    let delivery = Delivery {
        webhook_id: webhook.parse().unwrap(),
        sequence,
        id,
        event_id: EventId::new(now, random_u128()),
        kind: EventKind::BatchHalted.as_str().to_owned(),
        subject_id: format!("bat_{sequence}"),
        subject_name: format!("Nightly <b> {sequence}"),
        state,
        attempts: if is_pending { 0 } else { 1 },
        next_at: is_pending.then_some(now),
        created_at: now,
        tried_at: (!is_pending).then_some(now),
        duration_ms: (!is_pending).then_some(12),
        status: (!is_pending).then_some(if is_failed { 500 } else { 200 }),
        response: (!is_pending).then(|| "<i>received</i>".to_owned()),
        error: is_failed.then(|| "the receiver responded with 500".to_owned()),
    };
    let mut tx = service.app.db.begin().await.unwrap();
    insert_deliveries(&mut tx, &[delivery]).await.unwrap();
    tx.commit().await.unwrap();
    id.to_string()
}

/// A request that the receiver got.
#[derive(Clone)]
struct Received {
    headers: HeaderMap,
    body: String,
}

impl Received {
    fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }

    /// How many of the signatures are made with this secret.
    fn signatures_by(&self, secret: &str) -> usize {
        let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
        let (id, at) = (self.header("webhook-id"), self.header("webhook-timestamp"));
        let signed = format!("{id}.{at}.{}", self.body);
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), signed.as_bytes());
        let expected = format!("v1,{}", STANDARD.encode(tag));
        self.header("webhook-signature").split(' ').filter(|one| **one == expected).count()
    }
}

/// A receiver on this host.
struct Receiver {
    url: String,
    received: Arc<Mutex<Vec<Received>>>,
    status: Arc<Mutex<StatusCode>>,
    task: tokio::task::JoinHandle<()>,
}

impl Receiver {
    async fn new() -> Receiver {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook?token=s3cret", listener.local_addr().unwrap());
        let received = Arc::new(Mutex::new(Vec::new()));
        let status = Arc::new(Mutex::new(StatusCode::OK));
        let (log, answer) = (received.clone(), status.clone());
        let router = Router::new().fallback(async move |headers: HeaderMap, body: String| {
            log.lock().unwrap().push(Received { headers, body });
            let status = *answer.lock().unwrap();
            (status, format!("<b>{}</b>", status.as_u16()))
        });
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Receiver { url, received, status, task }
    }

    fn respond_with(&self, status: StatusCode) {
        *self.status.lock().unwrap() = status;
    }

    fn last(&self) -> Received {
        self.received.lock().unwrap().last().cloned().unwrap()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The secret on a page that shows one.
fn shown_secret(page: &str) -> String {
    let secret = page.split("<pre id=\"secret\">").nth(1).unwrap().split('<').next().unwrap();
    assert!(secret.starts_with("whsec_"), "{page}");
    // The characters of base64 that pages escape.
    secret.replace("&#43;", "+").replace("&#47;", "/").replace("&#61;", "=")
}

/// The value of a hidden field.
fn hidden(page: &str, name: &str) -> String {
    let field = page.split(&format!("name=\"{name}\" value=\"")).nth(1).unwrap();
    field.split('"').next().unwrap().to_owned()
}

async fn webhook_is_managed_from_creation_to_deletion(service: &Service) {
    let receiver = Receiver::new().await;
    let (_, router) =
        service.again(Settings { webhook_allow_local: true, ..Settings::default() }).await;
    let mut ann = Browser::signed_in(service, "ann", Role::Admin).await;
    ann.switch_to(&router);
    let form = [
        ("name", "Chat"),
        ("url", receiver.url.as_str()),
        ("format", "standard"),
        ("types", "batch.*"),
        ("types", "server.offline"),
        ("environment", "production"),
        ("tags", "web, team:shop"),
    ];
    let page = ann.submit("/settings/webhooks/new", &form).await.is(200).text();
    let first = shown_secret(&page);
    let path = page.split("class=\"button\" href=\"").nth(1).unwrap().split('"').next().unwrap();
    let path = path.to_owned();
    let list = ann.get("/settings/webhooks").await.is(200).text();
    let csv = ann.get("/settings/webhooks.csv").await.is(200).text();
    let details = ann.get(&path).await.is(200).text();
    for shown in [&list, &csv, &details] {
        assert!(!shown.contains(&first) && shown.contains("server.offline"), "{shown}");
    }
    // Lists do not show the part of the URL that may contain a secret.
    assert!(list.contains("http://127.0.0.1:") && !list.contains("s3cret"), "{list}");
    assert!(csv.contains("http://127.0.0.1:") && !csv.contains("s3cret"), "{csv}");
    assert!(details.contains("s3cret") && details.contains("production"), "{details}");
    // The form shows what was saved.
    let edit = ann.get(&format!("{path}/edit")).await.is(200).text();
    for shown in [
        "value=\"batch.*\" checked",
        "value=\"server.offline\" checked",
        "value=\"production\"",
        "value=\"web, team:shop\"",
    ] {
        assert!(edit.contains(shown), "{shown}: {edit}");
    }
    assert_eq!(edit.matches("name=\"types\"").count(), 1 + EventKind::ALL.len() + 15);
    let generation = hidden(&edit, "generation");
    let form = [
        ("name", "On-call"),
        ("url", receiver.url.as_str()),
        ("format", "standard"),
        ("types", "task.failed"),
        ("generation", &generation),
    ];
    ann.submit(&format!("{path}/edit"), &form).await.is(303);
    let id = path.rsplit('/').next().unwrap();
    let api = service.get(&format!("/v1/webhooks/{id}")).await.is(200).json();
    assert_eq!((&api["name"], &api["types"]), (&json!("On-call"), &json!(["task.failed"])));
    assert_eq!(api["targets"], Value::Null);
    // A page that was loaded before this change must not undo it.
    let stale = ann.submit(&format!("{path}/edit"), &form).await.is(412).text();
    assert!(stale.contains("Not saved"), "{stale}");
    // A test that is accepted, and one that is not.
    let page = ann.submit(&format!("{path}/test"), &[]).await.is(200).text();
    assert!(page.contains("accepted the test") && page.contains("&#60;b&#62;200"), "{page}");
    let request = receiver.last();
    assert_eq!(request.signatures_by(&first), 1);
    let sent: Value = serde_json::from_str(&request.body).unwrap();
    assert_eq!(
        (&sent["type"], &sent["data"]["subject"]["id"]),
        (&json!("webhook.test"), &json!(id))
    );
    receiver.respond_with(StatusCode::IM_A_TEAPOT);
    let page = ann.submit(&format!("{path}/test"), &[]).await.is(200).text();
    assert!(page.contains("did not accept the test") && page.contains("418"), "{page}");
    receiver.respond_with(StatusCode::OK);
    // Rotation asks first. Afterwards, requests carry both signatures.
    let page = ann.submit(&format!("{path}/rotate"), &[]).await.is(200).text();
    assert!(page.contains("Rotate the secret of On-call?") && !page.contains("whsec_"), "{page}");
    let page = ann.submit(&format!("{path}/rotate"), &[("go", "1")]).await.is(200).text();
    let second = shown_secret(&page);
    ann.submit(&format!("{path}/test"), &[]).await.is(200);
    let request = receiver.last();
    assert_eq!((request.signatures_by(&first), request.signatures_by(&second)), (1, 1));
    // The log, its filter, and sending again.
    let failed = add_delivery(service, id, 1, DeliveryState::Failed).await;
    add_delivery(service, id, 2, DeliveryState::Delivered).await;
    let page = ann.get(&path).await.is(200).text();
    assert!(page.contains("Nightly &#60;b&#62; 1") && page.contains("Nightly &#60;b&#62; 2"));
    let page = ann.get(&format!("{path}?state=failed")).await.is(200).text();
    assert!(page.contains("Nightly &#60;b&#62; 1") && !page.contains("Nightly &#60;b&#62; 2"));
    assert!(page.contains("The receiver responded with 500."), "{page}");
    ann.submit(&format!("{path}/deliveries/{failed}/redeliver"), &[]).await.is(303);
    let page = ann.get(&format!("{path}?state=pending")).await.is(200).text();
    assert!(page.contains("Nightly &#60;b&#62; 1") && page.contains("1 delivery"), "{page}");
    // Disabled, enabled, deleted.
    ann.submit(&format!("{path}/disable"), &[]).await.is(303);
    assert!(ann.get(&path).await.is(200).text().contains("No events are sent"));
    ann.submit(&format!("{path}/enable"), &[]).await.is(303);
    assert!(!ann.get(&path).await.is(200).text().contains("No events are sent"));
    let page = ann.submit(&format!("{path}/delete"), &[]).await.is(200).text();
    assert!(page.contains("Delete On-call?"), "{page}");
    ann.submit(&format!("{path}/delete"), &[("go", "1")]).await.is(303);
    ann.get(&path).await.is(404);
    assert!(ann.get("/settings/webhooks").await.is(200).text().contains("No webhooks yet"));
    let log = ann.get("/activity").await.is(200).text();
    for entry in ["created webhook", "edited webhook", "tested webhook", "rotated the secret"] {
        assert!(log.contains(entry), "{entry}: {log}");
    }
    for secret in [&first, &second, "s3cret"] {
        assert!(!log.contains(secret), "{log}");
    }
}

async fn webhook_form_shows_all_errors_and_keeps_the_input(service: &Service) {
    let ann = Browser::signed_in(service, "ann", Role::Admin).await;
    let new = "/settings/webhooks/new";
    let form = [
        ("name", ""),
        ("url", "nonsense"),
        ("format", "fax"),
        ("environment", "a b"),
        ("tags", "<i>"),
    ];
    let page = ann.submit(new, &form).await.is(422).text();
    for field in ["name", "url", "format", "types", "environment", "tags"] {
        assert!(page.contains(&format!("id=\"f-{field}-error\"")), "{field}: {page}");
        assert!(page.contains(&format!("href=\"#f-{field}\"")), "{field}: {page}");
    }
    assert!(page.contains("value=\"nonsense\"") && page.contains("value=\"a b\""), "{page}");
    assert!(page.contains("Not saved: check 6 fields."), "{page}");
    // An address of this host is refused, unless the operator of the service allows it.
    let form =
        [("name", "Chat"), ("format", "slack"), ("types", "*"), ("url", "http://127.0.0.1/")];
    let page = ann.submit(new, &form).await.is(422).text();
    assert!(page.contains("--webhook-allow-local"), "{page}");
    assert!(page.contains("value=\"*\" checked") && page.contains("\"slack\" selected"), "{page}");
    // Names are unique.
    let form =
        [("name", "Chat"), ("format", "slack"), ("types", "*"), ("url", "https://chat.example/x")];
    ann.submit(new, &form).await.is(200);
    let page = ann.submit(new, &form).await.is(409).text();
    assert!(page.contains("id=\"f-name-error\""), "{page}");
    // Servers that were selected by name stay selected.
    let server = join(service, Host::new("web-1")).await.to_string();
    let body = json!({"name": "One", "url": "https://one.example/", "types": ["*"],
        "targets": {"server_ids": [server]}});
    let made = service.post("/v1/webhooks", body).await.is(201).json();
    let path = format!("/settings/webhooks/{}/edit", made["id"].as_str().unwrap());
    let page = ann.get(&path).await.is(200).text();
    assert!(page.contains(&format!("value=\"{server}\" checked>web-1")), "{page}");
}

async fn webhook_pages_are_for_administrators_of_the_organization(service: &Service) {
    let body = json!({"name": "Chat", "url": "https://chat.example/x", "types": ["*"]});
    let made = service.post("/v1/webhooks", body).await.is(201).json();
    let id = made["id"].as_str().unwrap();
    let delivery = add_delivery(service, id, 1, DeliveryState::Failed).await;
    let path = format!("/settings/webhooks/{id}");
    let eve = Browser::of_other_organization(service).await;
    let bob = Browser::signed_in(service, "bob", Role::Operator).await;
    assert!(eve.get("/settings/webhooks").await.is(200).text().contains("No webhooks yet"));
    bob.get("/settings/webhooks").await.is(403);
    for (browser, status) in [(&eve, 404), (&bob, 403)] {
        for page in ["", "/edit", "/deliveries.csv"] {
            browser.get(&format!("{path}{page}")).await.is(status);
        }
        let redeliver = format!("/deliveries/{delivery}/redeliver");
        for action in ["/test", "/enable", "/disable", "/rotate", "/delete", &redeliver] {
            browser.submit(&format!("{path}{action}"), &[("go", "1")]).await.is(status);
        }
        let form =
            [("name", "x"), ("url", "https://x.example/"), ("format", "slack"), ("types", "*")];
        browser.submit(&format!("{path}/edit"), &form).await.is(status);
    }
    assert_eq!(service.get(&format!("/v1/webhooks/{id}")).await.is(200).json()["name"], "Chat");
}

testkit::both!(
    crate::support:
    webhook_is_managed_from_creation_to_deletion,
    webhook_form_shows_all_errors_and_keeps_the_input,
    webhook_pages_are_for_administrators_of_the_organization,
);
