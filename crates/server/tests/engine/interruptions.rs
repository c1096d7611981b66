//! Interruptions that are no server's fault: a pause, an outage of the service, a clock change. And
//! a server that timed out and still continues.

use jiff::SignedDuration;
use serde_json::json;

use service::ServiceError;
use vocab::Stage;
use wire::agent::Outcome;
use wire::v1::Activity;

use crate::agent::Agent;
use crate::rollouts::{event_kinds, remove, state_line, tasks, wait_for_state};
use crate::support::{World, eventually};

async fn pause_withdraws_unstarted_order_and_resume_sends_a_new_one(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut db = Agent::join(&app, &token, "db-1").await;
    let created =
        service::commands::batches::create(&app, world.new_rollout(vec![web.id, db.id], json!({})))
            .await
            .unwrap();
    let (begun, waits) = (web.wait_for_order().await, db.wait_for_order().await);
    web.report_stage(begun.id, Stage::Installing, world.now());
    web.sync(0).await.unwrap();
    service::commands::batches::pause(&app, &world.admin(), world.org, created.id).await.unwrap();
    let mut response = db.sync(10).await.unwrap();
    while response.withdrawn.is_empty() {
        response = db.sync(10).await.unwrap();
    }
    assert_eq!((response.withdrawn, response.orders.len()), (vec![waits.id], 0));
    db.report_until_acknowledged(waits.id, Outcome::Withdrawn, world.now()).await;
    wait_for_state(&app, world, created.id, "paused: installing waiting").await;
    assert!(web.sync(0).await.unwrap().withdrawn.is_empty());

    service::commands::batches::resume(&app, &world.admin(), world.org, created.id).await.unwrap();
    let again = db.wait_for_order().await;
    assert_ne!(again.id, waits.id, "an agent remembers withdrawn orders");
    // The agent may report the withdrawal again at any time.
    db.report_until_acknowledged(waits.id, Outcome::Withdrawn, world.now()).await;
    assert_eq!(state_line(&app, world, created.id).await, "running: installing dispatched");
    db.report_until_acknowledged(again.id, Outcome::Succeeded, world.now()).await;
    web.report_until_acknowledged(begun.id, Outcome::Succeeded, world.now()).await;
    wait_for_state(&app, world, created.id, "succeeded: succeeded succeeded").await;
    assert_eq!(tasks(&app, created.id).await[1].task_id, again.id);
    engine.stop().await;
}

async fn lost_order_fails_immediately_and_its_server_is_scanned(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let made = service::commands::batches::create(&app, world.new_rollout(vec![web.id], json!({})))
        .await
        .unwrap();
    let order = web.wait_for_order().await;
    web.report_stage(order.id, Stage::Installing, world.now());
    let response = web.sync(0).await.unwrap();
    assert!(response.unreported.is_empty(), "the sync reports on it");
    wait_for_state(&app, world, made.id, "running: installing").await;
    // A service that has just started asks too.
    engine.stop().await;
    drop(app);
    let (app, engine) = world.leader("b").await;
    web.switch_to(&app);
    let mut response = web.sync(10).await.unwrap();
    while response.unreported.is_empty() {
        response = web.sync(10).await.unwrap();
    }
    assert_eq!((response.unreported, response.orders.len()), (vec![order.id], 0));
    web.report_until_acknowledged(order.id, Outcome::Unknown, world.now()).await;
    wait_for_state(&app, world, made.id, "failed: failed").await;
    let task = tasks(&app, made.id).await.remove(0);
    let domain::rollout::TaskStatus::Done(done) = task.target else { panic!("{:?}", task.target) };
    assert_eq!(done.outcome.failure_code(), Some(vocab::FailureCode::OrderLost));
    let scan = web.wait_for_order().await;
    assert_eq!(scan.work, wire::agent::Work::Scan);
    assert!(web.sync(0).await.unwrap().unreported.is_empty());
    engine.stop().await;
}

async fn reported_order_is_not_listed_as_unreported(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let made = service::commands::batches::create(&app, world.new_rollout(vec![web.id], json!({})))
        .await
        .unwrap();
    let order = web.wait_for_order().await;
    for stage in [Stage::Preflight, Stage::Installing] {
        web.report_stage(order.id, stage, world.now());
        assert!(web.sync(0).await.unwrap().unreported.is_empty());
        wait_for_state(&app, world, made.id, &format!("running: {stage}")).await;
    }
    // Nor is one whose result has just been acknowledged.
    web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    assert!(web.sync(0).await.unwrap().unreported.is_empty());
    wait_for_state(&app, world, made.id, "succeeded: succeeded").await;
    engine.stop().await;
}

