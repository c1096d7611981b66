//! Rotating both keys of an installation with a real agent.

use std::path::Path;

use lab::apt::{Deb, Pocket, Repo, Server};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::service::{Running, fleetmend};
use crate::support::{Fleet, Host, package_changes, text};

/// Runs a `fleetmend secrets` command. Returns whether it succeeded, and its output.
fn run_secrets(fleet: &Fleet, args: &[&str]) -> (bool, String) {
    let data = fleet.dir.data();
    let place = ["--data-dir", data.to_str().unwrap()];
    let output = fleetmend(&[&["secrets"], args, &place[..]].concat()).output().unwrap();
    (output.status.success(), format!("{}{}", text(&output.stdout), text(&output.stderr)))
}

#[track_caller]
fn run_secrets_ok(fleet: &Fleet, args: &[&str]) {
    let (well, output) = run_secrets(fleet, args);
    assert!(well, "{args:?}: {output}");
}

fn list_secrets(fleet: &Fleet) -> Value {
    let (well, output) = run_secrets(fleet, &["list", "--json"]);
    assert!(well, "{output}");
    serde_json::from_str(&output).unwrap()
}

/// A service whose client keeps no connections open, so that it can be restarted.
fn start_restartable() -> Fleet {
    Fleet::with(&[], reqwest::Client::builder().pool_max_idle_per_host(0))
}

/// Stops the service and starts it again at the same address.
fn restart(fleet: &mut Fleet) {
    let listen = fleet.service.address.strip_prefix("http://").unwrap().to_owned();
    fleet.service.signal(Signal::SIGTERM);
    assert!(fleet.service.ended_well());
    fleet.service = Running::at(&listen, &fleet.dir.data(), &[]);
}

fn tag(state: &Path) -> String {
    let identity: Value =
        serde_json::from_slice(&std::fs::read(state.join("identity.json")).unwrap()).unwrap();
    identity["tag"].as_str().unwrap().to_owned()
}

/// Rotates and retires both keys while an agent runs, each followed by a restart of the service.
fn rotate_and_retire(mut fleet: Fleet, host: &Host) -> Fleet {
    let state = host.root.join("var/lib/fleetmend-agent");
    let first = tag(&state);

    run_secrets_ok(&fleet, &["rotate", "orders"]);
    run_secrets_ok(&fleet, &["rotate", "root"]);
    let (well, output) = run_secrets(&fleet, &["retire", "root"]);
    assert!(!well && output.contains("restart the service first"), "{output}");
    restart(&mut fleet);
    fleet.until_true("the agent has new credentials and trusts the new key", || {
        let seen = list_secrets(&fleet);
        let trusted = seen["data"].as_array().unwrap().iter();
        let left = { trusted }.find(|key| key["file"] == "orders.next.key").unwrap();
        left["agents_without_it"] == 0 && seen["root_rotation"]["agents"] == 0
    });
    assert_ne!(tag(&state), first);
    let log = host.log_text();
    assert!(log.contains("the service renewed this host's identity tag"), "{log}");

    // The API key of this test and the host's token were derived from the old key.
    let (well, output) = run_secrets(&fleet, &["retire", "root"]);
    assert!(!well && output.contains("first admin key (key_"), "{output}");
    let made = fleet.post("/v1/api-keys", &json!({"name": "new", "role": "admin"}));
    let old = fleet.get("/v1/api-keys")["data"].as_array().unwrap().clone();
    fleet.key = made["api_key"].as_str().unwrap().to_owned();
    let ends = |fleet: &Fleet, path: &str, id: &Value| {
        let path = format!("{path}/{}", id.as_str().unwrap());
        let (status, output) = fleet.request(reqwest::Method::DELETE, &path, None);
        assert!((200..300).contains(&status), "{path}: {status} {output}");
    };
    for key in old.iter().filter(|key| key["id"] != made["id"]) {
        ends(&fleet, "/v1/api-keys", &key["id"]);
    }
    for token in fleet.get("/v1/enrollment-tokens")["data"].as_array().unwrap() {
        ends(&fleet, "/v1/enrollment-tokens", &token["id"]);
    }
    run_secrets_ok(&fleet, &["retire", "root"]);
    run_secrets_ok(&fleet, &["retire", "orders"]);
    assert!(!fleet.dir.data().join("root.old.key").exists());
    restart(&mut fleet);
    fleet
}

