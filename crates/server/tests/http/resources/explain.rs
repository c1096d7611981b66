//! `/v1/servers/{id}/updates/{package}` and `/v1/servers/{id}/cves/{cve}`: why something is not
//! patched. `domain::explain` tests every reason; these tests check that the facts arrive.

use serde_json::{Value, json};
use vocab::{BlockedBy, Installed, Pending, Role, ServerId, Severity};

use crate::fleet::{FAILED, Host, finish, join, security};
use crate::resources::feeds::{FRIDAY, import_feed, lines, osv, write_file};
use crate::support::{Service, TestRequest};

/// A server with openssl, whose update is pending, and vim, which has none.
async fn web_1(service: &Service, host: impl FnOnce(&mut Host)) -> ServerId {
    let mut web = Host::new("web-1").with_updates(vec![security("openssl", Severity::High, &[])]);
    web.installed =
        vec![Installed::new("openssl", "1.0", "amd64"), Installed::new("vim", "9.0", "amd64")];
    host(&mut web);
    join(service, web).await
}

async fn explain(service: &Service, server: ServerId, what: &str) -> Value {
    let path = format!("/v1/servers/{server}/{what}");
    let ask = TestRequest::get(&path).with_key(&service.viewer);
    ask.send(&service.router).await.is(200).json()
}

fn codes(explanation: &Value) -> Vec<&str> {
    let reasons = explanation["reasons"].as_array().unwrap();
    reasons.iter().map(|reason| reason["code"].as_str().unwrap()).collect()
}

async fn schedule(service: &Service, name: &str, options: Value) -> Value {
    let body = json!({"name": name, "cron": "0 3 * * *", "targets": {"environment": "production"},
        "options": options});
    service.post("/v1/schedules", body).await.is(201).json()
}

async fn schedule_that_installs_it_is_named(service: &Service) {
    let server = web_1(service, |_| {}).await;
    let seen = explain(service, server, "updates/openssl").await;
    assert_eq!((&seen["state"], codes(&seen)), (&json!("unscheduled"), vec!["no_schedule"]));
    assert_eq!(seen["packages"][0]["available_version"], "1.1");

    schedule(service, "others", json!({"packages": ["curl"]})).await;
    schedule(service, "careful", json!({"exclude": ["open*"]})).await;
    let seen = explain(service, server, "updates/openssl").await;
    assert_eq!(codes(&seen), ["excluded_by_schedule", "not_in_schedule"]);

    let nightly = schedule(service, "nightly", json!({"security_only": true})).await;
    let seen = explain(service, server, "updates/openssl").await;
    assert_eq!((&seen["state"], codes(&seen)), (&json!("scheduled"), vec![]));
    assert_eq!(seen["next"]["schedule_id"], nightly["id"]);
    assert_eq!(seen["next"]["at"], nightly["next_runs"][0]);
    // It selects servers of one environment only.
    let mut other = Host::new("dev-1").in_environment("development").with_updates(vec![security(
        "openssl",
        Severity::High,
        &[],
    )]);
    other.installed = vec![Installed::new("openssl", "1.0", "amd64")];
    let other = join(service, other).await;
    assert_eq!(codes(&explain(service, other, "updates/openssl").await), ["no_schedule"]);
}

async fn batch_and_its_failure_are_named(service: &Service) {
    let server = web_1(service, |_| {}).await;
    let body = json!({"server_ids": [server], "packages": ["openssl"], "name": "Friday"});
    let batch = service.post("/v1/batches", body).await.is(202).json();
    let seen = explain(service, server, "updates/openssl").await;
    assert_eq!((&seen["state"], &seen["batch_id"]), (&json!("in_progress"), &batch["id"]));
    assert_eq!(codes(&seen), ["waiting"]);
    // The batch does not install this package.
    assert_eq!(explain(service, server, "updates/vim").await["state"], "up_to_date");

    finish(service, batch["id"].as_str().unwrap(), server, FAILED).await;
    let seen = explain(service, server, "updates/openssl").await;
    assert_eq!(codes(&seen), ["last_attempt_failed", "no_schedule"]);
    let failed = &seen["reasons"][0];
    assert!(failed["detail"].as_str().unwrap().contains("Friday"), "{failed}");
}

