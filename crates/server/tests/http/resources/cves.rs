//! `/v1/cves`, the CVEs of a server, and how both follow feeds and scans.

use std::time::Duration;

use serde_json::{Value, json};
use service::projections::findings::rebuild;
use vocab::{Installed, Role, ServerId, Severity};

use crate::fleet::{Host, join, security};
use crate::resources::feeds::{import_feed, lines, osv, write_file};
use crate::support::{Service, TestRequest};

const FRIDAY: &str = "2026-11-13T00:00:00Z";
const SATURDAY: &str = "2026-11-14T00:00:00Z";
const V3: &str = "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:N/I:N/A:H";

fn host(name: &'static str, curl: &str) -> Host {
    let installed =
        vec![Installed::new("curl", curl, "amd64"), Installed::new("vim", "9.0", "amd64")];
    Host { installed, ..Host::new(name) }
}

/// Two old servers, a new one, and one with a system that no feed covers.
async fn fleet(service: &Service) -> [ServerId; 4] {
    [
        join(service, host("web-1", "1.0")).await,
        join(service, host("web-2", "1.0")).await,
        join(service, host("db-1", "1.2").in_environment("staging")).await,
        join(service, Host { os: ("plan9", "4"), ..host("odd", "1.0") }).await,
    ]
}

async fn publish(service: &Service) {
    let mut vim = osv("DSA-2", FRIDAY, "vim", "9.1", &["CVE-2026-2"]);
    vim["severity"] = json!([{"type": "CVSS_V3", "score": V3}]);
    let curl = osv("DSA-1", FRIDAY, "curl", "1.1", &["CVE-2026-1"]);
    let path = write_file(service, "Debian.jsonl", &lines(&[curl, vim]));
    import_feed(service, &path).await.unwrap();
    let kev = json!({"title": "list", "catalogVersion": "1", "dateReleased": FRIDAY, "count": 1, "vulnerabilities": [
        {"cveID": "CVE-2026-1", "dateAdded": "2026-11-12", "knownRansomwareCampaignUse": "Known"}]});
    import_feed(service, &write_file(service, "kev.json", &kev.to_string())).await.unwrap();
    let epss = "#model_version:v1,score_date:2026-11-13T00:00:00Z\ncve,epss,percentile\nCVE-2026-2,0.25,0.9\n";
    import_feed(service, &write_file(service, "epss.csv", epss)).await.unwrap();
}

fn rows(list: &Value) -> Vec<(String, u64)> {
    let row = |row: &Value| {
        (row["id"].as_str().unwrap().to_owned(), row["affected_servers"].as_u64().unwrap())
    };
    list["data"].as_array().unwrap().iter().map(row).collect()
}

fn named(rows: &[(&str, u64)]) -> Vec<(String, u64)> {
    rows.iter().map(|(id, servers)| ((*id).to_owned(), *servers)).collect()
}

async fn list_cves(service: &Service, query: &str) -> Vec<(String, u64)> {
    rows(&service.get(&format!("/v1/cves?{query}")).await.is(200).json())
}

async fn cve_list_shows_exposed_servers(service: &Service) {
    let [web, ..] = fleet(service).await;
    publish(service).await;
    assert!(rebuild(&service.app, service.org).await.unwrap());
    assert!(!rebuild(&service.app, service.org).await.unwrap(), "nothing changed");
    assert_eq!(list_cves(service, "").await, named(&[("CVE-2026-2", 3), ("CVE-2026-1", 2)]));
    assert_eq!(list_cves(service, "kev=true").await, named(&[("CVE-2026-1", 2)]));
    assert_eq!(list_cves(service, "severity=high,critical").await, named(&[("CVE-2026-2", 3)]));
    assert_eq!(list_cves(service, "q=cve-2026-1").await, named(&[("CVE-2026-1", 2)]));
    assert_eq!(list_cves(service, "limit=1&offset=1").await, named(&[("CVE-2026-1", 2)]));
    let first = service.get("/v1/cves").await.json()["data"][0].clone();
    assert_eq!(
        first,
        json!({"id": "CVE-2026-2", "severity": "high", "severity_source": "cvss:3.1", "cvss": 7.5, "kev": false,
        "epss": 0.25, "affected_servers": 3, "suppressed_servers": 0, "packages": ["vim"], "published": "2026-11-01T00:00:00Z"})
    );
    let cve = service.get("/v1/cves/CVE-2026-1").await.is(200).json();
    assert_eq!(
        (&cve["kev"], &cve["severity"], &cve["affected_servers"]),
        (&json!(true), &json!("unknown"), &json!(2))
    );
    let servers = cve["servers"].as_array().unwrap();
    assert_eq!(servers.len(), 2);
    let found = &servers[0];
    assert_eq!(
        (&found["server_id"], &found["hostname"], &found["state"]),
        (&json!(web), &json!("web-1"), &json!("open"))
    );
    assert_eq!(
        (&found["package"], &found["installed_version"], &found["fixed_version"], &found["fix"]),
        (&json!("curl"), &json!("1.0"), &json!("1.1"), &json!("fixed"))
    );
    assert!(
        found["found"]
            .as_str()
            .unwrap()
            .contains("DSA-1 for Debian:12 names the source package `curl`"),
        "{found}"
    );
    for absent in ["CVE-2026-9", "nonsense", "%2e%2e"] {
        service.get(&format!("/v1/cves/{absent}")).await.is_problem(404, "not_found");
    }
    service.get("/v1/cves?severity=severe").await.is_problem(400, "invalid_parameter");
    service.get("/v1/cves?exploited=1").await.is_problem(400, "unknown_parameter");
}

