//! The matcher, which keeps findings up to date: it remembers its results, and gets the same as a
//! new one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use service::projections::findings::{Matcher, RoundScope};
use store::findings::{self, Cve, CveChange, KindCounts};
use vocab::{Digest, Installed, ServerId, Severity};

use crate::fleet::{Host, join, security};
use crate::resources::feeds::{import_feed, lines, osv, write_file};
use crate::support::Service;

fn day(day: u32) -> String {
    format!("2026-11-{day:02}T00:00:00Z")
}

async fn publish(service: &Service, on: u32, records: &[(&str, &str, &str, &[&str])]) {
    let record = |(id, package, fixed, cves): &(&str, &str, &str, &[&str])| {
        osv(id, &day(on), package, fixed, cves)
    };
    let records: Vec<Value> = records.iter().map(record).collect();
    import_feed(service, &write_file(service, "Debian.jsonl", &lines(&records))).await.unwrap();
}

fn host(name: &'static str, curl: &str) -> Host {
    let installed =
        vec![Installed::new("curl", curl, "amd64"), Installed::new("vim", "9.0", "amd64")];
    Host { installed, ..Host::new(name) }
}

/// Everything that is stored and read by others.
#[derive(Debug, PartialEq)]
struct StoredFindings {
    rows: Vec<Cve>,
    counts: BTreeMap<Digest, KindCounts>,
    kinds: BTreeMap<Digest, BTreeSet<String>>,
    groups: Vec<(String, Digest)>,
    exposed: Vec<(String, Vec<ServerId>)>,
}

async fn stored_findings(service: &Service) -> StoredFindings {
    let mut reader = service.app.db.read().await.unwrap();
    let org = service.org;
    let rows = findings::all(&mut reader, org).await.unwrap();
    let mut exposed = Vec::new();
    for row in &rows {
        let page = store::Page { limit: 100, offset: 0 };
        let found = findings::servers(&mut reader, org, &row.id, None, page).await.unwrap();
        exposed.push((row.id.clone(), found.into_iter().map(|server| server.id).collect()));
    }
    let groups = findings::all_groups(&mut reader, org).await.unwrap();
    let groups = groups
        .into_iter()
        .flat_map(|(base, some)| some.into_keys().map(move |digest| (base.clone(), digest)));
    let carriers = findings::carriers(&mut reader, org).await.unwrap();
    let carried = findings::carriers_by_cve(&mut reader, org).await.unwrap();
    let flaws_of = |number: u32| {
        let its = carried.iter().filter(|(_, numbers)| numbers.contains(&number));
        its.map(|(cve, _)| cve.clone()).collect()
    };
    let kinds = carriers.iter().map(|one| (one.digest(), flaws_of(one.number))).collect();
    StoredFindings {
        rows,
        counts: findings::counts(&mut reader, org, None).await.unwrap(),
        kinds,
        groups: groups.collect(),
        exposed,
    }
}

/// The rows that a new matcher without previous results writes.
async fn recomputed_findings(service: &Service) -> StoredFindings {
    let org = service.org;
    let mut tx = service.app.db.begin().await.unwrap();
    let all = stored_findings(service).await;
    let removed: Vec<String> = all.rows.iter().map(|row| row.id.clone()).collect();
    findings::update_rows(&mut tx, org, &[], &removed).await.unwrap();
    for (cve, lost) in findings::carriers_by_cve(&mut tx, org).await.unwrap() {
        let shift = CveChange { cve: Arc::from(cve), gained: Vec::new(), lost };
        findings::apply_cve_changes(&mut tx, org, &[&shift]).await.unwrap();
    }
    let carriers = findings::carriers(&mut tx, org).await.unwrap();
    let numbers: Vec<u32> = carriers.iter().map(|one| one.number).collect();
    findings::delete_carriers(&mut tx, org, &numbers).await.unwrap();
    let counts: Vec<Digest> = all.counts.into_keys().collect();
    findings::delete_counts(&mut tx, org, &counts).await.unwrap();
    for (base, digest) in all.groups {
        findings::delete_groups(&mut tx, org, &base, &[digest]).await.unwrap();
    }
    for set in findings::assessed_sets(&mut tx, org).await.unwrap() {
        findings::delete_assessed(&mut tx, org, &set.base, &[set.package_set]).await.unwrap();
    }
    let seen = findings::summary(&mut tx, org).await.unwrap().unwrap();
    let next = findings::Summary { basis: Digest::compute(b"another"), ..seen };
    findings::save_summary(&mut tx, &next).await.unwrap();
    tx.commit().await.unwrap();
    assert!(Matcher::new(org).round(&service.app, RoundScope::All).await.unwrap());
    stored_findings(service).await
}

