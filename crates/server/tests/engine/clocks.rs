//! Recovery after clocks were wrong for a while.

use std::time::Duration;

use domain::server::Presence;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use server::app::App;
use server::background::{self, Background};
use service::clock::Clock;

use store::runs::RunState;
use store::schedules::{self, Schedule};
use store::server_list::{self, Filter, OnlineSpan};
use vocab::{ScheduleId, ServerId, Status};
use wire::agent::Outcome;

use crate::agent::Agent;
use crate::rollouts::wait_for_state;
use crate::schedules::{daily, history};
use crate::support::{INTERVALS, World, at, eventually};

const HOUR: SignedDuration = SignedDuration::from_hours(1);
const DAY: SignedDuration = SignedDuration::from_hours(24);
const HALF_HOUR: SignedDuration = SignedDuration::from_mins(30);
const TEN_YEARS: SignedDuration = SignedDuration::from_hours(24 * 3_652);

/// How far a clock is ahead. The offsets of one hour come last, because a run time could fall into
/// that hour at the start of a test. `clock_that_shows_an_instant_twice_starts_it_once` covers that
/// case.
fn wrong_clocks() -> [SignedDuration; 6] {
    [DAY, -DAY, TEN_YEARS, -TEN_YEARS, HOUR, -HOUR]
}

async fn last_seen(app: &App, world: &World, id: ServerId) -> Timestamp {
    let mut reader = app.db.read().await.unwrap();
    store::servers::get(&mut reader, world.org, id).await.unwrap().last_seen_at
}

/// Lets the agent sync until its heartbeat is written.
async fn sync_until_written(app: &App, world: &World, agent: &mut Agent) {
    agent.sync(0).await.unwrap();
    let now = world.now();
    eventually("the sync is written", async || last_seen(app, world, agent.id).await == now).await;
}

/// The number of servers that the list shows as online.
async fn listed_online(app: &App, world: &World) -> u64 {
    let offline_after = Presence { last_seen: None, sync_seconds: 60 }.offline_after();
    let (since, until) = (world.now() - offline_after, world.now() + offline_after);
    let status = Some((Status::Online, OnlineSpan { since, until }));
    let filter = Filter { status, ..Filter::default() };
    server_list::count(&mut app.db.read().await.unwrap(), world.org, &filter).await.unwrap()
}

async fn load_schedule(app: &App, world: &World, id: ScheduleId) -> Schedule {
    schedules::get(&mut app.db.read().await.unwrap(), world.org, id).await.unwrap()
}

/// Whether a run time of a schedule ran to its end, and no other run has it.
async fn ran_once(app: &App, world: &World, id: ScheduleId, instant: Timestamp) -> bool {
    let runs = history(app, world, id).await;
    let of_instant: Vec<_> =
        runs.iter().filter(|run| run.scheduled_for == Some(instant)).map(|run| run.state).collect();
    matches!(of_instant[..], [RunState::Ended(_)])
}

/// After the clock was set back, the schedule waits again for a time at which it already ran. When
/// that time comes again, nothing starts.
async fn assert_repeated_run_time_starts_nothing(
    app: &App,
    world: &World,
    id: ScheduleId,
    instant: Timestamp,
    agent: &mut Agent,
) {
    let waits_for =
        async |next: Timestamp| load_schedule(app, world, id).await.next_run_at == Some(next);
    eventually("the schedule follows the clock", async || waits_for(instant).await).await;
    world.advance_to(instant);
    eventually("the schedule moves on", async || waits_for(instant + DAY).await).await;
    assert!(ran_once(app, world, id, instant).await);
    assert!(agent.sync(0).await.unwrap().orders.is_empty());
}

/// The process ends without releasing the leader lease, and another starts.
async fn restart(world: &World, app: App, engine: Background, replica: &str) -> (App, Background) {
    drop(engine);
    app.db.close().await;
    world.advance(SignedDuration::from_secs(7));
    world.leader(replica).await
}

async fn service_leads_again_after_its_clock_was_wrong(world: &World) {
    for wrong in wrong_clocks() {
        world.set_clock(wrong);
        let (app, engine) = world.leader("wrong").await;
        assert!(app.condition().leads());
        drop(engine);
        app.db.close().await;
        world.set_clock(-wrong);
        let (app, engine) = world.leader("right").await;
        assert!(app.condition().leads(), "{wrong}");
        engine.stop().await;
        assert!(!app.condition().leads());
        app.db.close().await;
    }
}

