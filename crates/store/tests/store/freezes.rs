//! Freezes.

use domain::freeze::{Freeze as Rule, Timing};
use jiff::SignedDuration;
use serde_json::json;
use store::freezes::{self, Freeze};
use store::{Db, StoreError};
use vocab::{OrgId, Selector};

use crate::support::{at, nth, org, other_org};

fn freeze(org_id: OrgId, n: u32, timing: Timing) -> Freeze {
    let targets = json!({"environment": "production", "tags": ["role=web"]});
    Freeze {
        id: nth!(FreezeId, n),
        org_id,
        name: format!("freeze {n}"),
        reason: "Ruhe, außer …\nsonst nichts".into(),
        rule: Rule { targets: Selector::parse(&targets).unwrap(), timing },
        created_at: at(0),
        created_by: "usr_1".into(),
        updated_at: at(0),
        generation: 1,
    }
}

fn one_off(starts_at: i64, ends_at: i64) -> Timing {
    Timing::OneOff { starts_at: at(starts_at), ends_at: at(ends_at) }
}

fn recurring() -> Timing {
    Timing::Recurring {
        cron: "30 2 * * MON-FRI".parse().unwrap(),
        duration: SignedDuration::from_mins(90),
        timezone: "Europe/Berlin".parse().unwrap(),
    }
}

async fn add(db: &Db, all: &[Freeze]) {
    let mut tx = db.begin().await.unwrap();
    for one in all {
        freezes::create(&mut tx, one).await.unwrap();
    }
    tx.commit().await.unwrap();
}

async fn freeze_is_readable_only_in_its_organization(db: Db) {
    let (ours, theirs) = (org(&db).await, other_org(&db).await);
    let all = [freeze(ours, 1, one_off(0, 60)), freeze(ours, 2, recurring())];
    add(&db, &all).await;
    let mut reader = db.read().await.unwrap();
    for one in &all {
        assert_eq!(freezes::get(&mut reader, ours, one.id).await.unwrap(), *one);
        let refused = freezes::get(&mut reader, theirs, one.id).await.unwrap_err();
        assert!(matches!(refused, StoreError::NotFound { .. }));
    }
    assert_eq!(freezes::list(&mut reader, ours).await.unwrap(), all);
    assert_eq!(freezes::list(&mut reader, theirs).await.unwrap(), []);
    assert_eq!(freezes::list_current(&mut reader, theirs, at(0)).await.unwrap(), []);
}

async fn ended_freezes_are_not_current(db: Db) {
    let ours = org(&db).await;
    let all = [
        freeze(ours, 1, one_off(0, 60)),
        freeze(ours, 2, one_off(100, 200)),
        freeze(ours, 3, recurring()),
    ];
    add(&db, &all).await;
    let mut reader = db.read().await.unwrap();
    for (now, expected) in [(59, &all[..]), (60, &all[1..]), (199, &all[1..]), (200, &all[2..])] {
        let current = freezes::list_current(&mut reader, ours, at(now)).await.unwrap();
        assert_eq!(current, expected, "{now}");
    }
}

async fn freeze_changes_its_kind_and_stale_changes_are_refused(db: Db) {
    let ours = org(&db).await;
    let seen = freeze(ours, 1, one_off(0, 60));
    add(&db, &[seen.clone(), freeze(ours, 2, recurring())]).await;
    let mut tx = db.begin().await.unwrap();
    let next = freeze(ours, 1, recurring());
    freezes::save(&mut tx, &next).await.unwrap();
    let stored = freezes::get(&mut tx, ours, seen.id).await.unwrap();
    assert_eq!(stored, Freeze { generation: 2, ..next.clone() });
    assert!(matches!(freezes::save(&mut tx, &next).await, Err(StoreError::Stale)));
    assert!(matches!(freezes::delete(&mut tx, &seen).await, Err(StoreError::Stale)));
    freezes::delete(&mut tx, &stored).await.unwrap();
    tx.commit().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    let same_name = Freeze { id: nth!(FreezeId, 3_u32), ..freeze(ours, 2, recurring()) };
    let refused = freezes::create(&mut tx, &same_name).await.unwrap_err();
    assert!(matches!(refused, StoreError::AlreadyExists { .. }), "{refused:?}");
}

testkit::both!(
    crate::support::db:
    freeze_is_readable_only_in_its_organization,
    ended_freezes_are_not_current,
    freeze_changes_its_kind_and_stale_changes_are_refused,
);
