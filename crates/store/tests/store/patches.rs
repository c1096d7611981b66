//! Patches: pending updates by package.

use serde_json::json;
use store::patches::{self, Changes, Filter, Patch, Sort, Summary};
use store::servers::Server;
use store::{Page, StoreError, security_counts};
use vocab::{Digest, UpdateType};

use crate::support::{Open as _, TestDatabase, at, org};

const ALL: Page = Page { limit: 100, offset: 0 };

fn patch(name: &str, severity_order: i64, servers: i64) -> Patch {
    Patch {
        package_name: name.into(),
        severity_order,
        kev_order: 1,
        servers_order: -servers,
        update_type: UpdateType::Security,
        severity_source: None,
        versions: json!([]),
        cves: vec!["CVE-2026-1".into()],
        first_seen_at: at(1),
    }
}

fn names(rows: &[Patch]) -> Vec<&str> {
    rows.iter().map(|row| row.package_name.as_str()).collect()
}

async fn patches_are_sorted_by_severity_servers_and_name(database: TestDatabase) {
    let db = database.open().await;
    let ours = org(&db).await;
    let rows = [
        patch("b", 1, 5),
        patch("a", 1, 5),
        patch("most", 1, 9),
        patch("worst", 0, 1),
        patch("least", 4, 99),
    ];
    let mut tx = db.begin().await.unwrap();
    let changes = Changes { put: rows.to_vec(), ..Changes::default() };
    patches::apply_changes(&mut tx, ours, &changes).await.unwrap();
    let page = patches::list(&mut tx, ours, &Filter::default(), ALL).await.unwrap();
    assert_eq!((names(&page.items), page.total), (vec!["worst", "most", "a", "b", "least"], 5));
    let page = patches::list(
        &mut tx,
        ours,
        &Filter { severities: vec![0, 4], ..Filter::default() },
        Page { limit: 1, offset: 1 },
    )
    .await
    .unwrap();
    assert_eq!((names(&page.items), page.total), (vec!["least"], 2));
    for (search, found) in [
        ("ST", vec!["worst", "most", "least"]),
        ("%", vec![]),
        ("", vec!["worst", "most", "a", "b", "least"]),
    ] {
        let page = patches::list(
            &mut tx,
            ours,
            &Filter { search: Some(search.to_owned()), ..Filter::default() },
            ALL,
        )
        .await
        .unwrap();
        assert_eq!(
            (names(&page.items), page.total),
            (found.clone(), found.len() as u64),
            "{search}"
        );
    }
}

/// The order of the database is the order of rows in memory, which keys with limited environments
/// see.
async fn every_order_of_patches_is_the_same_in_memory(database: TestDatabase) {
    let db = database.open().await;
    let ours = org(&db).await;
    let seen = |second, row| Patch { first_seen_at: at(second), ..row };
    let rows = [
        seen(3, patch("b", 1, 5)),
        seen(2, patch("a", 1, 5)),
        seen(2, Patch { kev_order: 0, ..patch("c", 1, 9) }),
        seen(1, patch("B-1", 0, 1)),
    ];
    let mut tx = db.begin().await.unwrap();
    let changes = Changes { put: rows.to_vec(), ..Changes::default() };
    patches::apply_changes(&mut tx, ours, &changes).await.unwrap();
    for (sort, expected) in [
        (Sort::Severity, ["B-1", "c", "a", "b"]),
        (Sort::AffectedServers, ["c", "a", "b", "B-1"]),
        (Sort::FirstSeen, ["B-1", "a", "c", "b"]),
        (Sort::Name, ["B-1", "a", "b", "c"]),
    ] {
        let filter = Filter { sort, ..Filter::default() };
        let listed = patches::list(&mut tx, ours, &filter, ALL).await.unwrap().items;
        assert_eq!(names(&listed), expected, "{sort:?}");
        let mut sorted = rows.to_vec();
        sorted.sort_by(|a, b| sort.compare(a, b));
        assert_eq!(names(&sorted), expected, "{sort:?} in memory");
    }
    let exploited = Filter { kev: Some(true), ..Filter::default() };
    let listed = patches::list(&mut tx, ours, &exploited, ALL).await.unwrap();
    assert_eq!((names(&listed.items), listed.total), (vec!["c"], 1));
    assert!(rows.iter().all(|row| exploited.matches(row) == (row.package_name == "c")));
}

async fn first_seen_stays_when_a_patch_changes(database: TestDatabase) {
    let db = database.open().await;
    let ours = org(&db).await;
    let (one, two) = (Digest::compute(b"one"), Digest::compute(b"two"));
    let mut tx = db.begin().await.unwrap();
    let first =
        Changes { put: vec![patch("bash", 1, 1), patch("gone", 1, 1)], ..Changes::default() };
    patches::apply_changes(&mut tx, ours, &first).await.unwrap();
    let sets = [(one, vec!["bash".into(), "gone".into()]), (two, vec!["bash".into()])];
    patches::add_sets(&mut tx, ours, &sets).await.unwrap();
    let again = Changes {
        put: vec![Patch { first_seen_at: at(99), ..patch("bash", 0, 7) }],
        removed: vec!["gone".into()],
        sets_gone: vec![one],
    };
    patches::apply_changes(&mut tx, ours, &again).await.unwrap();
    let rows = patches::all(&mut tx, ours).await.unwrap();
    assert_eq!(rows, [Patch { severity_order: 0, servers_order: -7, ..patch("bash", 1, 1) }]);
    assert_eq!(patches::recorded_sets(&mut tx, ours).await.unwrap(), [two]);
    let missing = patches::get(&mut tx, ours, "gone").await.unwrap_err();
    assert!(matches!(missing, StoreError::NotFound { kind: "patch", .. }), "{missing:?}");
}

