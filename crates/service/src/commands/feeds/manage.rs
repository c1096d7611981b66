//! What operators do with feeds: add, update now, remove.
//!
//! Feeds are fetched and deleted by the leader: these commands only record what it has to do, so
//! they take no time and work on every replica.

use async_recursion::async_recursion as boxed;
use domain::advisory::Advisory;
use domain::finding::invalidation::ChangedNames;
use feed::catalog;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use store::feed_sources::{self, FeedSource};
use store::{Db, Topic, Tx, advisories, feed_progress, feed_removals, feeds, organizations};

use super::{FeedTransactions, ImportSummary, automatic, remote};
use crate::audit::Action;
use crate::queries::feeds::id;
use crate::{Actor, App, EventKind, Result, ServiceError, audit, record};

/// The actor of commands on the database; see [`crate::auth::users::local_actor`].
const LOCAL: &str = "local";
/// The number of advisories that are deleted in one transaction.
const DELETE_CHUNK: u32 = 500;

/// A feed to follow.
#[derive(Debug, Clone)]
pub enum NewFeed {
    BuiltIn(&'static catalog::BuiltIn),
    /// A feed at a URL, with its name if it is not derived from the URL.
    Url {
        url: reqwest::Url,
        name: Option<String>,
    },
}

/// Follows a feed from now on. The leader imports it. Returns its name.
#[boxed]
pub async fn add(
    app: &App,
    actor: &Actor,
    new: NewFeed,
    every: Option<SignedDuration>,
) -> Result<String> {
    ensure_online(app)?;
    let now = app.clock.now();
    let mut source = match new {
        NewFeed::BuiltIn(feed) => automatic::source(feed, false, now),
        NewFeed::Url { url, name } => FeedSource {
            name: name.unwrap_or_else(|| remote::name_from_url(&url)),
            url: url.to_string(),
            kind: None,
            every_seconds: seconds(remote::DEFAULT_INTERVAL),
            next_at: now,
            failures: 0,
            etag: None,
            last_modified: None,
            automatic: false,
        },
    };
    if let Some(every) = every {
        source.every_seconds = seconds(every);
    }
    let mut tx = app.db.begin().await?;
    let known = feed_sources::list(&mut tx).await?;
    if known.iter().any(|one| one.name == source.name && !one.automatic) {
        let detail = format!("There is already a feed named `{}`.", source.name);
        return Err(ServiceError::conflict("already_exists", detail));
    }
    feed_removals::delete(&mut tx, &source.name).await?;
    feed_sources::save(&mut tx, &source).await?;
    let details = json!({"name": source.name, "url": source.url});
    audit::record(app, &mut tx, actor, Action::FeedAdd, id(&source.name), details.clone());
    audit::emit(app, &mut tx, actor, EventKind::FeedAdded, &source.name, details);
    tx.notify(Topic::Feeds);
    tx.commit().await?;
    Ok(source.name)
}

/// Makes a feed due now.
#[boxed]
pub async fn update(app: &App, actor: &Actor, name: &str) -> Result<()> {
    ensure_online(app)?;
    let mut tx = app.db.begin().await?;
    if !feed_sources::set_due(&mut tx, name, app.clock.now()).await? {
        let detail = format!(
            "`{name}` was imported from a file and has no URL to update from. Import a newer copy \
             with `fleetmend feeds import`, or add the feed by its URL."
        );
        return Err(ServiceError::conflict("conflict", detail));
    }
    audit::record(app, &mut tx, actor, Action::FeedUpdate, id(name), json!({"name": name}));
    audit::emit(app, &mut tx, actor, EventKind::FeedUpdateRequested, name, json!({"name": name}));
    tx.notify(Topic::Feeds);
    Ok(tx.commit().await?)
}

/// Stops following a feed and hides it. The leader deletes its advisories.
#[boxed]
pub async fn remove(app: &App, actor: &Actor, name: &str) -> Result<()> {
    let mut tx = app.db.begin().await?;
    request_removal(&mut tx, name, app.clock.now()).await?;
    audit::record(app, &mut tx, actor, Action::FeedRemove, id(name), json!({"name": name}));
    audit::emit(app, &mut tx, actor, EventKind::FeedRemoved, name, json!({"name": name}));
    Ok(tx.commit().await?)
}

fn ensure_online(app: &App) -> Result<()> {
    match app.settings.feeds.offline {
        false => Ok(()),
        true => Err(ServiceError::conflict(
            "conflict",
            "The service is set to `offline` and fetches no feeds. Import a file with \
             `fleetmend feeds import`, or start the service without --offline.",
        )),
    }
}

fn seconds(every: SignedDuration) -> u32 {
    u32::try_from(every.as_secs()).unwrap_or(u32::MAX)
}

async fn request_removal(tx: &mut Tx, name: &str, now: Timestamp) -> store::Result<()> {
    feed_sources::delete(tx, name).await?;
    feed_removals::add(tx, name, now).await?;
    feed_progress::delete(tx, name).await?;
    tx.notify(Topic::Feeds);
    Ok(())
}

/// Removes a feed with its advisories, for a command on the database. Returns the number of its
/// advisories, or `None` if there is no such feed.
#[boxed]
pub async fn remove_now(db: &Db, name: &str, now: Timestamp) -> store::Result<Option<u64>> {
    let transactions = FeedTransactions::new(db);
    let mut tx = transactions.begin().await?;
    let is_known = feeds::list(&mut tx).await?.iter().any(|feed| feed.name == name)
        || feed_sources::list(&mut tx).await?.iter().any(|source| source.name == name);
    if !is_known {
        return Ok(None);
    }
    request_removal(&mut tx, name, now).await?;
    record_for_all(&mut tx, now, LOCAL, Action::FeedRemove, name, &json!({"name": name})).await?;
    tx.commit().await?;
    delete_data(&transactions, name).await.map(Some)
}

/// Stops fetching a feed; its advisories stay. Returns whether it was fetched.
#[boxed]
pub async fn forget(db: &Db, name: &str, now: Timestamp) -> store::Result<bool> {
    let mut tx = db.begin().await?;
    let was_followed = feed_sources::delete(&mut tx, name).await?;
    let imported = feeds::list(&mut tx).await?;
    let is_imported = imported.iter().any(|feed| feed.name == name && feed.imported_at.is_some());
    // A feed that has no data would be followed again.
    if was_followed && !is_imported && catalog::find(name).is_some() {
        feed_removals::add(&mut tx, name, now).await?;
    }
    if was_followed {
        record_for_all(&mut tx, now, LOCAL, Action::FeedForget, name, &json!({"name": name}))
            .await?;
    }
    tx.notify(Topic::Feeds);
    tx.commit().await?;
    Ok(was_followed)
}

/// Writes to the audit logs that a command on the database imported a feed. `source` is its file or
/// URL.
#[boxed]
pub async fn record_import(
    db: &Db,
    imported: &ImportSummary,
    source: &str,
    now: Timestamp,
) -> store::Result<()> {
    let name = &imported.name;
    let source = match reqwest::Url::parse(source) {
        // A password does not belong into the log.
        Ok(mut url) => {
            let _ = (url.set_username(""), url.set_password(None));
            url.to_string()
        }
        Err(_) => source.to_owned(),
    };
    let detail = json!({"name": name, "source": source, "records": imported.records,
        "changed": imported.changed});
    let mut tx = FeedTransactions::new(db).begin().await?;
    record_for_all(&mut tx, now, LOCAL, Action::FeedImport, name, &detail).await?;
    tx.commit().await
}

/// Writes to the audit logs that a command on the database updates a feed.
#[boxed]
pub async fn record_update(db: &Db, name: &str, now: Timestamp) -> store::Result<()> {
    let mut tx = FeedTransactions::new(db).begin().await?;
    record_for_all(&mut tx, now, LOCAL, Action::FeedUpdate, name, &json!({"name": name})).await?;
    tx.commit().await
}

/// Feeds apply to all organizations, so each of their logs gets the entry.
pub(super) async fn record_for_all(
    tx: &mut Tx,
    now: Timestamp,
    actor: &str,
    action: Action,
    name: &str,
    detail: &serde_json::Value,
) -> store::Result<()> {
    for organization in organizations::list(tx).await? {
        record(tx, organization.id, now, actor, action, id(name), detail);
    }
    Ok(())
}

/// Deletes the data of the feeds that were removed. Continues where a killed process stopped.
#[boxed]
pub async fn finish_removals(transactions: &FeedTransactions<'_>) -> store::Result<()> {
    let mut reader = transactions.db.read().await?;
    let removed = feed_removals::list(&mut reader).await?;
    let known = feeds::list(&mut reader).await?;
    drop(reader);
    for name in removed {
        let has_row = known.iter().any(|feed| feed.name == name);
        // The first import of a feed may have been interrupted, before it had a row.
        let has_data = has_row
            || catalog::find(&name).is_none()
            || advisories::has_any(&mut *transactions.db.read().await?, &name).await?;
        if has_data {
            let deleted = delete_data(transactions, &name).await?;
            tracing::info!(feed = name, advisories = deleted, "feed removed");
        }
    }
    Ok(())
}

/// Deletes the advisories of a removed feed and then its row. Stops if someone adds the feed again.
/// KEV and EPSS entries are shared by all feeds and stay.
async fn delete_data(transactions: &FeedTransactions<'_>, name: &str) -> store::Result<u64> {
    let mut deleted = 0;
    loop {
        let mut reader = transactions.db.read().await?;
        let page = advisories::page(&mut reader, (name, ""), DELETE_CHUNK).await?;
        drop(reader);
        let old: Vec<Advisory> =
            page.into_iter().filter(|(feed, _)| feed == name).map(|(_, one)| one).collect();
        let mut tx = transactions.begin().await?;
        if !feed_removals::contains(&mut tx, name).await? {
            return Ok(deleted);
        }
        if old.is_empty() {
            return finish(tx, name).await.map(|()| deleted);
        }
        let revision = feeds::next_revision(&mut tx).await?;
        let mut changed_names = ChangedNames::default();
        old.iter().for_each(|one| changed_names.record(Some(one), None));
        let ids: Vec<String> = old.into_iter().map(|one| one.id).collect();
        advisories::delete(&mut tx, name, &ids).await?;
        for base in changed_names.bases() {
            advisories::record_changes(&mut tx, base, changed_names.names(base), revision).await?;
        }
        tx.commit().await?;
        deleted += ids.len() as u64;
    }
}

/// Deletes the row of a feed without advisories. A built-in feed stays in the list of removed
/// feeds, so that the service does not follow it again.
async fn finish(mut tx: Tx, name: &str) -> store::Result<()> {
    feeds::delete(&mut tx, name).await?;
    feed_progress::delete(&mut tx, name).await?;
    if catalog::find(name).is_none() {
        feed_removals::delete(&mut tx, name).await?;
    }
    tx.notify(Topic::Feeds);
    tx.commit().await
}