fn severity_by_cve(stored: &StoredFindings) -> Vec<(&str, i64)> {
    stored.rows.iter().map(|row| (row.id.as_str(), -row.servers_order)).collect()
}

async fn changes_are_matched_without_reading_the_rest_again(service: &Service) {
    let web = join(service, host("web-1", "1.0")).await;
    join(service, host("web-2", "1.0")).await;
    join(service, host("db-1", "1.2").in_environment("staging")).await;
    publish(
        service,
        1,
        &[("DSA-1", "curl", "1.1", &["CVE-1"]), ("DSA-2", "vim", "9.1", &["CVE-2"])],
    )
    .await;
    let mut matcher = Matcher::new(service.org);
    assert!(matcher.round(&service.app, RoundScope::All).await.unwrap());
    assert!(
        !matcher.round(&service.app, RoundScope::FeedsAndSuppressions).await.unwrap(),
        "nothing changed"
    );
    assert_eq!(severity_by_cve(&stored_findings(service).await), [("CVE-1", 2), ("CVE-2", 3)]);

    publish(service, 2, &[("DSA-3", "curl", "1.3", &["CVE-1", "CVE-3"])]).await;
    assert!(matcher.round(&service.app, RoundScope::FeedsAndSuppressions).await.unwrap());
    assert_eq!(
        severity_by_cve(&stored_findings(service).await),
        [("CVE-1", 3), ("CVE-2", 3), ("CVE-3", 3)],
        "the later fix counts"
    );

    publish(
        service,
        3,
        &[("DSA-3", "curl", "0.9", &["CVE-1", "CVE-3"]), ("DSA-2", "vim", "8", &["CVE-2"])],
    )
    .await;
    assert!(matcher.round(&service.app, RoundScope::FeedsAndSuppressions).await.unwrap());
    assert_eq!(
        severity_by_cve(&stored_findings(service).await),
        [("CVE-1", 2)],
        "the severity was lowered"
    );

    join(service, host("web-3", "1.0").in_environment("staging")).await;
    publish(service, 4, &[("DSA-4", "vim", "9.2", &["CVE-4"])]).await;
    assert!(matcher.round(&service.app, RoundScope::FeedsAndSuppressions).await.unwrap());
    assert_eq!(
        severity_by_cve(&stored_findings(service).await),
        [("CVE-1", 2), ("CVE-4", 3)],
        "a new server is not counted yet"
    );
    assert!(matcher.round(&service.app, RoundScope::All).await.unwrap());
    assert_eq!(severity_by_cve(&stored_findings(service).await), [("CVE-1", 3), ("CVE-4", 4)]);

    service.delete(&format!("/v1/servers/{web}")).await.is(204);
    let body = json!({"cve": "CVE-4", "environment": "staging", "reason": "nobody edits there"});
    service.post("/v1/suppressions", body).await.is(201);
    assert!(matcher.round(&service.app, RoundScope::All).await.unwrap());
    let remembered = stored_findings(service).await;
    assert_eq!(severity_by_cve(&remembered), [("CVE-1", 2), ("CVE-4", 1)]);
    assert_eq!(remembered.rows[1].suppressed, 2);
    assert_eq!(recomputed_findings(service).await, remembered);
}

