//! Events, the audit log, notifications, snapshots, and parts of a transaction.

use store::audit::{self, NewEntry};
use store::events::{self, Event, Filter, NewEvent};
use store::{Db, StoreError, Topic, organizations};
use vocab::OrgId;

use crate::support::{Open as _, TestDatabase, at, nth, org, other_org, seal};

fn event(org_id: OrgId, n: u32) -> NewEvent {
    NewEvent {
        id: nth!(EventId, n),
        org_id,
        kind: "batch.created",
        at: at(i64::from(n)),
        actor: "key_1".into(),
        subject_kind: "batch",
        subject_id: format!("bat_{n}"),
        data: serde_json::json!({"n": n, "name": "Zürich"}),
    }
}

fn entry(org_id: OrgId, subject: &str) -> NewEntry {
    NewEntry {
        org_id,
        // More precise than a column: the hash must cover the value that will be read.
        at: at(1) + jiff::SignedDuration::from_nanos(1_234),
        actor: "key_1".into(),
        action: "server.remove".into(),
        subject: subject.into(),
        detail: r#"{"b":1,"a":2}"#.into(),
    }
}

async fn all_after(conn: &mut store::Conn, org: OrgId, sequence: i64, limit: u32) -> Vec<Event> {
    events::after(conn, org, sequence, &Filter::default(), limit).await.unwrap()
}

fn numbers(events: &[Event]) -> Vec<i64> {
    events.iter().map(|event| event.sequence).collect()
}

async fn events_are_ordered_and_limited_to_their_organization(db: Db) {
    let (ours, theirs) = (org(&db).await, other_org(&db).await);
    let mut tx = db.begin().await.unwrap();
    tx.emit(event(ours, 1));
    tx.emit(event(theirs, 2));
    tx.emit(event(ours, 3));
    tx.commit().await.unwrap();
    let mut reader = db.read().await.unwrap();
    let seen = all_after(&mut reader, ours, 0, 10).await;
    // Without gaps in each organization.
    assert_eq!(numbers(&seen), [1, 2]);
    assert_eq!(seen[1].data, event(ours, 3).data);
    assert_eq!(all_after(&mut reader, ours, 1, 10).await, seen[1..]);
    assert_eq!(numbers(&all_after(&mut reader, theirs, 0, 10).await), [1]);
    assert_eq!(events::latest(&mut reader, ours).await.unwrap(), 2);
    assert_eq!(events::latest(&mut reader, theirs).await.unwrap(), 1);
    assert_eq!(events::oldest(&mut reader, ours).await.unwrap(), Some(1));
    let about = Filter { subject_id: Some("bat_3".into()), ..Filter::default() };
    assert_eq!(events::after(&mut reader, ours, 0, &about, 10).await.unwrap(), seen[1..]);
    let others = Filter { kinds: vec!["server.offline".into()], ..Filter::default() };
    assert_eq!(events::after(&mut reader, ours, 0, &others, 10).await.unwrap(), []);
}

async fn rolled_back_transaction_leaves_no_event_and_no_gap(db: Db) {
    let ours = org(&db).await;
    let mut tx = db.begin().await.unwrap();
    tx.emit(event(ours, 1));
    tx.rollback().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    tx.emit(event(ours, 2));
    tx.commit().await.unwrap();
    let mut reader = db.read().await.unwrap();
    let seen = all_after(&mut reader, ours, 0, 10).await;
    assert_eq!((seen.len(), seen[0].sequence, seen[0].id), (1, 1, nth!(EventId, 2_u32)));
}

async fn old_events_are_deleted_in_portions(db: Db) {
    let ours = org(&db).await;
    let mut tx = db.begin().await.unwrap();
    (1..=5).for_each(|n| tx.emit(event(ours, n)));
    tx.commit().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    assert_eq!(events::purge(&mut tx, at(4), 2).await.unwrap(), 2);
    assert_eq!(events::purge(&mut tx, at(4), 2).await.unwrap(), 1);
    assert_eq!(numbers(&all_after(&mut tx, ours, 0, 10).await), [4, 5]);
    assert_eq!(events::oldest(&mut tx, ours).await.unwrap(), Some(4));
    tx.commit().await.unwrap();
}

