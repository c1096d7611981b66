//! A fleet at work, and a service that is killed under it.

use std::time::Duration;

use serde_json::{Value, json};
use swarm::behave::Nature;
use swarm::{Config, Swarm};

use crate::support::{Dir, Running, first_key};

const SERVERS: u64 = 120;
const LOOKS_MAX: u32 = 1_200;

/// An operator with a key.
struct Operator {
    http: reqwest::Client,
    key: String,
    url: String,
}

impl Operator {
    async fn post(&self, path: &str, body: Value) -> Value {
        let answer = self.http.post(format!("{}{path}", self.url)).bearer_auth(&self.key);
        let answer = answer.json(&body).send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
        answer.json().await.unwrap()
    }

    async fn get(&self, path: &str) -> Value {
        let answer = self.http.get(format!("{}{path}", self.url)).bearer_auth(&self.key);
        answer.send().await.unwrap().json().await.unwrap()
    }

    /// Looks again and again until `enough`, and answers with what it then saw.
    async fn until(&self, path: &str, enough: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..LOOKS_MAX {
            let seen = self.get(path).await;
            if enough(&seen) {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("it never came: {}", self.get(path).await);
    }
}

/// Agents that fail and crash at times, over the real protocol; the service dies without a word in the
/// middle of a batch and is started again.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_ends_as_if_the_service_had_not_been_killed_in_the_middle() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = Dir::new();
    let key = first_key(&dir.data());
    let mut service = Running::start(&dir.data(), &[]);
    let operator = Operator { http: reqwest::Client::new(), key, url: service.address.clone() };
    let token = operator.post("/v1/enrollment-tokens", json!({"name": "fleet"})).await;
    let token = token["token"].as_str().unwrap().parse().unwrap();
    let nature = Nature { seed: 7, fail: 0.05, crash: 0.05, offline: 0.0, speed: 100.0 };
    let config = Config { nature, ..Config::new(&operator.url, token, SERVERS) };
    let fleet = Swarm::start(config).unwrap();
    fleet.wait_until_enrolled().await.unwrap();

    let servers = operator.get("/v1/servers?limit=500").await;
    let ids: Vec<_> = servers["data"].as_array().unwrap().iter().map(|row| &row["id"]).collect();
    let order = json!({"server_ids": ids, "packages": [], "reboot": "if_required",
        "max_parallel": 20, "security_only": false});
    let batch = operator.post("/v1/batches", order).await;
    let path = format!("/v1/batches/{}", batch["id"].as_str().unwrap());
    let under_way = |seen: &Value| seen["progress"]["percent"].as_u64() >= Some(20);
    let seen = operator.until(&path, under_way).await;
    assert_eq!(seen["state"], "running", "it was over before it could be killed");

    service.child.kill().unwrap();
    service.child.wait().unwrap();
    let listen = service.address.strip_prefix("http://").unwrap();
    let _again = Running::at(listen, &dir.data(), &[]);
    let seen = operator.until(&path, |seen| !seen["finished_at"].is_null()).await;

    let count = |state: &str| seen["progress"][state].as_u64().unwrap();
    assert_eq!(count("total"), SERVERS);
    assert_eq!(count("succeeded") + count("no_change") + count("failed"), SERVERS, "{seen}");
    assert_eq!(count("timed_out"), 0, "{seen}");
    assert!(count("succeeded") > 0, "{seen}");
    let violations = fleet.ledger().violations();
    assert!(violations.is_empty(), "{violations:?}");
    assert!(fleet.ledger().effects() > 0);
    fleet.stop().await;
}
