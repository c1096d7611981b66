//! `/v1/events`.

use axum::body::Body;
use axum::http::Request;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use service::{EventKind, emit};
use tower::ServiceExt as _;
use vocab::{Installed, Role};

use crate::fleet::{Host, join, scan};
use crate::resources::feeds::{import_feed, lines, osv, write_file};
use crate::support::{Service, TestRequest};

async fn happen(service: &Service, kind: EventKind, subject: &str) {
    let mut tx = service.app.db.begin().await.unwrap();
    let now = service.clock.now();
    emit(&mut tx, service.org, now, "engine", kind, subject, json!({"reason": "because"}));
    tx.commit().await.unwrap();
}

async fn list(service: &Service, query: &str) -> Value {
    service.get(&format!("/v1/events{query}")).await.is(200).json()
}

fn sequences(list: &Value) -> Vec<u64> {
    list["data"].as_array().unwrap().iter().map(|one| one["sequence"].as_u64().unwrap()).collect()
}

async fn events_are_listed_without_gaps_and_by_type_and_subject(service: &Service) {
    // The keys of the service are events already.
    let before = list(service, "").await["meta"]["latest"].as_u64().unwrap();
    for n in 0..7 {
        let kind = if n % 2 == 0 { EventKind::BatchPaused } else { EventKind::ServerOffline };
        happen(service, kind, &format!("bat_{}", n % 3)).await;
    }
    let all = list(service, &format!("?after={before}")).await;
    assert_eq!(sequences(&all), (before + 1..=before + 7).collect::<Vec<_>>());
    let first = &all["data"][0];
    assert_eq!(first["type"], "batch.paused");
    assert_eq!(first["actor"], json!({"type": "system", "id": "engine", "name": null}));
    assert_eq!(first["subject"], json!({"type": "batch", "id": "bat_0", "name": "bat_0"}));
    assert_eq!(first["data"], json!({"reason": "because"}));
    assert_eq!(first["url"], "/batches/bat_0");
    let some = list(service, &format!("?after={before}&type=batch.*&limit=3")).await;
    assert_eq!(sequences(&some), [before + 1, before + 3, before + 5]);
    assert_eq!(some["meta"], json!({"limit": 3, "last": before + 5, "latest": before + 7}));
    let next = some["links"]["next"].as_str().unwrap();
    let next = service.get(next).await.is(200).json();
    assert_eq!(sequences(&next), [before + 7]);
    assert_eq!((&next["links"]["next"], &next["meta"]["last"]), (&Value::Null, &json!(before + 7)));
    let about = list(service, &format!("?after={before}&subject=bat_1")).await;
    assert_eq!(sequences(&about), [before + 2, before + 5]);
    // Events of other organizations are not visible, and have their own numbers.
    let stranger = service.stranger().await;
    let theirs = TestRequest::get("/v1/events").with_key(&stranger).send(&service.router).await;
    assert!(!theirs.is(200).text().contains("bat_0"));
}

async fn reader_learns_that_events_were_deleted(service: &Service) {
    for n in 0..5 {
        happen(service, EventKind::BatchPaused, &format!("bat_{n}")).await;
    }
    let latest = list(service, "").await["meta"]["latest"].as_u64().unwrap();
    service.by_hand(&format!("delete from events where sequence < {}", latest - 1)).await;
    let gone = service.get(&format!("/v1/events?after={}", latest - 3)).await;
    let gone = gone.is_problem(410, "events_expired").json();
    assert!(
        gone["detail"].as_str().unwrap().contains(&format!("up to sequence number {}", latest - 2)),
        "{gone}"
    );
    assert_eq!(
        sequences(&list(service, &format!("?after={}", latest - 2)).await),
        [latest - 1, latest]
    );
    assert_eq!(sequences(&list(service, "").await), [latest - 1, latest]);
    service
        .get(&format!("/v1/events?after={}", latest + 1))
        .await
        .is_problem(409, "unknown_sequence");
    service.get("/v1/events?after=-1").await.is_problem(400, "invalid_parameter");
    let wrong = service.get("/v1/events?type=batch.dance").await;
    wrong.is_problem(400, "invalid_parameter");
}

async fn limited_key_sees_events_about_its_servers_only(service: &Service) {
    let ours = Host { environment: Some("staging"), ..Host::new("web-1") };
    let ours = join(service, ours).await.to_string();
    let theirs = join(service, Host::new("web-2")).await.to_string();
    for subject in [&ours, &theirs, &"bat_1".to_owned()] {
        happen(service, EventKind::ServerOffline, subject).await;
    }
    let limited = service.key(Role::Viewer, Some(&["staging"])).await;
    let seen = TestRequest::get("/v1/events")
        .with_key(&limited)
        .send(&service.router)
        .await
        .is(200)
        .json();
    let seen = seen["data"].as_array().unwrap();
    assert!(!seen.is_empty());
    for event in seen {
        assert_eq!(
            (&event["subject"]["id"], &event["environment"]),
            (&json!(ours), &json!("staging"))
        );
        assert_eq!(event["subject"]["name"], "web-1");
    }
}

