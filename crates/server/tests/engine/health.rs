//! Health of servers: measured by agents, judged by the engine, shown by the API.

use serde_json::json;
use server::app::App;
use service::queries::{Scope, batches};
use store::events::{self, Filter};
use vocab::{BatchId, HealthProblemKind, HealthState};
use wire::agent::{HealthProblem, HealthReport, Outcome, PackageMove, Work};
use wire::v1::{Batch, HaltCode};

use crate::agent::Agent;
use crate::rollouts::{event_kinds, wait_for_state};
use crate::support::{World, eventually};

fn report(units: &[&str], world: &World) -> HealthReport {
    let problem =
        |unit: &&str| HealthProblem { kind: HealthProblemKind::UnitFailed, name: (*unit).into() };
    HealthReport {
        measured_at: world.now(),
        baseline_at: testkit::at(0),
        problems: units.iter().map(problem).collect(),
        not_measured: None,
    }
}

/// Reports that the order upgraded openssl, with this health.
async fn finish(agent: &mut Agent, world: &World, health: Option<HealthReport>) {
    let order = agent.wait_for_order().await;
    let Work::Install(install) = &order.work else { panic!("{order:?}") };
    assert!(install.health, "the order asks for the health");
    agent.report_result(order.id, Outcome::Succeeded, world.now());
    let result = agent.next_sync.results.last_mut().unwrap();
    result.packages.push(PackageMove {
        name: "openssl".into(),
        arch: "amd64".into(),
        from: Some("3.0.2".into()),
        to: Some("3.0.3".into()),
    });
    result.health = health;
    let response = agent.sync(0).await.unwrap();
    assert!(response.acknowledged.contains(&order.id));
}

async fn sync_with(agent: &mut Agent, health: HealthReport) {
    agent.next_sync.health = Some(health);
    agent.sync(0).await.unwrap();
    agent.next_sync.health = None;
}

async fn shown(app: &App, world: &World, id: BatchId) -> Batch {
    let scope = Scope { org: world.org, environments: None };
    let row = batches::find(app, &scope, id).await.unwrap();
    batches::with_tasks(app, row).await.unwrap()
}

async fn create(
    app: &App,
    world: &World,
    agents: &[&Agent],
    options: serde_json::Value,
) -> BatchId {
    let servers = agents.iter().map(|agent| agent.id).collect();
    let new = world.new_rollout(servers, options);
    service::commands::batches::create(app, new).await.unwrap().id
}

async fn exceeded(app: &App, id: BatchId) {
    eventually("too many servers are unhealthy", async || {
        let row = store::rollouts::load(&mut app.db.read().await.unwrap(), id).await.unwrap();
        row.head.health.exceeded_at.is_some()
    })
    .await;
}