async fn cve_shows_why_it_is_bad_and_what_fixes_it(service: &Service) {
    let pending = |name, environment| {
        let update = security("curl", Severity::High, &["CVE-2026-1"]);
        host(name, "1.0").in_environment(environment).with_updates(vec![update])
    };
    join(service, pending("web-1", "production")).await;
    join(service, pending("web-2", "production")).await;
    join(service, pending("db-1", "staging")).await;
    join(service, Host { environment: None, ..host("odd", "1.0") }).await;
    publish(service).await;
    let mut curl = osv("DSA-1", SATURDAY, "curl", "1.1", &["CVE-2026-1"]);
    curl["summary"] = json!("curl - security update");
    curl["details"] = json!(format!("A flaw\nin\u{1b} curl. {}", "word ".repeat(1_000)));
    curl["severity"] = json!([{"type": "CVSS_V3", "score": V3}]);
    import_feed(service, &write_file(service, "Debian.jsonl", &lines(&[curl]))).await.unwrap();
    rebuild(&service.app, service.org).await.unwrap();
    service::projections::patches::rebuild(&service.app, service.org).await.unwrap();
    let cve = service.get("/v1/cves/CVE-2026-1").await.is(200).json();
    let description = cve["description"].as_str().unwrap();
    assert!(description.starts_with("A flaw in curl. word"), "{description}");
    assert!(description.ends_with(" …") && description.len() < 1_020, "{description}");
    assert_eq!(cve["advisories"], json!([{"id": "DSA-1", "summary": "curl - security update"}]));
    assert_eq!(cve["cvss_vector"], V3);
    assert_eq!(cve["cvss_metrics"][0], json!({"name": "Attack vector", "value": "Network"}));
    assert_eq!(cve["cvss_metrics"].as_array().unwrap().len(), 8);
    assert_eq!(cve["kev_entry"], json!({"added": "2026-11-12", "due": null, "ransomware": true}));
    assert_eq!((&cve["epss_percentile"], &cve["epss_as_of"]), (&json!(null), &json!(null)));
    assert_eq!(
        cve["environments"],
        json!([
            {"environment": "production", "servers": 2, "suppressed": false},
            {"environment": "staging", "servers": 1, "suppressed": false},
            {"environment": null, "servers": 1, "suppressed": false},
        ])
    );
    assert_eq!(cve["fixed_by"], json!([{"package_name": "curl", "servers": 3}]));
    assert_eq!(cve["patchable_servers"], 3, "nothing is pending on one of the four servers");

    // A suppressed environment needs no patch. Others see only their own servers.
    let suppression = json!({"cve": "CVE-2026-1", "environment": "staging", "reason": "isolated"});
    service.post("/v1/suppressions", suppression).await.is(201);
    let cve = service.get("/v1/cves/CVE-2026-1").await.is(200).json();
    assert_eq!(
        (&cve["environments"][1]["suppressed"], &cve["patchable_servers"]),
        (&json!(true), &json!(2))
    );
    let key = service.key(Role::Viewer, Some(&["production"])).await;
    let ask = TestRequest::get("/v1/cves/CVE-2026-1").with_key(&key);
    let cve = ask.send(&service.router).await.is(200).json();
    assert_eq!(cve["environments"].as_array().unwrap().len(), 1);
    assert_eq!((&cve["fixed_by"][0]["servers"], &cve["patchable_servers"]), (&json!(2), &json!(2)));
    let everywhere = json!({"cve": "CVE-2026-1", "reason": "not reachable"});
    service.post("/v1/suppressions", everywhere).await.is(201);
    let cve = service.get("/v1/cves/CVE-2026-1").await.is(200).json();
    assert_eq!(cve["patchable_servers"], 0);
    assert!(cve["environments"].as_array().unwrap().iter().all(|one| one["suppressed"] == true));
    let patch = service.get("/v1/patches/curl").await.is(200).json();
    let environments = [("production", 2), ("staging", 1)]
        .map(|(environment, servers)| json!({"environment": environment, "servers": servers}));
    assert_eq!(patch["environments"], json!(environments));
}

