//! `/v1/patches` and `/v1/summary`.

use std::time::Duration;

use jiff::SignedDuration;
use serde_json::{Value, json};
use service::projections::patches::rebuild;
use vocab::{BlockedBy, Pending, Role, Severity, UpdateType};

use crate::fleet::{Host, join, security};
use crate::support::{Service, TestRequest};

async fn list_patches(service: &Service, query: &str) -> Vec<(String, u64)> {
    let list = service.get(&format!("/v1/patches?{query}")).await.is(200).json();
    rows(&list)
}

fn rows(list: &Value) -> Vec<(String, u64)> {
    let row = |row: &Value| {
        (
            row["package_name"].as_str().unwrap().to_owned(),
            row["affected_servers"].as_u64().unwrap(),
        )
    };
    list["data"].as_array().unwrap().iter().map(row).collect()
}

fn named(rows: &[(&str, u64)]) -> Vec<(String, u64)> {
    rows.iter().map(|(name, servers)| ((*name).to_owned(), *servers)).collect()
}

fn common() -> Vec<Pending> {
    let mut tzdata = Pending::new("tzdata", "all", "2026a", "2026b");
    tzdata.update_type = UpdateType::Bugfix;
    vec![security("openssl", Severity::High, &["CVE-2026-1", "CVE-2026-2"]), tzdata]
}

async fn fleet(service: &Service) -> [vocab::ServerId; 3] {
    let mut held = security("curl", Severity::High, &["CVE-2026-3"]);
    held.blocked_by = Some(BlockedBy::Held);
    let mut more = common();
    more.push(security("linux", Severity::Critical, &[]));
    more.push(held);
    let servers = [
        join(service, Host::new("web-1").with_updates(common())).await,
        join(service, Host { reboot_required: true, ..Host::new("web-2").with_updates(common()) })
            .await,
        join(
            service,
            Host {
                os: ("ubuntu", "24.04"),
                ..Host::new("db-1").in_environment("staging").with_updates(more)
            },
        )
        .await,
    ];
    assert!(rebuild(&service.app, service.org).await.unwrap());
    servers
}

async fn patches_are_listed_by_package_worst_first(service: &Service) {
    let [web, _, db] = fleet(service).await;
    assert_eq!(
        list_patches(service, "").await,
        named(&[("linux", 1), ("openssl", 3), ("curl", 1), ("tzdata", 3)])
    );
    assert_eq!(list_patches(service, "severity=high").await, named(&[("openssl", 3), ("curl", 1)]));
    assert_eq!(
        list_patches(service, "severity=critical,unknown").await,
        named(&[("linux", 1), ("tzdata", 3)])
    );
    assert_eq!(
        list_patches(service, &format!("server_id={web}")).await,
        named(&[("openssl", 3), ("tzdata", 3)])
    );
    assert_eq!(
        list_patches(service, &format!("server_id={db}&severity=high&limit=1&offset=1")).await,
        named(&[("curl", 1)])
    );
    assert_eq!(
        list_patches(service, "limit=2&offset=1").await,
        named(&[("openssl", 3), ("curl", 1)])
    );
    let list = service.get("/v1/patches?limit=1").await.json();
    assert_eq!(list["meta"], json!({"total": 4, "limit": 1, "offset": 0}));
    service.get("/v1/patches?severity=severe").await.is_problem(400, "invalid_parameter");
    service.get("/v1/patches?server=x").await.is_problem(400, "unknown_parameter");
    service.get("/v1/patches?server_id=nonsense").await.is_problem(404, "not_found");
}

async fn patch_shows_its_servers_and_cves(service: &Service) {
    let [web, ..] = fleet(service).await;
    let patch = service.get("/v1/patches/openssl").await.is(200).json();
    assert_eq!(
        (&patch["severity"], &patch["type"], &patch["kev"]),
        (&json!("high"), &json!("security"), &json!(false))
    );
    assert_eq!(
        patch["versions"],
        json!([
        {"os": "debian 12", "from": "1.0", "to": "1.1"}, {"os": "ubuntu 24.04", "from": "1.0", "to": "1.1"}])
    );
    assert_eq!(patch["cves"], json!(["CVE-2026-1", "CVE-2026-2"]));
    assert_eq!(patch["first_seen_at"], "2026-11-15T04:00:00Z");
    let hosts: Vec<_> =
        patch["servers"].as_array().unwrap().iter().map(|row| row["hostname"].clone()).collect();
    assert_eq!(hosts, ["db-1", "web-1", "web-2"]);
    assert_eq!(
        (&patch["servers"][1]["server_id"], &patch["servers"][1]["available_version"]),
        (&json!(web), &json!("1.1"))
    );
    assert_eq!(patch["cve_details"][0]["severity"], "high");
    assert!(patch["cve_details"][0]["url"].as_str().unwrap().contains("CVE-2026-1"));
    let curl = service.get("/v1/patches/curl").await.is(200).json();
    assert_eq!(curl["servers"][0]["blocked_by"], "held");
    let page = service.get("/v1/patches/openssl?limit=1&offset=2").await.is(200).json();
    assert_eq!(page["servers"].as_array().unwrap().len(), 1);
    assert_eq!(page["affected_servers"], 3);
    for absent in ["nothing", "%2e%2e", "a%20b"] {
        service.get(&format!("/v1/patches/{absent}")).await.is_problem(404, "not_found");
    }
}

