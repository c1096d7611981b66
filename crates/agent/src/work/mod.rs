//! Executes orders, one at a time, and records every step so that no result is lost.
//!
//! [`planner::next_step`] chooses the next step, `executor` executes it and the [`journal`] records
//! it. [`select`] determines which updates an order means (`pinned` for an order for exact
//! versions), [`outcome`] what its result is. All
//! modules except `executor`, `job` and `supervise` are pure. The rest of the agent uses
//! [`Worker`], which has its own thread.

mod executor;
pub mod failure;
pub(crate) mod files;
mod health;
mod hooks;
mod job;
pub mod journal;
pub mod limits;
mod log;
mod order_store;
pub mod outcome;
mod past_orders;
mod pinned;
pub mod planner;
mod recovery;
pub mod select;
pub mod space;
pub mod step;
pub mod supervise;
#[cfg(test)]
mod tests;
mod worker;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{Digest, FailureCode, Line, TaskId};
use wire::agent::{Facts, HealthReport, Order, OrderProgress, OrderResult};
use wire::v1::{Activity, HostLimits};

use crate::backend::Backend;
use crate::host::Host;
use crate::root::Root;
use failure::Failure;
use worker::SharedState;

/// The configuration of a worker.
pub struct WorkerConfig {
    /// The agent's state directory. It must exist and be used by this agent only.
    pub state_dir: PathBuf,
    pub root: Root,
    pub backend: Arc<dyn Backend>,
    pub host: Arc<Host>,
    /// `/etc/fleetmend/limits.toml`.
    pub limits: PathBuf,
    /// `/etc/fleetmend/hooks`.
    pub hooks: PathBuf,
    /// `/etc/fleetmend/health.d`.
    pub health_hooks: PathBuf,
    /// The agent's own program, started again as `supervise JOBDIR`. `/proc/self/exe` stays correct
    /// even while a package installs a newer agent.
    pub program: PathBuf,
    pub replace: AgentReplacement,
    /// Called whenever [`Worker::report`] changes.
    pub notify: Box<dyn Fn() + Send + Sync>,
    pub clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
}

/// How an order to upgrade the agent replaces its program.
#[derive(Debug, Clone)]
pub struct AgentReplacement {
    /// Why the program cannot be replaced, if it cannot.
    pub allowed: Result<(), Line>,
    /// The path of the agent's program.
    pub program: PathBuf,
    /// How long the new agent has to reach the service.
    pub timeout_seconds: u64,
}

/// Why a worker cannot start.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    #[error(
        "cannot use the state directory {dir}; check its disk, or move it away and enroll again"
    )]
    State { dir: PathBuf, source: io::Error },
}

/// What the next sync should report.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub activity: Activity,
    /// The results that the service has not acknowledged, oldest first. Large numbers are sent in
    /// parts.
    pub results: Vec<OrderResult>,
    /// The progress of the unfinished orders.
    pub progress: Vec<OrderProgress>,
    pub scan: Option<ScanReport>,
    /// The host's health, if it has changed during a watch or the watch has ended.
    pub health: Option<HealthReport>,
}

/// The last scan. The encoded package sets are kept on disk for upload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScanReport {
    /// Digest of the installed packages.
    pub installed: Digest,
    /// Digest of the pending updates.
    pub pending: Digest,
    /// When the scan was made.
    pub at: Timestamp,
    pub facts: Facts,
}

