//! Feeds that are found through repositories of rpm packages: Amazon Linux and Oracle Linux.

use serde_json::{Value, json};
use service::commands::feeds::remote::{FetchOptions, UpdateOutcome};
use service::commands::feeds::{FeedTransactions, ImportRequest, automatic, import, remote};
use service::fetch::Limits;
use service::projections::{findings, patches};
use store::feed_sources;
use testkit::publisher::{Publisher, Reply, ok, repository_index, status};
use vocab::{Installed, ServerId};

use crate::fleet::{Host, join};
use crate::resources::feeds::{advisory_counts, write_file};
use crate::support::Service;

const MIRROR_LIST: &str = "/cdn.amazonlinux.com/al2023/core/mirrors/latest/x86_64/mirror.list";
const AMAZON: &str = "/cdn.amazonlinux.com/al2023/core/guids/0a1b/x86_64";
const ORACLE: &str = "/mirror/yum.oracle.com/repo/OracleLinux/OL9";

fn advisory(id: &str, cve: &str, package: (&str, &str, &str)) -> String {
    let (name, version, release) = package;
    format!(
        "<update type=\"security\" status=\"final\"><id>{id}</id><title>Update for {name}</title>\
         <issued date=\"2026-11-12 10:00:00\"/><severity>Important</severity><references>\
         <reference href=\"x\" id=\"{cve}\" type=\"cve\"/></references><pkglist><collection>\
         <package name=\"{name}\" epoch=\"0\" version=\"{version}\" release=\"{release}\" \
         arch=\"x86_64\"/></collection></pkglist></update>"
    )
}

fn updates(advisories: &[String]) -> String {
    format!("<?xml version=\"1.0\"?>\n<updates>{}</updates>\n", advisories.concat())
}

fn amazon() -> String {
    updates(&[advisory("ALAS2023-1", "CVE-2026-1", ("curl", "8.5.0", "1.amzn2023.0.2"))])
}

fn host(name: &'static str, os: (&'static str, &'static str), packages: &[(&str, &str)]) -> Host {
    let package = |name: &str, version: &str, arch: &str| {
        Installed::new(name, version, arch).with_source(name, version)
    };
    let installed = packages.iter().map(|(name, version)| package(name, version, "x86_64"));
    // The kernel that `Host` runs, so that everything can be assessed: its release is 6.1.0.
    let kernel = package("kernel", "6.1", "0");
    Host { os, installed: installed.chain([kernel]).collect(), ..Host::new(name) }
}

/// Follows the feed that the servers need, and fetches it from the mirror.
async fn update(service: &Service, publisher: &Publisher) -> Result<UpdateOutcome, String> {
    let (now, transactions) = (service.clock.now(), FeedTransactions::new(&service.app.db));
    automatic::follow_needed(&transactions, now).await.unwrap();
    let sources = feed_sources::list(&mut service.app.db.read().await.unwrap()).await.unwrap();
    let source = sources.into_iter().find(|source| source.name.contains(" Linux ")).unwrap();
    let options = FetchOptions { limits: Limits::default(), mirror: Some(publisher.url("mirror")) };
    let done = remote::update(&transactions, &source, options, now, |_| {}).await;
    done.map_err(|error| format!("{:#}", AsCauses(&error)))
}

/// An error with its causes.
struct AsCauses<'a>(&'a dyn std::error::Error);

impl std::fmt::Display for AsCauses<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        match self.0.source() {
            Some(cause) => write!(f, ": {}", AsCauses(cause)),
            None => Ok(()),
        }
    }
}

async fn matched(service: &Service, id: ServerId) -> (Value, Vec<String>) {
    findings::rebuild(&service.app, service.org).await.unwrap();
    patches::rebuild(&service.app, service.org).await.unwrap();
    let server = service.get(&format!("/v1/servers/{id}")).await.is(200).json();
    let cves = server["cves"].as_array().unwrap().iter();
    let cves = cves.map(|cve| cve["id"].as_str().or(cve["cve"].as_str()).unwrap().to_owned());
    (server["assessment"].clone(), cves.collect())
}

async fn feed(service: &Service) -> Value {
    let all = service.get("/v1/feeds").await.is(200).json();
    let mut all = all["data"].as_array().unwrap().iter();
    all.find(|feed| feed["kind"] == "updateinfo").unwrap().clone()
}

/// The number of requests for this path.
fn requests(publisher: &Publisher, path_end: &str) -> usize {
    let end = path_end.to_lowercase();
    let heads = publisher.request_heads();
    heads.iter().filter(|head| head.split(' ').nth(1).unwrap().ends_with(&end)).count()
}

