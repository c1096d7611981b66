//! Agents that are killed in the middle of an upgrade, at moments spread over its whole duration.
//!
//! Several systems run at once, each on its own thread with its own service. An undisturbed upgrade
//! measures the duration; after that, each upgrade is interrupted at another fraction of it. Two
//! thirds of the moments are during the installation itself, where something can be left half done.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use lab::apt::{Deb, Pocket, Repo, Server};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{Fleet, Host, batch_path, package_changes};

const ROOTS: u32 = 4;
const KILLS_PER_ROOT: u32 = 13;

/// A system with a package that always has one more version.
struct Subject {
    repo: Repo,
    server: Server,
    fleet: Fleet,
    host: Host,
    version: u32,
    /// Duration of an upgrade until its installation begins, and duration of the installation.
    durations: (Duration, Duration),
}

impl Subject {
    fn new() -> Option<Subject> {
        let repo = Repo::with(&[(Pocket::Stable, Deb::new("quick", "1.0"))])?;
        let server = Server::with_installed(&repo, &["quick"])?;
        let fleet = Fleet::new();
        let host = Host::joined(&fleet, server.root.dir());
        fleet.wait_for_scan(&host.id);
        let takes = (Duration::ZERO, Duration::ZERO);
        let mut patient = Subject { repo, server, fleet, host, version: 0, durations: takes };
        let task = patient.upgrade(|patient, began| {
            patient.wait_for_installation();
            patient.durations.0 = began.elapsed();
            patient.fleet.until_true("the installation ends", || patient.stage() != "installing");
            patient.durations.1 = began.elapsed() - patient.durations.0;
        });
        assert_eq!(task["state"], "succeeded", "{task}");
        Some(patient)
    }

    /// Publishes one more version, orders it, and runs `meanwhile`. Returns the finished task.
    fn upgrade(&mut self, meanwhile: impl FnOnce(&mut Subject, Instant)) -> Value {
        self.version += 1;
        let deb =
            Deb::new("quick", &self.current_version()).before_unpack("sleep 0.1").counts_runs();
        let deb = deb.script("sleep 0.1");
        self.repo.add(&[(Pocket::Updates, deb)]);
        let began = Instant::now();
        let path = format!("/v1/servers/{}/patch", self.host.id);
        let batch = self.fleet.post(&path, &json!({"packages": ["quick"]}));
        meanwhile(self, began);
        let seen = self.fleet.until(&batch_path(&batch), |seen| !seen["finished_at"].is_null());
        seen["results"][0].clone()
    }

    fn wait_for_installation(&self) {
        let stages = ["dispatched", "preflight", "downloading"];
        let mut seen = false;
        self.fleet.until_true("the installation begins", || {
            let stage = self.stage();
            seen |= stages.contains(&stage.as_str());
            stage == "installing" || (seen && stage == "none")
        });
    }

    /// Waits for a fraction of the order that began at `began`.
    fn wait(&self, share: f64, began: Instant) {
        let within = share * 3.0 - 1.0;
        if within < 0.0 {
            self.fleet.until_instant(began + self.durations.0.mul_f64(share * 3.0));
        } else {
            self.wait_for_installation();
            self.fleet.until_instant(Instant::now() + self.durations.1.mul_f64(within / 2.0));
        }
    }

    /// Waits until dpkg has started with the package and not finished.
    fn wait_until_half_installed(&self) {
        self.wait_for_installation();
        self.fleet.until_true("the package is half installed", || {
            self.is_half_installed() || self.stage() == "none"
        });
    }

    fn is_half_installed(&self) -> bool {
        self.server.version("quick").unwrap().contains('(')
    }

    fn current_version(&self) -> String {
        format!("1.{}", self.version)
    }

    /// The stage of the unfinished order, from the agent's journal.
    fn stage(&self) -> String {
        let orders = self.server.root.path("/var/lib/fleetmend-agent/orders");
        let open = std::fs::read_dir(orders).into_iter().flatten().flatten().find_map(|order| {
            let text = std::fs::read(order.path().join("journal.json")).ok()?;
            let journal: Value = serde_json::from_slice(&text).unwrap();
            journal["result"].is_null().then(|| journal["stage"].as_str().unwrap().to_owned())
        });
        open.unwrap_or_else(|| "none".to_owned())
    }

    fn audit(&self) -> String {
        self.server.root.run("dpkg", &["--audit"]).text
    }
}

/// Runs a test on several systems at once. Each gets its moments, from 0 to 1, and returns what it
/// found at each. Returns all results; none if there is no lab on this machine.
fn run_on_several<T: Send + 'static>(story: fn(Subject, Vec<f64>) -> Vec<T>) -> Option<Vec<T>> {
    let run = |root: u32| {
        std::thread::spawn(move || {
            let patient = Subject::new()?;
            let all = f64::from(ROOTS * KILLS_PER_ROOT);
            let mine = (0..KILLS_PER_ROOT).map(|kill| f64::from(kill * ROOTS + root) / all);
            Some(story(patient, mine.collect()))
        })
    };
    let threads: Vec<_> = (0..ROOTS).map(run).collect();
    let mut found = Vec::new();
    for thread in threads {
        found.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
    }
    Some(found)
}

