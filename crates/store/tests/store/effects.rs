//! What a request with an idempotency key has done, if its answer is lost.

use store::audit::NewEntry;
use store::idempotency::{self, Claim, Request, Ticket};
use store::{Db, StoreError};
use vocab::OrgId;

use crate::support::{at, both, org};

fn request(org: OrgId) -> Request<'static> {
    Request { org, caller: "key_test", key: "once", fingerprint: [1; 32] }
}

async fn claim(db: &Db, org: OrgId, second: i64) -> Claim {
    let mut tx = db.begin().await.unwrap();
    let (now, locked, end) = (at(second), at(second + 35), at(second + 86_400));
    let claim = idempotency::claim(&mut tx, &request(org), now, locked, end).await.unwrap();
    tx.commit().await.unwrap();
    claim
}

async fn fresh(db: &Db, org: OrgId, second: i64) -> Ticket {
    match claim(db, org, second).await {
        Claim::Fresh(ticket) => ticket,
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

both! {
    async fn work_that_was_done_and_not_answered_is_not_done_again(db: Db) {
        let org = org(&db).await;
        let ticket = fresh(&db, org, 0).await;
        idempotency::during(ticket.clone(), work(&db, org, "bat_1")).await.unwrap();
        assert_eq!(claim(&db, org, 34).await, Claim::InProgress);
        assert_eq!(claim(&db, org, 35).await, Claim::Unanswered { subject: "bat_1".into() });
    }

    async fn work_that_was_never_done_may_be_done_by_the_next(db: Db) {
        let org = org(&db).await;
        fresh(&db, org, 0).await;
        fresh(&db, org, 35).await;
    }

    async fn whoever_lost_the_lock_cannot_commit_the_work(db: Db) {
        let org = org(&db).await;
        let slow = fresh(&db, org, 0).await;
        let next = fresh(&db, org, 35).await;
        let refusal = idempotency::during(slow, work(&db, org, "bat_1")).await;
        assert!(matches!(refusal, Err(StoreError::Stale)), "{refusal:?}");
        idempotency::during(next, work(&db, org, "bat_2")).await.unwrap();
        let log = store::audit::after(&mut db.read().await.unwrap(), org, 0, 10).await.unwrap();
        assert_eq!(log.iter().map(|entry| entry.subject.as_str()).collect::<Vec<_>>(), ["bat_2"]);
    }
}