async fn server_shows_and_counts_its_cves(service: &Service) {
    let [web, _, db, odd] = fleet(service).await;
    let before = service.get(&format!("/v1/servers/{web}")).await.is(200).json();
    assert_eq!((&before["cves"], &before["cves_checked"]), (&json!([]), &json!(false)));
    publish(service).await;
    rebuild(&service.app, service.org).await.unwrap();
    let shown = service.get(&format!("/v1/servers/{web}")).await.is(200).json();
    assert_eq!(shown["cves_checked"], true);
    let cves = shown["cves"].as_array().unwrap();
    let ids: Vec<_> = cves.iter().map(|cve| cve["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["CVE-2026-2", "CVE-2026-1"]);
    assert_eq!(
        (&cves[0]["cvss"], &cves[0]["epss"], &cves[1]["kev"]),
        (&json!(7.5), &json!(0.25), &json!(true))
    );
    assert_eq!(
        shown["summary"]["cves"],
        json!({"critical": 0, "high": 1, "medium": 0, "low": 0, "unknown": 1})
    );
    let newer = service.get(&format!("/v1/servers/{db}")).await.json();
    assert_eq!(newer["cves"].as_array().unwrap().len(), 1, "its curl is newer than the fix");
    let unknown = service.get(&format!("/v1/servers/{odd}")).await.json();
    assert_eq!(
        (&unknown["cves"], &unknown["cves_checked"]),
        (&json!([]), &json!(false)),
        "not checked, which does not mean no CVEs"
    );
}

async fn changed_advisory_is_rematched_and_withdrawn_one_removed(service: &Service) {
    fleet(service).await;
    publish(service).await;
    rebuild(&service.app, service.org).await.unwrap();
    let later = osv("DSA-1", SATURDAY, "curl", "1.3", &["CVE-2026-1"]);
    import_feed(service, &write_file(service, "Debian.jsonl", &lines(&[later]))).await.unwrap();
    assert!(rebuild(&service.app, service.org).await.unwrap());
    assert_eq!(list_cves(service, "").await, named(&[("CVE-2026-2", 3), ("CVE-2026-1", 3)]));
    let mut withdrawn = osv("DSA-2", SATURDAY, "vim", "9.1", &["CVE-2026-2"]);
    withdrawn["withdrawn"] = json!(SATURDAY);
    import_feed(service, &write_file(service, "Debian.jsonl", &lines(&[withdrawn]))).await.unwrap();
    assert!(rebuild(&service.app, service.org).await.unwrap());
    assert_eq!(list_cves(service, "").await, named(&[("CVE-2026-1", 3)]));
    service.get("/v1/cves/CVE-2026-2").await.is_problem(404, "not_found");
}

async fn broken_feed_resolves_no_findings(service: &Service) {
    fleet(service).await;
    publish(service).await;
    rebuild(&service.app, service.org).await.unwrap();
    let before = list_cves(service, "").await;
    import_feed(service, &write_file(service, "Debian.jsonl", "")).await.unwrap_err();
    assert!(!rebuild(&service.app, service.org).await.unwrap());
    assert_eq!(list_cves(service, "").await, before);
}

async fn environment_limited_key_sees_cves_of_its_servers(service: &Service) {
    fleet(service).await;
    publish(service).await;
    rebuild(&service.app, service.org).await.unwrap();
    let key = service.key(Role::Viewer, Some(&["staging"])).await;
    let ask = async |path: &str| TestRequest::get(path).with_key(&key).send(&service.router).await;
    assert_eq!(rows(&ask("/v1/cves").await.is(200).json()), named(&[("CVE-2026-2", 1)]));
    assert_eq!(rows(&ask("/v1/cves?kev=true").await.is(200).json()), []);
    ask("/v1/cves/CVE-2026-1").await.is_problem(404, "not_found");
    let cve = ask("/v1/cves/CVE-2026-2").await.is(200).json();
    assert_eq!(cve["servers"].as_array().unwrap().len(), 1);
    assert_eq!(cve["servers"][0]["hostname"], "db-1");
}

async fn cve_list_follows_servers_and_feeds_automatically(service: &Service) {
    let background = service::projections::findings::spawn(service.app.service().clone());
    publish(service).await;
    fleet(service).await;
    let came = async {
        while list_cves(service, "").await != named(&[("CVE-2026-2", 3), ("CVE-2026-1", 2)]) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), came).await.expect("the rows never appeared");
    service.app.start_drain();
    background.await.unwrap();
}

testkit::both!(
    crate::support:
    cve_list_shows_exposed_servers,
    cve_shows_why_it_is_bad_and_what_fixes_it,
    server_shows_and_counts_its_cves,
    changed_advisory_is_rematched_and_withdrawn_one_removed,
    broken_feed_resolves_no_findings,
    environment_limited_key_sees_cves_of_its_servers,
    cve_list_follows_servers_and_feeds_automatically,
);
