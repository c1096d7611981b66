//! Organizations, API keys, enrollment tokens and idempotency keys.

use store::enrollment_tokens::{self, EnrollmentToken, UseResult};
use store::idempotency::{self, Claim, Request, Response};
use store::{Db, Page, StoreError, api_keys, organizations};
use vocab::{OrgId, Role};

use crate::support::{at, nth, org, other_org};

const PAGE: Page = Page { limit: 50, offset: 0 };

fn key(org: OrgId, n: u32) -> api_keys::ApiKey {
    api_keys::ApiKey {
        id: nth!(KeyId, n),
        org_id: org,
        name: format!("key {n}"),
        hash: vec![u8::try_from(n).unwrap(); 32],
        role: Role::Operator,
        environments: Some(vec!["staging".parse().unwrap()]),
        created_at: at(0),
        created_by: "init".into(),
        expires_at: Some(at(3600)),
        revoked_at: None,
        last_used_at: None,
        generation: 1,
    }
}

fn token(org: OrgId, uses_max: Option<u32>) -> EnrollmentToken {
    EnrollmentToken {
        id: nth!(TokenId, 1_u32),
        org_id: org,
        name: "image of November".into(),
        hash: b"hash".to_vec(),
        environment: Some("production".parse().unwrap()),
        tags: vec!["role=web".parse().unwrap()],
        uses: 0,
        uses_max,
        created_at: at(0),
        created_by: nth!(KeyId, 1_u32).to_string(),
        expires_at: Some(at(100)),
        revoked_at: None,
    }
}

fn request(org: OrgId, body: u8) -> Request<'static> {
    Request { org, caller: "key_test", key: "order-17", fingerprint: [body; 32] }
}

fn stored_response() -> Response {
    Response {
        status: 202,
        headers: r#"{"location":"/v1/batches/x"}"#.into(),
        body: b"{}".to_vec(),
    }
}

async fn organization_is_created_renamed_and_removed(db: Db) {
    let id = org(&db).await;
    let mut tx = db.begin().await.unwrap();
    let created = organizations::by_name(&mut tx, "Acme").await.unwrap();
    organizations::rename(&mut tx, &created, "Acme Ltd").await.unwrap();
    assert!(matches!(
        organizations::rename(&mut tx, &created, "Late").await,
        Err(StoreError::Stale)
    ));
    let renamed = organizations::get(&mut tx, id).await.unwrap();
    assert_eq!((renamed.name.as_str(), renamed.generation), ("Acme Ltd", 2));
    assert_eq!(organizations::list(&mut tx).await.unwrap(), [renamed.clone()]);
    organizations::remove(&mut tx, &renamed, at(9)).await.unwrap();
    assert!(matches!(
        organizations::get(&mut tx, id).await,
        Err(StoreError::NotFound { kind: "organization", .. })
    ));
    organizations::create(&mut tx, nth!(OrgId, 7_u32), "Acme Ltd", at(9)).await.unwrap();
    tx.commit().await.unwrap();
}

async fn two_organizations_cannot_share_a_name(db: Db) {
    org(&db).await;
    let mut tx = db.begin().await.unwrap();
    let refused = organizations::create(&mut tx, nth!(OrgId, 9_u32), "Acme", at(0)).await;
    assert!(matches!(
        refused,
        Err(StoreError::AlreadyExists { what: "an organization with this name" })
    ));
}

