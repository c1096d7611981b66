//! The lifecycle of a host: enrollment, absence, host limits and removal.

use lab::apt::{Deb, Pocket, Repo, Server};
use reqwest::Method;
use serde_json::{Value, json};

use crate::service::Dir;
use crate::support::{Fleet, Host, batch_path, package_changes, text};

/// A Debian host with one pending update.
fn server() -> Option<Server> {
    let repo = Repo::with(&[
        (Pocket::Stable, Deb::new("hello", "1.0")),
        (Pocket::Security, Deb::new("hello", "1.1").counts_runs()),
    ])?;
    Server::with_installed(&repo, &["hello"])
}

fn order() -> Value {
    json!({"packages": ["hello"]})
}

/// The system has a package database, but not the program that manages it.
#[test]
fn failed_scan_is_logged_with_its_reason() {
    let fleet = Fleet::new();
    let root = fleet.dir.0.join("root");
    for (path, content) in [
        ("etc/os-release", "ID=debian\nVERSION_ID=12\n"),
        ("etc/hostname", "bare\n"),
        (
            "var/lib/dpkg/status",
            "Package: hello\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.0\n\
             Maintainer: x\nDescription: x\n\n",
        ),
    ] {
        std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        std::fs::write(root.join(path), content).unwrap();
    }
    let reason = format!(
        "{} has no `apt-get`; with --root, apt, apk and pacman must be installed in the directory",
        root.display()
    );
    let mut host = Host::joined(&fleet, &root);
    let line = format!("the scan failed, so nothing new is reported: {reason}");
    fleet.until_true("the log says why the scan failed", || host.log_text().contains(&line));
    assert!(fleet.server(&host.id)["last_scan_at"].is_null());
    assert!(host.stop());
    for args in [&["scan"][..], &["scan", "--no-refresh"]] {
        let scan = host.run(args);
        assert_eq!(scan.status.code(), Some(1));
        assert!(text(&scan.stderr).contains(&reason), "{}", text(&scan.stderr));
    }
}

#[test]
fn removed_host_returns_only_as_a_new_server() {
    let Some(server) = server() else { return };
    let fleet = Fleet::new();
    let mut host = Host::joined(&fleet, server.root.dir());
    fleet.wait_for_scan(&host.id);
    let (status, _) = fleet.request(Method::DELETE, &format!("/v1/servers/{}", host.id), None);
    assert_eq!(status, 204);
    assert!(host.wait_for_end(&fleet), "{}", host.log_text());
    let (status, _) =
        fleet.request(Method::POST, &format!("/v1/servers/{}/patch", host.id), Some(&order()));
    assert_eq!(status, 404);
    // Starting it again gives the same result, and nothing else happens.
    host.start();
    assert!(host.wait_for_end(&fleet));
    assert!(host.log_text().contains("removed this host at"), "{}", host.log_text());
    let shown = text(&host.run(&["status"]).stdout);
    assert!(shown.contains("removed from its service"), "{shown}");
    assert_eq!(server.version("hello").unwrap(), "1.0");

    let before = host.id.clone();
    host.enroll(&fleet);
    assert_ne!(host.id, before);
    host.start();
    let task = fleet.patch(&host.id, &order());
    assert_eq!(package_changes(&task), ["hello 1.0 > 1.1"], "{task}");
    let listed = fleet.get("/v1/servers");
    let ids: Vec<_> = listed["data"].as_array().unwrap().iter().map(|row| &row["id"]).collect();
    assert_eq!(ids, [&json!(host.id)]);
    assert!(host.stop());
}

/// Dispatches an order to an agent that was killed while idle and never received it. Returns the
/// batch.
fn undelivered_order(fleet: &Fleet, host: &mut Host) -> Value {
    fleet.wait_for_scan(&host.id);
    fleet.until(&format!("/v1/servers/{}", host.id), |seen| seen["activity"] == "idle");
    host.kill();
    let batch = fleet.post(&format!("/v1/servers/{}/patch", host.id), &order());
    fleet.until(&batch_path(&batch), |seen| seen["results"][0]["state"] == "dispatched");
    batch
}

