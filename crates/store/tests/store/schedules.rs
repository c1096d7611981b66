//! Schedules and their runs.

use domain::rollout::RolloutOutcome;
use jiff::Timestamp;
use serde_json::json;
use store::runs::{self, Run, RunState, StartResult, Trigger};
use store::schedules::{self, Schedule};
use store::{Db, Page, StoreError};
use vocab::{OrgId, Selector, SkipReason};

use crate::support::{Open as _, TestDatabase, at, nth, org, other_org};

fn schedule(org_id: OrgId, n: u32, next_run_at: Option<Timestamp>) -> Schedule {
    Schedule {
        id: nth!(ScheduleId, n),
        org_id,
        name: format!("nightly {n}"),
        description: "Jede Nacht, außer …".into(),
        enabled: true,
        cron: "30 2 * * MON-FRI".parse().unwrap(),
        timezone: "Europe/Berlin".parse().unwrap(),
        targets: Selector::parse(&json!({"environment": "production", "tags": ["role=web"]}))
            .unwrap(),
        options: json!({"security_only": true, "reboot": "if_required"}),
        next_run_at,
        created_at: at(0),
        updated_at: at(0),
        generation: 1,
        seal: store::seals::SealCode::default(),
    }
}

fn run(schedule: &Schedule, n: u32, scheduled_for: Option<Timestamp>) -> Run {
    Run {
        id: nth!(RunId, n),
        org_id: schedule.org_id,
        schedule_id: schedule.id,
        trigger_kind: if scheduled_for.is_some() { Trigger::Cron } else { Trigger::Manual },
        state: RunState::Running,
        skip_reason: None,
        scheduled_for,
        started_at: at(i64::from(n)),
        finished_at: None,
        batch_id: Some(nth!(BatchId, n)),
        targets: schedule.targets.clone(),
        options: schedule.options.clone(),
        generation: 1,
        seal: store::seals::SealCode::default(),
    }
}

fn skipped(schedule: &Schedule, n: u32, scheduled_for: Timestamp) -> Run {
    Run {
        state: RunState::Skipped,
        skip_reason: Some(SkipReason::Overlap),
        finished_at: Some(at(i64::from(n))),
        batch_id: None,
        ..run(schedule, n, Some(scheduled_for))
    }
}

async fn add(db: &Db, schedules: &[Schedule]) {
    let mut tx = db.begin().await.unwrap();
    for schedule in schedules {
        schedules::create(&mut tx, schedule).await.unwrap();
    }
    tx.commit().await.unwrap();
}

async fn schedule_is_readable_only_in_its_organization(db: Db) {
    let (ours, theirs) = (org(&db).await, other_org(&db).await);
    let created = schedule(ours, 1, Some(at(60)));
    add(&db, &[created.clone()]).await;
    let mut reader = db.read().await.unwrap();
    assert_eq!(schedules::get(&mut reader, ours, created.id).await.unwrap(), created);
    assert_eq!(schedules::list(&mut reader, ours).await.unwrap(), [created.clone()]);
    assert!(schedules::get(&mut reader, theirs, created.id).await.is_err());
    assert_eq!(schedules::list(&mut reader, theirs).await.unwrap(), []);
}

async fn schedule_name_is_unique_in_an_organization(db: Db) {
    let (ours, theirs) = (org(&db).await, other_org(&db).await);
    add(&db, &[schedule(ours, 1, None), schedule(ours, 2, None)]).await;
    let namesake = Schedule { name: "nightly 1".into(), ..schedule(ours, 3, None) };
    let taken = |result| {
        matches!(result, Err(StoreError::AlreadyExists { what: "a schedule with this name" }))
    };
    let mut tx = db.begin().await.unwrap();
    assert!(taken(schedules::create(&mut tx, &namesake).await));
    tx.rollback().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    let renamed = Schedule { name: "nightly 1".into(), ..schedule(ours, 2, None) };
    assert!(taken(schedules::save(&mut tx, &renamed).await));
    tx.rollback().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    schedules::create(&mut tx, &Schedule { org_id: theirs, ..namesake }).await.unwrap();
}

