//! Servers that were not scanned or assessed are never shown as up to date or without CVEs.

use jiff::SignedDuration;
use serde_json::{Value, json};
use service::commands::feeds;
use service::projections::{findings, patches};
use store::servers::{self, Server};
use vocab::{Installed, Pending, Role, ServerId};

use crate::fleet::{Host, join};
use crate::resources::feeds::{FRIDAY, import_feed, lines, osv, write_file};
use crate::support::{Service, TestRequest};

/// A host whose kernel belongs to a package, so that everything can be assessed.
fn host(name: &'static str, more: Vec<Installed>) -> Host {
    let kernel = Installed::new("linux-image-6.1.0", "6.1.0-1", "amd64")
        .with_source("linux-signed-amd64", "6.1.0+1");
    let mut installed = vec![kernel, Installed::new("curl", "1.0", "amd64")];
    installed.extend(more);
    Host { installed, ..Host::new(name) }
}

fn third_party() -> Installed {
    let mut docker = Installed::new("docker-ce", "5:27.0-1", "amd64");
    docker.origin = Some("Docker".to_owned());
    docker
}

async fn publish(service: &Service) {
    let curl = osv("DSA-1", FRIDAY, "curl", "1.1", &["CVE-2026-1"]);
    import_feed(service, &write_file(service, "Debian.jsonl", &lines(&[curl]))).await.unwrap();
}

async fn change(service: &Service, id: ServerId, change: impl FnOnce(Server) -> Server) {
    let mut tx = service.app.db.begin().await.unwrap();
    let before = servers::get(&mut tx, service.org, id).await.unwrap();
    let now = service.clock.now();
    servers::save(&mut tx, &before, &change(before.clone()), now).await.unwrap();
    tx.commit().await.unwrap();
}

/// The state after `fleetmend-agent enroll` without `run`.
async fn not_scanned(service: &Service, name: &'static str) -> ServerId {
    let id = join(service, host(name, Vec::new())).await;
    let never = |server| Server {
        package_set: None,
        update_set: None,
        last_scan_at: None,
        packages: 0,
        ..server
    };
    change(service, id, never).await;
    id
}

async fn run_matcher(service: &Service) {
    findings::rebuild(&service.app, service.org).await.unwrap();
    patches::rebuild(&service.app, service.org).await.unwrap();
}

fn states(summary: &Value) -> Vec<u64> {
    let servers = ["up_to_date", "with_updates", "stale", "not_scanned"];
    let assessment = ["assessed", "partial", "no_feed", "not_scanned"];
    let number = |part: &str, name: &str| summary[part][name].as_u64().unwrap();
    let servers = servers.iter().map(|name| number("servers", name));
    servers.chain(assessment.iter().map(|name| number("assessment", name))).collect()
}

async fn unscanned_server_is_not_up_to_date(service: &Service) {
    let id = not_scanned(service, "new-1").await;
    run_matcher(service).await;
    let summary = service.get("/v1/summary").await.is(200).json();
    assert_eq!(states(&summary), [0, 0, 0, 1, 0, 0, 0, 1], "{summary}");
    let shown = service.get(&format!("/v1/servers/{id}")).await.is(200).json();
    assert_eq!(
        (&shown["assessment"], &shown["cves_checked"]),
        (&json!("not_scanned"), &json!(false))
    );
    publish(service).await;
    run_matcher(service).await;
    let list = service.get("/v1/servers").await.is(200).json();
    assert_eq!(list["data"][0]["assessment"], "not_scanned", "a feed alone assesses nothing");
}

