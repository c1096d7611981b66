//! Daily statistics, ages of patches, tasks of a server, and display names.

use std::collections::BTreeSet;

use jiff::civil::Date;
use serde_json::json;
use store::daily_stats::{self, DailyStats};
use store::patches::{self, Changes, Patch};
use store::{Db, Page, names, rollout_tasks};
use vocab::{BatchId, UpdateType};

use crate::support::{at, nth, org, other_org};

fn day(text: &str, critical: u64) -> DailyStats {
    DailyStats {
        day: text.parse().unwrap(),
        servers: 10,
        up_to_date: 7,
        critical,
        high: 2,
        medium: 3,
        low: 4,
        unknown: 5,
        exploited: 1,
    }
}

fn date(text: &str) -> Date {
    text.parse().unwrap()
}

async fn day_has_one_row_that_is_overwritten(db: Db) {
    let (here, there) = (org(&db).await, other_org(&db).await);
    let mut tx = db.begin().await.unwrap();
    for row in
        [day("2026-11-15", 9), day("2026-11-14", 8), day("2026-11-15", 1), day("2026-11-15", 1)]
    {
        daily_stats::write(&mut tx, here, &row).await.unwrap();
    }
    daily_stats::write(&mut tx, there, &day("2026-11-15", 99)).await.unwrap();
    tx.commit().await.unwrap();
    let mut reader = db.read().await.unwrap();
    let found = daily_stats::since(&mut reader, here, date("2026-11-01")).await.unwrap();
    assert_eq!(found, [day("2026-11-14", 8), day("2026-11-15", 1)]);
    let found = daily_stats::since(&mut reader, here, date("2026-11-15")).await.unwrap();
    assert_eq!(found, [day("2026-11-15", 1)]);
}

async fn old_days_are_deleted_in_every_organization(db: Db) {
    let (here, there) = (org(&db).await, other_org(&db).await);
    let mut tx = db.begin().await.unwrap();
    for whose in [here, there] {
        for text in ["2025-11-14", "2025-11-15", "2026-11-15"] {
            daily_stats::write(&mut tx, whose, &day(text, 1)).await.unwrap();
        }
    }
    assert_eq!(daily_stats::purge(&mut tx, date("2025-11-15")).await.unwrap(), 2);
    assert_eq!(daily_stats::since(&mut tx, there, Date::MIN).await.unwrap().len(), 2);
}

async fn patches_are_counted_by_age(db: Db) {
    let here = org(&db).await;
    let patch = |name: &str, severity_order, seen| Patch {
        package_name: name.into(),
        severity_order,
        kev_order: 1,
        servers_order: -1,
        update_type: UpdateType::Security,
        severity_source: None,
        versions: json!([]),
        cves: Vec::new(),
        first_seen_at: at(seen),
    };
    let put = vec![
        patch("new", 0, 100),
        patch("newer", 0, 99),
        patch("edge", 0, 90),
        patch("old", 1, 60),
        patch("oldest", 1, 1),
    ];
    let mut tx = db.begin().await.unwrap();
    patches::apply_changes(&mut tx, here, &Changes { put, ..Changes::default() }).await.unwrap();
    let ages = patches::ages(&mut tx, here, [at(90), at(50), at(10)]).await.unwrap();
    let mut ages: Vec<(i64, u64, u64)> =
        ages.into_iter().map(|age| (age.severity_order, age.older_than, age.patches)).collect();
    ages.sort_unstable();
    assert_eq!(ages, [(0, 0, 2), (0, 1, 1), (1, 1, 1), (1, 3, 1)]);
}

async fn tasks_of_a_server_are_paged_newest_first(db: Db) {
    let here = org(&db).await;
    for n in 1..=3 {
        crate::rollouts::start(&db, here, n, 2).await;
    }
    let mut reader = db.read().await.unwrap();
    let server = nth!(ServerId, 1_u32);
    let part = Page { limit: 2, offset: 1 };
    let found = rollout_tasks::list_by_server(&mut reader, server, part).await.unwrap();
    let batches: Vec<BatchId> = found.items.iter().map(|target| target.rollout_id).collect();
    assert_eq!((batches, found.total), (vec![nth!(BatchId, 2_u32), nth!(BatchId, 1_u32)], 3));
    assert!(found.items.iter().all(|target| target.server_id == server));
    let stranger =
        rollout_tasks::list_by_server(&mut reader, nth!(ServerId, 9_u32), part).await.unwrap();
    assert_eq!((stranger.items.len(), stranger.total), (0, 0));
}

async fn ids_have_names_only_in_their_organization(db: Db) {
    let (here, there) = (org(&db).await, other_org(&db).await);
    let ann = crate::users::user(here, 1, "ann");
    let web = crate::servers::server(here, 1);
    let mut tx = db.begin().await.unwrap();
    store::users::create(&mut tx, &ann).await.unwrap();
    store::servers::enroll(&mut tx, &web).await.unwrap();
    tx.commit().await.unwrap();
    crate::rollouts::start(&db, here, 7, 2).await;
    let task = nth!(TaskId, 7_000_001_u32).to_string();
    let ids: BTreeSet<String> = [
        ann.id.to_string(),
        web.id.to_string(),
        task.clone(),
        "usr_nobody".into(),
        "schedule".into(),
    ]
    .into();
    let mut reader = db.read().await.unwrap();
    let found = names::find(&mut reader, here, &ids).await.unwrap();
    let named = |id: String| found.get(&id).map(String::as_str);
    let host = Some(web.hostname.as_str());
    assert_eq!(
        (named(ann.id.to_string()), named(web.id.to_string()), named(task)),
        (Some("ann"), host, host)
    );
    assert_eq!(found.len(), 3);
    assert!(names::find(&mut reader, there, &ids).await.unwrap().is_empty());
}

testkit::both!(
    crate::support::db:
    day_has_one_row_that_is_overwritten,
    old_days_are_deleted_in_every_organization,
    patches_are_counted_by_age,
    tasks_of_a_server_are_paged_newest_first,
    ids_have_names_only_in_their_organization,
);
