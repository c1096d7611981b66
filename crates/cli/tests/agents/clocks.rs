//! The real service and the real agent, each with a wrong clock that is corrected while they run.
//!
//! The programs are started with a library (`wrong_clock.c`) that adds seconds to the time of day.
//! Package managers see the true time.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use jiff::Timestamp;
use lab::apt::{Deb, Pocket, Repo, Server};
use serde_json::{Value, json};

use crate::support::{Fleet, Host, package_changes};

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;
const TEN_YEARS: i64 = 3_652 * DAY;
/// Seconds that a clock is ahead.
const CLOCK_ERRORS: [i64; 6] = [HOUR, -HOUR, DAY, -DAY, TEN_YEARS, -TEN_YEARS];

/// A clock for one program that a test can set.
struct SetClock {
    library: PathBuf,
    seconds_ahead: PathBuf,
}

impl SetClock {
    /// Creates a correct clock. Its files are in `dir`, and `name` is part of their names.
    fn new(dir: &Path, name: &str) -> SetClock {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agents/wrong_clock.c");
        let library = dir.join(format!("{name}.so"));
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"]).arg(&library).arg(source);
        assert!(compile.status().unwrap().success());
        let seconds_ahead = dir.join(format!("{name}.seconds"));
        fs::write(&seconds_ahead, 0_i64.to_ne_bytes()).unwrap();
        SetClock { library, seconds_ahead }
    }

    /// Sets the clock, even for a running program.
    fn set(&self, seconds_ahead: i64) {
        let file = fs::OpenOptions::new().write(true).open(&self.seconds_ahead).unwrap();
        file.write_all_at(&seconds_ahead.to_ne_bytes(), 0).unwrap();
    }

    /// The environment variables that give a program this clock.
    fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("LD_PRELOAD", self.library.clone()), ("WRONG_CLOCK", self.seconds_ahead.clone())]
    }
}

/// A Debian host with as many updates as the test has orders.
struct World {
    server: Server,
    orders: usize,
    /// Directory for the clocks. Not a directory of the lab, because the service is not part of it.
    dir: crate::service::Dir,
}

impl World {
    fn new(orders: usize) -> Option<World> {
        let names: Vec<String> = (0..orders).map(package).collect();
        let debs: Vec<_> = names
            .iter()
            .flat_map(|name| {
                let new = Deb::new(name, "1.1").counts_runs();
                [(Pocket::Stable, Deb::new(name, "1.0")), (Pocket::Updates, new)]
            })
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let server = Server::with_installed(&Repo::with(&debs)?, &names)?;
        Some(World { server, orders: 0, dir: crate::service::Dir::new() })
    }

    /// Upgrades the next package, and asserts that this happened once.
    #[track_caller]
    fn assert_patched(&mut self, fleet: &Fleet, host: &Host, when: &str) {
        let name = package(self.orders);
        self.orders += 1;
        let task = fleet.patch(&host.id, &json!({"packages": [name]}));
        assert_eq!(task["state"], "succeeded", "{when}: {task}");
        assert_eq!(package_changes(&task), [format!("{name} 1.0 > 1.1")], "{when}");
        assert_eq!(self.server.runs(&name), ["1.1"], "{when}");
    }

    fn assert_nothing_ran_twice(&self) {
        for number in 0..self.orders {
            assert_eq!(self.server.runs(&package(number)), ["1.1"], "package {number}");
        }
    }
}

fn package(number: usize) -> String {
    format!("package-{number}")
}

/// Waits until the agent's clock is ahead of the service's by this many seconds, within half an
/// hour.
#[track_caller]
fn wait_until_agent_is_ahead(fleet: &Fleet, host: &Host, seconds: i64) {
    let time = |value: &Value| value.as_str()?.parse::<Timestamp>().ok();
    fleet.until_true(&format!("the agent is {seconds} s ahead"), || {
        let output = host.run(&["status", "--json"]);
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        let last_seen = fleet.server(&host.id)["last_seen_at"].clone();
        let (Some(agent), Some(service)) = (time(&status["last_sync_at"]), time(&last_seen)) else {
            return false;
        };
        (agent.as_second() - service.as_second() - seconds).abs() < HOUR / 2
    });
}

#[test]
fn agent_with_a_wrong_clock_executes_every_order_once() {
    let Some(mut world) = World::new(2 * CLOCK_ERRORS.len() + 1) else { return };
    let clock = SetClock::new(&world.dir.0, "agent");
    let fleet = Fleet::new();
    let mut host = Host::not_enrolled(&fleet, world.server.root.dir());
    host.environment = clock.environment();
    // The clock is already wrong when the host enrolls.
    clock.set(-TEN_YEARS);
    host.enroll(&fleet);
    host.start();
    fleet.wait_for_scan(&host.id);
    for wrong in CLOCK_ERRORS {
        clock.set(wrong);
        world.assert_patched(&fleet, &host, &format!("set to {wrong} while the agent runs"));
        wait_until_agent_is_ahead(&fleet, &host, wrong);
        assert!(host.stop());
        host.start();
        world.assert_patched(&fleet, &host, &format!("{wrong} when the agent starts"));
    }
    clock.set(0);
    world.assert_patched(&fleet, &host, "right again");
    wait_until_agent_is_ahead(&fleet, &host, 0);
    world.assert_nothing_ran_twice();
    assert_eq!(fleet.get("/v1/servers")["meta"]["total"], 1);
    assert_eq!(fleet.server(&host.id)["status"], "online");
}

#[test]
fn service_with_a_wrong_clock_completes_every_order_once() {
    let Some(mut world) = World::new(2 * CLOCK_ERRORS.len()) else { return };
    let clock = SetClock::new(&world.dir.0, "service");
    let fleet = Fleet::start_with(|command| {
        command.envs(clock.environment());
    });
    let host = Host::joined(&fleet, world.server.root.dir());
    fleet.wait_for_scan(&host.id);
    for wrong in CLOCK_ERRORS {
        clock.set(wrong);
        world.assert_patched(&fleet, &host, &format!("set to {wrong}"));
        wait_until_agent_is_ahead(&fleet, &host, -wrong);
        clock.set(0);
        world.assert_patched(&fleet, &host, &format!("right again after {wrong}"));
        wait_until_agent_is_ahead(&fleet, &host, 0);
    }
    world.assert_nothing_ran_twice();
    fleet.until(&format!("/v1/servers/{}", host.id), |seen| seen["status"] == "online");
}
