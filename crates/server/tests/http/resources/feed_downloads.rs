//! Feeds that are downloaded from their publishers, and bundles for installations without internet
//! access.

use std::time::Duration;

use domain::advisory::{Advisory, Epss};
use jiff::{SignedDuration, Timestamp};
use service::commands::feeds::bundle::{self, BundleKey, BundleOrigin};
use service::commands::feeds::remote;
use service::commands::feeds::remote::{UpdateOutcome, UrlImport, import_url};
use service::commands::feeds::{FeedTransactions, ImportSummary};
use service::fetch::Limits;
use store::feed_sources::{self, FeedSource};
use store::{advisories, feeds};

use crate::resources::feeds::{
    FRIDAY, MONDAY, advisory_counts, import_feed, lines, osv, write_file,
};
use crate::support::Service;
use testkit::publisher::{Publisher, Reply, ok, status};

fn follow(url: String) -> UrlImport {
    UrlImport { url, name: None, kind: None, interval: Some(remote::DEFAULT_INTERVAL) }
}

async fn import(service: &Service, wanted: UrlImport) -> Result<ImportSummary, String> {
    let done =
        import_url(&service.app.db, wanted, Limits::default(), service.clock.now(), |_| {}).await;
    done.map_err(|error| format!("{error:?}: {error}"))
}

async fn update(service: &Service, limits: Limits) -> Result<UpdateOutcome, String> {
    let source = source(service).await;
    let desk = FeedTransactions::new(&service.app.db);
    let done = remote::update(&desk, &source, limits, service.clock.now(), |_| {}).await;
    done.map_err(|error| format!("{error:?}: {error}"))
}

async fn source(service: &Service) -> FeedSource {
    feed_sources::list(&mut service.app.db.read().await.unwrap()).await.unwrap().remove(0)
}

async fn feed(service: &Service) -> feeds::Feed {
    feeds::list(&mut service.app.db.read().await.unwrap()).await.unwrap().remove(0)
}

/// All advisories, all EPSS scores, all feeds.
async fn all_feed_data(
    service: &Service,
) -> (Vec<(String, Advisory)>, Vec<(Epss, Timestamp)>, Vec<feeds::Feed>) {
    let mut reader = service.app.db.read().await.unwrap();
    (
        advisories::page(&mut reader, ("", ""), 9_999).await.unwrap(),
        advisories::epss_page(&mut reader, "", 9).await.unwrap(),
        feeds::list(&mut reader).await.unwrap(),
    )
}

fn friday() -> String {
    lines(&[osv("DSA-1", FRIDAY, "curl", "1.2", &["CVE-2026-1"])])
}

async fn feed_is_downloaded_again_only_if_it_changed(service: &Service) {
    let publisher = Publisher::new().await;
    let saturday = lines(&[
        osv("DSA-1", FRIDAY, "curl", "1.2", &["CVE-2026-1"]),
        osv("DSA-2", "2026-11-14T00:00:00Z", "vim", "9.1", &["CVE-2026-2"]),
    ]);
    publisher.enqueue([
        ok("etag: \"one\"\r\nlast-modified: Fri, 13 Nov 2026 00:00:00 GMT\r\n", friday()),
        status("304 Not Modified", ""),
        ok("etag: \"two\"\r\n", saturday),
    ]);
    let done = import(service, follow(publisher.url("osv/Debian/all.zip"))).await.unwrap();
    assert_eq!((done.name.as_str(), done.kind, done.changed), ("Debian", "osv", 1));
    assert_eq!(source(service).await.next_at, service.clock.now() + remote::DEFAULT_INTERVAL);
    service.clock.advance(SignedDuration::from_hours(1));
    let unchanged = UpdateOutcome::Unchanged { name: "Debian".into() };
    assert_eq!(update(service, Limits::default()).await.unwrap(), unchanged);
    let now = feed(service).await;
    assert_eq!(now.checked_at, Some(service.clock.now()));
    assert_eq!(now.imported_at, Some(service.clock.now() - SignedDuration::from_hours(1)));
    assert_eq!(now.source, publisher.url("osv/Debian/all.zip"));
    let UpdateOutcome::Imported(done) = update(service, Limits::default()).await.unwrap() else {
        panic!("the feed changed")
    };
    assert_eq!((done.records, done.changed, advisory_counts(service).await), (2, 1, (2, 2)));
    let requests = publisher.request_heads();
    assert!(!requests[0].contains("if-none-match"), "{}", requests[0]);
    for request in &requests[1..] {
        assert!(request.contains("if-none-match: \"one\""), "{request}");
        assert!(request.contains("if-modified-since: fri, 13 nov 2026"), "{request}");
    }
    let after = source(service).await;
    assert_eq!((after.etag.as_deref(), after.last_modified), (Some("\"two\""), None));
}