async fn installed_patches_disappear_and_others_keep_first_seen(service: &Service) {
    let [_, _, db] = fleet(service).await;
    assert!(!rebuild(&service.app, service.org).await.unwrap(), "nothing changed");
    service.clock.advance(SignedDuration::from_mins(1));
    service.delete(&format!("/v1/servers/{db}")).await.is(204);
    let late =
        join(service, Host::new("late").with_updates(vec![Pending::new("vim", "amd64", "1", "2")]))
            .await;
    // A new package set is visible for its own server immediately.
    assert_eq!(list_patches(service, &format!("server_id={late}")).await, named(&[("vim", 1)]));
    assert!(rebuild(&service.app, service.org).await.unwrap());
    assert_eq!(
        list_patches(service, "").await,
        named(&[("openssl", 2), ("tzdata", 2), ("vim", 1)])
    );
    service.get("/v1/patches/linux").await.is_problem(404, "not_found");
    let seen = async |name: &str| {
        service.get(&format!("/v1/patches/{name}")).await.json()["first_seen_at"].clone()
    };
    assert_eq!(seen("openssl").await, "2026-11-15T04:00:00Z");
    assert_eq!(seen("vim").await, "2026-11-15T04:01:00Z");
}

async fn patch_list_follows_servers_automatically(service: &Service) {
    let background = service::projections::patches::spawn(service.app.service().clone());
    join(service, Host::new("web-1").with_updates(common())).await;
    let came = async {
        while list_patches(service, "").await != named(&[("openssl", 1), ("tzdata", 1)]) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), came).await.expect("the rows never appeared");
    service.app.start_drain();
    background.await.unwrap();
}

async fn environment_limited_key_sees_patches_of_its_servers(service: &Service) {
    let [web, _, db] = fleet(service).await;
    let key = service.key(Role::Viewer, Some(&["staging"])).await;
    let ask =
        async |path: String| TestRequest::get(&path).with_key(&key).send(&service.router).await;
    let list = ask("/v1/patches".into()).await.is(200).json();
    assert_eq!(rows(&list), named(&[("linux", 1), ("curl", 1), ("openssl", 1), ("tzdata", 1)]));
    let list = ask(format!("/v1/patches?server_id={db}&severity=critical")).await.is(200).json();
    assert_eq!(rows(&list), named(&[("linux", 1)]));
    ask(format!("/v1/patches?server_id={web}")).await.is_problem(404, "not_found");
    let patch = ask("/v1/patches/openssl".into()).await.is(200).json();
    assert_eq!(patch["servers"].as_array().unwrap().len(), 1);
    let summary = ask("/v1/summary".into()).await.is(200).json();
    assert_eq!(
        (&summary["servers"]["total"], &summary["patches"]["total"]),
        (&json!(1), &json!(4))
    );
}

async fn summary_counts_servers_patches_batches_and_schedules(service: &Service) {
    let before = service.get("/v1/summary").await.is(200).json();
    assert_eq!((&before["servers"]["total"], &before["counted_at"]), (&json!(0), &Value::Null));
    let [web, ..] = fleet(service).await;
    service.post("/v1/batches", json!({"server_ids": [web], "security_only": true})).await.is(202);
    service
        .post("/v1/schedules", json!({"name": "s", "cron": "@daily", "targets": {"all": true}}))
        .await
        .is(201);
    let summary = service.get("/v1/summary").await.is(200).json();
    assert_eq!(
        summary["servers"],
        json!({"total": 3, "online": 3, "offline": 0, "reboot_required": 1,
        "quarantined": 0, "up_to_date": 0, "with_updates": 3, "stale": 0, "not_scanned": 0,
        "with_security_updates": 3})
    );
    assert_eq!(
        summary["patches"],
        json!({"total": 4, "security": 3,
        "severity": {"critical": 1, "high": 2, "medium": 0, "low": 0, "unknown": 1}})
    );
    assert_eq!(
        summary["batches"],
        json!({"open": 1, "running": 0, "paused": 0, "halted": 0, "awaiting_approval": 0})
    );
    assert_eq!(
        summary["schedules"],
        json!({"total": 1, "enabled": 1, "next_run_at": "2026-11-16T00:00:00Z"})
    );
    service.clock.advance(SignedDuration::from_mins(10));
    let later = service.get("/v1/summary").await.json();
    assert_eq!((&later["servers"]["online"], &later["servers"]["offline"]), (&json!(0), &json!(3)));
}

testkit::both!(
    crate::support:
    patches_are_listed_by_package_worst_first,
    patch_shows_its_servers_and_cves,
    installed_patches_disappear_and_others_keep_first_seen,
    patch_list_follows_servers_automatically,
    environment_limited_key_sees_patches_of_its_servers,
    summary_counts_servers_patches_batches_and_schedules,
);
