//! The number of a server's security updates: from its repositories and from the feeds, and the
//! same number everywhere.

use jiff::SignedDuration;
use serde_json::{Value, json};
use service::projections::{findings, patches};
use vocab::{BlockedBy, Installed, Pending, Role, ServerId, Severity};

use crate::fleet::{Host, join, scan, security};
use crate::resources::feeds::{FRIDAY, import_feed, lines, osv, write_file};
use crate::support::{Service, TestRequest};

fn installed(version: &str) -> Vec<Installed> {
    ["busybox", "curl", "vim"].map(|name| Installed::new(name, version, "x86_64")).to_vec()
}

/// An update that its repository marks as a security update.
fn security_update(name: &str, cves: &[&str]) -> Pending {
    let word = security(name, Severity::High, cves);
    Pending { arch: "x86_64".into(), candidate: "1.2-r0".into(), ..word }
}

fn update(name: &str, to: &str) -> Pending {
    Pending::new(name, "x86_64", "1.0-r0", to)
}

/// apk has two pending updates, and marks neither.
fn alpine(name: &'static str) -> Host {
    let pending = vec![update("busybox", "1.1-r0"), update("curl", "1.2-r0")];
    Host {
        os: ("alpine", "3.22.1"),
        installed: installed("1.0-r0"),
        ..Host::new(name).with_updates(pending)
    }
}

fn debian(name: &'static str, pending: Vec<Pending>) -> Host {
    Host { installed: installed("1.0-r0"), ..Host::new(name).with_updates(pending) }
}

/// A CVE in curl that 1.2-r0 fixes, and one in busybox that 1.1-r0 does not fix.
async fn publish(service: &Service, ecosystem: &str, file: &str) {
    let record = |id: &str, package: &str, fixed: &str, cve: &str| {
        let mut record = osv(id, FRIDAY, package, fixed, &[cve]);
        record["affected"][0]["package"]["ecosystem"] = json!(ecosystem);
        record
    };
    let curl = record(&format!("{file}-1"), "curl", "1.1-r3", "CVE-2026-1");
    let busybox = record(&format!("{file}-2"), "busybox", "1.1-r1", "CVE-2026-2");
    let path = write_file(service, &format!("{file}.jsonl"), &lines(&[curl, busybox]));
    import_feed(service, &path).await.unwrap();
}

/// Runs the background tasks once. Returns whether patches were recounted.
async fn run_background_tasks(service: &Service) -> bool {
    findings::rebuild(&service.app, service.org).await.unwrap();
    patches::rebuild(&service.app, service.org).await.unwrap()
}

/// The number of security updates of a server. Checks that the list, the server and the preview of
/// a security batch agree, and that the summary counts the server accordingly.
async fn security_update_count(service: &Service, server: ServerId) -> u64 {
    let number = |row: &Value| row["summary"]["security_updates"].as_u64().unwrap();
    let list = service.get("/v1/servers?sort=security_updates").await.is(200).json();
    let list = list["data"].as_array().unwrap();
    let numbers: Vec<u64> = list.iter().map(number).collect();
    assert!(numbers.is_sorted_by(|a, b| a >= b), "{numbers:?}");
    let listed = list.iter().find(|row| row["id"] == json!(server)).map(number).unwrap();
    let page = service.get(&format!("/v1/servers/{server}")).await.is(200).json();
    let marked = page["packages"].as_array().unwrap().iter();
    let marked = marked.filter(|package| package["security"] == json!(true)).count() as u64;
    let order = json!({"server_ids": [server], "security_only": true});
    let preview = service.post("/v1/preview", order).await.is(200).json();
    let reported = |field: &str| preview["servers"][0][field].as_array().unwrap().len() as u64;
    let total = reported("updates") + reported("blocked");
    assert_eq!((number(&page), marked, total), (listed, listed, listed));
    let summary = service.get("/v1/summary").await.is(200).json();
    let with = numbers.iter().filter(|number| **number > 0).count();
    assert_eq!(summary["servers"]["with_security_updates"], json!(with));
    listed
}

