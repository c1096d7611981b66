//! Batches with pinned versions, with real package managers: a newer version appears in the
//! repository between two waves, and the later wave still installs what the first one installed.

use std::path::Path;

use lab::apt::{Deb, Pocket};
use lab::rpm::{Manager, Package};
use lab::{apt, pacman, rpm};
use serde_json::{Value, json};

use crate::support::{Fleet, Host, batch_path, package_changes};

/// Three hosts with `app 1-1` and `other 1-1`, of which the first one runs its agent.
struct PinnedFleet {
    fleet: Fleet,
    hosts: [Host; 3],
    batch: String,
}

impl PinnedFleet {
    /// Starts a batch in three waves of one server, and waits for the end of the first one.
    fn with_first_wave(roots: [&Path; 3]) -> PinnedFleet {
        let fleet = Fleet::new();
        let mut hosts = roots.map(|root| Host::enrolled(&fleet, root));
        hosts[0].start();
        fleet.wait_for_scan(&hosts[0].id);
        let ids: Vec<&str> = hosts.iter().map(|host| host.id.as_str()).collect();
        let order = json!({"server_ids": ids, "packages": [], "pin_versions": true,
            "waves": [{"size": 1}, {"size": 1}, {}]});
        let batch = batch_path(&fleet.post("/v1/batches", &order));
        let pinned = PinnedFleet { fleet, hosts, batch };
        let first = pinned.result(0);
        assert_eq!((&first["state"], &first["wave"]), (&json!("succeeded"), &json!(1)), "{first}");
        assert_eq!(first["result"]["newer_available"], json!([]));
        pinned
    }

    /// Waits for the result of a host's task.
    fn result(&self, host: usize) -> Value {
        let id = self.hosts[host].id.as_str();
        let task = |seen: &Value| {
            let tasks = seen["data"].as_array().unwrap();
            tasks.iter().find(|task| task["server_id"] == id).unwrap().clone()
        };
        let path = format!("{}/tasks", self.batch);
        task(&self.fleet.until(&path, |seen| !task(seen)["finished_at"].is_null()))
    }

    /// Starts the agent of the second host, which must install the pinned version of `app` although
    /// the repository has a newer one, and a newer one of `other`.
    fn expect_pinned(&mut self, pinned: &str, available: &str) {
        self.hosts[1].start();
        let task = self.result(1);
        assert_eq!((&task["state"], &task["wave"]), (&json!("succeeded"), &json!(2)), "{task}");
        assert_eq!(package_changes(&task), [format!("app 1-1 > {pinned}")]);
        let newer = json!([{"name": "app", "pinned": pinned, "available": available}]);
        assert_eq!(task["result"]["newer_available"], newer);
    }

    /// Starts the agent of the last host, for which the pinned version is gone.
    fn expect_version_gone(&mut self) {
        self.hosts[2].start();
        let task = self.result(2);
        assert_eq!(task["state"], "skipped", "{task}");
        assert_eq!(task["result"]["failure_code"], "version_gone");
        assert_eq!(task["result"]["packages"], json!([]));
        let batch = self.fleet.until(&self.batch, |seen| !seen["finished_at"].is_null());
        assert_eq!(batch["state"], "completed_with_errors", "{batch}");
    }
}

#[test]
fn later_apt_waves_install_the_versions_of_the_first() {
    let Some(repo) = apt::Repo::with(&[
        (Pocket::Stable, Deb::new("app", "1-1")),
        (Pocket::Stable, Deb::new("other", "1-1")),
        (Pocket::Updates, Deb::new("app", "1-2")),
    ]) else {
        return;
    };
    let server = || apt::Server::with_installed(&repo, &["app=1-1", "other=1-1"]);
    let (Some(first), Some(next), Some(last)) = (server(), server(), server()) else { return };
    let roots = [first.root.dir(), next.root.dir(), last.root.dir()];
    let mut fleet = PinnedFleet::with_first_wave(roots);
    repo.add(&[
        (Pocket::Updates, Deb::new("app", "1-3")),
        (Pocket::Updates, Deb::new("other", "1-2")),
    ]);
    fleet.expect_pinned("1-2", "1-3");
    assert_eq!(next.version("other").unwrap(), "1-1");
    repo.withdraw(Pocket::Updates, "app", "1-2");
    fleet.expect_version_gone();
    assert_eq!(last.version("app").unwrap(), "1-1");
}

fn rpm_waves(manager: Manager) {
    let package = |name: &str, version: &str| Package::new(name, version);
    let old = [package("app", "1-1"), package("other", "1-1")];
    let Some(repo) = rpm::Repo::with(&old, &[]) else { return };
    let server = || {
        let server = rpm::Server::with_installed(manager, &repo, &old)?;
        server.write("/etc/os-release", "ID=lab\nVERSION_ID=9\nPRETTY_NAME=\"Lab 9\"\n");
        Some(server)
    };
    let (Some(first), Some(next), Some(last)) = (server(), server(), server()) else { return };
    repo.publish(&[package("app", "1:1-2")], &[]);
    let mut fleet = PinnedFleet::with_first_wave([first.dir(), next.dir(), last.dir()]);
    repo.publish(&[package("app", "1:1-3"), package("other", "1-2")], &[]);
    fleet.expect_pinned("1:1-2", "1:1-3");
    assert!(next.database().contains(&"other 1-1 noarch".to_owned()));
    repo.withdraw(&package("app", "1:1-2"));
    fleet.expect_version_gone();
}

#[test]
fn later_dnf_waves_install_the_versions_of_the_first() {
    rpm_waves(Manager::Dnf);
}

#[test]
fn later_zypper_waves_install_the_versions_of_the_first() {
    rpm_waves(Manager::Zypper);
}

/// pacman's lists contain one version of a package; older ones come from its cache.
#[test]
fn later_pacman_waves_install_the_versions_of_the_first() {
    let package = |name: &str, version: &str| pacman::Package::new(name, version);
    let old = [package("app", "1-1"), package("other", "1-1")];
    let Some(repository) = pacman::Repository::with(&old) else { return };
    let server = || pacman::Server::with_installed(&repository, &["app", "other"]);
    let (first, next, last) = (server(), server(), server());
    repository.add(&[package("app", "1-2")]);
    // The roots are overlays of this machine, whose own packages must not count.
    for server in [&first, &next, &last] {
        server.root().write("/var/lib/dpkg/status", "");
    }
    let roots = [first.root().dir(), next.root().dir(), last.root().dir()];
    let mut fleet = PinnedFleet::with_first_wave(roots);
    next.download("app");
    repository.add(&[package("app", "1-3"), package("other", "1-2")]);
    fleet.expect_pinned("1-2", "1-3");
    assert_eq!(next.installed(), ["app 1-2", "other 1-1"]);
    fleet.expect_version_gone();
}
