//! Benchmarks 3, 4, 6 and 9: syncs, inventories, list requests and stored bytes, on one filled
//! database for each fleet size.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::policy::{Match, Rule};
use serde_json::Value;

use crate::client::{Client, get};
use crate::installation::{Engine, Installation, Service};
use crate::syncs::Agents;
use crate::table::{Line, Table, Target, p99, print_figure};
use crate::{BenchArgs, clock, fleet, now};

/// Minimum number of times a request is sent. With so few, the slowest three are mostly luck, so
/// fast requests are sent more often.
const REQUESTS: usize = 300;
const REQUESTS_MAX: usize = 1_000;
const MEASURE_TIME: Duration = Duration::from_secs(3);
/// New inventories per second while lists are read.
const INVENTORIES_PER_SECOND: u64 = 100;
/// The fleet size at which database bytes are measured.
const BYTES_MEASURED_AT: u64 = 10_000;

/// The requests and their targets: idle, and while inventories arrive.
const LIST_REQUESTS: [(&str, &str, Target, Target); 9] = [
    ("GET /v1/servers", "/v1/servers", Target::Flat(10.0, 0.1), Target::Most(25.0)),
    ("GET /v1/patches", "/v1/patches", Target::Flat(10.0, 0.1), Target::Most(25.0)),
    (
        "GET /v1/servers?status=online",
        "/v1/servers?status=online",
        Target::Most(10.0),
        Target::None,
    ),
    (
        "GET /v1/servers?status=offline",
        "/v1/servers?status=offline",
        Target::Most(10.0),
        Target::None,
    ),
    (
        "GET /v1/servers?environment=staging",
        "/v1/servers?environment=staging",
        Target::Most(10.0),
        Target::None,
    ),
    ("GET /v1/servers?os=debian", "/v1/servers?os=debian", Target::Most(10.0), Target::None),
    ("GET /v1/compliance", "/v1/compliance", Target::Most(20.0), Target::None),
    ("GET /v1/summary", "/v1/summary", Target::None, Target::None),
    ("GET /v1/patches/{name}", "/v1/patches/{name}", Target::None, Target::None),
];

/// Measurements by name, each for the measured fleet sizes.
pub(crate) struct Figures {
    engine: Engine,
    /// Suffix for the names of all measurements.
    suffix: &'static str,
    by_name: BTreeMap<&'static str, Vec<(u64, f64)>>,
}

