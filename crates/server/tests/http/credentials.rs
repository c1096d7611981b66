//! API keys and enrollment tokens: created, shown once, listed, revoked.

use axum::http::Method;
use jiff::SignedDuration;
use serde_json::json;
use server::app::Settings;
use vocab::Role;

use crate::support::{Service, TestRequest};

async fn new_key_is_shown_once_and_works_immediately(service: &Service) {
    let made = service.post("/v1/api-keys", json!({"name": "ci", "role": "viewer"})).await.is(201);
    let text = made.json()["api_key"].as_str().unwrap().to_owned();
    assert!(text.starts_with("fmk_"), "{text}");
    let location = made.header("location").to_owned();
    let shown = service.get(&location).await.is(200);
    assert_eq!(shown.json()["name"], "ci");
    assert_eq!(shown.json().get("api_key"), None);
    assert_eq!(shown.header("etag"), made.header("etag"));
    let list = service.get("/v1/api-keys").await.is(200);
    assert!(!String::from_utf8_lossy(&list.bytes).contains("fmk_"));
    TestRequest::get(&location)
        .with_key(&text)
        .send(&service.router)
        .await
        .is_problem(403, "forbidden");
}

async fn revoked_key_stops_immediately_and_on_replicas_within_a_second(service: &Service) {
    let (_, elsewhere) = service.again(Settings::default()).await;
    let made = service.post("/v1/api-keys", json!({"name": "ci", "role": "admin"})).await.is(201);
    let text = made.json()["api_key"].as_str().unwrap().to_owned();
    let ask = TestRequest::get("/v1/api-keys").with_key(&text);
    ask.clone().send(&service.router).await.is(200);
    ask.clone().send(&elsewhere).await.is(200);
    service.delete(made.header("location")).await.is(204);
    ask.clone().send(&service.router).await.is_problem(401, "unauthenticated");
    service.clock.advance(SignedDuration::from_secs(1));
    ask.send(&elsewhere).await.is_problem(401, "unauthenticated");
    service.delete(made.header("location")).await.is(204);
    let shown = service.get(made.header("location")).await.is(200).json();
    assert_eq!(shown["revoked_at"], "2026-11-15T04:00:00Z");
}

async fn concurrent_revocations_of_a_key_all_succeed(service: &Service) {
    let made = service.post("/v1/api-keys", json!({"name": "ci", "role": "viewer"})).await.is(201);
    let path = made.header("location");
    let answers = futures_util::future::join_all((0..50).map(|_| service.delete(path))).await;
    answers.into_iter().for_each(|answer| drop(answer.is(204)));
    let shown = service.get(path).await.is(200).json();
    assert_eq!(shown["revoked_at"], "2026-11-15T04:00:00Z");
}

async fn key_stops_working_when_it_expires(service: &Service) {
    let body = json!({"name": "short", "role": "admin", "expires_at": "2026-11-15T05:00:00Z"});
    let created = service.post("/v1/api-keys", body).await.is(201);
    let text = created.json()["api_key"].as_str().unwrap().to_owned();
    let ask = TestRequest::get("/v1/api-keys").with_key(&text);
    ask.clone().send(&service.router).await.is(200);
    service.clock.advance(SignedDuration::from_hours(1));
    let refusal = ask.send(&service.router).await.is_problem(401, "unauthenticated");
    assert!(refusal.json()["detail"].as_str().unwrap().contains("expired"));
}

