//! Users, their sessions, and their accounts at an identity provider.

use store::identities::{self, LinkedIdentity};
use store::sessions::{self, Session};
use store::users::{self, User};
use store::{Db, Page, StoreError, organizations, recovery_codes};
use vocab::{OrgId, Role};

use crate::support::{at, nth, org, other_org};

const PAGE: Page = Page { limit: 50, offset: 0 };

pub(crate) fn user(org: OrgId, n: u32, name: &str) -> User {
    User {
        id: nth!(UserId, n),
        org_id: org,
        name: name.into(),
        role: Role::Operator,
        password: None,
        link_hash: Some(vec![u8::try_from(n).unwrap(); 32]),
        link_expires_at: Some(at(3600)),
        totp_secret: None,
        totp_step: 0,
        created_at: at(0),
        created_by: "init".into(),
        removed_at: None,
        generation: 1,
    }
}

async fn user_is_found_only_in_their_organization(db: Db) {
    let (here, there) = (org(&db).await, other_org(&db).await);
    let ann = user(here, 1, "ann@example.org");
    let mut tx = db.begin().await.unwrap();
    users::create(&mut tx, &ann).await.unwrap();
    // Another organization may have a user with the same name.
    let other = user(there, 2, "ann@example.org");
    users::create(&mut tx, &other).await.unwrap();
    tx.commit().await.unwrap();
    let mut reader = db.read().await.unwrap();
    let by_name = users::by_name(&mut reader, here, "ann@example.org").await.unwrap();
    assert_eq!(by_name, Some(ann.clone()));
    let by_name = users::by_name(&mut reader, there, "ann@example.org").await.unwrap();
    assert_eq!(by_name, Some(other.clone()));
    let mut both = users::all_by_name(&mut reader, "ann@example.org").await.unwrap();
    both.sort_by_key(|user| user.id);
    assert_eq!(both, [ann.clone(), other]);
    assert_eq!(users::by_link(&mut reader, &[1; 32]).await.unwrap(), Some(ann.clone()));
    assert_eq!(users::by_link(&mut reader, &[9; 32]).await.unwrap(), None);
    assert_eq!(users::list(&mut reader, here, PAGE).await.unwrap().items, [ann.clone()]);
    let foreign = users::get(&mut reader, there, ann.id).await.unwrap_err();
    assert!(matches!(foreign, StoreError::NotFound { .. }), "{foreign:?}");
}

async fn user_name_is_free_after_removal(db: Db) {
    let here = org(&db).await;
    let ann = user(here, 1, "ann");
    let mut tx = db.begin().await.unwrap();
    users::create(&mut tx, &ann).await.unwrap();
    let twice = tx.attempt(async |tx| users::create(tx, &user(here, 2, "ann")).await).await;
    assert!(matches!(twice.unwrap(), Err(StoreError::AlreadyExists { .. })));
    let gone = User { removed_at: Some(at(5)), link_hash: None, ..ann.clone() };
    users::save(&mut tx, &gone).await.unwrap();
    assert!(matches!(users::save(&mut tx, &gone).await, Err(StoreError::Stale)));
    users::create(&mut tx, &user(here, 3, "ann")).await.unwrap();
    tx.commit().await.unwrap();
    let found = users::by_name(&mut db.read().await.unwrap(), here, "ann").await.unwrap();
    assert_eq!(found.unwrap().id, nth!(UserId, 3_u32));
}

fn session(user: &User, n: u8, expires: i64) -> Session {
    Session {
        hash: vec![n; 32],
        id: nth!(SessionId, u32::from(n)),
        user_id: user.id,
        created_at: at(i64::from(n)),
        expires_at: at(expires),
        used_at: at(i64::from(n)),
        address: "192.0.2.1".into(),
        user_agent: "curl/8".into(),
    }
}

async fn session_ends_by_expiry_logout_or_removed_organization(db: Db) {
    let here = org(&db).await;
    let ann = user(here, 1, "ann");
    let mut tx = db.begin().await.unwrap();
    users::create(&mut tx, &ann).await.unwrap();
    for n in 1..=3 {
        sessions::create(&mut tx, &session(&ann, n, 100 * i64::from(n))).await.unwrap();
    }
    let mut who = async |n: u8, seconds| {
        let found = sessions::find(&mut tx, &[n; 32], at(seconds)).await.unwrap();
        found.map(|(_, user)| user.id)
    };
    assert_eq!(who(1, 99).await, Some(ann.id));
    assert_eq!(who(1, 100).await, None);
    assert_eq!(who(9, 0).await, None);
    sessions::end(&mut tx, &[2; 32]).await.unwrap();
    assert_eq!(sessions::find(&mut tx, &[2; 32], at(0)).await.unwrap(), None);
    sessions::purge(&mut tx, at(100)).await.unwrap();
    assert_eq!(sessions::find(&mut tx, &[1; 32], at(0)).await.unwrap(), None);
    assert!(sessions::find(&mut tx, &[3; 32], at(0)).await.unwrap().is_some());
    let acme = organizations::get(&mut tx, here).await.unwrap();
    organizations::remove(&mut tx, &acme, at(9)).await.unwrap();
    assert_eq!(sessions::find(&mut tx, &[3; 32], at(0)).await.unwrap(), None);
    sessions::end_all(&mut tx, ann.id).await.unwrap();
    tx.commit().await.unwrap();
}

