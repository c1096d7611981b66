//! The same POST with the same `Idempotency-Key`: one effect, one response.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use serde_json::json;
use server::app::Settings;

use crate::support::{Service, TestRequest};

fn create(service: &Service, key: &str, name: &str) -> TestRequest {
    let body = json!({"name": name, "role": "viewer"});
    TestRequest::post("/v1/api-keys", body).with_key(&service.admin).with("idempotency-key", key)
}

async fn keys(service: &Service) -> u64 {
    service.get("/v1/api-keys").await.is(200).json()["meta"]["total"].as_u64().unwrap()
}

async fn repeated_request_gets_the_first_response(service: &Service) {
    let first = create(service, "a", "ci").send(&service.router).await.is(201);
    let again = create(service, "a", "ci").send(&service.router).await.is(201);
    assert_eq!(first.bytes, again.bytes);
    for header in ["location", "etag", "content-type"] {
        assert_eq!(first.header(header), again.header(header), "{header}");
    }
    assert_ne!(first.header("x-request-id"), again.header("x-request-id"));
    assert_eq!(again.header("idempotent-replayed"), "true");
    assert_eq!(keys(service).await, 4);
    create(service, "b", "ci").send(&service.router).await.is(201);
    assert_eq!(keys(service).await, 5);
}

async fn another_replica_returns_the_first_response(service: &Service) {
    let first = create(service, "a", "ci").send(&service.router).await.is(201);
    let (_, elsewhere) = service.again(Settings::default()).await;
    assert_eq!(create(service, "a", "ci").send(&elsewhere).await.is(201).bytes, first.bytes);
}

async fn same_key_for_another_request_is_rejected(service: &Service) {
    create(service, "a", "ci").send(&service.router).await.is(201);
    create(service, "a", "other")
        .send(&service.router)
        .await
        .is_problem(409, "idempotency_key_reused");
    let elsewhere =
        TestRequest::post("/v1/enrollment-tokens", json!({"name": "ci", "role": "viewer"}));
    let elsewhere = elsewhere.with_key(&service.admin).with("idempotency-key", "a");
    elsewhere.send(&service.router).await.is_problem(409, "idempotency_key_reused");
    assert_eq!(keys(service).await, 4);
}

async fn key_expires_after_a_day(service: &Service) {
    create(service, "a", "ci").send(&service.router).await.is(201);
    service.clock.advance(SignedDuration::from_hours(23));
    create(service, "a", "ci").send(&service.router).await.is(201);
    assert_eq!(keys(service).await, 4);
    service.clock.advance(SignedDuration::from_hours(1));
    create(service, "a", "ci").send(&service.router).await.is(201);
    assert_eq!(keys(service).await, 5);
}

async fn invalid_request_does_not_use_up_the_key(service: &Service) {
    create(service, "a", "").send(&service.router).await.is_problem(422, "invalid_body");
    create(service, "a", "ci").send(&service.router).await.is(201);
    assert_eq!(keys(service).await, 4);
}

async fn malformed_key_is_rejected(service: &Service) {
    for bad in ["", "ü", &"x".repeat(256)] {
        create(service, bad, "ci").send(&service.router).await.is_problem(400, "invalid_header");
    }
    let twice = create(service, "a", "ci").with("idempotency-key", "b");
    twice.send(&service.router).await.is_problem(400, "invalid_header");
    create(service, &"x".repeat(255), "ci").send(&service.router).await.is(201);
}

async fn organizations_do_not_share_keys(service: &Service) {
    let ours = create(service, "a", "ci").send(&service.router).await.is(201);
    let body = json!({"name": "ci", "role": "viewer"});
    let theirs = TestRequest::post("/v1/api-keys", body).with_key(&service.stranger().await);
    let theirs = theirs.with("idempotency-key", "a").send(&service.router).await.is(201);
    assert_ne!(ours.bytes, theirs.bytes);
}

/// Fifty at once: one of them takes effect; the others get its response or have to wait for it.
async fn one_of_fifty_concurrent_requests_takes_effect(service: &Service) {
    let asks = (0..50).map(|_| create(service, "a", "ci").send(&service.router));
    let answers = futures_util::future::join_all(asks).await;
    let mut created = BTreeSet::new();
    for answer in answers {
        match answer.status.as_u16() {
            201 => created.insert(answer.header("location").to_owned()),
            _ => {
                answer.is_problem(409, "idempotency_key_in_progress");
                false
            }
        };
    }
    assert_eq!(created.len(), 1, "{created:?}");
    assert_eq!(keys(service).await, 4);
}

testkit::both!(
    crate::support:
    repeated_request_gets_the_first_response,
    another_replica_returns_the_first_response,
    same_key_for_another_request_is_rejected,
    key_expires_after_a_day,
    invalid_request_does_not_use_up_the_key,
    malformed_key_is_rejected,
    organizations_do_not_share_keys,
    one_of_fifty_concurrent_requests_takes_effect,
);

/// The state after a crash between the commit of the work and the response.
async fn delete_stored_responses(service: &Service) {
    let sql = "update idempotency_keys set status = null, headers = null, body = null";
    service.by_hand(sql).await;
}

/// After `kill -9`, a client does not wait for the lock, unless another replica could hold it.
async fn restart_releases_the_lock_of_an_interrupted_request(service: &Service) {
    let first = create(service, "a", "ci").send(&service.router).await.is(201);
    delete_stored_responses(service).await;
    create(service, "a", "ci")
        .send(&service.router)
        .await
        .is_problem(409, "idempotency_key_in_progress");
    server::end_abandoned_requests(&service.app).await;
    let again = create(service, "a", "ci").send(&service.router).await;
    match service.app.db.is_exclusive() {
        true => assert_eq!(again.is(303).header("location"), first.header("location")),
        false => _ = again.is_problem(409, "idempotency_key_in_progress"),
    }
}

async fn crash_before_the_response_causes_no_second_effect(service: &Service) {
    let first = create(service, "a", "ci").send(&service.router).await.is(201);
    delete_stored_responses(service).await;
    create(service, "a", "ci")
        .send(&service.router)
        .await
        .is_problem(409, "idempotency_key_in_progress");
    service.clock.advance(SignedDuration::from_secs(35));
    let again = create(service, "a", "ci").send(&service.router).await.is(303);
    assert_eq!(again.header("location"), first.header("location"));
    assert_eq!(again.header("idempotent-replayed"), "true");
    assert_eq!(keys(service).await, 4);
}

testkit::both!(
    crate::support:
    restart_releases_the_lock_of_an_interrupted_request,
    crash_before_the_response_causes_no_second_effect,
);
