//! Advisories, exploited CVEs, EPSS scores, feeds and their sources.

use std::collections::BTreeSet;

use domain::advisory::{Advisory, Affected, Ecosystem, Epss, KevEntry, Span};
use store::{advisories, feed_progress, feed_removals, feed_sources, feeds};

use crate::support::{Open as _, TestDatabase, at};

fn statement(id: &str, affected: &[(&str, &str)]) -> Advisory {
    let affected = affected.iter().map(|(ecosystem, name)| {
        let mut affected = Affected::new(ecosystem, name);
        affected.spans.push(Span::until("1.1"));
        affected
    });
    Advisory {
        id: id.into(),
        flaws: vec!["CVE-2026-0001".into()],
        aliases: Vec::new(),
        summary: String::new(),
        description: String::new(),
        published: None,
        modified: Some(at(0)),
        withdrawn: None,
        ratings: Vec::new(),
        affected: affected.collect(),
    }
}

fn ids(found: &[Advisory]) -> Vec<&str> {
    found.iter().map(|one| one.id.as_str()).collect()
}

fn names(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|&name| name.to_owned()).collect()
}

async fn advisory_is_found_by_id_base_and_packages(database: TestDatabase) {
    let db = database.open().await;
    let bookworm = Ecosystem::new("Debian:12");
    let curl = statement("DSA-1", &[("Debian:12", "curl"), ("Debian:11", "curl")]);
    let vim = statement("DSA-2", &[("Debian:12", "vim")]);
    let pro = statement("USN-1", &[("Ubuntu:Pro:22.04:LTS", "curl")]);
    let unheard_of = statement("XSA-1", &[("Plan 9", "curl")]);
    let mut tx = db.begin().await.unwrap();
    let all = [curl.clone(), vim, pro, unheard_of.clone()];
    advisories::put_all(&mut tx, "debian", &all).await.unwrap();
    assert_eq!(advisories::count(&mut tx).await.unwrap(), 4);
    assert!(advisories::covers(&mut tx, &bookworm).await.unwrap());
    assert!(!advisories::covers(&mut tx, &Ecosystem::new("Plan 9")).await.unwrap());
    let asked = ["DSA-1".into(), "XSA-1".into(), "nothing".into()];
    let found = advisories::get_all(&mut tx, "debian", &asked).await.unwrap();
    assert_eq!(found.into_values().collect::<Vec<_>>(), [curl, unheard_of]);
    let found =
        advisories::by_package_names(&mut tx, &bookworm, &names(&["curl", "bash"])).await.unwrap();
    assert_eq!(ids(&found), ["DSA-1"]);
    let open = Ecosystem::new("Ubuntu:22.04:LTS");
    let found = advisories::by_package_names(&mut tx, &open, &names(&["curl"])).await.unwrap();
    assert_eq!(ids(&found), ["USN-1"], "subscriber advisories are found with the release");
}

async fn advisory_replaces_the_one_with_its_id(database: TestDatabase) {
    let db = database.open().await;
    let bookworm = Ecosystem::new("Debian:12");
    let mut tx = db.begin().await.unwrap();
    advisories::put_all(&mut tx, "debian", &[statement("DSA-1", &[("Debian:12", "curl")])])
        .await
        .unwrap();
    advisories::put_all(&mut tx, "debian", &[statement("DSA-1", &[("Debian:12", "wget")])])
        .await
        .unwrap();
    let found = advisories::by_package_names(&mut tx, &bookworm, &names(&["curl"])).await.unwrap();
    assert_eq!(found, [], "it no longer names curl");
    let found = advisories::by_package_names(&mut tx, &bookworm, &names(&["wget"])).await.unwrap();
    assert_eq!(ids(&found), ["DSA-1"]);
}

