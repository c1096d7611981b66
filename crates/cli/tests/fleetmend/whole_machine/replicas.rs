//! Two replicas on one database: one is paused for longer than its lease, the other is killed.

use std::collections::BTreeSet;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use swarm::Config;

use crate::database::Database;
use crate::operator::Operator;
use crate::support::{Dir, Running, first_key_with, whole_machine};
use crate::whole_machine::fleet::{allow_files, fast_agents};

const SERVERS: usize = 300;
const MAX_PARALLEL: usize = 60;

/// The leader is paused during its work, wakes up when the other replica leads, and does no harm.
/// Then the other replica is killed, and the first continues. Agents know both addresses.
#[tokio::test(flavor = "multi_thread")]
async fn paused_or_killed_replica_loses_and_repeats_nothing() {
    let _alone = whole_machine().await;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let Some(database) = Database::new().await else { return };
    allow_files();
    let dir = Dir::new();
    let more = ["--database", database.url.as_str()];
    let key = first_key_with(&dir.data(), &more);
    let first = Running::start(&dir.data(), &more);
    // It is the leader, because it started alone.
    let operator = Operator::new(&first.address, &key);
    let mut second = Running::start(&dir.data(), &more);
    let other = Operator::new(&second.address, &key);
    let both = |config| {
        let other_urls = vec![other.url.clone()];
        Config { other_urls, ..fast_agents(config) }
    };
    let fleet = operator.fleet(SERVERS as u64, both).await;

    let schedule = json!({"name": "every minute", "cron": "* * * * *",
        "targets": {"environment": "staging"}, "options": {"security_only": true}});
    let schedule = operator.post("/v1/schedules", schedule).await;
    let schedule = schedule["id"].as_str().unwrap().to_owned();
    let mut halfway =
        operator.orders(&fleet, 0..SERVERS, json!({"max_parallel": MAX_PARALLEL})).await;
    let under_way = |seen: &Value| seen["progress"]["percent"].as_u64() >= Some(20);
    operator.until(&halfway, under_way).await;
    first.signal(Signal::SIGSTOP);
    // Every second agent syncs with the other replica, which starts tasks only if it is the leader.
    let odd = (1..SERVERS).step_by(2).take(20);
    let small = other.orders(&fleet, odd, json!({"max_parallel": 5})).await;
    other.until(&small, |seen| seen["progress"]["waiting"].as_u64() < Some(20)).await;
    let missed = other.until_runs(&schedule, |runs| !runs.is_empty()).await;
    first.signal(Signal::SIGCONT);

    for batch in [&halfway, &small] {
        operator.until_ended(batch).await;
    }
    let sides = operator.batch_views(&fleet, &halfway).await;
    sides.assert_all_finished(SERVERS);
    assert!(sides.most_at_once() <= MAX_PARALLEL, "{} at once", sides.most_at_once());
    operator.batch_views(&fleet, &small).await.assert_all_finished(20);

    halfway = operator
        .orders(&fleet, 0..SERVERS, json!({"max_parallel": MAX_PARALLEL, "reboot": "always"}))
        .await;
    operator.until(&halfway, under_way).await;
    second.child.kill().unwrap();
    second.child.wait().unwrap();
    operator.until_ended(&halfway).await;
    let sides = operator.batch_views(&fleet, &halfway).await;
    sides.assert_all_finished(SERVERS);
    assert!(sides.most_at_once() <= MAX_PARALLEL, "{} at once", sides.most_at_once());

    // Read the batches before the runs: a run may start between the two requests.
    let batches = operator.get("/v1/batches?limit=100").await;
    let batches = batches["data"].as_array().unwrap().iter();
    let by_calendar: BTreeSet<_> = batches
        .filter(|batch| batch["origin"] == "schedule")
        .filter_map(|batch| batch["id"].as_str())
        .collect();
    assert!(!by_calendar.is_empty());
    let runs = operator.all(&format!("/v1/schedules/{schedule}/runs")).await;
    assert!(runs.len() >= missed.len());
    let instants: BTreeSet<_> = runs.iter().map(|run| run["scheduled_for"].as_str()).collect();
    assert_eq!(instants.len(), runs.len(), "a scheduled time was run twice: {runs:?}");
    let started: BTreeSet<_> = runs.iter().filter_map(|run| run["batch_id"].as_str()).collect();
    assert!(started.is_superset(&by_calendar), "{by_calendar:?} of {started:?}");
    let violations = fleet.ledger().violations();
    assert!(violations.is_empty(), "{violations:?}");
    fleet.stop().await;
    drop(first);
    database.remove().await;
}
