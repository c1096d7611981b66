//! The orders that the agent has, on disk and in memory.
//!
//! One directory an order: `journal.json`, the `log`, the inventory before, the directories of its jobs, and two
//! marks, `withdrawn` and `acknowledged`, which are files of their own because others than
//! the thread that writes the journal set them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use vocab::{FailureCode, Stage, TaskId};
use wire::agent::{Order, OrderProgress, OrderResult, Work};

use super::files;
use super::journal::{Failure, Journal, Lock, Task};
use super::log::Log;
use super::outcome::{self, Ending};
use super::step::Facts;

/// How many acknowledged orders keep their logs.
const LOGS_KEPT: usize = 20;
/// How many acknowledged orders keep their results, to answer a repeated order.
const RESULTS_KEPT: usize = 500;
/// The most bytes of results in one report; one is always sent, however long.
const REPORT_BYTES: usize = 512 * 1024;

/// An order.
struct Entry {
    journal: Journal,
    acknowledged: bool,
}

/// All of them.
pub(super) struct Desk {
    dir: PathBuf,
    entries: BTreeMap<TaskId, Entry>,
    arrivals: u64,
    /// How many acknowledged orders keep their logs, and how many their results.
    kept: (usize, usize),
}

impl Desk {
    /// Reads what is on disk.
    pub(super) fn open(state_dir: &Path, now: Timestamp) -> io::Result<Desk> {
        let dir = state_dir.join("orders");
        files::make_directory(&dir)?;
        let mut desk =
            Desk { dir, entries: BTreeMap::new(), arrivals: 0, kept: (LOGS_KEPT, RESULTS_KEPT) };
        for entry in fs::read_dir(&desk.dir)? {
            let entry = entry?;
            let Ok(id) = entry.file_name().to_string_lossy().parse::<TaskId>() else { continue };
            let path = entry.path();
            let journal = match files::read_json::<Journal>(&path.join("journal.json")) {
                Ok(Some(journal)) => journal,
                // The order was being taken when the agent died: it comes again.
                Ok(None) => {
                    fs::remove_dir_all(&path)?;
                    continue;
                }
                Err(error) => lost(id, &path, &error, now)?,
            };
            let acknowledged = path.join("acknowledged").exists();
            desk.arrivals = desk.arrivals.max(journal.arrival + 1);
            desk.entries.insert(id, Entry { journal, acknowledged });
        }
        Ok(desk)
    }

    /// The directory of an order.
    pub(super) fn directory(&self, id: TaskId) -> PathBuf {
        self.dir.join(id.to_string())
    }

    /// Takes an order in, once. One that has ended gets its stored result sent again.
    pub(super) fn take(&mut self, order: &Order, now: Timestamp) -> io::Result<()> {
        let dir = self.directory(order.id);
        if let Some(entry) = self.entries.get_mut(&order.id) {
            if entry.acknowledged {
                entry.acknowledged = false;
                remove_if_there(&dir.join("acknowledged"))?;
            }
            return Ok(());
        }
        self.add(Journal::new(order, self.arrivals, now))
    }

    /// Takes an order in only to answer it, unless it is here already.
    pub(super) fn refuse(&mut self, order: &Order, why: Failure, now: Timestamp) -> io::Result<()> {
        if self.entries.contains_key(&order.id) {
            return self.take(order, now);
        }
        self.add(Journal { task: Task::Refused(why), ..Journal::new(order, self.arrivals, now) })
    }

    fn add(&mut self, journal: Journal) -> io::Result<()> {
        let dir = self.directory(journal.id);
        files::make_directory(&dir)?;
        save(&dir, &journal)?;
        self.arrivals += 1;
        self.entries.insert(journal.id, Entry { journal, acknowledged: false });
        Ok(())
    }

    /// Marks an order as withdrawn; whether anything was done for it is decided by its next step.
    pub(super) fn withdraw(&mut self, id: TaskId) -> io::Result<()> {
        match self.entries.get(&id) {
            Some(entry) if entry.journal.result.is_none() => {
                files::write(&self.directory(id).join("withdrawn"), b"")
            }
            _ => Ok(()),
        }
    }

    /// Marks results as safe with the server, and forgets the oldest of those.
    pub(super) fn acknowledge(&mut self, ids: &[TaskId]) -> io::Result<()> {
        for id in ids {
            let dir = self.directory(*id);
            if let Some(entry) = self.entries.get_mut(id)
                && entry.journal.result.is_some()
                && !entry.acknowledged
            {
                files::write(&dir.join("acknowledged"), b"")?;
                entry.acknowledged = true;
            }
        }
        self.prune()
    }

    fn prune(&mut self) -> io::Result<()> {
        let mut done: Vec<(u64, TaskId)> = self
            .entries
            .values()
            .filter(|entry| entry.acknowledged)
            .map(|entry| (entry.journal.arrival, entry.journal.id))
            .collect();
        done.sort_unstable();
        done.reverse();
        for (_, id) in done.iter().skip(self.kept.0) {
            remove_if_there(&self.directory(*id).join("log"))?;
        }
        for (_, id) in done.iter().skip(self.kept.1) {
            fs::remove_dir_all(self.directory(*id))?;
            self.entries.remove(id);
        }
        Ok(())
    }

    /// The order to work on: the one that was begun, or the one that came first.
    pub(super) fn at_hand(&self) -> Option<Journal> {
        self.entries
            .values()
            .map(|entry| &entry.journal)
            .filter(|journal| journal.result.is_none())
            .min_by_key(|journal| (journal.started_at.is_none(), journal.arrival))
            .cloned()
    }

