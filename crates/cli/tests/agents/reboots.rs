//! Machines with systemd as their first process and the agent as a service: reboots and service
//! restarts.
//!
//! Each test has its own network, shared by its service and its machine. The test's thread is on it
//! too, so all requests to the service come from this thread.

use std::process::Child;

use lab::apt::{Deb, Pocket, Repo, Server};
use lab::machine::{BootEnd, Machine};
use lab::root::Base;
use serde_json::{Value, json};

use crate::hosts::{Service, agent};

const UNIT: &str = include_str!("../../../../packaging/systemd/fleetmend-agent.service");
const MAY_REBOOT: &str = "reboot_in_container = true\n";

/// A running machine that is started again whenever it reboots.
struct Host {
    machine: Machine,
    child: Child,
    comes_back: bool,
}

impl Host {
    /// A booted machine with these packages installed from the stable release, enrolled in the
    /// fleet.
    async fn join(service: &Service, repo: &Repo, packages: &[&str], limits: &str) -> Option<Host> {
        let server = Server::with_base(Base::Systemd, repo)?;
        server.sources(&[Pocket::Stable]);
        server.update();
        server.install(packages);
        server.sources(&Pocket::ALL);
        let root = server.root;
        std::fs::copy(agent(), root.path("/usr/bin/fleetmend-agent")).unwrap();
        root.write("/etc/fleetmend/limits.toml", limits);
        let token = service.token().await;
        let join = ["enroll", "--server", &service.url, "--token", &token];
        root.run_successfully("/usr/bin/fleetmend-agent", &join);
        let mut machine = Machine::from_root(root)?.share_network();
        machine.add_service("fleetmend-agent", UNIT);
        machine.add_service("demo", DEMO);
        let child = machine.boot();
        Some(Host { machine, child, comes_back: true })
    }

    /// Starts the machine again if it rebooted.
    fn watch(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap()
            && self.comes_back
        {
            assert_eq!(
                BootEnd::from_status(status),
                BootEnd::Rebooted,
                "the machine must reboot, not power off"
            );
            self.child = self.machine.boot();
        }
    }