async fn all_errors_of_a_new_key_are_reported_at_once(service: &Service) {
    let body = json!({"name": " ", "role": "amdin", "environments": ["ok", "not ok"],
        "expires_at": "tomorrow"});
    let refusal = service.post("/v1/api-keys", body).await.is_problem(422, "invalid_body").json();
    let at: Vec<&str> = refusal["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["pointer"].as_str().unwrap())
        .collect();
    assert_eq!(at, ["/name", "/role", "/environments/1", "/expires_at"]);
    assert!(refusal["errors"][1]["detail"].as_str().unwrap().contains("did you mean `admin`?"));
    let past = json!({"name": "x", "role": "admin", "expires_at": "2020-01-01T00:00:00Z"});
    service.post("/v1/api-keys", past).await.is_problem(422, "invalid_body");
    assert_eq!(service.get("/v1/api-keys").await.json()["meta"]["total"], 3);
}

async fn last_admin_key_cannot_be_revoked(service: &Service) {
    let list = service.get("/v1/api-keys").await.json();
    let mine = list["data"].as_array().unwrap().iter().find(|key| key["role"] == "admin").unwrap();
    let path = format!("/v1/api-keys/{}", mine["id"].as_str().unwrap());
    service.delete(&path).await.is_problem(409, "last_admin_key");
    service.key(Role::Admin, None).await;
    service.delete(&path).await.is(204);
    service.get("/v1/api-keys").await.is_problem(401, "unauthenticated");
}

async fn environment_limited_key_creates_no_wider_key(service: &Service) {
    let limited = service.key(Role::Admin, Some(&["staging"])).await;
    let ask =
        |body| TestRequest::post("/v1/api-keys", body).with_key(&limited).send(&service.router);
    ask(json!({"name": "x", "role": "admin"})).await.is_problem(403, "forbidden");
    ask(json!({"name": "x", "role": "admin", "environments": ["staging", "production"]}))
        .await
        .is_problem(403, "forbidden");
    ask(json!({"name": "x", "role": "admin", "environments": ["staging"]})).await.is(201);
    let ask = |body| {
        TestRequest::post("/v1/enrollment-tokens", body).with_key(&limited).send(&service.router)
    };
    ask(json!({})).await.is_problem(403, "forbidden");
    ask(json!({"environment": "staging"})).await.is(201);
}

async fn token_is_shown_once_and_can_be_revoked(service: &Service) {
    let body = json!({"name": "web image", "environment": "production", "tags": ["web"],
        "max_uses": 3, "expires_at": "2026-12-01T00:00:00Z"});
    let created = service.post("/v1/enrollment-tokens", body).await.is(201);
    let token = created.json()["token"].as_str().unwrap().to_owned();
    assert!(token.starts_with("fme_") && token.ends_with(".plain"), "{token}");
    assert!(service::auth::enrollment_tokens::recognize(&service.app.secrets, &token).is_some());
    let shown = service.get(created.header("location")).await.is(200).json();
    assert_eq!(
        (&shown["max_uses"], &shown["uses"], shown.get("token")),
        (&json!(3), &json!(0), None)
    );
    service.delete(created.header("location")).await.is(204);
    service.delete(created.header("location")).await.is(204);
    let list = service.get("/v1/enrollment-tokens").await.is(200).json();
    assert_eq!(list["data"][0]["revoked_at"], "2026-11-15T04:00:00Z");
    let bad = json!({"max_uses": 0, "environment": "a b", "tags": ["ok", ""], "uses": 1});
    service.post("/v1/enrollment-tokens", bad).await.is_problem(422, "invalid_body");
}

async fn token_contains_the_hash_of_the_certificate(service: &Service) {
    let settings = Settings { certificate_sha256: Some([7; 32]), ..Settings::default() };
    let (_, router) = service.again(settings).await;
    let ask = TestRequest::post("/v1/enrollment-tokens", json!({})).with_key(&service.admin);
    let token = ask.send(&router).await.is(201).json()["token"].as_str().unwrap().to_owned();
    assert!(token.ends_with(".BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc"), "{token}");
}

async fn other_organization_cannot_see_or_change_credentials(service: &Service) {
    let stranger = service.stranger().await;
    let key = service.post("/v1/api-keys", json!({"name": "x", "role": "viewer"})).await.is(201);
    let token = service.post("/v1/enrollment-tokens", json!({})).await.is(201);
    for made in [key, token] {
        let path = made.header("location");
        for method in [Method::GET, Method::DELETE] {
            let ask = TestRequest::new(method, path).with_key(&stranger);
            ask.send(&service.router).await.is_problem(404, "not_found");
        }
        service.get(path).await.is(200);
    }
    let list =
        TestRequest::get("/v1/enrollment-tokens").with_key(&stranger).send(&service.router).await;
    assert_eq!(list.json()["meta"]["total"], 0);
}

async fn nothing_in_the_database_works_as_a_credential(service: &Service) {
    let made = TestRequest::post("/v1/api-keys", json!({"name": "x", "role": "admin"}))
        .with_key(&service.admin)
        .with("idempotency-key", "once")
        .send(&service.router)
        .await
        .is(201);
    let secret = made.json()["api_key"].as_str().unwrap()["fmk_".len()..].to_owned();
    let random =
        base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, &secret).unwrap();
    service.app.db.close().await;
    // PostgreSQL keeps its own files; there, the rows are what SQLite's file contains.
    for file in std::fs::read_dir(&service.database.dir).unwrap() {
        let path = file.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        for needle in [secret.as_bytes(), &random[..32]] {
            let found = bytes.windows(needle.len()).any(|window| window == needle);
            assert!(!found, "found a key in {}", path.display());
        }
    }
}

async fn credential_changes_are_in_the_audit_log(service: &Service) {
    let made = service.post("/v1/api-keys", json!({"name": "x", "role": "viewer"})).await.is(201);
    service.delete(made.header("location")).await.is(204);
    let mut reader = service.app.db.read().await.unwrap();
    let entries = store::audit::after(&mut reader, service.org, 0, 100).await.unwrap();
    let actions: Vec<&str> = entries.iter().map(|entry| entry.action.as_str()).collect();
    assert_eq!(
        actions,
        [
            "organization.create",
            "api_key.create",
            "api_key.create",
            "api_key.create",
            "api_key.revoke"
        ]
    );
    assert!(entries[4].actor.starts_with("key_"));
    let seal = service::commands::setup::seal(&service.app.secrets);
    for entry in &entries {
        assert_eq!(seal.entry_hash(&entry.previous, entry.seq, &entry.to_new_entry()), entry.hash);
    }
}

testkit::both!(
    crate::support:
    new_key_is_shown_once_and_works_immediately,
    revoked_key_stops_immediately_and_on_replicas_within_a_second,
    concurrent_revocations_of_a_key_all_succeed,
    key_stops_working_when_it_expires,
    all_errors_of_a_new_key_are_reported_at_once,
    last_admin_key_cannot_be_revoked,
    environment_limited_key_creates_no_wider_key,
    token_is_shown_once_and_can_be_revoked,
    token_contains_the_hash_of_the_certificate,
    other_organization_cannot_see_or_change_credentials,
    nothing_in_the_database_works_as_a_credential,
    credential_changes_are_in_the_audit_log,
);
