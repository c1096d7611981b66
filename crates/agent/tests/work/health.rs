//! The health of a real host with systemd: a machine boots, and this test program runs the agent's
//! worker inside of it ([`execute_inside_of_a_machine`]), as `fleetmend-agent run` would.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use agent::backend::apt::Apt;
use agent::root::Root;
use lab::apt::{Deb, Pocket, Repo, Server};
use lab::machine::{BootEnd, Machine};
use lab::root::Base;
use vocab::RebootPolicy;
use wire::agent::{HealthReport, Install, Order, OrderResult, Outcome, Work};

use crate::apt::{format_moves, wait_for_result, worker_with};
use crate::fake_host::{install, order};

const ORDER: &str = "/var/lib/order.json";
const RESULT: &str = "/var/lib/result.json";

/// Executes the order in [`ORDER`] on the running system, or resumes it after a reboot.
#[test]
#[ignore = "other tests run it inside of a machine"]
fn execute_inside_of_a_machine() {
    let order: Order = serde_json::from_slice(&std::fs::read(ORDER).unwrap()).unwrap();
    let root = Root::running();
    let worker = worker_with(root.dir(), Arc::new(Apt::new(root.clone())));
    worker.0.accept(order.clone());
    let result = wait_for_result(&worker, order.id);
    std::fs::write(RESULT, serde_json::to_vec(&result).unwrap()).unwrap();
}

/// A running machine.
struct HealthHost {
    machine: Machine,
    boot: Child,
    orders: u128,
}

impl HealthHost {
    /// A booted machine with these packages of the stable release, whose other updates are
    /// available, and the enabled services of these packages.
    fn boot(repo: &Repo, packages: &[&str], services: &[(&str, &str)]) -> Option<HealthHost> {
        let server = Server::with_base(Base::Systemd, repo)?;
        server.sources(&[Pocket::Stable]);
        server.update();
        server.install(packages);
        server.sources(&Pocket::ALL);
        let root = server.root;
        for (program, name) in [
            (env!("CARGO_BIN_EXE_fleetmend-agent").into(), "/usr/bin/fleetmend-agent"),
            (std::env::current_exe().unwrap(), "/usr/bin/inside"),
        ] {
            std::fs::copy(program, root.path(name)).unwrap();
        }
        root.write("/etc/fleetmend/limits.toml", "reboot_in_container = true\n");
        let machine = Machine::from_root(root)?;
        for (name, unit) in services {
            let install = "[Install]\nWantedBy=multi-user.target\n";
            machine.add_service(name, &format!("{unit}{install}"));
        }
        let mut host =
            HealthHost { boot: Command::new("true").spawn().unwrap(), machine, orders: 0 };
        host.boot.wait().unwrap();
        host.start();
        Some(host)
    }