/// A viewer cannot list users, keys, tokens and webhooks, and does not learn of them here.
async fn events_about_accounts_and_credentials_need_an_admin(service: &Service) {
    service.post("/v1/api-keys", json!({"name": "secret project", "role": "viewer"})).await.is(201);
    happen(service, EventKind::BatchPaused, "bat_1").await;
    let read = async |key: &str, query: &str| {
        let request = TestRequest::get(&format!("/v1/events{query}")).with_key(key);
        request.send(&service.router).await.is(200).json()
    };
    let all = read(&service.admin, "").await;
    assert!(all.to_string().contains("secret project"), "{all}");
    for key in [&service.operator, &service.viewer] {
        let seen = read(key, "").await;
        let kinds: Vec<&str> = seen["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["type"].as_str().unwrap())
            .collect();
        assert_eq!(kinds, ["batch.paused"], "{seen}");
        let none = read(key, "?type=api_key.*").await;
        assert_eq!((&none["data"], &none["meta"]["last"]), (&json!([]), &all["meta"]["latest"]));
    }
}

async fn cves_are_opened_become_exploited_and_are_closed(service: &Service) {
    let curl = |version: &str| vec![Installed::new("curl", version, "amd64")];
    let web = join(service, Host { installed: curl("1.0"), ..Host::new("web-1") }).await;
    let advisory = osv("DSA-1", "2026-11-13T00:00:00Z", "curl", "1.1", &["CVE-2026-1"]);
    import_feed(service, &write_file(service, "Debian.jsonl", &lines(&[advisory]))).await.unwrap();
    let happened = async || {
        service::projections::findings::rebuild(&service.app, service.org).await.unwrap();
        let found = list(service, "?type=cve.*").await["data"].as_array().unwrap().clone();
        found
            .into_iter()
            .map(|event| (event["type"].clone(), event["data"].clone()))
            .collect::<Vec<_>>()
    };
    let opened = json!({"cve": "CVE-2026-1", "severity": "unknown", "kev": false, "affected_servers": 1,
        "suppressed_servers": 0, "packages": ["curl"]});
    assert_eq!(happened().await, [(json!("cve.opened"), opened.clone())]);
    // Another server with the same CVE is not an event.
    join(service, Host { installed: curl("1.0"), ..Host::new("web-2") }).await;
    assert_eq!(happened().await.len(), 1);
    let kev = json!({"title": "list", "catalogVersion": "1", "dateReleased": "2026-11-13T00:00:00Z", "count": 1,
        "vulnerabilities": [{"cveID": "CVE-2026-1", "dateAdded": "2026-11-12", "knownRansomwareCampaignUse": "Known"}]});
    import_feed(service, &write_file(service, "kev.json", &kev.to_string())).await.unwrap();
    let seen = happened().await;
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert_eq!(
        (&seen[1].0, &seen[1].1["kev"], &seen[1].1["affected_servers"]),
        (&json!("cve.exploited"), &json!(true), &json!(2))
    );
    scan(service, web, &curl("1.1"), &[]).await;
    assert_eq!(happened().await.len(), 2);
    let second = service.get("/v1/servers?q=web-2").await.is(200).json()["data"][0]["id"].clone();
    scan(service, second.as_str().unwrap().parse().unwrap(), &curl("1.1"), &[]).await;
    let seen = happened().await;
    assert_eq!(seen.last().unwrap(), &(json!("cve.closed"), json!({"cve": "CVE-2026-1"})));
    assert_eq!(seen.len(), 3);
}

/// The next event of a stream: its id and its data.
async fn next(
    stream: &mut (impl futures_util::Stream<Item = Result<axum::body::Bytes, axum::Error>> + Unpin),
) -> (u64, Value) {
    let mut text = String::new();
    while !text.ends_with("\n\n") || text.starts_with(':') {
        if text.ends_with("\n\n") {
            text.clear();
        }
        text.push_str(std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap());
    }
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
    };
    (field("id:").parse().unwrap(), serde_json::from_str(&field("data:")).unwrap())
}

async fn stream_continues_after_the_last_event_id(service: &Service) {
    let open = async |id: Option<u64>| {
        let mut request = Request::get("/v1/events/stream?type=batch.*")
            .header("authorization", format!("Bearer {}", service.viewer));
        if let Some(id) = id {
            request = request.header("last-event-id", id);
        }
        let response =
            service.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        response.into_body().into_data_stream()
    };
    happen(service, EventKind::BatchPaused, "bat_0").await;
    let mut stream = open(None).await;
    happen(service, EventKind::BatchPaused, "bat_1").await;
    happen(service, EventKind::ServerOffline, "bat_1").await;
    happen(service, EventKind::BatchResumed, "bat_2").await;
    let (first, event) = next(&mut stream).await;
    assert_eq!((&event["subject"]["id"], &event["sequence"]), (&json!("bat_1"), &json!(first)));
    drop(stream);
    let mut stream = open(Some(first)).await;
    let (second, event) = next(&mut stream).await;
    assert_eq!((second, &event["type"]), (first + 2, &json!("batch.resumed")));
    // Far more events than are read at once.
    for n in 0..250 {
        happen(service, EventKind::BatchPaused, &format!("bat_{n}")).await;
    }
    for n in 1..=250 {
        assert_eq!(next(&mut stream).await.0, second + n);
    }
    let bad = Request::get("/v1/events/stream")
        .header("authorization", format!("Bearer {}", service.viewer))
        .header("last-event-id", "x")
        .body(Body::empty());
    let bad = service.router.clone().oneshot(bad.unwrap()).await.unwrap();
    assert_eq!(bad.status(), 400);
}

testkit::both!(
    crate::support:
    events_are_listed_without_gaps_and_by_type_and_subject,
    reader_learns_that_events_were_deleted,
    limited_key_sees_events_about_its_servers_only,
    events_about_accounts_and_credentials_need_an_admin,
    cves_are_opened_become_exploited_and_are_closed,
    stream_continues_after_the_last_event_id,
);