#[test]
fn canceled_undelivered_order_does_not_block_its_server() {
    let Some(server) = server() else { return };
    let fleet = Fleet::new();
    let mut host = Host::joined(&fleet, server.root.dir());
    let batch = undelivered_order(&fleet, &mut host);
    fleet.post(&format!("{}/cancel", batch_path(&batch)), &json!({}));
    host.start();
    let seen = fleet.until(&batch_path(&batch), |seen| !seen["finished_at"].is_null());
    assert_eq!(
        (&seen["state"], &seen["results"][0]["state"]),
        (&json!("canceled"), &json!("canceled"))
    );
    assert_eq!(server.version("hello").unwrap(), "1.0");
    let task = fleet.patch(&host.id, &order());
    assert_eq!(package_changes(&task), ["hello 1.0 > 1.1"], "{task}");
    assert!(host.stop());
}

#[test]
fn paused_undelivered_order_waits_again() {
    let Some(server) = server() else { return };
    let fleet = Fleet::new();
    let mut host = Host::joined(&fleet, server.root.dir());
    let batch = undelivered_order(&fleet, &mut host);
    fleet.post(&format!("{}/pause", batch_path(&batch)), &json!({}));
    host.start();
    let seen = fleet.until(&batch_path(&batch), |seen| seen["results"][0]["state"] != "dispatched");
    assert_eq!(
        (&seen["state"], &seen["results"][0]["state"]),
        (&json!("paused"), &json!("waiting"))
    );
    assert_eq!(server.version("hello").unwrap(), "1.0");
    fleet.post(&format!("{}/resume", batch_path(&batch)), &json!({}));
    let seen = fleet.until(&batch_path(&batch), |seen| !seen["finished_at"].is_null());
    assert_eq!(package_changes(&seen["results"][0]), ["hello 1.0 > 1.1"], "{seen}");
    assert_eq!(server.runs("hello"), ["1.1"]);
    assert!(host.stop());
}

/// The agent continues with a counter ahead of the service's, so that the host does not look like a
/// copy of itself.
#[test]
fn host_with_a_lost_counter_is_not_quarantined() {
    let Some(server) = server() else { return };
    let fleet = Fleet::new();
    let mut host = Host::joined(&fleet, server.root.dir());
    fleet.wait_for_scan(&host.id);
    for text in ["{\"counter\":", ""] {
        host.kill();
        server.root.write("/var/lib/fleetmend-agent/turn.json", text);
        host.start();
        let accepted = fleet.post(&format!("/v1/servers/{}/refresh", host.id), &json!({}));
        let path =
            format!("/v1/servers/{}/refreshes/{}", host.id, accepted["id"].as_str().unwrap());
        let seen = fleet.until(&path, |seen| seen["state"] != "pending");
        assert_eq!(seen["state"], "completed", "{seen}");
        assert!(fleet.server(&host.id)["quarantine"].is_null());
    }
    let task = fleet.patch(&host.id, &order());
    assert_eq!(package_changes(&task), ["hello 1.0 > 1.1"], "{task}");
    assert!(host.stop());
}

#[test]
fn order_for_an_offline_agent_runs_when_it_returns() {
    let Some(server) = server() else { return };
    let fleet = Fleet::new();
    let mut host = Host::joined(&fleet, server.root.dir());
    fleet.wait_for_scan(&host.id);
    assert!(host.stop(), "{}", host.log_text());
    let shown = text(&host.run(&["status"]).stdout);
    assert!(shown.contains("not running"), "{shown}");
    let batch = fleet.post(&format!("/v1/servers/{}/patch", host.id), &order());
    // The order is on its way, and no agent has accepted it.
    let seen = fleet.until(&batch_path(&batch), |seen| {
        ["waiting", "dispatched"].contains(&seen["results"][0]["state"].as_str().unwrap())
    });
    assert_eq!(seen["finished_at"], Value::Null);
    assert_eq!(server.version("hello").unwrap(), "1.0");
    host.start();
    let seen = fleet.until(&batch_path(&batch), |seen| !seen["finished_at"].is_null());
    let task = &seen["results"][0];
    assert_eq!(
        (&task["state"], package_changes(task)),
        (&json!("succeeded"), vec!["hello 1.0 > 1.1".to_owned()])
    );
    assert_eq!(server.runs("hello"), ["1.1"]);
    let shown = text(&host.run(&["status"]).stdout);
    assert!(shown.contains("running, "), "{shown}");
}