async fn key_is_found_by_hash_and_listed_per_organization(db: Db) {
    let (ours, theirs) = (org(&db).await, other_org(&db).await);
    let mut tx = db.begin().await.unwrap();
    for n in 1..=3 {
        api_keys::create(&mut tx, &key(ours, n)).await.unwrap();
    }
    assert_eq!(api_keys::by_hash(&mut tx, &[2; 32]).await.unwrap(), Some(key(ours, 2)));
    assert_eq!(api_keys::by_hash(&mut tx, &[9; 32]).await.unwrap(), None);
    let page = api_keys::list(&mut tx, ours, Page { limit: 2, offset: 1 }).await.unwrap();
    assert_eq!(page.total, 3);
    assert_eq!(page.items, [key(ours, 2), key(ours, 1)]);
    assert_eq!(api_keys::list(&mut tx, theirs, PAGE).await.unwrap().total, 0);
    assert!(api_keys::get(&mut tx, theirs, nth!(KeyId, 1_u32)).await.is_err());
    assert_eq!(api_keys::get(&mut tx, ours, nth!(KeyId, 1_u32)).await.unwrap(), key(ours, 1));
    tx.commit().await.unwrap();
}

async fn credentials_of_a_removed_organization_are_invalid(db: Db) {
    let ours = org(&db).await;
    let mut tx = db.begin().await.unwrap();
    api_keys::create(&mut tx, &key(ours, 1)).await.unwrap();
    enrollment_tokens::create(&mut tx, &token(ours, None)).await.unwrap();
    let seen = organizations::get(&mut tx, ours).await.unwrap();
    organizations::remove(&mut tx, &seen, at(1)).await.unwrap();
    assert_eq!(api_keys::by_hash(&mut tx, &[1; 32]).await.unwrap(), None);
    assert_eq!(
        enrollment_tokens::take_use(&mut tx, b"hash", at(2)).await.unwrap(),
        UseResult::Unknown
    );
}

async fn key_is_revoked_once_and_last_use_never_decreases(db: Db) {
    let ours = org(&db).await;
    let mut tx = db.begin().await.unwrap();
    let created = key(ours, 1);
    api_keys::create(&mut tx, &created).await.unwrap();
    api_keys::record_uses(
        &mut tx,
        &[(created.id, at(5)), (created.id, at(9)), (created.id, at(7))],
    )
    .await
    .unwrap();
    api_keys::record_uses(&mut tx, &[(created.id, at(8))]).await.unwrap();
    let used = api_keys::get(&mut tx, ours, created.id).await.unwrap();
    assert_eq!(used.last_used_at, Some(at(9)));
    api_keys::revoke(&mut tx, &used, at(10)).await.unwrap();
    assert!(matches!(api_keys::revoke(&mut tx, &used, at(11)).await, Err(StoreError::Stale)));
    assert_eq!(api_keys::get(&mut tx, ours, created.id).await.unwrap().revoked_at, Some(at(10)));
    tx.commit().await.unwrap();
}

async fn refused_token_use_has_a_reason(db: Db) {
    let ours = org(&db).await;
    let mut tx = db.begin().await.unwrap();
    enrollment_tokens::create(&mut tx, &token(ours, Some(1))).await.unwrap();
    let used = EnrollmentToken { uses: 1, ..token(ours, Some(1)) };
    assert_eq!(
        enrollment_tokens::take_use(&mut tx, b"other", at(1)).await.unwrap(),
        UseResult::Unknown
    );
    assert_eq!(
        enrollment_tokens::take_use(&mut tx, b"hash", at(100)).await.unwrap(),
        UseResult::Expired
    );
    assert_eq!(
        enrollment_tokens::take_use(&mut tx, b"hash", at(99)).await.unwrap(),
        UseResult::Taken(Box::new(used.clone()))
    );
    assert_eq!(
        enrollment_tokens::take_use(&mut tx, b"hash", at(99)).await.unwrap(),
        UseResult::UsedUp
    );
    enrollment_tokens::revoke(&mut tx, ours, used.id, at(50)).await.unwrap();
    enrollment_tokens::revoke(&mut tx, ours, used.id, at(60)).await.unwrap();
    assert_eq!(
        enrollment_tokens::take_use(&mut tx, b"hash", at(99)).await.unwrap(),
        UseResult::Revoked
    );
    let revoked = EnrollmentToken { revoked_at: Some(at(50)), ..used };
    assert_eq!(enrollment_tokens::get(&mut tx, ours, revoked.id).await.unwrap(), revoked);
    assert_eq!(enrollment_tokens::list(&mut tx, ours, PAGE).await.unwrap().items, [revoked]);
    tx.commit().await.unwrap();
}

