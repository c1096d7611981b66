//! Detection of entries that were removed from the end of the audit log.

use std::collections::BTreeSet;

use serde_json::json;
use server::app::App;
use service::audit_anchor::{self, check};
use store::audit;

use crate::agent::Agent;
use crate::rollouts::event_kinds;
use crate::support::{World, eventually};

/// Makes changes that are logged.
async fn make_changes(app: &App, world: &World, web: &Agent, count: usize) {
    for _ in 0..count {
        service::commands::batches::create(app, world.new_rollout(vec![web.id], json!({})))
            .await
            .unwrap();
    }
}

async fn log_length(app: &App, world: &World) -> i64 {
    audit::head(&mut app.db.read().await.unwrap(), world.org).await.unwrap().0
}

/// Truncates the log after this entry and adjusts the head.
async fn cut_after(world: &World, seq: i64) {
    let org = world.org;
    world
        .execute_sql(&format!("delete from audit_entries where org_id = '{org}' and seq > {seq}"))
        .await;
    let hash = match seq {
        0 => "hash".to_owned(),
        _ => format!("(select hash from audit_entries where org_id = '{org}' and seq = {seq})"),
    };
    world
        .execute_sql(&format!(
            "update audit_heads set seq = {seq}, hash = {hash} where org_id = '{org}'"
        ))
        .await;
}

async fn truncated_audit_log_is_detected(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let web = Agent::join(&app, &token, "web-1").await;
    let dir = world.data_dir();
    for cut in [1, 3, i64::MAX] {
        audit_anchor::reset(dir).unwrap();
        make_changes(&app, world, &web, 5).await;
        assert!(check(&app, dir).await.unwrap().is_empty());
        let long = log_length(&app, world).await;
        cut_after(world, (long - cut).max(0)).await;
        assert_eq!(check(&app, dir).await.unwrap()[&world.org], long);
        // Also after as many or more entries were logged in their place.
        make_changes(&app, world, &web, 10).await;
        assert_eq!(check(&app, dir).await.unwrap()[&world.org], long);
    }
    // Only the head, and only the last entry.
    audit_anchor::reset(dir).unwrap();
    check(&app, dir).await.unwrap();
    let long = log_length(&app, world).await;
    world.execute_sql(&format!("update audit_heads set seq = {}", long - 1)).await;
    assert_eq!(check(&app, dir).await.unwrap().len(), 1);
    world.execute_sql(&format!("update audit_heads set seq = {long}")).await;
    assert!(check(&app, dir).await.unwrap().is_empty());
    world.execute_sql(&format!("delete from audit_entries where seq = {long}")).await;
    assert_eq!(check(&app, dir).await.unwrap().len(), 1);
    world.execute_sql("delete from audit_heads").await;
    assert_eq!(check(&app, dir).await.unwrap().len(), 1);
}

async fn truncated_log_raises_an_alarm_in_a_running_service(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let web = Agent::join(&app, &token, "web-1").await;
    make_changes(&app, world, &web, 3).await;
    assert!(check(&app, world.data_dir()).await.unwrap().is_empty());
    let long = log_length(&app, world).await;
    cut_after(world, long - 1).await;
    let kept = tokio::spawn(audit_anchor::run(app.service().clone(), world.data_dir().to_owned()));
    eventually("the alarm is raised", async || {
        event_kinds(&app, world).await.contains(&"audit.cut".to_owned())
    })
    .await;
    assert!(app.condition().audit_truncated());
    kept.abort();
}

async fn failed_check_neither_raises_nor_clears_the_alarm(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let web = Agent::join(&app, &token, "web-1").await;
    make_changes(&app, world, &web, 3).await;
    let mut alarmed = BTreeSet::new();
    let (good, missing) = (world.data_dir(), world.data_dir().join("missing"));
    // The anchor cannot be written there, as on a full disk.
    audit_anchor::check_and_alarm(&app, &missing, &mut alarmed).await;
    assert!(!app.condition().audit_truncated());
    audit_anchor::check_and_alarm(&app, good, &mut alarmed).await;
    assert!(!app.condition().audit_truncated());
    cut_after(world, log_length(&app, world).await - 1).await;
    audit_anchor::check_and_alarm(&app, good, &mut alarmed).await;
    assert!(app.condition().audit_truncated());
    audit_anchor::check_and_alarm(&app, &missing, &mut alarmed).await;
    assert!(app.condition().audit_truncated(), "the earlier alarm stays");
    assert_eq!(alarmed.len(), 1);
}

async fn restarts_and_crashes_raise_no_false_alarm(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let web = Agent::join(&app, &token, "web-1").await;
    for _ in 0..3 {
        make_changes(&app, world, &web, 2).await;
        assert!(check(&app, world.data_dir()).await.unwrap().is_empty());
        // What was logged after the last write of the anchor file is only in the database.
        make_changes(&app, world, &web, 2).await;
        // The connections of this replica stay open, as after a kill.
        let next = world.app("b").await;
        assert!(check(&next, world.data_dir()).await.unwrap().is_empty());
        next.db.close().await;
    }
}

async fn forged_anchor_is_rejected(world: &World) {
    let app = world.app("a").await;
    check(&app, world.data_dir()).await.unwrap();
    let path = world.data_dir().join(audit_anchor::FILE);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("\"seq\":0", "\"seq\":1", 1)).unwrap();
    assert!(check(&app, world.data_dir()).await.is_err());
    std::fs::write(&path, "").unwrap();
    assert!(check(&app, world.data_dir()).await.is_err());
}

testkit::both!(
    crate::support:
    truncated_audit_log_is_detected,
    truncated_log_raises_an_alarm_in_a_running_service,
    failed_check_neither_raises_nor_clears_the_alarm,
    restarts_and_crashes_raise_no_false_alarm,
    forged_anchor_is_rejected,
);

/// The database file is replaced by an older copy without `restore`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_copy_of_the_database_is_detected() {
    crate::support::sqlite(async |world: &World| {
        let app = world.app("a").await;
        let token = world.token(&app).await;
        let web = Agent::join(&app, &token, "web-1").await;
        make_changes(&app, world, &web, 2).await;
        let (path, copy) =
            (world.data_dir().join("fleetmend.db"), world.data_dir().join("copy.db"));
        world.execute_sql(&format!("vacuum into '{}'", copy.display())).await;
        make_changes(&app, world, &web, 2).await;
        assert!(check(&app, world.data_dir()).await.unwrap().is_empty());
        app.db.close().await;
        std::fs::rename(&copy, &path).unwrap();
        for log in ["fleetmend.db-wal", "fleetmend.db-shm"] {
            let _ = std::fs::remove_file(world.data_dir().join(log));
        }
        let app = world.app("b").await;
        assert_eq!(check(&app, world.data_dir()).await.unwrap().len(), 1);
        app.db.close().await;
    })
    .await;
}
