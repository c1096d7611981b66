//! Benchmark 2: the service's cost per patched server, from the order to the last result.

use std::time::Duration;

use serde_json::{Value, json};
use swarm::behavior::Behavior;
use swarm::{Config, Swarm};

use crate::installation::{Engine, Installation, Service};
use crate::table::{Line, Table, Target, print_figure};
use crate::{BenchArgs, clock};

const SIZES: [u64; 2] = [1_000, 10_000];

pub(crate) async fn measure_patching(engine: Engine, args: &BenchArgs, table: &mut Table) {
    let (mut cpu, mut seconds, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    for size in SIZES.into_iter().filter(|size| (args.smallest..=args.largest).contains(size)) {
        let installation = Installation::new(engine, &format!("patch{size}")).await;
        let empty = installation.bytes().await;
        let service = installation.serve();
        let operator = Operator::new(&installation, &service);
        let token = operator.post("/v1/enrollment-tokens", json!({"name": "fleet"})).await;
        let token = token["token"].as_str().unwrap().parse().unwrap();
        let behavior = Behavior { seed: 7, fail: 0.0, crash: 0.0, offline: 0.0, speed: 1_000.0 };
        let fleet = Swarm::start(Config { behavior, ..Config::new(&operator.url, token, size) });
        let fleet = fleet.unwrap();
        fleet.wait_until_enrolled().await.unwrap();
        let quiet = |seen: &Value| {
            seen["servers"]["total"] == size && seen["servers"]["with_updates"].as_u64() > Some(0)
        };
        operator.until("/v1/summary", quiet).await;
        wait_until_quiet(&fleet).await;
        // PostgreSQL does this on its own within a minute, and a fleet is not patched seconds after
        // it enrolled.
        installation.analyze().await;
        let ids: Vec<_> = (0..fleet.len()).map(|agent| fleet.server_id(agent).unwrap()).collect();
        let order = json!({"server_ids": ids, "packages": [], "reboot": "if_required",
            "max_parallel": size, "security_only": false, "canary": 0});
        let (start, before, counts) = (clock(), service.cpu_seconds(), fleet.counts());
        let batch = operator.post("/v1/batches", order).await;
        let path = format!("/v1/batches/{}", batch["id"].as_str().unwrap());
        let seen = operator.until(&path, |seen| !seen["finished_at"].is_null()).await;
        let done = ["succeeded", "no_change"].iter();
        let done: u64 = done.map(|state| seen["progress"][state].as_u64().unwrap()).sum();
        assert_eq!(done, size, "{seen}");
        assert!(fleet.ledger().orders_with_effects() > 0 && fleet.ledger().violations().is_empty());
        let (took, spent) = (start.elapsed().as_secs_f64(), service.cpu_seconds() - before);
        let now = fleet.counts();
        for (what, requests) in [
            ("  syncs per server", now.syncs - counts.syncs),
            ("  package sets uploaded per server", now.listings - counts.listings),
            ("  log chunks uploaded per server", now.logs - counts.logs),
        ] {
            print_figure(what, engine, size, requests as f64 / size as f64, "");
        }
        print_figure(
            "service CPU per patched server",
            engine,
            size,
            spent * 1e3 / size as f64,
            "ms",
        );
        print_figure("  the whole batch, including its agents", engine, size, took, "s");
        seconds.push((size, took));
        cpu.push((size, spent * 1e3 / size as f64));
        drop(fleet);
        drop(service);
        bytes.push((size, (installation.bytes().await - empty) as f64 / size as f64 / 1024.0));
        installation.remove().await;
    }
    let engine = engine.name();
    let mut put = |row, what, unit, figures: &[(u64, f64)], target| {
        table.add_line(&Line { row, what, engine, unit, figures, target });
    };
    put(2, "service CPU per patched server", "ms", &cpu, Target::Most(3.0));
    put(2, "  the whole batch, including its agents", "s", &seconds, Target::None);
    put(9, "database bytes per patched server, with logs", "KiB", &bytes, Target::None);
}

/// Waits until every agent's inventory has arrived and the syncs are held.
async fn wait_until_quiet(fleet: &Swarm) {
    let mut last = fleet.counts().syncs;
    for _ in 0..120 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let syncs = fleet.counts().syncs;
        if syncs - last <= fleet.len() as u64 / 20 {
            return;
        }
        last = syncs;
    }
    panic!("the agents never became idle");
}

struct Operator {
    http: reqwest::Client,
    key: String,
    url: String,
}

impl Operator {
    fn new(installation: &Installation, service: &Service) -> Operator {
        let (key, url) = (installation.key.clone(), format!("http://{}", service.address));
        Operator { http: reqwest::Client::new(), key, url }
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let response = self.http.post(format!("{}{path}", self.url)).bearer_auth(&self.key);
        let response = response.json(&body).send().await.unwrap();
        assert!(response.status().is_success(), "{}", response.text().await.unwrap());
        response.json().await.unwrap()
    }

    async fn until(&self, path: &str, enough: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..1_200 {
            let response = self.http.get(format!("{}{path}", self.url)).bearer_auth(&self.key);
            let seen: Value = response.send().await.unwrap().json().await.unwrap();
            if enough(&seen) {
                return seen;
            }
            // The polling interval of `--watch`.
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        panic!("{path} never reached the expected state");
    }
}
