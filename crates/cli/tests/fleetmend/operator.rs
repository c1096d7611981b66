//! An API client for tests, which compares the API's view of a batch with what the hosts recorded.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use swarm::{Config, Swarm, WorkSpan};
use vocab::TaskId;

pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Ten minutes. The test checks that the state is reached, not how fast the machine is.
const POLLS_MAX: u32 = 3_000;
/// Maximum page size of the API.
const PAGE: usize = 500;

/// Polls until `enough` returns true.
pub(crate) async fn until(look: impl AsyncFn() -> Value, enough: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..POLLS_MAX {
        let seen = look().await;
        if enough(&seen) {
            return seen;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    panic!("the expected state was never reached: {}", look().await);
}

pub(crate) struct Operator {
    http: reqwest::Client,
    key: String,
    pub(crate) url: String,
    next_key: AtomicU32,
}

/// Two clients may share an API key, but must not share idempotency keys.
static OPERATORS: AtomicU32 = AtomicU32::new(0);

impl Operator {
    pub(crate) fn new(url: &str, key: &str) -> Operator {
        let next_key = AtomicU32::new(OPERATORS.fetch_add(1_000, Ordering::Relaxed));
        Operator {
            // A connection to a service that was restarted must not be used again.
            http: reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap(),
            key: key.to_owned(),
            url: url.to_owned(),
            next_key,
        }
    }

    /// Sends a POST request, retrying with the same idempotency key while the service is
    /// unavailable.
    pub(crate) async fn post(&self, path: &str, body: Value) -> Value {
        let number = self.next_key.fetch_add(1, Ordering::Relaxed);
        for _ in 0..POLLS_MAX {
            let order = self.http.post(format!("{}{path}", self.url)).bearer_auth(&self.key);
            let order = order.header("idempotency-key", format!("order-{number}")).json(&body);
            match order.send().await {
                Ok(answer) if answer.status().is_success() => return answer.json().await.unwrap(),
                Ok(answer) if answer.status() == 503 => tokio::time::sleep(POLL_INTERVAL).await,
                Ok(answer) => {
                    let text = answer.text().await.unwrap();
                    // An earlier attempt was answered with 503 and is still being processed.
                    assert!(text.contains("idempotency_key_in_progress"), "{text}");
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                // The response was lost, for example while the service stops.
                Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
        panic!("{path}: the service stayed unavailable");
    }

    /// Sends a GET request, retrying while the service restarts.
    pub(crate) async fn get(&self, path: &str) -> Value {
        let ask = || self.http.get(format!("{}{path}", self.url)).bearer_auth(&self.key).send();
        for _ in 0..POLLS_MAX {
            match ask().await {
                Ok(answer) if answer.status().is_success() => return answer.json().await.unwrap(),
                Ok(answer) if answer.status() != 503 => panic!("{}", answer.text().await.unwrap()),
                _ => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
        panic!("the service does not respond: {:?}", ask().await);
    }

    /// Reads a whole list, page by page.
    pub(crate) async fn all(&self, path: &str) -> Vec<Value> {
        let mut rows = Vec::new();
        loop {
            let page = self.get(&format!("{path}?limit={PAGE}&offset={}", rows.len())).await;
            rows.extend(page["data"].as_array().unwrap().iter().cloned());
            if rows.len() as u64 >= page["meta"]["total"].as_u64().unwrap() {
                return rows;
            }
        }
    }

    /// Starts agents and enrolls them with a new token; `change` adjusts their configuration.
    pub(crate) async fn fleet(&self, servers: u64, change: impl FnOnce(Config) -> Config) -> Swarm {
        let token = self.post("/v1/enrollment-tokens", json!({"name": "fleet"})).await;
        let token = token["token"].as_str().unwrap().parse().unwrap();
        let config = Config::new(&self.url, token, servers);
        let config = Config { reconnect_max: Duration::from_secs(2), ..config };
        let fleet = Swarm::start(change(config)).unwrap();
        fleet.wait_until_enrolled().await.unwrap();
        fleet
    }

    /// Starts a batch with all updates for these agents' servers. Returns the batch ID.
    pub(crate) async fn orders(
        &self,
        fleet: &Swarm,
        agents: impl IntoIterator<Item = usize>,
        pace: Value,
    ) -> String {
        let servers: Vec<_> = agents.into_iter().map(|agent| fleet.server_id(agent)).collect();
        let mut order = json!({"server_ids": servers, "packages": [], "reboot": "if_required"});
        order.as_object_mut().unwrap().extend(pace.as_object().unwrap().clone());
        self.post("/v1/batches", order).await["id"].as_str().unwrap().to_owned()
    }

    /// A batch without its tasks.
    pub(crate) async fn batch(&self, id: &str) -> Value {
        let list = self.get("/v1/batches?limit=100").await;
        let found = list["data"].as_array().unwrap().iter().find(|batch| batch["id"] == id);
        found.unwrap().clone()
    }

    /// Polls a batch until `enough` returns true, and returns it.
    pub(crate) async fn until(&self, id: &str, enough: impl Fn(&Value) -> bool) -> Value {
        until(async || self.batch(id).await, enough).await
    }

    /// Polls a path until `enough` returns true.
    pub(crate) async fn until_at(&self, path: &str, enough: impl Fn(&Value) -> bool) -> Value {
        until(async || self.get(path).await, enough).await
    }

    pub(crate) async fn until_ended(&self, id: &str) -> Value {
        self.until(id, |seen| !seen["finished_at"].is_null()).await
    }

    /// Polls a schedule's runs until `enough` returns true.
    pub(crate) async fn until_runs(
        &self,
        schedule: &str,
        enough: impl Fn(&[Value]) -> bool,
    ) -> Vec<Value> {
        let path = format!("/v1/schedules/{schedule}/runs");
        let runs = until(
            async || Value::Array(self.all(&path).await),
            |runs| runs.as_array().is_some_and(|runs| enough(runs)),
        );
        runs.await.as_array().cloned().unwrap_or_default()
    }

    /// A batch as the API and as the hosts see it.
    pub(crate) async fn batch_views(&self, fleet: &Swarm, id: &str) -> BatchViews {
        let tasks = self.all(&format!("/v1/batches/{id}/tasks")).await;
        let ids: BTreeSet<TaskId> =
            tasks.iter().map(|task| task["id"].as_str().unwrap().parse().unwrap()).collect();
        let mut spans = fleet.ledger().spans();
        spans.retain(|span| ids.contains(&span.order));
        BatchViews { tasks, spans }
    }
}

/// The tasks of a batch from the API, and what its hosts did, earliest first.
pub(crate) struct BatchViews {
    pub(crate) tasks: Vec<Value>,
    pub(crate) spans: Vec<WorkSpan>,
}

impl BatchViews {
    pub(crate) fn count(&self, state: &str) -> usize {
        self.tasks.iter().filter(|task| task["state"] == state).count()
    }

    /// Start times according to the API, sorted.
    pub(crate) fn started(&self) -> Vec<Timestamp> {
        let at = |task: &Value| Some(task["started_at"].as_str()?.parse().unwrap());
        let mut started: Vec<_> = self.tasks.iter().filter_map(at).collect();
        started.sort_unstable();
        started
    }

    /// Maximum number of hosts that worked at the same time.
    pub(crate) fn most_at_once(&self) -> usize {
        let mut moments: Vec<(Timestamp, isize)> = Vec::new();
        for span in &self.spans {
            moments.push((span.began, 1));
            moments.extend(span.ended.map(|ended| (ended, -1)));
        }
        moments.sort_unstable();
        let (mut now, mut most) = (0, 0);
        for (_, change) in moments {
            now += change;
            most = most.max(now);
        }
        most.unsigned_abs()
    }

    /// Asserts that starts are at least this far apart, and that no host began before its start
    /// time. The delivery time of an order does not count.
    pub(crate) fn assert_apart_by(&self, least: SignedDuration) {
        let started = self.started();
        for pair in started.windows(2) {
            assert!(pair[1].duration_since(pair[0]) >= least, "{started:?}");
        }
        for (span, started) in self.spans.iter().zip(&started) {
            assert!(span.began >= *started, "{span:?} began before {started}");
        }
    }

    /// Asserts that every task ran on its host exactly once and ended, according to both sides.
    pub(crate) fn assert_all_finished(&self, total: usize) {
        assert_eq!(self.tasks.len(), total);
        let ended = ["succeeded", "no_change", "failed", "skipped"];
        let ended: usize = ended.iter().map(|state| self.count(state)).sum();
        assert_eq!(ended, total, "timed out: {}", self.count("timed_out"));
        assert_eq!(self.spans.len(), total);
        assert!(self.spans.iter().all(|span| span.ended.is_some()));
    }
}
