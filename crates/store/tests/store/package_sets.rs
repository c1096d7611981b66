//! Package sets, stored once however many servers have them.

use store::package_sets::{self, PackedSet, RETENTION_MIN, SetKind};
use store::servers::{self, Server};
use store::{Db, StoreError};
use vocab::{Digest, Installed};

use crate::servers::{enroll, packages, server};
use crate::support::{Open as _, TestDatabase, at, org, other_org};

async fn set_is_stored_once_and_read_unchanged(db: Db) {
    let (ours, theirs) = (org(&db).await, other_org(&db).await);
    let list = packages(100);
    let mut tx = db.begin().await.unwrap();
    let absent = Digest::compute(b"absent");
    let digests = [list.digest(), absent];
    assert_eq!(
        package_sets::missing(&mut tx, ours, SetKind::Packages, &digests).await.unwrap(),
        digests
    );
    assert!(package_sets::store(&mut tx, ours, SetKind::Packages, &list, at(0)).await.unwrap());
    assert!(!package_sets::store(&mut tx, ours, SetKind::Packages, &list, at(1)).await.unwrap());
    assert_eq!(
        package_sets::missing(&mut tx, ours, SetKind::Packages, &digests).await.unwrap(),
        [absent]
    );
    // An organization must not learn whether another one has a set.
    assert_eq!(
        package_sets::missing(&mut tx, theirs, SetKind::Packages, &digests).await.unwrap(),
        digests
    );
    assert_eq!(
        package_sets::missing(&mut tx, ours, SetKind::Updates, &digests).await.unwrap(),
        digests
    );
    let bytes = package_sets::get(&mut tx, ours, SetKind::Packages, list.digest()).await.unwrap();
    assert_eq!(vocab::listing::decode::<Installed>(&bytes).unwrap().len(), 100);
    assert!(matches!(
        package_sets::get(&mut tx, theirs, SetKind::Packages, list.digest()).await,
        Err(StoreError::NotFound { .. })
    ));
    tx.commit().await.unwrap();
}

async fn set_that_does_not_match_its_digest_is_corrupt(database: TestDatabase) {
    let db = database.open().await;
    let ours = org(&db).await;
    let (list, other) = (packages(10), packages(11));
    let mut tx = db.begin().await.unwrap();
    for one in [&list, &other] {
        package_sets::store(&mut tx, ours, SetKind::Packages, one, at(0)).await.unwrap();
    }
    tx.commit().await.unwrap();
    database.execute_sql(
        "update package_sets set compressed = (select compressed from package_sets where entries = 11),
                size_bytes = (select size_bytes from package_sets where entries = 11) where entries = 10",
    ).await;
    let mut reader = db.read().await.unwrap();
    let read = package_sets::get(&mut reader, ours, SetKind::Packages, list.digest()).await;
    assert!(matches!(read, Err(StoreError::Corrupt { table: "package_sets", .. })), "{read:?}");
    package_sets::get(&mut reader, ours, SetKind::Packages, other.digest()).await.unwrap();
}

async fn server_cannot_use_a_missing_set(db: Db) {
    let ours = org(&db).await;
    let before = server(ours, 1);
    enroll(&db, &[before.clone()]).await;
    let list = packages(10);
    let after = Server { package_set: Some(list.digest()), packages: 10, ..before.clone() };
    let mut tx = db.begin().await.unwrap();
    let refused = servers::save(&mut tx, &before, &after, at(1)).await;
    assert!(matches!(refused, Err(StoreError::NotFound { kind: "package set", .. })));
    package_sets::store(&mut tx, ours, SetKind::Packages, &list, at(1)).await.unwrap();
    servers::save(&mut tx, &before, &after, at(1)).await.unwrap();
    tx.commit().await.unwrap();
}

