//! Feeds: their content, age, state, and last import error. Also the built-in feeds.

use async_recursion::async_recursion as boxed;
use domain::advisory::Ecosystem;
use feed::catalog::{self, BuiltIn};
use jiff::Timestamp;
use store::feed_progress::FeedProgress;
use store::feed_sources::{self, FeedSource};
use store::{Conn, Page, Paged, advisories, feed_progress, feed_removals, feeds};
use vocab::{Digest, FeedId, Os};
use wire::v1::{CatalogFeed, Feed, FeedState};

use crate::app::FeedSettings;
use crate::commands::feeds::{automatic, progress, remote};
use crate::{App, Result, ServiceError};

#[boxed]
pub async fn page(app: &App, page: Page) -> Result<Paged<Feed>> {
    Ok(Paged::paginate(list(app).await?, page))
}

/// All feeds by name. All organizations of an installation share them.
#[boxed]
pub async fn list(app: &App) -> Result<Vec<Feed>> {
    let mut reader = app.db.snapshot().await?;
    Ok(read(&mut reader, &app.settings.feeds, app.clock.now()).await?)
}

#[boxed]
pub async fn get(app: &App, id: FeedId) -> Result<Feed> {
    let found = list(app).await?.into_iter().find(|feed| feed.id == id);
    found.ok_or_else(|| ServiceError::NotFound { kind: "feed", id: id.to_string() })
}

/// The feeds that are being imported.
#[boxed]
pub async fn importing(app: &App) -> Result<Vec<Feed>> {
    let mut reader = app.db.read().await?;
    // Most of the time there is none, and one small query is enough.
    if feed_progress::list(&mut reader).await?.is_empty() {
        return Ok(Vec::new());
    }
    drop(reader);
    let mut all = list(app).await?;
    all.retain(|feed| feed.progress.is_some());
    Ok(all)
}

/// Every built-in feed, and whether servers need it.
#[boxed]
pub async fn catalog(app: &App) -> Result<Vec<CatalogFeed>> {
    let mut reader = app.db.snapshot().await?;
    let systems = automatic::systems(&mut reader).await?;
    let needed = catalog::needed(&systems);
    let feeds = read(&mut reader, &app.settings.feeds, app.clock.now()).await?;
    let shown = catalog::BUILT_IN.iter().map(|feed| CatalogFeed {
        name: feed.name.to_owned(),
        covers: feed.covers.to_owned(),
        url: feed.url.to_owned(),
        kind: feed.kind.split(':').next().unwrap_or(feed.kind).to_owned(),
        every_hours: feed.refresh_hours,
        license: feed.license.to_owned(),
        opt_in: feed.opt_in.is_some(),
        needed: needed.contains(&feed),
        added: feeds.iter().any(|one| one.name == feed.name),
    });
    Ok(shown.collect())
}

/// The systems of servers that no imported feed covers, each with the built-in feed that would.
#[boxed]
pub async fn uncovered_systems(
    conn: &mut Conn,
) -> store::Result<Vec<(Os, Option<&'static BuiltIn>)>> {
    let mut uncovered = Vec::new();
    for os in automatic::systems(conn).await? {
        let base = Ecosystem::for_os(&os);
        let is_covered = match &base {
            Some(base) => advisories::covers(conn, base).await?,
            None => false,
        };
        if !is_covered {
            let covers = |feed: &&BuiltIn| base.as_ref().is_some_and(|b| feed.covers_ecosystem(b));
            uncovered.push((os, catalog::BUILT_IN.iter().find(covers)));
        }
    }
    Ok(uncovered)
}

/// The id of the feed with this name.
pub fn id(name: &str) -> FeedId {
    let digest = Digest::compute(name.as_bytes());
    let (bits, _) = digest.as_bytes().split_first_chunk().expect("a digest has 32 bytes");
    FeedId::new(Timestamp::UNIX_EPOCH, u128::from_be_bytes(*bits))
}

/// All feeds, for a process with these settings.
#[boxed]
pub async fn read(
    conn: &mut Conn,
    settings: &FeedSettings,
    now: Timestamp,
) -> store::Result<Vec<Feed>> {
    let sources = feed_sources::list(conn).await?;
    let removed = feed_removals::list(conn).await?;
    let in_progress = feed_progress::list(conn).await?;
    let systems = automatic::systems(conn).await?;
    let mut rows = feeds::list(conn).await?;
    // A feed that was never tried has no row.
    for source in &sources {
        if !rows.iter().any(|feed| feed.name == source.name) {
            rows.push(untried(source, now));
        }
    }
    rows.retain(|feed| !removed.contains(&feed.name));
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    let view = |feed: feeds::Feed| {
        let source = sources.iter().find(|source| source.name == feed.name);
        let progress = in_progress.iter().find(|one| one.name == feed.name);
        to_wire(feed, source, progress, &Context { settings, systems: &systems, now })
    };
    Ok(rows.into_iter().map(view).collect())
}

struct Context<'a> {
    settings: &'a FeedSettings,
    systems: &'a [Os],
    now: Timestamp,
}

fn untried(source: &FeedSource, now: Timestamp) -> feeds::Feed {
    let kind = source.kind.as_deref().unwrap_or("unknown");
    feeds::Feed {
        name: source.name.clone(),
        kind: kind.split(':').next().unwrap_or(kind).to_owned(),
        source: source.url.clone(),
        records: 0,
        size_bytes: 0,
        as_of: None,
        imported_at: None,
        last_error: None,
        tried_at: now,
        checked_at: None,
    }
}

fn to_wire(
    feed: feeds::Feed,
    source: Option<&FeedSource>,
    progress: Option<&FeedProgress>,
    context: &Context<'_>,
) -> Feed {
    let now = context.now;
    let progress = progress.and_then(|row| progress::from_row(row, now));
    let state = match source {
        _ if progress.is_some() => FeedState::Importing,
        None if feed.last_error.is_some() => FeedState::Failed,
        None => FeedState::Manual,
        Some(_) if context.settings.offline => FeedState::Offline,
        Some(source) if automatic::is_unused(source, context.systems) => FeedState::Unused,
        Some(_) if feed.last_error.is_some() => FeedState::Failed,
        Some(_) if feed.imported_at.is_none() => FeedState::Waiting,
        Some(_) => FeedState::Current,
    };
    let is_fetched = !matches!(state, FeedState::Offline | FeedState::Unused);
    Feed {
        id: id(&feed.name),
        age_seconds: feed.as_of.or(feed.imported_at).map(|time| seconds_since(time, now)),
        next_update_at: source.filter(|_| is_fetched).map(|source| source.next_at),
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
        state,
        progress,
        built_in: source.and_then(remote::built_in).is_some(),
        automatic: source.is_some_and(|source| source.automatic),
    }
}

/// The number of seconds since `time`; 0 if it is in the future.
pub fn seconds_since(time: Timestamp, now: Timestamp) -> u64 {
    u64::try_from(now.duration_since(time).as_secs()).unwrap_or(0)
}
