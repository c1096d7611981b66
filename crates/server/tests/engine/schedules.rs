//! Scheduled runs: each run time starts once, or is skipped with a reason.

use jiff::Timestamp;
use serde_json::json;
use server::app::App;
use service::clock::random_u128;
use service::commands::restore::prepare_for_service;
use store::runs::{self, Run, RunState, StartResult, Trigger};
use store::schedules::{self, Schedule};
use store::{Page, Topic, rollouts};
use vocab::{Role, RunId, ScheduleId, Selector, SkipReason};
use wire::agent::Outcome;

use crate::agent::Agent;
use crate::support::{World, at, eventually};

/// A schedule for staging, every hour, first at five.
pub(crate) async fn hourly(app: &App, world: &World) -> ScheduleId {
    let schedule = schedule(world, "hourly".into());
    add(app, std::slice::from_ref(&schedule)).await;
    schedule.id
}

/// A schedule for staging, every day, first at five.
pub(crate) async fn daily(app: &App, world: &World) -> ScheduleId {
    let cron = "0 5 * * *".parse().unwrap();
    let schedule = Schedule { cron, ..schedule(world, "daily".into()) };
    add(app, std::slice::from_ref(&schedule)).await;
    schedule.id
}

fn schedule(world: &World, name: String) -> Schedule {
    Schedule {
        id: ScheduleId::new(world.now(), random_u128()),
        org_id: world.org,
        name,
        description: String::new(),
        enabled: true,
        cron: "0 * * * *".parse().unwrap(),
        timezone: "UTC".parse().unwrap(),
        targets: serde_json::from_value(json!({"environment": "staging"})).unwrap(),
        options: json!({"security_only": true}),
        next_run_at: Some(at(3_600)),
        created_at: world.now(),
        updated_at: world.now(),
        generation: 1,
        seal: store::seals::SealCode::default(),
    }
}

async fn add(app: &App, all: &[Schedule]) {
    let mut tx = app.db.begin().await.unwrap();
    for schedule in all {
        schedules::create(&mut tx, schedule).await.unwrap();
    }
    tx.notify(Topic::Schedules);
    tx.commit().await.unwrap();
}

/// The history, oldest first.
pub(crate) async fn history(app: &App, world: &World, id: ScheduleId) -> Vec<Run> {
    let mut reader = app.db.read().await.unwrap();
    let page = Page { limit: 100, offset: 0 };
    let mut runs = runs::list(&mut reader, world.org, id, page).await.unwrap().items;
    runs.sort_by_key(|run| run.scheduled_for);
    runs
}

fn summarize_runs(runs: &[Run]) -> Vec<(RunState, Option<SkipReason>, Option<Timestamp>)> {
    runs.iter().map(|run| (run.state, run.skip_reason, run.scheduled_for)).collect()
}

/// Does the first of the two steps that start a run.
async fn take_run_time(app: &App, world: &World, id: ScheduleId) {
    let mut tx = app.db.begin().await.unwrap();
    let schedule = schedules::get(&mut tx, world.org, id).await.unwrap();
    let run = Run {
        id: RunId::new(world.now(), random_u128()),
        org_id: world.org,
        schedule_id: id,
        trigger_kind: Trigger::Cron,
        state: RunState::Running,
        skip_reason: None,
        scheduled_for: schedule.next_run_at,
        started_at: world.now(),
        finished_at: None,
        batch_id: None,
        targets: schedule.targets.clone(),
        options: schedule.options.clone(),
        generation: 1,
        seal: store::seals::SealCode::default(),
    };
    assert_eq!(runs::start(&mut tx, &run).await.unwrap(), StartResult::Started);
    schedules::advance(&mut tx, &[(&schedule, Some(at(7_200)))]).await.unwrap();
    tx.commit().await.unwrap();
}

const SUCCEEDED: RunState = RunState::Ended(domain::rollout::RolloutOutcome::Succeeded);
const FAILED: RunState = RunState::Ended(domain::rollout::RolloutOutcome::Failed);

