//! The orders that the agent has received, on disk and in memory.
//!
//! Each order has a directory with `journal.json`, the `log`, the inventory from before the order,
//! the directories of its jobs, and two marker files, `withdrawn` and `acknowledged`. The markers
//! are separate files because the thread that sets them is not the one that writes the journal.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use vocab::{FailureCode, InquiryReply, OrderRecord, TaskId, WithdrawalReply};
use wire::agent::{Order, OrderProgress, OrderResult, Work};

use super::failure::Failure;
use super::files;
use super::journal::{Journal, Lock, Task};
use super::log::Log;
use super::outcome;
use super::outcome::Ending;
use super::past_orders::PastOrders;
use super::recovery;
use super::step::Facts;

/// Number of acknowledged orders whose logs are kept.
const LOGS_KEPT: usize = 20;
/// Number of acknowledged orders whose results are kept, to answer a repeated order.
const RESULTS_KEPT: usize = 500;
/// Maximum number of unacknowledged orders. Beyond that, new orders are not accepted; an honest
/// service acknowledges each result in its next response.
const UNACKNOWLEDGED_MAX: usize = 1_000;
/// Disk space reserved for the journal of an order that fills the disk.
const RESERVE_BYTES: usize = 512 * 1024;
/// Maximum size of the results in one report. One result is always sent, whatever its size.
const REPORT_BYTES: usize = 512 * 1024;

struct OrderEntry {
    journal: Journal,
    acknowledged: bool,
    /// Whether the order is on disk. An order that could not be written has failed with that
    /// reason, and is written once there is space.
    written: bool,
}

/// All orders of this host.
pub(super) struct OrderStore {
    dir: PathBuf,
    entries: BTreeMap<TaskId, OrderEntry>,
    arrivals: u64,
    /// How many acknowledged orders keep their logs, and how many their results.
    retention: (usize, usize),
    unacknowledged_max: usize,
    /// The ids of orders whose results are no longer kept.
    past_orders: PastOrders,
    /// The service's time, as last received.
    server_time: Option<Timestamp>,
    /// How far this host's clock is ahead of the service's.
    clock_ahead: SignedDuration,
}

impl OrderStore {
    /// Reads the orders from disk.
    pub(super) fn open(state_dir: &Path, now: Timestamp) -> io::Result<OrderStore> {
        let dir = state_dir.join("orders");
        files::ensure_directory(&dir)?;
        let (entries, kept) = (BTreeMap::new(), (LOGS_KEPT, RESULTS_KEPT));
        let past = PastOrders::open(&dir)?;
        let mut store = OrderStore {
            dir,
            entries,
            arrivals: 0,
            retention: kept,
            unacknowledged_max: UNACKNOWLEDGED_MAX,
            past_orders: past,
            server_time: None,
            clock_ahead: SignedDuration::ZERO,
        };
        store.reserve_space();
        for entry in fs::read_dir(&store.dir)? {
            let entry = entry?;
            let Ok(id) = entry.file_name().to_string_lossy().parse::<TaskId>() else { continue };
            let path = entry.path();
            let acknowledged = path.join("acknowledged").exists();
            let journal = match files::read_json::<Journal>(&path.join("journal.json")) {
                Ok(Some(journal)) if journal.id == id => journal,
                Ok(Some(_)) => recover(id, &path, "it belongs to another order", now)?,
                // The agent died while it was accepting the order. The service sends it again.
                Ok(None) if recovery::is_untouched(&path) => {
                    fs::remove_dir_all(&path)?;
                    continue;
                }
                Ok(None) => recover(id, &path, "the file is missing", now)?,
                Err(error) => recover(id, &path, &error.to_string(), now)?,
            };
            // Only results are acknowledged.
            let acknowledged = acknowledged && journal.result.is_some();
            store.arrivals = store.arrivals.max(journal.arrival + 1);
            store.entries.insert(id, OrderEntry { journal, acknowledged, written: true });
        }
        Ok(store)
    }

