//! Feeds imported from files: completely or not at all.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use service::commands::feeds::{ImportProgress, ImportRequest, ImportSummary, import};
use store::{advisories, feeds};

use crate::support::Service;

/// An advisory in OSV format for Debian 12.
pub(crate) fn osv(id: &str, modified: &str, package: &str, fixed: &str, cves: &[&str]) -> Value {
    json!({"id": id, "modified": modified, "published": "2026-11-01T00:00:00Z", "aliases": cves,
        "affected": [{"package": {"ecosystem": "Debian:12", "name": package},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": fixed}]}]}]})
}

pub(crate) fn write_file(service: &Service, name: &str, text: &str) -> PathBuf {
    let path = service.database.dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

pub(crate) fn lines(records: &[Value]) -> String {
    records.iter().map(|record| format!("{record}\n")).collect()
}

pub(crate) async fn import_feed(service: &Service, path: &Path) -> Result<ImportSummary, String> {
    let wanted = ImportRequest { path: path.to_owned(), name: None, kind: None, as_of: None };
    let done = import(&service.app.db, wanted, service.clock.now(), |_| {}).await;
    done.map_err(|error| error.to_string())
}

pub(crate) async fn advisory_counts(service: &Service) -> (u64, i64) {
    let mut reader = service.app.db.read().await.unwrap();
    let count = advisories::count(&mut reader).await.unwrap();
    (count, feeds::revision(&mut reader).await.unwrap())
}

pub(crate) const MONDAY: &str = "2026-11-09T00:00:00Z";
pub(crate) const FRIDAY: &str = "2026-11-13T00:00:00Z";

async fn repeated_or_older_import_changes_nothing(service: &Service) {
    let friday = lines(&[
        osv("DSA-1", FRIDAY, "curl", "1.2", &["CVE-2026-1"]),
        osv("DSA-2", FRIDAY, "vim", "9.1", &["CVE-2026-2"]),
    ]);
    let monday = lines(&[osv("DSA-1", MONDAY, "curl", "1.1", &["CVE-2026-1"])]);
    let path = write_file(service, "Debian.jsonl", &friday);
    let done = import_feed(service, &path).await.unwrap();
    assert_eq!(
        (done.name.as_str(), done.kind, done.records, done.changed),
        ("Debian", "osv", 2, 2)
    );
    assert_eq!(advisory_counts(service).await, (2, 1));
    assert_eq!(import_feed(service, &path).await.unwrap().changed, 0);
    std::fs::write(&path, monday).unwrap();
    assert_eq!(import_feed(service, &path).await.unwrap().changed, 0);
    assert_eq!(
        advisory_counts(service).await,
        (2, 1),
        "nothing is removed, and nothing has to be matched again"
    );
    let mut reader = service.app.db.read().await.unwrap();
    let stored = advisories::get_all(&mut reader, "Debian", &["DSA-1".into()]).await.unwrap();
    assert_eq!(stored["DSA-1"].modified.unwrap().to_string(), FRIDAY);
}

async fn invalid_feed_changes_nothing_and_shows_the_reason(service: &Service) {
    let good = lines(&[osv("DSA-1", FRIDAY, "curl", "1.2", &["CVE-2026-1"])]);
    let path = write_file(service, "Debian.jsonl", &good);
    import_feed(service, &path).await.unwrap();
    let more = lines(&[
        osv("DSA-1", "2026-11-14T00:00:00Z", "curl", "1.3", &["CVE-2026-1"]),
        osv("DSA-3", FRIDAY, "bash", "5.2", &["CVE-2026-3"]),
    ]);
    for text in [&more[..more.len() - 40], "", "[]", "{\"id\": 7}\n", "nonsense"] {
        std::fs::write(&path, text).unwrap();
        let refusal = import_feed(service, &path).await.unwrap_err();
        assert!(refusal.contains("Debian.jsonl"), "{refusal}");
        assert_eq!(advisory_counts(service).await, (1, 1), "{text}");
        let status = feeds::list(&mut service.app.db.read().await.unwrap()).await.unwrap();
        assert!(status[0].last_error.as_ref().unwrap().contains("Debian.jsonl"), "{status:?}");
        assert_eq!((status[0].records, status[0].imported_at), (1, Some(service.clock.now())));
    }
    std::fs::write(&path, more).unwrap();
    assert_eq!(import_feed(service, &path).await.unwrap().changed, 2);
    let status = feeds::list(&mut service.app.db.read().await.unwrap()).await.unwrap();
    assert_eq!((status.len(), &status[0].last_error, status[0].records), (1, &None, 2));
    let absent = service.database.dir.join("absent.json");
    assert!(import_feed(service, &absent).await.unwrap_err().contains("cannot be opened"));
}

async fn kev_and_epss_feeds_have_their_own_dates(service: &Service) {
    let kev = json!({"title": "list", "catalogVersion": "1", "dateReleased": FRIDAY, "count": 1, "vulnerabilities": [
        {"cveID": "CVE-2026-1", "dateAdded": "2026-11-12", "knownRansomwareCampaignUse": "Known"}]});
    let kev = write_file(service, "kev.json", &kev.to_string());
    assert_eq!(import_feed(service, &kev).await.unwrap().kind, "kev");
    let epss = |day: &str, score: &str| {
        format!("#model_version:v1,score_date:{day}\ncve,epss,percentile\nCVE-2026-1,{score},0.9\n")
    };
    let path = write_file(service, "epss.csv", &epss(FRIDAY, "0.25"));
    assert_eq!(import_feed(service, &path).await.unwrap().changed, 1);
    std::fs::write(&path, epss(MONDAY, "0.11")).unwrap();
    assert_eq!(
        import_feed(service, &path).await.unwrap().changed,
        0,
        "Monday's EPSS scores are older"
    );
    let asked = std::collections::BTreeSet::from(["CVE-2026-1"]);
    let mut reader = service.app.db.read().await.unwrap();
    assert_eq!(advisories::epss(&mut reader, &asked).await.unwrap()["CVE-2026-1"].score(), 0.25);
    assert!(advisories::exploited(&mut reader, &asked).await.unwrap()["CVE-2026-1"].ransomware);
}

async fn large_feed_is_imported_completely_with_progress(service: &Service) {
    let many: Vec<Value> = (0..2_345)
        .map(|n| osv(&format!("DSA-{n}"), FRIDAY, &format!("p{}", n % 100), "1.1", &[]))
        .collect();
    let path = write_file(service, "Debian.jsonl", &lines(&many));
    let (checked, applied) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let seen = (checked.clone(), applied.clone());
    let wanted = ImportRequest { path, name: None, kind: None, as_of: None };
    let done = import(&service.app.db, wanted, service.clock.now(), move |step| match step {
        ImportProgress::Checking(at) => seen.0.store(at.bytes, Ordering::SeqCst),
        ImportProgress::Applying { read, .. } => seen.1.store(read.bytes, Ordering::SeqCst),
        ImportProgress::Downloading { .. } => panic!("a file is not downloaded"),
    });
    assert_eq!(done.await.unwrap().changed, 2_345);
    assert_eq!(advisory_counts(service).await.0, 2_345);
    assert!(applied.load(Ordering::SeqCst) > 0);
    assert_eq!(checked.load(Ordering::SeqCst), applied.load(Ordering::SeqCst));
}

testkit::both!(
    crate::support:
    repeated_or_older_import_changes_nothing,
    invalid_feed_changes_nothing_and_shows_the_reason,
    kev_and_epss_feeds_have_their_own_dates,
    large_feed_is_imported_completely_with_progress,
);
