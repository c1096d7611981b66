//! Stores the progress of an import in the database, where every replica can read it.
//!
//! The import calls a function with each step; a second future writes the latest step once per
//! second. It also ends the import of a feed that an operator removes meanwhile.

use std::time::Duration;

use feed::Progress;
use jiff::{SignedDuration, Timestamp};
use store::feed_progress::{self, FeedProgress};
use store::{StoreError, feed_removals};
use tokio::sync::watch;
use tokio::time::Instant;
use wire::v1::FeedPhase;

use super::{FeedTransactions, ImportError};

/// The time between two writes.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// A row that was not updated for this long belongs to a process that was killed: a download
/// without data ends sooner.
const ABANDONED_AFTER: SignedDuration = SignedDuration::from_mins(2);
/// An estimate of the remaining time needs at least this much of a phase.
const ESTIMATE_AFTER: SignedDuration = SignedDuration::from_secs(3);

/// The progress of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportProgress {
    /// The feed is downloaded. The publisher may not state its size.
    Downloading { bytes: u64, total: Option<u64> },
    /// The first pass: the feed is checked.
    Checking(Progress),
    /// The second pass: the records are written.
    Applying { read: Progress, records: u64, total_records: u64 },
}

impl ImportProgress {
    const START: ImportProgress = ImportProgress::Downloading { bytes: 0, total: None };

    pub fn phase(self) -> FeedPhase {
        match self {
            ImportProgress::Downloading { .. } => FeedPhase::Downloading,
            ImportProgress::Checking(_) => FeedPhase::Checking,
            ImportProgress::Applying { .. } => FeedPhase::Importing,
        }
    }

    /// The percentage of this phase. `None` if the total is unknown.
    pub fn percent(self) -> Option<u8> {
        match self {
            ImportProgress::Downloading { total: None, .. } => None,
            ImportProgress::Downloading { bytes, total: Some(total) } => percent(bytes, total),
            ImportProgress::Checking(Progress { bytes, total }) => percent(bytes, total),
            ImportProgress::Applying { records, total_records, .. } => {
                percent(records, total_records)
            }
        }
    }

    fn row(self, name: &str, phase_started_at: Timestamp, now: Timestamp) -> FeedProgress {
        let (phase, bytes, total_bytes, records, total_records) = match self {
            ImportProgress::Downloading { bytes, total } => ("downloading", bytes, total, 0, None),
            ImportProgress::Checking(at) => ("checking", at.bytes, Some(at.total), 0, None),
            ImportProgress::Applying { read, records, total_records } => {
                ("importing", read.bytes, Some(read.total), records, Some(total_records))
            }
        };
        FeedProgress {
            name: name.to_owned(),
            phase: phase.to_owned(),
            bytes,
            total_bytes,
            records,
            total_records,
            phase_started_at,
            updated_at: now,
        }
    }
}

fn percent(done: u64, total: u64) -> Option<u8> {
    let percent = done.saturating_mul(100).checked_div(total)?;
    Some(u8::try_from(percent.min(100)).unwrap_or(100))
}

/// Reads a stored row. `None` if the process that wrote it no longer runs.
pub fn from_row(row: &FeedProgress, now: Timestamp) -> Option<wire::v1::FeedProgress> {
    if now.duration_since(row.updated_at) > ABANDONED_AFTER {
        return None;
    }
    let (phase, done, total) = match row.phase.as_str() {
        "downloading" => (FeedPhase::Downloading, row.bytes, row.total_bytes),
        "checking" => (FeedPhase::Checking, row.bytes, row.total_bytes),
        _ => (FeedPhase::Importing, row.records, row.total_records),
    };
    let elapsed = row.updated_at.duration_since(row.phase_started_at);
    Some(wire::v1::FeedProgress {
        phase,
        bytes: row.bytes,
        total_bytes: row.total_bytes,
        records: row.records,
        total_records: row.total_records,
        percent: total.and_then(|total| percent(done, total)),
        estimated_seconds_left: total.and_then(|total| seconds_left(done, total, elapsed)),
    })
}

/// The time left at the average speed so far.
fn seconds_left(done: u64, total: u64, elapsed: SignedDuration) -> Option<u64> {
    if elapsed < ESTIMATE_AFTER || done == 0 {
        return None;
    }
    let elapsed = u128::try_from(elapsed.as_millis()).ok()?;
    let left = u128::from(total.saturating_sub(done)) * elapsed / u128::from(done) / 1_000;
    u64::try_from(left).ok()
}