    pub(super) fn directory(&self, id: TaskId) -> PathBuf {
        self.dir.join(id.to_string())
    }

    /// Reserves disk space, if there is enough.
    pub(super) fn reserve_space(&self) {
        let path = self.reserve_path();
        if files::length(&path) < RESERVE_BYTES as u64
            && files::reserve_space(&path, RESERVE_BYTES).is_err()
        {
            let _ = fs::remove_file(path);
        }
    }

    fn reserve_path(&self) -> PathBuf {
        self.dir.with_file_name("reserve")
    }

    /// Stores the service's current time.
    pub(super) fn set_server_time(&mut self, server_time: Timestamp, now: Timestamp) {
        (self.server_time, self.clock_ahead) = (Some(server_time), now.duration_since(server_time));
    }

    /// Accepts an order once. If the order has already ended, its stored result is reported again.
    /// If it cannot be written to disk, it fails with that reason.
    pub(super) fn accept(&mut self, order: &Order, now: Timestamp) -> io::Result<()> {
        if self.entries.contains_key(&order.id) {
            return self.report_again(order.id);
        }
        if let Some(server_time) = self.server_time.filter(|_| self.past_orders.is_full()) {
            self.past_orders.drop_expired(server_time);
        }
        let refused = if self.past_orders.contains(order.id) {
            Some("this order was already executed or withdrawn; its result is no longer kept")
        } else if self.past_orders.is_full() {
            Some("too many unexpired orders; the agent accepts no more until some have expired")
        } else {
            None
        };
        let journal = self.new_journal(order, now);
        self.add(match refused {
            Some(why) => {
                let why = Failure::new(FailureCode::RejectedByAgent, why);
                Journal { task: Task::Refused(why), ..journal }
            }
            None => journal,
        })
    }

    /// The journal of a new order, with its times converted to this host's clock, which may be
    /// years off: what counts is how much time was left when the service sent the order.
    fn new_journal(&self, order: &Order, now: Timestamp) -> Journal {
        let shifted = |at: Timestamp| at.checked_add(self.clock_ahead).unwrap_or(at);
        let (issued_at, expires_at) = (shifted(order.issued_at), shifted(order.expires_at));
        let here = Order { issued_at, expires_at, ..order.clone() };
        let expires_at = Some(order.expires_at);
        Journal { expires_at, ..Journal::new(&here, self.arrivals, now) }
    }

    /// Reports a result again that the service already acknowledged.
    fn report_again(&mut self, id: TaskId) -> io::Result<()> {
        let dir = self.directory(id);
        match self.entries.get_mut(&id) {
            Some(entry) if entry.acknowledged => {
                entry.acknowledged = false;
                remove_if_exists(&dir.join("acknowledged"))
            }
            _ => Ok(()),
        }
    }

    /// Records an order only to report its failure, unless it was accepted before.
    pub(super) fn reject(&mut self, order: &Order, why: Failure, now: Timestamp) -> io::Result<()> {
        if self.entries.contains_key(&order.id) || self.past_orders.contains(order.id) {
            return self.accept(order, now);
        }
        self.add(Journal { task: Task::Refused(why), ..self.new_journal(order, now) })
    }

    fn add(&mut self, journal: Journal) -> io::Result<()> {
        if self.entries.values().filter(|entry| !entry.acknowledged).count()
            >= self.unacknowledged_max
        {
            return Err(io::Error::other("too many unacknowledged orders"));
        }
        self.arrivals += 1;
        let written = create_order(&self.directory(journal.id), &journal);
        let journal = match &written {
            Ok(()) => journal,
            // Nothing will be executed for this order, so its result is correct without a file.
            Err(_) if journal.result.is_some() => journal,
            Err(error) => failed_to_write(journal, error),
        };
        let entry = OrderEntry { journal, acknowledged: false, written: written.is_ok() };
        self.entries.insert(entry.journal.id, entry);
        Ok(())
    }

