//! `/v1/webhooks`.

use axum::http::Method;
use serde_json::{Value, json};
use vocab::Role;

use crate::support::{Service, TestRequest};

fn hook(name: &str) -> Value {
    json!({"name": name, "url": "https://hooks.example.org/services/T0/secret", "types": ["batch.*"]})
}

async fn webhook_shows_its_secret_once(service: &Service) {
    let created = service.post("/v1/webhooks", hook("Chat")).await.is(201).json();
    assert!(created["secret"].as_str().unwrap().starts_with("whsec_"), "{created}");
    assert_eq!((&created["format"], &created["enabled"]), (&json!("standard"), &json!(true)));
    let path = format!("/v1/webhooks/{}", created["id"].as_str().unwrap());
    let seen = service.get(&path).await.is(200).json();
    assert_eq!((&seen["secret"], &seen["name"]), (&Value::Null, &json!("Chat")));
    assert!(!service.get("/v1/webhooks").await.is(200).text().contains("whsec_"));
    let rotated = service.post(&format!("{path}/rotate"), json!({})).await.is(200).json();
    assert_ne!(rotated["secret"], created["secret"]);
    assert_eq!(rotated["old_secret_until"], "2026-11-16T04:00:00Z");
    let changed = TestRequest::new(Method::PATCH, &path)
        .with_key(&service.admin)
        .with_json(json!({"enabled": false, "targets": {"environment": "staging"}}));
    let changed = changed.send(&service.router).await.is(200).json();
    assert_eq!(
        (&changed["enabled"], &changed["targets"]),
        (&json!(false), &json!({"environment": "staging"}))
    );
    // The same name again.
    service.post("/v1/webhooks", hook("Chat")).await.is_problem(409, "already_exists");
    service.delete(&path).await.is(204);
    service.get(&path).await.is_problem(404, "not_found");
    // Neither the secret nor the path of the URL is in the audit log or in an event.
    for path in ["/v1/events"] {
        let text = service.get(path).await.is(200).text();
        assert!(text.contains("webhook.created") && !text.contains("whsec_"), "{text}");
        assert!(!text.contains("/services/T0"), "{text}");
    }
}

async fn all_errors_are_reported_at_once(service: &Service) {
    let body = json!({"name": "", "url": "http://169.254.169.254/", "types": ["batch.paused", "batch.dance"],
        "format": "irc", "targets": {"environment": "#"}});
    let problem = service.post("/v1/webhooks", body).await.is_problem(422, "invalid_body").json();
    let pointers: Vec<&str> = problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["pointer"].as_str().unwrap())
        .collect();
    for pointer in ["/name", "/url", "/types/1", "/format", "/targets/environment"] {
        assert!(pointers.contains(&pointer), "{pointer} is missing in {pointers:?}");
    }
    let none = json!({"name": "a", "url": "https://example.org", "types": []});
    service.post("/v1/webhooks", none).await.is_problem(422, "invalid_body");
}

async fn keys_of_other_organizations_and_limited_keys_see_no_webhook(service: &Service) {
    let created = service.post("/v1/webhooks", hook("Chat")).await.is(201).json();
    let path = format!("/v1/webhooks/{}", created["id"].as_str().unwrap());
    let stranger = service.stranger().await;
    TestRequest::get(&path)
        .with_key(&stranger)
        .send(&service.router)
        .await
        .is_problem(404, "not_found");
    let limited = service.key(Role::Admin, Some(&["staging"])).await;
    TestRequest::get(&path)
        .with_key(&limited)
        .send(&service.router)
        .await
        .is_problem(404, "not_found");
    let list = TestRequest::get("/v1/webhooks")
        .with_key(&limited)
        .send(&service.router)
        .await
        .is(200)
        .json();
    assert_eq!(list["data"], json!([]));
    TestRequest::post("/v1/webhooks", hook("Mine"))
        .with_key(&limited)
        .send(&service.router)
        .await
        .is_problem(403, "forbidden");
    TestRequest::get("/v1/webhooks")
        .with_key(&service.operator)
        .send(&service.router)
        .await
        .is_problem(403, "forbidden");
}

testkit::both!(
    crate::support:
    webhook_shows_its_secret_once,
    all_errors_are_reported_at_once,
    keys_of_other_organizations_and_limited_keys_see_no_webhook,
);