async fn second_of_two_concurrent_summaries_is_stale(database: TestDatabase) {
    let db = database.open().await;
    let ours = org(&db).await;
    let next = Summary {
        org_id: ours,
        basis: Digest::compute(b"x"),
        counts: json!({}),
        made_at: at(1),
        generation: 0,
    };
    let mut tx = db.begin().await.unwrap();
    patches::save_summary(&mut tx, &next).await.unwrap();
    tx.commit().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    assert!(matches!(patches::save_summary(&mut tx, &next).await, Err(StoreError::Stale)));
    let seen = patches::summary(&mut tx, ours).await.unwrap().unwrap();
    assert_eq!(seen.generation, 1);
    patches::save_summary(&mut tx, &seen).await.unwrap();
}

async fn servers_of_a_patch_are_sorted_by_name(database: TestDatabase) {
    let db = database.open().await;
    let ours = org(&db).await;
    let wants = Digest::compute(b"one");
    let all: Vec<_> = (0..9)
        .map(|n| store::servers::Server {
            update_set: (n % 3 > 0).then_some(wants),
            ..crate::servers::server(ours, n)
        })
        .collect();
    let mut tx = db.begin().await.unwrap();
    store::servers::enroll_all(&mut tx, &all).await.unwrap();
    patches::add_sets(&mut tx, ours, &[(wants, vec!["bash".to_owned()])]).await.unwrap();
    tx.commit().await.unwrap();
    let page = Page { limit: 3, offset: 1 };
    let mut reader = db.read().await.unwrap();
    for waiting in [1, 6, 1_000] {
        let patch = patch("bash", 0, waiting);
        let found = patches::servers(&mut reader, ours, &patch, 9, None, page).await.unwrap();
        let found: Vec<_> = found.iter().map(|server| server.hostname.as_str()).collect();
        assert_eq!(found, ["web-2", "web-4", "web-5"], "{waiting} servers wait");
    }
    let within = ["staging".parse().unwrap()];
    let patch = patch("bash", 0, 6);
    let none = patches::servers(&mut reader, ours, &patch, 9, Some(&within), page).await;
    assert!(none.unwrap().is_empty());
}

async fn wrong_security_counts_of_a_kind_are_corrected(database: TestDatabase) {
    let db = database.open().await;
    let (ours, theirs) = (org(&db).await, crate::support::other_org(&db).await);
    let set = |text: &str| Some(Digest::compute(text.as_bytes()));
    let host = |org, n| Server {
        update_set: set("updates"),
        package_set: set("packages"),
        security_updates: 1,
        ..crate::servers::server(org, n)
    };
    let fleet = [
        host(ours, 0),
        Server { security_updates: 2, ..host(ours, 1) },
        Server { kernel: "6.2".into(), ..host(ours, 2) },
        Server { package_set: set("others"), ..host(ours, 3) },
        Server { package_set: None, ..host(ours, 4) },
        host(ours, 5),
        host(ours, 6),
        host(theirs, 7),
    ];
    let mut tx = db.begin().await.unwrap();
    store::servers::enroll_all(&mut tx, &fleet).await.unwrap();
    store::servers::remove(&mut tx, &fleet[6], at(1)).await.unwrap();
    tx.commit().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    let kinds = patches::kinds(&mut tx, ours, None, at(0)).await.unwrap();
    let kind = kinds.iter().find(|kind| kind.servers == 3).unwrap();
    assert_eq!((kind.fewest, kind.most), (1, 2));
    let wrong = security_counts::find_wrong(&mut tx, ours, &[(kind, 2)]).await.unwrap();
    let ids: Vec<_> = wrong.iter().map(|one| one.id).collect();
    assert_eq!(ids, [fleet[0].id, fleet[5].id]);
    // One of them changes before the number is written.
    let seen = Server { generation: 1, ..fleet[5].clone() };
    let news = Server { updates: 9, ..seen.clone() };
    store::servers::save(&mut tx, &seen, &news, at(2)).await.unwrap();
    security_counts::write(&mut tx, &wrong).await.unwrap();
    let mut all = store::servers::get_all(&mut tx, &fleet.clone().map(|one| one.id)).await.unwrap();
    all.sort_by_key(|server| server.id);
    let numbers: Vec<_> = all.iter().map(|one| (one.security_updates, one.generation)).collect();
    assert_eq!(numbers, [(2, 1), (2, 1), (1, 1), (1, 1), (1, 1), (1, 2), (1, 1)]);
    let left = security_counts::find_wrong(&mut tx, ours, &[(kind, 2)]).await.unwrap();
    assert_eq!(
        left.iter().map(|one| one.id).collect::<Vec<_>>(),
        [fleet[5].id],
        "it is corrected the next time"
    );
}

testkit::both!(
    crate::support::database:
    patches_are_sorted_by_severity_servers_and_name,
    every_order_of_patches_is_the_same_in_memory,
    first_seen_stays_when_a_patch_changes,
    second_of_two_concurrent_summaries_is_stale,
    servers_of_a_patch_are_sorted_by_name,
    wrong_security_counts_of_a_kind_are_corrected,
);