async fn deadlines_passed_in_an_outage_wait_for_agent_reports(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut db = Agent::join(&app, &token, "db-1").await;
    let mut idle = Agent::join(&app, &token, "idle-1").await;
    let order = world
        .new_rollout(vec![web.id, db.id, idle.id], json!({"max_parallel": 2, "max_failures": 1}));
    let created = service::commands::batches::create(&app, order).await.unwrap();
    let order = web.wait_for_order().await;
    db.wait_for_order().await;
    drop(engine);
    drop(app);
    world.minutes(60);

    let (app, engine) = world.leader("b").await;
    for agent in [&mut web, &mut db, &mut idle] {
        agent.switch_to(&app);
    }
    web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    idle.wait_for_order().await;
    wait_for_state(&app, world, created.id, "running: succeeded dispatched dispatched").await;
    world.advance(SignedDuration::from_secs(209));
    for agent in [&mut web, &mut idle] {
        agent.sync(0).await.unwrap();
    }
    assert_eq!(
        state_line(&app, world, created.id).await,
        "running: succeeded dispatched dispatched"
    );
    world.advance(SignedDuration::from_secs(1));
    wait_for_state(&app, world, created.id, "halted: succeeded timed_out dispatched").await;
    engine.stop().await;
}

async fn clock_change_ends_no_wait_and_marks_no_server_offline(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut db = Agent::join(&app, &token, "db-1").await;
    let order =
        world.new_rollout(vec![web.id, db.id], json!({"max_parallel": 1, "window_minutes": 30}));
    let created = service::commands::batches::create(&app, order).await.unwrap();
    let order = web.wait_for_order().await;
    web.report_stage(order.id, Stage::Preflight, world.now());
    web.sync(0).await.unwrap();
    wait_for_state(&app, world, created.id, "running: preflight waiting").await;
    for hours in [24, -48, 24 * 3_650] {
        let before = tasks(&app, created.id).await[0].generation;
        world.set_clock(SignedDuration::from_hours(hours));
        eventually("the change is detected", async || {
            tasks(&app, created.id).await[0].generation > before
        })
        .await;
        web.sync(0).await.unwrap();
        assert_eq!(state_line(&app, world, created.id).await, "running: preflight waiting");
    }
    assert!(!event_kinds(&app, world).await.contains(&"server.offline".to_owned()));
    world.minutes(19);
    web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    let order = db.wait_for_order().await;
    db.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    wait_for_state(&app, world, created.id, "succeeded: succeeded succeeded").await;
    engine.stop().await;
}

async fn timed_out_server_that_still_works_gets_no_other_order(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let first =
        service::commands::batches::create(&app, world.new_rollout(vec![web.id], json!({})))
            .await
            .unwrap();
    let order = web.wait_for_order().await;
    web.next_sync.activity = Activity::Patching;
    web.report_stage(order.id, Stage::Preflight, world.now());
    web.sync(0).await.unwrap();
    world.minutes(21);
    web.sync(0).await.unwrap();
    wait_for_state(&app, world, first.id, "failed: timed_out").await;
    let second =
        service::commands::batches::create(&app, world.new_rollout(vec![web.id], json!({})))
            .await
            .unwrap();
    wait_for_state(&app, world, second.id, "running: waiting").await;
    for _ in 0..5 {
        assert!(web.orders(1).await.is_empty());
    }
    assert_eq!(state_line(&app, world, second.id).await, "running: waiting");
    web.next_sync.activity = Activity::Idle;
    web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    wait_for_state(&app, world, first.id, "succeeded: succeeded").await;
    let order = web.wait_for_order().await;
    web.report_until_acknowledged(order.id, Outcome::NoChange, world.now()).await;
    wait_for_state(&app, world, second.id, "succeeded: no_change").await;
    engine.stop().await;
}

async fn removed_server_is_not_retried(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut db = Agent::join(&app, &token, "db-1").await;
    let created =
        service::commands::batches::create(&app, world.new_rollout(vec![web.id, db.id], json!({})))
            .await
            .unwrap();
    for agent in [&mut web, &mut db] {
        let order = agent.wait_for_order().await;
        agent.report_until_acknowledged(order.id, Outcome::Failed, world.now()).await;
    }
    wait_for_state(&app, world, created.id, "failed: failed failed").await;
    remove(&app, world, web.id).await.unwrap();
    let again = service::commands::batches::retry(&app, &world.admin(), world.org, created.id)
        .await
        .unwrap();
    let servers: Vec<_> = tasks(&app, again.id).await.iter().map(|task| task.server_id).collect();
    assert_eq!(servers, [db.id]);
    remove(&app, world, db.id).await.unwrap();
    // Once the first retry has ended.
    eventually("there is nothing to retry", async || {
        let none =
            service::commands::batches::retry(&app, &world.admin(), world.org, created.id).await;
        match none {
            Err(ServiceError::Conflict { code: "nothing_to_retry", .. }) => true,
            Err(ServiceError::Conflict { code: "batch_not_ended", .. }) => false,
            other => panic!("{other:?}"),
        }
    })
    .await;
    engine.stop().await;
}

testkit::both!(
    crate::support:
    pause_withdraws_unstarted_order_and_resume_sends_a_new_one,
    lost_order_fails_immediately_and_its_server_is_scanned,
    reported_order_is_not_listed_as_unreported,
    deadlines_passed_in_an_outage_wait_for_agent_reports,
    clock_change_ends_no_wait_and_marks_no_server_offline,
    timed_out_server_that_still_works_gets_no_other_order,
    removed_server_is_not_retried,
);