async fn other_organization_cannot_see_or_revoke_a_token(db: Db) {
    let (ours, theirs) = (org(&db).await, other_org(&db).await);
    let mut tx = db.begin().await.unwrap();
    let created = token(ours, None);
    enrollment_tokens::create(&mut tx, &created).await.unwrap();
    assert!(enrollment_tokens::get(&mut tx, theirs, created.id).await.is_err());
    assert!(enrollment_tokens::revoke(&mut tx, theirs, created.id, at(1)).await.is_err());
    assert_eq!(enrollment_tokens::list(&mut tx, theirs, PAGE).await.unwrap().total, 0);
}

/// A hundred servers start from one image with a token for ten.
async fn token_is_never_used_more_than_allowed(db: Db) {
    let ours = org(&db).await;
    let mut tx = db.begin().await.unwrap();
    enrollment_tokens::create(&mut tx, &token(ours, Some(10))).await.unwrap();
    tx.commit().await.unwrap();
    let joins: Vec<_> = (0..100)
        .map(|_| {
            let db = db.clone();
            tokio::spawn(async move {
                let mut tx = db.begin().await.unwrap();
                let came_of_it =
                    enrollment_tokens::take_use(&mut tx, b"hash", at(1)).await.unwrap();
                tx.commit().await.unwrap();
                matches!(came_of_it, UseResult::Taken(_))
            })
        })
        .collect();
    let mut joined = 0;
    for join in joins {
        joined += u32::from(join.await.unwrap());
    }
    let mut reader = db.read().await.unwrap();
    let token = enrollment_tokens::get(&mut reader, ours, nth!(TokenId, 1_u32)).await.unwrap();
    assert_eq!((joined, token.uses), (10, 10));
}

async fn token_use_is_rolled_back_with_its_transaction(db: Db) {
    let ours = org(&db).await;
    let mut tx = db.begin().await.unwrap();
    enrollment_tokens::create(&mut tx, &token(ours, Some(1))).await.unwrap();
    tx.commit().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    assert!(matches!(
        enrollment_tokens::take_use(&mut tx, b"hash", at(1)).await.unwrap(),
        UseResult::Taken(_)
    ));
    tx.rollback().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    assert!(matches!(
        enrollment_tokens::take_use(&mut tx, b"hash", at(1)).await.unwrap(),
        UseResult::Taken(_)
    ));
    tx.commit().await.unwrap();
}

async fn repeated_request_gets_the_first_response(db: Db) {
    let ours = org(&db).await;
    let mut tx = db.begin().await.unwrap();
    let Claim::New(ticket) =
        idempotency::claim(&mut tx, &request(ours, 1), at(0), at(60), at(1000)).await.unwrap()
    else {
        panic!("the key is new")
    };
    let again =
        idempotency::claim(&mut tx, &request(ours, 1), at(1), at(61), at(1001)).await.unwrap();
    assert_eq!(again, Claim::InProgress);
    idempotency::finish(&mut tx, &ticket, &stored_response()).await.unwrap();
    let again =
        idempotency::claim(&mut tx, &request(ours, 1), at(2), at(62), at(1002)).await.unwrap();
    assert_eq!(again, Claim::Replay(stored_response()));
    let other =
        idempotency::claim(&mut tx, &request(ours, 2), at(2), at(62), at(1002)).await.unwrap();
    assert_eq!(other, Claim::Mismatch);
    tx.commit().await.unwrap();
}