    /// What is on record about an order. `in_progress`: the worker thread has started on it.
    fn record(&self, id: TaskId, in_progress: bool) -> OrderRecord {
        match self.entries.get(&id).map(|entry| &entry.journal) {
            // The order has ended, and its result is no longer kept.
            None if self.past_orders.contains(id) => OrderRecord::Lost,
            None => OrderRecord::Missing,
            Some(journal) if journal.result.is_some() => OrderRecord::Ended,
            // A rejected order is about to end with its own reason.
            Some(Journal { task: Task::Refused(_), .. }) => OrderRecord::Started,
            Some(journal) if in_progress || journal.started_at.is_some() => OrderRecord::Started,
            Some(_) => OrderRecord::NotStarted,
        }
    }

    /// Handles the withdrawal of an order. A running order is only marked: its next step decides
    /// whether it can still be dropped.
    pub(super) fn withdraw(
        &mut self,
        id: TaskId,
        in_progress: bool,
        now: Timestamp,
    ) -> io::Result<()> {
        match self.record(id, in_progress).on_withdrawal() {
            WithdrawalReply::Result => self.report_again(id),
            WithdrawalReply::Undecided => files::write(&self.directory(id).join("withdrawn"), b""),
            WithdrawalReply::Withdrawn => self.end_unstarted(id, Ending::Withdrawn, now),
            WithdrawalReply::Lost => self.end_unstarted(id, Ending::Lost, now),
        }
    }

    /// Handles an inquiry about an order that the server lists as in progress, but that no sync
    /// mentioned. Returns whether there was no record of it.
    pub(super) fn answer_inquiry(&mut self, id: TaskId, now: Timestamp) -> io::Result<bool> {
        match self.record(id, false).on_inquiry() {
            InquiryReply::Result => self.report_again(id).map(|()| false),
            InquiryReply::InProgress => Ok(false),
            InquiryReply::Lost => self.end_unstarted(id, Ending::Lost, now).map(|()| true),
        }
    }

    /// Records the end of an order that has not started, or of which there is no record. From then
    /// on it is never executed.
    fn end_unstarted(&mut self, id: TaskId, ending: Ending, now: Timestamp) -> io::Result<()> {
        let known = self.entries.get(&id).map(|entry| entry.journal.clone());
        let mut journal = known.clone().unwrap_or_else(|| placeholder(id, self.arrivals, now));
        let result = outcome::build_result(&journal, &Facts::unknown(), ending, now);
        journal.result = Some(result);
        match known {
            Some(_) => self.save(&journal),
            None => self.add(journal),
        }
    }

