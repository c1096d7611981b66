//! What is published about flaws, taken in: all of a feed or nothing of it.
//!
//! A feed is read twice, the first time to see whether it can be read to its end. The second time its records go, some
//! hundred at a time, into one transaction, so that an import needs as much memory as they do. An older copy of a feed
//! removes nothing and replaces nothing that is newer, and the same copy again changes nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use domain::advisory::{Advisory, Epss, Exploited};
use domain::finding::touch::Touched;
use feed::{Checked, Feed, FeedError, Kind, Progress, Record, Stopped};
use jiff::Timestamp;
use store::{Db, StoreError, Topic, Tx, advisories, feeds};
use tokio::sync::mpsc;

/// How many records are written together.
const TOGETHER: usize = 500;
/// How many such bunches may wait for the database.
const BUNCHES: usize = 2;

/// A feed to take in.
#[derive(Debug, Clone)]
pub struct Import {
    /// Where it is.
    pub path: PathBuf,
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

/// Why a feed was not taken in. Nothing of it was.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It is not as it should be.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// It does not say for which release it is to be read.
    #[error("{} is Debian's list of all releases: say for which it is to be read, with `--release bookworm=12`", .0.display())]
    Release(PathBuf),
    /// The database did not take it.
    #[error("the database did not take it")]
    Store(#[from] StoreError),
    /// Whoever read it was stopped.
    #[error("the reading was stopped")]
    Ended,
}

/// Takes a feed in, and notes that it was, or why it was not. `progress` is told how far that is.
pub async fn import(
    db: &Db,
    wanted: Import,
    now: Timestamp,
    progress: impl FnMut(Step) + Send + 'static,
) -> Result<Imported, ImportError> {
    let name = name_of(&wanted.path);
    let source = wanted.path.display().to_string();
    let word = wanted.kind.as_ref().map_or("unknown", Kind::word);
    let done = take_in(db, wanted, now, progress).await;
    if let Err(refusal) = &done {
        let mut why = refusal.to_string();
        let mut cause = std::error::Error::source(refusal);
        while let Some(deeper) = cause {
            why = format!("{why}: {deeper}");
            cause = deeper.source();
        }
        let mut tx = db.begin().await?;
        feeds::failed(&mut tx, (&name, word, &source), &why, now).await?;
        tx.commit().await?;
    }
    done
}

/// What the feed at a path is called: its file's name without its ends.
fn name_of(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let mut name = name.unwrap_or_else(|| "feed".to_owned());
    for end in [".gz", ".zip", ".json", ".jsonl", ".csv"] {
        if let Some(shorter) = name.strip_suffix(end).filter(|shorter| !shorter.is_empty()) {
            name = shorter.to_owned();
        }
    }
    name
}

async fn take_in(
    db: &Db,
    wanted: Import,
    now: Timestamp,
    mut progress: impl FnMut(Step) + Send + 'static,
) -> Result<Imported, ImportError> {
    let name = name_of(&wanted.path);
    let path = wanted.path.clone();
    let looked = tokio::task::spawn_blocking(move || {
        let (feed, kind, as_of) = prepare(wanted)?;
        let checked = feed.check(&mut |at| progress(Step::Checking(at)))?;
        Ok::<_, ImportError>((checked, kind, as_of, progress))
    });
    let (checked, kind, stated, progress) = looked.await.map_err(|_| ImportError::Ended)??;
    let summary = checked.summary().clone();
    let (to_database, mut records) = mpsc::channel(BUNCHES);
    let reading = tokio::task::spawn_blocking(move || read(&checked, progress, &to_database));
    let mut tx = db.begin().await?;
    let mut taker = Taker::new(feeds::next_revision(&mut tx).await?, stated.unwrap_or(now));
    while let Some(bunch) = records.recv().await {
        taker.take(&mut tx, bunch).await?;
    }
    match reading.await.map_err(|_| ImportError::Ended)? {
        Ok(()) => {}
        Err(Stopped::Feed(error)) => return Err(error.into()),
        Err(Stopped::Taker(())) => return Err(ImportError::Ended),
    }
    let as_of = taker.newest.max(stated);
    let changed = taker.finish(&mut tx).await?;
    if changed == 0 {
        feeds::keep_revision(&mut tx).await?;
    }
    let row = feeds::Feed {
        name: name.clone(),
        kind: kind.to_owned(),
        source: path.display().to_string(),
        records: summary.records,
        size_bytes: summary.bytes,
        as_of,
        imported_at: Some(now),
        last_error: None,
        tried_at: now,
    };
    feeds::imported(&mut tx, &row).await?;
    tx.ring(Topic::Feeds);
    tx.commit().await?;
    Ok(Imported { name, kind, records: summary.records, changed })
}

/// The feed, what it holds, and of when it is.
fn prepare(wanted: Import) -> Result<(Feed, &'static str, Option<Timestamp>), ImportError> {
    let Import { path, kind, as_of } = wanted;
    let sniffed = feed::sniff(&path)?;
    let kind = kind.or(sniffed.kind).ok_or_else(|| ImportError::Release(path.clone()))?;
    // A file that says nothing of its age is as old as it looks.
    let written = std::fs::metadata(&path).and_then(|about| about.modified()).ok();
    let written = written.and_then(|time| Timestamp::try_from(time).ok());
    let as_of = as_of.or(sniffed.as_of).or(written.filter(|_| kind != Kind::Osv));
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
    let mut bunch = Vec::with_capacity(TOGETHER);
    checked.read(&mut |at| progress(Step::Applying(at)), |record| {
        bunch.push(record);
        if bunch.len() == TOGETHER {
            let full = std::mem::replace(&mut bunch, Vec::with_capacity(TOGETHER));
            to_database.blocking_send(full).map_err(drop)?;
        }
        Ok(())
    })?;
    to_database.blocking_send(bunch).map_err(|_| Stopped::Taker(()))
}

/// Writes records down, and remembers what they touch.
struct Taker {
    revision: i64,
    as_of: Timestamp,
    touched: Touched,
    changed: u64,
    newest: Option<Timestamp>,
}

impl Taker {
    fn new(revision: i64, as_of: Timestamp) -> Taker {
        Taker { revision, as_of, touched: Touched::default(), changed: 0, newest: None }
    }