    #[expect(clippy::disallowed_methods, reason = "waits for a process")]
    fn start(&mut self) {
        self.boot = self.machine.boot();
        let wait = ["is-system-running", "--wait"];
        while self
            .machine
            .command(&self.boot, "systemctl")
            .is_none_or(|mut command| !is_booted(&mut command, &wait))
        {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn hook(&self, name: &str, script: &str) {
        let path = format!("/etc/fleetmend/health.d/{name}");
        self.machine.root.write(&path, &format!("#!/bin/sh\n{script}\n"));
        let path = self.machine.root.path(&path);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Executes an order for a package, through a reboot if there is one.
    fn execute(&mut self, package: &str, reboot: RebootPolicy) -> OrderResult {
        self.orders += 1;
        let boot_id = self.run("cat", &["/proc/sys/kernel/random/boot_id"]);
        let install =
            Install { reboot, health: true, boot_id: boot_id.trim().into(), ..install(&[package]) };
        let order = order(self.orders, Work::Install(install));
        self.machine.root.write(ORDER, &serde_json::to_string(&order).unwrap());
        let result = self.machine.root.path(RESULT);
        let _ = std::fs::remove_file(&result);
        loop {
            let test = ["--exact", "health::execute_inside_of_a_machine", "--ignored"];
            let mut inside = self.machine.command(&self.boot, "/usr/bin/inside").unwrap();
            let mut inside = inside.args(test).stdout(Stdio::null()).spawn().unwrap();
            self.wait_for_either(&mut inside);
            if let Ok(bytes) = std::fs::read(&result) {
                return serde_json::from_slice(&bytes).unwrap();
            }
            let ended = BootEnd::from_status(self.boot.wait().unwrap());
            assert_eq!(ended, BootEnd::Rebooted);
            self.start();
        }
    }

    /// Waits until the program in the machine has ended, or the machine with it. At its end, systemd
    /// stops all processes for a moment. If nsenter notices that, it stops itself, nobody continues
    /// it, and the machine cannot end before nsenter has waited for its child.
    #[expect(clippy::disallowed_methods, reason = "waits for a process")]
    fn wait_for_either(&mut self, inside: &mut Child) {
        while inside.try_wait().unwrap().is_none() {
            if self.boot.try_wait().unwrap().is_some() || is_stopped(inside) {
                let _ = inside.kill();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn run(&self, program: &str, args: &[&str]) -> String {
        let output =
            self.machine.command(&self.boot, program).unwrap().args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

fn is_stopped(process: &Child) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap_or_default();
    // The state follows the name of the program, which is in parentheses.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

fn is_booted(systemctl: &mut Command, args: &[&str]) -> bool {
    let state = systemctl.args(args).output().unwrap().stdout;
    ["running", "degraded"].contains(&String::from_utf8_lossy(&state).trim())
}

impl Drop for HealthHost {
    fn drop(&mut self) {
        let _ = self.boot.kill();
        let _ = self.boot.wait();
    }
}

fn problems(health: &HealthReport) -> Vec<String> {
    let text = |problem: &wire::agent::HealthProblem| format!("{} {}", problem.kind, problem.name);
    assert_eq!(health.not_measured, None);
    health.problems.iter().map(text).collect()
}

/// A package with the program of a service; its update restarts the service.
fn service(name: &str, version: &str, script: &str) -> Deb {
    let restart = format!(
        "if test -d /run/systemd/system; then systemctl restart --no-block {name}.service; fi"
    );
    Deb::new(name, version).file(&format!("/usr/lib/{name}"), script.as_bytes()).script(&restart)
}

#[test]
fn broken_service_socket_and_hook_are_named_and_a_restart_is_healthy() {
    let Some(repo) = Repo::with(&[
        (Pocket::Stable, service("web", "1", "exec sleep infinity\n")),
        (Pocket::Updates, service("web", "2", "exit 3\n")),
        (Pocket::Stable, service("slow", "1", "exec sleep infinity\n")),
        (Pocket::Updates, service("slow", "2", "exec sleep infinity\n")),
        (Pocket::Stable, Deb::new("front", "1")),
        (
            Pocket::Updates,
            Deb::new("front", "2")
                .script("systemctl stop front.socket; systemctl start once.service"),
        ),
        (Pocket::Stable, Deb::new("late", "1").file("/usr/lib/late", b"exec sleep infinity\n")),
        (Pocket::Updates, Deb::new("late", "2").file("/usr/lib/late", b"exit 3\n")),
    ]) else {
        return;
    };
    let run = |name: &str| format!("[Service]\nExecStart=/bin/sh /usr/lib/{name}\n");
    let slow = format!("{}ExecStartPre=/bin/sleep 1\n", run("slow"));
    let services = [("web", run("web")), ("slow", slow), ("late", run("late"))];
    let services: Vec<(&str, &str)> = services.iter().map(|(n, u)| (*n, u.as_str())).collect();
    let packages = ["web", "slow", "front", "late"];
    let Some(mut host) = HealthHost::boot(&repo, &packages, &services) else { return };
    let unit = |name: &str, text: &str| {
        host.machine.root.write(&format!("/etc/systemd/system/{name}"), text);
    };
    unit("front.socket", "[Socket]\nListenStream=8080\n");
    unit("front.service", "[Service]\nExecStart=/bin/sleep infinity\n");
    unit("once.service", "[Service]\nType=oneshot\nExecStart=/bin/true\n");
    host.run("systemctl", &["daemon-reload"]);
    host.run("systemctl", &["start", "front.socket"]);
    host.hook("10-web", "systemctl is-active --quiet web.service");
    host.hook("20-good", "test \"$FLEETMEND_HOOK\" = health");

    let restarted = host.execute("slow", RebootPolicy::Never);
    assert_eq!(format_moves(&restarted), ["slow 1 > 2"], "{restarted:?}");
    assert_eq!(problems(&restarted.health.unwrap()), [""; 0], "a restart is not a failure");

    let broken = host.execute("web", RebootPolicy::Never);
    assert_eq!(broken.outcome, Outcome::Succeeded, "the installation worked");
    assert_eq!(
        problems(&broken.health.unwrap()),
        ["unit_failed web.service", "hook_failed 10-web"]
    );

    let socket = host.execute("front", RebootPolicy::Never);
    assert_eq!(
        problems(&socket.health.unwrap()),
        ["unit_inactive front.socket", "socket_lost tcp/8080"],
        "what was broken before the order does not count"
    );

    let rebooted = host.execute("late", RebootPolicy::Always);
    assert!(rebooted.reboot_seconds.is_some(), "{rebooted:?}");
    assert_eq!(host.machine.boots(), 2);
    let health = rebooted.health.unwrap();
    assert_eq!(problems(&health), ["unit_failed late.service"]);
    assert!(health.baseline_at < health.measured_at);
}
