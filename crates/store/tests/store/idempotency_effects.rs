//! What a request with an idempotency key has changed, if its response is lost.

use std::time::Duration;

use store::audit::NewEntry;
use store::idempotency::{self, Claim, Request, ResponseClaim};
use store::{Db, StoreError};
use vocab::OrgId;

use crate::support::{Open as _, at, migrated_postgres, org};

fn request(org: OrgId) -> Request<'static> {
    Request { org, caller: "key_test", key: "once", fingerprint: [1; 32] }
}

async fn claim(db: &Db, org: OrgId, second: i64) -> Claim {
    claim_request(db, &request(org), second).await
}

async fn claim_request(db: &Db, request: &Request<'_>, second: i64) -> Claim {
    let mut tx = db.begin().await.unwrap();
    let (now, locked, end) = (at(second), at(second + 35), at(second + 86_400));
    let claim = idempotency::claim(&mut tx, request, now, locked, end).await.unwrap();
    tx.commit().await.unwrap();
    claim
}

async fn fresh(db: &Db, org: OrgId, second: i64) -> ResponseClaim {
    match claim(db, org, second).await {
        Claim::New(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

async fn work(db: &Db, org: OrgId, subject: &str) -> Result<(), StoreError> {
    let mut tx = db.begin().await.unwrap();
    tx.record(NewEntry {
        org_id: org,
        at: at(0),
        actor: "key".into(),
        action: "batch.create".into(),
        subject: subject.into(),
        detail: "{}".into(),
    });
    tx.commit().await
}

async fn work_with_a_lost_response_is_not_repeated(db: Db) {
    let org = org(&db).await;
    let ticket = fresh(&db, org, 0).await;
    idempotency::with_ticket(ticket.clone(), work(&db, org, "bat_1")).await.unwrap();
    assert_eq!(claim(&db, org, 34).await, Claim::InProgress);
    assert_eq!(claim(&db, org, 35).await, Claim::ResponseLost { subject: "bat_1".into() });
}

async fn unfinished_claim_can_be_taken_over(db: Db) {
    let org = org(&db).await;
    fresh(&db, org, 0).await;
    fresh(&db, org, 35).await;
}

async fn request_that_lost_its_lock_cannot_commit(db: Db) {
    let org = org(&db).await;
    let slow = fresh(&db, org, 0).await;
    let next = fresh(&db, org, 35).await;
    let refusal = idempotency::with_ticket(slow, work(&db, org, "bat_1")).await;
    assert!(matches!(refusal, Err(StoreError::Stale)), "{refusal:?}");
    idempotency::with_ticket(next, work(&db, org, "bat_2")).await.unwrap();
    let log = store::audit::after(&mut db.read().await.unwrap(), org, 0, 10).await.unwrap();
    assert_eq!(log.iter().map(|entry| entry.subject.as_str()).collect::<Vec<_>>(), ["bat_2"]);
}

testkit::both!(
    crate::support::db:
    work_with_a_lost_response_is_not_repeated,
    unfinished_claim_can_be_taken_over,
    request_that_lost_its_lock_cannot_commit,
);

/// Repeats the claim until it is no longer in progress: PostgreSQL soon notices that a process is
/// gone.
async fn claim_settled(db: &Db, org: OrgId) -> Claim {
    for _ in 0..2_000 {
        match claim(db, org, 1).await {
            Claim::InProgress => tokio::time::sleep(Duration::from_millis(5)).await,
            settled => return settled,
        }
    }
    panic!("the claim of a dead process is still in progress after ten seconds");
}

/// Only PostgreSQL can have several processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_of_a_dead_process_is_released_immediately() {
    let Some(place) = migrated_postgres().await else { return };
    let (dies, lives) = (place.open().await, place.open().await);
    let org = org(&lives).await;
    let slow = fresh(&dies, org, 0).await;
    assert_eq!(claim(&lives, org, 1).await, Claim::InProgress);
    assert_eq!(claim(&dies, org, 1).await, Claim::InProgress);
    dies.close().await;
    let Claim::New(next) = claim_settled(&lives, org).await else { panic!() };
    assert_eq!(claim(&lives, org, 1).await, Claim::InProgress);
    // It had only lost its connection: its later commit is rejected.
    let refusal = idempotency::with_ticket(slow, work(&lives, org, "bat_1")).await;
    assert!(matches!(refusal, Err(StoreError::Stale)), "{refusal:?}");
    idempotency::with_ticket(next, work(&lives, org, "bat_2")).await.unwrap();
    lives.close().await;
    let third = place.open().await;
    assert_eq!(claim_settled(&third, org).await, Claim::ResponseLost { subject: "bat_2".into() });
    third.close().await;
    place.remove().await;
}

/// A process's liveness connection is terminated and restored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconnected_process_holds_its_new_claims() {
    let Some(place) = migrated_postgres().await else { return };
    let (cut, other) = (place.open().await, place.open().await);
    let org = org(&other).await;
    fresh(&cut, org, 0).await;
    let mut subscription = cut.subscribe(store::Topic::Feeds);
    let cuts = "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory'
        and database = (select oid from pg_database where datname = current_database())";
    place.execute_sql(cuts).await;
    // Notifies once the connection is restored; the lock is taken right after.
    subscription.notified().await;
    assert!(matches!(claim_settled(&other, org).await, Claim::New(_)));
    let mut held = false;
    for second in 0..2_000 {
        // Each of these keys is new.
        let key = format!("key {second}");
        let request = Request { key: &key, ..request(org) };
        assert!(matches!(claim_request(&cut, &request, 2).await, Claim::New(_)));
        held = claim_request(&other, &request, 2).await == Claim::InProgress;
        if held {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(held, "a live process looks dead");
    cut.close().await;
    other.close().await;
    place.remove().await;
}
