//! One successful request for every operation of the API that changes something.

use axum::http::Method;
use domain::rollout::{Change, RolloutOutcome};
use serde_json::{Value, json};
use store::webhooks::{Delivery, DeliveryState};
use vocab::{DeliveryId, EventId, Role};

use crate::fleet::{FAILED, Host, change, end, finish, join};
use crate::support::{Service, TestRequest, TestResponse};

/// Operations that use a method other than GET and change nothing.
pub(crate) const READ_ONLY: [(Method, &str); 3] = [
    (Method::POST, "/v1/preview"),
    (Method::POST, "/v1/forecast"),
    (Method::POST, "/v1/audit/verify"),
];

/// A request that succeeds once.
#[derive(Clone)]
pub(crate) struct Mutation {
    pub(crate) method: Method,
    /// The path as in the route table.
    pub(crate) route: &'static str,
    pub(crate) path: String,
    pub(crate) body: Option<Value>,
    pub(crate) status: u16,
}

impl Mutation {
    fn new(method: Method, route: &'static str, id: &str, body: Value, status: u16) -> Mutation {
        let path = route
            .split('/')
            .map(|segment| if segment.starts_with('{') { id } else { segment })
            .collect::<Vec<_>>()
            .join("/");
        let body = (method != Method::DELETE).then_some(body);
        Mutation { method, route, path, body, status }
    }

    pub(crate) fn to_request(&self, key: &str) -> TestRequest {
        let ask = TestRequest::new(self.method.clone(), &self.path).with_key(key);
        match &self.body {
            Some(body) => ask.with_json(body.clone()),
            None => ask,
        }
    }
}

fn id(response: TestResponse) -> String {
    response.json()["id"].as_str().unwrap().to_owned()
}

async fn batch(service: &Service, name: &'static str) -> String {
    let server = join(service, Host::new(name)).await;
    let body = json!({"server_ids": [server], "security_only": true});
    let batch = id(service.post("/v1/batches", body).await.is(202));
    change(service, &batch, Change::Start).await;
    batch
}

async fn schedule(service: &Service, name: &str) -> String {
    let body = json!({"name": name, "cron": "@daily", "targets": {"all": true}});
    id(service.post("/v1/schedules", body).await.is(201))
}

/// A failed delivery of a webhook.
pub(crate) async fn delivery(service: &Service, webhook: &str) -> DeliveryId {
    let now = service.clock.now();
    let id = DeliveryId::new(now, 1);
    let failed = Delivery {
        webhook_id: webhook.parse().unwrap(),
        sequence: 1,
        id,
        event_id: EventId::new(now, 1),
        kind: "batch.halted".into(),
        subject_id: "bat_1".into(),
        subject_name: "Nightly".into(),
        state: DeliveryState::Failed,
        attempts: 10,
        next_at: None,
        created_at: now,
        tried_at: Some(now),
        duration_ms: Some(12),
        status: Some(500),
        response: Some("no".into()),
        error: Some("the receiver responded with 500".into()),
    };
    let mut tx = service.app.db.begin().await.unwrap();
    store::webhooks::insert_deliveries(&mut tx, &[failed]).await.unwrap();
    tx.commit().await.unwrap();
    id
}

