//! Import of vulnerability feeds.
//!
//! Every feed is read twice. The first pass checks that it can be read to its end: a feed that is
//! broken, truncated or empty changes nothing. The second pass sends the records to the database in
//! chunks of some hundred, each in a separate transaction, so that an import needs memory for a
//! few chunks only and other writers do not wait long. An older copy of a feed removes nothing and
//! replaces nothing newer, and importing the same copy again changes nothing. An import that was
//! killed half-way is therefore completed by the next one.
//!
//! [`import`] reads files on disk, [`remote`] fetches feeds from URLs, and [`bundle`] exchanges
//! feed data with other installations. [`automatic`] decides which built-in feeds the service
//! follows on its own, [`manage`] is for operators, and [`progress`] shows how far an import is.

pub mod automatic;
pub mod bundle;
pub mod manage;
pub mod progress;
mod record_writer;
pub mod remote;
mod repository;

use std::cell::Cell;
use std::path::{Path, PathBuf};

use feed::{CheckedFeed, Feed, FeedError, FeedKind, FeedReadError, Record};
use jiff::Timestamp;
use store::leases::{self, Lease};
use store::{Db, StoreError, Topic, Tx, feed_progress, feed_removals, feeds};
use tokio::sync::mpsc;

use crate::ATTEMPTS_MAX;
use crate::fetch::FetchError;
pub use progress::ImportProgress;
use progress::{ProgressSender, with_progress};
use record_writer::RecordWriter;

/// The number of records in a chunk, which is written in one transaction.
const CHUNK_RECORDS: usize = 500;
/// The memory limit of a chunk: it is written early when its records exceed this size.
const CHUNK_BYTES: usize = 8 * 1024 * 1024;
/// The number of chunks that may wait for the database.
const CHUNKS_QUEUED: usize = 2;

/// A feed file to import.
#[derive(Debug, Clone)]
pub struct ImportRequest {
    pub path: PathBuf,
    /// The feed's name; derived from the file name if `None`. A feed replaces only its own
    /// advisories.
    pub name: Option<String>,
    /// What the feed contains; detected from its first bytes if `None`.
    pub kind: Option<FeedKind>,
    /// The feed's date, used if the feed does not state one.
    pub as_of: Option<Timestamp>,
}

/// The result of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportSummary {
    /// The feed's name in lists.
    pub name: String,
    /// What the feed contains.
    pub kind: &'static str,
    /// The number of records in the feed.
    pub records: u64,
    /// The number of records that were new or changed.
    pub changed: u64,
    /// For a bundle, where it comes from.
    pub bundle: Option<bundle::BundleOrigin>,
}

/// Why a feed was not imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The feed is malformed.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// The feed does not say which release it is for; the caller must name one.
    #[error("{} does not name its release: select one with `--release bookworm=12` for the Debian security tracker, or with `--kind updateinfo --release 'Amazon Linux=2023'` for updateinfo", .0.display())]
    ReleaseRequired(PathBuf),
    /// The feed could not be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// A file of a repository could not be fetched.
    #[error("{url} cannot be fetched")]
    FetchPart { url: String, source: FetchError },
    /// The feed was fetched, but is malformed.
    #[error("{0}")]
    MalformedDownload(String),
    /// The bundle is malformed.
    #[error(transparent)]
    Bundle(#[from] bundle::BundleError),
    #[error("the feed could not be written to the database")]
    Store(#[from] StoreError),
    /// The task that reads the feed was stopped.
    #[error("the import was interrupted")]
    Interrupted,
    /// An operator removed the feed during its import.
    #[error("the feed was removed during the import")]
    Removed,
}

impl ImportError {
    /// The error and all its causes in one sentence.
    fn full_message(&self) -> String {
        let mut sentence = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(deeper) = cause {
            sentence = format!("{sentence}: {deeper}");
            cause = deeper.source();
        }
        sentence
    }
}

/// Opens the transactions of an import: on behalf of a command, or of the leader replica, fenced by
/// its lease.
#[derive(Clone, Copy)]
pub struct FeedTransactions<'a> {
    db: &'a Db,
    lease: Option<&'a Lease>,
}