/// Executes orders, one at a time, on its own thread. All of its state is on disk. When it is
/// dropped, the thread ends soon, but a running package manager continues.
pub struct Worker {
    shared: Arc<SharedState>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread, which resumes the orders in the journal.
    pub fn start(config: WorkerConfig) -> Result<Worker, WorkError> {
        let dir = config.state_dir.clone();
        let shared =
            SharedState::open(config).map_err(|source| WorkError::State { dir, source })?;
        let shared = Arc::new(shared);
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.run()
        });
        Ok(Worker { shared, thread: Some(thread) })
    }

    /// Sets the service's time, by which orders are issued and expire. Until it is set, this host's
    /// clock counts as the service's.
    pub fn set_server_time(&self, server_time: Timestamp) {
        self.shared.set_server_time(server_time);
    }

    /// Accepts an order that [`agent_client::verify_order`] has verified. The same id is always the
    /// same order; if it has ended, its stored result is reported again. An order that cannot be
    /// written to disk fails with that reason, and nothing is executed for it.
    pub fn accept(&self, order: Order) {
        self.shared.accept(&order);
    }

    /// Reports a failure for an order that cannot be executed, such as an expired one. An order
    /// that was accepted before continues.
    pub fn reject(&self, order: &Order, code: FailureCode, why: Line) {
        self.shared.reject(order, Failure::new(code, why));
    }

    /// The host limits at this moment.
    pub fn limits(&self) -> HostLimits {
        let setup = &self.shared.config;
        limits::Limits::to_host_limits(&setup.limits, &limits::local_time_zone(&setup.root))
    }

    /// Drops an order if nothing has been executed for it. An order that has not started, or never
    /// arrived, ends immediately.
    pub fn withdraw(&self, id: TaskId) {
        self.shared.withdraw(id);
    }

    /// Handles orders that the server lists as in progress, but that no sync mentioned. Results are
    /// reported again; an order without a record ends as [`wire::agent::Outcome::Unknown`] and is
    /// never executed again.
    pub fn answer_inquiries(&self, ids: &[TaskId]) {
        self.shared.answer_inquiries(ids);
    }

    /// The service has stored these results: they are not reported again, and are deleted after a
    /// while.
    pub fn acknowledge(&self, ids: &[TaskId]) {
        self.shared.acknowledge(ids);
    }

    /// The service has received this progress. A reboot waits for that, though not for long.
    pub fn progress_delivered(&self, progress: &[OrderProgress]) {
        self.shared.progress_delivered(progress);
    }

    /// Watches the host's health until this time of the service, which is `server_time` now. Costs
    /// nothing without a watch. Called with each response.
    pub fn watch_health(&self, until: Option<Timestamp>, server_time: Timestamp) {
        self.shared.watch_health(until, server_time);
    }

    /// The service has received this health report.
    pub fn health_delivered(&self, report: &HealthReport) {
        self.shared.health_delivered(report);
    }

    /// What the next sync should report.
    pub fn report(&self) -> Report {
        self.shared.report()
    }

    /// Requests a scan. It starts soon, but never while an order runs.
    pub fn scan(&self) {
        self.shared.request_scan();
    }

    /// Requests a scan without refreshing the package lists first.
    pub fn scan_without_refresh(&self) {
        self.shared.request_scan_without_refresh();
    }

    /// A part of an order's log, for upload in chunks.
    pub fn read_log(&self, id: TaskId, offset: u64, max: usize) -> Vec<u8> {
        self.shared.read_log(id, offset, max)
    }

    /// The existing logs with their lengths, and whether they are complete. Logs of ended orders
    /// are kept for a while after the result was acknowledged, so that the upload can catch up.
    pub fn open_logs(&self) -> Vec<(TaskId, u64, bool)> {
        self.shared.open_logs()
    }

    /// The encoded package set with this digest, if it belongs to the last scan.
    pub fn listing(&self, digest: Digest) -> Option<Vec<u8>> {
        std::fs::read(listing_path(&self.shared.config.state_dir, digest)).ok()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Where cached package manager output is stored, for [`Backend::load_cache`].
pub(crate) fn query_cache_path(state_dir: &Path) -> PathBuf {
    state_dir.join("scan").join("answers.json")
}

fn listing_path(state_dir: &Path, digest: Digest) -> PathBuf {
    state_dir.join("scan").join(format!("{digest}.jsonl"))
}