async fn one_of_two_matchers_writes_and_the_other_restarts(service: &Service) {
    join(service, host("web-1", "1.0")).await;
    publish(service, 1, &[("DSA-1", "curl", "1.1", &["CVE-1"])]).await;
    let (mut one, mut other) = (Matcher::new(service.org), Matcher::new(service.org));
    assert!(one.round(&service.app, RoundScope::All).await.unwrap());
    assert!(!other.round(&service.app, RoundScope::WarmUp).await.unwrap(), "this one only reads");
    assert!(other.is_warm());
    publish(service, 2, &[("DSA-2", "vim", "9.1", &["CVE-2"])]).await;
    assert!(one.round(&service.app, RoundScope::FeedsAndSuppressions).await.unwrap());
    assert!(!other.round(&service.app, RoundScope::FeedsAndSuppressions).await.unwrap());
    assert!(!other.is_warm(), "its memory no longer matches the database");
    publish(service, 3, &[("DSA-3", "vim", "9.2", &["CVE-3"])]).await;
    assert!(other.round(&service.app, RoundScope::FeedsAndSuppressions).await.unwrap());
    publish(service, 4, &[("DSA-2", "vim", "8", &["CVE-2"])]).await;
    assert!(one.round(&service.app, RoundScope::FeedsAndSuppressions).await.unwrap());
    let remembered = stored_findings(service).await;
    assert_eq!(severity_by_cve(&remembered), [("CVE-1", 1), ("CVE-3", 1)]);
    assert_eq!(recomputed_findings(service).await, remembered);
}

async fn package_manager_reports_count_where_no_feed_does(service: &Service) {
    let mut curl = security("curl", Severity::High, &["CVE-2026-1", "CVE-2026-7"]);
    curl.advisories = vec!["FEDORA-2026-1".into()];
    let fedora =
        Host { os: ("fedora", "41"), ..host("web-1", "1.0") }.with_updates(vec![curl.clone()]);
    let web = join(service, fedora).await;
    let db = join(service, host("db-1", "1.0").with_updates(vec![curl])).await;
    join(service, host("db-2", "1.0")).await;
    publish(service, 1, &[("DSA-1", "curl", "1.1", &["CVE-2026-1"])]).await;
    let mut matcher = Matcher::new(service.org);
    assert!(matcher.round(&service.app, RoundScope::All).await.unwrap());
    let remembered = stored_findings(service).await;
    assert_eq!(severity_by_cve(&remembered), [("CVE-2026-1", 3), ("CVE-2026-7", 2)]);
    let cve = service.get("/v1/cves/CVE-2026-7").await.is(200).json();
    assert_eq!(
        (&cve["severity"], &cve["severity_source"]),
        (&json!("high"), &json!("package_manager"))
    );
    let servers: Vec<_> =
        cve["servers"].as_array().unwrap().iter().map(|one| one["server_id"].clone()).collect();
    assert_eq!(servers, [json!(db), json!(web)]);
    let words = cve["servers"][1]["found"].as_str().unwrap();
    assert!(
        words.contains("the package manager of the host (fedora 41)")
            && words.contains("(FEDORA-2026-1)"),
        "{words}"
    );

    let shown = service.get(&format!("/v1/servers/{db}")).await.is(200).json();
    assert_eq!(
        shown["summary"]["cves"],
        json!({"critical": 0, "high": 1, "medium": 0, "low": 0, "unknown": 1})
    );
    let by_feed =
        shown["cves"].as_array().unwrap().iter().find(|cve| cve["id"] == "CVE-2026-1").unwrap();
    let words = by_feed["found"].as_str().unwrap();
    assert!(words.starts_with("DSA-1 for Debian:12"), "the feed takes precedence: {words}");
    assert!(
        words.ends_with("the host's package manager reports the same CVE for the pending update"),
        "{words}"
    );
    assert_eq!(by_feed["severity"], "unknown");
    assert_eq!(recomputed_findings(service).await, remembered);

    service.delete(&format!("/v1/servers/{web}")).await.is(204);
    service.delete(&format!("/v1/servers/{db}")).await.is(204);
    assert!(matcher.round(&service.app, RoundScope::All).await.unwrap());
    assert_eq!(severity_by_cve(&stored_findings(service).await), [("CVE-2026-1", 1)]);
    service.get("/v1/cves/CVE-2026-7").await.is_problem(404, "not_found");
}

testkit::both!(
    crate::support:
    changes_are_matched_without_reading_the_rest_again,
    one_of_two_matchers_writes_and_the_other_restarts,
    package_manager_reports_count_where_no_feed_does,
);
