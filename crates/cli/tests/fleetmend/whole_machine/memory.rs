//! A service limited to 512 MiB of memory, with a fleet, an import and floods of requests at the
//! same time.
//!
//! The limit is RLIMIT_DATA, which needs no privileges: it counts every private writable mapping of
//! the process, used or not, and the kernel refuses more. Memory mapped from files is measured
//! separately, as peak resident memory.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use agent_client::{
    AgentClient, ClientError, ConnectOptions, EnrollOptions, HostKey, Identity, ListingKind,
    SyncCounter, Token, nonce,
};
use serde_json::{Value, json};
use swarm::fleet::Fleet;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use vocab::Digest;
use vocab::listing::{Installed, LINES_MAX, Pending, encode};
use wire::agent::{Facts, SyncRequest};
use wire::v1::Activity;

use crate::operator::{Operator, POLL_INTERVAL};
use crate::support::{Dir, Running, first_key, fleetmend, whole_machine};
use crate::whole_machine::fleet::{allow_files, fast_agents};

const BYTES_MAX: u64 = 512 << 20;
const SERVERS: usize = 500;
const ADVISORIES: usize = 20_000;
/// Number of connections for each kind of flood, and the number of bytes that each sends.
const FLOODERS: usize = 32;
const FLOOD_BYTES: usize = 16 << 20;
/// Number of times the agent reports new inventories.
const REPORTS: usize = 2;
/// Maximum number of updates in a report.
const UPDATES_MAX: usize = 20_000;
const REFERENCES_PER_UPDATE: usize = 5;

/// Limits the memory of a running process.
fn limit(pid: u32) {
    let mut prlimit = Command::new("prlimit");
    prlimit.arg(format!("--data={BYTES_MAX}")).args(["--pid", &pid.to_string()]);
    assert!(prlimit.status().unwrap().success());
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max data size")).unwrap();
    assert!(line.contains(&BYTES_MAX.to_string()), "{line}");
}

/// Peak resident memory of a process, in bytes.
fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"));
    kib.unwrap().trim().parse::<u64>().unwrap() << 10
}

