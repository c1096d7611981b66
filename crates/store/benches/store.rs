//! Benchmarks of the store on both engines: `cargo bench -p store`.
//!
//! Prints a table and asserts no time. Each line also checks that the work was really done. `--
//! --servers 100000` makes the fleet larger. PostgreSQL is the one at `FLEETMEND_TEST_POSTGRES`,
//! with its own settings.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints and may panic")]

use std::time::{Duration, Instant};

use domain::rollout::{
    ActiveTask, HealthProgress, Pace, Phase, RolloutHead, TaskStatus, WaveProgress,
};
use jiff::SignedDuration;
use store::package_sets::{PackedSet, SetKind};
use store::presence::Contact;
use store::rollout_tasks::StateChange;
use store::server_list::{Filter, OnlineSpan, Sort};
use store::servers::Server;
use store::{Db, Page, package_sets, presence, rollout_tasks, rollouts, server_list, servers};
use testkit::{TestDatabase, at};
use vocab::{Installed, OrgId, Stage, Status};

const ROUNDS: u32 = 9;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    // `cargo test --all-targets` runs this too, but needs no figures.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return;
    }
    // The filter names another benchmark.
    let words = arguments.iter().skip(1).filter(|word| !word.starts_with("--"));
    let mut words = words.filter(|word| word.parse::<u32>().is_err());
    if words.any(|word| !"store".contains(word.as_str())) {
        return;
    }
    let after = |flag: &str| arguments.iter().skip_while(|argument| *argument != flag).nth(1);
    let fleet = after("--servers").map_or(10_000, |count| count.parse().unwrap());
    println!("{:<10} {:<46} {:>10} {:>14}", "engine", "what", "median", "per second");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        for database in [Some(TestDatabase::sqlite()), TestDatabase::postgres().await] {
            let Some(database) = database else { continue };
            all(&database, fleet).await;
            database.remove().await;
        }
    });
}

/// The nth id of a type.
macro_rules! nth {
    ($kind:ident, $n:expr) => {
        vocab::$kind::new(at(0), u128::from($n))
    };
}

