//! The service follows the feeds that its servers need. The publishers are a local server that the
//! feed mirror points to, with everything that real ones do.

use jiff::SignedDuration;
use serde_json::{Value, json};
use server::app::App;
use service::app::{FeedMode, FeedSettings};
use service::auth::api_keys::{self, NewKey};
use service::commands::{feeds as commands, servers as server_commands};
use service::queries;
use store::feed_sources;
use testkit::publisher::{Publisher, Reply, ok, status};
use vocab::Role;
use wire::v1::{Feed, FeedPhase, FeedState};

use crate::agent::Agent;
use crate::support::{World, eventually};

const DEBIAN: &str = "/osv-vulnerabilities.storage.googleapis.com/Debian/all.zip";
const ALPINE: &str = "/osv-vulnerabilities.storage.googleapis.com/Alpine/all.zip";
const KEV: &str = "/www.cisa.gov/sites/default/files/feeds/known_exploited_vulnerabilities.json";
const EPSS: &str = "/epss.empiricalsecurity.com/epss_scores-current.csv.gz";

fn advisory(id: &str) -> String {
    json!({"id": id, "modified": "2026-11-13T00:00:00Z", "aliases": ["CVE-2026-1"], "affected": [
        {"package": {"ecosystem": "Debian:12", "name": "curl"},
         "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1"}]}]}]})
    .to_string()
}

/// A publisher of KEV, EPSS and one advisory for Debian.
async fn publisher() -> Publisher {
    let publisher = Publisher::new().await;
    let kev = json!({"title": "list", "catalogVersion": "1", "dateReleased": "2026-11-13T00:00:00Z",
        "count": 1, "vulnerabilities": [{"cveID": "CVE-2026-1", "dateAdded": "2026-11-12",
            "knownRansomwareCampaignUse": "Known"}]});
    publisher.serve(KEV, ok("", kev.to_string()));
    let epss = "#model_version:v1,score_date:2026-11-13T00:00:00Z\ncve,epss,percentile\nCVE-2026-1,0.25,0.9\n";
    publisher.serve(EPSS, ok("", epss));
    publisher.serve(DEBIAN, ok("etag: \"one\"\r\n", advisory("DSA-1")));
    publisher
}

fn settings(publisher: &Publisher, mode: FeedMode) -> FeedSettings {
    FeedSettings { mode, offline: false, mirror: Some(publisher.url("mirror/")) }
}

async fn list(app: &App) -> Vec<Feed> {
    queries::feeds::list(app.service()).await.unwrap()
}

async fn find(app: &App, name: &str) -> Option<Feed> {
    list(app).await.into_iter().find(|feed| feed.name == name)
}

async fn states(app: &App) -> Vec<(String, FeedState)> {
    list(app).await.into_iter().map(|feed| (feed.name, feed.state)).collect()
}

fn all_current() -> Vec<(String, FeedState)> {
    ["Debian", "EPSS", "KEV"].map(|name| (name.to_owned(), FeedState::Current)).into()
}

/// The number of requests for this path.
fn requests(publisher: &Publisher, path: &str) -> usize {
    let path = path.to_lowercase();
    let heads = publisher.request_heads();
    heads.iter().filter(|head| head.split(' ').nth(1).unwrap().ends_with(&path)).count()
}

async fn join(world: &World, app: &App, name: &str) -> Agent {
    Agent::join(app, &world.token(app).await, name).await
}

async fn remove_server(world: &World, app: &App, agent: &Agent) {
    let mut reader = app.db.read().await.unwrap();
    let seen = store::servers::get(&mut reader, world.org, agent.id).await.unwrap();
    drop(reader);
    server_commands::remove(app.service(), &world.admin(), &seen).await.unwrap();
}

/// The next time at which a feed is fetched.
async fn next_at(app: &App, name: &str) -> jiff::Timestamp {
    let sources = feed_sources::list(&mut app.db.read().await.unwrap()).await.unwrap();
    sources.into_iter().find(|source| source.name == name).unwrap().next_at
}

