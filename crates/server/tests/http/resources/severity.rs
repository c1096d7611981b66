//! The severity of a pending update: from the CVEs that it fixes where it is pending, and from what
//! hosts report.

use std::time::Duration;

use serde_json::{Value, json};
use service::projections::{findings, patches};
use vocab::{Installed, Pending, Role, Severity};

use crate::fleet::{Host, join, security};
use crate::resources::feeds::{import_feed, lines, osv, write_file};
use crate::support::{Service, TestRequest};

const FRIDAY: &str = "2026-11-13T00:00:00Z";
const SATURDAY: &str = "2026-11-14T00:00:00Z";
const V3: &str = "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:N/I:N/A:H";

/// curl from 1.0 to 1.2, without any details from its host.
fn curl() -> Pending {
    Pending::new("curl", "amd64", "1.0", "1.2")
}

fn host(name: &'static str, pending: Vec<Pending>) -> Host {
    let installed =
        vec![Installed::new("curl", "1.0", "amd64"), Installed::new("vim", "9.0", "amd64")];
    Host { installed, ..Host::new(name).with_updates(pending) }
}

fn ubuntu(name: &'static str, pending: Vec<Pending>) -> Host {
    Host { os: ("ubuntu", "24.04"), ..host(name, pending) }.in_environment("staging")
}

/// An advisory of Ubuntu with its own severity.
fn usn(id: &str, fixed: &str, word: &str, cve: &str) -> Value {
    let mut record = osv(id, FRIDAY, "curl", fixed, &[cve]);
    record["affected"][0]["package"]["ecosystem"] = json!("Ubuntu:24.04:LTS");
    record["severity"] = json!([{"type": "Ubuntu", "score": word}]);
    record
}

/// Debian publishes a CVSS score for a CVE in curl, and nothing for one that 1.3 fixes; Ubuntu
/// publishes a severity.
async fn publish(service: &Service) {
    let mut scored = osv("DSA-1", FRIDAY, "curl", "1.1", &["CVE-2026-1"]);
    scored["severity"] = json!([{"type": "CVSS_V3", "score": V3}]);
    let later = osv("DSA-2", FRIDAY, "curl", "1.3", &["CVE-2026-2"]);
    let path = write_file(service, "Debian.jsonl", &lines(&[scored, later]));
    import_feed(service, &path).await.unwrap();
    let word = usn("USN-1", "1.1", "low", "CVE-2026-1");
    import_feed(service, &write_file(service, "Ubuntu.jsonl", &lines(&[word]))).await.unwrap();
}

async fn import_kev(service: &Service, cve: &str) {
    let kev = json!({"title": "list", "catalogVersion": "1", "dateReleased": FRIDAY, "count": 1, "vulnerabilities": [
        {"cveID": cve, "dateAdded": "2026-11-12", "knownRansomwareCampaignUse": "Known"}]});
    import_feed(service, &write_file(service, "kev.json", &kev.to_string())).await.unwrap();
}

/// Runs the background tasks once. Returns whether patches were recounted.
async fn run_background_tasks(service: &Service) -> bool {
    findings::rebuild(&service.app, service.org).await.unwrap();
    patches::rebuild(&service.app, service.org).await.unwrap()
}

async fn patch(service: &Service, name: &str) -> Value {
    service.get(&format!("/v1/patches/{name}")).await.is(200).json()
}

fn rating_of(patch: &Value) -> (Value, Value, Value, Value, Value) {
    let field = |name: &str| patch[name].clone();
    (field("severity"), field("severity_source"), field("type"), field("cves"), field("kev"))
}

fn expect(
    severity: &str,
    source: &str,
    update_type: &str,
    cves: &[&str],
    kev: bool,
) -> (Value, Value, Value, Value, Value) {
    let source = if source.is_empty() { Value::Null } else { json!(source) };
    (json!(severity), source, json!(update_type), json!(cves), json!(kev))
}

async fn feed_determines_what_a_pending_update_fixes(service: &Service) {
    let web = join(service, host("web", vec![curl()])).await;
    run_background_tasks(service).await;
    assert_eq!(
        rating_of(&patch(service, "curl").await),
        expect("unknown", "", "other", &[], false)
    );
    publish(service).await;
    assert!(run_background_tasks(service).await, "the feeds have changed");
    assert!(!run_background_tasks(service).await, "nothing changed");
    let known = patch(service, "curl").await;
    assert_eq!(
        rating_of(&known),
        expect("high", "cvss:3.1", "security", &["CVE-2026-1"], false),
        "1.2 does not fix CVE-2026-2"
    );
    assert_eq!(
        known["cve_details"],
        json!([{"id": "CVE-2026-1", "severity": "high", "cvss": 7.5, "kev": false,
        "url": "https://www.cve.org/CVERecord?id=CVE-2026-1"}])
    );
    import_kev(service, "CVE-2026-1").await;
    assert!(run_background_tasks(service).await);
    let known = patch(service, "curl").await;
    assert_eq!((&known["kev"], &known["cve_details"][0]["kev"]), (&json!(true), &json!(true)));
    let listed = service.get("/v1/patches?severity=high").await.is(200).json();
    assert_eq!(
        (&listed["data"][0]["package_name"], &listed["data"][0]["kev"]),
        (&json!("curl"), &json!(true))
    );
    let shown = service.get(&format!("/v1/servers/{web}")).await.is(200).json();
    assert_eq!(
        (&shown["packages"][0]["name"], &shown["packages"][0]["security"]),
        (&json!("curl"), &json!(true))
    );
    assert_eq!(shown["packages"][1]["security"], false);
}