#[test]
fn killed_agent_reports_correctly_and_scripts_run_once() {
    let stages = run_on_several(|mut patient, instants| {
        let mut stages = Vec::new();
        for share in instants {
            let before = patient.current_version();
            let task = patient.upgrade(|patient, began| {
                patient.wait(share, began);
                patient.host.kill();
                stages.push(patient.stage());
                patient.host.start();
            });
            let at = format!("killed at {share:.2}: {task}");
            assert_eq!(task["state"], "succeeded", "{at}");
            assert_eq!(
                package_changes(&task),
                [format!("quick {before} > {}", patient.current_version())],
                "{at}"
            );
            assert_eq!(patient.server.version("quick").unwrap(), patient.current_version(), "{at}");
            assert_eq!(patient.audit(), "", "{at}");
        }
        let expected: Vec<String> = (1..=patient.version).map(|n| format!("1.{n}")).collect();
        assert_eq!(patient.server.runs("quick"), expected, "each script must run exactly once");
        stages
    });
    let Some(stages) = stages else { return };
    println!("stages at which the agent was killed: {stages:?}");
    for stage in ["preflight", "installing"] {
        assert!(
            stages.iter().any(|seen| seen == stage),
            "no agent was killed in {stage}: {stages:?}"
        );
    }
}

/// Like a power failure, except for the disk: agent, supervisor, apt, dpkg and the script are
/// killed at once.
#[test]
fn interrupted_system_is_repaired_or_reported() {
    let found = run_on_several(|mut patient, instants| {
        let mut found = Vec::new();
        let last = instants.last().copied();
        for share in instants {
            let before = patient.server.version("quick").unwrap();
            let mut left = (String::new(), false);
            let task = patient.upgrade(|patient, began| {
                // Waiting for a fraction of the time may miss the worst moment.
                if Some(share) == last {
                    patient.wait_until_half_installed();
                } else {
                    patient.wait(share, began);
                }
                kill_all(patient.host.pid());
                patient.host.kill();
                left = (patient.stage(), patient.is_half_installed());
                patient.host.start();
            });
            let at = format!("cut off at {share:.2}: {task}");
            let there = patient.server.version("quick").unwrap();
            let state = task["state"].as_str().unwrap();
            match state {
                "succeeded" => {
                    assert_eq!(
                        package_changes(&task),
                        [format!("quick {before} > {there}")],
                        "{at}"
                    );
                    assert_eq!(there, patient.current_version(), "{at}");
                    assert_eq!(patient.audit(), "", "{at}");
                }
                "failed" => {
                    assert!(task["result"]["failure_code"].is_string(), "{at}");
                    assert!(!task["result"]["message"].as_str().unwrap().is_empty(), "{at}");
                    let moved = if bare(&before) == bare(&there) {
                        Vec::new()
                    } else {
                        vec![format!("quick {} > {}", bare(&before), bare(&there))]
                    };
                    assert_eq!(
                        package_changes(&task),
                        moved,
                        "reported versions must match the package database, {at}"
                    );
                    let reported = ["incomplete", "damaged"].iter().any(|w| at.contains(w));
                    assert!(reported || patient.audit().is_empty(), "{}{at}", patient.audit());
                }
                other => panic!("{other}, {at}"),
            }
            found.push((left, state.to_owned()));
        }
        let task = patient.upgrade(|_, _| ());
        assert_eq!(task["state"], "succeeded", "{task}");
        assert_eq!(patient.audit(), "");
        found
    });
    let Some(found) = found else { return };
    println!("((stage when killed, half installed), task state): {found:?}");
    assert!(
        found.iter().any(|((_, half_done), _)| *half_done),
        "no kill left a package half installed: {found:?}"
    );
}

/// A version without the state that dpkg appends.
fn bare(version: &str) -> &str {
    version.split(' ').next().unwrap()
}

/// Kills a process and all its descendants. They are stopped first, until there are no new ones, so
/// that none can start another meanwhile.
fn kill_all(process: i32) {
    let mut stopped = BTreeMap::new();
    loop {
        let new: Vec<i32> =
            descendants(process).into_iter().filter(|pid| !stopped.contains_key(pid)).collect();
        if new.is_empty() {
            break;
        }
        for pid in new {
            stopped.insert(pid, kill(Pid::from_raw(pid), Signal::SIGSTOP));
        }
    }
    for pid in stopped.keys() {
        // A process that has ended meanwhile is fine.
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
}

/// A process and its descendants.
fn descendants(process: i32) -> Vec<i32> {
    let mut all = vec![process];
    let threads = std::fs::read_dir(Path::new("/proc").join(process.to_string()).join("task"));
    for thread in threads.into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        let children = children.split_whitespace().map(|pid| pid.parse::<i32>().unwrap());
        all.extend(children.flat_map(descendants));
    }
    all
}
