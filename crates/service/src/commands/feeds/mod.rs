//! Import of vulnerability feeds.
//!
//! Every feed is read twice. The first pass checks that it can be read to its end: a feed that is
//! broken, truncated or empty changes nothing. The second pass sends the records to the database in
//! chunks of some hundred, each in a separate transaction, so that an import needs memory for a
//! few chunks only and other writers do not wait long. An older copy of a feed removes nothing and
//! replaces nothing newer, and importing the same copy again changes nothing. An import that was
//! killed half-way is therefore completed by the next one.
//!
//! [`import`] reads files on disk, [`follow`] fetches feeds from URLs, and [`bundle`] exchanges
//! feed data with other installations.

pub mod bundle;
pub mod follow;
mod take;

use async_recursion::async_recursion as boxed;
use std::path::{Path, PathBuf};

use domain::advisory::Advisory;
use domain::finding::touch::Touched;
use feed::{Checked, Feed, FeedError, Kind, Progress, Record, Stopped};
use jiff::Timestamp;
use store::leases::{self, Lease};
use store::{Db, StoreError, Topic, Tx, advisories, feed_sources, feeds};
use tokio::sync::mpsc;

use crate::TRIES;
use crate::fetch::FetchError;
use take::Taker;

/// The number of records in a chunk, which is written in one transaction.
const TOGETHER: usize = 500;
/// The memory limit of a chunk: it is written early when its records exceed this size.
const TOGETHER_BYTES: usize = 8 * 1024 * 1024;
/// The number of chunks that may wait for the database.
const BUNCHES: usize = 2;
/// The number of advisories that are deleted in one transaction.
const DELETED_TOGETHER: u32 = 500;

/// A feed file to import.
#[derive(Debug, Clone)]
pub struct Import {
    pub path: PathBuf,
    /// The feed's name; derived from the file name if `None`. A feed replaces only its own
    /// advisories.
    pub name: Option<String>,
    /// What the feed contains; detected from its first bytes if `None`.
    pub kind: Option<Kind>,
    /// The feed's date, used if the feed does not state one.
    pub as_of: Option<Timestamp>,
}

/// The progress of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The first pass: the feed is checked.
    Checking(Progress),
    /// The second pass: the records are written.
    Applying(Progress),
}

/// The result of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The feed's name in lists.
    pub name: String,
    /// What the feed contains.
    pub kind: &'static str,
    /// The number of records in the feed.
    pub records: u64,
    /// The number of records that were new or changed.
    pub changed: u64,
}