    async fn take(&mut self, tx: &mut Tx, bunch: Vec<Record>) -> Result<(), StoreError> {
        let mut statements = Vec::new();
        // One statement cannot write one row twice; the last word counts.
        let mut exploited: BTreeMap<String, Exploited> = BTreeMap::new();
        let mut estimates: BTreeMap<String, Epss> = BTreeMap::new();
        for record in bunch {
            match record {
                Record::Advisory(advisory) => statements.push(*advisory),
                Record::Exploited(one) => drop(exploited.insert(one.cve.clone(), one)),
                Record::Epss(one) => drop(estimates.insert(one.cve.clone(), one)),
            }
        }
        self.take_statements(tx, statements).await?;
        let exploited: Vec<Exploited> = exploited.into_values().collect();
        self.changed += advisories::put_exploited(tx, &exploited, self.as_of).await?;
        let estimates: Vec<Epss> = estimates.into_values().collect();
        self.changed += advisories::put_epss(tx, &estimates, self.as_of).await?;
        Ok(())
    }

    async fn take_statements(
        &mut self,
        tx: &mut Tx,
        statements: Vec<Advisory>,
    ) -> Result<(), StoreError> {
        let ids: Vec<String> = statements.iter().map(|one| one.id.clone()).collect();
        let stored = advisories::get_all(tx, &ids).await?;
        let mut next: BTreeMap<String, Advisory> = BTreeMap::new();
        for new in statements {
            self.newest = self.newest.max(new.modified);
            let known = next.get(&new.id).or_else(|| stored.get(&new.id));
            if known.is_none_or(|known| new.supersedes(known)) {
                self.touched.note(known, Some(&new));
                next.insert(new.id.clone(), new);
            }
        }
        self.changed += next.len() as u64;
        let next: Vec<Advisory> = next.into_values().collect();
        advisories::put_all(tx, &next).await
    }

    async fn finish(self, tx: &mut Tx) -> Result<u64, StoreError> {
        for base in self.touched.bases() {
            advisories::changed(tx, base, self.touched.names(base), self.revision).await?;
        }
        Ok(self.changed)
    }
}
