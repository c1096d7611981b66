//! A fleet of 2,000 agents, and a service that is killed during a batch.

use jiff::SignedDuration;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use swarm::behavior::{Behavior, Script};
use swarm::{Config, Swarm};
use vocab::FailureCode;

use crate::operator::Operator;
use crate::support::{Dir, Running, first_key, whole_machine};

const SERVERS: usize = 2_000;
const MAX_PARALLEL: usize = 400;
/// Agents for the tests of canaries, failure limits and cancellation.
const SMALL_FLEET: u64 = 150;

/// Raises the limit of open files: each connection is one, here and in the service.
pub(crate) fn allow_files() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
}

/// Agents that sometimes fail or crash, and finish an order almost immediately.
pub(crate) fn fast_agents(config: Config) -> Config {
    let nature = Behavior { seed: 7, fail: 0.03, crash: 0.03, offline: 0.0, speed: 50_000.0 };
    Config { behavior: nature, logs: false, ..config }
}

/// Agents that need about a second per order, so that tests can observe them at work.
pub(crate) fn slow_agents(config: Config) -> Config {
    let nature = Behavior { seed: 11, fail: 0.0, crash: 0.0, offline: 0.0, speed: 50.0 };
    Config { behavior: nature, ..config }
}

/// Two thousand agents over the real protocol: a batch for all of them with a service that is
/// killed in the middle, a schedule that fires on its own, and every limit on a batch. After each
/// step, the API's view is compared with what the hosts did.
#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_servers_are_patched_despite_a_killed_service() {
    let _alone = whole_machine().await;
    let _ = rustls::crypto::ring::default_provider().install_default();
    allow_files();
    let dir = Dir::new();
    let key = first_key(&dir.data());
    let mut service = Running::start(&dir.data(), &[]);
    let operator = Operator::new(&service.address, &key);
    let few = operator.fleet(SMALL_FLEET, slow_agents).await;
    // Both need a full minute of the clock: started first and checked last.
    let staggered = operator.orders(&few, 0..2, json!({"stagger_minutes": 1})).await;
    let fleet = operator.fleet(SERVERS as u64, fast_agents).await;
    let schedule = every_minute_in_staging(&operator).await;

    let everyone = operator.orders(&fleet, 0..SERVERS, json!({"max_parallel": MAX_PARALLEL})).await;
    let under_way = |seen: &Value| seen["progress"]["percent"].as_u64() >= Some(20);
    let seen = operator.until(&everyone, under_way).await;
    assert_eq!(seen["state"], "running", "the batch ended before the service was killed");
    service.child.kill().unwrap();
    service.child.wait().unwrap();
    let listen = service.address.strip_prefix("http://").unwrap();
    let _again = Running::at(listen, &dir.data(), &[]);
    operator.until_ended(&everyone).await;
    let sides = operator.batch_views(&fleet, &everyone).await;
    sides.assert_all_finished(SERVERS);
    assert!(sides.most_at_once() <= MAX_PARALLEL, "{} at once", sides.most_at_once());

    tokio::join!(
        check_successful_canary(&operator, &few),
        check_failed_canary(&operator, &few),
        check_failure_limit(&operator, &few),
        check_cancel(&operator, &few),
    );
    assert_schedule_ran(&operator, [&fleet, &few], &schedule).await;
    assert_staggered_starts(&operator, &few, &staggered).await;

    for fleet in [fleet, few] {
        let violations = fleet.ledger().violations();
        assert!(violations.is_empty(), "{violations:?}");
        assert!(fleet.ledger().orders_with_effects() > 0);
        fleet.stop().await;
    }
}

async fn every_minute_in_staging(operator: &Operator) -> String {
    let schedule = json!({"name": "every minute", "cron": "* * * * *",
        "targets": {"environment": "staging"}, "options": {"security_only": true}});
    operator.post("/v1/schedules", schedule).await["id"].as_str().unwrap().to_owned()
}

async fn assert_schedule_ran(operator: &Operator, fleets: [&Swarm; 2], schedule: &str) {
    let carried_out = |run: &Value| !run["finished_at"].is_null() && !run["batch_id"].is_null();
    let runs = operator.until_runs(schedule, |runs| runs.iter().any(carried_out)).await;
    let run = runs.into_iter().rfind(carried_out).unwrap();
    assert_eq!(run["trigger"], "cron");
    assert!(run["scheduled_for"].as_str().unwrap().ends_with(":00Z"), "{run}");
    let id = run["batch_id"].as_str().unwrap();
    let batch = operator.batch(id).await;
    assert_eq!((&batch["origin"], &batch["schedule_id"]), (&json!("schedule"), &json!(schedule)));
    assert_eq!(batch["run_id"], run["id"]);
    assert_eq!(batch["state"], run["state"]);
    let staging = operator.get("/v1/servers?environment=staging&limit=1").await;
    let staging = staging["meta"]["total"].as_u64().unwrap() as usize;
    assert!(staging > SERVERS / 10, "{staging} servers in staging");
    let mut sides = operator.batch_views(fleets[0], id).await;
    sides.spans.extend(operator.batch_views(fleets[1], id).await.spans);
    sides.assert_all_finished(staging);
}