async fn run_starts_on_time_and_ends_with_its_batch(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let id = hourly(&app, world).await;
    world.advance_to(at(3_599));
    web.sync(0).await.unwrap();
    assert_eq!(history(&app, world, id).await, []);
    world.advance_to(at(3_600));
    let order = web.wait_for_order().await;
    let running = history(&app, world, id).await;
    assert_eq!(summarize_runs(&running), [(RunState::Running, None, Some(at(3_600)))]);
    web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    eventually("the run ends", async || {
        summarize_runs(&history(&app, world, id).await) == [(SUCCEEDED, None, Some(at(3_600)))]
    })
    .await;
    let next = schedules::get(&mut app.db.read().await.unwrap(), world.org, id).await.unwrap();
    assert_eq!(next.next_run_at, Some(at(7_200)));
    engine.stop().await;
}

async fn many_schedules_due_at_once_start_once_each(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let _silent = Agent::join(&app, &token, "web-1").await;
    let all: Vec<Schedule> = (0..5_100).map(|nth| schedule(world, format!("nth {nth}"))).collect();
    add(&app, &all).await;
    world.advance_to(at(3_600));
    let ids: Vec<ScheduleId> = all.iter().map(|schedule| schedule.id).collect();
    eventually("every schedule has its run", async || {
        let mut reader = app.db.read().await.unwrap();
        runs::filter_unfinished(&mut reader, &ids).await.unwrap().len() == ids.len()
    })
    .await;
    let mut reader = app.db.read().await.unwrap();
    assert_eq!(
        schedules::due(&mut reader, world.now(), 1).await.unwrap(),
        [],
        "no schedule is due"
    );
    drop(reader);
    for id in [ids[0], ids[2_499], ids[2_500], ids[5_099]] {
        assert_eq!(
            summarize_runs(&history(&app, world, id).await),
            [(RunState::Running, None, Some(at(3_600)))]
        );
    }
    engine.stop().await;
}

async fn late_result_corrects_the_run_as_well(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let id = hourly(&app, world).await;
    world.advance_to(at(3_600));
    let order = web.wait_for_order().await;
    world.minutes(11);
    eventually("the run fails", async || history(&app, world, id).await[0].state == FAILED).await;
    web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    assert_eq!(history(&app, world, id).await[0].state, SUCCEEDED);
    engine.stop().await;
}

async fn run_time_during_an_unfinished_run_is_skipped(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let id = hourly(&app, world).await;
    world.advance_to(at(3_600));
    let order = web.wait_for_order().await;
    web.report_stage(order.id, vocab::Stage::Installing, world.now());
    web.sync(0).await.unwrap();
    world.advance_to(at(7_200));
    eventually("the skipped run is recorded", async || {
        summarize_runs(&history(&app, world, id).await)
            == [
                (RunState::Running, None, Some(at(3_600))),
                (RunState::Skipped, Some(SkipReason::Overlap), Some(at(7_200))),
            ]
    })
    .await;
    engine.stop().await;
}

/// Three days of downtime: one run at the end, and one record of the missed ones.
async fn missed_runs_are_recorded_once_and_only_the_newest_starts(world: &World) {
    let app = world.app("a").await;
    let id = hourly(&app, world).await;
    world.advance_to(at(72 * 3_600 + 600));
    let engine = server::background::spawn_with(&app, crate::support::INTERVALS);
    // No server is in staging.
    eventually("both are recorded", async || {
        summarize_runs(&history(&app, world, id).await)
            == [
                (RunState::Skipped, Some(SkipReason::Missed), Some(at(71 * 3_600))),
                (RunState::Skipped, Some(SkipReason::NoServers), Some(at(72 * 3_600))),
            ]
    })
    .await;
    engine.stop().await;
}

async fn run_without_matching_servers_is_skipped(world: &World) {
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let id = hourly(&app, world).await;
    world.advance_to(at(3_600));
    let skipped = (RunState::Skipped, Some(SkipReason::NoServers), Some(at(3_600)));
    eventually("the run is skipped", async || {
        summarize_runs(&history(&app, world, id).await) == [skipped]
    })
    .await;
    let run = history(&app, world, id).await.remove(0);
    assert_eq!((run.batch_id, run.finished_at), (None, Some(at(3_600))));
    let mut reader = app.db.read().await.unwrap();
    let batches =
        store::batches::list(&mut reader, world.org, &[], None, Page { limit: 1, offset: 0 })
            .await
            .unwrap();
    assert_eq!(batches.total, 0);
    drop(reader);
    // With a server, the next run is like any other.
    let mut web = Agent::join(&app, &token, "web-1").await;
    world.advance_to(at(7_200));
    web.wait_for_order().await;
    let runs = history(&app, world, id).await;
    assert_eq!(summarize_runs(&runs), [skipped, (RunState::Running, None, Some(at(7_200)))]);
    assert!(runs[1].batch_id.is_some());
    engine.stop().await;
}