async fn feeds_with_the_same_ids_keep_their_own_advisories(database: TestDatabase) {
    let db = database.open().await;
    let mut tx = db.begin().await.unwrap();
    for (feed, base) in [("v3.22", "Alpine:v3.22"), ("v3.23", "Alpine:v3.23")] {
        let all = [statement("CVE-1", &[(base, "curl")]), statement("CVE-2", &[(base, "vim")])];
        advisories::put_all(&mut tx, feed, &all).await.unwrap();
    }
    let curl = names(&["curl", "vim"]);
    for base in ["Alpine:v3.22", "Alpine:v3.23"] {
        let found =
            advisories::by_package_names(&mut tx, &Ecosystem::new(base), &curl).await.unwrap();
        assert_eq!(ids(&found), ["CVE-1", "CVE-2"], "{base}");
    }
    let mut seen = Vec::new();
    let mut after = (String::new(), String::new());
    loop {
        let page = advisories::page(&mut tx, (&after.0, &after.1), 3).await.unwrap();
        let Some((feed, last)) = page.last() else { break };
        after = (feed.clone(), last.id.clone());
        seen.extend(page.into_iter().map(|(feed, one)| format!("{feed} {}", one.id)));
    }
    assert_eq!(seen, ["v3.22 CVE-1", "v3.22 CVE-2", "v3.23 CVE-1", "v3.23 CVE-2"]);
    advisories::delete(&mut tx, "v3.22", &["CVE-1".into(), "CVE-2".into()]).await.unwrap();
    assert!(!advisories::has_any(&mut tx, "v3.22").await.unwrap());
    let kept = advisories::by_package_names(&mut tx, &Ecosystem::new("Alpine:v3.23"), &curl)
        .await
        .unwrap();
    assert_eq!(ids(&kept), ["CVE-1", "CVE-2"]);
}

async fn changed_packages_are_listed_since_a_revision(database: TestDatabase) {
    let db = database.open().await;
    let (bookworm, jammy) = (Ecosystem::new("Debian:12"), Ecosystem::new("Ubuntu:22.04:LTS"));
    let mut tx = db.begin().await.unwrap();
    assert_eq!(feeds::revision(&mut tx).await.unwrap(), 0);
    let first = feeds::next_revision(&mut tx).await.unwrap();
    advisories::record_changes(&mut tx, &bookworm, ["curl", "vim"].into_iter(), first)
        .await
        .unwrap();
    let second = feeds::next_revision(&mut tx).await.unwrap();
    advisories::record_changes(&mut tx, &bookworm, ["vim"].into_iter(), second).await.unwrap();
    assert_eq!(advisories::changed_since(&mut tx, &bookworm, 0).await.unwrap(), ["curl", "vim"]);
    assert_eq!(advisories::changed_since(&mut tx, &bookworm, first).await.unwrap(), ["vim"]);
    assert_eq!(advisories::changed_since(&mut tx, &bookworm, second).await.unwrap(), [""; 0]);
    assert_eq!(advisories::changed_since(&mut tx, &jammy, 0).await.unwrap(), [""; 0]);
    assert_eq!(feeds::next_revision(&mut tx).await.unwrap(), second + 1);
    feeds::revert_revision(&mut tx).await.unwrap();
    assert_eq!(feeds::revision(&mut tx).await.unwrap(), second);
}

async fn older_list_does_not_replace_newer_data(database: TestDatabase) {
    let db = database.open().await;
    let mut tx = db.begin().await.unwrap();
    let estimate = |score| Epss::new("CVE-2026-0001", score, "0.5").unwrap();
    let cves = BTreeSet::from(["CVE-2026-0001", "CVE-2026-0002"]);
    assert_eq!(advisories::put_epss(&mut tx, &[estimate("0.2")], at(100)).await.unwrap(), 1);
    assert_eq!(advisories::put_epss(&mut tx, &[estimate("0.2")], at(200)).await.unwrap(), 0);
    assert_eq!(advisories::put_epss(&mut tx, &[estimate("0.1")], at(50)).await.unwrap(), 0);
    let found = advisories::epss(&mut tx, &cves).await.unwrap();
    assert_eq!(found["CVE-2026-0001"], estimate("0.2"));
    assert_eq!(advisories::put_epss(&mut tx, &[estimate("0.3")], at(300)).await.unwrap(), 1);
    assert_eq!(advisories::epss(&mut tx, &cves).await.unwrap()["CVE-2026-0001"], estimate("0.3"));
    let exploited = KevEntry {
        cve: "CVE-2026-0002".into(),
        added: "2026-11-01".parse().unwrap(),
        due: None,
        ransomware: false,
    };
    advisories::put_exploited(&mut tx, &[exploited.clone()], at(0)).await.unwrap();
    let found = advisories::exploited(&mut tx, &cves).await.unwrap();
    assert_eq!(found.into_values().collect::<Vec<_>>(), [exploited]);
}

