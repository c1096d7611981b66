//! Feeds: their content, age, and last import error.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use store::{Page, Paged, feed_sources, feeds};
use wire::v1::Feed;

use crate::{App, Result};

#[boxed]
pub async fn page(app: &App, page: Page) -> Result<Paged<Feed>> {
    Ok(Paged::paginate(list(app).await?, page))
}

/// All feeds by name. All organizations of an installation share them.
#[boxed]
pub async fn list(app: &App) -> Result<Vec<Feed>> {
    let mut reader = app.db.snapshot().await?;
    let sources = feed_sources::list(&mut reader).await?;
    let now = app.clock.now();
    let shown = feeds::list(&mut reader).await?.into_iter().map(|feed| {
        let source = sources.iter().find(|source| source.name == feed.name);
        Feed {
            age_seconds: feed.as_of.or(feed.imported_at).map(|time| seconds_since(time, now)),
            next_update_at: source.map(|source| source.next_at),
            failures: source.map_or(0, |source| source.failures),
            name: feed.name,
            kind: feed.kind,
            source: feed.source,
            records: feed.records,
            size_bytes: feed.size_bytes,
            as_of: feed.as_of,
            imported_at: feed.imported_at,
            checked_at: feed.checked_at,
            last_error: feed.last_error,
        }
    });
    Ok(shown.collect())
}

/// The number of seconds since `time`; 0 if it is in the future.
pub fn seconds_since(time: Timestamp, now: Timestamp) -> u64 {
    u64::try_from(now.duration_since(time).as_secs()).unwrap_or(0)
}
