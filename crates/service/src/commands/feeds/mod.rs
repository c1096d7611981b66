//! What is published about flaws, taken in.
//!
//! A feed is read twice, the first time to see whether it can be read to its end: one that is broken, cut off or empty
//! changes nothing. The second time its records go to the database some hundred at a time, each bunch in a transaction of
//! its own, so that an import needs as much memory as they do, and nobody who wants to write waits for long. An older
//! copy of a feed removes nothing and replaces nothing that is newer, and the same copy again changes nothing; an import
//! that was killed half-way is therefore completed by the next one.
//!
//! [`import`] reads what is on the disk, [`follow`] what is on the web, [`bundle`] what another installation knows.

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

/// How many records are written together.
const TOGETHER: usize = 500;
/// How much memory those may take: a bunch is written earlier if it takes more.
const TOGETHER_BYTES: usize = 8 * 1024 * 1024;
/// How many such bunches may wait for the database.
const BUNCHES: usize = 2;
/// How many advisories are deleted in one transaction.
const DELETED_TOGETHER: u32 = 500;

/// A feed to take in.
#[derive(Debug, Clone)]
pub struct Import {
    /// Where it is.
    pub path: PathBuf,
    /// What to call it; after its file if left out. A feed replaces only its own advisories.
    pub name: Option<String>,
    /// What it holds; told by its beginning if left out.
    pub kind: Option<Kind>,
    /// Of when it is, where it does not say so itself.
    pub as_of: Option<Timestamp>,
}

/// How far an import is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It is looked through.
    Checking(Progress),
    /// It is taken in.
    Applying(Progress),
}

/// What came of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The feed, as it is shown from now on.
    pub name: String,
    /// What it holds.
    pub kind: &'static str,
    /// How many records it has.
    pub records: u64,
    /// How many of them said something new.
    pub changed: u64,
}

/// Why a feed was not taken in.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It is not as it should be.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// It does not say for which release it is to be read.
    #[error("{} is Debian's list of all releases: say for which it is to be read, with `--release bookworm=12`", .0.display())]
    Release(PathBuf),
    /// It could not be had.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// It was fetched, and is not as it should be.
    #[error("{0}")]
    Fetched(String),
    /// It is not a bundle as it should be.
    #[error(transparent)]
    Bundle(#[from] bundle::BundleError),
    /// The database did not take it.
    #[error("the database did not take it")]
    Store(#[from] StoreError),
    /// Whoever read it was stopped.
    #[error("the reading was stopped")]
    Ended,
}

impl ImportError {
    /// All of it in one sentence.
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

/// Where it is written, and by whose leave: a command's, or that of the replica which leads.
#[derive(Clone, Copy)]
pub struct Desk<'a> {
    db: &'a Db,
    lease: Option<&'a Lease>,
}

impl<'a> Desk<'a> {
    /// For a command.
    pub fn new(db: &'a Db) -> Desk<'a> {
        Desk { db, lease: None }
    }

    /// For the replica that leads, and only as long as it does.
    pub fn leading(db: &'a Db, lease: &'a Lease) -> Desk<'a> {
        Desk { db, lease: Some(lease) }
    }

    async fn begin(&self) -> store::Result<Tx> {
        let mut tries = 0;
        let mut tx = loop {
            match self.db.begin().await {
                // On SQLite all write in turn, and an import has many turns to wait for.
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

/// What a feed is called, and where it came from.
struct About {
    name: String,
    source: String,
}

/// Takes a feed in, and notes that it was, or why it was not. `progress` is told how far that is.
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

/// Deletes a feed with its advisories, and fetches it no more. Returns how many advisories it had, or
/// none if there is no such feed. KEV and EPSS entries are shared by all copies and stay.
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

/// The name of the feed at a path: the file's name without its extensions. Publishers call the file
/// of every ecosystem `all` and of every release `main`; then the directory tells them apart.
fn name_of(path: &Path) -> String {
    let parts: Vec<String> = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    name_from(&parts).unwrap_or_else(|| "feed".to_owned())
}

/// A feed's name from the parts of its path or URL.
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

/// Takes the records in. The row of the feed is for the caller to write.
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

/// The feed, what it holds, and of when it is.
fn prepare(wanted: Import) -> Result<(Feed, &'static str, Option<Timestamp>), ImportError> {
    let Import { path, kind, as_of, .. } = wanted;
    let sniffed = feed::sniff(&path)?;
    let kind = kind.or(sniffed.kind).ok_or_else(|| ImportError::Release(path.clone()))?;
    // A file that says nothing of its age is as old as it looks.
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
