//! An attacker changes the database without the keys. Nothing of it reaches a host, and an alarm is
//! raised.

use jiff::SignedDuration;
use serde_json::json;
use server::app::App;

use service::ServiceError;
use service::commands::{refreshes, schedules as calendar};
use store::{Page, rollouts, schedules};
use vocab::{BatchId, OrgId, RunId, ScheduleId, TaskId};
use wire::agent::{Outcome, Work};

use crate::agent::Agent;
use crate::rollouts::{event_kinds, tasks, wait_for_state};
use crate::schedules::hourly;
use crate::support::{World, at, eventually};

/// How many times an alarm of this kind was raised, as an event and in the audit log.
pub(crate) async fn count_alarms(app: &App, world: &World, action: &str) -> usize {
    // Runs and refreshes are reported as events about their schedule or server.
    let kind = match action {
        "run.tampered" => "schedule.tampered",
        "refresh.tampered" => "server.refresh_tampered",
        action => action,
    };
    let events = event_kinds(app, world).await.iter().filter(|event| *event == kind).count();
    let mut reader = app.db.read().await.unwrap();
    let entries = store::audit::after(&mut reader, world.org, 0, 10_000).await.unwrap();
    events.min(entries.iter().filter(|entry| entry.action == action).count())
}

async fn wait_for_alarms(app: &App, world: &World, action: &str, count: usize) {
    eventually(&format!("{count} alarms {action}"), async || {
        count_alarms(app, world, action).await == count
    })
    .await;
}

/// A batch that starts tomorrow.
async fn batch_for_tomorrow(app: &App, world: &World, web: &Agent) -> rollouts::Rollout {
    let mut order = world.new_rollout(vec![web.id], json!({"reboot": "never", "dry_run": true}));
    order.starts_at = world.now() + SignedDuration::from_hours(24);
    service::commands::batches::create(app, order).await.unwrap()
}

/// A schedule for staging, every hour, first at the next one.
pub(crate) async fn hourly_from_now(app: &App, world: &World) -> schedules::Schedule {
    let input = calendar::ScheduleInput {
        name: "hourly".into(),
        description: String::new(),
        enabled: true,
        cron: "0 * * * *".parse().unwrap(),
        timezone: "UTC".parse().unwrap(),
        targets: serde_json::from_value(json!({"environment": "staging"})).unwrap(),
        options: service::PatchOptions::from_json(&json!({"security_only": true})).unwrap(),
    };
    calendar::create(app, &world.admin(), input).await.unwrap()
}

/// Copies a batch and its tasks under new ids, as if it had never started.
async fn copy_batch(world: &World, from: BatchId, tasks: &[(vocab::ServerId, TaskId)]) -> BatchId {
    let copy = BatchId::new(world.now(), 77);
    let mut sql = format!(
        "begin;
         insert into rollouts (id, org_id, name, head, phase, options, origin, started_by, run_id,
            retry_of, total, created_at, ended_at, generation, revision, counts, counted, seal, head_seal)
         select '{copy}', org_id, name, replace(head, '{from}', '{copy}'), phase, options, origin,
            started_by, run_id, retry_of, total, created_at, ended_at, generation, revision, counts,
            counted, seal, head_seal from rollouts where id = '{from}';"
    );
    for (server, task) in tasks {
        sql += &format!(
            "insert into rollout_tasks (rollout_id, task_id, server_id, position, state,
                target, deadline, result, generation, revision, seal)
             select '{copy}', '{task}', server_id, position, state, target, deadline, result,
                generation, revision, seal from rollout_tasks
              where rollout_id = '{from}' and server_id = '{server}';"
        );
    }
    // In one transaction: a batch without servers succeeds as soon as it starts.
    world.execute_sql(&format!("{sql} commit;")).await;
    copy
}

async fn copied_batch_with_new_ids_is_never_dispatched(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let options = json!({"reboot": "if_required", "stagger_minutes": 60});
    let mut order = world.new_rollout(vec![web.id], options);
    order.starts_at = world.now() + SignedDuration::from_mins(1);
    let created = service::commands::batches::create(&app, order).await.unwrap();
    let copy = copy_batch(world, created.id, &[(web.id, TaskId::new(at(0), 7))]).await;
    wait_for_alarms(&app, world, "batch.tampered", 1).await;
    wait_for_state(&app, world, copy, "canceled: canceled").await;
    // The genuine batch is not affected.
    world.minutes(1);
    let order = web.wait_for_order().await;
    assert_eq!(order.id, tasks(&app, created.id).await[0].task_id);
    web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    wait_for_state(&app, world, created.id, "succeeded: succeeded").await;
    assert_eq!(count_alarms(&app, world, "batch.tampered").await, 1);
    engine.stop().await;
}