async fn stale_edit_and_stale_delete_are_refused(db: Db) {
    let ours = org(&db).await;
    let seen = schedule(ours, 1, None);
    add(&db, &[seen.clone()]).await;
    let mut tx = db.begin().await.unwrap();
    let next = Schedule {
        enabled: false,
        cron: "@daily".parse().unwrap(),
        updated_at: at(5),
        ..seen.clone()
    };
    schedules::save(&mut tx, &next).await.unwrap();
    assert!(matches!(schedules::save(&mut tx, &seen).await, Err(StoreError::Stale)));
    assert!(matches!(schedules::delete(&mut tx, &seen).await, Err(StoreError::Stale)));
    let now = schedules::get(&mut tx, ours, seen.id).await.unwrap();
    assert_eq!(now, Schedule { generation: 2, ..next });
    runs::start(&mut tx, &run(&now, 1, None)).await.unwrap();
    schedules::delete(&mut tx, &now).await.unwrap();
    assert!(schedules::get(&mut tx, ours, seen.id).await.is_err());
    assert!(runs::get(&mut tx, ours, nth!(RunId, 1_u32)).await.is_err());
    tx.commit().await.unwrap();
}

async fn longest_overdue_schedules_come_first(db: Db) {
    let ours = org(&db).await;
    let [late, soon, never, just] = [
        schedule(ours, 1, Some(at(10))),
        schedule(ours, 2, Some(at(100))),
        schedule(ours, 3, None),
        schedule(ours, 4, Some(at(20))),
    ];
    add(&db, &[late.clone(), soon.clone(), never, just.clone()]).await;
    let mut reader = db.read().await.unwrap();
    assert_eq!(schedules::due(&mut reader, at(20), 10).await.unwrap(), [late.clone(), just]);
    assert_eq!(schedules::due(&mut reader, at(20), 1).await.unwrap(), [late]);
    assert_eq!(schedules::next_due(&mut reader).await.unwrap(), Some(at(10)));
    assert_eq!(schedules::due(&mut reader, at(9), 10).await.unwrap(), []);
}

/// When the engine advances a schedule to its next instant, a concurrent edit by a user still
/// succeeds.
async fn advancing_a_schedule_makes_no_edit_stale(db: Db) {
    let ours = org(&db).await;
    let fleet: Vec<_> = (1..=600).map(|n| schedule(ours, n, Some(at(10)))).collect();
    add(&db, &fleet).await;
    let mut tx = db.begin().await.unwrap();
    let edited = Schedule { description: "edited".into(), ..fleet[0].clone() };
    schedules::save(&mut tx, &edited).await.unwrap();
    let moves: Vec<_> = fleet.iter().map(|seen| (seen, Some(at(3610)))).collect();
    assert_eq!(schedules::advance(&mut tx, &moves).await.unwrap().len(), 599);
    assert_eq!(schedules::advance(&mut tx, &moves).await.unwrap().len(), 0);
    let mut by_hand = schedules::get(&mut tx, ours, fleet[1].id).await.unwrap();
    assert_eq!((by_hand.next_run_at, by_hand.generation), (Some(at(3610)), 1));
    by_hand.enabled = false;
    by_hand.next_run_at = None;
    schedules::save(&mut tx, &by_hand).await.unwrap();
    assert_eq!(schedules::due(&mut tx, at(3610), 1000).await.unwrap().len(), 599);
    tx.commit().await.unwrap();
}

/// Eight tasks on two replicas find the same schedule due at the same second.
async fn instant_is_started_once_by_eight_starters(database: TestDatabase) {
    let replicas = [database.open().await, database.open().await];
    let ours = org(&replicas[0]).await;
    let due = schedule(ours, 1, Some(at(10)));
    add(&replicas[0], &[due.clone()]).await;
    let starts: Vec<_> = (1..=8_u32)
        .map(|n| {
            let (db, due) = (replicas[n as usize % 2].clone(), due.clone());
            tokio::spawn(async move {
                let mut tx = db.begin().await.unwrap();
                let start = runs::start(&mut tx, &run(&due, n, Some(at(10)))).await.unwrap();
                tx.commit().await.unwrap();
                (nth!(RunId, n), start)
            })
        })
        .collect();
    let mut ours_and_theirs = Vec::new();
    for start in starts {
        ours_and_theirs.push(start.await.unwrap());
    }
    let winners: Vec<_> =
        ours_and_theirs.iter().filter(|(_, start)| *start == StartResult::Started).collect();
    assert_eq!(winners.len(), 1);
    let winner = winners[0].0;
    for (run, start) in &ours_and_theirs {
        assert!(*run == winner || *start == StartResult::AlreadyStarted(winner), "{start:?}");
    }
}