async fn unhealthy_wave_halts_and_names_unit_and_package(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut db = Agent::join(&app, &token, "db-1").await;
    let options = json!({"waves": [{"size": 1}], "health": "gate"});
    let id = create(&app, world, &[&web, &db], options).await;
    let broken = report(&["nginx.service"], world);
    finish(&mut web, world, Some(broken)).await;
    exceeded(&app, id).await;
    assert_eq!(shown(&app, world, id).await.halt_reason, None);
    let waiting = &shown(&app, world, id).await.results.unwrap()[1];
    assert_eq!(json!(waiting.waiting_for), "health");
    world.minutes(3);
    assert!(db.sync(0).await.unwrap().watch_health_until.is_some(), "the control group is watched");
    world.minutes(2);
    wait_for_state(&app, world, id, "halted: succeeded waiting").await;
    let batch = shown(&app, world, id).await;
    assert_eq!(
        batch.halt_reason.as_deref(),
        Some("health of wave 1: nginx.service failed on web-1 after openssl 3.0.2 → 3.0.3")
    );
    assert_eq!(batch.halt_code, Some(HaltCode::HealthDegraded));
    let health = batch.results.as_ref().unwrap()[0].health.as_ref().unwrap();
    assert_eq!(health.state, HealthState::Degraded);
    assert_eq!(health.problems[0].description, "nginx.service failed");
    assert_eq!(batch.waves[0].health.degraded, 1);
    let row = store::rollouts::load(&mut app.db.read().await.unwrap(), id).await.unwrap();
    let computed = store::rollouts::Rollout { counted: 0, ..row.clone() };
    let computed =
        store::rollout_tasks::wave_counts(&mut app.db.read().await.unwrap(), &computed).await;
    assert_eq!(computed.unwrap(), row.wave_counts.unwrap());
    let mut reader = app.db.read().await.unwrap();
    let all = events::after(&mut reader, world.org, 0, &Filter::default(), 500).await.unwrap();
    let event = |kind: &str| &all.iter().find(|event| event.kind == kind).unwrap().data;
    let degraded = event("server.health_degraded");
    assert_eq!(degraded["problems"], json!([{"kind": "unit_failed", "name": "nginx.service"}]));
    assert_eq!(degraded["packages"], json!([{"name": "openssl", "from": "3.0.2", "to": "3.0.3"}]));
    assert_eq!(degraded["batch_id"], id.to_string());
    assert_eq!(
        (&event("batch.halted")["reason"], &event("batch.halted")["wave"]),
        (&json!("health_degraded"), &json!(1))
    );
    drop(reader);
    // A user accepts it.
    let admin = world.admin();
    service::commands::batches::resume(&app, &admin, world.org, id).await.unwrap();
    finish(&mut db, world, Some(report(&[], world))).await;
    wait_for_state(&app, world, id, "succeeded: succeeded succeeded").await;
    engine.stop().await;
}

async fn problem_of_the_whole_fleet_pauses_without_blame(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut db = Agent::join(&app, &token, "db-1").await;
    let options = json!({"waves": [{"size": 1}], "health": "gate"});
    let id = create(&app, world, &[&web, &db], options).await;
    finish(&mut web, world, Some(report(&["app.service"], world))).await;
    exceeded(&app, id).await;
    sync_with(&mut db, report(&["app.service"], world)).await;
    wait_for_state(&app, world, id, "paused: succeeded waiting").await;
    let batch = shown(&app, world, id).await;
    assert_eq!(batch.halt_code, Some(HaltCode::FleetWideDegradation));
    assert_eq!(
        batch.halt_reason.as_deref(),
        Some(
            "fleet_wide_degradation: app.service failed on web-1, and on servers that this batch \
             has not changed"
        )
    );
    let control = batch.results.as_ref().unwrap()[1].health.as_ref().unwrap();
    assert!(!control.after_change);
    let kinds = event_kinds(&app, world).await;
    assert!(kinds.contains(&"batch.paused".to_owned()), "{kinds:?}");
    assert!(!kinds.contains(&"batch.halted".to_owned()), "{kinds:?}");
    let admin = world.admin();
    service::commands::batches::resume(&app, &admin, world.org, id).await.unwrap();
    finish(&mut db, world, Some(report(&[], world))).await;
    wait_for_state(&app, world, id, "succeeded: succeeded succeeded").await;
    engine.stop().await;
}

async fn wave_passes_after_healthy_reports_at_the_end_of_the_soak(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut db = Agent::join(&app, &token, "db-1").await;
    let options = json!({"waves": [{"size": 1, "soak_minutes": 30}], "health": "gate"});
    let id = create(&app, world, &[&web, &db], options).await;
    finish(&mut web, world, Some(report(&[], world))).await;
    let end = world.now() + jiff::SignedDuration::from_mins(30);
    eventually("the agent watches until the end of the soak", async || {
        web.sync(0).await.unwrap().watch_health_until == Some(end)
    })
    .await;
    world.minutes(30);
    assert_eq!(web.sync(0).await.unwrap().watch_health_until, None);
    wait_for_state(&app, world, id, "running: succeeded waiting").await;
    eventually("the next wave waits for the reports", async || {
        db.sync(0).await.unwrap();
        json!(shown(&app, world, id).await.results.unwrap()[1].waiting_for) == "health"
    })
    .await;
    sync_with(&mut web, report(&[], world)).await;
    finish(&mut db, world, Some(report(&[], world))).await;
    wait_for_state(&app, world, id, "succeeded: succeeded succeeded").await;
    let first = shown(&app, world, id).await.results.unwrap().remove(0).health.unwrap();
    assert!(first.after_soak);
    engine.stop().await;
}

