//! Ten real hosts with ten real agents on this machine: the cost of an order compared to the
//! package manager alone, and the cost of an idle agent.
//!
//! The package manager alone is `apt-get update && apt-get install PACKAGE` on the same hosts, all
//! at once and without any transport. Both are measured alternately in one run, because the
//! machine's state varies. All hosts share this machine's cores, so whatever an agent does in
//! addition to apt-get is paid ten times by the same cores; separate hosts would each pay it once.

#![expect(clippy::unwrap_used, reason = "a failing setup fails the benchmark")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
#![expect(clippy::print_stdout, reason = "its results are its output")]

#[path = "../../tests/agents/hosts.rs"]
#[expect(dead_code, reason = "the tests use the rest of it")]
mod hosts;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hosts::{Host, Service};
use lab::apt::{Deb, Pocket, Repo, Server};
use serde_json::json;

const HOSTS: usize = 10;
const ROUNDS: usize = 3;
const IDLE_TIME: Duration = Duration::from_secs(30);
/// The kernel counts the CPU time of processes in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

fn main() {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    if filter.is_some_and(|filter| !"agents".contains(&filter)) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(measure());
}

async fn measure() {
    let repo = Repo::with(&[
        (Pocket::Stable, Deb::new("quick", "1")),
        (Pocket::Stable, Deb::new("slow", "1")),
        (Pocket::Updates, Deb::new("quick", "2")),
        (Pocket::Updates, Deb::new("slow", "2").sleeps("5")),
    ]);
    let Some(repo) = repo else { return };
    let service = Service::start();
    let token = service.token().await;
    let mut fleet = Vec::new();
    for _ in 0..HOSTS {
        let Some(server) = Server::with_installed(&repo, &["quick", "slow"]) else { return };
        fleet.push(Host::join(&service, &token, server));
    }
    let ids = service.servers(HOSTS, || {}).await;
    let fleet = Fleet { service, hosts: fleet, ids };
    fleet.wait_until_idle().await;

    println!("\nrow  measurement on {HOSTS} hosts at once, median of {ROUNDS} rounds");
    for (package, target) in [("quick", "≤ 1.10"), ("slow", "≤ 1.10")] {
        let (mut alone, mut ordered, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            alone.push(fleet.time_apt_alone(package));
            fleet.reset(package).await;
            let before = cpu_ticks(fleet.service.child.id());
            ordered.push(fleet.time_order(package).await);
            cpu.push(
                (cpu_ticks(fleet.service.child.id()) - before) / TICKS_PER_SECOND * 1_000.0
                    / HOSTS as f64,
            );
            fleet.reset(package).await;
        }
        let (alone, ordered, cpu) = (median(alone), median(ordered), median(cpu));
        println!(
            "  1  {package}: order to last result {ordered:.2} s, apt-get alone {alone:.2} s: {:.2} × ({target})",
            ordered / alone
        );
        println!("  2  {package}: server CPU {cpu:.1} ms per host, including the client's polling");
    }
    fleet.measure_idle();
    fleet.measure_scan().await;
}

struct Fleet {
    // First, so that agents stop before the service and do not log errors.
    hosts: Vec<Host>,
    service: Service,
    ids: Vec<String>,
}

impl Fleet {
    /// Runs a script on every host at once, and returns the duration.
    fn run_on_all(&self, script: &str) -> f64 {
        let began = Instant::now();
        let start = |host: &Host| {
            let mut command = host.server.command("sh");
            command.args(["-ec", script]).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().unwrap()
        };
        let children: Vec<Child> = self.hosts.iter().map(start).collect();
        for mut child in children {
            assert!(child.wait().unwrap().success(), "{script}");
        }
        began.elapsed().as_secs_f64()
    }

    fn time_apt_alone(&self, package: &str) -> f64 {
        let took = self.run_on_all(&format!(
            "apt-get -q -y update; apt-get -q -y --no-install-recommends install {package}=2"
        ));
        self.verify_installed(package);
        took
    }

