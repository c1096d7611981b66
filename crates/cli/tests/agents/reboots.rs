//! Machines with systemd as their first process, the agent as a service in them, and what becomes of their reboots.
//!
//! Each story has a network of its own, on which its service and its machine meet. The test's thread is on it
//! too, so everything that asks the service does so from this thread.

use std::process::Child;

use lab::apt::{Deb, Pocket, Repo, Server};
use lab::machine::{Ended, Machine};
use lab::root::Base;
use serde_json::{Value, json};

use crate::hosts::{Service, agent};

const UNIT: &str = include_str!("../../../../packaging/systemd/fleetmend-agent.service");
const MAY_REBOOT: &str = "reboot_in_container = true\n";

/// A machine that is switched on, and on again whenever it reboots.
struct Host {
    machine: Machine,
    child: Child,
    comes_back: bool,
}

impl Host {
    /// One whose packages of the release are installed, that has joined, and is booted.
    async fn join(service: &Service, repo: &Repo, packages: &[&str], limits: &str) -> Option<Host> {
        let server = Server::of(Base::Systemd, repo)?;
        server.sources(&[Pocket::Stable]);
        server.update();
        server.install(packages);
        server.sources(&Pocket::ALL);
        let root = server.root;
        std::fs::copy(agent(), root.path("/usr/bin/fleetmend-agent")).unwrap();
        root.write("/etc/fleetmend/limits.toml", limits);
        let token = service.token().await;
        let join = ["enroll", "--server", &service.url, "--token", &token];
        root.must("/usr/bin/fleetmend-agent", &join);
        let mut machine = Machine::over(root)?.on_our_network();
        machine.add_service("fleetmend-agent", UNIT);
        machine.add_service("demo", DEMO);
        let child = machine.boot();
        Some(Host { machine, child, comes_back: true })
    }

    /// Whoever watches it switches it on again.
    fn watch(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap()
            && self.comes_back
        {
            assert_eq!(Ended::of(status), Ended::Rebooted, "nobody switched it off");
            self.child = self.machine.boot();
        }
    }

    fn version(&self, package: &str) -> String {
        self.machine.root.must("dpkg-query", &["-W", "-f=${Version}", package])
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A service that is nothing but a sleep with a library of a package in it. It is up once it has the library, and the
/// agent comes after it: else an update may be there before anyone has the old one.
const DEMO: &str = "[Unit]\nBefore=fleetmend-agent.service\n\
                    [Service]\nEnvironment=LD_PRELOAD=/usr/lib/libdemo.so\n\
                    ExecStartPre=/bin/sh -c 'echo start >> /var/log/demo.starts'\n\
                    ExecStart=/bin/sleep infinity\n\
                    ExecStartPost=/bin/sh -c 'until grep -q libdemo /proc/$MAINPID/maps; do sleep 0.01; done'\n";

/// An archive with an update that wants a reboot and one of the library; any library will do as that.
fn archive() -> Option<Repo> {
    let base = Base::Systemd.dir()?;
    let library = format!("usr/lib/{}-linux-gnu/libz.so.1", std::env::consts::ARCH);
    let library = std::fs::read(base.join(library)).unwrap();
    let demo = |version| Deb::new("libdemo", version).file("/usr/lib/libdemo.so", &library);
    let core = |version| Deb::new("core", version).wants_a_reboot().counts_runs();
    Repo::with(&[
        (Pocket::Stable, Deb::new("core", "1")),
        (Pocket::Updates, core("2")),
        (Pocket::Stable, demo("1")),
        (Pocket::Updates, demo("2")),
    ])
}

/// What came of an order for one package.
struct Story {
    host: Host,
    task: Value,
}

/// One host, one order, until it has ended or `enough`.
async fn tell(
    package: &str,
    reboot: &str,
    limits: &str,
    comes_back: bool,
    enough: impl Fn(&Value) -> bool,
) -> Option<Story> {
    let repo = archive()?;
    lab::network::own();
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
    Some(Story { host, task: seen["results"][0].clone() })
}

async fn to_the_end(package: &str, reboot: &str, limits: &str) -> Option<Story> {
    tell(package, reboot, limits, true, |_| false).await
}

#[tokio::test]
async fn a_machine_that_needs_a_reboot_is_rebooted_once_and_comes_back() {
    let Some(Story { host, task }) = to_the_end("core", "if_required", MAY_REBOOT).await else {
        return;
    };
    assert_eq!(task["state"], "succeeded", "{task}");
    let result = &task["result"];
    assert_eq!(result["packages"], json!([{"name": "core", "from": "1", "to": "2"}]));
    // The new boot does not want another.
    assert_eq!(result["reboot"]["done"], true, "{task}");
    assert!(result["reboot"]["seconds"].is_u64(), "{task}");
    assert_eq!(host.machine.boots(), 2);
    assert_eq!(host.version("core"), "2");
    assert_eq!(host.machine.root.read("/var/log/core.runs"), "2\n");
}

#[tokio::test]
async fn a_machine_that_needs_no_reboot_has_one_only_if_it_is_always_wanted() {
    let Some(Story { host, task }) = to_the_end("libdemo", "always", MAY_REBOOT).await else {
        return;
    };
    assert_eq!(task["state"], "succeeded", "{task}");
    assert_eq!((&task["result"]["reboot"]["done"], host.machine.boots()), (&json!(true), 2));

    let told = to_the_end("libdemo", "if_required", MAY_REBOOT).await;
    let Story { host, task } = told.unwrap();
    assert_eq!(task["state"], "succeeded", "{task}");
    let reboot = json!({"needed": false, "done": false, "seconds": null});
    assert_eq!((&task["result"]["reboot"], host.machine.boots()), (&reboot, 1));
}

#[tokio::test]
async fn never_says_that_a_reboot_is_needed_and_leaves_it_at_that() {
    let Some(Story { host, task }) = to_the_end("core", "never", MAY_REBOOT).await else { return };
    assert_eq!(task["state"], "succeeded", "{task}");
    let reboot = json!({"needed": true, "done": false, "seconds": null});
    assert_eq!((&task["result"]["reboot"], host.machine.boots()), (&reboot, 1));
    assert_eq!(host.version("core"), "2");
}

#[tokio::test]
async fn a_service_with_an_old_library_is_restarted_and_the_machine_is_not() {
    let Some(Story { host, task }) = to_the_end("libdemo", "services_only", MAY_REBOOT).await
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
async fn in_a_container_nothing_reboots_unless_its_administrator_allows_it() {
    let Some(Story { host, task }) = to_the_end("core", "always", "").await else { return };
    assert_eq!(task["state"], "succeeded", "{task}");
    let reboot = json!({"needed": true, "done": false, "seconds": null});
    assert_eq!((&task["result"]["reboot"], host.machine.boots()), (&reboot, 1));
    let notes = task["result"]["notes"].to_string();
    assert!(notes.contains("no reboot: this is a container (lxc)"), "{notes}");
}

/// That its deadline ends it is told with a clock that can be turned: in the service's own tests.
#[tokio::test]
async fn a_machine_that_does_not_come_back_is_seen_to_reboot_until_a_deadline() {
    let rebooting = |task: &Value| task["state"] == "rebooting";
    let told = tell("core", "if_required", MAY_REBOOT, false, rebooting).await;
    let Some(Story { task, .. }) = told else { return };
    assert_eq!(task["state"], "rebooting", "{task}");
    let time = |name: &str| task[name].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let left = time("deadline_at").duration_since(time("started_at"));
    assert!(left <= jiff::SignedDuration::from_mins(35), "{task}");
}