async fn silent_server_is_not_healthy(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let db = Agent::join(&app, &token, "db-1").await;
    let options = json!({"waves": [{"size": 1, "soak_minutes": 30}], "health": "gate"});
    let id = create(&app, world, &[&web, &db], options).await;
    finish(&mut web, world, Some(report(&[], world))).await;
    eventually("the wave soaks", async || {
        let row = store::rollouts::load(&mut app.db.read().await.unwrap(), id).await.unwrap();
        row.head.waves.ended_at.is_some()
    })
    .await;
    world.minutes(45);
    wait_for_state(&app, world, id, "halted: succeeded waiting").await;
    let batch = shown(&app, world, id).await;
    assert_eq!(batch.halt_code, Some(HaltCode::HealthUnknown));
    assert_eq!(
        batch.halt_reason.as_deref(),
        Some("health of wave 1 is unknown: too few of its servers reported at the end of the soak")
    );
    engine.stop().await;
}

/// Its result says nothing about health, and that is not "healthy".
async fn old_agent_keeps_working_and_proves_nothing(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let mut db = Agent::join(&app, &token, "db-1").await;
    let waves = json!([{"size": 1}]);
    let id = create(&app, world, &[&web, &db], json!({"waves": waves, "health": "gate"})).await;
    finish(&mut web, world, None).await;
    wait_for_state(&app, world, id, "halted: succeeded waiting").await;
    let batch = shown(&app, world, id).await;
    assert_eq!(batch.halt_code, Some(HaltCode::HealthUnknown));
    assert_eq!(batch.waves[0].health.unknown, 1);
    assert_eq!(batch.results.unwrap()[0].health, None);
    let admin = world.admin();
    service::commands::batches::resume(&app, &admin, world.org, id).await.unwrap();
    finish(&mut db, world, None).await;
    wait_for_state(&app, world, id, "succeeded: succeeded succeeded").await;
    // Without a gate, the batch continues.
    let id = create(&app, world, &[&web, &db], json!({"waves": waves})).await;
    finish(&mut web, world, None).await;
    finish(&mut db, world, None).await;
    wait_for_state(&app, world, id, "succeeded: succeeded succeeded").await;
    engine.stop().await;
}

async fn batch_without_health_measures_nothing(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let id = create(&app, world, &[&web], json!({"health": "off"})).await;
    let order = web.wait_for_order().await;
    let Work::Install(install) = &order.work else { panic!("{order:?}") };
    assert!(!install.health);
    assert_eq!(web.sync(0).await.unwrap().watch_health_until, None);
    web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    wait_for_state(&app, world, id, "succeeded: succeeded").await;
    engine.stop().await;
}

/// An agent is not trusted: it cannot fill the database or forge lines.
async fn reported_problems_are_limited(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let id = create(&app, world, &[&web], json!({})).await;
    let mut health = report(&["evil\u{1b}[2J.service"], world);
    let many = (0..90).map(|n| HealthProblem {
        kind: HealthProblemKind::SocketLost,
        name: format!("tcp/{n}").as_str().into(),
    });
    health.problems.extend(many);
    finish(&mut web, world, Some(health)).await;
    wait_for_state(&app, world, id, "succeeded: succeeded").await;
    let task = shown(&app, world, id).await.results.unwrap().remove(0);
    let health = task.health.unwrap();
    assert_eq!(health.problems.len(), domain::rollout::PROBLEMS_MAX);
    assert!(health.problems.iter().all(|problem| !problem.description.contains('\u{1b}')));
    engine.stop().await;
}

testkit::both!(
    crate::support:
    unhealthy_wave_halts_and_names_unit_and_package,
    problem_of_the_whole_fleet_pauses_without_blame,
    wave_passes_after_healthy_reports_at_the_end_of_the_soak,
    silent_server_is_not_healthy,
    old_agent_keeps_working_and_proves_nothing,
    batch_without_health_measures_nothing,
    reported_problems_are_limited,
);
