//! `/v1/freezes`, and what freezes change elsewhere.

use std::collections::BTreeSet;

use axum::http::Method;
use serde_json::{Value, json};
use service::queries::freezes::{frozen_until, next_change};
use vocab::{Role, ServerId};

use crate::fleet::{Host, join};
use crate::support::{Service, TestRequest, TestResponse};

fn sale() -> Value {
    json!({"name": "Sale", "reason": "Nothing may break", "targets": {"environment": "production"},
        "starts_at": "2026-11-10T00:00:00Z", "ends_at": "2026-11-30T08:00:00Z"})
}

fn office() -> Value {
    json!({"name": "Office", "reason": "Customers work", "targets": {"all": true},
        "cron": "0 8 * * MON-FRI", "duration_minutes": 600, "timezone": "Europe/Berlin"})
}

async fn send(service: &Service, method: Method, path: &str, body: Value) -> TestResponse {
    let ask = TestRequest::new(method, path).with_key(&service.operator).with_json(body);
    ask.send(&service.router).await
}

async fn create(service: &Service, body: Value) -> Value {
    send(service, Method::POST, "/v1/freezes", body).await.is(201).json()
}

async fn freeze_is_created_read_replaced_and_deleted(service: &Service) {
    join(service, Host::new("web-1")).await;
    let created = send(service, Method::POST, "/v1/freezes", sale()).await.is(201);
    let (path, etag) = (created.header("location").to_owned(), created.header("etag").to_owned());
    let freeze = created.json();
    assert_eq!(path, format!("/v1/freezes/{}", freeze["id"].as_str().unwrap()));
    for (field, value) in sale().as_object().unwrap() {
        assert_eq!(&freeze[field], value, "{field}");
    }
    let state = |freeze: &Value| {
        (freeze["active"].clone(), freeze["active_until"].clone(), freeze["servers"].clone())
    };
    assert_eq!(state(&freeze), (json!(true), json!("2026-11-30T08:00:00Z"), json!(1)));
    assert_eq!((&freeze["next"], &freeze["cron"]), (&json!([]), &Value::Null));
    assert_eq!(freeze.get("warnings"), None);
    assert_eq!(service.get(&path).await.is(200).json(), freeze);
    send(service, Method::POST, "/v1/freezes", sale()).await.is_problem(409, "already_exists");

    let ask = TestRequest::new(Method::PUT, &path).with_key(&service.operator);
    let ask = ask.with_json(office()).with("if-match", &etag);
    let replaced = ask.clone().send(&service.router).await.is(200).json();
    assert_eq!(replaced["starts_at"], Value::Null);
    assert_eq!(replaced["next"].as_array().unwrap().len(), 5);
    // The clock stands at Sunday, 15 November, 04:00 UTC; Berlin is an hour ahead.
    assert_eq!(
        replaced["next"][0],
        json!({"starts_at": "2026-11-16T07:00:00Z", "ends_at": "2026-11-16T17:00:00Z"})
    );
    assert_eq!(state(&replaced), (json!(false), Value::Null, json!(1)));
    ask.send(&service.router).await.is_problem(412, "precondition_failed");
    let list = service.get("/v1/freezes").await.is(200).json();
    assert_eq!((&list["meta"]["total"], &list["data"][0]), (&json!(1), &replaced));
    send(service, Method::DELETE, &path, json!({})).await.is(204);
    service.get(&path).await.is_problem(404, "not_found");
    send(service, Method::PUT, &path, office()).await.is_problem(404, "not_found");
}

async fn invalid_freeze_is_rejected_with_every_error(service: &Service) {
    let body = json!({"name": "", "reason": "", "targets": {"tag": "web"},
        "starts_at": "2026-11-20T00:00:00Z", "ends_at": "2026-11-20T00:00:00Z"});
    let refused = send(service, Method::POST, "/v1/freezes", body).await;
    let errors = refused.is_problem(422, "invalid_body").json()["errors"].clone();
    let pointers: BTreeSet<_> =
        errors.as_array().unwrap().iter().map(|error| error["pointer"].as_str().unwrap()).collect();
    assert_eq!(pointers, BTreeSet::from(["/ends_at", "/name", "/reason", "/targets/tag"]));
    let viewer = service.key(Role::Viewer, None).await;
    let ask = TestRequest::post("/v1/freezes", sale()).with_key(&viewer);
    ask.send(&service.router).await.is_problem(403, "forbidden");
}