/// Writes a feed of advisories for Debian 12 packages.
fn write_feed(path: &Path) {
    let mut file = std::io::BufWriter::new(fs::File::create(path).unwrap());
    for number in 0..ADVISORIES {
        let advisory = json!({"id": format!("DSA-{number}-1"), "modified": "2026-11-01T00:00:00Z",
            "aliases": [format!("CVE-2026-{number:05}")], "summary": "x".repeat(500),
            "affected": [{"package": {"ecosystem": "Debian:12", "name": format!("package-{number}")},
                "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "9:1-1"}]}]}]});
        writeln!(file, "{advisory}").unwrap();
    }
}

/// Imports a feed next to the service, under the same limit.
fn import(data: &Path, feed: &Path) {
    let args = ["feeds", "import", "--data-dir", data.to_str().unwrap(), feed.to_str().unwrap()];
    let import = fleetmend(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    limit(import.id());
    let done = import.wait_with_output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Sends `start`, then letters until the service closes the connection.
async fn flood(address: &str, start: &str, chunked: bool) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let letters = "a".repeat(64 << 10);
    let block = if chunked { format!("{:x}\r\n{letters}\r\n", letters.len()) } else { letters };
    if stream.write_all(start.as_bytes()).await.is_err() {
        return;
    }
    for _ in 0..FLOOD_BYTES / block.len() {
        if stream.write_all(block.as_bytes()).await.is_err() {
            return;
        }
    }
    let mut answer = [0; 12];
    let read = stream.read(&mut answer).await.unwrap_or(0);
    assert!(!answer[..read].ends_with(b" 200"), "{start}: the request was accepted");
}

#[tokio::test(flavor = "multi_thread")]
async fn service_with_512_mib_serves_its_fleet_through_an_import_and_floods() {
    let _alone = whole_machine().await;
    let _ = rustls::crypto::ring::default_provider().install_default();
    allow_files();
    let dir = Dir::new();
    let key = first_key(&dir.data());
    let mut service = Running::start(&dir.data(), &[]);
    let pid = service.child.id();
    limit(pid);
    let operator = Operator::new(&service.address, &key);
    let fleet = operator.fleet(SERVERS as u64, fast_agents).await;
    let feed = dir.0.join("feed.jsonl");
    write_feed(&feed);

    let address = service.address.strip_prefix("http://").unwrap().to_owned();
    let with_body = |path: &str, more: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: x\r\n{more}Transfer-Encoding: chunked\r\n\r\n")
    };
    let json = format!("Authorization: Bearer {key}\r\nContent-Type: application/json\r\n");
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    let floods = [
        (with_body("/v1/batches", &json), true),
        (with_body("/sign-in", form), true),
        (with_body("/agent/v1/enroll", "Content-Type: application/json\r\n"), true),
        (with_body("/agent/v1/sync", "Content-Type: application/json\r\n"), true),
        ("GET /v1/servers?name=".to_owned(), false),
        ("GET / HTTP/1.1\r\nHost: x\r\nCookie: ".to_owned(), false),
    ];
    let mut flooders = Vec::new();
    for (start, chunked) in floods.into_iter().cycle().take(6 * FLOODERS) {
        let address = address.clone();
        flooders.push(tokio::spawn(async move { flood(&address, &start, chunked).await }));
    }
    let data = dir.data();
    let import = tokio::task::spawn_blocking(move || import(&data, &feed));
    let batch = operator.orders(&fleet, 0..SERVERS, json!({"max_parallel": 100})).await;
    for flooder in flooders {
        flooder.await.unwrap();
    }
    import.await.unwrap();
    operator.until_ended(&batch).await;
    operator.batch_views(&fleet, &batch).await.assert_all_finished(SERVERS);
    operator.until_at("/v1/feeds", |feeds| feeds["data"][0]["records"] == ADVISORIES).await;
    assert!(service.child.try_wait().unwrap().is_none(), "the service ended");
    let peak = peak(pid);
    println!("peak memory of the service: {} MiB", peak >> 20);
    assert!(peak < BYTES_MAX, "{peak} bytes");
    assert!(fleet.ledger().violations().is_empty());
    fleet.stop().await;
}

/// An agent that reports inventories of the maximum size, different each time.
struct LargeReporter {
    client: AgentClient,
    identity: Identity,
    sync_counter: SyncCounter,
    facts: Facts,
}

impl LargeReporter {
    async fn enroll(operator: &Operator) -> LargeReporter {
        let token = operator.post("/v1/enrollment-tokens", json!({"name": "hoarder"})).await;
        let token: Token = token["token"].as_str().unwrap().parse().unwrap();
        let client = ConnectOptions { url: &operator.url, pin: token.pin(), from: None };
        let client = AgentClient::new(client).unwrap();
        let facts = Fleet::new(7, 1).host(0).facts();
        let options = EnrollOptions { facts: facts.clone(), environment: None, tags: Vec::new() };
        let key = HostKey::generate();
        let response = client.enroll(&token, &key, options).await.unwrap();
        let sync_counter = SyncCounter::new(response.counter, nonce());
        LargeReporter {
            identity: Identity::new(key, response).unwrap(),
            client,
            sync_counter,
            facts,
        }
    }

    /// Reports package and update lists that share nothing with earlier ones.
    async fn report(&mut self, round: usize) {
        let name = |number: usize| format!("package-{round}-{number}-{}", "x".repeat(40));
        let packages = (0..LINES_MAX).map(|n| Installed::new(&name(n), "1.0-1", "amd64"));
        let updates = (0..UPDATES_MAX).map(|n| {
            let cve = |c| format!("CVE-2026-{round:02}{n:05}{c}");
            json!({"n": name(n), "a": "amd64", "c": "2.0-1", "i": "1.0-1", "s": true, "t": "security",
                "cv": (0..REFERENCES_PER_UPDATE).map(cve).collect::<Vec<_>>()})
        });
        let updates = updates.map(|update| serde_json::from_value(update).unwrap());
        let packages = encode(&packages.collect::<Vec<_>>());
        let updates = encode(&updates.collect::<Vec<Pending>>());
        let lists = [(ListingKind::Packages, packages), (ListingKind::Updates, updates)];
        let digests = [Digest::compute(&lists[0].1), Digest::compute(&lists[1].1)];
        self.sync(digests).await;
        for (digest, (kind, bytes)) in digests.into_iter().zip(&lists) {
            // It uploads faster than allowed, so the service tells it to wait.
            let sent = async || self.client.put_listing(&self.identity, *kind, digest, bytes).await;
            for _ in 0..300 {
                match sent().await {
                    Ok(()) => break,
                    Err(ClientError::Busy { .. }) => tokio::time::sleep(POLL_INTERVAL).await,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        self.sync(digests).await;
    }

    #[expect(clippy::disallowed_methods, reason = "this is the agent's clock")]
    async fn sync(&mut self, [installed, pending]: [Digest; 2]) {
        let SyncCounter { counter, nonce: last } = self.sync_counter;
        let request = SyncRequest {
            boot_id: "boot".into(),
            counter,
            nonce: last,
            hold_seconds: 0,
            facts: Some(self.facts.clone()),
            installed: Some(installed),
            pending: Some(pending),
            scanned_at: Some(jiff::Timestamp::now()),
            activity: Activity::Idle,
            results: Vec::new(),
            progress: Vec::new(),
            health: None,
        };
        let response = self.client.sync(&self.identity, &request).await.unwrap();
        self.sync_counter = SyncCounter::new(response.counter, nonce());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_with_maximum_size_reports_does_not_exhaust_512_mib() {
    let _alone = whole_machine().await;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = Dir::new();
    let key = first_key(&dir.data());
    let mut service = Running::start(&dir.data(), &[]);
    let pid = service.child.id();
    limit(pid);
    let operator = Operator::new(&service.address, &key);
    let mut hoarder = LargeReporter::enroll(&operator).await;
    for round in 0..REPORTS {
        hoarder.report(round).await;
        let newest = format!("CVE-2026-{round:02}");
        let is_newest = |row: &Value| row.as_str().is_some_and(|id| id.starts_with(&newest));
        operator.until_at("/v1/cves?limit=1", |cves| is_newest(&cves["data"][0]["id"])).await;
        println!("peak memory of the service after {} reports: {} MiB", round + 1, peak(pid) >> 20);
    }
    assert!(service.child.try_wait().unwrap().is_none(), "the service ended");
}

/// Proves that the limit works: a process that needs more memory fails.
#[test]
fn process_above_its_memory_limit_fails() {
    let mut sleeper = Command::new("sh");
    sleeper.args(["-c", "read go; exec dd if=/dev/zero of=/dev/null bs=1G count=1"]);
    let mut sleeper = sleeper.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    limit(sleeper.id());
    sleeper.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert!(!sleeper.wait().unwrap().success());
}