/// Receives the steps of an import.
pub(super) struct ProgressSender<F> {
    latest: watch::Sender<ImportProgress>,
    also: F,
}

impl<F: FnMut(ImportProgress)> ProgressSender<F> {
    pub(super) fn send(&mut self, step: ImportProgress) {
        self.latest.send_replace(step);
        (self.also)(step);
    }
}

/// Runs an import and stores its progress. `also` gets every step too.
pub(super) async fn with_progress<T, F, W>(
    transactions: &FeedTransactions<'_>,
    name: &str,
    now: Timestamp,
    also: F,
    import: impl FnOnce(ProgressSender<F>) -> W,
) -> Result<T, ImportError>
where
    F: FnMut(ImportProgress) + Send + 'static,
    W: Future<Output = Result<T, ImportError>>,
{
    let (latest, steps) = watch::channel(ImportProgress::START);
    let work = import(ProgressSender { latest, also });
    tokio::select! {
        biased;
        result = work => result,
        error = store_steps(transactions, name, now, steps) => Err(error),
    }
}

/// Stores the steps until the import ends. Returns only if the import must end.
async fn store_steps(
    transactions: &FeedTransactions<'_>,
    name: &str,
    now: Timestamp,
    steps: watch::Receiver<ImportProgress>,
) -> ImportError {
    let started = Instant::now();
    let mut phase = (FeedPhase::Downloading, now);
    loop {
        let step = *steps.borrow();
        let elapsed = SignedDuration::try_from(started.elapsed()).unwrap_or(SignedDuration::MAX);
        let now = now.saturating_add(elapsed).unwrap_or(Timestamp::MAX);
        if step.phase() != phase.0 {
            phase = (step.phase(), now);
        }
        match store_step(transactions, &step.row(name, phase.1, now)).await {
            Ok(true) => {}
            Ok(false) => return ImportError::Removed,
            // The import itself reports a database that stays unavailable.
            Err(StoreError::Busy(_)) => {}
            Err(error) => return error.into(),
        }
        // Also if nothing changed: the time shows that the import still runs.
        tokio::time::sleep(WRITE_INTERVAL).await;
    }
}

/// Returns whether the feed still exists.
async fn store_step(
    transactions: &FeedTransactions<'_>,
    row: &FeedProgress,
) -> Result<bool, StoreError> {
    let mut tx = transactions.begin().await?;
    if feed_removals::contains(&mut tx, &row.name).await? {
        return Ok(false);
    }
    feed_progress::save(&mut tx, row).await?;
    tx.commit().await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn step() -> ImportProgress {
        let read = Progress { bytes: 900, total: 1_000 };
        ImportProgress::Applying { read, records: 25, total_records: 100 }
    }

    #[test]
    fn time_left_is_estimated_from_the_records_written() {
        let shown = from_row(&step().row("Debian", at(0), at(10)), at(11)).unwrap();
        assert_eq!((shown.phase, shown.percent), (FeedPhase::Importing, Some(25)));
        assert_eq!((shown.records, shown.total_records), (25, Some(100)));
        assert_eq!(shown.estimated_seconds_left, Some(30));
    }

    #[test]
    fn nothing_is_estimated_without_a_basis() {
        let early = from_row(&step().row("Debian", at(0), at(2)), at(2)).unwrap();
        assert_eq!(early.estimated_seconds_left, None, "two seconds are too short");
        let unknown = ImportProgress::Downloading { bytes: 7, total: None };
        let shown = from_row(&unknown.row("Debian", at(0), at(60)), at(60)).unwrap();
        assert_eq!((shown.percent, shown.estimated_seconds_left), (None, None));
        let empty = ImportProgress::Checking(Progress { bytes: 0, total: 0 });
        assert_eq!(empty.percent(), None);
    }

    #[test]
    fn progress_of_a_killed_process_is_not_shown() {
        let row = step().row("Debian", at(0), at(10));
        assert!(from_row(&row, at(129)).is_some());
        assert_eq!(from_row(&row, at(131)), None);
    }

    #[test]
    fn percent_never_exceeds_a_hundred() {
        assert_eq!(percent(u64::MAX, 3), Some(100));
        assert_eq!(percent(1, 3), Some(33));
    }
}