async fn freeze_without_servers_and_ended_freeze_have_warnings(service: &Service) {
    join(service, Host::new("web-1")).await;
    let mut body = sale();
    body["targets"] = json!({"environment": "prodction"});
    let made = create(service, body).await;
    let warning = made["warnings"][0].as_str().unwrap();
    assert!(warning.contains("Did you mean \"production\"?"), "{warning}");
    assert_eq!(made["servers"], 0);
    let mut body = sale();
    (body["name"], body["ends_at"]) = (json!("Old"), json!("2026-11-12T00:00:00Z"));
    let made = create(service, body).await;
    assert_eq!(
        (&made["active"], &made["warnings"]),
        (&json!(false), &json!(["This freeze has ended."]))
    );
}

async fn environment_limited_key_sees_and_creates_only_its_own(service: &Service) {
    let theirs = create(service, sale()).await;
    let key = service.key(Role::Operator, Some(&["staging"])).await;
    let ask = |method: Method, path: &str| TestRequest::new(method, path).with_key(&key);
    let path = format!("/v1/freezes/{}", theirs["id"].as_str().unwrap());
    ask(Method::GET, &path).send(&service.router).await.is_problem(404, "not_found");
    let beyond = ask(Method::POST, "/v1/freezes").with_json(office());
    beyond.send(&service.router).await.is_problem(403, "forbidden");
    let mut body = office();
    body["targets"] = json!({"environment": "staging"});
    ask(Method::POST, "/v1/freezes").with_json(body).send(&service.router).await.is(201);
    let list = ask(Method::GET, "/v1/freezes").send(&service.router).await.is(200).json();
    assert_eq!((&list["meta"]["total"], &list["data"][0]["name"]), (&json!(1), &json!("Office")));
}

async fn servers_are_frozen_by_the_freeze_that_ends_last(service: &Service) {
    let mut tagged = Host::new("web-1");
    tagged.tags = &["web"];
    let web = join(service, tagged).await;
    let db = join(service, Host::new("db-1")).await;
    let staging = join(service, Host::new("stg-1").in_environment("staging")).await;
    let now = service.clock.now();
    let frozen = async |ids: &[ServerId]| {
        let mut reader = service.app.db.read().await.unwrap();
        let found = frozen_until(&mut reader, service.org, ids, now).await.unwrap();
        let shown = found.into_iter().map(|(id, (until, _, name))| (id, until.to_string(), name));
        shown.collect::<Vec<_>>()
    };
    let all = [web, db, staging];
    assert_eq!(frozen(&all).await, []);
    create(service, sale()).await;
    create(service, office()).await;
    let with = |name: &str, targets: Value, ends_at: &str| {
        let mut body = sale();
        body["name"] = json!(name);
        body["targets"] = targets;
        body["ends_at"] = json!(ends_at);
        body
    };
    create(service, with("Web", json!({"tags": ["web"]}), "2026-12-01T00:00:00Z")).await;
    create(service, with("Short", json!({"server_ids": [db, staging]}), "2026-11-20T00:00:00Z"))
        .await;
    let mut expected = vec![
        (web, "2026-12-01T00:00:00Z".to_owned(), "Web".to_owned()),
        (db, "2026-11-30T08:00:00Z".to_owned(), "Sale".to_owned()),
        (staging, "2026-11-20T00:00:00Z".to_owned(), "Short".to_owned()),
    ];
    expected.sort();
    assert_eq!(frozen(&all).await, expected);
    assert_eq!(frozen(&[staging]).await.len(), 1, "only the servers that were asked about");
    assert_eq!(frozen(&[]).await, []);
    let mut reader = service.app.db.read().await.unwrap();
    let next = next_change(&mut reader, service.org, now).await.unwrap();
    assert_eq!(next.unwrap().to_string(), "2026-11-16T07:00:00Z", "the start of Office");
}

