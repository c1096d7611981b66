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
