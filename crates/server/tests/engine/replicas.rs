//! Several replicas over one database, and crashes at any time.

use jiff::SignedDuration;
use serde_json::json;
use server::app::App;
use server::background::{self, Background};

use store::runs::RunState;
use wire::agent::{Outcome, SyncResponse};

use crate::agent::{Agent, facts};
use crate::rollouts::{tasks, wait_for_state};
use crate::schedules::{history, hourly};
use crate::support::{INTERVALS, World, eventually};

async fn follower(world: &World) -> (App, Background) {
    let app = world.app("b").await;
    let engine = background::spawn_with(&app, INTERVALS);
    (app, engine)
}

async fn quarantined(app: &App, world: &World, web: &Agent) -> bool {
    let row = store::servers::get(&mut app.db.read().await.unwrap(), world.org, web.id).await;
    row.unwrap().quarantine.is_some()
}

/// The number of agent sessions in the database.
async fn sessions(world: &World) -> u64 {
    world.execute_sql("update sync_sessions set counter = counter").await
}

async fn hostname_of(app: &App, world: &World, agent: &Agent) -> String {
    let mut reader = app.db.read().await.unwrap();
    store::servers::get(&mut reader, world.org, agent.id).await.unwrap().hostname.to_string()
}

async fn removed_servers_and_organizations_leave_no_sessions(world: &World) {
    let (app, engine) = world.leader("a").await;
    if app.db.engine() == "sqlite" {
        // Sessions are stored only for replicas.
        engine.stop().await;
        return;
    }
    let token = world.token(&app).await;
    let mut agents = Vec::new();
    for name in ["web-1", "web-2", "web-3"] {
        let mut agent = Agent::join(&app, &token, name).await;
        agent.sync(0).await.unwrap();
        agent.sync(0).await.unwrap();
        agents.push(agent);
    }
    app.gateway().flush().await;
    assert_eq!(sessions(world).await, 3);
    let row = {
        let mut reader = app.db.read().await.unwrap();
        store::servers::get(&mut reader, world.org, agents[0].id).await.unwrap()
    };
    service::commands::servers::remove(&app, &world.admin(), &row).await.unwrap();
    assert_eq!(sessions(world).await, 2);
    let seen = {
        let mut reader = app.db.read().await.unwrap();
        store::organizations::get(&mut reader, world.org).await.unwrap()
    };
    service::commands::organizations::remove(&app, &seen).await.unwrap();
    // A replica that has not read about the removal yet responds once more, and one that hears
    // from an agent for the first time claims its session. Neither restores a session.
    let other = world.app("b").await;
    for agent in &mut agents {
        let mut late = agent.clone();
        late.switch_to(&other);
        late.sync(0).await.expect_err("its first contact with this replica");
        eventually("an agent learns that it was removed", async || agent.sync(0).await.is_err())
            .await;
    }
    let mut tx = app.db.begin().await.unwrap();
    let claimed = store::sync_sessions::claim(&mut tx, agents[1].id, "a", 1).await;
    assert!(matches!(claimed, Err(store::StoreError::NotFound { kind: "server", .. })));
    drop(tx);
    app.gateway().flush().await;
    other.gateway().flush().await;
    assert_eq!(sessions(world).await, 0);
    engine.stop().await;
}

async fn order_reaches_an_agent_connected_to_another_replica(world: &World) {
    let (a, leader) = world.leader("a").await;
    let (b, other) = follower(world).await;
    let token = world.token(&a).await;
    let mut web = Agent::join(&a, &token, "web-1").await;
    web.switch_to(&b);
    let (made, order) = tokio::join!(
        service::commands::batches::create(&a, world.new_rollout(vec![web.id], json!({}))),
        web.wait_for_order(),
    );
    let created = made.unwrap();
    assert!(leader.is_leader() && !other.is_leader());
    // The result comes back the same way.
    web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    wait_for_state(&a, world, created.id, "succeeded: succeeded").await;
    // An agent that changes replicas is not a clone.
    web.switch_to(&a);
    web.sync(0).await.unwrap();
    web.switch_to(&b);
    web.sync(0).await.unwrap();
    let row = store::servers::get(&mut a.db.read().await.unwrap(), world.org, web.id).await;
    assert_eq!(row.unwrap().quarantine, None);
    leader.stop().await;
    other.stop().await;
}

