//! Rollouts and their tasks.

use std::collections::BTreeMap;

use domain::rollout::{
    ActiveTask, EndedTask, HealthProgress, Pace, Phase, RolloutHead, RolloutOutcome, TaskEvent,
    TaskOutcome, TaskStatus, WaveProgress,
};
use serde_json::json;
use store::rollout_tasks::{self, StateChange};
use store::rollouts::{self, Counts, Rollout, initial_counts};
use store::{Conn, Db, Page, StoreError, Topic};
use vocab::{BatchId, FailureCode, OrgId, Stage};

use crate::support::{Open as _, TestDatabase, at, nth, org, other_org};

const PAGE: Page = Page { limit: 50, offset: 0 };

fn rollout(org_id: OrgId, n: u32) -> Rollout {
    let id = nth!(BatchId, n);
    Rollout {
        id,
        org_id,
        name: format!("Batch {n}"),
        head: RolloutHead {
            id,
            phase: Phase::Running,
            pace: Pace { stagger_minutes: 5, ..Pace::default() },
            starts_at: at(0),
            start_by: at(3600),
            last_start: None,
            forgiven: 0,
            canary_waived: false,
            expected: None,
            canary_unchanged: false,
            waves: WaveProgress::default(),
            health: HealthProgress::default(),
            clock: at(0),
        },
        options: json!({"packages": ["openssl"]}),
        origin: "api".into(),
        started_by: "key_1".into(),
        run_id: None,
        retry_of: None,
        total: 0,
        created_at: at(i64::from(n)),
        ended_at: None,
        generation: 1,
        revision: 1,
        counts: Some(Counts::new()),
        wave_counts: Some(rollouts::WaveCounts::new()),
        counted: 1,
        seal: store::seals::SealCode::default(),
        head_seal: store::seals::SealCode::default(),
    }
}

/// Creates a rollout over servers `0..count`; tasks are numbered from `n` × a million.
pub(crate) async fn start(db: &Db, org: OrgId, n: u32, count: u32) -> BatchId {
    let targets: Vec<_> = (0..count)
        .map(|server| (nth!(TaskId, n * 1_000_000 + server), nth!(ServerId, server)))
        .collect();
    let mut tx = db.begin().await.unwrap();
    rollouts::create(&mut tx, &rollout(org, n), &targets).await.unwrap();
    tx.commit().await.unwrap();
    nth!(BatchId, n)
}

pub(crate) fn busy(stage: Stage, by: i64) -> TaskStatus {
    TaskStatus::Busy(ActiveTask { stage, started_at: at(1), by: at(by), wave: 1 })
}

pub(crate) fn done(outcome: TaskOutcome) -> TaskStatus {
    TaskStatus::Done(EndedTask { outcome, started_at: Some(at(1)), at: at(9), wave: 1 })
}

/// The first state change of a server, from waiting, or the second, from dispatched.
pub(crate) fn step(server: u32, seen: i64, next: TaskStatus) -> StateChange {
    let from = if seen == 1 { TaskStatus::Waiting } else { busy(Stage::Dispatched, 60) };
    StateChange { server_id: nth!(ServerId, server), from, seen, next, result: None, health: None }
}

/// The number of tasks per state. Checks that the stored counts equal the actual ones.
pub(crate) async fn counts(conn: &mut Conn, id: BatchId) -> Counts {
    let row = rollouts::load(conn, id).await.unwrap();
    let kept = row.counts.filter(|_| row.counted == row.revision);
    let counted = rollout_tasks::count(conn, id).await.unwrap();
    assert_eq!(kept.as_ref(), Some(&counted));
    counted
}

pub(crate) fn offers(servers: impl IntoIterator<Item = u32>) -> Vec<StateChange> {
    servers.into_iter().map(|server| step(server, 1, busy(Stage::Dispatched, 60))).collect()
}

