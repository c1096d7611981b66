//! The service crashes at any time during a request with an `Idempotency-Key`: together with its
//! retry, the request has one effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use jiff::SignedDuration;
use serde_json::json;
use server::app::Settings;
use tokio::sync::Notify;

use crate::fleet::{Host, join};
use crate::resources::mutations::{audited_actions, mutations, new_admin};
use crate::support::{Service, TestRequest, TestResponse};

/// Longer than an unanswered request holds its key.
const LOCK: SignedDuration = SignedDuration::from_secs(36);

/// Sends a request to a separate process, which dies after this many waits. A wait is every time
/// when nothing can continue before the database responds. Returns `None` if it died first.
fn send_and_crash(service: &Service, waits: usize, ask: TestRequest) -> Option<TestResponse> {
    let (waited, dead) = (Arc::new(AtomicUsize::new(usize::MAX)), Arc::new(Notify::new()));
    let process = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park({
            let (waited, dead) = (waited.clone(), dead.clone());
            move || {
                let left = waited.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                    (left != usize::MAX).then(|| left.saturating_sub(1))
                });
                if left == Ok(0) {
                    dead.notify_one();
                }
            }
        })
        .build()
        .unwrap();
    let response = process.block_on(async {
        let (_, router) = service.again(Settings::default()).await;
        waited.store(waits, Ordering::SeqCst);
        tokio::select! {
            biased;
            () = dead.notified() => None,
            answer = ask.send(&router) => Some(answer),
        }
    });
    // Whatever else it was doing stops immediately.
    process.shutdown_background();
    response
}

async fn count_batches(service: &Service) -> u64 {
    service.get("/v1/batches").await.is(200).json()["meta"]["total"].as_u64().unwrap()
}

async fn batch_is_created_once_wherever_the_service_dies(service: &Service) {
    let server = join(service, Host::new("web-1")).await;
    let order = |key: &str| {
        let body = json!({"server_ids": [server], "security_only": true});
        TestRequest::post("/v1/batches", body)
            .with_key(&service.operator)
            .with("idempotency-key", key)
    };
    let (mut before, mut after, mut answered) = (0, 0, false);
    for waits in 0..400 {
        let key = format!("order-{waits}");
        let answer = tokio::task::block_in_place(|| send_and_crash(service, waits, order(&key)));
        answered = answer.is_some();
        match (answer, count_batches(service).await - waits as u64) {
            (Some(answer), created) => {
                answer.is(202);
                assert_eq!(created, 1);
            }
            (None, 0) => before += 1,
            (None, _) => after += 1,
        }
        service.clock.advance(LOCK);
        let again = order(&key).send(&service.router).await;
        assert!(matches!(again.status.as_u16(), 202 | 303), "{waits}: {again:?}");
        let location = again.header("location").to_owned();
        service.get(&location).await.is(200);
        let last = order(&key).send(&service.router).await;
        assert_eq!(last.header("location"), location);
        assert_eq!(count_batches(service).await, waits as u64 + 1, "after {waits} waits");
        if answered {
            break;
        }
    }
    println!("died {before} times before the batch was created and {after} times after it");
    assert!(before >= 3, "{before}");
    assert!(answered, "no attempt got a response");
}

async fn batch_is_created_once_if_the_client_hangs_up(service: &Service) {
    let server = join(service, Host::new("web-1")).await;
    for polls in 0..12_u64 {
        let key = format!("order-{polls}");
        let order = || {
            let body = json!({"server_ids": [server], "security_only": true});
            TestRequest::post("/v1/batches", body)
                .with_key(&service.operator)
                .with("idempotency-key", &key)
        };
        let mut first = Box::pin(order().send(&service.router));
        for _ in 0..polls {
            if std::future::poll_fn(|context| Poll::Ready(first.as_mut().poll(context).is_ready()))
                .await
            {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(first);
        let location = loop {
            let again = order().send(&service.router).await;
            match again.status.as_u16() {
                // Still in progress, or interrupted between the claim and the work.
                409 => service.clock.advance(SignedDuration::from_secs(1)),
                202 | 303 => break again.header("location").to_owned(),
                _ => panic!("{polls}: {again:?}"),
            }
        };
        service.get(&location).await.is(200);
        assert_eq!(count_batches(service).await, polls + 1, "after {polls} polls");
    }
}

/// The process died after the commit and before the response was stored.
async fn no_operation_is_repeated_after_a_lost_response(service: &Service) {
    let cases = mutations(service).await;
    let (who, key) = new_admin(service).await;
    let posts: Vec<_> = cases.iter().filter(|case| case.method == "POST").collect();
    let ask =
        |nth: usize| posts[nth].to_request(&key).with("idempotency-key", &format!("request-{nth}"));
    for (nth, case) in posts.iter().enumerate() {
        ask(nth).send(&service.router).await.is(case.status);
    }
    let effects = audited_actions(service, &who).await;
    assert!(effects.len() >= posts.len());
    service.by_hand("update idempotency_keys set status = null, headers = null, body = null").await;
    for nth in 0..posts.len() {
        ask(nth).send(&service.router).await.is_problem(409, "idempotency_key_in_progress");
    }
    service.clock.advance(LOCK);
    for (nth, case) in posts.iter().enumerate() {
        // A test message creates nothing that could be shown.
        if case.route == "/v1/notifications/test" {
            ask(nth).send(&service.router).await.is_problem(409, "conflict");
            assert_eq!(audited_actions(service, &who).await, effects);
            continue;
        }
        let first = ask(nth).send(&service.router).await.is(303);
        service.get(first.header("location")).await.is(200);
        let second = ask(nth).send(&service.router).await.is(303);
        assert_eq!(first.header("location"), second.header("location"));
        assert_eq!(
            audited_actions(service, &who).await,
            effects,
            "{} had a second effect",
            case.route
        );
    }
}

testkit::both!(
    crate::support:
    batch_is_created_once_wherever_the_service_dies,
    batch_is_created_once_if_the_client_hangs_up,
    no_operation_is_repeated_after_a_lost_response,
);