async fn batch_changed_in_any_column_is_canceled(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let other = OrgId::new(at(0), 2);
    let mut tx = app.db.begin().await.unwrap();
    store::organizations::create(&mut tx, other, "Other", at(0)).await.unwrap();
    tx.commit().await.unwrap();
    let early = "head = replace(replace(head, 'scheduled', 'running'), '2026-11-16', '2026-11-15'),
        phase = 'running'";
    let changes = [
        "options = replace(options, '\"never\"', '\"if_required\"')",
        "options = replace(options, 'true', 'false')",
        "options = replace(options, '\"packages\":[]', '\"packages\":[\"bash\"]')",
        "options = replace(options, '\"max_parallel\":null', '\"max_parallel\":9')",
        "options = 'no longer JSON at all'",
        "started_by = 'key_other'",
        "origin = 'dashboard'",
        early,
        "head = replace(head, '2026-11-22', '2027-11-22'), generation = generation + 1",
        "seal = null",
        "head_seal = null",
    ];
    for (n, change) in changes.iter().enumerate() {
        let created = batch_for_tomorrow(&app, world, &web).await;
        // The column must contain valid JSON, or the row cannot be read at all.
        let change = change.replace("'no longer JSON at all'", "'{\"reboot\":7}'");
        let id = created.id;
        let sql =
            format!("update rollouts set {change}, revision = revision + 1 where id = '{id}'");
        assert_eq!(world.execute_sql(&sql).await, 1);
        wait_for_alarms(&app, world, "batch.tampered", n + 1).await;
        wait_for_state(&app, world, id, "canceled: canceled").await;
        assert!(web.orders(0).await.is_empty(), "{change}");
    }
    // Moved to another organization: the alarm is in the log of that one.
    let created = batch_for_tomorrow(&app, world, &web).await;
    world
        .execute_sql(&format!(
            "update rollouts set org_id = '{other}', revision = revision + 1
        where id = '{}'",
            created.id
        ))
        .await;
    eventually("the batch is canceled", async || {
        let row = rollouts::load(&mut app.db.read().await.unwrap(), created.id).await.unwrap();
        rollouts::phase_name(row.head.phase) == "canceled"
    })
    .await;
    engine.stop().await;
}

async fn batch_changed_while_the_service_is_down_is_canceled(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let created = batch_for_tomorrow(&app, world, &web).await;
    engine.stop().await;
    world.execute_sql("update rollouts set options = replace(options, 'true', 'false')").await;
    let (app, engine) = world.leader("b").await;
    web.switch_to(&app);
    wait_for_alarms(&app, world, "batch.tampered", 1).await;
    world.advance(SignedDuration::from_hours(25));
    assert!(web.orders(0).await.is_empty());
    wait_for_state(&app, world, created.id, "canceled: canceled").await;
    engine.stop().await;
}

async fn canceled_batch_cannot_be_restarted(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let created = batch_for_tomorrow(&app, world, &web).await;
    let before = rollouts::load(&mut app.db.read().await.unwrap(), created.id).await.unwrap();
    service::commands::batches::cancel(&app, &world.admin(), world.org, created.id).await.unwrap();
    wait_for_state(&app, world, created.id, "canceled: canceled").await;
    let head = serde_json::to_string(&before.head).unwrap().replace("scheduled", "running");
    world
        .execute_sql(&format!(
            "update rollout_tasks set state = 'waiting', target = '\"waiting\"'
        where rollout_id = '{}'",
            created.id
        ))
        .await;
    world
        .execute_sql(&format!(
            "update rollouts set head = '{head}', phase = 'running',
        ended_at = null, revision = revision + 1 where id = '{}'",
            created.id
        ))
        .await;
    wait_for_alarms(&app, world, "batch.tampered", 1).await;
    world.advance(SignedDuration::from_hours(25));
    assert!(web.orders(0).await.is_empty());
    wait_for_state(&app, world, created.id, "canceled: canceled").await;
    engine.stop().await;
}