async fn failed_download_changes_nothing_and_is_retried_with_backoff(service: &Service) {
    let publisher = Publisher::new().await;
    publisher.enqueue([ok("etag: \"one\"\r\n", friday())]);
    import(service, follow(publisher.url("Debian.jsonl"))).await.unwrap();
    let more = lines(&[
        osv("DSA-1", "2026-11-14T00:00:00Z", "curl", "1.3", &["CVE-2026-1"]),
        osv("DSA-3", FRIDAY, "bash", "5.2", &["CVE-2026-3"]),
    ]);
    let cut = more.len() - 40;
    let half = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{}", more.len(), &more[..cut]);
    let loops = publisher.url("Debian.jsonl");
    let small = Limits { bytes_max: 100, ..Limits::default() };
    let hasty = Limits { idle: Duration::from_millis(50), ..Limits::default() };
    let chunked = format!(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{more}\r\n0\r\n\r\n",
        more.len()
    );
    let usual = Limits::default();
    let cases: Vec<(Vec<Reply>, Limits, &str)> = vec![
        (vec![status("500 Internal Server Error", "")], usual, "returned 500"),
        (vec![Reply::Close(half.clone().into_bytes())], usual, "truncated after"),
        (vec![ok("", &more[..cut])], usual, "Debian.jsonl is truncated"),
        (vec![ok("", "")], usual, "contains no records"),
        (vec![ok("", &more)], small, "larger than 100 bytes"),
        (vec![Reply::Close(chunked.into_bytes())], small, "larger than 100 bytes"),
        (vec![Reply::Hang(half.into_bytes())], hasty, "timed out"),
        (vec![Reply::Hang(Vec::new())], hasty, "timed out"),
        (
            (0..9).map(|_| status("302 Found", &format!("location: {loops}\r\n"))).collect(),
            usual,
            "too many redirects",
        ),
        (vec![Reply::Close(Vec::new())], usual, "cannot be reached"),
    ];
    let minutes = [5, 10, 20, 40, 80, 160, 320, 360, 360, 360];
    for ((failures, (answers, limits, why)), minutes) in (1..).zip(cases).zip(minutes) {
        publisher.replace_queue(answers);
        let refusal = update(service, limits).await.unwrap_err();
        assert!(
            refusal.contains(why) || feed(service).await.last_error.unwrap().contains(why),
            "{refusal}"
        );
        assert_eq!(advisory_counts(service).await, (1, 1), "{why}");
        let now = feed(service).await;
        assert!(now.last_error.as_ref().unwrap().contains(why), "{now:?}");
        assert!(
            !now.last_error.unwrap().contains("fleetmend-feed-"),
            "the error names the URL, not a file"
        );
        assert_eq!((now.records, now.checked_at), (1, Some(service.clock.now())));
        let after = source(service).await;
        assert_eq!((after.failures, after.etag.as_deref()), (failures, Some("\"one\"")));
        assert_eq!(
            after.next_at,
            service.clock.now() + SignedDuration::from_mins(minutes),
            "{why}"
        );
    }
    publisher.replace_queue([ok("", &more)]);
    update(service, Limits::default()).await.unwrap();
    assert_eq!((advisory_counts(service).await.0, feed(service).await.last_error), (2, None));
    assert_eq!(source(service).await.failures, 0);
}