/// Why a feed was not imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The feed is malformed.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// The Debian tracker covers all releases; the caller must name one.
    #[error("{} is the Debian security tracker for all releases: select one, for example with `--release bookworm=12`", .0.display())]
    Release(PathBuf),
    /// The feed could not be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The feed was fetched, but is malformed.
    #[error("{0}")]
    Fetched(String),
    /// The bundle is malformed.
    #[error(transparent)]
    Bundle(#[from] bundle::BundleError),
    #[error("the feed could not be written to the database")]
    Store(#[from] StoreError),
    /// The task that reads the feed was stopped.
    #[error("the import was interrupted")]
    Ended,
}

impl ImportError {
    /// The error and all its causes in one sentence.
    fn sentence(&self) -> String {
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
pub struct Desk<'a> {
    db: &'a Db,
    lease: Option<&'a Lease>,
}

impl<'a> Desk<'a> {
    /// For a command-line command.
    pub fn new(db: &'a Db) -> Desk<'a> {
        Desk { db, lease: None }
    }

    /// For the leader replica. Transactions fail once it has lost its lease.
    pub fn leading(db: &'a Db, lease: &'a Lease) -> Desk<'a> {
        Desk { db, lease: Some(lease) }
    }

    async fn begin(&self) -> store::Result<Tx> {
        let mut tries = 0;
        let mut tx = loop {
            match self.db.begin().await {
                // SQLite allows one writer at a time, and an import competes for the write lock
                // often.
                Err(StoreError::Busy(_)) if tries < TRIES => tries += 1,
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
struct About {
    name: String,
    source: String,
}

/// Imports a feed file, and records the success or the reason for the failure. Reports progress to
/// `progress`.
pub async fn import(
    db: &Db,
    wanted: Import,
    now: Timestamp,
    progress: impl FnMut(Step) + Send + 'static,
) -> Result<Imported, ImportError> {
    let desk = Desk::new(db);
    if bundle::is_one(&wanted.path) {
        return bundle::import(&desk, &wanted.path, now, progress).await;
    }
    let name = wanted.name.clone().unwrap_or_else(|| name_of(&wanted.path));
    let about = About { name, source: wanted.path.display().to_string() };
    let word = wanted.kind.as_ref().map_or("unknown", Kind::word);
    match take_in(&desk, wanted, &about, now, progress).await {
        Ok((imported, row)) => {
            let mut tx = desk.begin().await?;
            feeds::imported(&mut tx, &row).await?;
            tx.ring(Topic::Feeds);
            tx.commit().await?;
            Ok(imported)
        }
        Err(refusal) => {
            let mut tx = desk.begin().await?;
            let known = (about.name.as_str(), word, about.source.as_str());
            feeds::failed(&mut tx, known, &refusal.sentence(), now).await?;
            tx.commit().await?;
            Err(refusal)
        }
    }
}

/// Deletes a feed with its advisories and stops fetching it. Returns the number of its advisories,
/// or `None` if there is no such feed. KEV and EPSS entries are shared by all feeds and stay.
#[boxed]
pub async fn remove(db: &Db, name: &str) -> Result<Option<u64>, StoreError> {
    let desk = Desk::new(db);
    let known = feeds::list(&mut *db.read().await?).await?;
    if !known.iter().any(|feed| feed.name == name) {
        return Ok(None);
    }
    let mut deleted = 0;
    loop {
        let page = advisories::page(&mut *db.read().await?, (name, ""), DELETED_TOGETHER).await?;
        let old: Vec<Advisory> =
            page.into_iter().filter(|(feed, _)| feed == name).map(|(_, one)| one).collect();
        if old.is_empty() {
            break;
        }
        let mut tx = desk.begin().await?;
        let revision = feeds::next_revision(&mut tx).await?;
        let mut touched = Touched::default();
        old.iter().for_each(|one| touched.note(Some(one), None));
        let ids: Vec<String> = old.into_iter().map(|one| one.id).collect();
        advisories::delete(&mut tx, name, &ids).await?;
        for base in touched.bases() {
            advisories::changed(&mut tx, base, touched.names(base), revision).await?;
        }
        tx.commit().await?;
        deleted += ids.len() as u64;
    }
    let mut tx = desk.begin().await?;
    feed_sources::forget(&mut tx, name).await?;
    feeds::delete(&mut tx, name).await?;
    tx.ring(Topic::Feeds);
    tx.commit().await?;
    Ok(Some(deleted))
}

/// The name of the feed at a path: the file name without its extensions. Publishers name the file
/// of every ecosystem `all` and the file of every release `main`; for those, the directory is part
/// of the name.
fn name_of(path: &Path) -> String {
    let parts: Vec<String> = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    name_from(&parts).unwrap_or_else(|| "feed".to_owned())
}

/// A feed's name from the segments of its path or URL.
fn name_from(parts: &[&str]) -> Option<String> {
    let mut parts = parts.iter().rev().filter(|part| !matches!(**part, "" | "/" | "." | ".."));
    let last = without_ends(parts.next()?);
    Some(match (last, parts.next()) {
        ("all", Some(before)) => (*before).to_owned(),
        ("main" | "community" | "osv" | "index" | "updateinfo" | "vex", Some(before)) => {
            format!("{before}/{last}")
        }
        (last, _) => last.to_owned(),
    })
}

fn without_ends(mut name: &str) -> &str {
    for end in [".gz", ".zst", ".zip", ".json", ".jsonl", ".csv"] {
        name = name.strip_suffix(end).filter(|shorter| !shorter.is_empty()).unwrap_or(name);
    }
    name
}

/// Imports the records. The caller writes the feed's row.
async fn take_in(
    desk: &Desk<'_>,
    wanted: Import,
    about: &About,
    now: Timestamp,
    mut progress: impl FnMut(Step) + Send + 'static,
) -> Result<(Imported, feeds::Feed), ImportError> {
    let looked = tokio::task::spawn_blocking(move || {
        let (feed, kind, as_of) = prepare(wanted)?;
        let checked = feed.check(&mut |at| progress(Step::Checking(at)))?;
        Ok::<_, ImportError>((checked, kind, as_of, progress))
    });
    let (checked, kind, stated, progress) = looked.await.map_err(|_| ImportError::Ended)??;
    let summary = checked.summary().clone();
    let (to_database, mut records) = mpsc::channel(BUNCHES);
    let reading = tokio::task::spawn_blocking(move || read(&checked, progress, &to_database));
    let mut taker = Taker::new(*desk);
    while let Some(bunch) = records.recv().await {
        let as_of = stated.unwrap_or(now);
        taker.take(&about.name, bunch.into_iter().map(|record| (record, as_of))).await?;
    }
    match reading.await.map_err(|_| ImportError::Ended)? {
        Ok(()) => {}
        Err(Stopped::Feed(error)) => return Err(error.into()),
        Err(Stopped::Taker(())) => return Err(ImportError::Ended),
    }
    let row = feeds::Feed {
        name: about.name.clone(),
        kind: kind.to_owned(),
        source: about.source.clone(),
        records: summary.records,
        size_bytes: summary.bytes,
        as_of: taker.newest.max(stated),
        imported_at: Some(now),
        last_error: None,
        tried_at: now,
        checked_at: Some(now),
    };
    let imported = Imported {
        name: about.name.clone(),
        kind,
        records: summary.records,
        changed: taker.changed,
    };
    Ok((imported, row))
}

/// The feed, what it contains, and its date.
fn prepare(wanted: Import) -> Result<(Feed, &'static str, Option<Timestamp>), ImportError> {
    let Import { path, kind, as_of, .. } = wanted;
    let sniffed = feed::sniff(&path)?;
    let kind = kind.or(sniffed.kind).ok_or_else(|| ImportError::Release(path.clone()))?;
    // The date of a feed that does not state one is the modification time of its file.
    let written = std::fs::metadata(&path).and_then(|about| about.modified()).ok();
    let written = written.and_then(|time| Timestamp::try_from(time).ok());
    let is_dated = matches!(kind, Kind::Osv | Kind::Csaf);
    let as_of = as_of.or(sniffed.as_of).or(written.filter(|_| !is_dated));
    let word = kind.word();
    let feed = Feed::new(path, kind);
    let feed = match as_of {
        Some(time) => feed.as_of(time),
        None => feed,
    };
    Ok((feed, word, as_of))
}

fn read(
    checked: &Checked,
    mut progress: impl FnMut(Step),
    to_database: &mpsc::Sender<Vec<Record>>,
) -> Result<(), Stopped<()>> {
    let mut bunch = Vec::new();
    let mut weight = 0;
    checked.read(&mut |at| progress(Step::Applying(at)), |record| {
        weight += feed::limits::weight(&record);
        bunch.push(record);
        if bunch.len() == TOGETHER || weight > TOGETHER_BYTES {
            let full = std::mem::take(&mut bunch);
            weight = 0;
            to_database.blocking_send(full).map_err(drop)?;
        }
        Ok(())
    })?;
    to_database.blocking_send(bunch).map_err(|_| Stopped::Taker(()))
}