async fn assert_staggered_starts(operator: &Operator, fleet: &Swarm, id: &str) {
    operator.until_ended(id).await;
    let sides = operator.batch_views(fleet, id).await;
    sides.assert_all_finished(2);
    sides.assert_apart_by(SignedDuration::from_mins(1));
}

fn set_script(fleet: &Swarm, agents: std::ops::Range<usize>, script: Script) {
    agents.for_each(|agent| fleet.script(agent, script));
}

async fn check_successful_canary(operator: &Operator, fleet: &Swarm) {
    let canary = 5;
    set_script(fleet, 10..40, Script::Succeed);
    let id = operator.orders(fleet, 10..40, json!({"canary": canary})).await;
    operator.until_ended(&id).await;
    let mut sides = operator.batch_views(fleet, &id).await;
    assert_eq!(sides.spans.len(), 30);
    let rest = sides.spans.split_off(canary);
    let last = sides.spans.iter().filter_map(|span| span.ended).max().unwrap();
    assert!(rest.iter().all(|span| span.began > last), "the rest began before {last}");
    assert!(sides.started()[canary] > last);
}

async fn check_failed_canary(operator: &Operator, fleet: &Swarm) {
    set_script(fleet, 40..60, Script::FailWith(FailureCode::DiskFull));
    let id = operator.orders(fleet, 40..60, json!({"canary": 2})).await;
    operator.until(&id, |seen| seen["state"] == "halted").await;
    assert_halted_with_at_most(operator, fleet, &id, 20, 2).await;
}

async fn check_failure_limit(operator: &Operator, fleet: &Swarm) {
    set_script(fleet, 60..80, Script::FailWith(FailureCode::DiskFull));
    let pace = json!({"max_parallel": 4, "max_failures": 2});
    let id = operator.orders(fleet, 60..80, pace).await;
    operator.until(&id, |seen| seen["state"] == "halted").await;
    // Four tasks were running when the first failed and a fifth started; the second failure halted
    // the batch.
    assert_halted_with_at_most(operator, fleet, &id, 20, 5).await;
}

/// When the batch halts, running tasks still finish, and no other task starts until an operator
/// decides.
async fn assert_halted_with_at_most(
    operator: &Operator,
    fleet: &Swarm,
    id: &str,
    total: usize,
    most: usize,
) {
    let at_rest = |seen: &Value| {
        let count = |state: &str| seen["progress"][state].as_u64().unwrap() as usize;
        count("waiting") + count("failed") == total
    };
    operator.until(id, at_rest).await;
    let sides = operator.batch_views(fleet, id).await;
    let failed = sides.count("failed");
    assert!(failed > 0 && failed <= most, "{failed} failed, {most} may have started");
    assert_eq!(sides.count("waiting"), total - failed);
    assert_eq!(sides.started().len(), failed);
    assert!(sides.spans.len() >= failed && sides.spans.len() <= most, "{:?}", sides.spans);
    operator.post(&format!("/v1/batches/{id}/cancel"), json!({})).await;
    let seen = operator.until_ended(id).await;
    assert_eq!(seen["state"], "canceled");
    assert_eq!(operator.batch_views(fleet, id).await.spans, sides.spans);
}

async fn check_cancel(operator: &Operator, fleet: &Swarm) {
    let id = operator.orders(fleet, 80..150, json!({"max_parallel": 10, "reboot": "always"})).await;
    let under_way = |seen: &Value| seen["progress"]["percent"].as_u64() >= Some(20);
    operator.until(&id, under_way).await;
    let canceled = operator.post(&format!("/v1/batches/{id}/cancel"), json!({})).await;
    assert_eq!(canceled["state"], "canceling");
    let before = operator.batch_views(fleet, &id).await;
    let seen = operator.until_ended(&id).await;
    assert_eq!(seen["state"], "canceled");
    let after = operator.batch_views(fleet, &id).await;
    // No further task started after the cancellation, and withdrawn tasks had done nothing.
    let begun = after.tasks.len() - after.count("canceled");
    assert!((14..60).contains(&begun), "{begun} of 70 tasks finished on their own");
    assert_eq!(after.started().len(), before.started().len());
    assert!(after.spans.len() >= begun && after.spans.len() <= before.started().len());
    assert!(after.spans.iter().all(|span| span.ended.is_some()));
    let most = after.most_at_once();
    assert!(most > 1 && most <= 10, "{most} at once");
    assert_eq!(after.count("timed_out"), 0);
}
