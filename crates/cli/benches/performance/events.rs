//! Benchmark 12: a thousand events per second with a webhook that gets them all. Reads and syncs beside
//! it should not become slower.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use serde_json::json;
use tokio::net::TcpListener;

use crate::client::{Client, get};
use crate::installation::{Engine, Installation, Service};
use crate::lists::{Figures, wait_until_counted};
use crate::syncs::Agents;
use crate::table::{Table, Target, p99};
use crate::{clock, fleet};

const SIZE: u64 = 1_000;
/// Servers per edit; each edit is one event per server.
const PER_EDIT: u64 = 200;
const EDITS_PER_SECOND: u64 = 5;
/// Reads and syncs per second while events are written, and for how long.
const PROBES_PER_SECOND: u64 = 50;
const MEASURE_TIME: Duration = Duration::from_secs(30);
/// How long deliveries may take to catch up before the benchmark gives up.
const CATCH_UP_MAX: Duration = Duration::from_secs(120);

/// The p99 of reads and of syncs, in milliseconds.
struct Latencies {
    read: f64,
    sync: f64,
}

pub(crate) async fn measure_events(engine: Engine, table: &mut Table) {
    let installation = Installation::new(engine, "events").await;
    fleet::fill(&installation, SIZE).await;
    installation.analyze().await;
    let service = installation.serve_with(&["--webhook-allow-local"]);
    wait_until_counted(&installation, &service, SIZE).await;
    let mut agents = Agents::new(&installation);
    agents.sync_once(&service).await;
    let received = Arc::new(AtomicU64::new(0));
    create_webhook(&installation, &service, received.clone()).await;
    service.wait_until_idle().await;

    let mut figures = Figures::new(engine, "");
    let idle = probe(&installation, &service, &mut agents).await;
    let (start, cpu) = (clock(), service.cpu_seconds());
    let writer = tokio::spawn(write_events(service.address.clone(), installation.key.clone()));
    let busy = probe(&installation, &service, &mut agents).await;
    writer.abort();
    let written = u64::try_from(
        installation.number("select count(*) from events where kind = 'server.edited'").await,
    )
    .unwrap();
    let seconds = start.elapsed().as_secs_f64();
    let behind = written.saturating_sub(received.load(Ordering::Relaxed));
    let caught_up = clock();
    while received.load(Ordering::Relaxed) < written {
        assert!(caught_up.elapsed() < CATCH_UP_MAX, "deliveries do not keep up");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for (what, figure, unit) in [
        ("events", written as f64 / seconds, "/s"),
        ("  deliveries that wait at the end", behind as f64, ""),
        ("  service CPU per event", (service.cpu_seconds() - cpu) * 1e3 / written as f64, "ms"),
        ("  GET /v1/servers, p99 without events", idle.read, "ms"),
        ("  GET /v1/servers, p99 with events", busy.read, "ms"),
        ("  syncs, p99 without events", idle.sync, "ms"),
        ("  syncs, p99 with events", busy.sync, "ms"),
    ] {
        figures.add(what, SIZE, (figure, unit));
    }
    figures.line(table, 12, ("events", "/s", Target::Least(990.0)));
    figures.line(table, 12, ("  deliveries that wait at the end", "", Target::Most(1_000.0)));
    figures.line(table, 12, ("  service CPU per event", "ms", Target::None));
    let read = Target::Most(idle.read * 1.1);
    figures.line(table, 12, ("  GET /v1/servers, p99 with events", "ms", read));
    figures.line(table, 12, ("  syncs, p99 with events", "ms", Target::Most(idle.sync * 1.1)));
    drop(service);
    installation.remove().await;
}

/// A webhook for all events about servers, and its receiver, which counts them.
async fn create_webhook(installation: &Installation, service: &Service, received: Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let count = |State(received): State<Arc<AtomicU64>>| async move {
        received.fetch_add(1, Ordering::Relaxed);
    };
    let router = Router::new().fallback(count).with_state(received);
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let body = json!({"name": "all", "url": url, "types": ["server.edited"]}).to_string();
    let mut client = Client::connect(&service.address).await.unwrap();
    client.request(&post(&installation.key, "/v1/webhooks", &body)).await.unwrap();
}

/// Edits servers at a steady rate until it is aborted.
async fn write_events(address: String, key: String) {
    let mut client = Client::connect(&address).await.unwrap();
    let mut tick = tokio::time::interval(Duration::from_millis(1_000 / EDITS_PER_SECOND));
    for n in 0_u64.. {
        tick.tick().await;
        let first = n * PER_EDIT % SIZE;
        let servers: Vec<String> =
            (first..first + PER_EDIT).map(|nth| fleet::id(nth).to_string()).collect();
        // In the first round the tag is added, in the next one it is removed, and so on.
        let is_added = (n * PER_EDIT / SIZE).is_multiple_of(2);
        let change = if is_added { "add_tags" } else { "remove_tags" };
        let body = json!({"targets": {"server_ids": servers}, change: ["bench"]}).to_string();
        client.request(&post(&key, "/v1/servers/edit", &body)).await.unwrap();
    }
}

fn post(key: &str, path: &str, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into()
}

/// Reads and syncs at a steady rate, far below what the service can do.
async fn probe(installation: &Installation, service: &Service, agents: &mut Agents) -> Latencies {
    let mut client = Client::connect(&service.address).await.unwrap();
    let read = get(&installation.key, "/v1/servers");
    let mut tick = tokio::time::interval(Duration::from_micros(1_000_000 / PROBES_PER_SECOND));
    let (mut reads, mut syncs) = (Vec::new(), Vec::new());
    let start = clock();
    while start.elapsed() < MEASURE_TIME {
        tick.tick().await;
        for (times, request) in [(&mut reads, read.clone()), (&mut syncs, agents.next_sync())] {
            let start = clock();
            client.request(&request).await.unwrap();
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    Latencies { read: p99(reads), sync: p99(syncs) }
}