async fn run_whose_servers_are_all_frozen_is_skipped(world: &World) {
    use domain::freeze::{Freeze, Timing};
    use service::commands::freezes::{self, FreezeInput};
    let (app, engine) = world.leader("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let actor = service::Actor { org: world.org, id: "test".to_owned(), role: Role::Operator };
    let timing = Timing::OneOff { starts_at: at(0), ends_at: at(5_000) };
    let rule = Freeze { targets: Selector::All, timing };
    let input = FreezeInput { name: "quiet".into(), reason: "quiet".into(), rule };
    freezes::create(&app, &actor, input).await.unwrap();
    let id = hourly(&app, world).await;
    world.advance_to(at(3_600));
    let skipped = (RunState::Skipped, Some(SkipReason::Freeze), Some(at(3_600)));
    eventually("the run is skipped", async || {
        summarize_runs(&history(&app, world, id).await) == [skipped]
    })
    .await;
    // The freeze has ended when the next run starts.
    world.advance_to(at(7_200));
    web.wait_for_order().await;
    let runs = history(&app, world, id).await;
    assert_eq!(summarize_runs(&runs), [skipped, (RunState::Running, None, Some(at(7_200)))]);
    engine.stop().await;
}

/// The leader took the run time and then crashed.
async fn next_leader_creates_the_missing_batch_of_a_run(world: &World) {
    let app = world.app("a").await;
    let token = world.token(&app).await;
    let mut web = Agent::join(&app, &token, "web-1").await;
    let id = hourly(&app, world).await;
    world.advance_to(at(3_600));
    take_run_time(&app, world, id).await;
    assert_eq!(history(&app, world, id).await[0].batch_id, None);
    world.advance_to(at(3_660));
    let (app, engine) = world.leader("b").await;
    web.switch_to(&app);
    let order = web.wait_for_order().await;
    web.report_until_acknowledged(order.id, Outcome::Succeeded, world.now()).await;
    eventually("the run ends", async || {
        summarize_runs(&history(&app, world, id).await) == [(SUCCEEDED, None, Some(at(3_600)))]
    })
    .await;
    let run = history(&app, world, id).await.remove(0);
    let mut reader = app.db.read().await.unwrap();
    let batch = rollouts::get(&mut reader, world.org, run.batch_id.unwrap()).await.unwrap();
    assert_eq!(
        (batch.run_id, batch.head.starts_at),
        (Some(run.id), at(3_600)),
        "the window counts from the run time"
    );
    assert_eq!(batch.name, "hourly (schedule)");
    drop(reader);
    // The next run is like any other.
    world.advance_to(at(7_200));
    web.wait_for_order().await;
    assert_eq!(history(&app, world, id).await.len(), 2);
    engine.stop().await;
}

async fn run_without_a_batch_is_canceled_by_a_restore(world: &World) {
    let app = world.app("a").await;
    let id = hourly(&app, world).await;
    world.advance_to(at(3_600));
    take_run_time(&app, world, id).await;
    let mut tx = app.db.begin().await.unwrap();
    prepare_for_service(&mut tx, at(3_600), world.now()).await.unwrap();
    tx.commit().await.unwrap();
    let canceled = RunState::Ended(domain::rollout::RolloutOutcome::Canceled);
    assert_eq!(
        summarize_runs(&history(&app, world, id).await),
        [(canceled, None, Some(at(3_600)))]
    );
}

testkit::both!(
    crate::support:
    run_starts_on_time_and_ends_with_its_batch,
    many_schedules_due_at_once_start_once_each,
    late_result_corrects_the_run_as_well,
    run_time_during_an_unfinished_run_is_skipped,
    missed_runs_are_recorded_once_and_only_the_newest_starts,
    run_without_matching_servers_is_skipped,
    run_whose_servers_are_all_frozen_is_skipped,
    next_leader_creates_the_missing_batch_of_a_run,
    run_without_a_batch_is_canceled_by_a_restore,
);