async fn only_runs_without_a_rollout_can_be_skipped(db: Db) {
    let ours = org(&db).await;
    let all: Vec<Schedule> = (1..=3).map(|n| schedule(ours, n, Some(at(10)))).collect();
    add(&db, &all).await;
    let mut tx = db.begin().await.unwrap();
    let waiting = Run { batch_id: None, ..run(&all[0], 1, Some(at(10))) };
    let carried_out = run(&all[1], 2, Some(at(10)));
    let ended = skipped(&all[2], 3, at(10));
    let runs = [waiting, carried_out, ended];
    assert_eq!(runs::start_all(&mut tx, &runs).await.unwrap().len(), 3);
    let ids = runs.each_ref().map(|run| run.id);
    let changed = runs::skip_all(&mut tx, &ids, SkipReason::NoServers, at(11)).await.unwrap();
    assert_eq!(changed.into_iter().collect::<Vec<_>>(), [ids[0]]);
    let [waiting, carried_out, ended] = runs;
    let skipped = Run {
        state: RunState::Skipped,
        skip_reason: Some(SkipReason::NoServers),
        finished_at: Some(at(11)),
        generation: 2,
        ..waiting
    };
    for expected in [skipped, carried_out, ended] {
        assert_eq!(runs::get(&mut tx, ours, expected.id).await.unwrap(), expected);
    }
}

async fn overlapping_run_is_recorded_as_skipped(db: Db) {
    let ours = org(&db).await;
    let owner = schedule(ours, 1, Some(at(10)));
    add(&db, &[owner.clone()]).await;
    let mut tx = db.begin().await.unwrap();
    let first = run(&owner, 1, Some(at(10)));
    assert_eq!(runs::start(&mut tx, &first).await.unwrap(), StartResult::Started);
    assert_eq!(
        runs::start(&mut tx, &run(&owner, 2, Some(at(20)))).await.unwrap(),
        StartResult::Overlaps(first.id)
    );
    assert_eq!(
        runs::start(&mut tx, &run(&owner, 2, None)).await.unwrap(),
        StartResult::Overlaps(first.id)
    );
    assert_eq!(
        runs::start(&mut tx, &skipped(&owner, 2, at(20))).await.unwrap(),
        StartResult::Started
    );
    assert_eq!(
        runs::start(&mut tx, &skipped(&owner, 3, at(20))).await.unwrap(),
        StartResult::AlreadyStarted(nth!(RunId, 2_u32))
    );
    assert_eq!(runs::unfinished(&mut tx, owner.id).await.unwrap(), Some(first.clone()));
    runs::finish(&mut tx, &first, RolloutOutcome::CompletedWithErrors, at(50)).await.unwrap();
    assert!(matches!(
        runs::finish(&mut tx, &first, RolloutOutcome::Failed, at(51)).await,
        Err(StoreError::Stale)
    ));
    assert_eq!(runs::unfinished(&mut tx, owner.id).await.unwrap(), None);
    let second = run(&owner, 4, None);
    assert_eq!(runs::start(&mut tx, &second).await.unwrap(), StartResult::Started);
    runs::finish(&mut tx, &second, RolloutOutcome::Succeeded, at(60)).await.unwrap();
    assert_eq!(runs::start(&mut tx, &run(&owner, 5, None)).await.unwrap(), StartResult::Started);
    tx.commit().await.unwrap();
}

async fn runs_are_paged_newest_first(db: Db) {
    let (ours, theirs) = (org(&db).await, other_org(&db).await);
    let owner = schedule(ours, 1, None);
    add(&db, &[owner.clone()]).await;
    let mut tx = db.begin().await.unwrap();
    for n in 1..=5 {
        runs::start(&mut tx, &skipped(&owner, n, at(i64::from(n)))).await.unwrap();
    }
    let page = runs::list(&mut tx, ours, owner.id, Page { limit: 2, offset: 1 }).await.unwrap();
    assert_eq!(page.total, 5);
    assert_eq!(page.items, [skipped(&owner, 4, at(4)), skipped(&owner, 3, at(3))]);
    assert_eq!(
        runs::list(&mut tx, theirs, owner.id, Page { limit: 9, offset: 0 }).await.unwrap().total,
        0
    );
    assert!(runs::get(&mut tx, theirs, nth!(RunId, 1_u32)).await.is_err());
    let running = run(&owner, 9, None);
    runs::start(&mut tx, &running).await.unwrap();
    assert_eq!(runs::by_batch(&mut tx, nth!(BatchId, 9_u32)).await.unwrap(), Some(running));
    assert_eq!(runs::by_batch(&mut tx, nth!(BatchId, 1_u32)).await.unwrap(), None);
    tx.commit().await.unwrap();
}

