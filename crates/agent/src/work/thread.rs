//! The worker thread and the state it shares with its callers: load, plan, save, execute.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use vocab::{FailureCode, Line, Stage, TaskId};
use wire::agent::{Order, OrderProgress};
use wire::v1::Activity;

use super::desk::Desk;
use super::failure::Failure;
use super::journal::{Ended, Journal, Lesson, Task};
use super::log::Log;
use super::perform;
use super::perform::Hands;
use super::planner;
use super::step::{PAUSE_SECONDS, Step};
use super::supervise::Job;
use super::{Report, ScanReport, Setup, files, job, listing_path, memory_path};

/// How long the agent waits before a reboot for the server to receive the report.
const TELL_PATIENCE: Duration = Duration::from_secs(10);

/// The state shared by the thread and its callers.
pub(super) struct Shared {
    pub(super) setup: Setup,
    state: Mutex<State>,
    /// Notified when there is work to do, or when the thread must stop.
    woken: Condvar,
}

struct State {
    desk: Desk,
    scan: Option<ScanReport>,
    wish: Wish,
    /// Whether a scan without an order is running.
    scanning: bool,
    /// The order that the thread has started on.
    in_work: Option<TaskId>,
    /// A status message for the current order.
    words: Option<(TaskId, Line)>,
    /// The orders for which the server has received the stage `rebooting`.
    told_of_reboot: Vec<TaskId>,
    /// The current order was withdrawn: a pause ends early.
    nudged: bool,
    stopping: bool,
}

/// The requested scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wish {
    Nothing,
    /// Without a refresh: the package lists are fresh.
    Look,
    /// With a refresh of the package lists.
    Scan,
}

