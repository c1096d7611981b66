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
/// How many orders may be here that the server has not acknowledged. While there are so many no other is taken; an honest
/// server acknowledges a result with the answer that it gets.
const OPEN_MAX: usize = 1_000;
/// How many bytes are put by, for the journal of an order that fills the disk.
const RESERVE_BYTES: usize = 512 * 1024;
/// The most bytes of results in one report; one is always sent, however long.
const REPORT_BYTES: usize = 512 * 1024;

/// An order.
struct Entry {
    journal: Journal,
    acknowledged: bool,
    /// Whether it is on disk. One that is not was answered with that, and is written down when there is room.
    written: bool,
}

/// All of them.
pub(super) struct Desk {
    dir: PathBuf,
    entries: BTreeMap<TaskId, Entry>,
    arrivals: u64,
    /// How many acknowledged orders keep their logs, and how many their results.
    kept: (usize, usize),
    open_max: usize,
}

impl Desk {
    /// Reads what is on disk.
    pub(super) fn open(state_dir: &Path, now: Timestamp) -> io::Result<Desk> {
        let dir = state_dir.join("orders");
        files::make_directory(&dir)?;
        let (entries, kept) = (BTreeMap::new(), (LOGS_KEPT, RESULTS_KEPT));
        let mut desk = Desk { dir, entries, arrivals: 0, kept, open_max: OPEN_MAX };
        desk.put_by();
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
            desk.entries.insert(id, Entry { journal, acknowledged, written: true });
        }
        Ok(desk)
    }

    /// The directory of an order.
    pub(super) fn directory(&self, id: TaskId) -> PathBuf {
        self.dir.join(id.to_string())
    }

    /// Puts room by, if there is enough of it.
    pub(super) fn put_by(&self) {
        let path = self.reserve();
        if files::length(&path) < RESERVE_BYTES as u64
            && files::put_by(&path, RESERVE_BYTES).is_err()
        {
            let _ = fs::remove_file(path);
        }
    }

    fn reserve(&self) -> PathBuf {
        self.dir.with_file_name("reserve")
    }

    /// Takes an order in, once. One that has ended gets its stored result sent again. One that cannot be written down is
    /// answered with that.
    pub(super) fn take(&mut self, order: &Order, now: Timestamp) -> io::Result<()> {
        if self.entries.contains_key(&order.id) {
            return self.tell_again(order.id);
        }
        self.add(Journal::new(order, self.arrivals, now))
    }

    /// A result that the server had, and asks for once more.
    fn tell_again(&mut self, id: TaskId) -> io::Result<()> {
        let dir = self.directory(id);
        match self.entries.get_mut(&id) {
            Some(entry) if entry.acknowledged => {
                entry.acknowledged = false;
                remove_if_there(&dir.join("acknowledged"))
            }
            _ => Ok(()),
        }
    }

    /// Takes an order in only to answer it, unless it is here already.
    pub(super) fn refuse(&mut self, order: &Order, why: Failure, now: Timestamp) -> io::Result<()> {
        if self.entries.contains_key(&order.id) {
            return self.take(order, now);
        }
        self.add(Journal { task: Task::Refused(why), ..Journal::new(order, self.arrivals, now) })
    }

    fn add(&mut self, journal: Journal) -> io::Result<()> {
        if self.entries.values().filter(|entry| !entry.acknowledged).count() >= self.open_max {
            return Err(io::Error::other("too many orders are not acknowledged"));
        }
        self.arrivals += 1;
        let written = write_down(&self.directory(journal.id), &journal);
        let journal = match &written {
            Ok(()) => journal,
            Err(error) => unwritten(journal, error),
        };
        let entry = Entry { journal, acknowledged: false, written: written.is_ok() };
        self.entries.insert(entry.journal.id, entry);
        Ok(())
    }

    /// Answers an order that was withdrawn. Of one that is in work, or was begun, it is only marked: whether anything was done
    /// for it is decided by its next step. One that has ended gets its stored result sent again: a server that was
    /// restored from a backup has forgotten it.
    pub(super) fn withdraw(&mut self, id: TaskId, in_work: bool, now: Timestamp) -> io::Result<()> {
        let Some(entry) = self.entries.get(&id) else { return Ok(()) };
        if entry.journal.result.is_some() {
            return self.tell_again(id);
        }
        let mut journal = entry.journal.clone();
        files::write(&self.directory(id).join("withdrawn"), b"")?;
        if in_work || journal.started_at.is_some() || matches!(journal.task, Task::Refused(_)) {
            return Ok(());
        }
        let facts = Facts::of_nothing();
        journal.result = Some(outcome::result(&journal, &facts, Ending::Withdrawn, now));
        self.save(&journal)
    }

    /// Marks results as safe with the server, and forgets the oldest of those.
    pub(super) fn acknowledge(&mut self, ids: &[TaskId]) -> io::Result<()> {
        for id in ids {
            let dir = self.directory(*id);
            if let Some(entry) = self.entries.get_mut(id)
                && entry.journal.result.is_some()
                && !entry.acknowledged
            {
                entry.acknowledged = true;
                entry.written = entry.written || write_down(&dir, &entry.journal).is_ok();
                // Without the mark it is sent once more after a restart, which changes nothing.
                let _ = files::write(&dir.join("acknowledged"), b"");
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
            let entry = self.entries.remove(id);
            if entry.is_some_and(|entry| entry.written) {
                fs::remove_dir_all(self.directory(*id))?;
            }
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
        if let Err(error) = save(&dir, journal) {
            // What was put by is for this.
            if !files::is_full(&error) || fs::remove_file(self.reserve()).is_err() {
                return Err(error);
            }
            save(&dir, journal)?;
        }
        if journal.result.is_some() {
            // What stays is in nobody's way.
            let _ = tidy(&dir);
            self.put_by();
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

fn write_down(dir: &Path, journal: &Journal) -> io::Result<()> {
    files::make_directory(dir)?;
    save(dir, journal)
}

/// An order that could not be written down. Nothing is done that is not on disk first, so it is answered with that.
fn unwritten(mut journal: Journal, error: &io::Error) -> Journal {
    let code = match files::is_full(error) {
        true => FailureCode::DiskFull,
        false => FailureCode::AgentError,
    };
    let failure = Failure::new(code, format!("the order could not be written down: {error}"));
    let (facts, at) = (Facts::of_nothing(), journal.taken_at);
    journal.task = Task::Refused(failure.clone());
    journal.result = Some(outcome::result(&journal, &facts, Ending::Failed(failure), at));
    journal
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
        let mut desk = Desk { kept: (1, 2), open_max: 5, ..Desk::open(&dir, now).unwrap() };
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
        assert!(
            desk.take(&order(5), now).is_err(),
            "a server that acknowledges nothing is not obeyed"
        );
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
        // A server that was restored from a backup asks for what it has forgotten, or withdraws it.
        let mut desk = desk;
        desk.take(&order(2), now).unwrap();
        desk.withdraw(ids[3], false, now).unwrap();
        let told: Vec<TaskId> = desk.results().iter().map(|result| result.order_id).collect();
        assert_eq!(told, ids[2..]);
        assert!(
            desk.results().iter().all(|result| result.outcome != wire::agent::Outcome::Withdrawn)
        );
        assert_eq!(Desk::open(&dir, now).unwrap().results().len(), 3);
    }
}
