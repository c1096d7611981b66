//! Rollouts: orders on their way to agents, and results on their way back.

use axum::http::StatusCode;
use jiff::SignedDuration;
use serde_json::json;
use server::app::App;

use service::ServiceError;
use store::Page;
use store::events::{self, Filter};
use store::rollout_tasks::{self, TaskResult, state_name};
use store::rollouts::{self, phase_name};
use vocab::{BatchId, FailureCode, ServerId, Stage};
use wire::agent::{Outcome, Work};

use crate::agent::{Agent, rejection};
use crate::support::{World, eventually};

const PAGE: Page = Page { limit: 500, offset: 0 };

/// The state of the batch, then those of its tasks in start order.
pub(crate) async fn state_line(app: &App, world: &World, id: BatchId) -> String {
    let mut reader = app.db.read().await.unwrap();
    let row = rollouts::get(&mut reader, world.org, id).await.unwrap();
    let tasks = tasks(app, id).await;
    let states: Vec<_> = tasks.iter().map(|task| state_name(task.target)).collect();
    format!("{}: {}", phase_name(row.head.phase), states.join(" "))
}

pub(crate) async fn tasks(app: &App, id: BatchId) -> Vec<TaskResult> {
    let mut reader = app.db.read().await.unwrap();
    let row = rollouts::load(&mut reader, id).await.unwrap();
    rollout_tasks::list(&mut reader, &row, &[], PAGE).await.unwrap().items
}

