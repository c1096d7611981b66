//! `fleetmend users`: creating the first user, and resetting passwords.

use std::process::Output;

use serde_json::Value;

use crate::support::{Dir, first_key, fleetmend};

fn users(dir: &Dir, args: &[&str]) -> Output {
    let data = dir.data();
    let mut all = vec!["users"];
    all.extend(args);
    all.extend(["--data-dir", data.to_str().unwrap()]);
    fleetmend(&all).output().unwrap()
}

#[test]
fn users_are_invited_once_and_reset_repeatedly() {
    let dir = Dir::new();
    let early = users(&dir, &["list"]);
    assert_eq!(early.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&early.stderr).contains("fleetmend init"));
    first_key(&dir.data());
    let nobody = users(&dir, &["list"]);
    assert!(String::from_utf8_lossy(&nobody.stdout).contains("users create"));

    let created = users(&dir, &["create", "Ann@Example.org", "--url", "https://fleet.example/"]);
    let output = String::from_utf8_lossy(&created.stdout).into_owned();
    assert!(
        created.status.success() && output.contains("  https://fleet.example/welcome/"),
        "{output}"
    );
    let twice = users(&dir, &["create", "ann@example.org"]);
    assert_eq!(twice.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&twice.stderr).contains("users reset"));

    let reset = users(&dir, &["reset", "ANN@example.org", "--json"]);
    let reported: Value = serde_json::from_slice(&reset.stdout).unwrap();
    assert_eq!(reported["name"], "ann@example.org");
    assert!(!output.contains(reported["link"].as_str().unwrap().rsplit('/').next().unwrap()));
    let unknown = users(&dir, &["reset", "bob"]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no user named `bob`"));

    let list: Value = serde_json::from_slice(&users(&dir, &["list", "--json"]).stdout).unwrap();
    assert_eq!(list[0]["role"], "admin");
    assert_eq!(list[0]["has_password"], false);
    let wrong = users(&dir, &["create", "eve", "--role", "root"]);
    assert_eq!(wrong.status.code(), Some(2));
}

/// The link has the address of the service: from its settings, unless `--url` gives another.
#[test]
fn links_use_the_address_in_the_settings() {
    let dir = Dir::new();
    first_key(&dir.data());
    let other = dir.0.join("other.db");
    let settings = format!(
        "listen = \"10.1.2.3:8443\"\ntls_cert = \"cert.pem\"\ntls_key = \"key.pem\"\n\
         database = {:?}\n",
        format!("sqlite:{}", other.display())
    );
    std::fs::rename(dir.data().join("fleetmend.db"), &other).unwrap();
    std::fs::write(dir.data().join("fleetmend.toml"), settings).unwrap();
    let link = |args: &[&str]| {
        let done = users(&dir, &[args, &["--json"]].concat());
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let report: Value = serde_json::from_slice(&done.stdout).unwrap();
        report["link"].as_str().unwrap().to_owned()
    };
    let created = link(&["create", "ann"]);
    assert!(created.starts_with("https://10.1.2.3:8443/welcome/"), "{created}");
    let reset = link(&["reset", "ann"]);
    assert!(reset.starts_with("https://10.1.2.3:8443/welcome/"), "{reset}");
    let named = link(&["reset", "ann", "--url", "https://fleet.example"]);
    assert!(named.starts_with("https://fleet.example/welcome/"), "{named}");
    let shown = users(&dir, &["reset", "ann"]).stdout;
    assert!(String::from_utf8_lossy(&shown).contains("--url"), "the text says how to change it");
    assert!(!dir.data().join("fleetmend.db").exists());
}
