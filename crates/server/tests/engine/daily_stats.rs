//! Daily statistics of an organization: one row per day, with the state at its end.

use jiff::SignedDuration;
use server::app::App;
use service::projections::{findings, patches};
use store::daily_stats::{self, DailyStats};

use crate::agent::Agent;
use crate::support::{World, at, eventually};

async fn stored_days(app: &App, world: &World) -> Vec<DailyStats> {
    let mut reader = app.db.read().await.unwrap();
    daily_stats::since(&mut reader, world.org, jiff::civil::Date::MIN).await.unwrap()
}

async fn rebuild_counts(app: &App, world: &World) {
    findings::rebuild(app, world.org).await.unwrap();
    patches::rebuild(app, world.org).await.unwrap();
}

async fn daily_row_is_updated_until_the_day_ends(world: &World) {
    let (app, engine) = world.leader("one").await;
    let token = world.token(&app).await;
    Agent::join(&app, &token, "web-1").await;
    rebuild_counts(&app, world).await;
    eventually("today has a row", async || stored_days(&app, world).await.len() == 1).await;
    Agent::join(&app, &token, "web-2").await;
    rebuild_counts(&app, world).await;
    let servers =
        async || stored_days(&app, world).await.iter().map(|day| day.servers).collect::<Vec<_>>();
    eventually("the row is updated", async || servers().await == [2]).await;

    world.advance_to(at(0) + SignedDuration::from_hours(24));
    eventually("the next day has a row", async || servers().await == [2, 2]).await;
    Agent::join(&app, &token, "web-3").await;
    rebuild_counts(&app, world).await;
    eventually("only the last row is updated", async || servers().await == [2, 3]).await;
    let days: Vec<String> =
        stored_days(&app, world).await.iter().map(|day| day.day.to_string()).collect();
    assert_eq!(days, ["2026-11-15", "2026-11-16"]);

    // After a year and a day the first row is deleted; the other one is a year old.
    world.advance_to(at(0) + SignedDuration::from_hours(24 * 366));
    let first = async || stored_days(&app, world).await.first().map(|day| day.day.to_string());
    eventually("the old row is deleted", async || first().await.as_deref() == Some("2026-11-16"))
        .await;
    engine.stop().await;
}

async fn day_without_data_has_no_row(world: &World) {
    let (app, engine) = world.leader("one").await;
    rebuild_counts(&app, world).await;
    let mut reader = app.db.read().await.unwrap();
    let today = service::projections::daily_stats::utc_day(app.clock.now());
    assert_eq!(
        service::projections::daily_stats::current_counts(&mut reader, world.org, today)
            .await
            .unwrap(),
        None
    );
    drop(reader);
    engine.stop().await;
}

testkit::both!(
    crate::support:
    daily_row_is_updated_until_the_day_ends,
    day_without_data_has_no_row,
);