async fn amazon_linux_is_matched_with_its_advisories(service: &Service) {
    let publisher = Publisher::new().await;
    // As the publisher writes it: the mirror serves an unchanged copy.
    let list = "https://cdn.amazonlinux.com/al2023/core/guids/0a1b/x86_64/\n";
    publisher.serve(MIRROR_LIST, ok("", list));
    publisher.serve_repository(AMAZON, amazon());
    let amzn = ("amzn", "2023");
    let old = join(service, host("old", amzn, &[("curl", "8.3.0-1.amzn2023.0.9")])).await;
    let new = join(service, host("new", amzn, &[("curl", "8.5.0-1.amzn2023.0.2")])).await;
    assert_eq!(matched(service, old).await, (json!("no_feed"), vec![]), "not covered before");
    let UpdateOutcome::Imported(done) = update(service, &publisher).await.unwrap() else {
        panic!("it is new")
    };
    assert_eq!((done.name.as_str(), done.kind), ("Amazon Linux 2023", "updateinfo"));
    assert_eq!(matched(service, old).await, (json!("assessed"), vec!["CVE-2026-1".to_owned()]));
    assert_eq!(matched(service, new).await, (json!("assessed"), vec![]));
    let cve = service.get("/v1/cves/CVE-2026-1").await.is(200).json();
    assert_eq!((&cve["severity"], &cve["severity_source"]), (&json!("high"), &json!("amazon")));
    let shown = feed(service).await;
    assert_eq!(
        (&shown["state"], &shown["as_of"]),
        (&json!("current"), &json!("2026-11-12T10:00:00Z"))
    );

    // The advisories are not downloaded again, even from another directory.
    publisher.serve(MIRROR_LIST, ok("", list.replace("0a1b", "2c3d")));
    publisher.serve_repository(&AMAZON.replace("0a1b", "2c3d"), amazon());
    let same = update(service, &publisher).await.unwrap();
    assert!(matches!(same, UpdateOutcome::Unchanged { .. }), "{same:?}");
    assert_eq!(requests(&publisher, "/updateinfo.xml"), 1);
    assert!(publisher.request_heads().iter().all(|head| head.starts_with("get /mirror/cdn.")));
}

async fn unusable_repository_changes_nothing_and_says_why(service: &Service) {
    let publisher = Publisher::new().await;
    publisher
        .serve(MIRROR_LIST, ok("", "https://cdn.amazonlinux.com/al2023/core/guids/0a1b/x86_64\n"));
    let server = host("web", ("amzn", "2023"), &[("curl", "8.3.0-1.amzn2023.0.9")]);
    let server = join(service, server).await;
    let (index, file) =
        (format!("{AMAZON}/repodata/repomd.xml"), format!("{AMAZON}/repodata/u.xml"));
    let text = amazon();
    let of = |text: &str| ok("", repository_index("repodata/u.xml", text.as_bytes()));
    let other = text.replace("8.5.0", "8.4.0");
    let half = &text[..text.len() / 2];
    let html = "<html><body>Sign in</body></html>";
    let cases: Vec<(Reply, Reply, &str)> = vec![
        (
            status("404 Not Found", ""),
            ok("", &text),
            "repomd.xml cannot be fetched: the server returned 404",
        ),
        (ok("", html), ok("", &text), "not the index of a repository: it begins with `html`"),
        (ok("", "<repomd><data type=\"updateinfo\">"), ok("", &text), "truncated"),
        (ok("", "<repomd></repomd>"), ok("", &text), "has no advisories"),
        (of(&text), status("503 Busy", ""), "u.xml cannot be fetched: the server returned 503"),
        (of(&text), ok("", &other), "does not match its checksum in the index of the repository"),
        (of(&text), ok("", half), "bytes instead of"),
        (of(half), ok("", half), "u.xml is truncated"),
        (of(html), ok("", html), "not an updateinfo file"),
        (of("<updates></updates>"), ok("", "<updates></updates>"), "contains no records"),
        (
            ok("", repository_index("../../x.xml", b"")),
            ok("", &text),
            "not a path in the repository",
        ),
        (ok("", "x".repeat(1_100_000)), ok("", &text), "larger than 1048576 bytes"),
    ];
    for (index_reply, file_reply, why) in cases {
        publisher.enqueue_at(&index, [index_reply]);
        publisher.serve(&file, file_reply);
        let refusal = update(service, &publisher).await.unwrap_err();
        assert!(refusal.contains(why), "{why}: {refusal}");
        let shown = feed(service).await;
        let error = shown["last_error"].as_str().unwrap();
        assert!(shown["state"] == "failed" && error.contains(why), "{why}: {error}");
        assert!(!error.contains("/tmp/"), "{error}");
        assert_eq!(advisory_counts(service).await.0, 0, "{why}");
        assert_eq!(matched(service, server).await.0, "no_feed", "{why}");
    }
    publisher.serve(MIRROR_LIST, ok("", html));
    assert!(update(service, &publisher).await.unwrap_err().contains("not a list of mirrors"));
}

