//! Several replicas over one database, and deaths in the middle.

use jiff::SignedDuration;
use serde_json::json;
use server::app::App;
use server::background::{self, Background};

use store::runs::State;
use wire::agent::{Outcome, SyncResponse};

use crate::agent::{Agent, facts};
use crate::rollouts::{shows, tasks};
use crate::schedules::{history, hourly};
use crate::support::{PULSE, World, both, eventually};

async fn follower(world: &World) -> (App, Background) {
    let app = world.app("b").await;
    let engine = background::spawn_with(&app, PULSE);
    (app, engine)
}

async fn quarantined(app: &App, world: &World, web: &Agent) -> bool {
    let row = store::servers::get(&mut app.db.read().await.unwrap(), world.org, web.id).await;
    row.unwrap().quarantine.is_some()
}

/// How many sessions of agents are in the database.
async fn sessions(world: &World) -> u64 {
    world.by_hand("update sync_sessions set counter = counter").await
}

async fn hostname_of(app: &App, world: &World, agent: &Agent) -> String {
    let mut reader = app.db.read().await.unwrap();
    store::servers::get(&mut reader, world.org, agent.id).await.unwrap().hostname.to_string()
}

both! {
    async fn removed_servers_and_organizations_leave_no_sessions(world: World) {
        let (app, engine) = world.leading("a").await;
        if app.db.engine() == "sqlite" {
            // Sessions are kept for replicas only.
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
        // A replica that has not read about the removal yet answers once more, and one that hears
        // an agent for the first time asks for its session: neither brings a session back.
        let other = world.app("b").await;
        for agent in &mut agents {
            let mut late = agent.clone();
            late.moves_to(&other);
            late.sync(0).await.expect_err("its first contact with this replica");
            eventually("an agent is told that it was removed", async || {
                agent.sync(0).await.is_err()
            })
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

    async fn an_order_reaches_an_agent_that_is_connected_to_the_other_replica(world: World) {
        let (a, leader) = world.leading("a").await;
        let (b, other) = follower(world).await;
        let token = world.token(&a).await;
        let mut web = Agent::join(&a, &token, "web-1").await;
        web.moves_to(&b);
        let (made, order) = tokio::join!(
            service::commands::batches::create(&a, world.order(vec![web.id], json!({}))),
            web.awaits_order(),
        );
        let made = made.unwrap();
        assert!(leader.leads() && !other.leads());
        // And the result goes back the same way.
        web.reports(order.id, Outcome::Succeeded, world.now()).await;
        shows(&a, world, made.id, "succeeded: succeeded").await;
        // An agent that wanders is no clone.
        web.moves_to(&a);
        web.sync(0).await.unwrap();
        web.moves_to(&b);
        web.sync(0).await.unwrap();
        let row = store::servers::get(&mut a.db.read().await.unwrap(), world.org, web.id).await;
        assert_eq!(row.unwrap().quarantine, None);
        leader.stop().await;
        other.stop().await;
    }

    /// On SQLite there is one process, so both copies talk to it.
    async fn copies_that_talk_to_different_replicas_are_quarantined(world: World) {
        let (a, leader) = world.leading("a").await;
        let (b, other) = follower(world).await;
        let token = world.token(&a).await;
        let mut web = Agent::join(&a, &token, "web-1").await;
        web.sync(0).await.unwrap();
        let mut copy = web.clone();
        if a.db.engine() == "postgres" {
            copy.moves_to(&b);
        }
        // The first contact of the copy may be a repetition; the second is not.
        for _ in 0..2 {
            web.sync(0).await.unwrap();
            copy.sync(0).await.unwrap();
        }
        eventually("it is noticed", async || quarantined(&a, world, &web).await).await;
        let made = service::commands::batches::create(&a, world.order(vec![web.id], json!({}))).await.unwrap();
        eventually("both replicas know", async || {
            web.sync(0).await.unwrap().orders.is_empty() && copy.sync(0).await.unwrap().orders.is_empty()
        }).await;
        shows(&a, world, made.id, "running: waiting").await;
        assert!(web.orders(0).await.is_empty() && copy.orders(0).await.is_empty());

        // A person decides; the copy that is still there is noticed again.
        let row = store::servers::get(&mut a.db.read().await.unwrap(), world.org, web.id).await.unwrap();
        service::commands::servers::release(&a, &world.admin(), &row).await.unwrap();
        web.awaits_order().await;
        assert!(!quarantined(&a, world, &web).await);
        for _ in 0..3 {
            web.sync(0).await.unwrap();
            copy.sync(0).await.unwrap();
        }
        eventually("it is noticed again", async || quarantined(&a, world, &web).await).await;
        leader.stop().await;
        other.stop().await;
    }

    async fn requests_replayed_at_another_replica_do_not_bring_old_facts_back(world: World) {
        let (a, b) = (world.app("a").await, world.app("b").await);
        if a.db.engine() == "sqlite" {
            return;
        }
        let token = world.token(&a).await;
        let mut web = Agent::join(&a, &token, "web-1").await;
        let mut captured = Vec::new();
        for number in 0..5 {
            web.says.facts = Some(serde_json::from_value(facts(&format!("name-{number}"))).unwrap());
            captured.push(web.sync_body(0));
            web.sync(0).await.unwrap();
        }
        let elsewhere = gateway::router(b.gateway());
        let replay = async |nth: usize| {
            let request = web.signed("POST", "/agent/v1/sync", captured[nth].clone());
            crate::agent::send(&elsewhere, request).await.unwrap();
        };
        // What the first replica heard is not written yet.
        replay(1).await;
        a.gateway().flush().await;
        b.gateway().flush().await;
        let taken = hostname_of(&a, world, &web).await;
        for nth in [2, 3] {
            replay(nth).await;
            assert_eq!(hostname_of(&a, world, &web).await, taken);
        }
        assert!(!quarantined(&a, world, &web).await);
        // The agent itself puts it right at its next contact.
        assert!(web.sync(0).await.unwrap().wants_facts);
        web.says.facts = Some(serde_json::from_value(facts("name-4")).unwrap());
        web.sync(0).await.unwrap();
        assert_eq!(hostname_of(&a, world, &web).await, "name-4");
        assert!(!web.sync(0).await.unwrap().wants_facts);
        assert!(!quarantined(&a, world, &web).await);
    }

    async fn agent_that_changes_replicas_with_every_sync_is_no_clone(world: World) {
        if world.app("x").await.db.engine() == "sqlite" {
            return;
        }
        let (a, leader) = world.leading("a").await;
        let (b, other) = follower(world).await;
        let token = world.token(&a).await;
        let mut web = Agent::join(&a, &token, "web-1").await;
        for round in 0..30 {
            let to = if round % 2 == 0 { &b } else { &a };
            // Its answer is lost, and it says the same to the other one.
            if round % 3 == 0 {
                let lost = web.signed("POST", "/agent/v1/sync", web.sync_body(0));
                crate::agent::send(&web.door, lost).await.unwrap();
            }
            // One that was let go arrives late, at a replica that never heard it.
            let late = web.signed("POST", "/agent/v1/sync", web.sync_body(0));
            web.moves_to(to);
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

    /// What a replica heard in its last seconds is lost with it.
    async fn agent_of_a_replica_that_died_is_no_clone(world: World) {
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
        // No engine wrote anything down of it.
        web.moves_to(&b);
        for _ in 0..3 {
            web.sync(0).await.unwrap();
        }
        b.gateway().flush().await;
        let again = world.app("a-again").await;
        web.moves_to(&again);
        for _ in 0..3 {
            web.sync(0).await.unwrap();
        }
        assert!(!quarantined(&again, world, &web).await);
    }

    async fn an_instant_starts_once_however_many_replicas_there_are(world: World) {
        let (a, leader) = world.leading("a").await;
        let (_b, other) = follower(world).await;
        let token = world.token(&a).await;
        let mut web = Agent::join(&a, &token, "web-1").await;
        let id = hourly(&a, world).await;
        for hour in 1..=5 {
            world.set(crate::support::at(hour * 3_600));
            let order = web.awaits_order().await;
            web.reports(order.id, Outcome::Succeeded, world.now()).await;
            eventually("it ran", async || {
                let runs = history(&a, world, id).await;
                runs.len() as i64 == hour && runs.iter().all(|run| run.state != State::Running)
            }).await;
        }
        leader.stop().await;
        // The lead was given back, so the other goes on at once.
        eventually("the other leads", async || other.leads()).await;
        world.set(crate::support::at(6 * 3_600));
        eventually("it ran", async || history(&a, world, id).await.len() == 6).await;
        other.stop().await;
    }

    async fn when_the_leader_dies_the_other_takes_over_once_its_lease_is_out(world: World) {
        let (a, leader) = world.leading("a").await;
        let (b, other) = follower(world).await;
        let token = world.token(&a).await;
        let mut web = Agent::join(&a, &token, "web-1").await;
        let mut db = Agent::join(&a, &token, "db-1").await;
        let order = world.order(vec![web.id, db.id], json!({"max_parallel": 1}));
        let made = service::commands::batches::create(&a, order).await.unwrap();
        let order = web.awaits_order().await;
        drop(leader);
        drop(a);
        for agent in [&mut web, &mut db] {
            agent.moves_to(&b);
        }
        web.reports(order.id, Outcome::Succeeded, world.now()).await;
        assert!(!other.leads());
        world.turn(SignedDuration::from_secs(7));
        let order = db.awaits_order().await;
        assert!(other.leads());
        db.reports(order.id, Outcome::Succeeded, world.now()).await;
        shows(&b, world, made.id, "succeeded: succeeded succeeded").await;
        other.stop().await;
    }

    /// A death at any instant: nothing is lost, nothing happens twice.
    async fn an_engine_that_dies_again_and_again_comes_to_the_same_end(world: World) {
        let app = world.app("a").await;
        let token = world.token(&app).await;
        let mut agents = Vec::new();
        for n in 0..12 {
            agents.push(Agent::join(&app, &token, &format!("web-{n}")).await);
        }
        let servers = agents.iter().map(|agent| agent.id).collect();
        let order = world.order(servers, json!({"max_parallel": 3}));
        let made = service::commands::batches::create(&app, order).await.unwrap();
        drop(app);
        let mut done = std::collections::BTreeSet::new();
        let (mut lives, mut turn) = (0_u64, 0);
        while done.len() < agents.len() {
            lives += 1;
            assert!(lives < 80, "it never ends: {done:?}");
            // Another process: nothing of the last one's memory is left.
            let app = world.app(&format!("life-{lives}")).await;
            let engine = background::spawn_with(&app, PULSE);
            // Each a little longer than the last, so that many instants have their turn.
            for _ in 0..2 * lives {
                turn += 1;
                let agent = &mut agents[turn % 12];
                agent.moves_to(&app);
                if let Ok(answer) = agent.sync(0).await {
                    obey(agent, &answer, world, &mut done);
                }
            }
            // The last words of a life are not answered.
            tokio::select! {
                biased;
                _ = agents[turn % 12].sync(0) => {}
                () = tokio::task::yield_now() => {}
            }
            drop(engine);
            world.turn(SignedDuration::from_secs(7));
        }
        let (app, engine) = world.leading("last").await;
        for agent in &mut agents {
            agent.moves_to(&app);
            agent.sync(0).await.unwrap();
        }
        shows(&app, world, made.id, &format!("succeeded:{}", " succeeded".repeat(12))).await;
        for task in tasks(&app, made.id).await {
            assert_eq!(task.result.unwrap()["message"], "as it went");
        }
        engine.stop().await;
    }
}

/// Does what it is told, each order once, and says so until it is acknowledged.
fn obey(
    agent: &mut Agent,
    answer: &SyncResponse,
    world: &World,
    done: &mut std::collections::BTreeSet<vocab::TaskId>,
) {
    for envelope in &answer.orders {
        let order: wire::agent::Order = serde_json::from_str(&envelope.order).unwrap();
        if done.insert(order.id) {
            agent.ends(order.id, Outcome::Succeeded, world.now());
        }
    }
}