#[test]
fn host_limits_are_enforced_and_named_in_the_result() {
    let Some(server) = server() else { return };
    let fleet = Fleet::new();
    let host = Host::joined(&fleet, server.root.dir());
    server.root.write("/etc/fleetmend/limits.toml", "frozen = true\n");
    let task = fleet.patch(&host.id, &order());
    // By now the agent has reported the limit, so the preview shows no updates.
    let preview = json!({"server_ids": [host.id], "packages": []});
    let (status, preview) = fleet.request(Method::POST, "/v1/preview", Some(&preview));
    assert_eq!(status, 200, "{preview}");
    assert_eq!(preview["servers"][0]["updates"], json!([]), "{preview}");
    assert!(preview["warnings"][0].as_str().unwrap().contains("will refuse"), "{preview}");
    assert_eq!(task["state"], "failed", "{task}");
    assert_eq!(task["result"]["failure_code"], "rejected_by_agent");
    let message = task["result"]["message"].as_str().unwrap();
    assert!(message.contains("frozen"), "{message}");
    assert_eq!(server.version("hello").unwrap(), "1.0");
    server.root.write("/etc/fleetmend/limits.toml", "frozen = flase\n");
    let task = fleet.patch(&host.id, &order());
    assert_eq!(task["result"]["failure_code"], "rejected_by_agent", "{task}");
    server.root.write("/etc/fleetmend/limits.toml", "exclude = [\"hel*\"]\n");
    let task = fleet.patch(&host.id, &order());
    assert_eq!(task["state"], "skipped", "{task}");
    assert_eq!(server.version("hello").unwrap(), "1.0");
    server.root.write("/etc/fleetmend/limits.toml", "frozen = false\n");
    let task = fleet.patch(&host.id, &order());
    assert_eq!(package_changes(&task), ["hello 1.0 > 1.1"], "{task}");
}

/// Writes a self-signed certificate and its key to files.
pub(crate) fn certificate(dir: &Dir, name: &str) -> (Vec<u8>, String, String) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let path = |end: &str| dir.0.join(format!("{name}.{end}")).to_str().unwrap().to_owned();
    std::fs::write(path("cert"), made.cert.pem()).unwrap();
    std::fs::write(path("key"), made.signing_key.serialize_pem()).unwrap();
    (made.cert.der().to_vec(), path("cert"), path("key"))
}

#[test]
fn token_pins_a_self_signed_certificate() {
    let Some(server) = server() else { return };
    let dir = Dir::new();
    let secure = |name: &str| {
        let (der, cert, key) = certificate(&dir, name);
        let ours = [reqwest::Certificate::from_der(&der).unwrap()];
        let client = reqwest::Client::builder().tls_certs_only(ours);
        Fleet::with(&["--tls-cert", &cert, "--tls-key", &key], client)
    };
    let (fleet, impostor) = (secure("ours"), secure("theirs"));
    assert!(fleet.service.address.starts_with("https://"));
    let mut host = Host::not_enrolled(&fleet, server.root.dir());
    let token = fleet.token();
    let output = host.run(&["enroll", "--server", &impostor.service.address, "--token", &token]);
    assert_eq!(output.status.code(), Some(1));
    let words = text(&output.stderr);
    assert!(words.contains("its certificate does not match the token"), "{words}");
    assert_eq!(impostor.get("/v1/servers")["meta"]["total"], 0);
    let plain = fleet.service.address.replace("https", "http");
    let output = host.run(&["enroll", "--server", &plain, "--token", &token]);
    assert!(text(&output.stderr).contains("https://"), "{}", text(&output.stderr));

    host.enroll(&fleet);
    host.start();
    let task = fleet.patch(&host.id, &order());
    assert_eq!(package_changes(&task), ["hello 1.0 > 1.1"], "{task}");
    assert!(fleet.text(task["result"]["log"].as_str().unwrap()).contains("Setting up hello"));
}
