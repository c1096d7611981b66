//! Feeds that are fetched from their publisher's URL and kept up to date.
//!
//! A feed that was imported from a URL once is fetched again at an interval: [`update`] asks its
//! publisher whether there is a newer copy. Built-in feeds can come from a mirror. After a failure, the next attempt is delayed by an
//! exponential backoff up to [`BACKOFF_MAX`]. A failure leaves the records imported earlier
//! unchanged.

use std::time::Duration;

use feed::{FeedKind, catalog, repomd};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use store::feed_sources::{self, FeedSource};
use store::{Db, StoreError, Topic, Tx, feed_progress, feeds, organizations};

use super::progress::{ProgressSender, with_progress};
use super::repository::Repositories;
use super::{
    FeedOrigin, FeedTransactions, ImportError, ImportProgress, ImportRequest, ImportSummary,
    allow_again, import_records, name_from_segments,
};
use crate::fetch;
use crate::fetch::{FetchError, FetchOutcome, FetchedFile, Limits, Validators};
use crate::{EventKind, emit};

/// The default interval between two fetches of a feed.
pub const DEFAULT_INTERVAL: SignedDuration = SignedDuration::from_hours(6);
/// The delay after the first failure. It doubles with each further failure.
const BACKOFF_MIN: SignedDuration = SignedDuration::from_mins(5);
/// The maximum delay after failures.
pub const BACKOFF_MAX: SignedDuration = SignedDuration::from_hours(6);

/// A feed to import from its publisher's URL.
#[derive(Debug, Clone)]
pub struct UrlImport {
    pub url: String,
    /// The feed's name; derived from the URL if `None`.
    pub name: Option<String>,
    /// What the feed contains; detected from its first bytes if `None`.
    pub kind: Option<FeedKind>,
    /// The interval at which the feed is fetched from now on; `None` fetches it only once.
    pub interval: Option<SignedDuration>,
}

/// How feeds are fetched.
#[derive(Debug, Clone, Default)]
pub struct FetchOptions {
    pub limits: Limits,
    /// The mirror of the built-in feeds.
    pub mirror: Option<String>,
}