async fn first_server_starts_the_feeds_that_it_needs(world: &World) {
    let publisher = publisher().await;
    let app = world.app_with_feeds("a", settings(&publisher, FeedMode::Auto)).await;
    let (app, engine) = world.lead(app).await;
    assert_eq!((list(&app).await, publisher.request_heads()), (vec![], vec![]));
    join(world, &app, "web-1").await;
    eventually("the feeds are imported", async || states(&app).await == all_current()).await;
    let debian = find(&app, "Debian").await.unwrap();
    assert_eq!((debian.records, debian.kind.as_str()), (1, "osv"));
    assert!(debian.automatic && debian.built_in && debian.progress.is_none());
    assert_eq!(debian.source, publisher.url(&format!("mirror{DEBIAN}")), "where it came from");
    let base = domain::advisory::Ecosystem::new("Debian:12");
    let mut reader = app.db.read().await.unwrap();
    assert!(store::advisories::covers(&mut reader, &base).await.unwrap());
    drop(reader);

    world.advance_to(next_at(&app, "Debian").await);
    publisher.enqueue_at(DEBIAN, [status("304 Not Modified", "")]);
    let now = world.now();
    eventually("the feed is checked again", async || {
        find(&app, "Debian").await.unwrap().checked_at == Some(now)
    })
    .await;
    let asked = publisher.request_heads();
    let last = asked.iter().rfind(|head| head.contains("/debian/all.zip")).unwrap();
    assert!(last.contains("if-none-match: \"one\""), "{last}");
    let unchanged = find(&app, "Debian").await.unwrap();
    assert_eq!(unchanged.imported_at, debian.imported_at, "304: nothing was imported");
    engine.stop().await;
}

async fn unreachable_or_broken_publisher_is_retried_quietly(world: &World) {
    let publisher = publisher().await;
    let app = world.app_with_feeds("a", settings(&publisher, FeedMode::Auto)).await;
    let (app, engine) = world.lead(app).await;
    let whole = advisory("DSA-1");
    let half = &whole[..whole.len() / 2];
    let stated = |size: usize, body: &str| {
        Reply::Close(
            format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n{body}").into_bytes(),
        )
    };
    let portal = "<!doctype html><title>Sign in to the network</title>";
    let too_large = stated(3 << 30, "");
    let cases = [
        (status("404 Not Found", ""), "returned 404", 5),
        (status("429 Too Many Requests", "retry-after: 7200\r\n"), "returned 429", 120),
        (Reply::Close(Vec::new()), "cannot be reached", 20),
        (stated(whole.len(), half), "truncated after", 40),
        (ok("", half), "is truncated", 80),
        (ok("content-type: text/html\r\n", portal), "all.zip", 160),
        (ok("", ""), "contains no records", 320),
        (too_large, "larger than", 360),
        (status("302 Found", "location: http://127.0.0.1:1/\r\n"), "cannot be reached", 360),
    ];
    publisher.enqueue_at(DEBIAN, [cases[0].0.clone()]);
    join(world, &app, "web-1").await;
    for (n, (_, why, minutes)) in cases.iter().enumerate() {
        let failures = u32::try_from(n + 1).unwrap();
        eventually(why, async || {
            find(&app, "Debian").await.is_some_and(|feed| feed.failures == failures)
        })
        .await;
        let feed = find(&app, "Debian").await.unwrap();
        assert_eq!(feed.state, FeedState::Failed, "{why}");
        let error = feed.last_error.unwrap();
        assert!(error.contains(why), "{why}: {error}");
        assert_eq!(feed.next_update_at, Some(world.now() + SignedDuration::from_mins(*minutes)));
        assert_eq!((feed.records, feed.progress), (0, None), "{why}");
        if let Some((next, ..)) = cases.get(n + 1) {
            publisher.enqueue_at(DEBIAN, [next.clone()]);
        } else {
            // The publisher has moved: redirects are followed.
            publisher.enqueue_at(DEBIAN, [status("301 Moved", "location: /moved/debian\r\n")]);
            publisher.serve("/moved/debian", ok("", &whole));
        }
        world.advance_to(next_at(&app, "Debian").await);
    }
    eventually("the feed works again", async || states(&app).await == all_current()).await;
    let feed = find(&app, "Debian").await.unwrap();
    assert_eq!((feed.failures, feed.last_error, feed.records), (0, None, 1));
    engine.stop().await;
}