async fn inserted_or_moved_task_is_never_dispatched(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut db = Agent::join(&app, &token, "db-1").await;
    let inserted = "insert into rollout_tasks (rollout_id, task_id, server_id, position, state,
            target, deadline, result, generation, revision, seal)
         select rollout_id, 'TASK', 'OTHER', 9, state, target, deadline, result, generation, 2,
            seal from rollout_tasks where rollout_id = 'BATCH'";
    let moved = "update rollout_tasks set server_id = 'OTHER', revision = 2
        where rollout_id = 'BATCH'";
    let renamed = "update rollout_tasks set task_id = 'TASK', revision = 2
        where rollout_id = 'BATCH'";
    for (n, sql) in [inserted, moved, renamed].iter().enumerate() {
        let created = batch_for_tomorrow(&app, world, &web).await;
        let task = TaskId::new(at(0), 100 + n as u128);
        let sql = sql.replace("TASK", &task.to_string()).replace("OTHER", &db.id.to_string());
        let sql = sql.replace("BATCH", &created.id.to_string());
        assert_eq!(world.execute_sql(&sql).await, 1);
        world
            .execute_sql(&format!(
                "update rollouts set revision = revision + 1 where id = '{}'",
                created.id
            ))
            .await;
        wait_for_alarms(&app, world, "batch.tampered", n + 1).await;
        assert!(web.orders(0).await.is_empty() && db.orders(0).await.is_empty());
    }
    // A task that claims to be dispatched, in a batch that has not started yet.
    let created = batch_for_tomorrow(&app, world, &web).await;
    let busy = json!({"busy": {"stage": "dispatched", "started_at": world.now(),
        "by": world.now() + SignedDuration::from_hours(1)}});
    world
        .execute_sql(&format!(
            "update rollout_tasks set state = 'dispatched', target = '{busy}',
        revision = 2 where rollout_id = '{}'",
            created.id
        ))
        .await;
    world
        .execute_sql(&format!(
            "update rollouts set revision = revision + 1 where id = '{}'",
            created.id
        ))
        .await;
    world.minutes(1);
    let second =
        service::commands::batches::create(&app, world.new_rollout(vec![db.id], json!({})))
            .await
            .unwrap();
    // When the later one has been sent, the earlier one has been checked.
    assert_eq!(db.wait_for_order().await.id, tasks(&app, second.id).await[0].task_id);
    assert!(web.orders(0).await.is_empty());
    engine.stop().await;
}

async fn changed_or_inserted_schedule_starts_nothing(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let changes = [
        "options = replace(options, 'true', 'false')",
        "targets = '\"all\"'",
        "cron = '*/30 * * * *'",
        "timezone = 'Europe/Berlin'",
        "seal = null",
        "enabled = ENABLED",
    ];
    for (n, change) in changes.iter().enumerate() {
        let stored = hourly_from_now(&app, world).await;
        let id = stored.id;
        let mut change =
            change.replace("ENABLED", if app.db.engine() == "sqlite" { "1" } else { "true" });
        if change.starts_with("enabled") {
            // An operator disabled it.
            let mut tx = app.db.begin().await.unwrap();
            let off = schedules::Schedule { enabled: false, ..stored.clone() };
            schedules::save(&mut tx, &off).await.unwrap();
            tx.commit().await.unwrap();
        }
        if change.starts_with("targets") {
            change = format!("targets = '{}'", json!({"environment": "production"}));
        }
        assert_eq!(
            world.execute_sql(&format!("update schedules set {change} where id = '{id}'")).await,
            1
        );
        assert!(matches!(
            calendar::run(&app, &world.admin(), &stored).await,
            Err(ServiceError::Conflict { .. })
        ));
        let hour = n as i64 + 1;
        world.advance_to(at(hour * 3_600));
        world
            .execute_sql(&format!(
                "update schedules set next_run_at = next_run_at where id = '{id}'"
            ))
            .await;
        let mut tx = app.db.begin().await.unwrap();
        tx.notify(store::Topic::Schedules);
        tx.commit().await.unwrap();
        wait_for_alarms(&app, world, "schedule.tampered", n + 1).await;
        world.execute_sql(&format!("delete from schedules where id = '{id}'")).await;
        assert!(web.orders(0).await.is_empty(), "{change}");
    }
    // A copy under another id and name.
    world.advance_to(at(10 * 3_600));
    let id = hourly_from_now(&app, world).await.id;
    world.advance_to(at(11 * 3_600));
    let copy = ScheduleId::new(at(0), 55);
    eventually("the schedule ran", async || {
        !crate::schedules::history(&app, world, id).await.is_empty()
    })
    .await;
    let order = web.wait_for_order().await;
    web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    world
        .execute_sql(&format!(
            "insert into schedules (id, org_id, name, description, enabled, cron,
            timezone, targets, options, next_run_at, created_at, updated_at, generation, seal)
        select '{copy}', org_id, 'copy', description, enabled, cron, timezone, targets, options,
            created_at, created_at, updated_at, generation, seal from schedules where id = '{id}'"
        ))
        .await;
    world.execute_sql(&format!("update schedules set next_run_at = null where id = '{id}'")).await;
    world.minutes(1);
    let mut tx = app.db.begin().await.unwrap();
    tx.notify(store::Topic::Schedules);
    tx.commit().await.unwrap();
    wait_for_alarms(&app, world, "schedule.tampered", changes.len() + 1).await;
    assert!(web.orders(0).await.is_empty());
    engine.stop().await;
}