async fn all(database: &TestDatabase, fleet: u32) {
    let seal = store::audit::Seal::new(|previous, _, _| previous.to_vec());
    let db = Db::open(&store::Options::new(&database.url, seal)).await.unwrap();
    let org = nth!(OrgId, 1_u32);
    let mut tx = db.begin().await.unwrap();
    store::organizations::create(&mut tx, org, "Acme", at(0)).await.unwrap();
    tx.commit().await.unwrap();
    enroll(&db, org, fleet).await;
    heartbeats(&db, org, fleet).await;
    // PostgreSQL's autovacuum does this every minute, and SQLite when the database is closed.
    database.execute_sql("analyze").await;
    pages(&db, org).await;
    known_inventories(&db, org).await;
    new_inventories(&db, org).await;
    claims(&db, org).await;
    large_rollouts(&db, org).await;
    db.close().await;
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn now() -> Instant {
    Instant::now()
}

/// Prints the median of some rounds, and how many of `units` that is per second.
fn report(db: &Db, what: &str, units: u32, mut rounds: Vec<Duration>) {
    rounds.sort_unstable();
    let median = rounds[rounds.len() / 2];
    let per_second = f64::from(units) / median.as_secs_f64();
    let millis = median.as_secs_f64() * 1e3;
    println!("{:<10} {what:<46} {millis:>7.2} ms {per_second:>14.0}", db.engine());
}

fn server(org_id: OrgId, n: u32) -> Server {
    Server {
        id: nth!(ServerId, n),
        org_id,
        hostname: format!("web-{n}.example.org").parse().unwrap(),
        display_name: None,
        notes: String::new(),
        environment: Some("production".parse().unwrap()),
        tags: vec!["role=web".parse().unwrap()],
        os: vocab::Os::new("debian", "12", "Debian GNU/Linux 12 (bookworm)").unwrap(),
        kernel: "6.1.0-18-amd64".into(),
        arch: "x86_64".into(),
        package_manager: Some(vocab::PackageManager::Apt),
        agent_version: "0.1.0".into(),
        public_key: n.to_be_bytes().repeat(8),
        enrolled_at: at(0),
        last_scan_at: None,
        reboot_required: false,
        reboot_reasons: Vec::new(),
        activity: "idle".into(),
        package_set: None,
        update_set: None,
        packages: 0,
        updates: 0,
        security_updates: 0,
        facts: serde_json::json!({"boot_id": "0f3c8d1e"}),
        runs: String::new(),
        quarantine: None,
        generation: 1,
        last_seen_at: at(0),
        counter: 1,
    }
}

async fn enroll(db: &Db, org: OrgId, fleet: u32) {
    let start = now();
    let all: Vec<u32> = (0..fleet).collect();
    for some in all.chunks(1_000) {
        let mut tx = db.begin().await.unwrap();
        for n in some {
            servers::enroll(&mut tx, &server(org, *n)).await.unwrap();
        }
        tx.commit().await.unwrap();
    }
    report(db, &format!("enroll {fleet} servers, 1000 per commit"), fleet, vec![start.elapsed()]);
}

async fn heartbeats(db: &Db, org: OrgId, fleet: u32) {
    let mut rounds = Vec::new();
    for round in 1..=i64::from(ROUNDS) {
        let beats: Vec<_> = (0..fleet)
            .map(|n| nth!(ServerId, n))
            .map(|server_id| Contact {
                org,
                server_id,
                seen_at: at(round * 30),
                counter: round + 1,
            })
            .collect();
        let start = now();
        let mut tx = db.begin().await.unwrap();
        assert_eq!(
            presence::record_contacts(&mut tx, &beats, at(1_000_000)).await.unwrap(),
            u64::from(fleet)
        );
        tx.commit().await.unwrap();
        rounds.push(start.elapsed());
    }
    report(db, &format!("heartbeats of {fleet} servers, one commit"), fleet, rounds);
}

async fn pages(db: &Db, org: OrgId) {
    let status =
        |status| Filter { status: Some((status, OnlineSpan::since(at(100)))), ..Filter::default() };
    let environment = Some("production".parse().unwrap());
    for (what, filter) in [
        ("first page of servers, with the total", Filter::default()),
        ("servers of one environment", Filter { environment, ..Filter::default() }),
        ("online servers", status(Status::Online)),
        ("offline servers (none)", status(Status::Offline)),
    ] {
        let mut rounds = Vec::new();
        for _ in 0..50 {
            let start = now();
            let mut reader = db.read().await.unwrap();
            let page = Page { limit: 50, offset: 0 };
            let found = server_list::list(&mut reader, org, &filter, Sort::Hostname, page).await;
            assert!(found.unwrap().items.len() <= 50);
            rounds.push(start.elapsed());
        }
        report(db, what, 1, rounds);
    }
}

fn list(packages: u32, salt: u32) -> Vec<u8> {
    let name = |n: u32| format!("lib{:x}-{n}", n.wrapping_mul(2_654_435_761));
    let entries: Vec<_> = (0..packages)
        .map(|n| Installed::new(&name(n), &format!("1.{n}.{salt}-1+deb12u{}", n % 5), "amd64"))
        .collect();
    vocab::listing::encode(&entries)
}

/// A scan whose package sets are stored: nothing is uploaded, only the server's row is written.
async fn known_inventories(db: &Db, org: OrgId) {
    let (one, two) =
        (PackedSet::new(1_500, &list(1_500, 0)), PackedSet::new(1_500, &list(1_500, 1)));
    let mut tx = db.begin().await.unwrap();
    for packed in [&one, &two] {
        package_sets::store(&mut tx, org, SetKind::Packages, packed, at(0)).await.unwrap();
    }
    tx.commit().await.unwrap();
    for (grouped, what) in
        [(1, "known inventory, one per commit"), (50, "known inventory, 50 per commit")]
    {
        let mut rounds = Vec::new();
        for round in 0..ROUNDS {
            let digest = if round.is_multiple_of(2) { one.digest() } else { two.digest() };
            let servers: Vec<_> = (0..200).map(|n| nth!(ServerId, n as u32)).collect();
            let start = now();
            for group in servers.chunks(grouped) {
                let mut tx = db.begin().await.unwrap();
                for id in group {
                    let before = servers::get(&mut tx, org, *id).await.unwrap();
                    let scanned = at(i64::from(round));
                    let after = Server {
                        package_set: Some(digest),
                        last_scan_at: Some(scanned),
                        packages: 1_500,
                        ..before.clone()
                    };
                    servers::save(&mut tx, &before, &after, scanned).await.unwrap();
                }
                tx.commit().await.unwrap();
            }
            rounds.push(start.elapsed() / 200);
        }
        report(db, what, 1, rounds);
    }
}

/// A package set that no server has: compressed, stored and used.
async fn new_inventories(db: &Db, org: OrgId) {
    let mut salt = 100;
    for (grouped, what) in [
        (1, "new inventory of 1500 packages, one per commit"),
        (20, "new inventory of 1500 packages, 20 per commit"),
    ] {
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let lists: Vec<_> = (0..40).map(|n| list(1_500, salt + n)).collect();
            salt += 40;
            let start = now();
            for (group, bytes) in lists.chunks(grouped).enumerate() {
                let packed: Vec<_> = bytes.iter().map(|list| PackedSet::new(1_500, list)).collect();
                let mut tx = db.begin().await.unwrap();
                for (n, list) in packed.iter().enumerate() {
                    let id = nth!(ServerId, (group * grouped + n) as u32);
                    let before = servers::get(&mut tx, org, id).await.unwrap();
                    assert!(
                        package_sets::store(&mut tx, org, SetKind::Packages, list, at(0))
                            .await
                            .unwrap()
                    );
                    let after = Server { package_set: Some(list.digest()), ..before.clone() };
                    servers::save(&mut tx, &before, &after, at(0)).await.unwrap();
                }
                tx.commit().await.unwrap();
            }
            rounds.push(start.elapsed() / 40);
        }
        report(db, what, 1, rounds);
    }
}