/// A `GET` with an admin key of another replica.
async fn get_feeds(world: &World, app: &App) -> Value {
    let new = NewKey { name: "k".into(), role: Role::Admin, environments: None, expires_at: None };
    let key = api_keys::create(app.service(), &world.admin(), new).await.unwrap().1;
    let request = axum::http::Request::get("/v1/feeds")
        .header("authorization", format!("Bearer {key}"))
        .body(axum::body::Body::empty())
        .unwrap();
    let body = crate::agent::send(&server::router(app), request).await.unwrap();
    serde_json::from_slice(&body).unwrap()
}

async fn other_replica_shows_progress_and_can_remove_the_feed(world: &World) {
    let publisher = publisher().await;
    let feeds = settings(&publisher, FeedMode::Auto);
    let app = world.app_with_feeds("a", feeds.clone()).await;
    let (app, engine) = world.lead(app).await;
    let slow = format!("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{}", "x".repeat(250));
    publisher.enqueue_at(DEBIAN, [Reply::Hang(slow.into_bytes())]);
    join(world, &app, "web-1").await;
    let other = world.app_with_feeds("b", feeds).await;
    eventually("the download is shown", async || {
        let progress = find(&other, "Debian").await.and_then(|feed| feed.progress);
        progress.is_some_and(|progress| progress.bytes == 250)
    })
    .await;
    let shown = get_feeds(world, &other).await["data"][0].clone();
    assert_eq!((&shown["name"], &shown["state"]), (&"Debian".into(), &"importing".into()));
    assert_eq!(
        shown["progress"],
        json!({"phase": "downloading", "bytes": 250, "total_bytes": 1000, "records": 0,
            "total_records": null, "percent": 25, "estimated_seconds_left": null})
    );
    let progress = find(&other, "Debian").await.unwrap().progress.unwrap();
    assert_eq!(progress.phase, FeedPhase::Downloading);

    commands::manage::remove(other.service(), &world.admin(), "Debian").await.unwrap();
    assert_eq!(find(&other, "Debian").await, None, "it is hidden at once");
    eventually("the import ends and the others follow", async || {
        let kept = ["EPSS", "KEV"].map(|name| (name.to_owned(), FeedState::Current));
        states(&app).await == kept
    })
    .await;
    assert_eq!(requests(&publisher, DEBIAN), 1);

    let debian = commands::manage::NewFeed::BuiltIn(feed::catalog::find("debian").unwrap());
    commands::manage::add(other.service(), &world.admin(), debian, None).await.unwrap();
    eventually("an added feed is imported", async || states(&app).await == all_current()).await;
    assert!(!find(&app, "Debian").await.unwrap().automatic);
    engine.stop().await;
}

async fn unused_feed_keeps_its_data_and_is_not_fetched(world: &World) {
    let publisher = publisher().await;
    let app = world.app_with_feeds("a", settings(&publisher, FeedMode::Auto)).await;
    let (app, engine) = world.lead(app).await;
    let agent = join(world, &app, "web-1").await;
    eventually("the feeds are imported", async || states(&app).await == all_current()).await;
    remove_server(world, &app, &agent).await;
    let unused = |feeds: Vec<Feed>| feeds.iter().all(|feed| feed.state == FeedState::Unused);
    assert!(unused(list(&app).await), "{:?}", states(&app).await);
    // A feed that an operator added is fetched, which shows that the others had their turn.
    let due = next_at(&app, "EPSS").await;
    let alpine = commands::manage::NewFeed::BuiltIn(feed::catalog::find("Alpine").unwrap());
    let record = advisory("ALPINE-1").replace("Debian:12", "Alpine:v3.22");
    publisher.serve(ALPINE, ok("", record));
    world.advance_to(due);
    commands::manage::add(app.service(), &world.admin(), alpine, None).await.unwrap();
    eventually("the added feed is imported", async || {
        find(&app, "Alpine").await.is_some_and(|feed| feed.state == FeedState::Current)
    })
    .await;
    let debian = find(&app, "Debian").await.unwrap();
    assert_eq!((debian.state, debian.records), (FeedState::Unused, 1));
    assert_eq!((debian.next_update_at, requests(&publisher, DEBIAN)), (None, 1));
    join(world, &app, "web-2").await;
    eventually("a new server needs it again", async || {
        requests(&publisher, DEBIAN) == 2 && requests(&publisher, KEV) == 2
    })
    .await;
    engine.stop().await;
}

