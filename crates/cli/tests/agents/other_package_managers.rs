//! dnf, zypper and pacman hosts: enrollment, inventory and orders.

use std::path::Path;

use lab::rpm::{Advisory, Manager, Package, Repo};
use serde_json::{Value, json};

use crate::support::{Fleet, Host, package, package_changes};

/// A host with `plain`, `risky` (its update is a security update where the package manager reports
/// that), `third` and `held`, each in version 1.0-1 with 1.1-1 pending.
struct World<'a> {
    fleet: Fleet,
    host: Host,
    database: &'a dyn Fn() -> Vec<String>,
    tells_security: bool,
}

impl<'a> World<'a> {
    fn new(root: &Path, tells_security: bool, database: &'a dyn Fn() -> Vec<String>) -> World<'a> {
        let fleet = Fleet::new();
        let host = Host::joined(&fleet, root);
        World { fleet, host, database, tells_security }
    }

    /// Runs an order. Returns its task and the new lines of the package database.
    #[track_caller]
    fn patched(&self, order: &Value) -> (Value, Vec<String>) {
        let before = (self.database)();
        let task = self.fleet.patch(&self.host.id, order);
        let after = (self.database)();
        assert_eq!(before.len(), after.len(), "no package may be added or removed");
        (task, after.into_iter().filter(|line| !before.contains(line)).collect())
    }

    /// The test. `blocked` is how this package manager reports that `held` is held.
    #[track_caller]
    fn assert_reported_and_patched(&self, manager: &str, blocked: &str) {
        let seen = self.fleet.wait_for_scan(&self.host.id);
        assert_eq!(
            (&seen["status"], &seen["package_manager"]),
            (&json!("online"), &json!(manager))
        );
        assert_eq!(seen["summary"]["packages"], (self.database)().len());
        assert_eq!(seen["summary"]["updates"], 4, "{seen}");
        assert_eq!(package(&seen, "plain"), "plain 1.0-1 > 1.1-1");
        let held = package(&seen, "held");
        assert!(held.starts_with("held 1.0-1 > 1.1-1") && held.ends_with(blocked), "{held}");
        let came = |task: &Value, changed: &[String], names: &[&str]| {
            assert_eq!(task["state"], "succeeded", "{task}");
            let expected: Vec<_> =
                names.iter().map(|name| format!("{name} 1.0-1 > 1.1-1")).collect();
            assert_eq!(package_changes(task), expected);
            let installed: Vec<_> = names.iter().map(|name| format!("{name} 1.1-1")).collect();
            assert_eq!(changed, installed);
        };
        if self.tells_security {
            assert_eq!(package(&seen, "risky"), "risky 1.0-1 > 1.1-1 security");
            let (task, changed) = self.patched(&json!({"security_only": true}));
            came(&task, &changed, &["risky"]);
        }
        let (task, changed) = self.patched(&json!({"packages": ["held"]}));
        assert_eq!((&task["state"], changed.len()), (&json!("skipped"), 0), "{task}");
        let (task, changed) = self.patched(&json!({"packages": [], "dry_run": true}));
        assert_eq!((&task["state"], changed.len()), (&json!("succeeded"), 0), "{task}");
        assert!(package_changes(&task).contains(&"third 1.0-1 > 1.1-1".to_owned()), "{task}");
        let (task, changed) = self.patched(&json!({"packages": ["plain"]}));
        came(&task, &changed, &["plain"]);
        let (task, changed) = self.patched(&json!({"packages": ["plain"]}));
        assert_eq!((&task["state"], changed.len()), (&json!("no_change"), 0), "{task}");
        let (task, changed) = self.patched(&json!({"packages": [], "exclude": ["ris*"]}));
        came(&task, &changed, &["third"]);
        let log = self.fleet.text(task["result"]["log"].as_str().unwrap());
        assert!(log.contains("third"), "{log}");
    }
}

const NAMES: [&str; 4] = ["held", "plain", "risky", "third"];

fn rpm(manager: Manager, settings: (&str, &str), word: &str, blocked: &str) {
    let packages = |version: &str| NAMES.map(|name| Package::new(name, version));
    let (old, new) = (packages("1.0-1"), packages("1.1-1"));
    let fix = Advisory::security("LSA-2024:1", "Important", &["CVE-2024-1"], &[&new[2]]);
    let all: Vec<Package> = old.iter().chain(&new).cloned().collect();
    let Some(repo) = Repo::with(&all, &[fix]) else { return };
    let Some(server) = lab::rpm::Server::with_installed(manager, &repo, &old) else { return };
    server.write(settings.0, settings.1);
    server.write("/etc/os-release", "ID=lab\nVERSION_ID=9\nPRETTY_NAME=\"Lab 9\"\n");
    let database = || {
        let list = server.database();
        list.iter().map(|line| line.trim_end_matches(" noarch").to_owned()).collect()
    };
    let world = World::new(server.dir(), true, &database);
    world.assert_reported_and_patched(word, blocked);
}

#[test]
fn dnf_host_is_reported_and_patched_exactly_as_ordered() {
    let settings = ("/etc/dnf/dnf.conf", "[main]\ngpgcheck=0\nexclude=held\n");
    rpm(Manager::Dnf, settings, "dnf", "(excluded)");
}

#[test]
fn zypper_host_is_reported_and_patched_exactly_as_ordered() {
    let lock = "\ntype: package\nmatch_type: glob\ncase_sensitive: on\nsolvable_name: held\n\n";
    rpm(Manager::Zypper, ("/etc/zypp/locks", lock), "zypper", "held (held)");
}

/// pacman repositories do not mark security updates.
#[test]
fn pacman_host_is_reported_and_patched_exactly_as_ordered() {
    use lab::pacman::{Package, Repository, Server};
    let packages = |version: &str| NAMES.map(|name| Package::new(name, version));
    let Some(repository) = Repository::with(&packages("1.0-1")) else { return };
    let server = Server::with_installed(&repository, &NAMES);
    repository.add(&packages("1.1-1"));
    server.configure("IgnorePkg = held");
    // The root is an overlay of this machine, whose own packages must not count.
    server.root().write("/var/lib/dpkg/status", "");
    let database = || server.installed();
    let world = World::new(server.root().dir(), false, &database);
    world.assert_reported_and_patched("pacman", "(held)");
}
