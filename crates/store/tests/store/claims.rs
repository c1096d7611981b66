//! Claiming servers: one rollout at a time, and none that cannot get orders.

use domain::rollout::{TaskOutcome, TaskStatus};
use store::rollout_tasks;
use store::servers::{self, Server};
use store::{Db, StoreError, presence_transitions};
use vocab::{ServerId, Stage};

use crate::rollouts::{busy, counts, done, offers, start, step};
use crate::servers::server;
use crate::support::{Open as _, TestDatabase, at, nth, org};

async fn unavailable_server_is_not_claimed(db: Db) {
    let ours = org(&db).await;
    let id = start(&db, ours, 1, 4).await;
    let mut tx = db.begin().await.unwrap();
    for number in 0..4 {
        servers::enroll(&mut tx, &server(ours, number)).await.unwrap();
    }
    let first = servers::get(&mut tx, ours, nth!(ServerId, 0_u32)).await.unwrap();
    servers::remove(&mut tx, &first, at(1)).await.unwrap();
    let second = servers::get(&mut tx, ours, nth!(ServerId, 1_u32)).await.unwrap();
    let held = Server { quarantine: Some("a clone".into()), ..second.clone() };
    servers::save(&mut tx, &second, &held, at(1)).await.unwrap();
    let third = servers::get(&mut tx, ours, nth!(ServerId, 2_u32)).await.unwrap();
    let working = Server { activity: "patching".into(), ..third.clone() };
    servers::save(&mut tx, &third, &working, at(1)).await.unwrap();
    assert_eq!(
        rollout_tasks::claim(&mut tx, id, &offers([0, 1, 2, 3])).await.unwrap(),
        [nth!(ServerId, 3_u32)]
    );
    let all = [first.id, second.id, third.id, nth!(ServerId, 3_u32)];
    let mut unable = presence_transitions::filter_unavailable(&mut tx, &all).await.unwrap();
    unable.sort_unstable();
    assert_eq!(unable, [(first.id, true), (second.id, true), (third.id, false)]);
    tx.commit().await.unwrap();
}

async fn server_with_an_active_task_is_not_claimed(db: Db) {
    let ours = org(&db).await;
    let (first, second) = (start(&db, ours, 1, 3).await, start(&db, ours, 2, 3).await);
    let mut tx = db.begin().await.unwrap();
    rollout_tasks::claim(&mut tx, first, &offers([0, 1])).await.unwrap();
    assert_eq!(
        rollout_tasks::claim(&mut tx, second, &offers([0, 1, 2])).await.unwrap(),
        [nth!(ServerId, 2_u32)]
    );
    let servers = [
        nth!(ServerId, 0_u32),
        nth!(ServerId, 1_u32),
        nth!(ServerId, 2_u32),
        nth!(ServerId, 3_u32),
    ];
    let mut where_they_are: Vec<_> = rollout_tasks::active_by_servers(&mut tx, &servers)
        .await
        .unwrap()
        .into_iter()
        .map(|active_task| (active_task.server_id, active_task.rollout_id))
        .collect();
    where_they_are.sort_unstable();
    assert_eq!(where_they_are, [(servers[0], first), (servers[1], first), (servers[2], second)]);
    rollout_tasks::save(&mut tx, first, &[step(0, 2, done(TaskOutcome::NoChange))]).await.unwrap();
    assert_eq!(rollout_tasks::claim(&mut tx, second, &offers([0, 1])).await.unwrap(), [servers[0]]);
    let of_one: Vec<_> = rollout_tasks::unfinished_by_server(&mut tx, servers[1])
        .await
        .unwrap()
        .into_iter()
        .map(|row| (row.rollout_id, row.target))
        .collect();
    assert_eq!(of_one, [(first, busy(Stage::Dispatched, 60)), (second, TaskStatus::Waiting)]);
    tx.commit().await.unwrap();
}

/// The unique index has the last word, even if a caller uses `save` instead of `claim`.
async fn database_refuses_two_active_tasks_on_a_server(db: Db) {
    let ours = org(&db).await;
    let (first, second) = (start(&db, ours, 1, 1).await, start(&db, ours, 2, 1).await);
    let mut tx = db.begin().await.unwrap();
    rollout_tasks::claim(&mut tx, first, &offers([0])).await.unwrap();
    let forced = rollout_tasks::save(&mut tx, second, &offers([0])).await;
    assert!(matches!(
        forced,
        Err(StoreError::AlreadyExists { what: "a server with an active task" })
    ));
}

/// Two replicas and two rollouts claim the same thousand servers at the same time.
async fn no_server_is_claimed_twice(database: TestDatabase) {
    let replicas = [database.open().await, database.open().await];
    let ours = org(&replicas[0]).await;
    let mut tx = replicas[0].begin().await.unwrap();
    for n in 0..1_000 {
        store::servers::enroll(&mut tx, &crate::servers::server(ours, n)).await.unwrap();
    }
    tx.commit().await.unwrap();
    let batches =
        [start(&replicas[0], ours, 1, 1_000).await, start(&replicas[0], ours, 2, 1_000).await];
    let claimers: Vec<_> = (0..4)
        .map(|n| {
            let (db, batch) = (replicas[n % 2].clone(), batches[n / 2]);
            tokio::spawn(async move {
                let mut mine = Vec::new();
                for part in 0..10 {
                    let mut offers = offers(part * 100..(part + 1) * 100);
                    if n % 2 == 1 {
                        offers.reverse();
                    }
                    let mut tx = db.begin().await.unwrap();
                    let claimed = rollout_tasks::claim(&mut tx, batch, &offers).await.unwrap();
                    tx.commit().await.unwrap();
                    mine.extend(claimed);
                }
                mine
            })
        })
        .collect();
    let mut claimed = Vec::new();
    for claimer in claimers {
        claimed.extend(claimer.await.unwrap());
    }
    claimed.sort_unstable();
    let all: Vec<ServerId> = (0..1_000_u32).map(|n| nth!(ServerId, n)).collect();
    assert_eq!(claimed, all);
    let mut reader = replicas[0].read().await.unwrap();
    let mut at_work = 0;
    for batch in batches {
        at_work += counts(&mut reader, batch).await.get("dispatched").copied().unwrap_or(0);
    }
    assert_eq!(at_work, 1_000);
}

testkit::both!(
    crate::support::db:
    unavailable_server_is_not_claimed,
    server_with_an_active_task_is_not_claimed,
    database_refuses_two_active_tasks_on_a_server,
);

testkit::both!(
    crate::support::database:
    no_server_is_claimed_twice,
);
