//! A service that is killed again and again while it sends events to three receivers: a slow one, one
//! that fails at first for every other event, and one that does not exist.
//!
//! `FLEETMEND_TEST_EVENTS` and `FLEETMEND_TEST_KILLS` set the size of the trial.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::operator::{Operator, POLL_INTERVAL, until};
use crate::support::{Dir, Running, first_key};

/// The number of schedules that are edited; each is the subject of its events.
const SUBJECTS: usize = 100;
const WRITERS: usize = 8;

/// What a receiver accepted, in order: the subject and the sequence number.
#[derive(Default)]
struct Heard {
    accepted: Vec<(String, u64)>,
    refused: BTreeSet<u64>,
    requests: usize,
}

impl Heard {
    fn distinct(&self) -> BTreeSet<u64> {
        self.accepted.iter().map(|(_, sequence)| *sequence).collect()
    }

    /// Whether the events about each subject arrived in order, except for repetitions.
    fn is_in_order(&self) -> bool {
        let (mut last, mut seen) = (BTreeMap::new(), BTreeSet::new());
        let mut first_times = self.accepted.iter().filter(|(_, sequence)| seen.insert(*sequence));
        first_times.all(|(subject, sequence)| {
            last.insert(subject, *sequence).is_none_or(|before| before < *sequence)
        })
    }
}

#[derive(Clone)]
struct Receiver {
    heard: Arc<Mutex<Heard>>,
    delay: Duration,
    /// Whether the first attempt of every other event fails.
    fails: bool,
}

impl Receiver {
    /// Starts a receiver. Returns it with its URL.
    async fn start(delay: Duration, fails: bool) -> (Receiver, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let receiver = Receiver { heard: Arc::default(), delay, fails };
        let router = Router::new().fallback(receive).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (receiver, url)
    }
}

async fn receive(State(receiver): State<Receiver>, body: Bytes) -> StatusCode {
    let event: Value = serde_json::from_slice(&body).unwrap();
    let sequence = event["data"]["sequence"].as_u64().unwrap();
    let subject = event["data"]["subject"]["id"].as_str().unwrap().to_owned();
    tokio::time::sleep(receiver.delay).await;
    let mut heard = receiver.heard.lock().unwrap();
    heard.requests += 1;
    if receiver.fails && sequence % 2 == 1 && heard.refused.insert(sequence) {
        return StatusCode::INTERNAL_SERVER_ERROR;
    }
    heard.accepted.push((subject, sequence));
    StatusCode::OK
}

fn size(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}

/// Edits schedules until `count` edits were acknowledged, however often the service dies.
async fn edit_schedules(
    url: String,
    key: String,
    schedules: Arc<Vec<String>>,
    next: Arc<AtomicUsize>,
    count: usize,
) {
    let http = reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap();
    loop {
        let nth = next.fetch_add(1, Ordering::Relaxed);
        if nth >= count {
            return;
        }
        let schedule = &schedules[nth % schedules.len()];
        let body = json!({"name": format!("{schedule} {nth}"), "cron": "0 0 1 1 *", "targets": {"all": true}});
        let url = format!("{url}/v1/schedules/{schedule}");
        let mut done = false;
        while !done {
            let sent = http.put(&url).bearer_auth(&key).json(&body).send().await;
            done = sent.is_ok_and(|response| response.status().is_success());
            if !done {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
    }
}

/// The sequence numbers of all edits in the event log.
async fn edits(operator: &Operator) -> BTreeSet<u64> {
    let (mut all, mut after) = (BTreeSet::new(), 0);
    loop {
        let path = format!("/v1/events?type=schedule.updated&limit=500&after={after}");
        let page = operator.get(&path).await;
        let rows = page["data"].as_array().unwrap();
        all.extend(rows.iter().map(|row| row["sequence"].as_u64().unwrap()));
        match rows.last() {
            Some(last) => after = last["sequence"].as_u64().unwrap(),
            None => return all,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_event_is_lost_when_the_service_is_killed() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (events, kills) = (size("FLEETMEND_TEST_EVENTS", 400), size("FLEETMEND_TEST_KILLS", 2));
    let dir = Dir::new();
    let key = first_key(&dir.data());
    let args =
        ["--webhook-allow-local", "--requests-per-second", "100000", "--requests-burst", "100000"];
    let mut service = Running::start(&dir.data(), &args);
    let operator = Operator::new(&service.address, &key);
    let mut schedules = Vec::new();
    for n in 0..SUBJECTS {
        let body = json!({"name": format!("s{n}"), "cron": "0 0 1 1 *", "targets": {"all": true}});
        let created = operator.post("/v1/schedules", body).await;
        schedules.push(created["id"].as_str().unwrap().to_owned());
    }
    let (slow, slow_url) = Receiver::start(Duration::from_millis(40), false).await;
    let (failing, failing_url) = Receiver::start(Duration::ZERO, true).await;
    for (name, url) in
        [("slow", slow_url.as_str()), ("failing", &failing_url), ("dead", "http://127.0.0.1:9/")]
    {
        let body = json!({"name": name, "url": url, "types": ["schedule.updated"]});
        operator.post("/v1/webhooks", body).await;
    }

    let (schedules, next) = (Arc::new(schedules), Arc::new(AtomicUsize::new(0)));
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let (schedules, next) = (schedules.clone(), next.clone());
            tokio::spawn(edit_schedules(
                service.address.clone(),
                key.clone(),
                schedules,
                next,
                events,
            ))
        })
        .collect();
    let received = || slow.heard.lock().unwrap().distinct().len();
    for kill in 1..=kills {
        // Not before the process that leads now has sent something.
        let wanted = (events * kill / (kills + 1)).max(received() + 1).min(events);
        until(async || json!(received()), |count| count.as_u64() >= Some(wanted as u64)).await;
        service.signal(Signal::SIGKILL);
        service.child.wait().unwrap();
        let address = service.address.strip_prefix("http://").unwrap().to_owned();
        service = Running::at(&address, &dir.data(), &args);
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let expected = edits(&operator).await;
    assert!(expected.len() >= events, "{}", expected.len());
    for (name, receiver) in [("slow", &slow), ("failing", &failing)] {
        let missing = || expected.difference(&receiver.heard.lock().unwrap().distinct()).count();
        until(async || json!({"missing": missing(), "at": name}), |seen| seen["missing"] == 0)
            .await;
        let heard = receiver.heard.lock().unwrap();
        assert!(heard.is_in_order(), "{name}");
        assert_eq!(heard.distinct(), expected, "{name}");
        // Repeated: at most what was sent at each kill and not stored yet, new and tried again.
        let repeated = heard.accepted.len() - expected.len();
        assert!(repeated <= kills * 128, "{name}: {repeated}");
        write_figures(name, &heard, repeated);
    }
    // The dead one has kept its events.
    let hooks = operator.get("/v1/webhooks").await;
    let dead =
        hooks["data"].as_array().unwrap().iter().find(|hook| hook["name"] == "dead").unwrap();
    assert!(dead["failing_since"].is_string() && dead["enabled"] == true, "{dead}");
}

/// Writes the figures of the trial to the file that `FLEETMEND_TEST_FIGURES` names.
fn write_figures(name: &str, heard: &Heard, repeated: usize) {
    let Some(path) = std::env::var_os("FLEETMEND_TEST_FIGURES") else { return };
    let refused = heard.refused.len();
    let line =
        format!("{name}: {} requests, {refused} refused, {repeated} repeated\n", heard.requests);
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    std::fs::write(path, before + &line).unwrap();
}