async fn failed_import_keeps_the_last_successful_one(database: TestDatabase) {
    let db = database.open().await;
    let feed = feeds::Feed {
        name: "Debian".into(),
        kind: "osv".into(),
        source: "Debian.zip".into(),
        records: 7,
        size_bytes: 1_000,
        as_of: Some(at(1)),
        imported_at: Some(at(2)),
        last_error: None,
        tried_at: at(2),
        checked_at: Some(at(2)),
    };
    let mut tx = db.begin().await.unwrap();
    feeds::record_import(&mut tx, &feed).await.unwrap();
    feeds::record_failure(&mut tx, ("Debian", "osv", "Debian.zip"), "is truncated", at(3))
        .await
        .unwrap();
    feeds::record_failure(&mut tx, ("kev", "kev", "kev.json"), "it is empty", at(4)).await.unwrap();
    let after =
        feeds::Feed { last_error: Some("is truncated".into()), tried_at: at(3), ..feed.clone() };
    let found = feeds::list(&mut tx).await.unwrap();
    assert_eq!(found[0], after);
    assert_eq!((found[1].name.as_str(), found[1].imported_at, found.len()), ("kev", None, 2));
    feeds::record_import(&mut tx, &feed).await.unwrap();
    assert_eq!(feeds::list(&mut tx).await.unwrap()[0], feed);
}

testkit::both!(
    crate::support::database:
    advisory_is_found_by_id_base_and_packages,
    advisory_replaces_the_one_with_its_id,
    feeds_with_the_same_ids_keep_their_own_advisories,
    changed_packages_are_listed_since_a_revision,
    older_list_does_not_replace_newer_data,
    failed_import_keeps_the_last_successful_one,
);

fn source(name: &str, next: i64) -> feed_sources::FeedSource {
    feed_sources::FeedSource {
        name: name.into(),
        url: format!("https://feeds.test/{name}.zip"),
        kind: Some("osv".into()),
        every_seconds: 3_600,
        next_at: at(next),
        failures: 0,
        etag: None,
        last_modified: None,
        automatic: false,
    }
}

async fn fetch_is_recorded_unless_the_source_changed(database: TestDatabase) {
    let db = database.open().await;
    let mut tx = db.begin().await.unwrap();
    let (debian, kev) = (source("Debian", 20), source("kev", 10));
    for one in [&debian, &kev] {
        feed_sources::save(&mut tx, one).await.unwrap();
    }
    let after = feed_sources::FeedSource {
        next_at: at(99),
        failures: 2,
        etag: Some("\"a\"".into()),
        ..kev.clone()
    };
    assert!(feed_sources::record_fetch(&mut tx, &after).await.unwrap());
    let elsewhere =
        feed_sources::FeedSource { url: "https://mirror.test/kev".into(), ..after.clone() };
    assert!(!feed_sources::record_fetch(&mut tx, &elsewhere).await.unwrap(), "it has another URL");
    assert_eq!(feed_sources::list(&mut tx).await.unwrap(), [debian.clone(), after.clone()]);
    assert!(feed_sources::set_due(&mut tx, "kev", at(1)).await.unwrap());
    assert!(!feed_sources::set_due(&mut tx, "epss", at(1)).await.unwrap());
    let due = feed_sources::FeedSource { next_at: at(1), ..after };
    assert_eq!(feed_sources::list(&mut tx).await.unwrap(), [debian, due]);
    assert!(feed_sources::delete(&mut tx, "kev").await.unwrap());
    assert!(!feed_sources::delete(&mut tx, "kev").await.unwrap());
    assert!(!feed_sources::record_fetch(&mut tx, &kev).await.unwrap(), "the source was deleted");
}

async fn unchanged_feed_counts_as_checked(database: TestDatabase) {
    let db = database.open().await;
    let mut tx = db.begin().await.unwrap();
    feeds::record_failure(&mut tx, ("kev", "kev", "kev.json"), "it is empty", at(4)).await.unwrap();
    feeds::record_unchanged(&mut tx, "kev", at(9)).await.unwrap();
    let found = feeds::list(&mut tx).await.unwrap().remove(0);
    assert_eq!((found.checked_at, found.tried_at, found.last_error), (Some(at(9)), at(9), None));
    assert_eq!(found.imported_at, None);
}

