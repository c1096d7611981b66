//! Debian hosts: inventory, orders, misbehaving packages and dry runs.

use std::collections::BTreeMap;

use lab::apt::{Deb, Pocket, Repo, Server};
use serde_json::{Value, json};

use crate::support::{Fleet, Host, package, package_changes};

/// The differences between two states of the package database.
fn changes(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<String> {
    let none = "-".to_owned();
    let names: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let sides = |name| (before.get(name).unwrap_or(&none), after.get(name).unwrap_or(&none));
    let changed = names.into_iter().map(|name| (name, sides(name))).filter(|(_, (a, b))| a != b);
    changed.map(|(name, (from, to))| format!("{name} {from} > {to}")).collect()
}

/// A Debian host with these packages installed from the stable release and all pockets enabled, in
/// a fleet.
struct World {
    fleet: Fleet,
    host: Host,
    server: Server,
}

impl World {
    fn with(debs: &[(Pocket, Deb)], installed: &[&str]) -> Option<World> {
        let repo = Repo::with(debs)?;
        let server = Server::with_installed(&repo, installed)?;
        let fleet = Fleet::new();
        let host = Host::joined(&fleet, server.root.dir());
        Some(World { fleet, host, server })
    }

    /// Runs an order. Returns its task and the changes in the package database.
    #[track_caller]
    fn patched(&self, order: &Value) -> (Value, Vec<String>) {
        let before = self.server.packages();
        let task = self.fleet.patch(&self.host.id, order);
        (task, changes(&before, &self.server.packages()))
    }
}

fn plain_packages() -> Vec<(Pocket, Deb)> {
    let mut debs = Vec::new();
    for name in ["hello", "other", "third", "held"] {
        debs.push((Pocket::Stable, Deb::new(name, "1.0")));
    }
    debs.push((Pocket::Security, Deb::new("hello", "1.1").counts_runs()));
    for name in ["other", "third", "held"] {
        debs.push((Pocket::Updates, Deb::new(name, "1.1").counts_runs()));
    }
    debs
}

#[test]
fn host_is_reported_and_patched_exactly_as_ordered() {
    let all = ["hello", "other", "third", "held"];
    let Some(world) = World::with(&plain_packages(), &all) else { return };
    world.server.hold("held");
    let World { fleet, host, .. } = &world;
    let (status, refresh) =
        fleet.request(reqwest::Method::POST, &format!("/v1/servers/{}/refresh", host.id), None);
    assert_eq!(status, 202, "{refresh}");
    let path = format!("/v1/servers/{}/refreshes/{}", host.id, refresh["id"].as_str().unwrap());
    let refresh = fleet.until(&path, |seen| seen["state"] != "pending");
    assert_eq!(refresh["state"], "completed", "{refresh}");
    let seen = fleet.server(&host.id);
    assert_eq!((&seen["status"], &seen["package_manager"]), (&json!("online"), &json!("apt")));
    assert_eq!(seen["os"]["id"], "debian");
    assert_eq!(seen["summary"]["packages"], world.server.packages().len());
    assert_eq!(
        (&seen["summary"]["updates"], &seen["summary"]["security_updates"]),
        (&json!(4), &json!(1))
    );
    assert_eq!(package(&seen, "hello"), "hello 1.0 > 1.1 security");
    assert_eq!(package(&seen, "other"), "other 1.0 > 1.1");
    assert_eq!(package(&seen, "held"), "held 1.0 > 1.1 held (held)");
    assert!(!package(&seen, "dpkg").contains('>'));

    let (task, changed) = world.patched(&json!({"security_only": true}));
    assert_eq!(task["state"], "succeeded", "{task}");
    assert_eq!(changed, ["hello 1.0 > 1.1"]);
    assert_eq!(package_changes(&task), changed);
    let (task, changed) = world.patched(&json!({"packages": ["held"]}));
    assert_eq!(task["state"], "skipped", "{task}");
    assert!(task["result"]["message"].as_str().unwrap().contains("held"), "{task}");
    assert!(changed.is_empty());
    let (task, changed) = world.patched(&json!({"packages": [], "exclude": ["th*"]}));
    assert_eq!(task["state"], "succeeded", "{task}");
    assert_eq!(changed, ["other 1.0 > 1.1"]);
    let (task, changed) = world.patched(&json!({"packages": ["third"]}));
    assert_eq!(
        (&task["state"], changed),
        (&json!("succeeded"), vec!["third 1.0 > 1.1".to_owned()])
    );
    let (task, changed) = world.patched(&json!({"packages": ["third"]}));
    assert_eq!((&task["state"], changed.len()), (&json!("no_change"), 0));
    for name in ["hello", "other", "third"] {
        assert_eq!(world.server.runs(name), ["1.1"], "{name}");
    }
    let seen = fleet.until(&format!("/v1/servers/{}", host.id), |s| s["summary"]["updates"] == 1);
    assert_eq!(package(&seen, "hello"), "hello 1.1");
}

/// Everything that Debian packages are known to do wrong during an upgrade, one order for each.
#[test]
fn misbehaving_packages_are_handled_and_reported() {
    let two = |name: &str| (Pocket::Stable, Deb::new(name, "1.0"));
    let new = |deb: Deb| (Pocket::Updates, deb);
    let conf =
        |version: &str, text: &str| Deb::new("edited", version).conffile("/etc/edited.conf", text);
    let debs = [
        (Pocket::Stable, conf("1.0", "a\n")),
        new(conf("1.1", "b\n")),
        two("asking"),
        new(Deb::new("asking", "1.1").prompts()),
        two("broken"),
        new(Deb::new("broken", "1.1").fails_always()),
        two("leaving"),
        new(Deb::new("leaving", "1.1").leaves_background_child(600)),
        two("pushy"),
        new(Deb::new("pushy", "1.1").conflicts("bystander")),
        two("bystander"),
        two("strict"),
        new(Deb::new("strict", "1.1").breaks("victim (<< 1.1)")),
        two("victim"),
        new(Deb::new("victim", "1.1")),
    ];
    let installed =
        ["edited", "asking", "broken", "leaving", "pushy", "bystander", "strict", "victim"];
    let Some(world) = World::with(&debs, &installed) else { return };
    let order = |name: &str| json!({"packages": [name]});

    world.server.root.write("/etc/edited.conf", "mine\n");
    let (task, changed) = world.patched(&order("edited"));
    assert_eq!((&task["state"], changed), (&json!("succeeded"), one_change("edited 1.0 > 1.1")));
    assert_eq!(world.server.root.read("/etc/edited.conf"), "mine\n");
    assert_eq!(task["result"]["set_aside"], json!(["/etc/edited.conf.dpkg-dist"]));

    let (task, changed) = world.patched(&order("asking"));
    assert_eq!((&task["state"], changed), (&json!("succeeded"), one_change("asking 1.0 > 1.1")));
    assert_eq!(world.server.root.read("/var/lib/asking.answer"), "none\n");

    // Its child process lives for ten minutes: waiting for the end of its output would time out
    // here.
    let (task, changed) = world.patched(&order("leaving"));
    assert_eq!((&task["state"], changed), (&json!("succeeded"), one_change("leaving 1.0 > 1.1")));

    let (task, changed) = world.patched(&order("pushy"));
    assert_eq!((&task["state"], changed.len()), (&json!("skipped"), 0), "{task}");
    assert!(task["result"]["message"].as_str().unwrap().contains("kept back"), "{task}");
    let (task, changed) = world.patched(&json!({"packages": ["strict"], "exclude": ["victim"]}));
    assert_eq!((&task["state"], changed.len()), (&json!("failed"), 0), "{task}");
    assert_eq!(task["result"]["failure_code"], "dependency_conflict", "{task}");

    let (task, changed) = world.patched(&order("broken"));
    assert_eq!((&task["state"], changed), (&json!("failed"), one_change("broken 1.0 > 1.1 (iF)")));
    assert_eq!(task["result"]["failure_code"], "install_failed");
    let log = world.fleet.text(task["result"]["log"].as_str().unwrap());
    assert!(log.contains("the script of broken fails"), "{log}");
    let words = format!("{}{}", task["result"]["message"], task["result"]["notes"]);
    assert!(words.contains("broken"), "{words}");
    assert!(words.contains("incomplete"), "{words}");
}

fn one_change(line: &str) -> Vec<String> {
    vec![line.to_owned()]
}

#[test]
fn dry_run_reports_the_transaction_and_changes_nothing() {
    let mut debs = plain_packages();
    debs.push((Pocket::Stable, Deb::new("needy", "1.0")));
    debs.push((Pocket::Updates, Deb::new("needy", "1.1").depends("fresh")));
    debs.push((Pocket::Updates, Deb::new("fresh", "2.0")));
    let Some(world) = World::with(&debs, &["hello", "other", "needy"]) else { return };
    let (task, changed) = world.patched(&json!({"packages": [], "dry_run": true}));
    assert_eq!((&task["state"], changed.len()), (&json!("succeeded"), 0), "{task}");
    let reported = package_changes(&task);
    let (task, changed) = world.patched(&json!({"packages": []}));
    assert_eq!(task["state"], "succeeded", "{task}");
    assert_eq!(reported, changed, "the dry run must predict the transaction");
    assert!(reported.contains(&"fresh - > 2.0".to_owned()), "{reported:?}");
}

const STATES: [&str; 9] = [
    "pending",
    "waiting",
    "dispatched",
    "preflight",
    "downloading",
    "installing",
    "restarting_services",
    "verifying",
    "succeeded",
];

/// The package's script waits for a file; until then, the order is observed.
#[test]
fn order_states_and_log_are_visible_while_it_runs() {
    let debs = [
        (Pocket::Stable, Deb::new("slow", "1.0")),
        (
            Pocket::Updates,
            Deb::new("slow", "1.1")
                .script("echo the first half")
                .waits_for_file("/run/started", "/run/go-on")
                .script("echo the second half"),
        ),
    ];
    let Some(world) = World::with(&debs, &["slow"]) else { return };
    let World { fleet, host, server } = &world;
    let mut log = String::new();
    let batch =
        fleet.post(&format!("/v1/servers/{}/patch", host.id), &json!({"packages": ["slow"]}));
    let mut states: Vec<String> = Vec::new();
    let seen = fleet.until(&crate::support::batch_path(&batch), |seen| {
        let task = &seen["results"][0];
        let state = task["state"].as_str().unwrap();
        if states.last().is_none_or(|last| last != state) {
            states.push(state.to_owned());
        }
        if state == "installing" && !log.contains("the first half") {
            let path = format!(
                "{}/tasks/{}/log",
                crate::support::batch_path(seen),
                task["id"].as_str().unwrap()
            );
            log = fleet.text(&path);
            if log.contains("the first half") {
                assert!(!log.contains("the second half"), "{log}");
                assert_eq!(fleet.server(&host.id)["activity"], "patching");
                server.root.write("/run/go-on", "");
            }
        }
        !seen["finished_at"].is_null()
    });
    let task = &seen["results"][0];
    assert_eq!(
        (&task["state"], package_changes(task)),
        (&json!("succeeded"), one_change("slow 1.0 > 1.1"))
    );
    let place = |state: &String| STATES.iter().position(|known| known == state);
    let places: Vec<usize> = states.iter().map(|state| place(state).unwrap()).collect();
    assert!(places.is_sorted(), "{states:?}");
    assert!(states.contains(&"installing".to_owned()), "{states:?}");
    let log = fleet.text(task["result"]["log"].as_str().unwrap());
    assert!(log.contains("the second half"), "{log}");
}
