//! Refreshes: an operator requests a package scan of a server now.

use server::app::App;
use service::ServiceError;
use service::commands::refreshes;
use store::refreshes::RefreshState;
use vocab::TaskId;
use wire::agent::{Outcome, Work};

use crate::agent::Agent;
use crate::support::{World, eventually};

async fn state(app: &App, world: &World, agent: &Agent, id: TaskId) -> RefreshState {
    refreshes::get(app, world.org, agent.id, id).await.unwrap().state
}

async fn agent_scans_on_request_and_reports_completion(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    web.sync(0).await.unwrap();
    let admin = world.admin();
    let (refresh, order) = tokio::join!(refreshes::request(&app, &admin, web.id), async {
        web.clone().wait_for_order().await
    },);
    let refresh = refresh.unwrap();
    assert_eq!((order.id, order.work), (refresh.id, Work::Scan));
    assert_eq!(order.expires_at, refresh.deadline);
    // A second request returns the refresh in progress.
    let again = refreshes::request(&app, &admin, web.id).await.unwrap();
    assert_eq!(again.id, refresh.id);
    web.counter += 1;
    web.sync(0).await.unwrap();
    web.report_until_acknowledged(refresh.id, Outcome::Succeeded, world.now()).await;
    assert_eq!(state(&app, world, &web, refresh.id).await, RefreshState::Succeeded);
    eventually("the order is no longer sent", async || web.orders(0).await.is_empty()).await;
    engine.stop().await;
}

async fn offline_server_cannot_be_refreshed(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    world.minutes(4);
    let refused = refreshes::request(&app, &world.admin(), web.id).await;
    assert!(matches!(refused, Err(ServiceError::Conflict { code: "server_offline", .. })));
    // The agent was just heard from, though its heartbeat is not written yet.
    web.sync(0).await.unwrap();
    refreshes::request(&app, &world.admin(), web.id).await.unwrap();
    let stranger = vocab::ServerId::new(world.now(), 7);
    let refused = refreshes::request(&app, &world.admin(), stranger).await;
    assert!(matches!(refused, Err(ServiceError::NotFound { kind: "server", .. })));
}

async fn refresh_times_out_and_a_late_result_still_counts(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let asked = refreshes::request(&app, &world.admin(), web.id).await.unwrap();
    world.minutes(5);
    eventually("the refresh times out", async || {
        state(&app, world, &web, asked.id).await == RefreshState::TimedOut
    })
    .await;
    let entries = store::audit::after(&mut app.db.read().await.unwrap(), world.org, 0, 100).await;
    let last = entries.unwrap().pop().unwrap();
    assert_eq!((last.action.as_str(), last.actor.as_str()), ("refresh.finish", "engine"));
    assert!(last.detail.contains("\"state\":\"timed_out\""), "{}", last.detail);
    web.report_until_acknowledged(asked.id, Outcome::Succeeded, world.now()).await;
    assert_eq!(state(&app, world, &web, asked.id).await, RefreshState::Succeeded);
    engine.stop().await;
}

testkit::both!(
    crate::support:
    agent_scans_on_request_and_reports_completion,
    offline_server_cannot_be_refreshed,
    refresh_times_out_and_a_late_result_still_counts,
);