async fn server_is_online_and_gets_orders_after_the_clock_was_wrong(world: &World) {
    let (mut app, mut engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    for restarts in [false, true] {
        for wrong in wrong_clocks() {
            sync_until_written(&app, world, &mut web).await;
            world.set_clock(wrong);
            sync_until_written(&app, world, &mut web).await;
            world.set_clock(-wrong);
            if restarts {
                (app, engine) = restart(world, app, engine, "a").await;
                web.switch_to(&app);
            }
            if wrong.is_positive() {
                // The last contact is in the future: the list shows the same as the server's
                // page.
                assert_eq!(listed_online(&app, world).await, 0, "{wrong}");
            }
            world.advance(SignedDuration::from_secs(1));
            sync_until_written(&app, world, &mut web).await;
            assert_eq!(listed_online(&app, world).await, 1, "{wrong}");
            let order = world.new_rollout(vec![web.id], json!({}));
            let created = service::commands::batches::create(&app, order).await.unwrap();
            let order = web.wait_for_order().await;
            web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
            wait_for_state(&app, world, created.id, "succeeded: succeeded").await;
        }
    }
    engine.stop().await;
}

async fn schedule_starts_at_its_next_instant_after_the_clock_was_wrong(world: &World) {
    let (mut app, mut engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let id = daily(&app, world).await;
    let mut next = at(3_600);
    for restarts in [false, true] {
        for wrong in wrong_clocks() {
            let expected = next;
            world.set_clock(wrong);
            eventually("the schedule follows the clock", async || {
                let stored = load_schedule(&app, world, id).await.next_run_at.unwrap();
                let ahead = stored.duration_since(world.now());
                ahead.is_positive() && ahead <= DAY
            })
            .await;
            world.set_clock(-wrong);
            if restarts {
                (app, engine) = restart(world, app, engine, "a").await;
                web.switch_to(&app);
            }
            eventually("the schedule waits for its instant", async || {
                load_schedule(&app, world, id).await.next_run_at == Some(expected)
            })
            .await;
            let row = load_schedule(&app, world, id).await;
            assert_eq!(service::commands::schedules::upcoming(&row, 2), [expected, expected + DAY]);
            let runs = history(&app, world, id).await;
            assert!(
                runs.iter().all(|run| {
                    run.state != RunState::Skipped || run.scheduled_for <= Some(world.now())
                }),
                "{wrong}: {runs:?}"
            );
            world.advance_to(expected);
            let order = web.wait_for_order().await;
            web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
            eventually("the instant ran, once", async || {
                let runs = history(&app, world, id).await;
                let mut of_instant = runs.iter().filter(|run| run.scheduled_for == Some(expected));
                matches!(of_instant.next().map(|run| run.state), Some(RunState::Ended(_)))
                    && of_instant.next().is_none()
            })
            .await;
            next = expected + DAY;
            // Later than a run may start, so that the wrong clock misses the run time.
            world.advance(SignedDuration::from_hours(2));
        }
    }
    engine.stop().await;
}

/// A clock that is an hour wrong around five o'clock, when the schedule runs, shows five
/// o'clock twice.
async fn clock_that_shows_an_instant_twice_starts_it_once(world: &World) {
    let (mut app, mut engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let id = daily(&app, world).await;
    let mut instant = at(3_600);
    for restarts in [false, true] {
        // Ahead at half past four: the run starts by that clock, which is then corrected.
        world.advance_to(instant - HALF_HOUR);
        world.set_clock(HOUR);
        let order = web.wait_for_order().await;
        web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
        eventually("the run ends", async || ran_once(&app, world, id, instant).await).await;
        world.set_clock(-HOUR);
        if restarts {
            (app, engine) = restart(world, app, engine, "a").await;
            web.switch_to(&app);
        }
        assert_repeated_run_time_starts_nothing(&app, world, id, instant, &mut web).await;
        // The next day it runs as usual. At half past five the clock is set back for a while.
        instant += DAY;
        world.advance_to(instant);
        let order = web.wait_for_order().await;
        web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
        eventually("the run ends", async || ran_once(&app, world, id, instant).await).await;
        world.advance_to(instant + HALF_HOUR);
        world.set_clock(-HOUR);
        if restarts {
            (app, engine) = restart(world, app, engine, "a").await;
            web.switch_to(&app);
        }
        assert_repeated_run_time_starts_nothing(&app, world, id, instant, &mut web).await;
        world.set_clock(HOUR);
        instant += DAY;
    }
    engine.stop().await;
}

testkit::both!(
    crate::support:
    service_leads_again_after_its_clock_was_wrong,
    server_is_online_and_gets_orders_after_the_clock_was_wrong,
    schedule_starts_at_its_next_instant_after_the_clock_was_wrong,
    clock_that_shows_an_instant_twice_starts_it_once,
);

/// Only PostgreSQL has its own clock to compare with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_with_a_wrong_clock_does_not_lead() {
    crate::support::postgres(async |world: &World| {
        for wrong in wrong_clocks() {
            let skewed = world.app_with_clock("wrong", Clock::system_ahead_by(wrong)).await;
            let alone = background::spawn_with(&skewed, INTERVALS);
            eventually("the skew is detected", async || skewed.condition().clock_skew().is_some())
                .await;
            let right = world.app_with_clock("right", Clock::system()).await;
            let leader = background::spawn_with(&right, INTERVALS);
            eventually("the replica with the correct clock leads", async || leader.is_leader())
                .await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert!(leader.is_leader() && !alone.is_leader(), "{wrong}");
            assert_eq!(right.condition().clock_skew(), None);
            let skew = skewed.condition().clock_skew().unwrap();
            assert!((skew - wrong).abs() < SignedDuration::from_secs(5), "{skew}");
            leader.stop().await;
            alone.stop().await;
            skewed.db.close().await;
            right.db.close().await;
        }
    })
    .await;
}