/// On SQLite there is one process, so the server and its clone both talk to it.
async fn clones_on_different_replicas_are_quarantined(world: &World) {
    let (a, leader) = world.leader("a").await;
    let (b, other) = follower(world).await;
    let token = world.token(&a).await;
    let mut web = Agent::join(&a, &token, "web-1").await;
    web.sync(0).await.unwrap();
    let mut copy = web.clone();
    if a.db.engine() == "postgres" {
        copy.switch_to(&b);
    }
    // The first contact of the clone may be a retry; the second is not.
    for _ in 0..2 {
        web.sync(0).await.unwrap();
        copy.sync(0).await.unwrap();
    }
    eventually("the clone is detected", async || quarantined(&a, world, &web).await).await;
    let made = service::commands::batches::create(&a, world.new_rollout(vec![web.id], json!({})))
        .await
        .unwrap();
    eventually("both replicas know", async || {
        web.sync(0).await.unwrap().orders.is_empty()
            && copy.sync(0).await.unwrap().orders.is_empty()
    })
    .await;
    wait_for_state(&a, world, made.id, "running: waiting").await;
    assert!(web.orders(0).await.is_empty() && copy.orders(0).await.is_empty());

    // The server is released; the clone that still runs is detected again.
    let row =
        store::servers::get(&mut a.db.read().await.unwrap(), world.org, web.id).await.unwrap();
    service::commands::servers::release(&a, &world.admin(), &row).await.unwrap();
    web.wait_for_order().await;
    assert!(!quarantined(&a, world, &web).await);
    for _ in 0..3 {
        web.sync(0).await.unwrap();
        copy.sync(0).await.unwrap();
    }
    eventually("the clone is detected again", async || quarantined(&a, world, &web).await).await;
    leader.stop().await;
    other.stop().await;
}

async fn requests_replayed_at_another_replica_restore_no_old_facts(world: &World) {
    let (a, b) = (world.app("a").await, world.app("b").await);
    if a.db.engine() == "sqlite" {
        return;
    }
    let token = world.token(&a).await;
    let mut web = Agent::join(&a, &token, "web-1").await;
    let mut captured = Vec::new();
    for number in 0..5 {
        web.next_sync.facts =
            Some(serde_json::from_value(facts(&format!("name-{number}"))).unwrap());
        captured.push(web.sync_body(0));
        web.sync(0).await.unwrap();
    }
    let elsewhere = gateway::router(b.gateway());
    let replay = async |nth: usize| {
        let request = web.signed("POST", "/agent/v1/sync", captured[nth].clone());
        crate::agent::send(&elsewhere, request).await.unwrap();
    };
    // What the first replica received is not written yet.
    replay(1).await;
    a.gateway().flush().await;
    b.gateway().flush().await;
    let taken = hostname_of(&a, world, &web).await;
    for nth in [2, 3] {
        replay(nth).await;
        assert_eq!(hostname_of(&a, world, &web).await, taken);
    }
    assert!(!quarantined(&a, world, &web).await);
    // The agent itself corrects it at its next contact.
    assert!(web.sync(0).await.unwrap().wants_facts);
    web.next_sync.facts = Some(serde_json::from_value(facts("name-4")).unwrap());
    web.sync(0).await.unwrap();
    assert_eq!(hostname_of(&a, world, &web).await, "name-4");
    assert!(!web.sync(0).await.unwrap().wants_facts);
    assert!(!quarantined(&a, world, &web).await);
}

async fn agent_that_changes_replicas_is_not_a_clone(world: &World) {
    if world.app("x").await.db.engine() == "sqlite" {
        return;
    }
    let (a, leader) = world.leader("a").await;
    let (b, other) = follower(world).await;
    let token = world.token(&a).await;
    let mut web = Agent::join(&a, &token, "web-1").await;
    for round in 0..30 {
        let to = if round % 2 == 0 { &b } else { &a };
        // The response is lost, and the agent repeats the sync at the other replica.
        if round % 3 == 0 {
            let lost = web.signed("POST", "/agent/v1/sync", web.sync_body(0));
            crate::agent::send(&web.router, lost).await.unwrap();
        }
        // An abandoned sync arrives late, at a replica that never received it.
        let late = web.signed("POST", "/agent/v1/sync", web.sync_body(0));
        web.switch_to(to);
        web.sync(0).await.unwrap();
        web.sync(0).await.unwrap();
        if round % 5 == 0 {
            a.gateway().flush().await;
            b.gateway().flush().await;
            let elsewhere = gateway::router(if round % 2 == 0 { a.gateway() } else { b.gateway() });
            crate::agent::send(&elsewhere, late).await.unwrap();
        }
        assert!(!quarantined(&a, world, &web).await, "round {round}");
    }
    leader.stop().await;
    other.stop().await;
    assert!(!quarantined(&a, world, &web).await);
}

/// What a replica received in its last seconds is lost with it.
async fn agent_of_a_crashed_replica_is_not_a_clone(world: &World) {
    if world.app("x").await.db.engine() == "sqlite" {
        return;
    }
    let a = world.app("a").await;
    let b = world.app("b").await;
    let token = world.token(&a).await;
    let mut web = Agent::join(&a, &token, "web-1").await;
    for _ in 0..10 {
        web.sync(0).await.unwrap();
    }
    // No engine wrote any of it.
    web.switch_to(&b);
    for _ in 0..3 {
        web.sync(0).await.unwrap();
    }
    b.gateway().flush().await;
    let again = world.app("a-again").await;
    web.switch_to(&again);
    for _ in 0..3 {
        web.sync(0).await.unwrap();
    }
    assert!(!quarantined(&again, world, &web).await);
}

