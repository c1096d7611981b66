//! Carries orders out, one at a time, and never loses the truth.
//!
//! [`planner::next`] decides, `perform` does, the [`journal`] remembers, and [`select`] and [`outcome`] say what was meant
//! and what came of it. All but `perform`, `job` and `supervise` are pure. The lead of the agent talks
//! to a [`Worker`], which has a thread of its own.

mod desk;
pub mod failure;
pub(crate) mod files;
mod hooks;
mod job;
pub mod journal;
pub mod limits;
mod log;
pub mod outcome;
mod past_orders;
mod perform;
pub mod planner;
mod recovery;
pub mod select;
pub mod space;
pub mod step;
pub mod supervise;
#[cfg(test)]
mod tests;
mod thread;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{Digest, FailureCode, Line, TaskId};
use wire::agent::{Facts, Order, OrderProgress, OrderResult};
use wire::v1::{Activity, HostLimits};

use crate::backend::Backend;
use crate::host::Host;
use crate::root::Root;
use failure::Failure;
use thread::Shared;

/// What a worker works with.
pub struct Setup {
    /// The agent's state directory, which is there and is the agent's alone.
    pub state_dir: PathBuf,
    /// The managed system.
    pub root: Root,
    /// Its package manager.
    pub backend: Arc<dyn Backend>,
    /// The machine.
    pub host: Arc<Host>,
    /// `/etc/fleetmend/limits.toml`.
    pub limits: PathBuf,
    /// `/etc/fleetmend/hooks`.
    pub hooks: PathBuf,
    /// The agent's own program, which is started anew as `supervise JOBDIR`: `/proc/self/exe` stays the
    /// right one even while a package brings a newer agent.
    pub program: PathBuf,
    /// Rung whenever [`Worker::report`] would say something new.
    pub bell: Box<dyn Fn() + Send + Sync>,
    /// What time it is.
    pub clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
}

/// Why a worker cannot work.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// The state directory cannot be read or written.
    #[error(
        "the state directory {dir} cannot be used; check its disk, or move it away and enroll again"
    )]
    State {
        /// Which directory.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What the next sync should say.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// What the agent is doing.
    pub activity: Activity,
    /// The results that the server has not acknowledged, the oldest first; not all at once if they are many.
    pub results: Vec<OrderResult>,
    /// How far the unfinished orders are.
    pub progress: Vec<OrderProgress>,
    /// The last look at the packages.
    pub scan: Option<ScanReport>,
}

/// The last look at the packages; the encoded listings are kept on disk for upload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScanReport {
    /// The digest of what is installed.
    pub installed: Digest,
    /// The digest of what is pending.
    pub pending: Digest,
    /// When both were looked at.
    pub at: Timestamp,
    /// What the host is.
    pub facts: Facts,
}

/// Carries orders out, one at a time, on a thread of its own; everything it knows is on disk. When it is dropped the
/// thread ends soon, and a package manager at work goes on.
pub struct Worker {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread, which resumes what the journal holds.
    pub fn start(setup: Setup) -> Result<Worker, WorkError> {
        let dir = setup.state_dir.clone();
        let shared = Shared::open(setup).map_err(|source| WorkError::State { dir, source })?;
        let shared = Arc::new(shared);
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.work()
        });
        Ok(Worker { shared, thread: Some(thread) })
    }

    /// What time it is at the server, by whose clock orders are given and expire. Until it is set, this
    /// host's clock counts as the server's.
    pub fn set_server_time(&self, server_time: Timestamp) {
        self.shared.set_server_time(server_time);
    }

    /// Takes an order that [`agent_client::verify`] has verified. The same id is the same order however often it comes; one
    /// that has ended gets its stored result reported again. An order that cannot be written down is answered with
    /// that, and nothing is done for it.
    pub fn take(&self, order: Order) {
        self.shared.take(&order);
    }

    /// Answers an order that cannot be carried out, such as one that came too late, with a failure under its id. One
    /// that was taken before goes on.
    pub fn refuse(&self, order: &Order, code: FailureCode, why: Line) {
        self.shared.refuse(order, Failure::new(code, why));
    }

    /// What the host's administrator allows at this moment.
    pub fn limits(&self) -> HostLimits {
        let setup = &self.shared.setup;
        limits::Limits::report(&setup.limits, &limits::zone(&setup.root))
    }

    /// Drops an order if nothing was done for it yet; one that has not had its turn, or never arrived, is answered at
    /// once.
    pub fn withdraw(&self, id: TaskId) {
        self.shared.withdraw(id);
    }

    /// The server believes these orders to be in progress, and no sync mentioned them. Results are reported again; an
    /// order without a record ends as [`wire::agent::Outcome::Unknown`] and is not carried out again.
    pub fn inquire(&self, ids: &[TaskId]) {
        self.shared.inquire(ids);
    }

    /// The server has these results: they are not reported again, and forgotten after a while.
    pub fn acknowledge(&self, ids: &[TaskId]) {
        self.shared.acknowledge(ids);
    }

    /// The server has heard so much. A reboot waits for that, though not for long.
    pub fn told(&self, progress: &[OrderProgress]) {
        self.shared.told(progress);
    }

    /// What the next sync should say.
    pub fn report(&self) -> Report {
        self.shared.report()
    }

    /// Asks for a scan, soon, but never beside an order.
    pub fn scan(&self) {
        self.shared.wish_scan();
    }

    /// Asks for a look at what is there, with the lists as they are.
    pub fn look(&self) {
        self.shared.wish_look();
    }

    /// A part of an order's log, for upload in chunks.
    pub fn log_after(&self, id: TaskId, offset: u64, most: usize) -> Vec<u8> {
        self.shared.log_after(id, offset, most)
    }

    /// The logs that are there, with their lengths, and whether they are complete. Those of ended orders stay for a
    /// while after the result was acknowledged, so that an upload can catch up.
    pub fn open_logs(&self) -> Vec<(TaskId, u64, bool)> {
        self.shared.open_logs()
    }

    /// The encoded listing with this digest, if it is that of the last scan.
    pub fn listing(&self, digest: Digest) -> Option<Vec<u8>> {
        std::fs::read(listing_path(&self.shared.setup.state_dir, digest)).ok()
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

/// Where the package manager's answers lie, for [`Backend::recall`].
pub(crate) fn memory_path(state_dir: &Path) -> PathBuf {
    state_dir.join("scan").join("answers.json")
}

/// Where a listing lies.
fn listing_path(state_dir: &Path, digest: Digest) -> PathBuf {
    state_dir.join("scan").join(format!("{digest}.jsonl"))
}