async fn every_assessment_state_is_counted_separately(service: &Service) {
    publish(service).await;
    let whole = join(service, host("whole", Vec::new())).await;
    let partial = join(service, host("partial", vec![third_party()])).await;
    let odd = join(service, Host { os: ("plan9", "4"), ..host("odd", Vec::new()) }).await;
    let fresh = not_scanned(service, "fresh").await;
    let pending = vec![Pending::new("curl", "amd64", "1.0", "1.1")];
    let outdated = host("outdated", Vec::new()).with_updates(pending).in_environment("staging");
    join(service, outdated).await;
    let stale = join(service, host("stale", Vec::new())).await;
    let long_ago = service.clock.now() - SignedDuration::from_hours(24 * 8);
    change(service, stale, |server| Server { last_scan_at: Some(long_ago), ..server }).await;
    run_matcher(service).await;
    let summary = service.get("/v1/summary").await.is(200).json();
    assert_eq!(states(&summary), [3, 1, 1, 1, 3, 1, 1, 1], "{summary}");
    let assessment = async |id: ServerId| {
        let server = service.get(&format!("/v1/servers/{id}")).await.is(200).json();
        let list = service
            .get(&format!("/v1/servers?q={}", server["hostname"].as_str().unwrap()))
            .await
            .json();
        assert_eq!(list["data"][0]["assessment"], server["assessment"]);
        assert_eq!(list["data"][0]["stale"], server["stale"]);
        server
    };
    assert_eq!(assessment(whole).await["assessment"], "assessed");
    assert_eq!(assessment(odd).await["assessment"], "no_feed");
    assert_eq!(assessment(odd).await["coverage"], Value::Null);
    assert_eq!(assessment(fresh).await["assessment"], "not_scanned");
    assert_eq!(assessment(stale).await["stale"], true);
    assert_eq!(assessment(whole).await["stale"], false);
    let partial = assessment(partial).await;
    assert_eq!(
        (&partial["assessment"], &partial["summary"]["unassessed"]),
        (&json!("partial"), &json!(1))
    );
    assert_eq!(
        partial["unassessed"],
        json!([{"package": "docker-ce", "version": "5:27.0-1", "reason": "third_party",
        "detail": "comes from Docker; the distribution's advisories do not cover it"}])
    );
    assert_eq!(
        partial["coverage"],
        json!({"ecosystem": "Debian:12", "lists_unfixed": true, "derived_from": null})
    );
    assert_eq!(partial["cves"].as_array().unwrap().len(), 1, "the rest is assessed");
    // A key that is limited to one environment counts only its servers.
    let key = service.key(Role::Viewer, Some(&["staging"])).await;
    let seen =
        TestRequest::get("/v1/summary").with_key(&key).send(&service.router).await.is(200).json();
    assert_eq!(states(&seen), [0, 1, 0, 0, 1, 0, 0, 0], "{seen}");
}

async fn kernel_without_a_package_is_unassessed(service: &Service) {
    publish(service).await;
    let id = join(service, host("custom", Vec::new())).await;
    change(service, id, |server| Server { kernel: "6.99-custom".into(), ..server }).await;
    run_matcher(service).await;
    let shown = service.get(&format!("/v1/servers/{id}")).await.is(200).json();
    assert_eq!(shown["assessment"], "partial");
    assert_eq!(shown["unassessed"][0]["reason"], "foreign_kernel");
    assert_eq!(
        (&shown["unassessed"][0]["package"], &shown["unassessed"][0]["version"]),
        (&json!("6.99-custom"), &Value::Null)
    );
}

async fn feeds_with_the_same_ids_do_not_replace_each_other(service: &Service) {
    let alpine = |name, os| Host {
        os: ("alpine", os),
        installed: ["curl", "zlib"].map(|name| Installed::new(name, "1.0-r0", "x86_64")).to_vec(),
        ..Host::new(name)
    };
    let old = join(service, alpine("old", "3.22.1")).await;
    let new = join(service, alpine("new", "3.23.0")).await;
    for release in ["v3.22", "v3.23"] {
        let record = |id: &str, package: &str| {
            let mut record = osv(id, FRIDAY, package, "1.1-r0", &[id]);
            record["affected"][0]["package"]["ecosystem"] = json!(format!("Alpine:{release}"));
            record
        };
        let records = lines(&[record("CVE-2026-1", "curl"), record("CVE-2026-2", "zlib")]);
        import_feed(service, &write_file(service, &format!("alpine-{release}.jsonl"), &records))
            .await
            .unwrap();
    }
    run_matcher(service).await;
    let cves = async |id: ServerId| {
        let shown = service.get(&format!("/v1/servers/{id}")).await.is(200).json();
        assert_eq!(shown["coverage"]["lists_unfixed"], false, "secdb lists fixes only");
        shown["cves"].as_array().unwrap().len()
    };
    assert_eq!((cves(old).await, cves(new).await), (2, 2));
    // Removing one feed removes its own findings, and no others.
    assert_eq!(
        feeds::manage::remove_now(&service.app.db, "alpine-v3.23", service.clock.now())
            .await
            .unwrap(),
        Some(2)
    );
    assert_eq!(
        feeds::manage::remove_now(&service.app.db, "alpine-v3.23", service.clock.now())
            .await
            .unwrap(),
        None
    );
    run_matcher(service).await;
    assert_eq!(cves(old).await, 2);
    let uncovered = service.get(&format!("/v1/servers/{new}")).await.is(200).json();
    assert_eq!((&uncovered["assessment"], &uncovered["cves"]), (&json!("no_feed"), &json!([])));
}

