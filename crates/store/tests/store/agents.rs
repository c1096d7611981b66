//! Data about agents: refreshes, task logs, presence, and servers that get no orders.

use store::presence_transitions::{self, AnnouncedOffline};
use store::refreshes::{self, Refresh, RefreshState};
use store::task_logs::{self, AppendResult, NewChunk};
use store::{Db, StoreError, enrollment_tokens, presence, rollouts, runs, servers};
use vocab::OrgId;

use crate::servers::server;
use crate::support::{at, nth, org, other_org};

fn refresh(org_id: OrgId, n: u32, seconds: i64) -> Refresh {
    Refresh {
        id: nth!(TaskId, n),
        org_id,
        server_id: nth!(ServerId, 1_u32),
        state: RefreshState::Requested,
        requested_by: "key".into(),
        requested_at: at(seconds),
        deadline: at(seconds + 300),
        ended_at: None,
        message: None,
        upgrade: None,
        seal: store::seals::SealCode::default(),
    }
}

async fn one_server(db: &Db) -> OrgId {
    let ours = org(db).await;
    let mut tx = db.begin().await.unwrap();
    servers::enroll(&mut tx, &server(ours, 1)).await.unwrap();
    tx.commit().await.unwrap();
    ours
}

async fn server_has_one_open_refresh_at_a_time(db: Db) {
    let ours = one_server(&db).await;
    let theirs = other_org(&db).await;
    let mut tx = db.begin().await.unwrap();
    let first = refresh(ours, 1, 0);
    assert_eq!(refreshes::request(&mut tx, &first).await.unwrap(), first);
    assert_eq!(refreshes::request(&mut tx, &refresh(ours, 2, 9)).await.unwrap(), first);
    assert_eq!(refreshes::list_open(&mut tx).await.unwrap(), [first.clone()]);
    assert!(matches!(
        refreshes::get(&mut tx, theirs, first.id).await,
        Err(StoreError::NotFound { kind: "refresh", .. })
    ));
    // A report from another server does not end it.
    let stranger = nth!(ServerId, 2_u32);
    assert!(
        !refreshes::finish(&mut tx, first.id, stranger, RefreshState::Failed, None, at(1))
            .await
            .unwrap()
    );
    assert!(
        refreshes::finish(
            &mut tx,
            first.id,
            first.server_id,
            RefreshState::Failed,
            Some("no"),
            at(1)
        )
        .await
        .unwrap()
    );
    assert!(
        !refreshes::finish(
            &mut tx,
            first.id,
            first.server_id,
            RefreshState::Succeeded,
            None,
            at(2)
        )
        .await
        .unwrap()
    );
    let ended = refreshes::get(&mut tx, ours, first.id).await.unwrap();
    assert_eq!(
        (ended.state, ended.message.as_deref(), ended.ended_at),
        (RefreshState::Failed, Some("no"), Some(at(1)))
    );
    assert_eq!(
        refreshes::request(&mut tx, &refresh(ours, 3, 9)).await.unwrap().id,
        nth!(TaskId, 3_u32)
    );
    tx.commit().await.unwrap();
}

async fn late_result_replaces_a_timed_out_refresh(db: Db) {
    let ours = one_server(&db).await;
    let mut tx = db.begin().await.unwrap();
    let asked = refresh(ours, 1, 0);
    refreshes::request(&mut tx, &asked).await.unwrap();
    assert_eq!(refreshes::expire(&mut tx, at(299)).await.unwrap().len(), 0);
    assert_eq!(refreshes::expire(&mut tx, at(300)).await.unwrap().len(), 1);
    assert_eq!(
        refreshes::get(&mut tx, ours, asked.id).await.unwrap().state,
        RefreshState::TimedOut
    );
    assert!(
        refreshes::finish(
            &mut tx,
            asked.id,
            asked.server_id,
            RefreshState::Succeeded,
            None,
            at(400)
        )
        .await
        .unwrap()
    );
    assert_eq!(
        refreshes::get(&mut tx, ours, asked.id).await.unwrap().state,
        RefreshState::Succeeded
    );

    let next = refresh(ours, 2, 500);
    refreshes::request(&mut tx, &next).await.unwrap();
    refreshes::cancel_for_server(&mut tx, next.server_id, at(501)).await.unwrap();
    assert_eq!(refreshes::get(&mut tx, ours, next.id).await.unwrap().state, RefreshState::Canceled);
    assert_eq!(refreshes::purge(&mut tx, at(500), 10).await.unwrap(), 1);
    assert!(refreshes::get(&mut tx, ours, asked.id).await.is_err());
    tx.commit().await.unwrap();
}

