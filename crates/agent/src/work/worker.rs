//! The worker thread and the state it shares with its callers: load, plan, save, execute.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use vocab::{FailureCode, Line, Stage, TaskId};
use wire::agent::{HealthReport, Order, OrderProgress};
use wire::v1::Activity;

use crate::backend::missing_program;
use crate::output::note;

use super::executor;
use super::executor::Executor;
use super::failure::Failure;
use super::health::{HealthWatch, WatchStep};
use super::journal::{ActionResult, Journal, StepResult, Task};
use super::log::Log;
use super::order_store::OrderStore;
use super::planner;
use super::step::{PAUSE_SECONDS, Step};
use super::supervise::Job;
use super::{Report, ScanReport, WorkerConfig, files, hooks, job, listing_path, query_cache_path};

/// How long the agent waits before a reboot for the service to receive the report.
const REBOOT_REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// The state shared by the thread and its callers.
pub(super) struct SharedState {
    pub(super) config: WorkerConfig,
    state: Mutex<WorkerState>,
    /// Notified when there is work to do, or when the thread must stop.
    changed: Condvar,
}

struct WorkerState {
    orders: OrderStore,
    scan: Option<ScanReport>,
    scan_request: ScanRequest,
    /// Whether a scan without an order is running.
    scanning: bool,
    watch: HealthWatch,
    /// The measurement of the watch that is due.
    watch_step: Option<WatchStep>,
    /// The health to report.
    health: Option<HealthReport>,
    /// The order that the thread has started on.
    current_order: Option<TaskId>,
    /// A status message for the current order.
    status_message: Option<(TaskId, Line)>,
    /// The orders for which the service has received the stage `rebooting`.
    reboot_reported: Vec<TaskId>,
    /// The current order was withdrawn: a pause ends early.
    pause_interrupted: bool,
    stopping: bool,
}

/// The requested scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ScanRequest {
    NoScan,
    /// Without a refresh: the package lists are fresh.
    WithoutRefresh,
    /// With a refresh of the package lists.
    WithRefresh,
}