async fn run_time_starts_once_with_several_replicas(world: &World) {
    let (a, leader) = world.leader("a").await;
    let (_b, other) = follower(world).await;
    let token = world.token(&a).await;
    let mut web = Agent::join(&a, &token, "web-1").await;
    let id = hourly(&a, world).await;
    for hour in 1..=5 {
        world.advance_to(crate::support::at(hour * 3_600));
        let order = web.wait_for_order().await;
        web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
        eventually("the schedule ran", async || {
            let runs = history(&a, world, id).await;
            runs.len() as i64 == hour && runs.iter().all(|run| run.state != RunState::Running)
        })
        .await;
    }
    leader.stop().await;
    // The leader lease was released, so the other replica continues immediately.
    eventually("the other replica leads", async || other.is_leader()).await;
    world.advance_to(crate::support::at(6 * 3_600));
    eventually("the schedule ran", async || history(&a, world, id).await.len() == 6).await;
    other.stop().await;
}

async fn other_replica_takes_over_when_the_lease_expires(world: &World) {
    let (a, leader) = world.leader("a").await;
    let (b, other) = follower(world).await;
    let token = world.token(&a).await;
    let mut web = Agent::join(&a, &token, "web-1").await;
    let mut db = Agent::join(&a, &token, "db-1").await;
    let order = world.new_rollout(vec![web.id, db.id], json!({"max_parallel": 1}));
    let created = service::commands::batches::create(&a, order).await.unwrap();
    let order = web.wait_for_order().await;
    drop(leader);
    drop(a);
    for agent in [&mut web, &mut db] {
        agent.switch_to(&b);
    }
    web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    assert!(!other.is_leader());
    world.advance(SignedDuration::from_secs(7));
    let order = db.wait_for_order().await;
    assert!(other.is_leader());
    db.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    wait_for_state(&b, world, created.id, "succeeded: succeeded succeeded").await;
    other.stop().await;
}

/// A crash at any time: nothing is lost, nothing happens twice.
async fn repeated_engine_crashes_lead_to_the_same_result(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let mut agents = Vec::new();
    for n in 0..12 {
        agents.push(Agent::join(&app, &token, &format!("web-{n}")).await);
    }
    let servers = agents.iter().map(|agent| agent.id).collect();
    let order = world.new_rollout(servers, json!({"max_parallel": 3}));
    let created = service::commands::batches::create(&app, order).await.unwrap();
    drop(app);
    let mut done = std::collections::BTreeSet::new();
    let (mut lives, mut turn) = (0_u64, 0);
    while done.len() < agents.len() {
        lives += 1;
        assert!(lives < 80, "the batch never ends: {done:?}");
        // Another process: nothing of the previous memory is left.
        let app = world.app(&format!("life-{lives}")).await;
        let engine = background::spawn_with(&app, INTERVALS);
        // Each process lives a little longer than the previous one, so that it crashes at many
        // different points.
        for _ in 0..2 * lives {
            turn += 1;
            let agent = &mut agents[turn % 12];
            agent.switch_to(&app);
            if let Ok(answer) = agent.sync(0).await {
                execute_orders(agent, &answer, world, &mut done);
            }
        }
        // The last sync before a crash gets no response.
        tokio::select! {
            biased;
            _ = agents[turn % 12].sync(0) => {}
            () = tokio::task::yield_now() => {}
        }
        drop(engine);
        world.advance(SignedDuration::from_secs(7));
    }
    let (app, engine) = world.leader("last").await;
    for agent in &mut agents {
        agent.switch_to(&app);
        agent.sync(0).await.unwrap();
    }
    wait_for_state(&app, world, created.id, &format!("succeeded:{}", " succeeded".repeat(12)))
        .await;
    for task in tasks(&app, created.id).await {
        assert_eq!(task.result.unwrap()["message"], "as it went");
    }
    engine.stop().await;
}

testkit::both!(
    crate::support:
    removed_servers_and_organizations_leave_no_sessions,
    order_reaches_an_agent_connected_to_another_replica,
    clones_on_different_replicas_are_quarantined,
    requests_replayed_at_another_replica_restore_no_old_facts,
    agent_that_changes_replicas_is_not_a_clone,
    agent_of_a_crashed_replica_is_not_a_clone,
    run_time_starts_once_with_several_replicas,
    other_replica_takes_over_when_the_lease_expires,
    repeated_engine_crashes_lead_to_the_same_result,
);

/// Executes each order once and reports the result until it is acknowledged.
fn execute_orders(
    agent: &mut Agent,
    response: &SyncResponse,
    world: &World,
    done: &mut std::collections::BTreeSet<vocab::TaskId>,
) {
    for envelope in &response.orders {
        let order: wire::agent::Order = serde_json::from_str(&envelope.order).unwrap();
        if done.insert(order.id) {
            agent.report_result(order.id, Outcome::Succeeded, world.now());
        }
    }
}