async fn expired_or_released_key_can_be_claimed_again(db: Db) {
    let ours = org(&db).await;
    let mut tx = db.begin().await.unwrap();
    let claim =
        idempotency::claim(&mut tx, &request(ours, 1), at(0), at(60), at(1000)).await.unwrap();
    let Claim::New(ticket) = claim else { panic!("the key is new") };
    idempotency::release(&mut tx, &ticket).await.unwrap();
    let claim =
        idempotency::claim(&mut tx, &request(ours, 2), at(1), at(60), at(1000)).await.unwrap();
    let Claim::New(ticket) = claim else { panic!("the key was released") };
    idempotency::finish(&mut tx, &ticket, &stored_response()).await.unwrap();
    let claim =
        idempotency::claim(&mut tx, &request(ours, 3), at(1000), at(1060), at(2000)).await.unwrap();
    assert!(matches!(claim, Claim::New(_)));
    assert_eq!(idempotency::purge(&mut tx, at(1999)).await.unwrap(), 0);
    assert_eq!(idempotency::purge(&mut tx, at(2000)).await.unwrap(), 1);
    tx.commit().await.unwrap();
}

/// The first request hangs, its lock expires, and the second does the work: the first must not
/// store a response.
async fn request_with_an_expired_lock_cannot_finish(db: Db) {
    let ours = org(&db).await;
    let mut tx = db.begin().await.unwrap();
    let claim =
        idempotency::claim(&mut tx, &request(ours, 1), at(0), at(60), at(1000)).await.unwrap();
    let Claim::New(hung) = claim else { panic!("the key is new") };
    let claim =
        idempotency::claim(&mut tx, &request(ours, 1), at(61), at(121), at(1061)).await.unwrap();
    let Claim::New(second) = claim else { panic!("the lock expired") };
    assert!(matches!(
        idempotency::finish(&mut tx, &hung, &stored_response()).await,
        Err(StoreError::Stale)
    ));
    idempotency::release(&mut tx, &hung).await.unwrap();
    idempotency::finish(&mut tx, &second, &stored_response()).await.unwrap();
    tx.commit().await.unwrap();
}

/// Claim, effect and response in one transaction: the effect here is an organization.
async fn parallel_requests_with_one_key_have_one_effect(db: Db) {
    let ours = org(&db).await;
    let submits: Vec<_> = (0..50)
        .map(|n| {
            let db = db.clone();
            tokio::spawn(async move {
                let mut tx = db.begin().await.unwrap();
                let claim = idempotency::claim(&mut tx, &request(ours, 1), at(0), at(60), at(1000))
                    .await
                    .unwrap();
                let response = match claim {
                    Claim::New(ticket) => {
                        let name = format!("effect {n}");
                        organizations::create(&mut tx, nth!(OrgId, 100_u32 + n), &name, at(0))
                            .await
                            .unwrap();
                        let response = Response { body: name.into_bytes(), ..stored_response() };
                        idempotency::finish(&mut tx, &ticket, &response).await.unwrap();
                        response
                    }
                    Claim::Replay(response) => response,
                    other => panic!("{other:?}"),
                };
                tx.commit().await.unwrap();
                response
            })
        })
        .collect();
    let mut answers = Vec::new();
    for submit in submits {
        answers.push(submit.await.unwrap());
    }
    answers.dedup();
    assert_eq!(answers.len(), 1);
    let mut reader = db.read().await.unwrap();
    assert_eq!(organizations::list(&mut reader).await.unwrap().len(), 2);
}

testkit::both!(
    crate::support::db:
    organization_is_created_renamed_and_removed,
    two_organizations_cannot_share_a_name,
    key_is_found_by_hash_and_listed_per_organization,
    credentials_of_a_removed_organization_are_invalid,
    key_is_revoked_once_and_last_use_never_decreases,
    refused_token_use_has_a_reason,
    other_organization_cannot_see_or_revoke_a_token,
    token_is_never_used_more_than_allowed,
    token_use_is_rolled_back_with_its_transaction,
    repeated_request_gets_the_first_response,
    expired_or_released_key_can_be_claimed_again,
    request_with_an_expired_lock_cannot_finish,
    parallel_requests_with_one_key_have_one_effect,
);