async fn feed_whose_first_import_failed_is_not_followed(service: &Service) {
    let publisher = Publisher::new().await;
    let refusal = import(service, follow(publisher.url("kev.json"))).await.unwrap_err();
    assert!(refusal.contains("500"), "{refusal}");
    let mut reader = service.app.db.read().await.unwrap();
    assert_eq!(feed_sources::list(&mut reader).await.unwrap(), []);
    drop(reader);
    assert!(feed(service).await.last_error.unwrap().contains("500"));
    publisher.enqueue([ok("", friday())]);
    import(
        service,
        UrlImport { interval: None, name: Some("mine".into()), ..follow(publisher.url("x")) },
    )
    .await
    .unwrap();
    let mut reader = service.app.db.read().await.unwrap();
    assert_eq!(
        feed_sources::list(&mut reader).await.unwrap(),
        [],
        "a single import is not followed"
    );
    assert_eq!(feeds::list(&mut reader).await.unwrap()[1].name, "mine");
}

async fn redirects_are_limited_and_retry_after_is_respected(service: &Service) {
    let publisher = Publisher::new().await;
    let mut answers: Vec<Reply> =
        (0..5).map(|n| status("302 Found", &format!("location: /there/{n}\r\n"))).collect();
    answers.push(ok("", friday()));
    publisher.enqueue(answers);
    let done = import(service, follow(publisher.url("Debian.jsonl"))).await.unwrap();
    assert_eq!((done.name.as_str(), publisher.request_heads().len()), ("Debian", 6));
    publisher.enqueue([status("429 Too Many Requests", "retry-after: 7200\r\n")]);
    update(service, Limits::default()).await.unwrap_err();
    assert_eq!(source(service).await.next_at, service.clock.now() + SignedDuration::from_hours(2));
}

async fn bundle_contains_everything_and_an_older_one_removes_nothing(service: &Service) {
    let elsewhere = Service::on(testkit::TestDatabase::sqlite()).await;
    let empty = service.database.dir.join("empty.zst");
    assert!(
        bundle::export(
            &elsewhere.app.db,
            &elsewhere.app.secrets.bundle_key(),
            &empty,
            elsewhere.clock.now()
        )
        .await
        .is_err()
    );
    assert!(!empty.exists());
    let debian =
        |records: &[serde_json::Value]| write_file(&elsewhere, "Debian.jsonl", &lines(records));
    let many: Vec<_> = (0..1_234)
        .map(|n| osv(&format!("DSA-{n}"), MONDAY, &format!("p{n}"), "1.1", &[]))
        .collect();
    import_feed(&elsewhere, &debian(&many)).await.unwrap();
    let epss = "#model_version:v1,score_date:2026-11-13T00:00:00Z\ncve,epss,percentile\nCVE-2026-1,0.25,0.9\n";
    import_feed(&elsewhere, &write_file(&elsewhere, "epss.csv", epss)).await.unwrap();
    let old = service.database.dir.join("monday.zst");
    let created = bundle::export(
        &elsewhere.app.db,
        &elsewhere.app.secrets.bundle_key(),
        &old,
        elsewhere.clock.now(),
    )
    .await
    .unwrap();
    assert_eq!((created.feeds, created.records), (2, 1_235));
    elsewhere.clock.advance(SignedDuration::from_hours(96));
    import_feed(
        &elsewhere,
        &debian(&[
            osv("DSA-7", FRIDAY, "p7", "1.2", &[]),
            osv("DSA-9999", FRIDAY, "new", "1", &[]),
        ]),
    )
    .await
    .unwrap();
    let new = service.database.dir.join("friday.zst");
    bundle::export(
        &elsewhere.app.db,
        &elsewhere.app.secrets.bundle_key(),
        &new,
        elsewhere.clock.now(),
    )
    .await
    .unwrap();

    let done = import_feed(service, &new).await.unwrap();
    assert_eq!((done.kind, done.records, done.changed), ("bundle", 1_236, 1_236));
    let revision = advisory_counts(service).await;
    assert_eq!(revision.0, 1_235);
    for bundle in [&new, &old, &new] {
        assert_eq!(import_feed(service, bundle).await.unwrap().changed, 0);
        assert_eq!(advisory_counts(service).await, revision);
    }
    let ((statements, estimates, rows), theirs) =
        (all_feed_data(service).await, all_feed_data(&elsewhere).await);
    assert_eq!((statements, estimates), (theirs.0, theirs.1));
    let named: Vec<_> = rows.iter().map(|feed| (feed.name.as_str(), feed.kind.as_str())).collect();
    assert_eq!(
        named,
        [("Debian", "osv"), ("epss", "epss"), ("friday", "bundle"), ("monday", "bundle")]
    );
    assert_eq!(rows[..2], theirs.2[..], "with their original age");
    elsewhere.remove().await;
}