impl From<Limits> for FetchOptions {
    fn from(limits: Limits) -> FetchOptions {
        FetchOptions { limits, mirror: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpdateOutcome {
    /// The publisher has no newer copy.
    Unchanged { name: String },
    /// A newer copy was imported.
    Imported(ImportSummary),
}

/// Imports a feed from its URL. If that succeeds and an interval is set, the feed is fetched
/// regularly from now on.
pub async fn import_url(
    db: &Db,
    wanted: UrlImport,
    options: impl Into<FetchOptions>,
    now: Timestamp,
    progress: impl FnMut(ImportProgress) + Send + 'static,
) -> Result<ImportSummary, ImportError> {
    let url = fetch::parse_url(&wanted.url)?;
    let name = wanted.name.unwrap_or_else(|| name_from_url(&url));
    let every = wanted.interval.unwrap_or(DEFAULT_INTERVAL);
    let source = FeedSource {
        name: name.clone(),
        url: url.to_string(),
        kind: wanted.kind.as_ref().map(FeedKind::to_string),
        every_seconds: u32::try_from(every.as_secs()).unwrap_or(u32::MAX),
        next_at: now,
        failures: 0,
        etag: None,
        last_modified: None,
        automatic: false,
    };
    let transactions = FeedTransactions::new(db);
    allow_again(&transactions, &source.name).await?;
    match fetch_and_import(&transactions, &source, &options.into(), now, progress).await {
        Ok(Some((imported, row, validators))) => {
            let mut tx = transactions.begin().await?;
            feeds::record_import(&mut tx, &row).await?;
            feed_progress::delete(&mut tx, &source.name).await?;
            if wanted.interval.is_some() {
                feed_sources::save(&mut tx, &after_success(&source, validators, now)).await?;
            }
            tx.notify(Topic::Feeds);
            tx.commit().await?;
            Ok(imported)
        }
        Ok(None) => Err(ImportError::Interrupted),
        Err(refusal) => {
            note_failure(&transactions, &source, &refusal, now).await?;
            Err(refusal)
        }
    }
}

/// Asks a feed's publisher for a newer copy, imports it, and stores when to ask next.
pub async fn update(
    transactions: &FeedTransactions<'_>,
    source: &FeedSource,
    options: impl Into<FetchOptions>,
    now: Timestamp,
    progress: impl FnMut(ImportProgress) + Send + 'static,
) -> Result<UpdateOutcome, ImportError> {
    match fetch_and_import(transactions, source, &options.into(), now, progress).await {
        Ok(Some((imported, row, validators))) => {
            let mut tx = transactions.begin().await?;
            feeds::record_import(&mut tx, &row).await?;
            feed_progress::delete(&mut tx, &source.name).await?;
            feed_sources::record_fetch(&mut tx, &after_success(source, validators, now)).await?;
            emit_recovery(&mut tx, source, now).await?;
            tx.notify(Topic::Feeds);
            tx.commit().await?;
            Ok(UpdateOutcome::Imported(imported))
        }
        Ok(None) => {
            let known = Validators {
                etag: source.etag.clone(),
                last_modified: source.last_modified.clone(),
            };
            let mut tx = transactions.begin().await?;
            feeds::record_unchanged(&mut tx, &source.name, now).await?;
            feed_progress::delete(&mut tx, &source.name).await?;
            feed_sources::record_fetch(&mut tx, &after_success(source, known, now)).await?;
            emit_recovery(&mut tx, source, now).await?;
            tx.commit().await?;
            Ok(UpdateOutcome::Unchanged { name: source.name.clone() })
        }
        // The feed is gone, and so is everything that could be recorded about it.
        Err(ImportError::Removed) => Err(ImportError::Removed),
        Err(refusal) => {
            note_failure(transactions, source, &refusal, now).await?;
            Err(refusal)
        }
    }
}

/// When a feed is due: now if its time has come, or if its time is further in the future than the
/// longest possible delay (which means that the system clock was changed).
pub fn due_at(source: &FeedSource, now: Timestamp) -> Timestamp {
    let longest = SignedDuration::from_secs(source.every_seconds.into()).max(BACKOFF_MAX);
    if source.next_at > saturating_add(now, longest) { now } else { source.next_at }
}

type FetchedImport = (ImportSummary, feeds::Feed, Validators);

/// Returns `None` if the publisher still has the copy that was imported last.
async fn fetch_and_import(
    transactions: &FeedTransactions<'_>,
    source: &FeedSource,
    options: &FetchOptions,
    now: Timestamp,
    progress: impl FnMut(ImportProgress) + Send + 'static,
) -> Result<Option<FetchedImport>, ImportError> {
    with_progress(transactions, &source.name, now, progress, |progress| {
        fetch_and_import_with(transactions, source, options, now, progress)
    })
    .await
}

async fn fetch_and_import_with(
    transactions: &FeedTransactions<'_>,
    source: &FeedSource,
    options: &FetchOptions,
    now: Timestamp,
    mut progress: ProgressSender<impl FnMut(ImportProgress) + Send + 'static>,
) -> Result<Option<FetchedImport>, ImportError> {
    let address = fetch_address(source, options.mirror.as_deref());
    let url = fetch::parse_url(&address)?;
    let kind = match source.kind.as_deref().map(str::parse::<FeedKind>).transpose() {
        Ok(kind) => kind,
        Err(unknown) => return Err(ImportError::MalformedDownload(unknown.to_string())),
    };
    let known =
        Validators { etag: source.etag.clone(), last_modified: source.last_modified.clone() };
    let mut downloading = |bytes, total| {
        progress.send(ImportProgress::Downloading { bytes, total });
    };
    let is_repository =
        matches!(kind, Some(FeedKind::Updateinfo { .. })) && repomd::is_repository_url(&source.url);
    let outcome = match is_repository {
        true => {
            let built_in = built_in(source);
            let urls = match built_in {
                Some(feed) => feed.urls().map(str::to_owned).collect(),
                None => vec![source.url.clone()],
            };
            let mirror = options.mirror.as_deref().filter(|_| built_in.is_some());
            let repositories = Repositories { urls: &urls, mirror, limits: options.limits };
            repositories.fetch(&known, &mut downloading).await?
        }
        false => fetch::fetch(&url, &known, options.limits, &mut downloading).await?,
    };
    let fetched = match outcome {
        FetchOutcome::Unchanged => return Ok(None),
        FetchOutcome::New(fetched) => fetched,
    };
    let origin = FeedOrigin { name: source.name.clone(), source: address.clone() };
    let wanted = ImportRequest { path: fetched.path.clone(), name: None, kind, as_of: None };
    let taken = import_records(transactions, wanted, &origin, now, progress).await;
    let (imported, row) =
        taken.map_err(|refusal| with_url_in_message(&fetched, &address, refusal))?;
    Ok(Some((imported, row, fetched.validators.clone())))
}

/// The built-in feed that a source is, if its URL is the publisher's.
pub fn built_in(source: &FeedSource) -> Option<&'static catalog::BuiltIn> {
    catalog::find(&source.name).filter(|feed| feed.url == source.url)
}

/// The address that a source is fetched from: a mirror has the built-in feeds only.
fn fetch_address(source: &FeedSource, mirror: Option<&str>) -> String {
    match (built_in(source), mirror) {
        (Some(feed), Some(mirror)) => catalog::mirrored(feed.url, mirror),
        _ => source.url.clone(),
    }
}

/// Rewrites an error so that it names the URL and not the temporary file.
fn with_url_in_message(fetched: &FetchedFile, url: &str, refusal: ImportError) -> ImportError {
    match refusal {
        ImportError::Store(error) => ImportError::Store(error),
        refusal => ImportError::MalformedDownload(fetched.with_url(url, &refusal.full_message())),
    }
}

fn after_success(source: &FeedSource, validators: Validators, now: Timestamp) -> FeedSource {
    let Validators { etag, last_modified } = validators;
    let next_at = saturating_add(now, SignedDuration::from_secs(source.every_seconds.into()));
    FeedSource { next_at, failures: 0, etag, last_modified, ..source.clone() }
}

async fn note_failure(
    transactions: &FeedTransactions<'_>,
    source: &FeedSource,
    refusal: &ImportError,
    now: Timestamp,
) -> Result<(), StoreError> {
    let retry_after = match refusal {
        ImportError::Fetch(FetchError::Status { retry_after, .. })
        | ImportError::FetchPart { source: FetchError::Status { retry_after, .. }, .. } => {
            *retry_after
        }
        _ => None,
    };
    let failures = source.failures.saturating_add(1);
    let next_at = saturating_add(now, backoff(failures, retry_after));
    let kind = source.kind.as_deref().unwrap_or("unknown");
    let word = kind.split(':').next().unwrap_or(kind);
    let known = (source.name.as_str(), word, source.url.as_str());
    let mut tx = transactions.begin().await?;
    feeds::record_failure(&mut tx, known, &refusal.full_message(), now).await?;
    feed_progress::delete(&mut tx, &source.name).await?;
    feed_sources::record_fetch(&mut tx, &FeedSource { next_at, failures, ..source.clone() })
        .await?;
    // Only the first of a series of failures: the next attempt is made soon.
    if source.failures == 0 {
        let data =
            json!({"name": source.name, "message": refusal.full_message(), "next_at": next_at});
        emit_to_all(&mut tx, EventKind::FeedFailed, source, &data, now).await?;
    }
    tx.commit().await
}

/// Emits an event if the feed failed before.
async fn emit_recovery(tx: &mut Tx, source: &FeedSource, now: Timestamp) -> store::Result<()> {
    if source.failures == 0 {
        return Ok(());
    }
    let data = json!({"name": source.name, "failures": source.failures});
    emit_to_all(tx, EventKind::FeedRecovered, source, &data, now).await
}

/// Emits an event in every organization, because they share the feeds.
async fn emit_to_all(
    tx: &mut Tx,
    kind: EventKind,
    source: &FeedSource,
    data: &Value,
    now: Timestamp,
) -> store::Result<()> {
    for organization in organizations::list(tx).await? {
        emit(tx, organization.id, now, "engine", kind, &source.name, data.clone());
    }
    Ok(())
}

/// The delay after this number of consecutive failures. `requested` is the publisher's `Retry-After`.
fn backoff(failures: u32, requested: Option<Duration>) -> SignedDuration {
    let doubled = BACKOFF_MIN.checked_mul(1 << failures.saturating_sub(1).min(16));
    let retry_after = requested
        .map(|time| SignedDuration::try_from(time).unwrap_or(BACKOFF_MAX))
        .unwrap_or_default();
    doubled.unwrap_or(BACKOFF_MAX).max(retry_after).min(BACKOFF_MAX)
}

fn saturating_add(now: Timestamp, by: SignedDuration) -> Timestamp {
    now.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// The name of the feed at a URL.
pub(super) fn name_from_url(url: &reqwest::Url) -> String {
    let parts: Vec<&str> = url.path_segments().into_iter().flatten().collect();
    let name =
        name_from_segments(&parts).unwrap_or_else(|| url.host_str().unwrap_or("feed").to_owned());
    name.replace("%3A", ":").replace("%20", " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_and_honors_retry_after_up_to_the_maximum() {
        let minutes = |failures, retry_after: Option<u64>| {
            backoff(failures, retry_after.map(|minutes| Duration::from_secs(minutes * 60)))
                .as_mins()
        };
        assert_eq!([1, 2, 3, 6, 7].map(|failures| minutes(failures, None)), [5, 10, 20, 160, 320]);
        assert_eq!([8, 9, u32::MAX].map(|failures| minutes(failures, None)), [360; 3]);
        assert_eq!(minutes(1, Some(90)), 90);
        assert_eq!(minutes(1, Some(u64::MAX / 60)), 360);
    }

    #[test]
    fn feed_name_is_derived_from_its_url() {
        let name = |text: &str| name_from_url(&reqwest::Url::parse(text).unwrap());
        assert_eq!(name("https://feeds.test/osv/Debian/all.zip"), "Debian");
        assert_eq!(name("https://feeds.test/osv/Alpine%3Av3.22/all.zip"), "Alpine:v3.22");
        assert_eq!(name("https://feeds.test/epss_scores-current.csv.gz"), "epss_scores-current");
        assert_eq!(name("https://feeds.test/all.zip"), "all");
        assert_eq!(name("https://feeds.test/v3.22/main.json"), "v3.22/main");
        assert_eq!(name("https://feeds.test/"), "feeds.test");
    }
}