impl SharedState {
    pub(super) fn open(worker_config: WorkerConfig) -> io::Result<SharedState> {
        files::ensure_directory(&worker_config.state_dir.join("scan"))?;
        let store = OrderStore::open(&worker_config.state_dir, (worker_config.clock)())?;
        // An unreadable report only means that there is no scan yet.
        let scan =
            files::read_json(&worker_config.state_dir.join("scan/report.json")).unwrap_or(None);
        // Without the file there is no watch; an unreadable one is measured again.
        let watch = files::read_json(&watch_path(&worker_config.state_dir)).unwrap_or(None);
        let watch = watch.unwrap_or_default();
        if let Ok(memory) = fs::read(query_cache_path(&worker_config.state_dir)) {
            worker_config.backend.load_cache(&memory);
        }
        let request = ScanRequest::NoScan;
        let state = WorkerState {
            orders: store,
            scan,
            scan_request: request,
            scanning: false,
            watch,
            watch_step: None,
            health: None,
            current_order: None,
            status_message: None,
            reboot_reported: Vec::new(),
            pause_interrupted: false,
            stopping: false,
        };
        Ok(SharedState { config: worker_config, state: Mutex::new(state), changed: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, WorkerState> {
        // Values in the state are replaced as a whole, so the state is consistent even after a
        // panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_server_time(&self, server_time: Timestamp) {
        let now = (self.config.clock)();
        self.state().orders.set_server_time(server_time, now);
    }

    pub(super) fn accept(&self, order: &Order) {
        let now = (self.config.clock)();
        let _ = self.state().orders.accept(order, now);
        self.changed.notify_all();
        (self.config.notify)();
    }

    pub(super) fn reject(&self, order: &Order, failure: Failure) {
        let now = (self.config.clock)();
        let _ = self.state().orders.reject(order, failure, now);
        self.changed.notify_all();
        (self.config.notify)();
    }

    pub(super) fn withdraw(&self, id: TaskId) {
        let mut state = self.state();
        let in_progress = state.current_order == Some(id);
        let _ = state.orders.withdraw(id, in_progress, (self.config.clock)());
        state.pause_interrupted = in_progress;
        drop(state);
        self.changed.notify_all();
        (self.config.notify)();
    }

    pub(super) fn answer_inquiries(&self, ids: &[TaskId]) {
        let now = (self.config.clock)();
        let mut state = self.state();
        for id in ids {
            if let Ok(true) = state.orders.answer_inquiry(*id, now) {
                // The packages show what the lost order changed.
                state.scan_request = state.scan_request.max(ScanRequest::WithoutRefresh);
            }
        }
        drop(state);
        self.changed.notify_all();
        (self.config.notify)();
    }

    pub(super) fn acknowledge(&self, ids: &[TaskId]) {
        let _ = self.state().orders.acknowledge(ids);
    }

    pub(super) fn progress_delivered(&self, progress: &[OrderProgress]) {
        let reboots = progress.iter().filter(|order| order.stage == Some(Stage::Rebooting));
        self.state().reboot_reported = reboots.map(|order| order.order_id).collect();
        self.changed.notify_all();
    }

    /// Waits until the service knows of the reboot, but not for long: it may be unreachable.
    fn wait_for_reboot_report(&self, id: TaskId) {
        let untold =
            |state: &mut WorkerState| !state.stopping && !state.reboot_reported.contains(&id);
        drop(self.changed.wait_timeout_while(self.state(), REBOOT_REPORT_TIMEOUT, untold));
    }

    pub(super) fn request_scan(&self) {
        self.state().scan_request = ScanRequest::WithRefresh;
        self.changed.notify_all();
    }

    pub(super) fn request_scan_without_refresh(&self) {
        let mut state = self.state();
        state.scan_request = state.scan_request.max(ScanRequest::WithoutRefresh);
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn stop(&self) {
        self.state().stopping = true;
        self.changed.notify_all();
    }

    pub(super) fn read_log(&self, id: TaskId, offset: u64, max: usize) -> Vec<u8> {
        let dir = self.state().orders.directory(id);
        Log::in_directory(&dir).read_from(offset, max)
    }

    pub(super) fn open_logs(&self) -> Vec<(TaskId, u64, bool)> {
        self.state().orders.logs()
    }

    pub(super) fn report(&self) -> Report {
        let state = self.state();
        let mut progress = state.orders.progress();
        for entry in &mut progress {
            if let Some((id, words)) = &state.status_message
                && *id == entry.order_id
            {
                entry.message = Some(words.clone());
            }
        }
        let activity = match state.orders.current_order() {
            Some(journal) => activity(&journal),
            None if state.scanning => Activity::Scanning,
            None => Activity::Idle,
        };
        Report {
            activity,
            results: state.orders.results(),
            progress,
            scan: state.scan.clone(),
            health: state.health.clone(),
        }
    }

    /// The thread: one order after another, and scans in between.
    pub(super) fn run(&self) {
        loop {
            let (order, wish, watch_step) = {
                let mut state = self.state();
                loop {
                    if state.stopping {
                        return;
                    }
                    let order = state.orders.current_order();
                    state.current_order = order.as_ref().map(|journal| journal.id);
                    let due = order.is_some() || state.watch_step.is_some();
                    if due || state.scan_request != ScanRequest::NoScan {
                        break (order, state.scan_request, state.watch_step);
                    }
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            match order {
                Some(journal) => self.execute_order(journal),
                None => match watch_step {
                    Some(step) => self.measure_watch(step),
                    None => self.scan(wish),
                },
            }
        }
    }

    /// Executes the steps of an order until it has a result or the agent stops.
    fn execute_order(&self, mut journal: Journal) {
        let id = journal.id;
        let look_around = |words: Option<Line>, grew: bool| {
            let mut state = self.state();
            let words = words.map(|words| (id, words));
            let new = grew || state.status_message != words;
            state.status_message = words;
            let stopping = state.stopping;
            drop(state);
            if new {
                (self.config.notify)();
            }
            !stopping
        };
        let publish = |scan: ScanReport| self.publish(scan);
        let dir = self.state().orders.directory(id);
        let tell = || self.wait_for_reboot_report(id);
        let setup = &self.config;
        let executor = Executor {
            config: setup,
            dir,
            on_poll: &look_around,
            publish: &publish,
            before_reboot: &tell,
        };
        while journal.result.is_none() && !self.state().stopping {
            let facts = executor.facts(&journal);
            let now = (self.config.clock)();
            let step = planner::next_step(&journal, &facts, now);
            let stage = journal.stage;
            match &step {
                Step::End(result) => journal.result = Some((**result).clone()),
                step => journal.begin(step, &facts, now),
            }
            if !self.save(&journal) {
                continue;
            }
            if journal.stage != stage || journal.result.is_some() {
                (self.config.notify)();
            }
            match &step {
                Step::End(_) => {}
                Step::Pause => {
                    (self.config.notify)();
                    self.pause(PAUSE_SECONDS);
                    journal.record(StepResult::Paused);
                }
                step => match execute_step(&executor, &journal, step) {
                    Some(step_result) => journal.record(step_result),
                    None => return,
                },
            }
        }
        self.keep_baseline(&journal);
        self.request_scan_after(&journal);
    }

    /// Keeps the health before an order, for a watch that follows.
    fn keep_baseline(&self, journal: &Journal) {
        let (Some(baseline), Some(_)) = (&journal.known.baseline, &journal.result) else { return };
        let report = journal.known.health.as_ref().map(|health| health.report.clone());
        let mut state = self.state();
        state.watch.set_order((**baseline).clone(), report, (self.config.clock)());
        self.save_watch(&state.watch);
    }

    /// Losing the file only means that a watch is measured from its beginning.
    fn save_watch(&self, watch: &HealthWatch) {
        let _ = files::write_json(&watch_path(&self.config.state_dir), watch);
    }

    pub(super) fn watch_health(&self, until: Option<Timestamp>, server_time: Timestamp) {
        let mut state = self.state();
        if until.is_none() && state.watch.until.is_none() {
            return;
        }
        let before = state.watch.clone();
        let step = state.watch.apply(until, server_time, (self.config.clock)());
        if state.watch != before {
            self.save_watch(&state.watch);
        }
        // `None` is less than any step: an end that is due stays due.
        state.watch_step = match step {
            None => state.watch_step.filter(|step| *step == WatchStep::MeasureAtEnd),
            step => state.watch_step.max(step),
        };
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn health_delivered(&self, report: &HealthReport) {
        self.state().health.take_if(|pending| pending == report);
    }

    /// A measurement of a watch, while no order runs.
    fn measure_watch(&self, step: WatchStep) {
        let watch = {
            let mut state = self.state();
            state.watch_step = None;
            state.watch.clone()
        };
        let (config, baseline) = (&self.config, watch.baseline.as_deref());
        let measured = catch_unwind(AssertUnwindSafe(|| {
            let mut snapshot = config.host.measure_health((config.clock)(), baseline);
            if step == WatchStep::MeasureAtEnd && watch.runs_hooks() {
                let environment = [
                    ("FLEETMEND_HOOK", "health".to_owned()),
                    ("FLEETMEND_HEALTH", "watch".to_owned()),
                    ("FLEETMEND_ROOT", config.root.dir().to_string_lossy().into_owned()),
                ];
                let goes_on = || !self.state().stopping;
                let hooks = &config.health_hooks;
                snapshot.hooks = hooks::run_health_hooks(hooks, &environment, &goes_on, &note)?;
            }
            Some(snapshot)
        }));
        let mut state = self.state();
        match measured {
            Ok(Some(snapshot)) => {
                if let Some(report) = state.watch.record(snapshot, step) {
                    state.health = Some(report);
                }
                self.save_watch(&state.watch);
            }
            // The agent is stopping.
            Ok(None) => state.watch_step = Some(step),
            Err(_) => note("internal error while measuring the host's health"),
        }
        drop(state);
        (self.config.notify)();
    }

    /// Writes the journal to disk. Nothing is executed without that: it is retried until it works,
    /// and the problem is reported.
    fn save(&self, journal: &Journal) -> bool {
        let saved = self.state().orders.save(journal);
        let Err(error) = saved else { return true };
        let words = format!("cannot write to the agent's state directory: {error}");
        self.state().status_message = Some((journal.id, words.into()));
        (self.config.notify)();
        self.pause(PAUSE_SECONDS);
        false
    }

    /// Requests a scan after an order that may have changed something, so that the service sees the
    /// result.
    fn request_scan_after(&self, journal: &Journal) {
        let mut state = self.state();
        state.status_message = None;
        let changed = matches!(
            journal.task,
            Task::Install(_)
                | Task::InstallVersions(_)
                | Task::RestartServices
                | Task::Reboot(_)
                | Task::Lost { .. }
        ) && journal.started_at.is_some();
        if changed && journal.result.is_some() {
            state.scan_request = state.scan_request.max(ScanRequest::WithoutRefresh);
        }
    }

    /// Waits for some seconds, unless the wait is interrupted.
    fn pause(&self, seconds: u64) {
        let idle = |state: &mut WorkerState| {
            !state.stopping && !std::mem::take(&mut state.pause_interrupted)
        };
        drop(self.changed.wait_timeout_while(self.state(), Duration::from_secs(seconds), idle));
    }

    /// A scan without an order.
    fn scan(&self, request: ScanRequest) {
        {
            let mut state = self.state();
            (state.scanning, state.scan_request) = (true, ScanRequest::NoScan);
        }
        (self.config.notify)();
        if request == ScanRequest::WithRefresh && !self.refresh() {
            return;
        }
        // If the scan fails, the last one stays until the next attempt. The service is not told, so
        // the log must say why.
        let scan =
            run_low_priority(|| catch_unwind(AssertUnwindSafe(|| executor::scan(&self.config))));
        self.state().scanning = false;
        match scan {
            Some(Ok(Ok(scan))) => self.publish(scan),
            Some(Ok(Err(error))) => {
                self.log_failed_scan(&format!("{:#}", anyhow::Error::new(error)));
            }
            Some(Err(_)) | None => self.log_failed_scan("internal error"),
        }
        (self.config.notify)();
    }

    fn log_failed_scan(&self, error: &str) {
        let WorkerConfig { root, backend, .. } = &self.config;
        let reason = missing_program(root, backend.manager());
        let reason = reason.as_deref().unwrap_or(error);
        note(&format!("the scan failed, so nothing new is reported: {reason}"));
    }

    /// Refreshes the package lists; returns false if the agent stops. Old lists are better than
    /// none, so a failed refresh does not stop the scan.
    fn refresh(&self) -> bool {
        let dir = self.config.state_dir.join("scan/refresh");
        match job::job_state(&dir) {
            Ok(job::JobState::Running | job::JobState::Orphaned) => {}
            _ => drop(fs::remove_dir_all(&dir)),
        }
        let commands = self.config.backend.refresh();
        if commands.is_empty() {
            return true;
        }
        let job = || Job {
            commands: commands.clone(),
            keep_going: false,
            seconds_max: None,
            log_from: 0,
        };
        let end = job::run(&self.config.program, &dir, job, || !self.state().stopping);
        !matches!(end, Ok(job::JobEnd::Stopped))
    }

    /// Makes this the last scan, and removes the package sets of older ones.
    fn publish(&self, scan: ScanReport) {
        let dir = self.config.state_dir.join("scan");
        let _ = files::write_json(&dir.join("report.json"), &scan);
        let keep = [scan.installed, scan.pending].map(|d| listing_path(&self.config.state_dir, d));
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
fn run_low_priority<T: Send>(look: impl FnOnce() -> T + Send) -> Option<T> {
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
fn execute_step(executor: &Executor<'_>, journal: &Journal, step: &Step) -> Option<StepResult> {
    catch_unwind(AssertUnwindSafe(|| executor.execute(journal, step))).unwrap_or_else(|_| {
        let failure = Failure::new(
            FailureCode::AgentError,
            format!("internal error in step {step:?}; see the agent's log"),
        );
        Some(match step {
            Step::Run(_) => {
                StepResult::Ended(ActionResult::Badly { exit: None, failure }, Vec::new())
            }
            _ => StepResult::QueryFailed(failure),
        })
    })
}

/// Where the watch of the host's health is stored.
fn watch_path(state_dir: &Path) -> PathBuf {
    state_dir.join("health.json")
}

fn activity(journal: &Journal) -> Activity {
    match (&journal.task, journal.stage) {
        (Task::Scan, _) => Activity::Scanning,
        (Task::Reboot(_), Stage::Rebooting) | (_, Stage::Rebooting) => Activity::Rebooting,
        (_, Stage::Dispatched) => Activity::Idle,
        _ => Activity::Patching,
    }
}