    async fn time_order(&self, package: &str) -> f64 {
        let order = json!({"server_ids": self.ids, "packages": [package], "reboot": "never"});
        let began = Instant::now();
        let batch = self.service.post("/v1/batches", order).await;
        let path = format!("/v1/batches/{}", batch["id"].as_str().unwrap());
        let ended = |seen: &serde_json::Value| !seen["finished_at"].is_null();
        let seen = self.service.until(&path, || {}, ended).await;
        let took = began.elapsed().as_secs_f64();
        assert_eq!(seen["progress"]["succeeded"], json!(HOSTS), "{seen}");
        self.verify_installed(package);
        took
    }

    /// Verifies that the work was done.
    fn verify_installed(&self, package: &str) {
        for host in &self.hosts {
            assert_eq!(host.server.version(package).as_deref(), Some("2"));
        }
    }

    async fn reset(&self, package: &str) {
        // An agent that scans its packages holds no lock, but it uses the CPU.
        self.wait_until_idle().await;
        self.run_on_all(&format!(
            "apt-get -q -y --allow-downgrades install {package}=1; apt-get clean"
        ));
    }

    /// Waits until no agent is active.
    async fn wait_until_idle(&self) {
        let idle = |seen: &serde_json::Value| {
            seen["data"].as_array().unwrap().iter().all(|row| row["activity"] == "idle")
        };
        self.service.until("/v1/servers?limit=500", || {}, idle).await;
    }

    /// Measures the cost of idle agents.
    fn measure_idle(&self) {
        let all = |usage: &dyn Fn(u32) -> f64| {
            self.hosts.iter().map(|host| usage(host.child.id())).sum::<f64>()
        };
        let before = all(&cpu_ticks);
        std::thread::sleep(IDLE_TIME);
        let seconds = (all(&cpu_ticks) - before) / TICKS_PER_SECOND;
        let share = seconds / IDLE_TIME.as_secs_f64() / HOSTS as f64 * 100.0;
        let memory = all(&resident_kilobytes) / HOSTS as f64 / 1_024.0;
        println!(
            "  8  idle agent: {memory:.1} MiB resident (≤ 4), {share:.4} % of a core (≤ 0.005)"
        );
    }

    /// Measures a package scan compared to `dpkg-query`, the fastest possible one: by an agent
    /// without state, and by one that has scanned before, with no changes since.
    async fn measure_scan(&self) {
        let Some(host) = self.hosts.first() else { return };
        let look = |state_dir: &Path| {
            let mut scan = Command::new(hosts::agent());
            scan.args(["scan", "--no-refresh", "--json", "--root"]).arg(host.server.root.dir());
            time_command(scan.arg("--state-dir").arg(state_dir))
        };
        let known = host.server.root.path("/var/lib/fleetmend-agent");
        // The packages were reset without the agent: let it scan once more first.
        let looked =
            || std::fs::metadata(known.join("scan/answers.json")).and_then(|f| f.modified()).ok();
        let before = looked();
        let mut wake = Command::new("kill");
        time_command(wake.args(["-USR1", &host.child.id().to_string()]));
        self.service.until("/v1/servers?limit=500", || {}, |_| looked() != before).await;
        self.wait_until_idle().await;
        let (mut dpkg, mut first, mut again) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS * 3 {
            let mut list = host.server.command("dpkg-query");
            dpkg.push(time_command(list.arg("-W")));
            first.push(look(&known.join("nowhere")));
            again.push(look(&known));
        }
        let dpkg = median(dpkg);
        for (which, took) in [("first", median(first)), ("again", median(again))] {
            println!(
                "  8  scan, {which}: {:.0} ms, dpkg-query {:.0} ms: {:.1} × (≤ 2)",
                took * 1_000.0,
                dpkg * 1_000.0,
                took / dpkg
            );
        }
    }
}

fn time_command(command: &mut Command) -> f64 {
    let began = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status().unwrap();
    assert!(status.success(), "{command:?}");
    began.elapsed().as_secs_f64()
}

/// CPU time of a process in ticks, without its children.
fn cpu_ticks(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = rest.split_whitespace().collect();
    fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()
}

fn resident_kilobytes(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    figures[figures.len() / 2]
}
