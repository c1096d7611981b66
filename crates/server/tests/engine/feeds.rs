//! The leader updates feeds when they are due.

use jiff::SignedDuration;
use server::app::App;
use service::commands::feeds::remote;
use service::commands::feeds::remote::{UrlImport, import_url};
use service::fetch::Limits;
use store::feed_sources::{self, FeedSource};

use crate::support::{World, eventually};
use testkit::publisher::{Publisher, ok, status};

const ADVISORY: &str = r#"{"id": "DSA-1", "modified": "2026-11-13T00:00:00Z", "aliases": ["CVE-2026-1"], "affected": [
    {"package": {"ecosystem": "Debian:12", "name": "curl"}, "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1"}]}]}]}"#;

async fn follow_feed(app: &App, world: &World, publisher: &Publisher) {
    publisher.enqueue([ok("etag: \"one\"\r\n", ADVISORY)]);
    let url = publisher.url("Debian.json");
    let wanted =
        UrlImport { url, name: None, kind: None, interval: Some(remote::DEFAULT_INTERVAL) };
    import_url(&app.db, wanted, Limits::default(), world.now(), |_| {}).await.unwrap();
}

async fn source(app: &App) -> FeedSource {
    feed_sources::list(&mut app.db.read().await.unwrap()).await.unwrap().remove(0)
}

async fn feed_is_fetched_when_due_and_not_before(world: &World) {
    let publisher = Publisher::new().await;
    let (app, engine) = world.leader("a").await;
    follow_feed(&app, world, &publisher).await;
    let first = source(&app).await;
    assert_eq!(first.next_at, world.now() + remote::DEFAULT_INTERVAL);
    publisher.enqueue([status("304 Not Modified", ""), status("503 Busy", ""), ok("", ADVISORY)]);
    world.advance_to(first.next_at - SignedDuration::from_secs(1));
    let second = FeedSource { next_at: first.next_at + remote::DEFAULT_INTERVAL, ..first.clone() };
    world.advance_to(first.next_at);
    eventually("the feed is found unchanged", async || source(&app).await == second).await;
    assert_eq!(publisher.request_heads().len(), 2, "once for the import, and once since");
    world.advance_to(second.next_at);
    eventually("the failure is recorded", async || source(&app).await.failures == 1).await;
    world.advance_to(source(&app).await.next_at);
    eventually("the feed works again", async || source(&app).await.failures == 0).await;
    assert_eq!((publisher.request_heads().len(), source(&app).await.etag), (4, None));
    let kinds = crate::rollouts::event_kinds(&app, world).await;
    let about_feeds: Vec<&str> =
        kinds.iter().map(String::as_str).filter(|kind| kind.starts_with("feed.")).collect();
    assert_eq!(about_feeds, ["feed.failed", "feed.recovered"]);
    engine.stop().await;
}

/// A clock that was a year ahead when the feed was fetched must not delay the next fetch for a
/// year.
async fn clock_that_is_set_back_does_not_stop_a_feed(world: &World) {
    let publisher = Publisher::new().await;
    let app = world.app("a").await;
    world.set_clock(SignedDuration::from_hours(24 * 365));
    follow_feed(&app, world, &publisher).await;
    world.set_clock(SignedDuration::from_hours(-24 * 365));
    publisher.enqueue([status("304 Not Modified", "")]);
    let engine = server::background::spawn_with(&app, crate::support::INTERVALS);
    let next = world.now() + remote::DEFAULT_INTERVAL;
    eventually("the feed is fetched", async || source(&app).await.next_at == next).await;
    engine.stop().await;
}

testkit::both!(
    crate::support:
    feed_is_fetched_when_due_and_not_before,
    clock_that_is_set_back_does_not_stop_a_feed,
);
