use store::{Db, StoreError, leases};

use crate::support::{Open as _, TestDatabase, at};

async fn lease_has_one_holder_until_it_expires(db: Db) {
    let mut tx = db.begin().await.unwrap();
    let first = leases::acquire(&mut tx, "planner", "a", at(0), at(30)).await.unwrap().unwrap();
    assert_eq!(leases::acquire(&mut tx, "planner", "b", at(29), at(60)).await.unwrap(), None);
    let second = leases::acquire(&mut tx, "planner", "b", at(30), at(60)).await.unwrap().unwrap();
    assert_eq!((first.token, second.token), (1, 2));
    assert_eq!(leases::get(&mut tx, "planner").await.unwrap(), Some(second));
    tx.commit().await.unwrap();
}

/// A suspended process must not commit what it decided under an expired lease.
async fn former_holder_of_a_lease_is_fenced(db: Db) {
    let mut tx = db.begin().await.unwrap();
    let paused = leases::acquire(&mut tx, "planner", "a", at(0), at(30)).await.unwrap().unwrap();
    leases::fence(&mut tx, &paused).await.unwrap();
    let taken = leases::acquire(&mut tx, "planner", "b", at(31), at(60)).await.unwrap().unwrap();
    let lost = |result: store::Result<()>| matches!(result, Err(StoreError::LeaseLost { name }) if name == "planner");
    assert!(lost(leases::fence(&mut tx, &paused).await));
    assert!(lost(leases::release(&mut tx, &paused, at(32)).await));
    assert!(lost(leases::renew(&mut tx, &paused, at(90)).await.map(drop)));
    leases::fence(&mut tx, &taken).await.unwrap();
    tx.commit().await.unwrap();
}

async fn lease_can_be_renewed_and_released(db: Db) {
    let mut tx = db.begin().await.unwrap();
    let held = leases::acquire(&mut tx, "planner", "a", at(0), at(30)).await.unwrap().unwrap();
    let held = leases::renew(&mut tx, &held, at(90)).await.unwrap();
    assert_eq!(leases::acquire(&mut tx, "planner", "b", at(60), at(99)).await.unwrap(), None);
    leases::release(&mut tx, &held, at(60)).await.unwrap();
    assert!(leases::acquire(&mut tx, "planner", "b", at(60), at(99)).await.unwrap().is_some());
    tx.commit().await.unwrap();
}

async fn only_one_of_eight_acquires_the_lease(database: TestDatabase) {
    let db = database.open().await;
    let tries = (0..8).map(|who| {
        let db = db.clone();
        tokio::spawn(async move {
            let mut tx = db.begin().await.unwrap();
            let held =
                leases::acquire(&mut tx, "feed", &who.to_string(), at(0), at(30)).await.unwrap();
            tx.commit().await.unwrap();
            held.is_some()
        })
    });
    let mut holders = 0;
    for attempt in tries.collect::<Vec<_>>() {
        holders += u32::from(attempt.await.unwrap());
    }
    assert_eq!(holders, 1);
}

/// The holder's clock was wrong by a day or by ten years.
async fn lease_from_a_wrong_clock_is_taken_immediately(db: Db) {
    const DAY: i64 = 86_400;
    for (n, wrong) in [DAY, -DAY, 3_650 * DAY, -3_650 * DAY].into_iter().enumerate() {
        let name = format!("lease {n}");
        let mut tx = db.begin().await.unwrap();
        let stamped = leases::acquire(&mut tx, &name, "a", at(wrong), at(wrong + 6)).await;
        let stamped = stamped.unwrap().unwrap();
        let taken = leases::acquire(&mut tx, &name, "b", at(0), at(6)).await.unwrap().unwrap();
        assert_eq!((taken.token, taken.until), (stamped.token + 1, at(6)), "{wrong}");
        assert!(leases::fence(&mut tx, &stamped).await.is_err(), "{wrong}");
        tx.commit().await.unwrap();
    }
}

async fn lease_from_a_slightly_fast_clock_is_respected(db: Db) {
    let mut tx = db.begin().await.unwrap();
    leases::acquire(&mut tx, "engine", "a", at(5), at(11)).await.unwrap().unwrap();
    assert_eq!(leases::acquire(&mut tx, "engine", "b", at(0), at(6)).await.unwrap(), None);
    tx.commit().await.unwrap();
}

testkit::both!(
    crate::support::db:
    lease_has_one_holder_until_it_expires,
    former_holder_of_a_lease_is_fenced,
    lease_can_be_renewed_and_released,
    lease_from_a_wrong_clock_is_taken_immediately,
    lease_from_a_slightly_fast_clock_is_respected,
);

testkit::both!(
    crate::support::database:
    only_one_of_eight_acquires_the_lease,
);