impl<'a> FeedTransactions<'a> {
    /// For a command-line command.
    pub fn new(db: &'a Db) -> FeedTransactions<'a> {
        FeedTransactions { db, lease: None }
    }

    /// For the leader replica. Transactions fail once it has lost its lease.
    pub fn with_lease(db: &'a Db, lease: &'a Lease) -> FeedTransactions<'a> {
        FeedTransactions { db, lease: Some(lease) }
    }

    pub(crate) async fn begin(&self) -> store::Result<Tx> {
        let mut tries = 0;
        let mut tx = loop {
            match self.db.begin().await {
                // SQLite allows one writer at a time, and an import competes for the write lock
                // often.
                Err(StoreError::Busy(_)) if tries < ATTEMPTS_MAX => tries += 1,
                begun => break begun?,
            }
        };
        if let Some(lease) = self.lease {
            leases::fence(&mut tx, lease).await?;
        }
        Ok(tx)
    }
}

/// A feed's name and where it came from.
struct FeedOrigin {
    name: String,
    source: String,
}

/// Imports a feed file, and records the success or the reason for the failure. Reports progress to
/// `progress`.
pub async fn import(
    db: &Db,
    wanted: ImportRequest,
    now: Timestamp,
    progress: impl FnMut(ImportProgress) + Send + 'static,
) -> Result<ImportSummary, ImportError> {
    let transactions = FeedTransactions::new(db);
    // An updateinfo file may be compressed like a bundle.
    let is_updateinfo = matches!(wanted.kind, Some(FeedKind::Updateinfo { .. }));
    if !is_updateinfo && bundle::is_bundle(&wanted.path) {
        return bundle::import(&transactions, &wanted.path, None, now, progress).await;
    }
    let name = wanted.name.clone().unwrap_or_else(|| name_from_path(&wanted.path));
    let origin = FeedOrigin { name, source: wanted.path.display().to_string() };
    let word = wanted.kind.as_ref().map_or("unknown", FeedKind::as_str);
    allow_again(&transactions, &origin.name).await?;
    let importing = with_progress(&transactions, &origin.name, now, progress, |progress| {
        import_records(&transactions, wanted, &origin, now, progress)
    });
    match importing.await {
        Ok((imported, row)) => {
            let mut tx = transactions.begin().await?;
            feeds::record_import(&mut tx, &row).await?;
            feed_progress::delete(&mut tx, &origin.name).await?;
            tx.notify(Topic::Feeds);
            tx.commit().await?;
            Ok(imported)
        }
        Err(refusal) => {
            let mut tx = transactions.begin().await?;
            let known = (origin.name.as_str(), word, origin.source.as_str());
            feeds::record_failure(&mut tx, known, &refusal.full_message(), now).await?;
            feed_progress::delete(&mut tx, &origin.name).await?;
            tx.commit().await?;
            Err(refusal)
        }
    }
}

/// Allows a feed that was removed earlier: someone imports it again.
async fn allow_again(transactions: &FeedTransactions<'_>, name: &str) -> store::Result<()> {
    let mut tx = transactions.begin().await?;
    feed_removals::delete(&mut tx, name).await?;
    tx.commit().await
}

/// The name of the feed at a path: the file name without its extensions. Publishers name the file
/// of every ecosystem `all` and the file of every release `main`; for those, the directory is part
/// of the name.
fn name_from_path(path: &Path) -> String {
    let parts: Vec<String> = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    name_from_segments(&parts).unwrap_or_else(|| "feed".to_owned())
}

/// A feed's name from the segments of its path or URL.
fn name_from_segments(parts: &[&str]) -> Option<String> {
    let mut parts = parts.iter().rev().filter(|part| !matches!(**part, "" | "/" | "." | ".."));
    let last = strip_extensions(parts.next()?);
    Some(match (last, parts.next()) {
        ("all", Some(before)) => (*before).to_owned(),
        ("main" | "community" | "osv" | "index" | "updateinfo" | "vex", Some(before)) => {
            format!("{before}/{last}")
        }
        (last, _) => last.to_owned(),
    })
}

fn strip_extensions(mut name: &str) -> &str {
    for end in [".gz", ".zst", ".zip", ".json", ".jsonl", ".csv", ".xml"] {
        name = name.strip_suffix(end).filter(|shorter| !shorter.is_empty()).unwrap_or(name);
    }
    name
}