impl Shared {
    pub(super) fn open(setup: Setup) -> io::Result<Shared> {
        files::own_directory(&setup.state_dir.join("scan"))?;
        let desk = Desk::open(&setup.state_dir, (setup.clock)())?;
        // An unreadable report only means that there is no scan yet.
        let scan = files::read_json(&setup.state_dir.join("scan/report.json")).unwrap_or(None);
        if let Ok(memory) = fs::read(memory_path(&setup.state_dir)) {
            setup.backend.recall(&memory);
        }
        let wish = Wish::Nothing;
        let state = State {
            desk,
            scan,
            wish,
            scanning: false,
            in_work: None,
            words: None,
            told_of_reboot: Vec::new(),
            nudged: false,
            stopping: false,
        };
        Ok(Shared { setup, state: Mutex::new(state), woken: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Values in the state are replaced as a whole, so the state is consistent even after a
        // panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_server_time(&self, server_time: Timestamp) {
        let now = (self.setup.clock)();
        self.state().desk.set_server_time(server_time, now);
    }

    pub(super) fn take(&self, order: &Order) {
        let now = (self.setup.clock)();
        let _ = self.state().desk.take(order, now);
        self.woken.notify_all();
        (self.setup.bell)();
    }

    pub(super) fn refuse(&self, order: &Order, failure: Failure) {
        let now = (self.setup.clock)();
        let _ = self.state().desk.refuse(order, failure, now);
        self.woken.notify_all();
        (self.setup.bell)();
    }

    pub(super) fn withdraw(&self, id: TaskId) {
        let mut state = self.state();
        let in_work = state.in_work == Some(id);
        let _ = state.desk.withdraw(id, in_work, (self.setup.clock)());
        state.nudged = in_work;
        drop(state);
        self.woken.notify_all();
        (self.setup.bell)();
    }

    pub(super) fn inquire(&self, ids: &[TaskId]) {
        let now = (self.setup.clock)();
        let mut state = self.state();
        for id in ids {
            if let Ok(true) = state.desk.inquire(*id, now) {
                // The packages show what the lost order changed.
                state.wish = state.wish.max(Wish::Look);
            }
        }
        drop(state);
        self.woken.notify_all();
        (self.setup.bell)();
    }

    pub(super) fn acknowledge(&self, ids: &[TaskId]) {
        let _ = self.state().desk.acknowledge(ids);
    }

    pub(super) fn told(&self, progress: &[OrderProgress]) {
        let reboots = progress.iter().filter(|order| order.stage == Some(Stage::Rebooting));
        self.state().told_of_reboot = reboots.map(|order| order.order_id).collect();
        self.woken.notify_all();
    }

    /// Waits until the server knows of the reboot, but not for long: it may be unreachable.
    fn tell_of_reboot(&self, id: TaskId) {
        let untold = |state: &mut State| !state.stopping && !state.told_of_reboot.contains(&id);
        drop(self.woken.wait_timeout_while(self.state(), TELL_PATIENCE, untold));
    }

    pub(super) fn wish_scan(&self) {
        self.state().wish = Wish::Scan;
        self.woken.notify_all();
    }

    pub(super) fn wish_look(&self) {
        let mut state = self.state();
        state.wish = state.wish.max(Wish::Look);
        drop(state);
        self.woken.notify_all();
    }

    pub(super) fn stop(&self) {
        self.state().stopping = true;
        self.woken.notify_all();
    }

    pub(super) fn log_after(&self, id: TaskId, offset: u64, most: usize) -> Vec<u8> {
        let dir = self.state().desk.directory(id);
        Log::in_directory(&dir).after(offset, most)
    }

    pub(super) fn open_logs(&self) -> Vec<(TaskId, u64, bool)> {
        self.state().desk.logs()
    }

    pub(super) fn report(&self) -> Report {
        let state = self.state();
        let mut progress = state.desk.progress();
        for entry in &mut progress {
            if let Some((id, words)) = &state.words
                && *id == entry.order_id
            {
                entry.message = Some(words.clone());
            }
        }
        let activity = match state.desk.at_hand() {
            Some(journal) => activity(&journal),
            None if state.scanning => Activity::Scanning,
            None => Activity::Idle,
        };
        Report { activity, results: state.desk.results(), progress, scan: state.scan.clone() }
    }

    /// The thread: one order after another, and scans in between.
    pub(super) fn work(&self) {
        loop {
            let (order, wish) = {
                let mut state = self.state();
                loop {
                    if state.stopping {
                        return;
                    }
                    let order = state.desk.at_hand();
                    state.in_work = order.as_ref().map(|journal| journal.id);
                    if order.is_some() || state.wish != Wish::Nothing {
                        break (order, state.wish);
                    }
                    state = self.woken.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            match order {
                Some(journal) => self.carry_out(journal),
                None => self.scan(wish),
            }
        }
    }

    /// Executes the steps of an order until it has a result or the agent stops.
    fn carry_out(&self, mut journal: Journal) {
        let id = journal.id;
        let look_around = |words: Option<Line>, grew: bool| {
            let mut state = self.state();
            let words = words.map(|words| (id, words));
            let new = grew || state.words != words;
            state.words = words;
            let stopping = state.stopping;
            drop(state);
            if new {
                (self.setup.bell)();
            }
            !stopping
        };
        let publish = |scan: ScanReport| self.publish(scan);
        let dir = self.state().desk.directory(id);
        let tell = || self.tell_of_reboot(id);
        let setup = &self.setup;
        let hands = Hands {
            setup,
            dir,
            look_around: &look_around,
            publish: &publish,
            tell_of_reboot: &tell,
        };
        while journal.result.is_none() && !self.state().stopping {
            let facts = hands.facts(&journal);
            let now = (self.setup.clock)();
            let step = planner::next(&journal, &facts, now);
            let stage = journal.stage;
            match &step {
                Step::End(result) => journal.result = Some((**result).clone()),
                step => journal.begin(step, &facts, now),
            }
            if !self.save(&journal) {
                continue;
            }
            if journal.stage != stage || journal.result.is_some() {
                (self.setup.bell)();
            }
            match &step {
                Step::End(_) => {}
                Step::Pause => {
                    (self.setup.bell)();
                    self.pause(PAUSE_SECONDS);
                    journal.learn(Lesson::Paused);
                }
                step => match take(&hands, &journal, step) {
                    Some(lesson) => journal.learn(lesson),
                    None => return,
                },
            }
        }
        self.look_again(&journal);
    }

    /// Writes the journal to disk. Nothing is executed without that: it is retried until it works,
    /// and the problem is reported.
    fn save(&self, journal: &Journal) -> bool {
        let saved = self.state().desk.save(journal);
        let Err(error) = saved else { return true };
        let words = format!("cannot write to the agent's state directory: {error}");
        self.state().words = Some((journal.id, words.into()));
        (self.setup.bell)();
        self.pause(PAUSE_SECONDS);
        false
    }

    /// Requests a scan after an order that may have changed something, so that the server sees the
    /// result.
    fn look_again(&self, journal: &Journal) {
        let mut state = self.state();
        state.words = None;
        let changed = matches!(
            journal.task,
            Task::Install(_) | Task::RestartServices | Task::Reboot(_) | Task::Lost { .. }
        ) && journal.started_at.is_some();
        if changed && journal.result.is_some() {
            state.wish = state.wish.max(Wish::Look);
        }
    }

    /// Waits for some seconds, unless the wait is interrupted.
    fn pause(&self, seconds: u64) {
        let idle = |state: &mut State| !state.stopping && !std::mem::take(&mut state.nudged);
        drop(self.woken.wait_timeout_while(self.state(), Duration::from_secs(seconds), idle));
    }

    /// A scan without an order.
    fn scan(&self, wish: Wish) {
        {
            let mut state = self.state();
            (state.scanning, state.wish) = (true, Wish::Nothing);
        }
        (self.setup.bell)();
        if wish == Wish::Scan && !self.refresh() {
            return;
        }
        // If the scan fails, the last one stays until the next attempt.
        let scan = aside(|| catch_unwind(AssertUnwindSafe(|| perform::scan(&self.setup))));
        self.state().scanning = false;
        if let Some(Ok(Ok(scan))) = scan {
            self.publish(scan);
        }
        (self.setup.bell)();
    }

    /// Refreshes the package lists; returns false if the agent stops. Old lists are better than
    /// none, so a failed refresh does not stop the scan.
    fn refresh(&self) -> bool {
        let dir = self.setup.state_dir.join("scan/refresh");
        match job::state(&dir) {
            Ok(job::State::Running | job::State::Orphaned) => {}
            _ => drop(fs::remove_dir_all(&dir)),
        }
        let commands = self.setup.backend.refresh();
        if commands.is_empty() {
            return true;
        }
        let job = || Job {
            commands: commands.clone(),
            keep_going: false,
            seconds_max: None,
            log_from: 0,
        };
        let end = job::run(&self.setup.program, &dir, job, || !self.state().stopping);
        !matches!(end, Ok(job::End::Stopped))
    }

    /// Makes this the last scan, and removes the listings of older ones.
    fn publish(&self, scan: ScanReport) {
        let dir = self.setup.state_dir.join("scan");
        let _ = files::write_json(&dir.join("report.json"), &scan);
        let keep = [scan.installed, scan.pending].map(|d| listing_path(&self.setup.state_dir, d));
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|end| end == "jsonl") && !keep.contains(&path) {
                let _ = fs::remove_file(path);
            }
        }
        self.state().scan = Some(scan);
    }
}

/// Runs background work at a lower priority, which its child processes inherit. Not the lowest
/// priority, because an order may have to wait for it.
fn aside<T: Send>(look: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let _ = rustix::process::nice(5);
            look()
        });
        thread.join().ok()
    })
}

/// Executes a step. A panic, such as a bug triggered by unexpected package manager output, must
/// fail the order and not the agent. Commands that ran are still judged by inspecting the system.
fn take(hands: &Hands<'_>, journal: &Journal, step: &Step) -> Option<Lesson> {
    catch_unwind(AssertUnwindSafe(|| hands.take(journal, step))).unwrap_or_else(|_| {
        let failure = Failure::new(
            FailureCode::AgentError,
            format!("internal error in step {step:?}; see the agent's log"),
        );
        Some(match step {
            Step::Run(_) => Lesson::Ended(Ended::Badly { exit: None, failure }, Vec::new()),
            _ => Lesson::NoAnswer(failure),
        })
    })
}

fn activity(journal: &Journal) -> Activity {
    match (&journal.task, journal.stage) {
        (Task::Scan, _) => Activity::Scanning,
        (Task::Reboot(_), Stage::Rebooting) | (_, Stage::Rebooting) => Activity::Rebooting,
        (_, Stage::Dispatched) => Activity::Idle,
        _ => Activity::Patching,
    }
}