    fn version(&self, package: &str) -> String {
        self.machine.root.run_successfully("dpkg-query", &["-W", "-f=${Version}", package])
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A service that sleeps with a package's library loaded. It counts as started once it has the
/// library, and the agent starts after it: otherwise an update might arrive before anything uses
/// the old library.
const DEMO: &str = "[Unit]\nBefore=fleetmend-agent.service\n\
                    [Service]\nEnvironment=LD_PRELOAD=/usr/lib/libdemo.so\n\
                    ExecStartPre=/bin/sh -c 'echo start >> /var/log/demo.starts'\n\
                    ExecStart=/bin/sleep infinity\n\
                    ExecStartPost=/bin/sh -c 'until grep -q libdemo /proc/$MAINPID/maps; do sleep 0.01; done'\n";

/// A repository with an update that needs a reboot, and one of the library; any library will do.
fn repository() -> Option<Repo> {
    let base = Base::Systemd.dir()?;
    let library = format!("usr/lib/{}-linux-gnu/libz.so.1", std::env::consts::ARCH);
    let library = std::fs::read(base.join(library)).unwrap();
    let demo = |version| Deb::new("libdemo", version).file("/usr/lib/libdemo.so", &library);
    let core = |version| Deb::new("core", version).requests_reboot().counts_runs();
    Repo::with(&[
        (Pocket::Stable, Deb::new("core", "1")),
        (Pocket::Updates, core("2")),
        (Pocket::Stable, demo("1")),
        (Pocket::Updates, demo("2")),
    ])
}

/// A host and the task of an order for one package.
struct Outcome {
    host: Host,
    task: Value,
}

/// Runs one order on one host until it ends or `enough` returns true.
async fn run_order_until(
    package: &str,
    reboot: &str,
    limits: &str,
    comes_back: bool,
    enough: impl Fn(&Value) -> bool,
) -> Option<Outcome> {
    let repo = repository()?;
    lab::network::isolate();
    let service = Service::start();
    let mut host = Host::join(&service, &repo, &["core", "libdemo"], limits).await?;
    let ids = service.servers(1, || host.watch()).await;
    assert_eq!(host.machine.boots(), 1);
    host.comes_back = comes_back;
    let order = json!({"server_ids": ids, "packages": [package], "reboot": reboot});
    let batch = service.post("/v1/batches", order).await;
    let path = format!("/v1/batches/{}", batch["id"].as_str().unwrap());
    let enough = |seen: &Value| !seen["finished_at"].is_null() || enough(&seen["results"][0]);
    let seen = service.until(&path, || host.watch(), enough).await;
    Some(Outcome { host, task: seen["results"][0].clone() })
}

async fn run_order(package: &str, reboot: &str, limits: &str) -> Option<Outcome> {
    run_order_until(package, reboot, limits, true, |_| false).await
}

#[tokio::test]
async fn machine_that_needs_a_reboot_reboots_once() {
    let Some(Outcome { host, task }) = run_order("core", "if_required", MAY_REBOOT).await else {
        return;
    };
    assert_eq!(task["state"], "succeeded", "{task}");
    let result = &task["result"];
    assert_eq!(result["packages"], json!([{"name": "core", "from": "1", "to": "2"}]));
    // No further reboot is needed after this one.
    assert_eq!(result["reboot"]["done"], true, "{task}");
    assert!(result["reboot"]["seconds"].is_u64(), "{task}");
    assert_eq!(host.machine.boots(), 2);
    assert_eq!(host.version("core"), "2");
    assert_eq!(host.machine.root.read("/var/log/core.runs"), "2\n");
}

#[tokio::test]
async fn unneeded_reboot_happens_only_with_always() {
    let Some(Outcome { host, task }) = run_order("libdemo", "always", MAY_REBOOT).await else {
        return;
    };
    assert_eq!(task["state"], "succeeded", "{task}");
    assert_eq!((&task["result"]["reboot"]["done"], host.machine.boots()), (&json!(true), 2));

    let reported = run_order("libdemo", "if_required", MAY_REBOOT).await;
    let Outcome { host, task } = reported.unwrap();
    assert_eq!(task["state"], "succeeded", "{task}");
    let reboot = json!({"needed": false, "done": false, "seconds": null});
    assert_eq!((&task["result"]["reboot"], host.machine.boots()), (&reboot, 1));
}

#[tokio::test]
async fn never_reports_a_needed_reboot_without_rebooting() {
    let Some(Outcome { host, task }) = run_order("core", "never", MAY_REBOOT).await else { return };
    assert_eq!(task["state"], "succeeded", "{task}");
    let reboot = json!({"needed": true, "done": false, "seconds": null});
    assert_eq!((&task["result"]["reboot"], host.machine.boots()), (&reboot, 1));
    assert_eq!(host.version("core"), "2");
}

#[tokio::test]
async fn service_with_an_old_library_is_restarted_without_reboot() {
    let Some(Outcome { host, task }) = run_order("libdemo", "services_only", MAY_REBOOT).await
    else {
        return;
    };
    assert_eq!(task["state"], "succeeded", "{task}");
    assert_eq!(task["result"]["restarted"], json!(["demo.service"]), "{task}");
    assert_eq!(task["result"]["reboot"]["done"], false, "{task}");
    assert_eq!(host.machine.boots(), 1);
    assert_eq!(host.machine.root.read("/var/log/demo.starts"), "start\nstart\n");
}

#[tokio::test]
async fn containers_reboot_only_if_host_limits_allow_it() {
    let Some(Outcome { host, task }) = run_order("core", "always", "").await else { return };
    assert_eq!(task["state"], "succeeded", "{task}");
    let reboot = json!({"needed": true, "done": false, "seconds": null});
    assert_eq!((&task["result"]["reboot"], host.machine.boots()), (&reboot, 1));
    let notes = task["result"]["notes"].to_string();
    assert!(notes.contains("no reboot: this is a container (lxc)"), "{notes}");
}

/// That the deadline ends the task is tested with a simulated clock, in the service's own tests.
#[tokio::test]
async fn missing_machine_stays_rebooting_until_its_deadline() {
    let rebooting = |task: &Value| task["state"] == "rebooting";
    let reported = run_order_until("core", "if_required", MAY_REBOOT, false, rebooting).await;
    let Some(Outcome { task, .. }) = reported else { return };
    assert_eq!(task["state"], "rebooting", "{task}");
    let time = |name: &str| task[name].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let left = time("deadline_at").duration_since(time("started_at"));
    assert!(left <= jiff::SignedDuration::from_mins(35), "{task}");
}