async fn inserted_run_gets_no_batch(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let id = hourly(&app, world).await;
    world.advance_to(at(3_600));
    let order = web.wait_for_order().await;
    web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    eventually("the run ended", async || {
        crate::schedules::history(&app, world, id).await.iter().all(|run| run.finished_at.is_some())
    })
    .await;
    engine.stop().await;
    let run = RunId::new(at(0), 5);
    world
        .execute_sql(&format!(
            "insert into runs (id, org_id, schedule_id, trigger_kind, state,
            skip_reason, scheduled_for, started_at, finished_at, batch_id, targets, options,
            generation, seal)
        select '{run}', org_id, schedule_id, trigger_kind, 'running', null, null, started_at,
            null, null, targets, '{{\"reboot\":\"if_required\"}}', 1, seal from runs"
        ))
        .await;
    let (app, engine) = world.leader("b").await;
    web.switch_to(&app);
    wait_for_alarms(&app, world, "run.tampered", 1).await;
    assert!(web.orders(0).await.is_empty());
    let page = Page { limit: 10, offset: 0 };
    let all =
        rollouts::list(&mut app.db.read().await.unwrap(), world.org, &[], page).await.unwrap();
    assert_eq!(all.total, 1);
    engine.stop().await;
}

async fn inserted_refresh_is_not_sent(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    web.sync(0).await.unwrap();
    let asked = refreshes::request(&app, &world.admin(), web.id).await.unwrap();
    let order = web.wait_for_order().await;
    assert_eq!(order.work, Work::Scan);
    web.report_until_acknowledged(asked.id, Outcome::Succeeded, world.now()).await;
    let copy = TaskId::new(at(0), 9);
    world
        .execute_sql(&format!(
            "insert into refreshes (id, org_id, server_id, state, requested_by,
            requested_at, deadline, ended_at, message, seal)
        select '{copy}', org_id, server_id, 'requested', requested_by, requested_at, deadline,
            null, null, seal from refreshes where id = '{}'",
            asked.id
        ))
        .await;
    wait_for_alarms(&app, world, "refresh.tampered", 1).await;
    assert!(web.orders(0).await.is_empty());
    engine.stop().await;
}

async fn changed_batch_cannot_be_resumed_or_retried(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let web = Agent::join(&app, &token, "web-1").await;
    let created = batch_for_tomorrow(&app, world, &web).await;
    let admin = world.admin();
    service::commands::batches::pause(&app, &admin, world.org, created.id).await.unwrap();
    world.execute_sql("update rollouts set options = replace(options, 'true', 'false')").await;
    let refused = service::commands::batches::resume(&app, &admin, world.org, created.id).await;
    assert!(matches!(refused, Err(ServiceError::Conflict { .. })));
    let refused = service::commands::batches::retry(&app, &admin, world.org, created.id).await;
    assert!(matches!(refused, Err(ServiceError::Conflict { .. })));
    service::commands::batches::cancel(&app, &admin, world.org, created.id).await.unwrap();
}

/// A row without a seal is treated like a row with a wrong one.
async fn row_without_a_seal_is_not_executed(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let web = Agent::join(&app, &token, "web-1").await;
    let batch = batch_for_tomorrow(&app, world, &web).await;
    drop(app);
    world.execute_sql("update rollouts set seal = null, head_seal = null").await;
    world.execute_sql("update rollout_tasks set seal = null").await;
    let (app, engine) = world.leader("b").await;
    wait_for_state(&app, world, batch.id, "canceled: canceled").await;
    engine.stop().await;
}

testkit::both!(
    crate::support:
    copied_batch_with_new_ids_is_never_dispatched,
    batch_changed_in_any_column_is_canceled,
    batch_changed_while_the_service_is_down_is_canceled,
    canceled_batch_cannot_be_restarted,
    inserted_or_moved_task_is_never_dispatched,
    changed_or_inserted_schedule_starts_nothing,
    inserted_run_gets_no_batch,
    inserted_refresh_is_not_sent,
    changed_batch_cannot_be_resumed_or_retried,
    row_without_a_seal_is_not_executed,
);