/// Asserts that the audit log verifies with the remaining keys.
fn assert_audit_log_verifies(fleet: &Fleet) {
    let data = fleet.dir.data();
    let doctor = fleetmend(&["doctor", "--json", "--data-dir", data.to_str().unwrap()]);
    let output: Value = serde_json::from_slice(&{ doctor }.output().unwrap().stdout).unwrap();
    let logs = output["findings"].as_array().unwrap().iter();
    let states: Vec<_> =
        logs.filter(|found| found["check"] == "audit log").map(|found| &found["state"]).collect();
    assert_eq!(states, ["ok"], "{output}");
}

#[test]
fn agent_executes_orders_after_both_keys_are_rotated() {
    let repo = Repo::with(&[
        (Pocket::Stable, Deb::new("hello", "1.0")),
        (Pocket::Security, Deb::new("hello", "1.1")),
    ]);
    let Some(server) = repo.and_then(|repo| Server::with_installed(&repo, &["hello"])) else {
        return;
    };
    let fleet = start_restartable();
    let mut host = Host::joined(&fleet, server.root.dir());
    fleet.wait_for_scan(&host.id);
    let fleet = rotate_and_retire(fleet, &host);
    let task = fleet.patch(&host.id, &json!({"packages": ["hello"]}));
    assert_eq!(package_changes(&task), ["hello 1.0 > 1.1"], "{task}");
    assert_audit_log_verifies(&fleet);
    assert!(host.stop());
}

/// Needs no package manager: the agent accepts the order, tries, and reports why it failed.
#[test]
fn agent_accepts_orders_after_both_keys_are_rotated() {
    let fleet = start_restartable();
    let root = fleet.dir.0.join("root");
    for (file, content) in [
        ("etc/os-release", "ID=debian\nVERSION_ID=\"12\"\nPRETTY_NAME=\"Debian 12\"\n"),
        (
            "var/lib/dpkg/status",
            "Package: bash\nStatus: install ok installed\nVersion: 1\nArchitecture: all\n\n",
        ),
    ] {
        let path = root.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    let mut host = Host::joined(&fleet, &root);
    let fleet = rotate_and_retire(fleet, &host);
    for _ in 0..2 {
        let task = fleet.patch(&host.id, &json!({"packages": ["bash"]}));
        let id = task["id"].as_str().unwrap();
        // The agent reports before it writes its log.
        let failed = format!("{id}: failed");
        fleet.until_true("the agent logs the result", || host.log_text().contains(&failed));
        // A restarted agent finds its new credentials.
        assert!(host.stop());
        host.start();
    }
    assert_audit_log_verifies(&fleet);
    assert!(host.stop());
}

/// Forced retirement of the old key warns about the consequences, and exactly these happen.
#[test]
fn forced_root_key_retirement_locks_out_its_dependents() {
    let mut fleet = start_restartable();
    let made = fleet.post("/v1/enrollment-tokens", &json!({"name": "images"}));
    let token = made["token"].as_str().unwrap().to_owned();
    run_secrets_ok(&fleet, &["rotate", "root"]);
    restart(&mut fleet);
    let (well, output) = run_secrets(&fleet, &["retire", "root"]);
    assert!(
        !well && output.contains("1 enrollment token: images (") && output.contains("--force"),
        "{output}"
    );
    // Not a terminal, so it cannot ask for confirmation.
    let (well, output) = run_secrets(&fleet, &["retire", "root", "--force"]);
    assert!(!well && output.contains("--yes"), "{output}");
    assert!(fleet.dir.data().join("root.old.key").exists());
    let late = fleet.post("/v1/api-keys", &json!({"name": "late", "role": "admin"}));
    run_secrets_ok(&fleet, &["retire", "root", "--force", "--yes"]);
    assert!(!fleet.dir.data().join("root.old.key").exists());
    restart(&mut fleet);
    let (status, output) = fleet.request(reqwest::Method::GET, "/v1/servers", None);
    assert_eq!(status, 401, "{output}");
    fleet.key = late["api_key"].as_str().unwrap().to_owned();
    fleet.get("/v1/servers");
    // The token is checked before anything else in an enrollment.
    let facts = json!({"hostname": "web-1", "os": {"id": "debian", "version": "12", "name": "Debian 12"},
        "kernel": "6.1.0", "arch": "x86_64", "package_manager": "apt", "agent_version": "0.1.0"});
    let body = json!({"token": token, "public_key": "", "facts": facts});
    let (status, output) = fleet.request(reqwest::Method::POST, "/agent/v1/enroll", Some(&body));
    assert_eq!((status, &output["code"]), (401, &json!("bad_token")), "{output}");
    assert_audit_log_verifies(&fleet);
}
