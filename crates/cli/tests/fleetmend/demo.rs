//! `fleetmend demo`: sample data for every feature, and the same data for the same seed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::operator::{Operator, POLL_INTERVAL};
use crate::support::{Dir, first_key, fleetmend};

/// The simulated servers of these demos, and those in unusual states.
const SERVERS: usize = 250 + 3;

/// A running demo, killed on drop.
struct Demo {
    child: Child,
    stdout: BufReader<ChildStdout>,
    operator: Operator,
}

fn args<'a>(data: &'a Path, seed: &'a str) -> Vec<&'a str> {
    let data = data.to_str().unwrap();
    vec![
        "demo",
        "--servers",
        "250",
        "--seed",
        seed,
        "--speed",
        "200",
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        data,
    ]
}

impl Demo {
    fn start(data: &Path, seed: &str) -> Demo {
        let mut child = fleetmend(&args(data, seed))
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut words = BufReader::new(child.stdout.take().unwrap());
        let mut reported = |name: &str| loop {
            let mut line = String::new();
            assert_ne!(
                words.read_line(&mut line).unwrap(),
                0,
                "it ended before it printed `{name}`"
            );
            if line.trim_start().starts_with(name) {
                break line.trim_end().rsplit(' ').next().unwrap().to_owned();
            }
        };
        let url = reported("Fleetmend is running at");
        let key = reported("admin key");
        reported("Press Ctrl-C to stop");
        Demo { child, stdout: words, operator: Operator::new(&url, &key) }
    }

    /// Kills the demo, so that it cannot save anything.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn end(mut self) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), Signal::SIGINT).unwrap();
        assert!(self.child.wait().unwrap().success());
        let _ = &self.stdout;
    }

    /// Everything that the seed determines: the servers, and each past run by its scheduled time.
    async fn snapshot(&self) -> (Vec<String>, BTreeMap<String, String>) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut servers = Vec::new();
        for server in self.operator.all("/v1/servers").await {
            let [name, os, place] =
                [&server["hostname"], &server["os"]["name"], &server["environment"]];
            servers.push(format!("{} {} {}", text(name), text(os), text(place)));
        }
        let mut past = BTreeMap::new();
        for schedule in self.operator.all("/v1/schedules").await {
            let path = format!("/v1/schedules/{}/runs", text(&schedule["id"]));
            for run in self.operator.all(&path).await {
                let which = format!("{} {}", text(&schedule["name"]), text(&run["scheduled_for"]));
                past.insert(which, format!("{} {}", run["state"], run["progress"]));
            }
        }
        (servers, past)
    }
}