    /// Writes a journal down, and then believes it.
    pub(super) fn save(&mut self, journal: &Journal) -> io::Result<()> {
        let dir = self.directory(journal.id);
        save(&dir, journal)?;
        if journal.result.is_some() {
            tidy(&dir)?;
        }
        if let Some(entry) = self.entries.get_mut(&journal.id) {
            entry.journal = journal.clone();
        }
        Ok(())
    }

    /// The results that the server does not have, the oldest first.
    pub(super) fn results(&self) -> Vec<OrderResult> {
        let mut ended: Vec<&Entry> = self
            .entries
            .values()
            .filter(|entry| !entry.acknowledged && entry.journal.result.is_some())
            .collect();
        ended.sort_unstable_by_key(|entry| entry.journal.arrival);
        let mut bytes = 0;
        let results = ended.into_iter().filter_map(|entry| entry.journal.result.clone());
        results
            .take_while(|result| {
                let first = bytes == 0;
                bytes += serde_json::to_vec(result).map_or(0, |text| text.len());
                first || bytes <= REPORT_BYTES
            })
            .collect()
    }

    /// How far the unfinished orders are, in the order of their arrival.
    pub(super) fn progress(&self) -> Vec<OrderProgress> {
        let mut open: Vec<&Journal> = self
            .entries
            .values()
            .map(|entry| &entry.journal)
            .filter(|journal| journal.result.is_none())
            .collect();
        open.sort_unstable_by_key(|journal| journal.arrival);
        let progress = |journal: &Journal| OrderProgress {
            order_id: journal.id,
            stage: Some(journal.stage),
            at: journal.stage_at,
            message: match &journal.known.lock {
                Some(Lock::HeldBy(holder)) => Some(format!("waiting for {holder}").into()),
                _ => None,
            },
        };
        open.into_iter().map(progress).collect()
    }

    /// Every log that is there, how long it is, and whether it is complete.
    pub(super) fn logs(&self) -> Vec<(TaskId, u64, bool)> {
        let mut entries: Vec<&Entry> = self.entries.values().collect();
        entries.sort_unstable_by_key(|entry| entry.journal.arrival);
        let log = |entry: &Entry| {
            let journal = &entry.journal;
            let complete = journal.result.is_some();
            let length = Log::in_directory(&self.directory(journal.id)).length();
            (journal.id, length, complete)
        };
        entries.into_iter().map(log).filter(|(_, length, _)| *length > 0).collect()
    }
}

fn save(dir: &Path, journal: &Journal) -> io::Result<()> {
    files::write_json(&dir.join("journal.json"), journal)
}

/// Removes what an ended order needs no more: the result is written, so nothing will look at it again.
fn tidy(dir: &Path) -> io::Result<()> {
    remove_if_there(&dir.join("before.json"))?;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => files::sync_directory_of(path),
    }
}

/// An order whose journal cannot be read: all that is left to say is that, under its id.
fn lost(id: TaskId, dir: &Path, error: &io::Error, now: Timestamp) -> io::Result<Journal> {
    fs::rename(dir.join("journal.json"), dir.join("journal.bad"))?;
    let words = format!("the journal of this order cannot be read: {error}");
    let failure = Failure::new(FailureCode::AgentError, words);
    let unknown = Order {
        id,
        server_id: vocab::ServerId::new(now, 0),
        issued_at: now,
        expires_at: now,
        work: Work::Unknown { name: "".into() },
    };
    let mut journal = Journal::new(&unknown, 0, now);
    journal.task = Task::Refused(failure.clone());
    journal.stage = Stage::Verifying;
    let facts = Facts::of_nothing();
    journal.result = Some(outcome::result(&journal, &facts, Ending::Failed(failure), now));
    save(dir, &journal)?;
    Ok(journal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_stay_until_they_are_acknowledged_and_the_newest_for_a_while_after() {
        let now: Timestamp = "2026-11-15T04:00:00Z".parse().unwrap();
        let dir = super::super::tests::directory("desk");
        let mut desk = Desk { kept: (1, 2), ..Desk::open(&dir, now).unwrap() };
        let order = |number| Order {
            id: TaskId::new(now, number),
            server_id: vocab::ServerId::new(now, 1),
            issued_at: now,
            expires_at: now,
            work: Work::Scan,
        };
        let ids: Vec<TaskId> = (0..5).map(|number| order(number).id).collect();
        for number in 0..5 {
            desk.take(&order(number), now).unwrap();
            let mut journal = desk.at_hand().unwrap();
            let ending = Ending::Done;
            journal.result = Some(outcome::result(&journal, &Facts::of_nothing(), ending, now));
            Log::in_directory(&desk.directory(journal.id)).say("done").unwrap();
            desk.save(&journal).unwrap();
        }
        assert_eq!(desk.results().len(), 5);
        desk.acknowledge(&ids[..4]).unwrap();
        let left: Vec<TaskId> = desk.results().iter().map(|result| result.order_id).collect();
        assert_eq!(left, ids[4..]);
        let logs: Vec<TaskId> = desk.logs().iter().map(|(id, ..)| *id).collect();
        assert_eq!(logs, ids[3..]);
        // What is on disk is the same.
        let desk = Desk::open(&dir, now).unwrap();
        let kept: Vec<TaskId> = desk.entries.keys().copied().collect();
        assert_eq!(kept, ids[2..]);
        assert_eq!(desk.results().len(), 1);
    }
}