async fn first_import_covers_nothing_before_it_ends(database: TestDatabase) {
    let db = database.open().await;
    let bookworm = Ecosystem::new("Debian:12");
    let mut tx = db.begin().await.unwrap();
    let progress = feed_progress::FeedProgress {
        name: "Debian".into(),
        phase: "importing".into(),
        bytes: 0,
        total_bytes: None,
        records: 1,
        total_records: Some(2),
        phase_started_at: at(0),
        updated_at: at(0),
    };
    feed_progress::save(&mut tx, &progress).await.unwrap();
    let curl = statement("DSA-1", &[("Debian:12", "curl")]);
    advisories::put_all(&mut tx, "Debian", std::slice::from_ref(&curl)).await.unwrap();
    assert!(!advisories::covers(&mut tx, &bookworm).await.unwrap(), "it is half imported");
    assert_eq!(feeds::incomplete(&mut tx).await.unwrap(), ["Debian"]);
    let failed = ("Debian", "osv", "Debian.zip");
    feeds::record_failure(&mut tx, failed, "interrupted", at(1)).await.unwrap();
    feed_progress::delete(&mut tx, "Debian").await.unwrap();
    assert!(!advisories::covers(&mut tx, &bookworm).await.unwrap(), "it was interrupted");
    advisories::put_all(&mut tx, "other", std::slice::from_ref(&curl)).await.unwrap();
    assert!(advisories::covers(&mut tx, &bookworm).await.unwrap(), "another feed covers it");
    advisories::delete(&mut tx, "other", &["DSA-1".into()]).await.unwrap();
    let row =
        feeds::Feed { imported_at: Some(at(2)), ..feeds::list(&mut tx).await.unwrap().remove(0) };
    feeds::record_import(&mut tx, &row).await.unwrap();
    feed_progress::save(&mut tx, &progress).await.unwrap();
    assert!(advisories::covers(&mut tx, &bookworm).await.unwrap(), "an update keeps the old data");
    assert_eq!(feeds::incomplete(&mut tx).await.unwrap(), [""; 0]);
}

async fn removed_feeds_are_remembered_until_they_are_added_again(database: TestDatabase) {
    let db = database.open().await;
    let mut tx = db.begin().await.unwrap();
    for name in ["Ubuntu", "Debian", "Ubuntu"] {
        feed_removals::add(&mut tx, name, at(1)).await.unwrap();
    }
    assert_eq!(feed_removals::list(&mut tx).await.unwrap(), ["Debian", "Ubuntu"]);
    assert!(feed_removals::contains(&mut tx, "Debian").await.unwrap());
    feed_removals::delete(&mut tx, "Debian").await.unwrap();
    assert!(!feed_removals::contains(&mut tx, "Debian").await.unwrap());
}

async fn progress_of_an_import_is_replaced_and_deleted(database: TestDatabase) {
    let db = database.open().await;
    let mut tx = db.begin().await.unwrap();
    let begun = feed_progress::FeedProgress {
        name: "Debian".into(),
        phase: "downloading".into(),
        bytes: 10,
        total_bytes: None,
        records: 0,
        total_records: None,
        phase_started_at: at(1),
        updated_at: at(1),
    };
    feed_progress::save(&mut tx, &begun).await.unwrap();
    let later = feed_progress::FeedProgress {
        phase: "importing".into(),
        total_bytes: Some(20),
        records: 3,
        total_records: Some(4),
        updated_at: at(2),
        ..begun
    };
    feed_progress::save(&mut tx, &later).await.unwrap();
    assert_eq!(feed_progress::list(&mut tx).await.unwrap(), [later]);
    feed_progress::delete(&mut tx, "Debian").await.unwrap();
    assert_eq!(feed_progress::list(&mut tx).await.unwrap(), []);
}

testkit::both!(
    crate::support::database:
    fetch_is_recorded_unless_the_source_changed,
    first_import_covers_nothing_before_it_ends,
    removed_feeds_are_remembered_until_they_are_added_again,
    progress_of_an_import_is_replaced_and_deleted,
    unchanged_feed_counts_as_checked,
);