impl Figures {
    pub(crate) fn new(engine: Engine, label: &'static str) -> Figures {
        Figures { engine, suffix: label, by_name: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, name: &'static str, size: u64, (figure, unit): (f64, &str)) {
        print_figure(&format!("{name}{}", self.suffix), self.engine, size, figure, unit);
        self.by_name.entry(name).or_default().push((size, figure));
    }

    pub(crate) fn line(
        &self,
        table: &mut Table,
        row: u32,
        (name, unit, target): (&str, &str, Target),
    ) {
        if let Some(figures) = self.by_name.get(name) {
            let what = &format!("{name}{}", self.suffix);
            table.add_line(&Line { row, what, engine: self.engine.name(), unit, figures, target });
        }
    }
}

pub(crate) async fn measure_lists(engine: Engine, args: &BenchArgs, table: &mut Table) {
    let mut figures = Figures::new(engine, "");
    let mut loaded = Figures::new(engine, ", 100 inventories/s");
    for size in args.sizes().filter(|size| args.any(&[3, 4, 6]) || *size == BYTES_MEASURED_AT) {
        let installation = Installation::new(engine, &size.to_string()).await;
        let empty = installation.bytes().await;
        fleet::fill(&installation, size).await;
        if args.has(6) {
            add_policy(&installation).await;
        }
        installation.analyze().await;
        let service = installation.serve();
        wait_until_counted(&installation, &service, size).await;
        service.wait_until_idle().await;
        if args.has(9) && size == BYTES_MEASURED_AT {
            let bytes = (installation.bytes().await - empty) as f64 / size as f64;
            figures.add(
                "database bytes per server with inventories",
                size,
                (bytes / 1024.0, "KiB"),
            );
        }
        let mut agents = Agents::new(&installation);
        agents.sync_once(&service).await;
        if args.has(6) {
            fleet::mark_all_seen(&installation, size).await;
            for (what, path, ..) in LIST_REQUESTS {
                figures.add(
                    what,
                    size,
                    (p99_of_template(&installation, &service, path).await, "ms"),
                );
            }
        }
        if args.has(3) {
            let pace = agents.measure_syncs(&service).await;
            figures.add(
                "syncs without changes, including the client",
                size,
                (pace.per_second, "/s"),
            );
            figures.add("  p99", size, (pace.p99_ms, "ms"));
            figures.add("  service CPU per sync", size, (pace.cpu_ms, "ms"));
        }
        let service = if args.has(4) {
            let (pace, service) = agents.measure_inventories(&installation, service).await;
            figures.add(
                "new inventories of 600 packages, then kill -9",
                size,
                (pace.per_second, "/s"),
            );
            figures.add("  service CPU per inventory", size, (pace.cpu_ms, "ms"));
            service
        } else {
            service
        };
        if args.has(6) {
            fleet::mark_all_seen(&installation, size).await;
            service.wait_until_idle().await;
            let read = async {
                for (what, path, _, target) in LIST_REQUESTS {
                    if !matches!(target, Target::None) {
                        loaded.add(
                            what,
                            size,
                            (p99_of_template(&installation, &service, path).await, "ms"),
                        );
                    }
                }
            };
            let ((), sent) =
                agents.send_inventories_during(&service, INVENTORIES_PER_SECOND, read).await;
            assert!(sent > 0, "no inventory arrived while lists were read");
        }
        drop(service);
        installation.remove().await;
    }
    let line = |table: &mut Table, row, what| figures.line(table, row, what);
    line(table, 3, ("syncs without changes, including the client", "/s", Target::Least(20_000.0)));
    line(table, 3, ("  p99", "ms", Target::Most(10.0)));
    line(table, 3, ("  service CPU per sync", "ms", Target::Most(0.1)));
    line(table, 4, ("new inventories of 600 packages, then kill -9", "/s", Target::Least(1_000.0)));
    line(table, 4, ("  service CPU per inventory", "ms", Target::Most(1.5)));
    for (what, _, target, _) in LIST_REQUESTS {
        line(table, 6, (what, "ms", target));
    }
    for (what, _, _, target) in LIST_REQUESTS {
        loaded.line(table, 6, (what, "ms", target));
    }
    line(table, 9, ("database bytes per server with inventories", "KiB", Target::Most(8.0)));
}

/// Adds a policy for all servers; the service judges them before it is idle.
async fn add_policy(installation: &Installation) {
    let now = now();
    let policy = store::policies::Policy {
        id: vocab::PolicyId::new(now, 1),
        org_id: installation.org,
        name: "Security updates within 30 days".to_owned(),
        description: String::new(),
        targets: vocab::Selector::All,
        rules: vec![Rule { matches: Match::Security, within_days: 30 }],
        created_at: now,
        created_by: "bench".to_owned(),
        updated_at: now,
        generation: 1,
    };
    let db = installation.db().await;
    let mut tx = db.begin().await.unwrap();
    store::policies::create(&mut tx, &policy).await.unwrap();
    tx.commit().await.unwrap();
    db.close().await;
}

/// Waits until the patches of the whole fleet are counted.
pub(crate) async fn wait_until_counted(installation: &Installation, service: &Service, size: u64) {
    let mut client = Client::connect(&service.address).await.unwrap();
    let request = get(&installation.key, "/v1/summary");
    for _ in 0..1_200 {
        let seen: Value = serde_json::from_slice(&client.request(&request).await.unwrap()).unwrap();
        assert_eq!(seen["servers"]["total"], size);
        if seen["servers"]["with_updates"].as_u64() > Some(0) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the patches of {size} servers were never counted");
}

/// The p99 latency of a request, repeated on one connection, in milliseconds.
async fn p99_of_template(installation: &Installation, service: &Service, path: &str) -> f64 {
    let mut client = Client::connect(&service.address).await.unwrap();
    let path = match path {
        "/v1/patches/{name}" => {
            format!("/v1/patches/{}", most_common_patch(installation, &mut client).await)
        }
        path => path.to_owned(),
    };
    p99_of(installation, service, &path).await
}

/// The p99 latency of an API request with a complete path.
pub(crate) async fn p99_of(installation: &Installation, service: &Service, path: &str) -> f64 {
    p99_of_request(service, path, &get(&installation.key, path)).await
}

/// The p99 latency of a prepared request.
pub(crate) async fn p99_of_request(service: &Service, path: &str, request: &[u8]) -> f64 {
    let mut client = Client::connect(&service.address).await.unwrap();
    let mut millis = Vec::with_capacity(REQUESTS_MAX);
    let first = clock();
    while millis.len() < REQUESTS || (millis.len() < REQUESTS_MAX && first.elapsed() < MEASURE_TIME)
    {
        millis.push(time_request(&mut client, path, request).await);
    }
    p99(millis)
}

/// How long one request takes, in milliseconds.
pub(crate) async fn time_request(client: &mut Client, path: &str, request: &[u8]) -> f64 {
    let start = clock();
    let body = client.request(request).await.unwrap();
    let millis = start.elapsed().as_secs_f64() * 1e3;
    assert!(body.len() > 20, "{path} returned nothing");
    millis
}

pub(crate) async fn most_common_patch(installation: &Installation, client: &mut Client) -> String {
    let body = client.request(&get(&installation.key, "/v1/patches?limit=500")).await.unwrap();
    let seen: Value = serde_json::from_slice(&body).unwrap();
    let rows = seen["data"].as_array().unwrap().iter();
    let largest = rows.max_by_key(|row| row["affected_servers"].as_u64()).unwrap();
    largest["package_name"].as_str().unwrap().to_owned()
}