async fn withdrawn_advisory_is_removed_from_the_patch(service: &Service) {
    join(service, host("web", vec![curl()])).await;
    publish(service).await;
    run_background_tasks(service).await;
    let mut withdrawn = osv("DSA-1", SATURDAY, "curl", "1.1", &["CVE-2026-1"]);
    withdrawn["withdrawn"] = json!(SATURDAY);
    import_feed(service, &write_file(service, "Debian.jsonl", &lines(&[withdrawn]))).await.unwrap();
    assert!(run_background_tasks(service).await);
    assert_eq!(
        rating_of(&patch(service, "curl").await),
        expect("unknown", "", "other", &[], false)
    );
}

async fn patch_of_two_systems_has_the_worst_severity(service: &Service) {
    join(service, host("debian", vec![curl()])).await;
    join(service, ubuntu("ubuntu", vec![curl()])).await;
    publish(service).await;
    run_background_tasks(service).await;
    let all = patch(service, "curl").await;
    assert_eq!(rating_of(&all), expect("high", "cvss:3.1", "security", &["CVE-2026-1"], false));
    assert_eq!(all["affected_servers"], 2);
    // A key that sees only one system gets that system's severity.
    let key = service.key(Role::Viewer, Some(&["staging"])).await;
    let seen = TestRequest::get("/v1/patches/curl")
        .with_key(&key)
        .send(&service.router)
        .await
        .is(200)
        .json();
    assert_eq!(rating_of(&seen), expect("low", "ubuntu", "security", &["CVE-2026-1"], false));
    assert_eq!(seen["cve_details"][0]["severity"], "low");
}

async fn feed_of_one_system_does_not_apply_to_another(service: &Service) {
    join(service, Host { os: ("debian", "11"), ..host("old", vec![curl()]) }).await;
    join(service, Host { os: ("plan9", "4"), ..host("odd", vec![curl()]) }).await;
    publish(service).await;
    run_background_tasks(service).await;
    assert_eq!(
        rating_of(&patch(service, "curl").await),
        expect("unknown", "", "other", &[], false)
    );
}

async fn host_severity_counts_where_no_feed_has_one(service: &Service) {
    let told = security("curl", Severity::Medium, &["CVE-2026-1", "CVE-2026-7"]);
    let more = security("vim", Severity::Low, &["CVE-2026-8"]);
    let web = join(service, host("web", vec![told, more])).await;
    run_background_tasks(service).await;
    let medium =
        expect("medium", "package_manager", "security", &["CVE-2026-1", "CVE-2026-7"], false);
    assert_eq!(rating_of(&patch(service, "curl").await), medium);
    publish(service).await;
    import_kev(service, "CVE-2026-8").await;
    run_background_tasks(service).await;
    assert_eq!(
        rating_of(&patch(service, "curl").await),
        medium,
        "the distribution's severity takes precedence over a score"
    );
    assert_eq!(patch(service, "curl").await["cve_details"][0]["severity"], "medium");
    assert_eq!(
        rating_of(&patch(service, "vim").await),
        expect("low", "package_manager", "security", &["CVE-2026-8"], true)
    );
    let shown = service.get(&format!("/v1/servers/{web}")).await.is(200).json();
    let told =
        shown["cves"].as_array().unwrap().iter().find(|cve| cve["id"] == "CVE-2026-8").unwrap();
    assert_eq!((&told["kev"], &told["severity_source"]), (&json!(true), &json!("package_manager")));
}

async fn new_package_set_is_rated_for_its_server_immediately(service: &Service) {
    join(service, host("first", vec![])).await;
    publish(service).await;
    run_background_tasks(service).await;
    let late = join(service, host("late", vec![curl()])).await;
    let rows = service.get(&format!("/v1/patches?server_id={late}")).await.is(200).json();
    assert_eq!(
        rating_of(&rows["data"][0]),
        expect("high", "cvss:3.1", "security", &["CVE-2026-1"], false)
    );
}

async fn patches_follow_a_feed_automatically(service: &Service) {
    let keepers = [
        findings::spawn(service.app.service().clone()),
        patches::spawn(service.app.service().clone()),
    ];
    join(service, host("web", vec![curl()])).await;
    publish(service).await;
    let came = async {
        while service.get("/v1/patches?severity=high").await.is(200).json()["meta"]["total"] != 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), came)
        .await
        .expect("the feed never reached the patches");
    service.app.start_drain();
    for keeper in keepers {
        keeper.await.unwrap();
    }
}

testkit::both!(
    crate::support:
    feed_determines_what_a_pending_update_fixes,
    withdrawn_advisory_is_removed_from_the_patch,
    patch_of_two_systems_has_the_worst_severity,
    feed_of_one_system_does_not_apply_to_another,
    host_severity_counts_where_no_feed_has_one,
    new_package_set_is_rated_for_its_server_immediately,
    patches_follow_a_feed_automatically,
);