/// Imports the records. The caller writes the feed's row.
async fn import_records(
    desk: &FeedTransactions<'_>,
    wanted: ImportRequest,
    origin: &FeedOrigin,
    now: Timestamp,
    mut progress: ProgressSender<impl FnMut(ImportProgress) + Send + 'static>,
) -> Result<(ImportSummary, feeds::Feed), ImportError> {
    let result = tokio::task::spawn_blocking(move || {
        let (feed, kind, as_of) = prepare(wanted)?;
        let checked = feed.check(&mut |at| progress.send(ImportProgress::Checking(at)))?;
        Ok::<_, ImportError>((checked, kind, as_of, progress))
    });
    let (checked, kind, stated, progress) =
        result.await.map_err(|_| ImportError::Interrupted)??;
    let summary = checked.summary().clone();
    let (to_database, mut records) = mpsc::channel(CHUNKS_QUEUED);
    let reading =
        tokio::task::spawn_blocking(move || read_chunks(&checked, progress, &to_database));
    let mut writer = RecordWriter::new(*desk);
    while let Some(chunk) = records.recv().await {
        let as_of = stated.unwrap_or(now);
        writer.write_records(&origin.name, chunk.into_iter().map(|record| (record, as_of))).await?;
    }
    match reading.await.map_err(|_| ImportError::Interrupted)? {
        Ok(()) => {}
        Err(FeedReadError::Feed(error)) => return Err(error.into()),
        Err(FeedReadError::Consumer(())) => return Err(ImportError::Interrupted),
    }
    let row = feeds::Feed {
        name: origin.name.clone(),
        kind: kind.to_owned(),
        source: origin.source.clone(),
        records: summary.records,
        size_bytes: summary.bytes,
        as_of: writer.newest.max(stated),
        imported_at: Some(now),
        last_error: None,
        tried_at: now,
        checked_at: Some(now),
    };
    let imported = ImportSummary {
        name: origin.name.clone(),
        kind,
        records: summary.records,
        changed: writer.changed,
        bundle: None,
    };
    Ok((imported, row))
}

/// The feed, what it contains, and its date.
fn prepare(wanted: ImportRequest) -> Result<(Feed, &'static str, Option<Timestamp>), ImportError> {
    let ImportRequest { path, kind, as_of, .. } = wanted;
    let sniffed = feed::sniff(&path)?;
    let kind = kind.or(sniffed.kind).ok_or_else(|| ImportError::ReleaseRequired(path.clone()))?;
    // The date of a feed that does not state one is the modification time of its file.
    let written = std::fs::metadata(&path).and_then(|about| about.modified()).ok();
    let written = written.and_then(|time| Timestamp::try_from(time).ok());
    let is_dated = matches!(kind, FeedKind::Osv | FeedKind::Csaf | FeedKind::Updateinfo { .. });
    let as_of = as_of.or(sniffed.as_of).or(written.filter(|_| !is_dated));
    let word = kind.as_str();
    let feed = Feed::new(path, kind);
    let feed = match as_of {
        Some(time) => feed.as_of(time),
        None => feed,
    };
    Ok((feed, word, as_of))
}

fn read_chunks(
    checked: &CheckedFeed,
    mut progress: ProgressSender<impl FnMut(ImportProgress)>,
    to_database: &mpsc::Sender<Vec<Record>>,
) -> Result<(), FeedReadError<()>> {
    let mut chunk = Vec::new();
    let mut weight = 0;
    let total_records = checked.summary().records;
    // The records that were handed to the database: all but the few chunks that wait for it are
    // written.
    let records = Cell::new(0);
    let mut show = |read| {
        progress.send(ImportProgress::Applying { read, records: records.get(), total_records });
    };
    checked.read(&mut show, |record| {
        weight += feed::limits::record_memory_bytes(&record);
        chunk.push(record);
        if chunk.len() == CHUNK_RECORDS || weight > CHUNK_BYTES {
            let full = std::mem::take(&mut chunk);
            let count = full.len() as u64;
            weight = 0;
            to_database.blocking_send(full).map_err(drop)?;
            records.set(records.get() + count);
        }
        Ok(())
    })?;
    to_database.blocking_send(chunk).map_err(|_| FeedReadError::Consumer(()))
}