async fn schedule_warns_of_a_freeze_that_covers_its_next_runs(service: &Service) {
    join(service, Host::new("web-1")).await;
    join(service, Host::new("db-1").in_environment("staging")).await;
    let nightly =
        json!({"name": "Nightly", "cron": "0 3 * * *", "targets": {"environment": "production"}});
    let made = service.post("/v1/schedules", nightly).await.is(201);
    let path = made.header("location").to_owned();
    assert_eq!(made.json().get("warnings"), None);
    // A freeze of other servers, and one of a part of them.
    let mut body = sale();
    (body["name"], body["targets"]) = (json!("Staging"), json!({"environment": "staging"}));
    create(service, body).await;
    assert_eq!(service.get(&path).await.is(200).json().get("warnings"), None);
    let mut body = sale();
    // It covers the first of the next runs.
    (body["targets"], body["ends_at"]) = (json!({"os": "debian"}), json!("2026-11-17T02:00:00Z"));
    create(service, body).await;
    let warnings = service.get(&path).await.is(200).json()["warnings"].clone();
    assert_eq!(
        warnings,
        json!([
            "The run at 2026-11-16 03:00 will be skipped: the freeze \"Sale\" covers all servers \
                until 2026-11-17 02:00 (UTC)."
        ])
    );
}

async fn run_whose_servers_are_all_frozen_is_skipped(service: &Service) {
    let web = join(service, Host::new("web-1")).await;
    let nightly = json!({"name": "Nightly", "cron": "0 3 * * *", "targets": {"all": true}});
    let path = service.post("/v1/schedules", nightly).await.is(201).header("location").to_owned();
    let freeze = create(service, sale()).await;
    let run = service.post(&format!("{path}/run"), json!({})).await.is(202).json();
    assert_eq!(
        (&run["state"], &run["skip_reason"], &run["batch_id"]),
        (&json!("skipped"), &json!("freeze"), &Value::Null)
    );
    // A second server that is not frozen: the run starts, and the frozen one waits.
    join(service, Host::new("stg-1").in_environment("staging")).await;
    let run = service.post(&format!("{path}/run"), json!({})).await.is(202).json();
    assert_eq!((&run["skip_reason"], &run["progress"]["total"]), (&Value::Null, &json!(2)));
    send(
        service,
        Method::DELETE,
        &format!("/v1/freezes/{}", freeze["id"].as_str().unwrap()),
        json!({}),
    )
    .await
    .is(204);
    let mut reader = service.app.db.read().await.unwrap();
    let found = frozen_until(&mut reader, service.org, &[web], service.clock.now()).await.unwrap();
    assert!(found.is_empty());
}

async fn changes_write_events(service: &Service) {
    let made = create(service, sale()).await;
    let path = format!("/v1/freezes/{}", made["id"].as_str().unwrap());
    send(service, Method::PUT, &path, office()).await.is(200);
    send(service, Method::DELETE, &path, json!({})).await.is(204);
    let events = service.get("/v1/events?type=freeze.*").await.is(200).json();
    let kinds: Vec<_> = events["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["freeze.created", "freeze.updated", "freeze.deleted"]);
    assert_eq!(events["data"][0]["subject"]["type"], "freeze");
    assert_eq!(events["data"][0]["data"]["name"], "Sale");
}

testkit::both!(
    crate::support:
    freeze_is_created_read_replaced_and_deleted,
    invalid_freeze_is_rejected_with_every_error,
    freeze_without_servers_and_ended_freeze_have_warnings,
    environment_limited_key_sees_and_creates_only_its_own,
    servers_are_frozen_by_the_freeze_that_ends_last,
    schedule_warns_of_a_freeze_that_covers_its_next_runs,
    run_whose_servers_are_all_frozen_is_skipped,
    changes_write_events,
);