async fn rollout_is_readable_only_in_its_organization(db: Db) {
    let (ours, theirs) = (org(&db).await, other_org(&db).await);
    let id = start(&db, ours, 1, 3).await;
    let mut reader = db.read().await.unwrap();
    let stored = rollouts::get(&mut reader, ours, id).await.unwrap();
    let counts = Some(initial_counts(3));
    assert_eq!(stored, Rollout { total: 3, counts, ..rollout(ours, 1) });
    assert!(matches!(
        rollouts::get(&mut reader, theirs, id).await,
        Err(StoreError::NotFound { kind: "batch", .. })
    ));
    assert_eq!(rollouts::list_open(&mut reader).await.unwrap(), [(id, 1)]);
    let targets = rollout_tasks::all(&mut reader, id).await.unwrap();
    assert_eq!(targets.iter().map(|target| target.position).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(targets.iter().all(|target| target.target == TaskStatus::Waiting));
    let task = rollout_tasks::get(&mut reader, ours, targets[1].task_id).await.unwrap();
    assert_eq!((task.server_id, task.result), (nth!(ServerId, 1_u32), None));
    assert!(rollout_tasks::get(&mut reader, theirs, targets[1].task_id).await.is_err());
}

async fn a_rollout_has_one_unfinished_retry(db: Db) {
    let ours = org(&db).await;
    let first = start(&db, ours, 1, 1).await;
    let retry = |n: u32| Rollout { retry_of: Some(first), ..rollout(ours, n) };
    let add = async |n: u32| {
        let targets = [(nth!(TaskId, n * 1_000_000), nth!(ServerId, 0_u32))];
        let mut tx = db.begin().await.unwrap();
        rollouts::create(&mut tx, &retry(n), &targets).await?;
        tx.commit().await
    };
    let running =
        async || rollouts::unfinished_retry(&mut db.read().await.unwrap(), first).await.unwrap();
    assert_eq!(running().await, None);
    add(2).await.unwrap();
    assert!(matches!(add(3).await, Err(StoreError::AlreadyExists { .. })));
    assert_eq!(running().await, Some(nth!(BatchId, 2_u32)));
    let mut tx = db.begin().await.unwrap();
    let seen = rollouts::get(&mut tx, ours, nth!(BatchId, 2_u32)).await.unwrap();
    assert_eq!(seen.retry_of, Some(first));
    let head = RolloutHead { phase: Phase::Ended(RolloutOutcome::Failed), ..seen.head.clone() };
    rollouts::save_head(&mut tx, &seen, &head, Some(at(9))).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(running().await, None);
    add(3).await.unwrap();
    assert_eq!(running().await, Some(nth!(BatchId, 3_u32)));
}

async fn rollout_is_found_by_part_of_its_name(db: Db) {
    let (ours, theirs) = (org(&db).await, other_org(&db).await);
    let mut tx = db.begin().await.unwrap();
    for (n, org, name) in [
        (1, ours, "openssl · production"),
        (2, theirs, "openssl · production"),
        (3, ours, "100% OpenSSL"),
        (4, ours, "Nightly (schedule)"),
    ] {
        let named = Rollout { name: name.into(), ..rollout(org, n) };
        rollouts::create(&mut tx, &named, &[]).await.unwrap();
    }
    tx.commit().await.unwrap();
    let mut reader = db.read().await.unwrap();
    for (text, limit, expected) in [
        ("openssl", 9, vec![3, 1]),
        ("OPENSSL", 1, vec![3]),
        ("· prod", 9, vec![1]),
        ("0%", 9, vec![3]),
        ("%", 9, vec![3]),
        ("n_ghtly", 9, vec![]),
    ] {
        let found = rollouts::search(&mut reader, ours, text, limit).await.unwrap();
        let found: Vec<BatchId> = found.iter().map(|row| row.id).collect();
        let expected: Vec<BatchId> = expected.iter().map(|n: &u32| nth!(BatchId, *n)).collect();
        assert_eq!(found, expected, "{text}");
    }
}

async fn many_rollouts_are_created_at_once(db: Db) {
    let (ours, theirs) = (org(&db).await, other_org(&db).await);
    let tasks = |n: u32, count: u32| -> Vec<_> {
        let task = |server| (nth!(TaskId, n * 10 + server), nth!(ServerId, server));
        (0..count).map(task).collect()
    };
    let (one, two, ended) = (rollout(ours, 1), rollout(ours, 2), rollout(ours, 3));
    let (few, none, some) = (tasks(1, 2), tasks(2, 0), tasks(3, 3));
    let mut tx = db.begin().await.unwrap();
    let all = [(&one, few.as_slice()), (&two, none.as_slice()), (&ended, some.as_slice())];
    rollouts::create_all(&mut tx, &all).await.unwrap();
    let seen = rollouts::load(&mut tx, ended.id).await.unwrap();
    let head = RolloutHead { phase: Phase::Ended(RolloutOutcome::Failed), ..seen.head.clone() };
    rollouts::save_head(&mut tx, &seen, &head, Some(at(9))).await.unwrap();
    let paused = rollouts::load(&mut tx, two.id).await.unwrap();
    let head = RolloutHead { phase: Phase::Paused, ..paused.head.clone() };
    rollouts::save_head(&mut tx, &paused, &head, None).await.unwrap();
    tx.commit().await.unwrap();
    let mut reader = db.read().await.unwrap();
    let stored = rollouts::get(&mut reader, ours, one.id).await.unwrap();
    let counts = Some(initial_counts(2));
    assert_eq!(stored, Rollout { total: 2, counts, ..one.clone() });
    let targets = rollout_tasks::all(&mut reader, ended.id).await.unwrap();
    let places: Vec<_> = targets.iter().map(|row| (row.position, row.task_id)).collect();
    assert_eq!(places, [(0, some[0].0), (1, some[1].0), (2, some[2].0)]);
    let counts = rollouts::open_counts(&mut reader, ours).await.unwrap();
    assert_eq!(counts, BTreeMap::from([("paused".to_owned(), 1), ("running".to_owned(), 1)]));
    assert!(rollouts::open_counts(&mut reader, theirs).await.unwrap().is_empty());
    let ids = [some[2].0, nth!(TaskId, 99_u32), few[0].0];
    let mut found = rollout_tasks::get_all(&mut reader, ours, &ids).await.unwrap();
    found.sort_by_key(|row| row.task_id);
    let found: Vec<_> = found.iter().map(|row| (row.rollout_id, row.server_id)).collect();
    assert_eq!(found, [(one.id, few[0].1), (ended.id, some[2].1)]);
    assert!(rollout_tasks::get_all(&mut reader, theirs, &ids).await.unwrap().is_empty());
}

/// The stored rollout and the one that the planner works with are equal.
async fn stored_rollout_resumes_where_it_stopped(db: Db) {
    let ours = org(&db).await;
    let id = start(&db, ours, 1, 3).await;
    let mut tx = db.begin().await.unwrap();
    let stored = rollouts::load(&mut tx, id).await.unwrap();
    let rows = rollout_tasks::all(&mut tx, id).await.unwrap();
    let mut planned = domain::rollout::Rollout::restore(
        stored.head.clone(),
        rows.iter().map(|row| (row.server_id, row.target)),
    );
    let next =
        planned.apply_event(rows[0].server_id, TaskEvent::Offered { wave: 1 }, at(5)).unwrap();
    let from = TaskStatus::Waiting;
    let offer = StateChange {
        server_id: rows[0].server_id,
        from,
        seen: 1,
        next,
        result: None,
        health: None,
    };
    assert_eq!(rollout_tasks::claim(&mut tx, id, &[offer]).await.unwrap(), [rows[0].server_id]);
    rollouts::save_head(&mut tx, &stored, planned.head(), None).await.unwrap();
    tx.commit().await.unwrap();
    let mut reader = db.snapshot().await.unwrap();
    let stored = rollouts::load(&mut reader, id).await.unwrap();
    let rows = rollout_tasks::all(&mut reader, id).await.unwrap();
    let restored = domain::rollout::Rollout::restore(
        stored.head,
        rows.iter().map(|row| (row.server_id, row.target)),
    );
    assert_eq!(restored, planned);
}

async fn creating_a_batch_is_all_or_nothing(db: Db) {
    let ours = org(&db).await;
    let twice = [
        (nth!(TaskId, 1_u32), nth!(ServerId, 1_u32)),
        (nth!(TaskId, 2_u32), nth!(ServerId, 1_u32)),
    ];
    let mut tx = db.begin().await.unwrap();
    let refused = rollouts::create(&mut tx, &rollout(ours, 1), &twice).await;
    assert!(matches!(refused, Err(StoreError::AlreadyExists { .. })));
    drop(tx);
    let mut reader = db.read().await.unwrap();
    assert_eq!(rollouts::list(&mut reader, ours, &[], PAGE).await.unwrap().total, 0);
}

async fn rollout_may_have_100_000_servers(db: Db) {
    let ours = org(&db).await;
    let id = start(&db, ours, 1, 100_000).await;
    let mut reader = db.read().await.unwrap();
    let targets = rollout_tasks::all(&mut reader, id).await.unwrap();
    assert_eq!(targets.len(), 100_000);
    assert_eq!(targets[99_999].server_id, nth!(ServerId, 99_999_u32));
    assert_eq!(counts(&mut reader, id).await, initial_counts(100_000));
}

/// A user pauses the rollout while the planner decides to start servers: the start must fail.
async fn decision_on_an_old_head_is_refused(db: Db) {
    let ours = org(&db).await;
    let id = start(&db, ours, 1, 2).await;
    let mut tx = db.begin().await.unwrap();
    let seen = rollouts::load(&mut tx, id).await.unwrap();
    let paused = RolloutHead { phase: Phase::Paused, ..seen.head.clone() };
    let now = rollouts::save_head(&mut tx, &seen, &paused, None).await.unwrap();
    assert_eq!((now.generation, now.revision, now.head.phase), (2, 2, Phase::Paused));
    tx.commit().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    assert_eq!(rollout_tasks::claim(&mut tx, id, &offers([0])).await.unwrap().len(), 1);
    assert!(matches!(
        rollouts::save_head(&mut tx, &seen, &seen.head, None).await,
        Err(StoreError::Stale)
    ));
    tx.rollback().await.unwrap();
    let mut reader = db.read().await.unwrap();
    assert_eq!(
        rollout_tasks::active_by_servers(&mut reader, &[nth!(ServerId, 0_u32)]).await.unwrap(),
        []
    );
}

async fn ended_rollout_is_not_open(db: Db) {
    let ours = org(&db).await;
    let (first, second) = (start(&db, ours, 1, 1).await, start(&db, ours, 2, 1).await);
    let mut tx = db.begin().await.unwrap();
    let seen = rollouts::load(&mut tx, first).await.unwrap();
    let ended = RolloutHead { phase: Phase::Ended(RolloutOutcome::Failed), ..seen.head.clone() };
    let now = rollouts::save_head(&mut tx, &seen, &ended, Some(at(50))).await.unwrap();
    assert_eq!(now.ended_at, Some(at(50)));
    assert_eq!(rollouts::list_open(&mut tx).await.unwrap(), [(second, 1)]);
    let failed = rollouts::list(&mut tx, ours, &["failed", "canceled"], PAGE).await.unwrap();
    assert_eq!((failed.total, failed.items), (1, vec![now]));
    let all = rollouts::list(&mut tx, ours, &[], Page { limit: 1, offset: 0 }).await.unwrap();
    assert_eq!((all.total, all.items[0].id), (2, second));
    tx.commit().await.unwrap();
}

async fn one_stale_change_refuses_all(db: Db) {
    let ours = org(&db).await;
    let id = start(&db, ours, 1, 1_200).await;
    let mut tx = db.begin().await.unwrap();
    let claimed = rollout_tasks::claim(&mut tx, id, &offers(0..1_200)).await.unwrap();
    assert_eq!(claimed.len(), 1_200);
    tx.commit().await.unwrap();
    let mut moves: Vec<_> = (0..1_200).map(|n| step(n, 2, done(TaskOutcome::Succeeded))).collect();
    moves[1_100].seen = 1;
    let mut tx = db.begin().await.unwrap();
    assert!(matches!(rollout_tasks::save(&mut tx, id, &moves).await, Err(StoreError::Stale)));
    tx.rollback().await.unwrap();
    let mut reader = db.read().await.unwrap();
    assert_eq!(counts(&mut reader, id).await["dispatched"], 1_200);
    drop(reader);
    moves[1_100].seen = 2;
    let mut tx = db.begin().await.unwrap();
    rollout_tasks::save(&mut tx, id, &moves).await.unwrap();
    tx.commit().await.unwrap();
    let mut reader = db.read().await.unwrap();
    assert_eq!(counts(&mut reader, id).await["succeeded"], 1_200);
}

async fn result_stays_when_later_change_has_none(db: Db) {
    let ours = org(&db).await;
    let id = start(&db, ours, 1, 2).await;
    let mut tx = db.begin().await.unwrap();
    rollout_tasks::claim(&mut tx, id, &offers([0])).await.unwrap();
    let report = json!({"packages": [{"name": "openssl", "from": "1", "to": "2"}]});
    let failed = done(TaskOutcome::Failed(FailureCode::DiskFull));
    let reported = StateChange { result: Some(report.clone()), ..step(0, 2, failed) };
    rollout_tasks::save(&mut tx, id, &[reported]).await.unwrap();
    let corrected = StateChange { from: failed, ..step(0, 3, done(TaskOutcome::Succeeded)) };
    rollout_tasks::save(&mut tx, id, &[corrected]).await.unwrap();
    let row = rollouts::load(&mut tx, id).await.unwrap();
    let page = rollout_tasks::list(&mut tx, &row, &["succeeded"], PAGE).await.unwrap();
    assert_eq!(
        (page.total, page.items[0].result.clone(), page.items[0].generation),
        (1, Some(report), 4)
    );
    assert_eq!(rollout_tasks::list(&mut tx, &row, &[], PAGE).await.unwrap().total, 2);
    tx.commit().await.unwrap();
}

async fn planner_reads_changes_of_other_writers(db: Db) {
    let ours = org(&db).await;
    let id = start(&db, ours, 1, 5).await;
    let mut subscription = db.subscribe(Topic::Rollouts);
    let mut tx = db.begin().await.unwrap();
    rollout_tasks::claim(&mut tx, id, &offers([0, 1, 2])).await.unwrap();
    tx.commit().await.unwrap();
    subscription.notified().await;
    let mut tx = db.begin().await.unwrap();
    let revision =
        rollout_tasks::save(&mut tx, id, &[step(1, 2, busy(Stage::Installing, 90))]).await.unwrap();
    tx.commit().await.unwrap();
    let mut reader = db.read().await.unwrap();
    let rows = rollout_tasks::changed_since(&mut reader, id, 1).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.position).collect::<Vec<_>>(), [0, 2, 1]);
    let rows = rollout_tasks::changed_since(&mut reader, id, 2).await.unwrap();
    assert_eq!((rows.len(), rows[0].position, rows[0].revision), (1, 1, revision));
    assert_eq!(rollout_tasks::changed_since(&mut reader, id, revision).await.unwrap(), []);
    assert_eq!(rollouts::list_open(&mut reader).await.unwrap(), [(id, revision)]);
}