/// Creates what the requests need and returns one request per operation. Fails if the route table
/// has an operation without one.
pub(crate) async fn mutations(service: &Service) -> Vec<Mutation> {
    let web = join(service, Host::new("web")).await.to_string();
    let copied = Host { quarantine: Some("a copy"), ..Host::new("copied") };
    let copied = join(service, copied).await.to_string();
    let removed = join(service, Host::new("removed")).await.to_string();
    let canceled = batch(service, "canceled").await;
    let paused = batch(service, "paused").await;
    let resumed = batch(service, "resumed").await;
    service.post(&format!("/v1/batches/{resumed}/pause"), json!({})).await.is(200);
    let server = join(service, Host::new("retried")).await;
    let body = json!({"server_ids": [server], "security_only": true});
    let retried = id(service.post("/v1/batches", body.clone()).await.is(202));
    change(service, &retried, Change::Start).await;
    finish(service, &retried, server, FAILED).await;
    end(service, &retried, RolloutOutcome::CompletedWithErrors).await;
    // Created by someone who approves nothing.
    let creator = service.key(Role::Operator, None).await;
    let awaiting = async || {
        let waves = json!([{"approval": true}]);
        let body = json!({"server_ids": [server], "security_only": true, "waves": waves});
        let create = TestRequest::post("/v1/batches", body).with_key(&creator);
        let awaiting = id(create.send(&service.router).await.is(202));
        change(service, &awaiting, Change::Start).await;
        change(service, &awaiting, Change::AskApproval).await;
        awaiting
    };
    let (approved, rejected) = (awaiting().await, awaiting().await);
    let (updated, deleted) = (schedule(service, "b").await, schedule(service, "c").await);
    let ran = schedule(service, "d").await;
    let viewer = json!({"name": "k", "role": "viewer"});
    let key = id(service.post("/v1/api-keys", viewer.clone()).await.is(201));
    let token = id(service.post("/v1/enrollment-tokens", json!({})).await.is(201));
    let suppression = json!({"cve": "CVE-2026-1", "reason": "not built"});
    let suppressed = id(service.post("/v1/suppressions", suppression).await.is(201));
    let suppression = json!({"cve": "CVE-2026-2", "reason": "not built"});
    let feed = |name: &str| json!({"url": format!("https://feeds.example.org/{name}.zip")});
    let updated_feed = id(service.post("/v1/feeds", feed("a")).await.is(201));
    let removed_feed = id(service.post("/v1/feeds", feed("b")).await.is(201));
    let hook =
        |name: &str| json!({"name": name, "url": "https://hooks.example.org/a", "types": ["*"]});
    let changed_hook = id(service.post("/v1/webhooks", hook("a")).await.is(201));
    let deleted_hook = id(service.post("/v1/webhooks", hook("b")).await.is(201));
    // An address that is refused before anything is sent.
    service.by_hand("update webhooks set url = 'http://127.0.0.1:9/'").await;
    let delivery = delivery(service, &changed_hook).await;
    let daily = |name: &str| json!({"name": name, "cron": "@daily", "targets": {"all": true}});

    let freeze = |name: &str| {
        json!({"name": name, "reason": "quiet", "targets": {"tags": ["none"]},
            "cron": "0 8 * * *", "duration_minutes": 60})
    };
    let changed_freeze = id(service.post("/v1/freezes", freeze("changed")).await.is(201));
    let deleted_freeze = id(service.post("/v1/freezes", freeze("deleted")).await.is(201));

    let policy = |name: &str| {
        json!({"name": name, "targets": {"tags": ["none"]},
            "rules": [{"match": {"kev": true}, "within_days": 2}]})
    };
    let changed_policy = id(service.post("/v1/policies", policy("changed")).await.is(201));
    let deleted_policy = id(service.post("/v1/policies", policy("deleted")).await.is(201));

    let post = |route, id: &str, body, status| Mutation::new(Method::POST, route, id, body, status);
    let delete = |route, id: &str| Mutation::new(Method::DELETE, route, id, json!({}), 204);
    let update = "/v1/schedules/{schedule_id}";
    let all = vec![
        post("/v1/agents/upgrade", "", json!({"targets": {"all": true}}), 202),
        post("/v1/api-keys", "", viewer, 201),
        post("/v1/batches", "", body, 202),
        post("/v1/batches/{batch_id}/approve", &approved, json!({"comment": "ok"}), 200),
        post("/v1/batches/{batch_id}/reject", &rejected, json!({}), 200),
        post("/v1/batches/{batch_id}/cancel", &canceled, json!({}), 200),
        post("/v1/batches/{batch_id}/pause", &paused, json!({}), 200),
        post("/v1/batches/{batch_id}/resume", &resumed, json!({}), 200),
        post("/v1/batches/{batch_id}/retry", &retried, json!({}), 202),
        post("/v1/enrollment-tokens", "", json!({}), 201),
        post("/v1/feeds", "", feed("c"), 201),
        post("/v1/feeds/{feed_id}/update", &updated_feed, json!({}), 202),
        post("/v1/freezes", "", freeze("a"), 201),
        Mutation::new(
            Method::PUT,
            "/v1/freezes/{freeze_id}",
            &changed_freeze,
            freeze("renamed"),
            200,
        ),
        delete("/v1/freezes/{freeze_id}", &deleted_freeze),
        post("/v1/policies", "", policy("a"), 201),
        Mutation::new(
            Method::PUT,
            "/v1/policies/{policy_id}",
            &changed_policy,
            policy("renamed"),
            200,
        ),
        delete("/v1/policies/{policy_id}", &deleted_policy),
        post("/v1/notifications/test", "", json!({"to": "ann@example.org"}), 200),
        post("/v1/schedules", "", daily("a"), 201),
        post("/v1/schedules/{schedule_id}/run", &ran, json!({}), 202),
        post(
            "/v1/servers/edit",
            "",
            json!({"targets": {"all": true}, "add_tags": ["edited"]}),
            200,
        ),
        post("/v1/servers/{server_id}/patch", &web, json!({"security_only": true}), 202),
        post("/v1/servers/{server_id}/refresh", &web, json!({}), 202),
        post("/v1/servers/{server_id}/release", &copied, json!({}), 200),
        post("/v1/suppressions", "", suppression, 201),
        post("/v1/webhooks", "", hook("c"), 201),
        post("/v1/webhooks/{webhook_id}/test", &changed_hook, json!({}), 200),
        post("/v1/webhooks/{webhook_id}/rotate", &changed_hook, json!({}), 200),
        Mutation {
            path: format!("/v1/webhooks/{changed_hook}/deliveries/{delivery}/redeliver"),
            ..post(
                "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver",
                "",
                json!({}),
                202,
            )
        },
        Mutation::new(
            Method::PATCH,
            "/v1/webhooks/{webhook_id}",
            &changed_hook,
            json!({"types": ["batch.*"]}),
            200,
        ),
        delete("/v1/webhooks/{webhook_id}", &deleted_hook),
        Mutation::new(Method::PUT, update, &updated, daily("renamed"), 200),
        delete("/v1/schedules/{schedule_id}", &deleted),
        Mutation::new(
            Method::PATCH,
            "/v1/servers/{server_id}",
            &web,
            json!({"tags": ["blue"]}),
            200,
        ),
        delete("/v1/servers/{server_id}", &removed),
        delete("/v1/api-keys/{api_key_id}", &key),
        delete("/v1/enrollment-tokens/{token_id}", &token),
        delete("/v1/suppressions/{suppression_id}", &suppressed),
        delete("/v1/feeds/{feed_id}", &removed_feed),
    ];
    let routes = api::routes().operations();
    for (method, route, _) in &routes {
        let read_only = *method == Method::GET
            || READ_ONLY.iter().any(|(other, path)| other == method && path == route);
        let covered = all.iter().any(|case| case.method == *method && case.route == route);
        assert!(read_only != covered, "{method} {route} needs one case here, or to be READ_ONLY");
    }
    for case in &all {
        let there =
            routes.iter().any(|(method, route, _)| *method == case.method && route == case.route);
        assert!(there, "unknown operation {} {}", case.method, case.route);
    }
    all
}

/// A new admin key: its id, which the audit log uses, and the key.
pub(crate) async fn new_admin(service: &Service) -> (String, String) {
    let body = json!({"name": "somebody", "role": "admin"});
    let created = service.post("/v1/api-keys", body).await.is(201).json();
    let text = |field: &str| created[field].as_str().unwrap().to_owned();
    (text("id"), text("api_key"))
}

/// The actions of `who` in the audit log, in order.
pub(crate) async fn audited_actions(service: &Service, who: &str) -> Vec<String> {
    let mut reader = service.app.db.read().await.unwrap();
    let entries = store::audit::after(&mut reader, service.org, 0, 1_000).await.unwrap();
    assert!(entries.len() < 1_000);
    entries.into_iter().filter(|entry| entry.actor == who).map(|entry| entry.action).collect()
}