/// Without a mirror, a list cannot send the service to another host.
async fn mirror_list_cannot_name_another_host(service: &Service) {
    let (publisher, stranger) = (Publisher::new().await, Publisher::new().await);
    publisher.serve("/mirror.list", ok("", stranger.url("repo")));
    stranger.serve_repository("/repo", amazon());
    let wanted = remote::UrlImport {
        url: publisher.url("al2023/mirror.list"),
        name: Some("mine".to_owned()),
        kind: Some("updateinfo:Amazon Linux:2023".parse().unwrap()),
        interval: None,
    };
    let now = service.clock.now();
    let refused =
        remote::import_url(&service.app.db, wanted.clone(), Limits::default(), now, |_| {});
    let refused = refused.await.unwrap_err().to_string();
    assert!(refused.contains("repository on another host"), "{refused}");
    assert_eq!(stranger.request_heads(), [""; 0]);
    publisher.serve("/mirror.list", ok("", publisher.url("repo/")));
    publisher.serve_repository("/repo", amazon());
    let done = remote::import_url(&service.app.db, wanted, Limits::default(), now, |_| {}).await;
    assert_eq!(done.unwrap().records, 1);
}

async fn oracle_linux_is_covered_only_with_all_its_repositories(service: &Service) {
    let publisher = Publisher::new().await;
    let repository = |path: &str, advisories: &[String]| {
        publisher.serve_repository(&format!("{ORACLE}/{path}/x86_64"), updates(advisories));
    };
    let uek = |id, version| advisory(id, "CVE-2026-3", ("kernel-uek-core", version, "1.el9uek"));
    repository("baseos/latest", &[advisory("ELSA-1", "CVE-2026-1", ("curl", "7.76.1", "30.el9"))]);
    repository("appstream", &[advisory("ELSA-2", "CVE-2026-2", ("nginx", "1.20", "16.el9"))]);
    repository("UEKR7", &[uek("ELSA-3", "5.15.0")]);
    let packages = [("curl", "7.76.1-29.el9"), ("nginx", "2:1.20-15.el9"), ("bash", "5.1-1.el9")];
    let server = join(service, host("db", ("ol", "9.4"), &packages)).await;
    let refusal = update(service, &publisher).await.unwrap_err();
    assert!(
        refusal.contains("OL9/UEKR8/x86_64/repodata/repomd.xml cannot be fetched"),
        "{refusal}"
    );
    assert_eq!(matched(service, server).await, (json!("no_feed"), vec![]));
    assert_eq!(advisory_counts(service).await.0, 0);
    repository("UEKR8", &[uek("ELSA-4", "6.12.0")]);
    let UpdateOutcome::Imported(done) = update(service, &publisher).await.unwrap() else {
        panic!("it is new")
    };
    assert_eq!((done.name.as_str(), done.records), ("Oracle Linux 9", 4));
    // The epoch of the installed nginx is higher than that of the fix.
    assert_eq!(matched(service, server).await, (json!("assessed"), vec!["CVE-2026-1".to_owned()]));
}

async fn updateinfo_file_is_imported_for_the_named_release(service: &Service) {
    let path = write_file(service, "updateinfo.xml", &amazon());
    let packed = service.database.dir.join("packed.xml.zst");
    std::fs::write(&packed, zstd::encode_all(amazon().as_bytes(), 1).unwrap()).unwrap();
    let request = |path: &std::path::Path, kind: Option<&str>| ImportRequest {
        path: path.to_owned(),
        name: Some("al2023".to_owned()),
        kind: kind.map(|kind| kind.parse().unwrap()),
        as_of: None,
    };
    let (db, now) = (&service.app.db, service.clock.now());
    let refused = import(db, request(&path, None), now, |_| {}).await.unwrap_err().to_string();
    assert!(refused.contains("--release 'Amazon Linux=2023'"), "{refused}");
    let named = Some("updateinfo:Amazon Linux:2023");
    let done = import(db, request(&path, named), now, |_| {}).await.unwrap();
    assert_eq!((done.kind, done.records, done.changed), ("updateinfo", 1, 1));
    let again = import(db, request(&packed, named), now, |_| {}).await.unwrap();
    assert_eq!((again.records, again.changed), (1, 0));
}

testkit::both!(
    crate::support:
    amazon_linux_is_matched_with_its_advisories,
    unusable_repository_changes_nothing_and_says_why,
    mirror_list_cannot_name_another_host,
    oracle_linux_is_covered_only_with_all_its_repositories,
    updateinfo_file_is_imported_for_the_named_release,
);