async fn only_unused_sets_are_deleted(db: Db) {
    let ours = org(&db).await;
    let (carried, idle, fresh) = (packages(1), packages(2), packages(3));
    let before = server(ours, 1);
    enroll(&db, &[before.clone()]).await;
    let later = at(0) + RETENTION_MIN + RETENTION_MIN;
    let mut tx = db.begin().await.unwrap();
    for (list, when) in [(&carried, at(0)), (&idle, at(0)), (&fresh, later)] {
        package_sets::store(&mut tx, ours, SetKind::Packages, list, when).await.unwrap();
    }
    package_sets::store(&mut tx, ours, SetKind::Updates, &carried, at(0)).await.unwrap();
    let after = Server { package_set: Some(carried.digest()), ..before.clone() };
    servers::save(&mut tx, &before, &after, at(0)).await.unwrap();
    // The requested cutoff is too late and is moved back: the fresh set stays.
    assert_eq!(package_sets::delete_unused(&mut tx, later, later, 10).await.unwrap(), 2);
    let digests = [carried.digest(), idle.digest(), fresh.digest()];
    assert_eq!(
        package_sets::missing(&mut tx, ours, SetKind::Packages, &digests).await.unwrap(),
        [idle.digest()]
    );
    assert_eq!(
        package_sets::missing(&mut tx, ours, SetKind::Updates, &digests).await.unwrap().len(),
        3
    );
    tx.commit().await.unwrap();
}

/// A server starts to use an old set while it is being deleted. Either the server comes first
/// and the set stays, or it comes second and its agent must upload the set.
async fn set_that_a_server_starts_to_use_is_kept(db: Db) {
    let ours = org(&db).await;
    let later = at(0) + RETENTION_MIN + RETENTION_MIN;
    for round in 1..=10_u32 {
        let list = packages(round);
        let before = server(ours, round);
        enroll(&db, &[before.clone()]).await;
        let mut tx = db.begin().await.unwrap();
        package_sets::store(&mut tx, ours, SetKind::Packages, &list, at(0)).await.unwrap();
        tx.commit().await.unwrap();
        let (mine, yours) = (db.clone(), db.clone());
        let digest = list.digest();
        let takes = tokio::spawn(async move {
            let after = Server { package_set: Some(digest), ..before.clone() };
            let mut tx = mine.begin().await.unwrap();
            let taken = servers::save(&mut tx, &before, &after, later).await;
            if taken.is_ok() {
                tx.commit().await.unwrap();
            }
            taken.is_ok()
        });
        let drops = tokio::spawn(async move {
            let mut tx = yours.begin().await.unwrap();
            package_sets::delete_unused(&mut tx, later, later, 10).await.unwrap();
            tx.commit().await.unwrap();
        });
        let (taken, ()) = (takes.await.unwrap(), drops.await.unwrap());
        let mut reader = db.read().await.unwrap();
        let here = package_sets::missing(&mut reader, ours, SetKind::Packages, &[digest])
            .await
            .unwrap()
            .is_empty();
        assert_eq!(taken, here, "round {round}");
    }
}

async fn set_compressed_by_the_agent_is_readable(db: Db) {
    let ours = org(&db).await;
    let bytes = vocab::listing::encode(&[Installed::new("bash", "5.2", "amd64")]);
    let compressed = zstd::bulk::compress(&bytes, 19).unwrap();
    let packed = PackedSet::from_stream(Digest::compute(&bytes), 1, bytes.len() as u64, compressed);
    let mut tx = db.begin().await.unwrap();
    assert!(package_sets::store(&mut tx, ours, SetKind::Packages, &packed, at(0)).await.unwrap());
    tx.commit().await.unwrap();
    let digest = Digest::compute(&bytes);
    let mut reader = db.read().await.unwrap();
    assert_eq!(
        package_sets::get(&mut reader, ours, SetKind::Packages, digest).await.unwrap(),
        bytes
    );
}

testkit::both!(
    crate::support::db:
    set_is_stored_once_and_read_unchanged,
    server_cannot_use_a_missing_set,
    only_unused_sets_are_deleted,
    set_that_a_server_starts_to_use_is_kept,
    set_compressed_by_the_agent_is_readable,
);

testkit::both!(
    crate::support::database:
    set_that_does_not_match_its_digest_is_corrupt,
);