/// A reader that runs beside writers never sees an earlier revision than one that it has seen.
async fn reader_beside_writers_misses_no_change(db: Db) {
    let ours = org(&db).await;
    let id = start(&db, ours, 1, 80).await;
    let writers: Vec<_> = (0..8_u32)
        .map(|writer| {
            let db = db.clone();
            tokio::spawn(async move {
                for n in 0..10 {
                    let mut tx = db.begin().await.unwrap();
                    rollout_tasks::claim(&mut tx, id, &offers([writer * 10 + n])).await.unwrap();
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
    let (mut known, mut seen) = (1, 0);
    loop {
        let last_look = writing.is_finished();
        let mut reader = db.read().await.unwrap();
        let rows = rollout_tasks::changed_since(&mut reader, id, known).await.unwrap();
        match rows.last() {
            Some(last) => known = last.revision,
            None if last_look => break,
            None => {}
        }
        seen += rows.len();
    }
    assert_eq!((seen, known), (80, 81));
    writing.await.unwrap();
    assert_eq!(counts(&mut db.read().await.unwrap(), id).await["dispatched"], 80);
}

async fn only_overdue_tasks_are_found(db: Db) {
    let ours = org(&db).await;
    let id = start(&db, ours, 1, 4).await;
    let mut tx = db.begin().await.unwrap();
    let moves = [
        step(0, 1, busy(Stage::Dispatched, 30)),
        step(1, 1, busy(Stage::Dispatched, 20)),
        step(2, 1, busy(Stage::Dispatched, 40)),
    ];
    rollout_tasks::claim(&mut tx, id, &moves).await.unwrap();
    let late: Vec<_> = rollout_tasks::overdue(&mut tx, at(30), 10)
        .await
        .unwrap()
        .into_iter()
        .map(|late| (late.server_id, late.deadline))
        .collect();
    assert_eq!(late, [(nth!(ServerId, 1_u32), at(20)), (nth!(ServerId, 0_u32), at(30))]);
    let timed_out = done(TaskOutcome::TimedOut(Stage::Dispatched));
    rollout_tasks::save(&mut tx, id, &[step(1, 2, timed_out)]).await.unwrap();
    assert_eq!(rollout_tasks::overdue(&mut tx, at(30), 10).await.unwrap().len(), 1);
    tx.commit().await.unwrap();
}

async fn every_state_is_counted_separately(db: Db) {
    let ours = org(&db).await;
    let id = start(&db, ours, 1, 8).await;
    let mut tx = db.begin().await.unwrap();
    rollout_tasks::claim(&mut tx, id, &offers(0..6)).await.unwrap();
    let moves = [
        step(0, 2, done(TaskOutcome::Succeeded)),
        step(1, 2, done(TaskOutcome::Failed(FailureCode::DiskFull))),
        step(2, 2, done(TaskOutcome::Failed(FailureCode::PkgLockTimeout))),
        step(3, 2, busy(Stage::Rebooting, 500)),
    ];
    rollout_tasks::save(&mut tx, id, &moves).await.unwrap();
    let counts = counts(&mut tx, id).await;
    let expected =
        [("dispatched", 2), ("failed", 2), ("rebooting", 1), ("succeeded", 1), ("waiting", 2)];
    assert_eq!(counts, expected.into_iter().map(|(state, n)| (state.to_owned(), n)).collect());
    tx.commit().await.unwrap();
}

async fn stored_counts_stay_valid_when_head_changes(db: Db) {
    let ours = org(&db).await;
    let id = start(&db, ours, 1, 3).await;
    let mut tx = db.begin().await.unwrap();
    rollout_tasks::claim(&mut tx, id, &offers([0, 2])).await.unwrap();
    let seen = rollouts::load(&mut tx, id).await.unwrap();
    let head = RolloutHead { phase: Phase::Ended(RolloutOutcome::Canceled), ..seen.head.clone() };
    rollouts::save_head(&mut tx, &seen, &head, Some(at(9))).await.unwrap();
    assert_eq!(counts(&mut tx, id).await["dispatched"], 2);
    // A late result.
    rollout_tasks::save(&mut tx, id, &[step(2, 2, done(TaskOutcome::Succeeded))]).await.unwrap();
    assert_eq!(counts(&mut tx, id).await["succeeded"], 1);
    tx.commit().await.unwrap();
}

/// A replica of an earlier release does not update the stored counts.
async fn changes_by_an_earlier_release_are_counted_again(database: TestDatabase) {
    let db = database.open().await;
    let ours = org(&db).await;
    let id = start(&db, ours, 1, 4).await;
    database.execute_sql("update rollout_tasks set state = 'failed' where position = 0").await;
    database.execute_sql("update rollouts set revision = revision + 1").await;
    let mut tx = db.begin().await.unwrap();
    for phase in [Phase::Running, Phase::Paused] {
        let seen = rollouts::load(&mut tx, id).await.unwrap();
        let found = rollout_tasks::counts(&mut tx, &seen).await.unwrap();
        assert_eq!(found, BTreeMap::from([("failed".to_owned(), 1), ("waiting".to_owned(), 3)]));
        let head = RolloutHead { phase, ..seen.head.clone() };
        rollouts::save_head(&mut tx, &seen, &head, None).await.unwrap();
    }
    rollout_tasks::claim(&mut tx, id, &offers([1, 2, 3])).await.unwrap();
    let all = [("dispatched".to_owned(), 3), ("failed".to_owned(), 1)];
    assert_eq!(counts(&mut tx, id).await, BTreeMap::from(all));
    tx.commit().await.unwrap();
}

async fn corrupt_task_is_named(database: TestDatabase) {
    let db = database.open().await;
    let ours = org(&db).await;
    let id = start(&db, ours, 1, 2).await;
    let task = nth!(TaskId, 1_000_001_u32);
    database
        .execute_sql(&format!(
            "update rollout_tasks set target = '\"dancing\"' where task_id = '{task}'"
        ))
        .await;
    let mut reader = db.read().await.unwrap();
    match rollout_tasks::all(&mut reader, id).await {
        Err(StoreError::Corrupt { table: "rollout_tasks", id, .. }) => {
            assert_eq!(id, task.to_string());
        }
        other => panic!("{other:?}"),
    }
}

testkit::both!(
    crate::support::db:
    rollout_is_readable_only_in_its_organization,
    a_rollout_has_one_unfinished_retry,
    rollout_is_found_by_part_of_its_name,
    many_rollouts_are_created_at_once,
    stored_rollout_resumes_where_it_stopped,
    creating_a_batch_is_all_or_nothing,
    rollout_may_have_100_000_servers,
    decision_on_an_old_head_is_refused,
    ended_rollout_is_not_open,
    one_stale_change_refuses_all,
    result_stays_when_later_change_has_none,
    planner_reads_changes_of_other_writers,
    reader_beside_writers_misses_no_change,
    only_overdue_tasks_are_found,
    every_state_is_counted_separately,
    stored_counts_stay_valid_when_head_changes,
);

testkit::both!(
    crate::support::database:
    changes_by_an_earlier_release_are_counted_again,
    corrupt_task_is_named,
);