async fn users_end_only_their_own_sessions(db: Db) {
    let here = org(&db).await;
    let (ann, bob) = (user(here, 1, "ann"), user(here, 2, "bob"));
    let mut tx = db.begin().await.unwrap();
    for person in [&ann, &bob] {
        users::create(&mut tx, person).await.unwrap();
    }
    for n in 1..=4 {
        sessions::create(&mut tx, &session(&ann, n, 1_000)).await.unwrap();
    }
    sessions::create(&mut tx, &session(&bob, 9, 1_000)).await.unwrap();
    let id = |n: u32| nth!(SessionId, n);
    let mut listed = async |limit| {
        let found = sessions::list(&mut tx, ann.id, at(0), limit).await.unwrap();
        found.into_iter().map(|session| session.id).collect::<Vec<_>>()
    };
    assert_eq!(listed(10).await, [id(4), id(3), id(2), id(1)], "newest first");
    assert_eq!(listed(2).await, [id(4), id(3)]);
    assert!(!sessions::end_by_id(&mut tx, ann.id, id(9)).await.unwrap(), "it is bob's");
    assert!(sessions::end_by_id(&mut tx, ann.id, id(4)).await.unwrap());
    assert!(!sessions::end_by_id(&mut tx, ann.id, id(4)).await.unwrap(), "already ended");
    assert_eq!(sessions::end_others(&mut tx, ann.id, id(2)).await.unwrap(), 2);
    sessions::touch(&mut tx, id(2), at(50)).await.unwrap();
    sessions::touch(&mut tx, id(2), at(40)).await.unwrap();
    let left = sessions::list(&mut tx, ann.id, at(0), 10).await.unwrap();
    assert_eq!(left, [Session { used_at: at(50), ..session(&ann, 2, 1_000) }]);
    assert_eq!(sessions::list(&mut tx, bob.id, at(0), 10).await.unwrap().len(), 1);
    tx.commit().await.unwrap();
}

async fn recovery_code_is_used_once_and_by_its_owner(db: Db) {
    let here = org(&db).await;
    let (ann, bob) = (user(here, 1, "ann"), user(here, 2, "bob"));
    let mut tx = db.begin().await.unwrap();
    for person in [&ann, &bob] {
        users::create(&mut tx, person).await.unwrap();
    }
    recovery_codes::replace(&mut tx, ann.id, &[vec![1; 32], vec![2; 32]]).await.unwrap();
    assert!(!recovery_codes::take(&mut tx, bob.id, &[1; 32]).await.unwrap());
    assert!(recovery_codes::take(&mut tx, ann.id, &[1; 32]).await.unwrap());
    assert!(!recovery_codes::take(&mut tx, ann.id, &[1; 32]).await.unwrap(), "already used");
    assert_eq!(recovery_codes::count(&mut tx, ann.id).await.unwrap(), 1);
    recovery_codes::replace(&mut tx, ann.id, &[vec![3; 32]]).await.unwrap();
    assert!(!recovery_codes::take(&mut tx, ann.id, &[2; 32]).await.unwrap(), "replaced");
    recovery_codes::replace(&mut tx, ann.id, &[]).await.unwrap();
    assert_eq!(recovery_codes::count(&mut tx, ann.id).await.unwrap(), 0);
    tx.commit().await.unwrap();
}

async fn user_has_one_account_per_identity_provider(db: Db) {
    let (here, there) = (org(&db).await, other_org(&db).await);
    let (ann, bob) = (user(here, 1, "ann"), user(here, 2, "bob"));
    let at_provider = |subject: &str, who: &User| LinkedIdentity {
        issuer: "https://id.example.org".into(),
        subject: subject.into(),
        user_id: who.id,
        created_at: at(1),
    };
    let mut tx = db.begin().await.unwrap();
    for person in [&ann, &bob] {
        users::create(&mut tx, person).await.unwrap();
    }
    identities::link(&mut tx, &at_provider("s-1", &ann)).await.unwrap();
    let second = at_provider("s-2", &ann);
    let refused = tx.attempt(async |tx| identities::link(tx, &second).await).await;
    assert!(matches!(refused.unwrap(), Err(StoreError::AlreadyExists { .. })));
    let found = identities::find(&mut tx, "https://id.example.org", "s-1").await.unwrap();
    assert_eq!(found.unwrap().user_id, ann.id);
    assert_eq!(identities::find(&mut tx, "https://other.example.org", "s-1").await.unwrap(), None);
    let gone = User { removed_at: Some(at(5)), role: Role::Viewer, ..ann.clone() };
    assert!(!users::was_removed(&mut tx, here, "ann").await.unwrap());
    users::save(&mut tx, &gone).await.unwrap();
    assert!(users::was_removed(&mut tx, here, "ann").await.unwrap());
    assert!(identities::find(&mut tx, "https://id.example.org", "s-1").await.unwrap().is_some());
    identities::link(&mut tx, &at_provider("s-1", &bob)).await.unwrap();
    let all = identities::list_by_org(&mut tx, here).await.unwrap();
    assert_eq!(all, [at_provider("s-1", &bob)]);
    assert_eq!(identities::list_by_org(&mut tx, there).await.unwrap(), []);
    identities::unlink(&mut tx, bob.id).await.unwrap();
    assert_eq!(identities::list_by_org(&mut tx, here).await.unwrap(), []);
    tx.commit().await.unwrap();
}

testkit::both!(
    crate::support::db:
    user_is_found_only_in_their_organization,
    user_name_is_free_after_removal,
    session_ends_by_expiry_logout_or_removed_organization,
    users_end_only_their_own_sessions,
    recovery_code_is_used_once_and_by_its_owner,
    user_has_one_account_per_identity_provider,
);