async fn log_grows_only_at_its_end(db: Db) {
    let mut tx = db.begin().await.unwrap();
    let task = nth!(TaskId, 1_u32);
    let piece = |position, body, second| NewChunk { task, position, body, at: at(second) };
    for (piece, end) in [
        (piece(0, b"one ".as_slice(), 0), AppendResult::Stored(4)),
        (piece(5, b"x", 0), AppendResult::Gap(4)),
        (piece(0, b"one ", 0), AppendResult::Stored(4)),
        (piece(2, b"e two ", 1), AppendResult::Stored(8)),
        (piece(8, b"three", 2), AppendResult::Stored(13)),
    ] {
        assert_eq!(task_logs::append(&mut tx, &[piece]).await.unwrap(), [end]);
    }
    let text = |chunks: Vec<task_logs::Chunk>| {
        String::from_utf8(chunks.into_iter().flat_map(|chunk| chunk.body).collect()).unwrap()
    };
    assert_eq!(text(task_logs::read(&mut tx, task, 0, 10).await.unwrap()), "one two three");
    assert_eq!(text(task_logs::read(&mut tx, task, 8, 10).await.unwrap()), "three");
    assert_eq!(text(task_logs::read(&mut tx, nth!(TaskId, 2_u32), 0, 10).await.unwrap()), "");
    assert_eq!(task_logs::purge(&mut tx, at(2), 10).await.unwrap(), 2);
    assert_eq!(task_logs::length(&mut tx, task).await.unwrap(), 13);
    tx.commit().await.unwrap();
}

async fn chunks_of_many_logs_are_appended_in_order(db: Db) {
    let mut tx = db.begin().await.unwrap();
    let (one, other, long) = (nth!(TaskId, 1_u32), nth!(TaskId, 2_u32), nth!(TaskId, 3_u32));
    let piece = |task, position, body| NewChunk { task, position, body, at: at(0) };
    task_logs::append(&mut tx, &[piece(other, 0, b"known ".as_slice())]).await.unwrap();
    let pieces = [
        piece(one, 0, b"a".as_slice()),
        piece(other, 6, b"and new"),
        piece(one, 1, b"bc"),
        piece(one, 0, b"abcd"),
        piece(other, 20, b"later"),
        piece(one, 0, b"ab"),
    ];
    use AppendResult::{Gap, Stored};
    let done = task_logs::append(&mut tx, &pieces).await.unwrap();
    assert_eq!(done, [Stored(1), Stored(13), Stored(3), Stored(4), Gap(13), Stored(4)]);
    // More than one statement can hold.
    let all: Vec<_> = (0..1_001).map(|nth| piece(long, nth, b"x".as_slice())).collect();
    assert_eq!(task_logs::append(&mut tx, &all).await.unwrap().last(), Some(&Stored(1_001)));
    for (task, text) in
        [(one, b"abcd".to_vec()), (other, b"known and new".to_vec()), (long, vec![b'x'; 1_001])]
    {
        let chunks = task_logs::read(&mut tx, task, 0, 2_000).await.unwrap();
        assert_eq!(chunks.into_iter().flat_map(|chunk| chunk.body).collect::<Vec<_>>(), text);
    }
    tx.commit().await.unwrap();
}