async fn truncated_or_unknown_bundle_changes_nothing(service: &Service) {
    import_feed(service, &write_file(service, "Debian.jsonl", &friday())).await.unwrap();
    let path = service.database.dir.join("bundle.zst");
    bundle::export(&service.app.db, &service.app.secrets.bundle_key(), &path, service.clock.now())
        .await
        .unwrap();
    let whole = std::fs::read(&path).unwrap();
    let text = String::from_utf8(zstd::decode_all(&whole[..]).unwrap()).unwrap();
    let packed = |text: &str| zstd::encode_all(text.as_bytes(), 1).unwrap();
    let without_end = text.lines().take(2).map(|line| format!("{line}\n")).collect::<String>();
    let cases = [
        (whole[..whole.len() - 20].to_vec(), "truncated"),
        (packed(&without_end), "truncated"),
        (packed(&text.replace("\"records\":1}}", "\"records\":2}}")), "missing"),
        (packed(&text.replace("\"fixed\":\"1.2\"", "\"fixed\":\"1.3\"")), "was altered"),
        (packed(&text.replace("\"form\":2", "\"form\":1")), "was altered"),
        (packed(&format!("{text}{text}")), "content after the signature"),
        (packed(text.trim_end()), "truncated"),
        (packed(&text.replace("\"form\":2", "\"form\":3")), "newer release"),
        (packed(text.lines().nth(1).unwrap()), "truncated"),
        (packed("{}\n"), "line 1"),
        (packed(""), "truncated"),
    ];
    let broken = service.database.dir.join("broken.zst");
    for (bytes, why) in cases {
        std::fs::write(&broken, bytes).unwrap();
        let refusal = import_feed(service, &broken).await.unwrap_err();
        assert!(refusal.contains(why), "{why}: {refusal}");
        assert_eq!(advisory_counts(service).await, (1, 1));
    }
    let noted = feeds::list(&mut service.app.db.read().await.unwrap()).await.unwrap();
    assert_eq!((noted[1].name.as_str(), noted[1].imported_at), ("broken", None));
}

async fn only_bundles_of_the_trusted_key_are_imported(service: &Service) {
    import_feed(service, &write_file(service, "Debian.jsonl", &friday())).await.unwrap();
    let dir = &service.database.dir;
    let path = dir.join("signed.zst");
    let key = service.app.secrets.bundle_key();
    let exported_at = service.clock.now();
    bundle::export(&service.app.db, &key, &path, exported_at).await.unwrap();
    let trusted: BundleKey = key.public_key().parse().unwrap();
    let other: BundleKey = service.app.secrets.orders_key().public_key().parse().unwrap();
    let whole = std::fs::read(&path).unwrap();
    let text = String::from_utf8(zstd::decode_all(&whole[..]).unwrap()).unwrap();
    let packed = |text: &str| zstd::encode_all(text.as_bytes(), 1).unwrap();
    let (body, signature) = text.trim_end().rsplit_once('\n').unwrap();
    // Someone else's valid signature under the trusted name.
    let renamed = signature.replace(&trusted.to_string(), &other.to_string());
    let there = Service::on(testkit::TestDatabase::sqlite()).await;
    let import = async |bytes: &[u8], trust: Option<&BundleKey>| {
        let path = there.database.dir.join("bundle.zst");
        std::fs::write(&path, bytes).unwrap();
        let transactions = FeedTransactions::new(&there.app.db);
        let done = bundle::import(&transactions, &path, trust, there.clock.now(), |_| {}).await;
        done.map_err(|error| error.to_string())
    };
    for (bytes, trust, why) in [
        (whole.clone(), &other, "signed with another key than the trusted one"),
        (packed(&format!("{body}\n")), &trusted, "is not signed"),
        (packed(&text.replace("1.2", "1.3")), &trusted, "was altered"),
        (packed(&format!("{body}\n{renamed}\n")), &other, "was altered"),
        (whole[..whole.len() - 30].to_vec(), &trusted, "truncated"),
    ] {
        let refusal = import(&bytes, Some(trust)).await.unwrap_err();
        assert!(refusal.contains(why), "{why}: {refusal}");
        assert_eq!(advisory_counts(&there).await, (0, 0), "{why}");
    }
    let done = import(&whole, Some(&trusted)).await.unwrap();
    let origin = BundleOrigin { signer: Some(trusted.clone()), older_than: None };
    assert_eq!((done.changed, done.bundle), (1, Some(origin)));
    let unsigned = import(&packed(&format!("{body}\n")), None).await.unwrap().bundle.unwrap();
    assert_eq!(unsigned.signer, None, "bundles of earlier releases can be imported");

    // An older bundle of the same key, after a newer one.
    service.clock.advance(SignedDuration::from_hours(1));
    bundle::export(&service.app.db, &key, &path, service.clock.now()).await.unwrap();
    import(&std::fs::read(&path).unwrap(), Some(&trusted)).await.unwrap();
    for _ in 0..2 {
        let replayed = import(&whole, Some(&trusted)).await.unwrap();
        let older_than = replayed.bundle.unwrap().older_than;
        assert_eq!((replayed.changed, older_than), (0, Some(service.clock.now())));
    }
    there.remove().await;
}