async fn feeds_identify_security_updates_for_silent_managers(service: &Service) {
    let web = join(service, alpine("web")).await;
    let twin = join(service, alpine("twin").in_environment("staging")).await;
    let other = join(service, debian("a", vec![update("vim", "1.1-r0")])).await;
    run_background_tasks(service).await;
    assert_eq!(security_update_count(service, web).await, 0, "no CVE is known");
    publish(service, "Alpine:v3.22", "Alpine").await;
    assert!(run_background_tasks(service).await);
    assert!(!run_background_tasks(service).await, "nothing changed");
    assert_eq!(
        security_update_count(service, web).await,
        1,
        "the update of busybox does not contain the fix"
    );
    assert_eq!(
        (security_update_count(service, twin).await, security_update_count(service, other).await),
        (1, 0)
    );
    let key = service.key(Role::Viewer, Some(&["staging"])).await;
    let seen =
        TestRequest::get("/v1/summary").with_key(&key).send(&service.router).await.is(200).json();
    assert_eq!(seen["servers"]["with_security_updates"], 1);
    // Once installed, the update is no longer pending.
    let mut after = installed("1.0-r0");
    after[1] = Installed::new("curl", "1.2-r0", "x86_64");
    scan(service, web, &after, &[update("busybox", "1.1-r0")]).await;
    run_background_tasks(service).await;
    assert_eq!(
        (security_update_count(service, web).await, security_update_count(service, twin).await),
        (0, 1)
    );
}

/// A patch still fixes a suppressed CVE: a security batch installs it, so it is counted.
async fn update_for_a_suppressed_cve_stays_a_security_update(service: &Service) {
    let web = join(service, alpine("web")).await;
    publish(service, "Alpine:v3.22", "Alpine").await;
    run_background_tasks(service).await;
    let flaws = async || {
        let page = service.get(&format!("/v1/servers/{web}")).await.is(200).json();
        page["summary"]["cves"]["unknown"].as_u64().unwrap()
    };
    assert_eq!((flaws().await, security_update_count(service, web).await), (2, 1));
    let aside =
        json!({"cve": "CVE-2026-1", "reason": "not built", "expires_at": "2026-11-15T12:00:00Z"});
    service.post("/v1/suppressions", aside).await.is(201);
    run_background_tasks(service).await;
    assert_eq!((flaws().await, security_update_count(service, web).await), (1, 1));
    service.clock.advance(SignedDuration::from_hours(9));
    run_background_tasks(service).await;
    assert_eq!((flaws().await, security_update_count(service, web).await), (2, 1));
}

async fn manager_classification_counts_where_no_feed_covers(service: &Service) {
    let words = || vec![security_update("vim", &[]), update("curl", "1.2-r0")];
    let debian = join(service, debian("debian", words())).await;
    let fedora =
        join(service, Host { os: ("fedora", "41"), ..self::debian("fedora", words()) }).await;
    for _ in 0..2 {
        run_background_tasks(service).await;
        assert_eq!(
            (
                security_update_count(service, debian).await,
                security_update_count(service, fedora).await
            ),
            (1, 1)
        );
        publish(service, "Alpine:v3.22", "Alpine").await;
    }
}

async fn update_known_twice_counts_once_and_held_updates_count(service: &Service) {
    let mut held = security_update("curl", &["CVE-2026-1"]);
    let both = vec![held.clone(), update("busybox", "1.1-r2"), update("vim", "1.1-r0")];
    let web = join(service, debian("web", both.clone())).await;
    held.blocked_by = Some(BlockedBy::Held);
    let back = join(service, debian("held", vec![held])).await;
    run_background_tasks(service).await;
    assert_eq!(
        (security_update_count(service, web).await, security_update_count(service, back).await),
        (1, 1)
    );
    publish(service, "Debian:12", "Debian").await;
    run_background_tasks(service).await;
    assert_eq!(
        (security_update_count(service, web).await, security_update_count(service, back).await),
        (2, 1)
    );
    // A feed may withdraw an advisory.
    let mut gone = osv("Debian-2", "2026-11-14T00:00:00Z", "busybox", "1.1-r1", &["CVE-2026-2"]);
    gone["withdrawn"] = json!("2026-11-14T00:00:00Z");
    import_feed(service, &write_file(service, "Debian.jsonl", &lines(&[gone]))).await.unwrap();
    run_background_tasks(service).await;
    assert_eq!(security_update_count(service, web).await, 1);
}

/// A package manager may report CVEs for an update without marking it as a security update. A
/// batch with `security_only` does not include such an update.
async fn cves_of_an_unmarked_update_make_it_no_security_update(service: &Service) {
    let mut named = update("vim", "1.1-r0");
    named.cves = vec!["CVE-2026-9".into()];
    let web = join(service, debian("web", vec![named])).await;
    run_background_tasks(service).await;
    assert_eq!(security_update_count(service, web).await, 0);
}

testkit::both!(
    crate::support:
    feeds_identify_security_updates_for_silent_managers,
    update_for_a_suppressed_cve_stays_a_security_update,
    manager_classification_counts_where_no_feed_covers,
    update_known_twice_counts_once_and_held_updates_count,
    cves_of_an_unmarked_update_make_it_no_security_update,
);