async fn offline_servers_are_found_until_they_return(db: Db) {
    let ours = one_server(&db).await;
    let mut tx = db.begin().await.unwrap();
    let id = nth!(ServerId, 1_u32);
    let silent = presence_transitions::list_offline(&mut tx, at(0), at(999)).await.unwrap();
    assert_eq!((silent.len(), silent[0].server_id, silent[0].last_seen_at), (1, id, at(0)));
    assert_eq!(presence_transitions::list_offline(&mut tx, at(-1), at(999)).await.unwrap(), []);
    // The last contact is in the future.
    assert_eq!(presence_transitions::list_offline(&mut tx, at(-9), at(0)).await.unwrap().len(), 1);
    let away = AnnouncedOffline { org_id: ours, server_id: id, since: at(0) };
    presence_transitions::record_offline(&mut tx, std::slice::from_ref(&away)).await.unwrap();
    presence_transitions::record_offline(&mut tx, std::slice::from_ref(&away)).await.unwrap();
    assert_eq!(presence_transitions::list_announced(&mut tx).await.unwrap(), [away]);
    let beat = presence::Contact { org: ours, server_id: id, seen_at: at(50), counter: 2 };
    presence::record_contacts(&mut tx, &[beat], at(1_000_000)).await.unwrap();
    assert_eq!(presence_transitions::list_offline(&mut tx, at(0), at(999)).await.unwrap(), []);
    presence_transitions::record_online(&mut tx, &[id]).await.unwrap();
    assert_eq!(presence_transitions::list_announced(&mut tx).await.unwrap(), []);
    tx.commit().await.unwrap();
}

async fn removed_and_quarantined_servers_are_blocked(db: Db) {
    let ours = one_server(&db).await;
    let mut tx = db.begin().await.unwrap();
    servers::enroll(&mut tx, &server(ours, 2)).await.unwrap();
    servers::enroll(&mut tx, &server(ours, 3)).await.unwrap();
    assert_eq!(presence_transitions::list_blocked(&mut tx).await.unwrap(), []);
    let before = servers::get(&mut tx, ours, nth!(ServerId, 2_u32)).await.unwrap();
    let after = servers::Server { quarantine: Some("a clone".into()), ..before.clone() };
    servers::save(&mut tx, &before, &after, at(1)).await.unwrap();
    let third = servers::get(&mut tx, ours, nth!(ServerId, 3_u32)).await.unwrap();
    servers::remove(&mut tx, &third, at(2)).await.unwrap();
    let barred = presence_transitions::list_blocked(&mut tx).await.unwrap();
    let reported: Vec<_> =
        barred.iter().map(|b| (b.id, b.removed_at, b.quarantine.as_deref())).collect();
    assert_eq!(reported, [(before.id, None, Some("a clone")), (third.id, Some(at(2)), None)]);
    let found = servers::by_public_key(&mut tx, &third.public_key).await.unwrap().unwrap();
    assert_eq!((found.id, found.removed_at), (third.id, Some(at(2))));
    assert_eq!(servers::by_public_key(&mut tx, b"unknown").await.unwrap(), None);
    assert_eq!(enrollment_tokens::org_by_hash(&mut tx, b"no such token").await.unwrap(), None);
    assert_eq!(rollouts::purge(&mut tx, at(9), 9).await.unwrap(), 0);
    assert_eq!(runs::purge(&mut tx, at(9), 9).await.unwrap(), 0);
    tx.commit().await.unwrap();
}

testkit::both!(
    crate::support::db:
    server_has_one_open_refresh_at_a_time,
    late_result_replaces_a_timed_out_refresh,
    log_grows_only_at_its_end,
    chunks_of_many_logs_are_appended_in_order,
    offline_servers_are_found_until_they_return,
    removed_and_quarantined_servers_are_blocked,
);