    /// Marks results as received by the service, and deletes the oldest of them.
    pub(super) fn acknowledge(&mut self, ids: &[TaskId]) -> io::Result<()> {
        for id in ids {
            let dir = self.directory(*id);
            if let Some(entry) = self.entries.get_mut(id)
                && entry.journal.result.is_some()
                && !entry.acknowledged
            {
                entry.acknowledged = true;
                entry.written = entry.written || create_order(&dir, &entry.journal).is_ok();
                // Without the marker, the result is sent once more after a restart, which is
                // harmless.
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
        for (_, id) in done.iter().skip(self.retention.0) {
            remove_if_exists(&self.directory(*id).join("log"))?;
        }
        let oldest: Vec<TaskId> = done.iter().skip(self.retention.1).map(|(_, id)| *id).collect();
        let forgettable = self.store_past_ids(&oldest)?;
        for id in forgettable {
            let entry = self.entries.remove(&id);
            if entry.is_some_and(|entry| entry.written) {
                fs::remove_dir_all(self.directory(id))?;
            }
        }
        Ok(())
    }

    /// Stores the ids of orders that are about to be deleted, so that none is executed again while
    /// it is valid. Returns the orders that may be deleted: rejected ones, because nothing was
    /// executed for them, and as many of the others as there is room for.
    fn store_past_ids(&mut self, ids: &[TaskId]) -> io::Result<Vec<TaskId>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut past = self.past_orders.clone();
        if let Some(server_time) = self.server_time {
            past.drop_expired(server_time);
        }
        let mut forgettable = Vec::new();
        for id in ids {
            let Some(entry) = self.entries.get(id) else { continue };
            // An order of which only the id is known may have been executed before.
            let is_whole = entry.journal.expires_at.is_some();
            let refused = is_whole && matches!(entry.journal.task, Task::Refused(_));
            if refused || past.insert(&entry.journal) {
                forgettable.push(*id);
            }
        }
        past.save()?;
        self.past_orders = past;
        Ok(forgettable)
    }

    /// The order to work on: the one that has started, or else the oldest.
    pub(super) fn current_order(&self) -> Option<Journal> {
        self.entries
            .values()
            .map(|entry| &entry.journal)
            .filter(|journal| journal.result.is_none())
            .min_by_key(|journal| (journal.started_at.is_none(), journal.arrival))
            .cloned()
    }

    /// Writes a journal to disk, and then updates it in memory.
    pub(super) fn save(&mut self, journal: &Journal) -> io::Result<()> {
        let dir = self.directory(journal.id);
        if let Err(error) = save_journal(&dir, journal) {
            // Use the reserved space.
            if !files::is_disk_full(&error) || fs::remove_file(self.reserve_path()).is_err() {
                return Err(error);
            }
            save_journal(&dir, journal)?;
        }
        if journal.result.is_some() {
            // Leftover files are harmless.
            let _ = remove_job_files(&dir);
            self.reserve_space();
        }
        if let Some(entry) = self.entries.get_mut(&journal.id) {
            entry.journal = journal.clone();
        }
        Ok(())
    }

    /// The results that the service has not acknowledged, oldest first.
    pub(super) fn results(&self) -> Vec<OrderResult> {
        let mut ended: Vec<&OrderEntry> = self
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

    /// The progress of the unfinished orders, in the order of their arrival.
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

    /// Every existing log, its length, and whether it is complete.
    pub(super) fn logs(&self) -> Vec<(TaskId, u64, bool)> {
        let mut entries: Vec<&OrderEntry> = self.entries.values().collect();
        entries.sort_unstable_by_key(|entry| entry.journal.arrival);
        let log = |entry: &OrderEntry| {
            let journal = &entry.journal;
            let complete = journal.result.is_some();
            let length = Log::in_directory(&self.directory(journal.id)).length();
            (journal.id, length, complete)
        };
        entries.into_iter().map(log).filter(|(_, length, _)| *length > 0).collect()
    }
}

fn create_order(dir: &Path, journal: &Journal) -> io::Result<()> {
    files::create_directory(dir)?;
    save_journal(dir, journal)
}

/// Nothing is executed that is not on disk first, so an order that cannot be written fails with
/// that reason.
fn failed_to_write(mut journal: Journal, error: &io::Error) -> Journal {
    let code = match files::is_disk_full(error) {
        true => FailureCode::DiskFull,
        false => FailureCode::AgentError,
    };
    let failure = Failure::new(code, format!("cannot write the order to disk: {error}"));
    let (facts, at) = (Facts::unknown(), journal.taken_at);
    journal.task = Task::Refused(failure.clone());
    journal.result = Some(outcome::build_result(&journal, &facts, Ending::Failed(failure), at));
    journal
}

fn save_journal(dir: &Path, journal: &Journal) -> io::Result<()> {
    files::write_json(&dir.join("journal.json"), journal)
}

/// Removes files that an ended order no longer needs: its result is stored, so nothing reads them
/// again.
fn remove_job_files(dir: &Path) -> io::Result<()> {
    remove_if_exists(&dir.join("before.json"))?;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

fn remove_if_exists(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => files::sync_directory_of(path),
    }
}

/// The journal of an order of which only the id is known.
fn placeholder(id: TaskId, arrival: u64, now: Timestamp) -> Journal {
    let unknown = Order {
        id,
        server_id: vocab::ServerId::new(now, 0),
        issued_at: now,
        expires_at: now,
        work: Work::Unknown { name: "".into() },
    };
    Journal::new(&unknown, arrival, now)
}

/// Writes a new journal for an order whose own cannot be read, so that its end is reported under
/// its id.
fn recover(id: TaskId, dir: &Path, problem: &str, now: Timestamp) -> io::Result<Journal> {
    if !fs::metadata(dir).is_ok_and(|found| found.is_dir()) {
        files::move_aside(dir)?;
        files::create_directory(dir)?;
    }
    files::move_aside(&dir.join("journal.json"))?;
    let journal = recovery::recovered_journal(placeholder(id, 0, now), dir, problem, now);
    save_journal(dir, &journal)?;
    Ok(journal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_kept_until_acknowledged_and_pruned_later() {
        let now: Timestamp = "2026-11-15T04:00:00Z".parse().unwrap();
        let dir = super::super::tests::directory("desk");
        let mut store = OrderStore {
            retention: (1, 2),
            unacknowledged_max: 5,
            ..OrderStore::open(&dir, now).unwrap()
        };
        let order = |number| Order {
            id: TaskId::new(now, number),
            server_id: vocab::ServerId::new(now, 1),
            issued_at: now,
            expires_at: now,
            work: Work::Scan,
        };
        let ids: Vec<TaskId> = (0..5).map(|number| order(number).id).collect();
        for number in 0..5 {
            store.accept(&order(number), now).unwrap();
            let mut journal = store.current_order().unwrap();
            let ending = Ending::Done;
            journal.result = Some(outcome::build_result(&journal, &Facts::unknown(), ending, now));
            Log::in_directory(&store.directory(journal.id)).write_line("done").unwrap();
            store.save(&journal).unwrap();
        }
        assert_eq!(store.results().len(), 5);
        assert!(
            store.accept(&order(5), now).is_err(),
            "no more orders from a service that acknowledges nothing"
        );
        store.acknowledge(&ids[..4]).unwrap();
        let left: Vec<TaskId> = store.results().iter().map(|result| result.order_id).collect();
        assert_eq!(left, ids[4..]);
        let logs: Vec<TaskId> = store.logs().iter().map(|(id, ..)| *id).collect();
        assert_eq!(logs, ids[3..]);
        // The state on disk is the same.
        let store = OrderStore::open(&dir, now).unwrap();
        let kept: Vec<TaskId> = store.entries.keys().copied().collect();
        assert_eq!(kept, ids[2..]);
        assert_eq!(store.results().len(), 1);
        // A service restored from a backup requests results that it has lost, or withdraws their
        // orders.
        let mut store = store;
        store.accept(&order(2), now).unwrap();
        store.withdraw(ids[3], false, now).unwrap();
        let reported: Vec<TaskId> = store.results().iter().map(|result| result.order_id).collect();
        assert_eq!(reported, ids[2..]);
        assert!(
            store.results().iter().all(|result| result.outcome != wire::agent::Outcome::Withdrawn)
        );
        assert_eq!(OrderStore::open(&dir, now).unwrap().results().len(), 3);
    }

    fn new_order(now: Timestamp, number: u128, valid_for: SignedDuration) -> Order {
        Order {
            id: TaskId::new(now, number),
            server_id: vocab::ServerId::new(now, 1),
            issued_at: now,
            expires_at: now + valid_for,
            work: Work::Scan,
        }
    }

    /// Ends the current order and acknowledges its result. Returns whether the order was executed.
    fn finish(orders: &mut OrderStore, now: Timestamp) -> bool {
        let mut journal = orders.current_order().unwrap();
        let refused = matches!(journal.task, Task::Refused(_));
        let facts = Facts::unknown();
        journal.result = Some(outcome::build_result(&journal, &facts, Ending::Done, now));
        orders.save(&journal).unwrap();
        orders.acknowledge(&[journal.id]).unwrap();
        !refused
    }

    #[test]
    fn valid_order_is_never_executed_twice() {
        let now: Timestamp = "2026-11-15T04:00:00Z".parse().unwrap();
        let dir = super::super::tests::directory("desk-replay");
        let hour = SignedDuration::from_hours(1);
        let open = || {
            let mut store =
                OrderStore { retention: (1, 2), ..OrderStore::open(&dir, now).unwrap() };
            store.set_server_time(now, now);
            store
        };
        let mut store = open();
        for number in 0..20 {
            store.accept(&new_order(now, number, hour), now).unwrap();
            assert!(finish(&mut store, now), "{number} is new");
        }
        assert_eq!(store.entries.len(), 2);
        // Again, in the same process and after a restart, and also as an expired order.
        store.accept(&new_order(now, 0, hour), now).unwrap();
        assert!(!finish(&mut store, now));
        let mut store = open();
        store.accept(&new_order(now, 1, hour), now).unwrap();
        assert!(!finish(&mut store, now));
        let late = Failure::new(FailureCode::OrderExpired, "late");
        store.reject(&new_order(now, 2, hour), late, now).unwrap();
        assert!(!finish(&mut store, now));
        // A service clock that was a day ahead for a moment does not delete any ids.
        store.set_server_time(now + hour * 24, now);
        for number in 20..25 {
            store.accept(&new_order(now + hour * 24, number, hour), now).unwrap();
            finish(&mut store, now);
        }
        store.set_server_time(now, now);
        store.accept(&new_order(now, 3, hour), now).unwrap();
        assert!(!finish(&mut store, now));
        // Long after the orders expired, their ids are deleted.
        store.set_server_time(now + hour * 24 * 40, now);
        for number in 30..34 {
            store.accept(&new_order(now + hour * 24 * 40, number, hour), now).unwrap();
            finish(&mut store, now);
        }
        assert!(!store.past_orders.contains(new_order(now, 3, hour).id));
        assert!(store.past_orders.contains(new_order(now + hour * 24 * 40, 30, hour).id));
    }

    #[test]
    fn too_many_valid_orders_are_rejected_not_forgotten() {
        let now: Timestamp = "2026-11-15T04:00:00Z".parse().unwrap();
        let dir = super::super::tests::directory("desk-full");
        let hour = SignedDuration::from_hours(1);
        let mut store = OrderStore { retention: (0, 0), ..OrderStore::open(&dir, now).unwrap() };
        store.past_orders.ids_max = 3;
        store.set_server_time(now, now);
        let taken: Vec<bool> = (0..10)
            .map(|number| {
                store.accept(&new_order(now, number, hour), now).unwrap();
                finish(&mut store, now)
            })
            .collect();
        assert_eq!(taken.iter().filter(|taken| **taken).count(), 3);
        assert!(store.entries.is_empty(), "rejected orders leave nothing behind");
        // Some time after their expiry, the ids are forgotten and new orders are accepted again.
        let later = now + hour * 24 * 40;
        store.set_server_time(later, now);
        store.accept(&new_order(later, 20, hour), now).unwrap();
        assert!(finish(&mut store, now));
    }

    #[test]
    fn remaining_validity_is_the_same_as_on_the_server() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        // This host's clock is in 2016.
        let here = at("2016-11-15T04:30:00Z");
        let mut store =
            OrderStore::open(&super::super::tests::directory("desk-clock"), here).unwrap();
        store.set_server_time(at("2026-11-15T04:10:00Z"), here);
        let order = new_order(at("2026-11-15T04:00:00Z"), 1, SignedDuration::from_hours(1));
        store.accept(&order, here).unwrap();
        let journal = store.current_order().unwrap();
        assert_eq!(journal.start_by, at("2016-11-15T05:20:00Z"));
        assert_eq!(journal.expires_at, Some(at("2026-11-15T05:00:00Z")));
    }
}
