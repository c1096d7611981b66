//! Several organizations in one installation.

use serde_json::{Value, json};

use crate::operator::{Operator, POLL_INTERVAL};
use crate::support::{Dir, Running, first_key, fleetmend};
use crate::terminal::{Cli, CommandOutput, command_output};

fn orgs(dir: &Dir, args: &[&str]) -> CommandOutput {
    let data = dir.data();
    let all = [&["orgs"], args, &["--data-dir", data.to_str().unwrap()]].concat();
    command_output(fleetmend(&all).output().unwrap())
}

/// An organization is created while the service runs, gets servers, and is removed: its keys stop
/// working, its agents are notified, and the other organization is not affected.
#[tokio::test(flavor = "multi_thread")]
async fn organizations_are_created_and_removed_while_the_service_runs() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = Dir::new();
    let first = first_key(&dir.data());
    let service = Running::start(&dir.data(), &[]);
    let created = orgs(&dir, &["create", "Labs", "--json"]);
    assert_eq!(created.code, 0, "{}", created.err);
    let created: Value = serde_json::from_str(&created.out).unwrap();
    let second = created["api_key"].as_str().unwrap().to_owned();
    let again = orgs(&dir, &["create", "Labs"]);
    assert!(again.code == 1 && again.err.contains("already"), "{}", again.err);
    assert_eq!(orgs(&dir, &["create", " "]).code, 1);

    let labs = Operator::new(&service.address, &second);
    let fleet = labs.fleet(3, |config| config).await;
    let schedule = json!({"name": "nightly", "cron": "0 3 * * *", "targets": {"all": true},
        "options": {"security_only": true}});
    labs.post("/v1/schedules", schedule).await;
    let acme = Operator::new(&service.address, &first);
    assert_eq!(acme.get("/v1/servers").await["meta"]["total"], 0);
    let listed: Value = serde_json::from_str(&orgs(&dir, &["list", "--json"]).out).unwrap();
    let names: Vec<_> = listed["data"].as_array().unwrap().iter().map(|org| &org["name"]).collect();
    assert_eq!(names, ["Acme", "Labs"]);
    assert_eq!(
        (&listed["data"][1]["servers"], &listed["data"][1]["schedules"]),
        (&json!(3), &json!(1))
    );

    let unasked = orgs(&dir, &["remove", "Labs"]);
    assert_eq!(unasked.code, 2);
    assert!(unasked.err.contains("removes 3 servers"), "{}", unasked.err);
    assert_eq!(labs.get("/v1/servers").await["meta"]["total"], 3, "nothing must have changed");
    assert_eq!(orgs(&dir, &["remove", "Nobody", "--yes"]).code, 1);
    let removed = orgs(&dir, &["remove", "Labs", "--yes"]);
    assert_eq!(removed.code, 0, "{}", removed.err);
    while fleet.counts().removed < 3 {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let cli = Cli { url: service.address.clone(), key: second };
    while cli.run_piped(&["summary"]).code == 0 {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    assert!(cli.run_piped(&["summary"]).err.contains("[401 "));
    assert_eq!(acme.get("/v1/servers").await["meta"]["total"], 0);
    let listed: Value = serde_json::from_str(&orgs(&dir, &["list", "--json"]).out).unwrap();
    assert_eq!(listed["data"].as_array().unwrap().len(), 1);
    fleet.stop().await;
}