async fn conflicting_runs_are_left_out_of_many(db: Db) {
    let ours = org(&db).await;
    let all: Vec<Schedule> = (0..4).map(|n| schedule(ours, n, None)).collect();
    add(&db, &all).await;
    let mut tx = db.begin().await.unwrap();
    assert_eq!(
        runs::start(&mut tx, &run(&all[1], 1, Some(at(60)))).await.unwrap(),
        StartResult::Started
    );
    let old = skipped(&all[2], 2, at(60));
    assert_eq!(runs::start(&mut tx, &old).await.unwrap(), StartResult::Started);
    tx.commit().await.unwrap();
    let many: Vec<Run> = (0_u32..4).map(|n| run(&all[n as usize], 10 + n, Some(at(60)))).collect();
    let mut tx = db.begin().await.unwrap();
    let started = runs::start_all(&mut tx, &many).await.unwrap();
    assert_eq!(started.into_iter().collect::<Vec<_>>(), [many[0].id, many[3].id]);
    let ids: Vec<_> = all.iter().map(|schedule| schedule.id).collect();
    let unfinished = runs::filter_unfinished(&mut tx, &ids).await.unwrap();
    assert_eq!(unfinished.into_iter().collect::<Vec<_>>(), [ids[0], ids[1], ids[3]]);
    assert!(runs::start_all(&mut tx, &[]).await.unwrap().is_empty());
    tx.commit().await.unwrap();
}

async fn run_gets_a_batch_only_once(db: Db) {
    let ours = org(&db).await;
    let all: Vec<Schedule> = (0..4).map(|n| schedule(ours, n, None)).collect();
    add(&db, &all).await;
    let bare = |n: u32| Run { batch_id: None, ..run(&all[n as usize], n, Some(at(60))) };
    let mut tx = db.begin().await.unwrap();
    let whole = run(&all[3], 3, Some(at(60)));
    runs::start_all(&mut tx, &[bare(2), bare(0), whole.clone(), bare(1)]).await.unwrap();
    runs::start(&mut tx, &skipped(&all[3], 9, at(70))).await.unwrap();
    assert_eq!(runs::without_batch(&mut tx, 2).await.unwrap(), [bare(0), bare(1)], "oldest first");
    runs::finish(&mut tx, &bare(2), RolloutOutcome::Canceled, at(80)).await.unwrap();
    assert_eq!(runs::without_batch(&mut tx, 9).await.unwrap(), [bare(0), bare(1)]);
    schedules::delete(&mut tx, &all[1]).await.unwrap();
    let batch = |n: u32| nth!(BatchId, 20 + n);
    let given: Vec<_> = (0..4_u32).map(|n| (nth!(RunId, n), batch(n))).collect();
    let taken = runs::set_batches(&mut tx, &given).await.unwrap();
    assert_eq!(
        taken.into_iter().collect::<Vec<_>>(),
        [bare(0).id],
        "one is deleted, one has ended, one has a batch"
    );
    assert_eq!(runs::by_batch(&mut tx, batch(0)).await.unwrap().unwrap().id, bare(0).id);
    assert_eq!(runs::get(&mut tx, ours, whole.id).await.unwrap(), whole);
    assert_eq!(runs::without_batch(&mut tx, 9).await.unwrap(), []);
    assert!(runs::set_batches(&mut tx, &given).await.unwrap().is_empty());
    tx.commit().await.unwrap();
}

testkit::both!(
    crate::support::db:
    schedule_is_readable_only_in_its_organization,
    schedule_name_is_unique_in_an_organization,
    stale_edit_and_stale_delete_are_refused,
    longest_overdue_schedules_come_first,
    advancing_a_schedule_makes_no_edit_stale,
    only_runs_without_a_rollout_can_be_skipped,
    overlapping_run_is_recorded_as_skipped,
    runs_are_paged_newest_first,
    conflicting_runs_are_left_out_of_many,
    run_gets_a_batch_only_once,
);

testkit::both!(
    crate::support::database:
    instant_is_started_once_by_eight_starters,
);
