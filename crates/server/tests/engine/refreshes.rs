//! Somebody wants to know now what lies on a server.

use server::app::App;
use service::ServiceError;
use service::commands::refreshes;
use store::refreshes::State;
use vocab::TaskId;
use wire::agent::{Outcome, Work};

use crate::agent::Agent;
use crate::support::{World, both, eventually};

async fn state(app: &App, world: &World, agent: &Agent, id: TaskId) -> State {
    refreshes::get(app, world.org, agent.id, id).await.unwrap().state
}

both! {
    async fn an_agent_is_asked_to_look_and_says_when_it_has(world: World) {
        let (app, engine) = world.leading("a").await;
        let token = world.token(&app).await;
        let mut web = Agent::join(&app, &token, "web-1").await;
        web.sync(0).await.unwrap();
        let admin = world.admin();
        let (asked, order) = tokio::join!(
            refreshes::request(&app, &admin, web.id),
            async { web.clone().awaits_order().await },
        );
        let asked = asked.unwrap();
        assert_eq!((order.id, order.work), (asked.id, Work::Scan));
        assert_eq!(order.expires_at, asked.deadline);
        // Who asks again is shown the one that is under way.
        let again = refreshes::request(&app, &admin, web.id).await.unwrap();
        assert_eq!(again.id, asked.id);
        web.counter += 1;
        web.sync(0).await.unwrap();
        web.reports(asked.id, Outcome::Succeeded, world.now()).await;
        assert_eq!(state(&app, world, &web, asked.id).await, State::Succeeded);
        eventually("the order is gone", async || web.orders(0).await.is_empty()).await;
        engine.stop().await;
    }

    async fn who_is_away_cannot_be_asked(world: World) {
        let app = world.app("a").await;
        let token = world.token(&app).await;
        let mut web = Agent::join(&app, &token, "web-1").await;
        world.minutes(4);
        let refused = refreshes::request(&app, &world.admin(), web.id).await;
        assert!(matches!(refused, Err(ServiceError::Conflict { code: "server_offline", .. })));
        // Heard a moment ago, though it is not written down yet.
        web.sync(0).await.unwrap();
        refreshes::request(&app, &world.admin(), web.id).await.unwrap();
        let stranger = vocab::ServerId::new(world.now(), 7);
        let refused = refreshes::request(&app, &world.admin(), stranger).await;
        assert!(matches!(refused, Err(ServiceError::NotFound { kind: "server", .. })));
    }

    async fn after_five_minutes_it_is_given_up_and_a_late_answer_still_counts(world: World) {
        let (app, engine) = world.leading("a").await;
        let token = world.token(&app).await;
        let mut web = Agent::join(&app, &token, "web-1").await;
        let asked = refreshes::request(&app, &world.admin(), web.id).await.unwrap();
        world.minutes(5);
        eventually("it is given up", async || {
            state(&app, world, &web, asked.id).await == State::TimedOut
        }).await;
        web.reports(asked.id, Outcome::Succeeded, world.now()).await;
        assert_eq!(state(&app, world, &web, asked.id).await, State::Succeeded);
        engine.stop().await;
    }
}