async fn age_and_size_of_feeds_are_in_api_and_metrics(service: &Service) {
    let publisher = Publisher::new().await;
    publisher.enqueue([ok("", friday())]);
    import(service, follow(publisher.url("Debian.jsonl"))).await.unwrap();
    import_feed(service, &write_file(service, "kev \"x\".json", "{")).await.unwrap_err();
    let listed = service.get("/v1/feeds").await.is(200).json();
    let rows = &listed["data"];
    assert_eq!(listed["meta"]["total"], 2);
    assert_eq!(
        (&rows[0]["name"], &rows[0]["kind"], &rows[0]["records"]),
        (&"Debian".into(), &"osv".into(), &1.into())
    );
    assert_eq!(rows[0]["size_bytes"], friday().len());
    // From Friday to Sunday at four.
    assert_eq!(
        (&rows[0]["as_of"], &rows[0]["age_seconds"]),
        (&FRIDAY.into(), &(52 * 3_600).into())
    );
    let next = service.clock.now() + remote::DEFAULT_INTERVAL;
    assert_eq!(rows[0]["next_update_at"], next.to_string());
    assert_eq!((&rows[1]["age_seconds"], &rows[1]["next_update_at"]), (&().into(), &().into()));
    assert!(rows[1]["last_error"].as_str().unwrap().contains("truncated"), "{rows}");
    assert_eq!(
        service.get("/v1/feeds?limit=1&offset=1").await.is(200).json()["data"][0]["name"],
        "kev \"x\""
    );
    let text = String::from_utf8(service.get("/metrics").await.is(200).bytes).unwrap();
    for line in [
        "fleetmend_feed_age_seconds{feed=\"Debian\"} 187200\n",
        "fleetmend_feed_checked_age_seconds{feed=\"Debian\"} 0\n",
        "fleetmend_feed_records{feed=\"Debian\"} 1\n",
        "fleetmend_feed_failed{feed=\"Debian\"} 0\n",
        "fleetmend_feed_failed{feed=\"kev \\\"x\\\"\"} 1\n",
        "# TYPE fleetmend_feed_size_bytes gauge\n",
    ] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
}

testkit::both!(
    crate::support:
    feed_is_downloaded_again_only_if_it_changed,
    failed_download_changes_nothing_and_is_retried_with_backoff,
    feed_whose_first_import_failed_is_not_followed,
    redirects_are_limited_and_retry_after_is_respected,
    bundle_contains_everything_and_an_older_one_removes_nothing,
    truncated_or_unknown_bundle_changes_nothing,
    only_bundles_of_the_trusted_key_are_imported,
    age_and_size_of_feeds_are_in_api_and_metrics,
);