async fn new_matching_rules_match_everything_again(service: &Service) {
    publish(service).await;
    let id = join(service, host("web-1", Vec::new())).await;
    run_matcher(service).await;
    let mut tx = service.app.db.begin().await.unwrap();
    let seen = store::findings::summary(&mut tx, service.org).await.unwrap().unwrap();
    // The state of an earlier release, which did not find this CVE.
    for (base, groups) in store::findings::all_groups(&mut tx, service.org).await.unwrap() {
        let digests: Vec<_> = groups.into_keys().collect();
        store::findings::delete_groups(&mut tx, service.org, &base, &digests).await.unwrap();
    }
    let before =
        store::findings::Summary { rules: 0, basis: vocab::Digest::compute(b"earlier"), ..seen };
    store::findings::save_summary(&mut tx, &before).await.unwrap();
    tx.commit().await.unwrap();
    let cves = async || {
        let shown = service.get(&format!("/v1/servers/{id}")).await.is(200).json();
        shown["cves"].as_array().unwrap().len()
    };
    assert_eq!(cves().await, 0);
    assert!(findings::rebuild(&service.app, service.org).await.unwrap());
    assert_eq!(cves().await, 1);
    assert!(!findings::rebuild(&service.app, service.org).await.unwrap(), "once");
}

async fn advisories_without_a_feed_are_removed_by_the_next_import(service: &Service) {
    let advisory = |base: &str| {
        let mut affected = domain::advisory::Affected::new(base, "curl");
        affected.spans.push(domain::advisory::Span::until("9"));
        domain::advisory::Advisory {
            id: "DSA-1".into(),
            flaws: vec!["CVE-2026-1".into()],
            aliases: Vec::new(),
            summary: String::new(),
            description: String::new(),
            published: None,
            modified: None,
            withdrawn: None,
            ratings: Vec::new(),
            affected: vec![affected],
        }
    };
    let mut other = advisory("Debian:11");
    other.id = "DSA-2".into();
    let unknown = store::advisories::UNKNOWN_FEED;
    let mut tx = service.app.db.begin().await.unwrap();
    store::advisories::put_all(&mut tx, unknown, &[advisory("Debian:12"), other]).await.unwrap();
    tx.commit().await.unwrap();
    let records = [
        osv("DSA-1", FRIDAY, "curl", "1.1", &["CVE-2026-1"]),
        osv("DSA-2", FRIDAY, "curl", "1.1", &["CVE-2026-1"]),
    ];
    import_feed(service, &write_file(service, "Debian.jsonl", &lines(&records))).await.unwrap();
    let mut reader = service.app.db.read().await.unwrap();
    let page = store::advisories::page(&mut reader, ("", ""), 9).await.unwrap();
    let left: Vec<_> = page.iter().map(|(feed, one)| format!("{feed}/{}", one.id)).collect();
    assert_eq!(left, ["/DSA-2", "Debian/DSA-1", "Debian/DSA-2"], "DSA-2 named another release");
}

testkit::both!(
    crate::support:
    unscanned_server_is_not_up_to_date,
    every_assessment_state_is_counted_separately,
    kernel_without_a_package_is_unassessed,
    feeds_with_the_same_ids_do_not_replace_each_other,
    new_matching_rules_match_everything_again,
    advisories_without_a_feed_are_removed_by_the_next_import,
);