async fn limits_of_host_and_package_manager_block(service: &Service) {
    let server = web_1(service, |host| {
        host.pending[0].blocked_by = Some(BlockedBy::Held);
        host.facts = json!({"limits": {"exclude": ["openssl"], "frozen": true}});
        host.quarantine = Some("its key was used twice");
    })
    .await;
    let seen = explain(service, server, "updates/openssl").await;
    assert_eq!(seen["state"], "blocked");
    let expected = ["quarantined", "host_frozen", "excluded_by_host", "held", "no_schedule"];
    assert_eq!(codes(&seen), expected);
    for reason in seen["reasons"].as_array().unwrap() {
        assert!(!reason["remedy"].as_str().unwrap().is_empty(), "{reason}");
    }
}

async fn cve_without_update_says_what_is_missing(service: &Service) {
    let server = web_1(service, |_| {}).await;
    let advisories = [
        osv("DSA-1", FRIDAY, "vim", "9.1", &["CVE-2026-1"]),
        osv("DSA-2", FRIDAY, "openssl", "1.1", &["CVE-2026-2"]),
    ];
    import_feed(service, &write_file(service, "Debian.jsonl", &lines(&advisories))).await.unwrap();
    service::projections::findings::rebuild(&service.app, service.org).await.unwrap();
    let seen = explain(service, server, "cves/CVE-2026-1").await;
    assert_eq!((&seen["state"], codes(&seen)), (&json!("no_fix"), vec!["repository_has_no_fix"]));
    assert_eq!(seen["packages"][0]["name"], "vim");
    // The package is explained by its CVE.
    assert_eq!(codes(&explain(service, server, "updates/vim").await), ["repository_has_no_fix"]);
    let seen = explain(service, server, "cves/CVE-2026-2").await;
    assert_eq!((&seen["state"], codes(&seen)), (&json!("unscheduled"), vec!["no_schedule"]));
    for missing in ["cves/CVE-2026-3", "updates/emacs", "updates/%00", "cves/%E2%80%AE"] {
        let path = format!("/v1/servers/{server}/{missing}");
        service.get(&path).await.is_problem(404, "not_found");
    }
}

/// A key that is limited to environments explains the servers in these only.
async fn server_outside_the_environments_of_a_key_is_not_found(service: &Service) {
    let server = web_1(service, |_| {}).await;
    let key = service.key(Role::Viewer, Some(&["development"])).await;
    let path = format!("/v1/servers/{server}/updates/openssl");
    let ask = TestRequest::get(&path).with_key(&key);
    ask.send(&service.router).await.is_problem(404, "not_found");
}

/// Two versions of a kernel are installed side by side: each is listed, and the update once.
async fn packages_installed_in_several_versions_are_listed(service: &Service) {
    let server = web_1(service, |host| {
        host.installed = vec![
            Installed::new("kernel", "5.1", "x86_64"),
            Installed::new("kernel", "5.2", "x86_64"),
        ];
        host.pending = vec![Pending::new("kernel", "x86_64", "5.2", "5.3")];
    })
    .await;
    let seen = explain(service, server, "updates/kernel").await;
    assert_eq!(seen["packages"].as_array().unwrap().len(), 2);
    assert_eq!(codes(&seen), ["no_schedule"]);
}

testkit::both!(
    crate::support:
    schedule_that_installs_it_is_named,
    batch_and_its_failure_are_named,
    limits_of_host_and_package_manager_block,
    cve_without_update_says_what_is_missing,
    server_outside_the_environments_of_a_key_is_not_found,
    packages_installed_in_several_versions_are_listed,
);