/// A schedule may fire while the test runs: compare the runs that both have, which are most of
/// them.
#[track_caller]
fn assert_same_history(
    one: &(Vec<String>, BTreeMap<String, String>),
    other: &(Vec<String>, BTreeMap<String, String>),
) {
    assert_eq!(one.0, other.0);
    let both: Vec<_> = one.1.iter().filter(|(which, _)| other.1.contains_key(*which)).collect();
    assert!(both.len() > 30, "{both:?}");
    for (which, run) in both {
        assert_eq!(run, &other.1[which], "{which}");
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn demo_has_sample_data_and_continues_after_restart() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = Dir::new();
    let demo = Demo::start(&dir.0.join("one"), "7");
    let operator = &demo.operator;
    let servers = operator.all("/v1/servers").await;
    assert_eq!(servers.len(), SERVERS);
    let distinct = |field: fn(&Value) -> &Value| -> BTreeSet<String> {
        servers.iter().map(|server| field(server).to_string()).collect()
    };
    assert_eq!(distinct(|server| &server["environment"]).len(), 4);
    assert!(distinct(|server| &server["os"]["name"]).len() >= 6);

    let batches = operator.all("/v1/batches").await;
    let mut states = BTreeMap::<String, u32>::new();
    for batch in &batches {
        *states.entry(batch["state"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    assert!(states["completed_with_errors"] > 5 && states.contains_key("succeeded"), "{states:?}");
    let live = batches.iter().find(|batch| batch["finished_at"].is_null()).unwrap();
    assert_eq!(live["options"]["canary"], 5, "{live}");
    let oldest = batches.iter().map(|batch| batch["created_at"].as_str().unwrap()).min().unwrap();
    let newest = batches.iter().map(|batch| batch["created_at"].as_str().unwrap()).max().unwrap();
    let time = |text: &str| text.parse::<jiff::Timestamp>().unwrap();
    assert!(time(newest).duration_since(time(oldest)).as_hours() > 19 * 24, "{oldest} to {newest}");
    let failed = batches.iter().find(|batch| batch["state"] == "completed_with_errors").unwrap();
    let tasks =
        operator.all(&format!("/v1/batches/{}/tasks", failed["id"].as_str().unwrap())).await;
    assert!(tasks.iter().any(|task| !task["result"]["failure_code"].is_null()), "{tasks:?}");
    let samples = [("/v1/schedules", 4), ("/v1/freezes", 1), ("/v1/patches", 20), ("/v1/cves", 20)];
    for (path, least) in samples {
        while operator.get(path).await["meta"]["total"].as_u64() < Some(least) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
    // The canaries succeed or halt the batch: either way it makes progress.
    let id = live["id"].as_str().unwrap();
    operator
        .until(id, |seen| {
            seen["progress"]["succeeded"].as_u64() > Some(0) || seen["state"] == "halted"
        })
        .await;
    let first = demo.snapshot().await;
    demo.end();

    let again = Demo::start(&dir.0.join("one"), "7");
    assert_same_history(&again.snapshot().await, &first);
    again.end();
    let other = fleetmend(&args(&dir.0.join("one"), "8")).output().unwrap();
    assert_eq!(other.status.code(), Some(1));
    let output = String::from_utf8(other.stderr).unwrap();
    assert!(output.contains("holds a demo with 250 servers and seed 7"), "{output}");
    let twin = Demo::start(&dir.0.join("two"), "7");
    assert_same_history(&twin.snapshot().await, &first);
    twin.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn demo_has_every_state_and_a_batch_after_the_last_one() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = Dir::new();
    let data = dir.0.join("demo");
    let demo = Demo::start(&data, "7");
    let operator = &demo.operator;
    while operator.get("/v1/cves").await["meta"]["total"].as_u64() < Some(100) {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let servers = operator.all("/v1/servers").await;
    let named = |name: &str| servers.iter().find(|server| server["hostname"] == name).unwrap();
    assert_eq!(named("test-new-01")["assessment"], "not_scanned");
    assert_eq!(named("test-fedora-01")["assessment"], "no_feed");
    assert!(named("test-cloned-01")["quarantine"].is_string());
    assert_eq!(named("test-fedora-01")["status"], "offline");
    assert!(servers.iter().any(|server| server["reboot_required"] == true));
    let schedules = operator.all("/v1/schedules").await;
    let has_next = |schedule: &&Value| !schedule["next_runs"].as_array().unwrap().is_empty();
    assert!(schedules.iter().filter(has_next).count() >= 3, "{schedules:?}");

    let cves = operator.all("/v1/cves").await;
    assert!(cves.iter().filter(|cve| cve["kev"] == true).count() >= 2, "{cves:?}");
    assert!(cves.iter().any(|cve| cve["epss"].as_f64() > Some(0.1)));
    let months: BTreeSet<&str> =
        cves.iter().filter_map(|cve| cve["published"].as_str()).map(|time| &time[..7]).collect();
    assert!(months.len() >= 5, "{months:?}");

    // The first batch waits for servers that are offline, so it has not ended. The next one ends on
    // its own.
    let known = operator.all("/v1/batches").await;
    let live = known.iter().find(|batch| batch["finished_at"].is_null()).unwrap();
    let id = live["id"].as_str().unwrap();
    operator.post(&format!("/v1/batches/{id}/cancel"), serde_json::json!({})).await;
    while operator.all("/v1/batches").await.len() < known.len() + 2 {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    demo.end();

    let url = format!("sqlite:{}", data.join("fleetmend.db").display());
    let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
    let (days, levels): (i64, i64) =
        sqlx::query_as("select count(*), count(distinct high) from daily_stats")
            .fetch_one(&pool)
            .await
            .unwrap();
    assert!(days >= 90 && levels > 20, "{days} days with {levels} different values");
    pool.close().await;
}

/// Twice in a row, because the second recovery starts from the same saved servers as the first.
#[tokio::test(flavor = "multi_thread")]
async fn killed_demo_starts_again_with_the_same_fleet() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = Dir::new();
    let data = dir.0.join("demo");
    let created = Demo::start(&data, "7");
    let servers = created.snapshot().await.0;
    let mut seen = last_seen(&created.operator).await;
    let busy = fleetmend(&args(&data, "7")).output().unwrap();
    let message = String::from_utf8(busy.stderr).unwrap();
    assert_eq!(busy.status.code(), Some(1), "{message}");
    assert!(message.contains("a demo is already running in"), "{message}");
    created.end();
    for _ in 0..3 {
        let demo = Demo::start(&data, "7");
        assert_eq!(demo.snapshot().await.0, servers);
        seen = wait_for_syncs(&demo.operator, &seen).await;
        for server in demo.operator.all("/v1/servers").await {
            let is_meant = server["hostname"] == "test-cloned-01";
            assert_eq!(server["quarantine"].is_null(), !is_meant, "{server}");
        }
        demo.kill();
    }
    Demo::start(&data, "7").end();
}

/// When each server was last seen, by id.
async fn last_seen(operator: &Operator) -> BTreeMap<String, String> {
    let servers = operator.all("/v1/servers").await;
    servers.iter().map(|row| (row["id"].to_string(), row["last_seen_at"].to_string())).collect()
}

/// Waits until most servers have synced; a few are offline.
async fn wait_for_syncs(
    operator: &Operator,
    before: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    loop {
        let now = last_seen(operator).await;
        if now.iter().filter(|(id, at)| before.get(*id) != Some(*at)).count() > 200 {
            return now;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The history is created before the demo listens.
#[tokio::test(flavor = "multi_thread")]
async fn demo_killed_while_it_is_created_starts_again() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = Dir::new();
    let data = dir.0.join("demo");
    let mut child = fleetmend(&args(&data, "7")).stdout(Stdio::piped()).spawn().unwrap();
    while !data.join("credentials.toml").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended early");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!data.join("demo.json").exists());
    let demo = Demo::start(&data, "7");
    assert_eq!(demo.operator.all("/v1/servers").await.len(), SERVERS);
    demo.end();
}

/// Only what a demo created is removed.
#[test]
fn demo_does_not_touch_another_installation() {
    let dir = Dir::new();
    first_key(&dir.data());
    let key = std::fs::read(dir.data().join("root.key")).unwrap();
    for prepare in
        [|_: &Path| {}, |data: &Path| std::fs::write(data.join("demo.lock"), "").unwrap()]
    {
        prepare(&dir.data());
        let refused = fleetmend(&args(&dir.data(), "7")).output().unwrap();
        let message = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{message}");
        assert!(message.contains("not hold a demo") || message.contains("not a demo"), "{message}");
        assert_eq!(std::fs::read(dir.data().join("root.key")).unwrap(), key);
    }
}