/// A reader continues after the last number that it saw. If numbers were committed out of
/// order, it would miss the late ones.
async fn reader_beside_eight_writers_misses_no_event(db: Db) {
    let ours = org(&db).await;
    let writers: Vec<_> = (0..8_u32)
        .map(|writer| {
            let db = db.clone();
            tokio::spawn(async move {
                for round in 0..25 {
                    let mut tx = db.begin().await.unwrap();
                    let n = writer * 1000 + round * 2;
                    tx.emit(event(ours, n));
                    tx.emit(event(ours, n + 1));
                    tx.commit().await.unwrap();
                }
            })
        })
        .collect();
    let writing = tokio::spawn(async move {
        for writer in writers {
            writer.await.unwrap();
        }
    });
    let mut seen = Vec::new();
    loop {
        let last_look = writing.is_finished();
        let last = seen.last().copied().unwrap_or(0);
        let mut reader = db.read().await.unwrap();
        let more = all_after(&mut reader, ours, last, 7).await;
        if more.is_empty() && last_look {
            break;
        }
        seen.extend(numbers(&more));
    }
    assert_eq!(seen, (1..=400).collect::<Vec<i64>>());
    writing.await.unwrap();
}

async fn each_organization_has_a_verifiable_audit_chain(db: Db) {
    let (ours, theirs) = (org(&db).await, other_org(&db).await);
    for subject in ["a", "b", "c"] {
        let mut tx = db.begin().await.unwrap();
        tx.record(entry(ours, subject));
        tx.record(entry(theirs, subject));
        tx.commit().await.unwrap();
    }
    let mut reader = db.read().await.unwrap();
    let chain = audit::after(&mut reader, ours, 0, 10).await.unwrap();
    assert_eq!(chain.iter().map(|link| link.subject.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    let mut previous = Vec::new();
    for (place, link) in (1..).zip(&chain) {
        assert_eq!((link.seq, &link.previous), (place, &previous));
        assert_eq!(link.hash, seal().entry_hash(&previous, link.seq, &link.to_new_entry()));
        previous = link.hash.clone();
    }
    assert_eq!(audit::head(&mut reader, ours).await.unwrap(), (3, previous));
    assert_eq!(audit::after(&mut reader, theirs, 2, 10).await.unwrap().len(), 1);
}

async fn parallel_writers_build_one_unbroken_chain(db: Db) {
    let ours = org(&db).await;
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let db = db.clone();
            tokio::spawn(async move {
                for _ in 0..10 {
                    let mut tx = db.begin().await.unwrap();
                    tx.record(entry(ours, &writer.to_string()));
                    tx.commit().await.unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let mut reader = db.read().await.unwrap();
    let chain = audit::after(&mut reader, ours, 0, 100).await.unwrap();
    assert_eq!(chain.len(), 80);
    assert!(chain.windows(2).all(|pair| pair[1].previous == pair[0].hash));
}

async fn entry_for_unknown_organization_fails_the_transaction(db: Db) {
    let mut tx = db.begin().await.unwrap();
    organizations::create(&mut tx, nth!(OrgId, 1_u32), "Acme", at(0)).await.unwrap();
    tx.record(entry(nth!(OrgId, 99_u32), "a"));
    assert!(matches!(tx.commit().await, Err(StoreError::NotFound { kind: "organization", .. })));
    let mut reader = db.read().await.unwrap();
    assert_eq!(organizations::list(&mut reader).await.unwrap(), []);
}

async fn only_commits_notify_subscribers(db: Db) {
    let mut rollouts = db.subscribe(Topic::Rollouts);
    let mut servers = db.subscribe(Topic::Servers);
    let mut tx = db.begin().await.unwrap();
    tx.notify(Topic::Servers);
    tx.rollback().await.unwrap();
    assert!(!servers.take_notified());
    let mut tx = db.begin().await.unwrap();
    tx.notify(Topic::Rollouts);
    tx.commit().await.unwrap();
    rollouts.notified().await;
    assert!(!servers.take_notified());
}

async fn failed_part_is_rolled_back_alone(db: Db) {
    let ours = org(&db).await;
    let mut tx = db.begin().await.unwrap();
    let kept = tx
        .attempt(async |tx| {
            tx.emit(event(ours, 1));
            tx.record(entry(ours, "kept"));
            organizations::create(tx, nth!(OrgId, 3_u32), "Third", at(0)).await
        })
        .await
        .unwrap();
    assert!(kept.is_ok());
    let failed = tx
        .attempt(async |tx| {
            tx.emit(event(ours, 2));
            tx.record(entry(ours, "undone"));
            organizations::create(tx, nth!(OrgId, 4_u32), "Fourth", at(0)).await?;
            organizations::create(tx, nth!(OrgId, 5_u32), "Third", at(0)).await
        })
        .await
        .unwrap();
    assert!(matches!(failed, Err(StoreError::AlreadyExists { .. })));
    tx.commit().await.unwrap();
    let mut reader = db.read().await.unwrap();
    let names: Vec<_> =
        organizations::list(&mut reader).await.unwrap().into_iter().map(|org| org.name).collect();
    assert_eq!(names, ["Acme", "Third"]);
    assert_eq!(events::latest(&mut reader, ours).await.unwrap(), 1);
    assert_eq!(audit::head(&mut reader, ours).await.unwrap().0, 1);
}

async fn snapshot_does_not_see_later_commits(db: Db) {
    org(&db).await;
    let mut snapshot = db.snapshot().await.unwrap();
    assert_eq!(organizations::list(&mut snapshot).await.unwrap().len(), 1);
    other_org(&db).await;
    assert_eq!(organizations::list(&mut snapshot).await.unwrap().len(), 1);
    let mut reader = db.read().await.unwrap();
    assert_eq!(organizations::list(&mut reader).await.unwrap().len(), 2);
}

testkit::both!(
    crate::support::db:
    events_are_ordered_and_limited_to_their_organization,
    rolled_back_transaction_leaves_no_event_and_no_gap,
    old_events_are_deleted_in_portions,
    reader_beside_eight_writers_misses_no_event,
    each_organization_has_a_verifiable_audit_chain,
    parallel_writers_build_one_unbroken_chain,
    entry_for_unknown_organization_fails_the_transaction,
    only_commits_notify_subscribers,
    failed_part_is_rolled_back_alone,
    snapshot_does_not_see_later_commits,
);

/// PostgreSQL only: the two replicas share nothing but the database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_replica_is_notified_after_reconnecting() {
    let Some(place) = crate::support::migrated_postgres().await else { return };
    let (here, there): (Db, Db) = (place.open().await, place.open().await);
    notify_and_receive(&here, &there).await;

    // All listeners on this database lose their connections.
    let mut subscription = there.subscribe(Topic::Schedules);
    terminate_listeners(&place).await;
    // The listener notifies once after it reconnects, for whatever was missed.
    subscription.notified().await;
    notify_and_receive(&here, &there).await;
    here.close().await;
    there.close().await;
    place.remove().await;
}

async fn notify_and_receive(here: &Db, there: &Db) {
    let mut subscription = there.subscribe(Topic::Rollouts);
    let mut tx = here.begin().await.unwrap();
    tx.notify(Topic::Rollouts);
    tx.commit().await.unwrap();
    subscription.notified().await;
}

async fn terminate_listeners(database: &TestDatabase) {
    database
        .execute_sql(
            "select pg_terminate_backend(pid) from pg_stat_activity
              where datname = current_database() and query ilike 'listen%'",
        )
        .await;
}
