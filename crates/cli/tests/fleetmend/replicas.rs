//! Two services over one database: one is stopped for longer than its lease, one dies.

use std::collections::BTreeSet;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use swarm::Config;

use crate::database::Database;
use crate::fleet::{allow_files, hurried};
use crate::operator::Operator;
use crate::support::{Dir, Running, first_key_with};

const SERVERS: usize = 300;
const AT_ONCE: usize = 60;

/// The leader is stopped in the middle of its work, wakes up when another leads, and does no harm; then
/// that other one dies without a word, and the first goes on. Agents know both.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_services_either_may_fall_silent_or_die_and_nothing_is_lost_or_done_twice() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let Some(database) = Database::new().await else { return };
    allow_files();
    let dir = Dir::new();
    let more = ["--database", database.url.as_str()];
    let key = first_key_with(&dir.data(), &more);
    let first = Running::start(&dir.data(), &more);
    // It leads: there was nobody else when it began. And what is done through it is done.
    let operator = Operator::new(&first.address, &key);
    let mut second = Running::start(&dir.data(), &more);
    let other = Operator::new(&second.address, &key);
    let both = |config| {
        let other_urls = vec![other.url.clone()];
        Config { other_urls, ..hurried(config) }
    };
    let fleet = operator.fleet(SERVERS as u64, both).await;

    let schedule = json!({"name": "every minute", "cron": "* * * * *",
        "targets": {"environment": "staging"}, "options": {"security_only": true}});
    let schedule = operator.post("/v1/schedules", schedule).await;
    let schedule = schedule["id"].as_str().unwrap().to_owned();
    let mut halfway = operator.orders(&fleet, 0..SERVERS, json!({"max_parallel": AT_ONCE})).await;
    let under_way = |seen: &Value| seen["progress"]["percent"].as_u64() >= Some(20);
    operator.until(&halfway, under_way).await;
    first.signal(Signal::SIGSTOP);
    // Every second agent talks to the other service, which starts something only if it leads.
    let odd = (1..SERVERS).step_by(2).take(20);
    let small = other.orders(&fleet, odd, json!({"max_parallel": 5})).await;
    other.until(&small, |seen| seen["progress"]["waiting"].as_u64() < Some(20)).await;
    let missed = other.until_runs(&schedule, |runs| !runs.is_empty()).await;
    first.signal(Signal::SIGCONT);

    for batch in [&halfway, &small] {
        operator.until_ended(batch).await;
    }
    let sides = operator.both_sides(&fleet, &halfway).await;
    sides.all_came_through(SERVERS);
    assert!(sides.most_at_once() <= AT_ONCE, "{} at once", sides.most_at_once());
    operator.both_sides(&fleet, &small).await.all_came_through(20);

    halfway = operator
        .orders(&fleet, 0..SERVERS, json!({"max_parallel": AT_ONCE, "reboot": "always"}))
        .await;
    operator.until(&halfway, under_way).await;
    second.child.kill().unwrap();
    second.child.wait().unwrap();
    operator.until_ended(&halfway).await;
    let sides = operator.both_sides(&fleet, &halfway).await;
    sides.all_came_through(SERVERS);
    assert!(sides.most_at_once() <= AT_ONCE, "{} at once", sides.most_at_once());

    // The batches before the runs: an instant may come between the two looks.
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
    assert_eq!(instants.len(), runs.len(), "an instant started twice: {runs:?}");
    let started: BTreeSet<_> = runs.iter().filter_map(|run| run["batch_id"].as_str()).collect();
    assert!(started.is_superset(&by_calendar), "{by_calendar:?} of {started:?}");
    let violations = fleet.ledger().violations();
    assert!(violations.is_empty(), "{violations:?}");
    fleet.stop().await;
    drop(first);
    database.remove().await;
}