async fn manual_mode_fetches_only_what_was_added(world: &World) {
    let publisher = publisher().await;
    let app = world.app_with_feeds("a", settings(&publisher, FeedMode::Manual)).await;
    let (app, engine) = world.lead(app).await;
    join(world, &app, "web-1").await;
    let kev = commands::manage::NewFeed::BuiltIn(feed::catalog::find("KEV").unwrap());
    commands::manage::add(app.service(), &world.admin(), kev, None).await.unwrap();
    let only = [("KEV".to_owned(), FeedState::Current)];
    eventually("the added feed is imported", async || states(&app).await == only).await;
    engine.stop().await;
}

async fn offline_service_fetches_nothing(world: &World) {
    let publisher = publisher().await;
    // A feed that was followed before the service was set to offline.
    let online = world.app_with_feeds("a", settings(&publisher, FeedMode::Manual)).await;
    let kev = commands::manage::NewFeed::BuiltIn(feed::catalog::find("KEV").unwrap());
    commands::manage::add(online.service(), &world.admin(), kev.clone(), None).await.unwrap();
    let url = reqwest::Url::parse("https://feeds.example.org/x.zip").unwrap();
    let other = commands::manage::NewFeed::Url { url, name: Some("gone".into()) };
    commands::manage::add(online.service(), &world.admin(), other, None).await.unwrap();
    commands::manage::remove(online.service(), &world.admin(), "gone").await.unwrap();

    let feeds = FeedSettings { offline: true, ..settings(&publisher, FeedMode::Auto) };
    let app = world.app_with_feeds("b", feeds).await;
    let (app, engine) = world.lead(app).await;
    join(world, &app, "web-1").await;
    // Removals are finished offline too, which shows that the feeds had their turn.
    eventually("the removed feed is gone", async || {
        let mut reader = app.db.read().await.unwrap();
        store::feed_removals::list(&mut reader).await.unwrap().is_empty()
    })
    .await;
    assert_eq!(states(&app).await, [("KEV".to_owned(), FeedState::Offline)]);
    assert_eq!(publisher.request_heads(), [""; 0]);
    let refused = commands::manage::add(app.service(), &world.admin(), kev, None).await;
    assert!(refused.unwrap_err().to_string().contains("offline"));
    engine.stop().await;
}

async fn removed_feed_loses_its_advisories_and_stays_removed(world: &World) {
    let publisher = publisher().await;
    let app = world.app_with_feeds("a", settings(&publisher, FeedMode::Auto)).await;
    let (app, engine) = world.lead(app).await;
    let many: Vec<String> = (0..1_234).map(|n| advisory(&format!("DSA-{n}"))).collect();
    publisher.serve(DEBIAN, ok("", many.join("\n")));
    join(world, &app, "web-1").await;
    eventually("the feeds are imported", async || states(&app).await == all_current()).await;
    let count = async || store::advisories::count(&mut app.db.read().await.unwrap()).await.unwrap();
    assert_eq!(count().await, 1_234);
    commands::manage::remove(app.service(), &world.admin(), "Debian").await.unwrap();
    eventually("the advisories are deleted", async || count().await == 0).await;
    // A whole turn later: the other feeds are fetched again, this one is not.
    world.advance_to(next_at(&app, "EPSS").await);
    eventually("the other feeds are fetched", async || requests(&publisher, EPSS) == 2).await;
    assert_eq!(requests(&publisher, DEBIAN), 1);
    assert_eq!(find(&app, "Debian").await, None);
    engine.stop().await;
}

testkit::both!(
    crate::support:
    first_server_starts_the_feeds_that_it_needs,
    unreachable_or_broken_publisher_is_retried_quietly,
    other_replica_shows_progress_and_can_remove_the_feed,
    unused_feed_keeps_its_data_and_is_not_fetched,
    manual_mode_fetches_only_what_was_added,
    offline_service_fetches_nothing,
    removed_feed_loses_its_advisories_and_stays_removed,
);