async fn rollout(db: &Db, org_id: OrgId, n: u32, count: u32) -> vocab::BatchId {
    let id = nth!(BatchId, n);
    let head = RolloutHead {
        id,
        phase: Phase::Running,
        pace: Pace::default(),
        starts_at: at(0),
        start_by: at(0) + SignedDuration::from_hours(8),
        last_start: None,
        forgiven: 0,
        canary_waived: false,
        expected: None,
        canary_unchanged: false,
        waves: WaveProgress::default(),
        health: HealthProgress::default(),
        clock: at(0),
    };
    let row = rollouts::Rollout {
        id,
        org_id,
        name: "Benchmark".into(),
        head,
        options: serde_json::json!({"security_only": true}),
        origin: "api".into(),
        started_by: "bench".into(),
        run_id: None,
        retry_of: None,
        total: 0,
        created_at: at(0),
        ended_at: None,
        generation: 1,
        revision: 1,
        counts: None,
        wave_counts: None,
        counted: 0,
        seal: store::seals::SealCode::default(),
        head_seal: store::seals::SealCode::default(),
    };
    let targets: Vec<_> =
        (0..count).map(|t| (nth!(TaskId, n * 100_000 + t), nth!(ServerId, t))).collect();
    let mut tx = db.begin().await.unwrap();
    rollouts::create(&mut tx, &row, &targets).await.unwrap();
    tx.commit().await.unwrap();
    id
}

async fn claims(db: &Db, org: OrgId) {
    let (mut claimed, mut ended) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        let id = rollout(db, org, round, 1_000).await;
        let step = |seen, from, next| {
            let moved = move |n| StateChange {
                server_id: nth!(ServerId, n),
                from,
                seen,
                next,
                result: None,
                health: None,
            };
            (0..1_000_u32).map(moved).collect::<Vec<_>>()
        };
        let busy = ActiveTask { stage: Stage::Dispatched, started_at: at(1), by: at(60), wave: 1 };
        let offers = step(1, TaskStatus::Waiting, TaskStatus::Busy(busy));
        let start = now();
        let mut tx = db.begin().await.unwrap();
        assert_eq!(rollout_tasks::claim(&mut tx, id, &offers).await.unwrap().len(), 1_000);
        tx.commit().await.unwrap();
        claimed.push(start.elapsed());
        // Back to waiting, so that the servers are available in the next round.
        let back = step(2, TaskStatus::Busy(busy), TaskStatus::Waiting);
        let start = now();
        let mut tx = db.begin().await.unwrap();
        rollout_tasks::save(&mut tx, id, &back).await.unwrap();
        tx.commit().await.unwrap();
        ended.push(start.elapsed());
    }
    report(db, "claim 1000 tasks, one commit", 1_000, claimed);
    report(db, "save 1000 tasks, one commit", 1_000, ended);
}

async fn large_rollouts(db: &Db, org: OrgId) {
    let (mut made, mut loaded) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        let start = now();
        let id = rollout(db, org, 1_000 + round, 10_000).await;
        made.push(start.elapsed());
        let start = now();
        let mut reader = db.read().await.unwrap();
        assert_eq!(rollout_tasks::all(&mut reader, id).await.unwrap().len(), 10_000);
        loaded.push(start.elapsed());
    }
    report(db, "create a rollout of 10000 tasks", 10_000, made);
    report(db, "load a rollout of 10000 tasks", 10_000, loaded);
}