pub(crate) async fn wait_for_state(app: &App, world: &World, id: BatchId, wanted: &str) {
    let mut last = String::new();
    for _ in 0..2_000 {
        last = state_line(app, world, id).await;
        if last == wanted {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(last, wanted);
}

pub(crate) async fn event_kinds(app: &App, world: &World) -> Vec<String> {
    let mut reader = app.db.read().await.unwrap();
    let all = events::after(&mut reader, world.org, 0, &Filter::default(), 500).await.unwrap();
    all.into_iter().map(|event| event.kind).collect()
}

async fn order_reaches_its_agent_and_its_result_ends_the_batch(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let options = json!({"packages": ["bash"], "exclude": ["linux-*"], "security_only": true,
        "reboot": "if_required"});
    // The agent is waiting already when the batch is created.
    let (made, order) = tokio::join!(
        service::commands::batches::create(&app, world.new_rollout(vec![web.id], options)),
        web.wait_for_order(),
    );
    let created = made.unwrap();
    let task = tasks(&app, created.id).await.remove(0);
    assert_eq!(order.id, task.task_id);
    assert_eq!(order.expires_at, world.now() + domain::rollout::stage_limit(Stage::Dispatched));
    let Work::Install(install) = &order.work else { panic!("{:?}", order.work) };
    assert_eq!(install.packages, ["bash".parse().unwrap()]);
    assert!(install.security_only && install.boot_id.as_str() == "boot-1");

    // The order is sent again until it is started.
    assert_eq!(web.orders(0).await, std::slice::from_ref(&order));
    web.report_stage(order.id, Stage::Installing, world.now());
    web.sync(0).await.unwrap();
    wait_for_state(&app, world, created.id, "running: installing").await;
    eventually("the order is no longer sent", async || web.orders(0).await.is_empty()).await;

    web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    wait_for_state(&app, world, created.id, "succeeded: succeeded").await;
    let task = tasks(&app, created.id).await.remove(0);
    assert_eq!(task.result.unwrap()["message"], "as it went");

    // A repeated report is acknowledged again and changes nothing.
    web.report_until_acknowledged(order.id, Outcome::Failed, world.now()).await;
    assert_eq!(tasks(&app, created.id).await[0].generation, task.generation);
    let kinds = event_kinds(&app, world).await;
    for kind in
        ["server.enrolled", "batch.created", "batch.started", "task.finished", "batch.finished"]
    {
        assert_eq!(kinds.iter().filter(|known| *known == kind).count(), 1, "{kind}: {kinds:?}");
    }
    engine.stop().await;
}

async fn dry_run_installs_nothing(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let order = world.new_rollout(vec![web.id], json!({"dry_run": true}));
    service::commands::batches::create(&app, order).await.unwrap();
    assert!(matches!(web.wait_for_order().await.work, Work::Plan(_)));
    engine.stop().await;
}

/// A timeout is an assumption; a report is a fact.
async fn late_result_corrects_a_timeout_and_the_batch_result(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let made = service::commands::batches::create(&app, world.new_rollout(vec![web.id], json!({})))
        .await
        .unwrap();
    let order = web.wait_for_order().await;
    world.minutes(11);
    wait_for_state(&app, world, made.id, "failed: timed_out").await;
    web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    assert_eq!(state_line(&app, world, made.id).await, "succeeded: succeeded");
    // And that is final.
    web.report_until_acknowledged(order.id, Outcome::Failed, world.now()).await;
    assert_eq!(state_line(&app, world, made.id).await, "succeeded: succeeded");
    engine.stop().await;
}

async fn server_that_does_not_return_from_reboot_times_out(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let options = json!({"reboot": "if_required"});
    let created =
        service::commands::batches::create(&app, world.new_rollout(vec![web.id], options))
            .await
            .unwrap();
    let order = web.wait_for_order().await;
    web.report_stage(order.id, Stage::Rebooting, world.now());
    web.sync(0).await.unwrap();
    wait_for_state(&app, world, created.id, "running: rebooting").await;
    assert_eq!(domain::rollout::stage_limit(Stage::Rebooting), SignedDuration::from_mins(30));
    world.minutes(31);
    wait_for_state(&app, world, created.id, "failed: timed_out").await;
    // If it is switched on by hand an hour later, its report counts.
    world.minutes(60);
    web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    wait_for_state(&app, world, created.id, "succeeded: succeeded").await;
    engine.stop().await;
}

async fn canceled_orders_are_withdrawn_from_agents_that_have_not_started(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let made = service::commands::batches::create(&app, world.new_rollout(vec![web.id], json!({})))
        .await
        .unwrap();
    let order = web.wait_for_order().await;
    let admin = world.admin();
    let (canceled, answer) = tokio::join!(
        service::commands::batches::cancel(&app, &admin, world.org, made.id),
        web.sync(10),
    );
    canceled.unwrap();
    let mut response = answer.unwrap();
    while response.withdrawn.is_empty() {
        response = web.sync(10).await.unwrap();
    }
    assert_eq!((response.withdrawn, response.orders.len()), (vec![order.id], 0));
    web.report_until_acknowledged(order.id, Outcome::Withdrawn, world.now()).await;
    wait_for_state(&app, world, made.id, "canceled: canceled").await;
    let again = service::commands::batches::cancel(&app, &world.admin(), world.org, made.id).await;
    assert!(matches!(again, Err(ServiceError::Conflict { code: "batch_state", .. })));
    engine.stop().await;
}

async fn paused_batch_starts_no_server_until_resumed(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut db = Agent::join(&app, &token, "db-1").await;
    let order = world.new_rollout(vec![web.id, db.id], json!({"max_parallel": 1}));
    let created = service::commands::batches::create(&app, order).await.unwrap();
    let order = web.wait_for_order().await;
    service::commands::batches::pause(&app, &world.admin(), world.org, created.id).await.unwrap();
    web.report_until_acknowledged(order.id, Outcome::NoChange, world.now()).await;
    wait_for_state(&app, world, created.id, "paused: no_change waiting").await;
    service::commands::batches::resume(&app, &world.admin(), world.org, created.id).await.unwrap();
    let order = db.wait_for_order().await;
    db.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    wait_for_state(&app, world, created.id, "succeeded: no_change succeeded").await;
    engine.stop().await;
}

async fn failed_canary_halts_the_batch_and_failed_servers_are_retried(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut db = Agent::join(&app, &token, "db-1").await;
    let order = world.new_rollout(vec![web.id, db.id], json!({"canary": 1}));
    let created = service::commands::batches::create(&app, order).await.unwrap();
    let order = web.wait_for_order().await;
    web.report_result(order.id, Outcome::Failed, world.now());
    web.next_sync.results[0].failure_code = Some(FailureCode::DiskFull);
    web.sync(0).await.unwrap();
    wait_for_state(&app, world, created.id, "halted: failed waiting").await;
    let refused =
        service::commands::batches::retry(&app, &world.admin(), world.org, created.id).await;
    assert!(matches!(refused, Err(ServiceError::Conflict { code: "batch_not_ended", .. })));
    service::commands::batches::resume(&app, &world.admin(), world.org, created.id).await.unwrap();
    let order = db.wait_for_order().await;
    db.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    wait_for_state(&app, world, created.id, "completed_with_errors: failed succeeded").await;
    let again = service::commands::batches::retry(&app, &world.admin(), world.org, created.id)
        .await
        .unwrap();
    let order = web.wait_for_order().await;
    web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    wait_for_state(&app, world, again.id, "succeeded: succeeded").await;
    engine.stop().await;
}

/// A frozen server waits until its freeze ends; the others are patched.
async fn frozen_server_starts_after_its_freeze(world: &World) {
    use service::commands::freezes::{self, FreezeInput};
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut db = Agent::join(&app, &token, "db-1").await;
    let targets = vocab::Selector::parse(&json!({"server_ids": [web.id]})).unwrap();
    let ends_at = world.now() + SignedDuration::from_mins(60);
    let timing = domain::freeze::Timing::OneOff { starts_at: world.now(), ends_at };
    let rule = domain::freeze::Freeze { targets, timing };
    let input = FreezeInput { name: "Sale".into(), reason: "no changes".into(), rule };
    freezes::create(&app, &world.admin(), input).await.unwrap();
    let new = world.new_rollout(vec![web.id, db.id], json!({}));
    let created = service::commands::batches::create(&app, new).await.unwrap();
    let order = db.wait_for_order().await;
    db.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    wait_for_state(&app, world, created.id, "running: waiting succeeded").await;
    let scope = service::queries::Scope { org: world.org, environments: None };
    let page = store::Page { limit: 10, offset: 0 };
    let tasks = service::queries::tasks::list(&app, &scope, created.id, &[], page).await.unwrap();
    assert_eq!(tasks.items[0].waiting_for, Some(wire::v1::WaitingFor::Freeze));
    // A batch that overrides freezes starts at once, although the other one waits for this server.
    let urgent = world.new_rollout(vec![web.id], json!({"override_freeze": "CVE-2026-1"}));
    let urgent = service::commands::batches::create(&app, urgent).await.unwrap();
    let order = web.wait_for_order().await;
    web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    wait_for_state(&app, world, urgent.id, "succeeded: succeeded").await;
    world.minutes(61);
    let order = web.wait_for_order().await;
    web.report_until_acknowledged(order.id, Outcome::NoChange, world.now()).await;
    wait_for_state(&app, world, created.id, "succeeded: no_change succeeded").await;
    engine.stop().await;
}

/// The first wave soaks, a second person approves the next one, and the batch continues.
async fn waves_soak_and_wait_for_an_approval(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut db = Agent::join(&app, &token, "db-1").await;
    let options = json!({"waves": [{"size": 1, "soak_minutes": 30}, {"approval": true}]});
    let new = world.new_rollout(vec![web.id, db.id], options);
    let created = service::commands::batches::create(&app, new).await.unwrap();
    let order = web.wait_for_order().await;
    web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    wait_for_state(&app, world, created.id, "running: succeeded waiting").await;
    let head =
        async || rollouts::load(&mut app.db.read().await.unwrap(), created.id).await.unwrap().head;
    eventually("the wave soaks", async || head().await.waves.ended_at.is_some()).await;
    world.minutes(30);
    wait_for_state(&app, world, created.id, "awaiting_approval: succeeded waiting").await;
    let creator = service::Actor { id: "key_test".into(), ..world.admin() };
    let colleague = service::Actor { id: "key_colleague".into(), ..world.admin() };
    let decide = async |actor: &service::Actor| {
        let approve = service::commands::batches::Decision::Approve;
        let comment = Some("no alerts");
        service::commands::batches::decide(
            &app, actor, world.org, created.id, approve, None, comment,
        )
        .await
    };
    assert!(matches!(decide(&creator).await, Err(ServiceError::OwnBatch)));
    decide(&colleague).await.unwrap();
    let again = decide(&colleague).await;
    assert!(matches!(again, Err(ServiceError::Conflict { code: "batch_state", .. })));
    let order = db.wait_for_order().await;
    db.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    wait_for_state(&app, world, created.id, "succeeded: succeeded succeeded").await;
    let approval = head().await.waves.approval(1).cloned().unwrap();
    assert_eq!((approval.by, approval.comment.as_deref()), (colleague.id, Some("no alerts")));
    let row = rollouts::load(&mut app.db.read().await.unwrap(), created.id).await.unwrap();
    assert_eq!(
        json!(row.wave_counts.clone().unwrap()),
        json!({"1": {"succeeded": 1}, "2": {"succeeded": 1}})
    );
    let computed = rollouts::Rollout { counted: 0, ..row.clone() };
    let computed = rollout_tasks::wave_counts(&mut app.db.read().await.unwrap(), &computed).await;
    assert_eq!(computed.unwrap(), row.wave_counts.unwrap());
    let kinds = event_kinds(&app, world).await;
    for kind in ["batch.started", "batch.awaiting_approval", "batch.approved", "batch.finished"] {
        assert_eq!(kinds.iter().filter(|known| *known == kind).count(), 1, "{kind}: {kinds:?}");
    }
    engine.stop().await;
}

/// No server is known to have an update, so no canary can prove anything: the rest starts, and
/// the reason is recorded.
async fn canary_without_changes_continues_and_is_recorded(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut db = Agent::join(&app, &token, "db-1").await;
    let order = world.new_rollout(vec![web.id, db.id], json!({"canary": 1}));
    let created = service::commands::batches::create(&app, order).await.unwrap();
    let order = web.wait_for_order().await;
    web.report_until_acknowledged(order.id, Outcome::NoChange, world.now()).await;
    let order = db.wait_for_order().await;
    let row =
        rollouts::get(&mut app.db.read().await.unwrap(), world.org, created.id).await.unwrap();
    assert!(row.head.canary_unchanged);
    // The update is untested: its first failure stops the rest.
    db.report_until_acknowledged(order.id, Outcome::Failed, world.now()).await;
    wait_for_state(&app, world, created.id, "completed_with_errors: no_change failed").await;
    engine.stop().await;
}

async fn unknown_servers_are_listed_and_nothing_starts(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let web = Agent::join(&app, &token, "web-1").await;
    let stranger = vocab::ServerId::new(world.now(), 7);
    let order = world.new_rollout(vec![web.id, stranger, web.id], json!({}));
    let Err(ServiceError::Invalid(errors)) = service::commands::batches::create(&app, order).await
    else {
        panic!("the batch started");
    };
    assert_eq!(errors.len(), 1);
    assert_eq!((errors[0].pointer.as_str(), errors[0].code), ("/server_ids/1", "not_found"));
    assert!(errors[0].detail.contains(&stranger.to_string()));
    let open = rollouts::list_open(&mut app.db.read().await.unwrap()).await.unwrap();
    assert_eq!(open, []);
    // A server that is named twice counts once.
    let created = service::commands::batches::create(
        &app,
        world.new_rollout(vec![web.id, web.id], json!({})),
    )
    .await;
    assert_eq!(created.unwrap().total, 1);
}

/// No server gets an order while it is unknown whether it is online.
async fn offline_server_gets_its_order_when_it_returns(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    web.sync(0).await.unwrap();
    world.minutes(10);
    eventually("the server is reported as offline", async || {
        event_kinds(&app, world).await.contains(&"server.offline".to_owned())
    })
    .await;
    let made = service::commands::batches::create(&app, world.new_rollout(vec![web.id], json!({})))
        .await
        .unwrap();
    wait_for_state(&app, world, made.id, "running: waiting").await;
    let order = web.wait_for_order().await;
    web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    wait_for_state(&app, world, made.id, "succeeded: succeeded").await;
    let kinds = event_kinds(&app, world).await;
    assert_eq!(kinds.iter().filter(|kind| *kind == "server.online").count(), 1);
    engine.stop().await;
}

async fn two_batches_never_run_on_one_server_concurrently(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let first =
        service::commands::batches::create(&app, world.new_rollout(vec![web.id], json!({})))
            .await
            .unwrap();
    wait_for_state(&app, world, first.id, "running: dispatched").await;
    let second =
        service::commands::batches::create(&app, world.new_rollout(vec![web.id], json!({})))
            .await
            .unwrap();
    wait_for_state(&app, world, second.id, "running: waiting").await;
    let order = web.wait_for_order().await;
    web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    let next = web.wait_for_order().await;
    assert_ne!(order.id, next.id);
    web.report_until_acknowledged(next.id, Outcome::NoChange, world.now()).await;
    wait_for_state(&app, world, first.id, "succeeded: succeeded").await;
    wait_for_state(&app, world, second.id, "succeeded: no_change").await;
    engine.stop().await;
}

async fn removal_ends_tasks_and_notifies_the_agent_immediately(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut db = Agent::join(&app, &token, "db-1").await;
    let created =
        service::commands::batches::create(&app, world.new_rollout(vec![web.id, db.id], json!({})))
            .await
            .unwrap();
    let order = web.wait_for_order().await;
    db.wait_for_order().await;
    web.report_stage(order.id, Stage::Installing, world.now());
    web.sync(0).await.unwrap();
    // The sync is held open while it happens.
    let (removed, answer) = tokio::join!(remove(&app, world, web.id), async {
        loop {
            if let Err(refusal) = web.sync(10).await {
                break refusal;
            }
        }
    });
    removed.unwrap();
    assert_eq!(answer, rejection(StatusCode::GONE, "server_removed"));
    wait_for_state(&app, world, created.id, "running: canceled dispatched").await;
    engine.stop().await;
}

/// Old batches are deleted after a year; the audit log is kept.
async fn old_batches_logs_and_events_are_deleted(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let created =
            service::commands::batches::create(&app, world.new_rollout(vec![web.id], json!({})))
                .await
                .unwrap();
        let order = web.wait_for_order().await;
        web.send_log(order.id, 0, b"log").await.unwrap();
        web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
        wait_for_state(&app, world, created.id, "succeeded: succeeded").await;
        ids.push((created.id, order.id));
    }
    world.advance(SignedDuration::from_hours(365 * 24 + 1));
    let mut reader = app.db.read().await.unwrap();
    for (batch, task) in ids {
        eventually("batch and log are deleted", async || {
            rollouts::load(&mut reader, batch).await.is_err()
                && store::task_logs::length(&mut reader, task).await.unwrap() == 0
        })
        .await;
    }
    eventually("events are deleted", async || {
        !event_kinds(&app, world).await.contains(&"batch.created".to_owned())
    })
    .await;
    let entries = store::audit::after(&mut reader, world.org, 0, 500).await.unwrap();
    assert_eq!(entries.iter().filter(|entry| entry.action == "batch.create").count(), 3);
    drop(reader);
    engine.stop().await;
}

async fn staggered_starts_follow_the_clock(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut agents = Vec::new();
    for name in ["a", "b", "c"] {
        agents.push(Agent::join(&app, &token, name).await);
    }
    let servers = agents.iter().map(|agent| agent.id).collect();
    let order = world.new_rollout(servers, json!({"stagger_minutes": 2}));
    let created = service::commands::batches::create(&app, order).await.unwrap();
    wait_for_state(&app, world, created.id, "running: dispatched waiting waiting").await;
    world.advance(SignedDuration::from_secs(119));
    for agent in &mut agents {
        agent.sync(0).await.unwrap();
    }
    assert_eq!(state_line(&app, world, created.id).await, "running: dispatched waiting waiting");
    world.advance(SignedDuration::from_secs(1));
    wait_for_state(&app, world, created.id, "running: dispatched dispatched waiting").await;
    engine.stop().await;
}

testkit::both!(
    crate::support:
    order_reaches_its_agent_and_its_result_ends_the_batch,
    dry_run_installs_nothing,
    late_result_corrects_a_timeout_and_the_batch_result,
    server_that_does_not_return_from_reboot_times_out,
    canceled_orders_are_withdrawn_from_agents_that_have_not_started,
    paused_batch_starts_no_server_until_resumed,
    frozen_server_starts_after_its_freeze,
    waves_soak_and_wait_for_an_approval,
    failed_canary_halts_the_batch_and_failed_servers_are_retried,
    canary_without_changes_continues_and_is_recorded,
    unknown_servers_are_listed_and_nothing_starts,
    offline_server_gets_its_order_when_it_returns,
    two_batches_never_run_on_one_server_concurrently,
    removal_ends_tasks_and_notifies_the_agent_immediately,
    old_batches_logs_and_events_are_deleted,
    staggered_starts_follow_the_clock,
);

pub(crate) async fn remove(app: &App, world: &World, server: ServerId) -> store::Result<()> {
    loop {
        let mut tx = app.db.begin().await?;
        match service::commands::batches::cancel_tasks_of_removed_server(
            &mut tx,
            world.org,
            server,
            world.now(),
        )
        .await
        {
            Err(store::StoreError::Stale) => continue,
            done => done?,
        }
        let server = store::servers::get(&mut tx, world.org, server).await?;
        store::servers::remove(&mut tx, &server, world.now()).await?;
        tx.notify(store::Topic::Servers);
        return tx.commit().await;
    }
}
