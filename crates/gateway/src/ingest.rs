//! Writes the reports of many agents in one transaction.
//!
//! A request adds its part to the queue and waits. One task at a time takes the queued parts and
//! commits them together, so that a thousand reports cost about ten commits. If a part fails, only
//! that part is rolled back. A success means that the part is committed.
//!
//! Agents abandon a sync when they have something new to report, and send everything again. So two
//! reports of one server may be queued, and only the newest one says what the server is now. A part
//! that is retried keeps its place in the queue: an abandoned report must not be written after a
//! newer one.

mod scans;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use jiff::Timestamp;
use store::package_sets::{self, PackedSet, SetKind};
use store::servers::Server;
use store::task_logs::{self, AppendResult, NewChunk};
use store::{StoreError, Tx, package_set_requests};
use tokio::sync::oneshot;
use vocab::{Digest, OrgId, PackageManager, ServerId, TaskId};
use wire::agent::{Facts, HealthReport, OrderProgress, OrderResult};

use crate::Gateway;
use crate::Refusal;
use crate::limits::ReservedMemory;
use crate::registry::{StoredState, SyncOrder, lock};
use service::commands::reports;
use service::commands::reports::{AgentReports, Reporter};
use service::commands::server_health::{WatchReport, store_watch_reports};
use service::host_facts;

/// Maximum number of parts in one transaction.
const PARTS_PER_COMMIT_MAX: usize = 200;
/// How many times a part is retried when concurrent writes keep making it stale.
const ATTEMPTS_MAX: u32 = 20;

/// Data from an agent to write to the database.
pub(super) enum IngestPart {
    /// The content of a sync.
    Report(Box<AgentReport>),
    /// A package set.
    PackageSet {
        org: OrgId,
        kind: SetKind,
        packed: PackedSet,
        /// When it was received.
        now: Timestamp,
    },
    /// A chunk of a task log.
    Log(LogChunk),
}

/// A chunk of a task log.
pub(super) struct LogChunk {
    pub(super) task: TaskId,
    /// The position of the chunk in the log.
    pub(super) offset: u64,
    pub(super) body: axum::body::Bytes,
    pub(super) now: Timestamp,
}

impl LogChunk {
    fn as_piece(&self) -> NewChunk<'_> {
        NewChunk { task: self.task, position: self.offset, body: &self.body, at: self.now }
    }

    async fn append(&self, tx: &mut Tx) -> store::Result<store::Result<WriteResult>> {
        let done = tx.attempt(async |tx| task_logs::append(tx, &[self.as_piece()]).await).await?;
        // One chunk has one end position.
        Ok(done.map(|ends| WriteResult::Log(ends.first().copied().unwrap_or(AppendResult::Gap(0)))))
    }
}

/// The content of a sync that has to be written.
pub(super) struct AgentReport {
    pub(super) org: OrgId,
    pub(super) server: ServerId,
    /// Its place among the syncs of the server.
    pub(super) order: SyncOrder,
    pub(super) facts: Option<Facts>,
    pub(super) packages: Option<PackageSetCounts>,
    pub(super) updates: Option<PackageSetCounts>,
    pub(super) scanned_at: Option<Timestamp>,
    pub(super) activity: &'static str,
    pub(super) progress: Vec<OrderProgress>,
    pub(super) results: Vec<OrderResult>,
    /// From the watch of the host's health.
    pub(super) health: Option<HealthReport>,
    /// Package sets that the response requests.
    pub(super) wanted: Vec<(SetKind, Digest)>,
    pub(super) now: Timestamp,
}

/// A stored package set, with its counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PackageSetCounts {
    pub(super) digest: Digest,
    pub(super) entries: u32,
    pub(super) security: u32,
}

impl PackageSetCounts {
    /// The number of security updates, until the feeds are taken into account
    /// (`service::projections::patches`). Some package managers do not report whether an update is
    /// for security. For these, the previous number stays, limited to the number of pending
    /// updates.
    fn security_updates(self, before: &Server, manager: Option<PackageManager>) -> u32 {
        match manager {
            Some(PackageManager::Apk | PackageManager::Pacman) => {
                self.security.max(before.security_updates.min(self.entries))
            }
            Some(PackageManager::Apt | PackageManager::Dnf | PackageManager::Zypper) | None => {
                self.security
            }
        }
    }
}

/// The result of a part.
pub(super) enum WriteResult {
    /// The server's state after the write.
    Server(StoredState),
    /// A newer report of the same server was written instead. Results are stored.
    Superseded,
    Listing,
    /// The end of the log, or a gap before the chunk.
    Log(AppendResult),
}

struct QueuedPart {
    /// Counts the parts in the order of their arrival.
    number: u64,
    part: IngestPart,
    /// The memory reservation of the request, so that queued parts are limited too.
    _reserved: ReservedMemory,
    tries: u32,
    reply: oneshot::Sender<Result<WriteResult, Refusal>>,
}

/// Queues what agents send, and writes it to the database in batches.
#[derive(Default)]
pub(super) struct WriteBatcher {
    /// In the order of their numbers.
    queue: Mutex<Vec<QueuedPart>>,
    next_number: AtomicU64,
    is_writing: AtomicBool,
}

/// Writes a part. Returns once it is committed.
pub(super) async fn write(
    app: &Gateway,
    part: IngestPart,
    reserved: ReservedMemory,
) -> Result<WriteResult, Refusal> {
    let (reply, answer) = oneshot::channel();
    let batcher = &app.registry().write_batcher;
    {
        let mut queue = lock(&batcher.queue);
        // Under the lock, so that the queue is in the order of the numbers.
        let number = batcher.next_number.fetch_add(1, Ordering::Relaxed) + 1;
        queue.push(QueuedPart { number, part, _reserved: reserved, tries: 0, reply });
        metrics::gauge!("fleetmend_ingest_queue").set(queue.len() as f64);
    }
    if !batcher.is_writing.swap(true, Ordering::AcqRel) {
        // In a separate task: the request that starts it may be aborted while others wait for it.
        tokio::spawn(run_writer(app.clone()));
    }
    answer.await.unwrap_or_else(|_| Err(Refusal::unavailable()))
}

/// Releases the writer role if the writer panics. Otherwise the queued parts would wait forever.
struct WriterGuard<'a>(&'a AtomicBool);

impl Drop for WriterGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(false, Ordering::Release);
        }
    }
}

async fn run_writer(app: Gateway) {
    let batcher = &app.registry().write_batcher;
    let _at_work = WriterGuard(&batcher.is_writing);
    loop {
        let mut parts = {
            let mut queue = lock(&batcher.queue);
            let first = queue.len().min(PARTS_PER_COMMIT_MAX);
            let parts = queue.drain(..first).collect::<Vec<_>>();
            metrics::gauge!("fleetmend_ingest_queue").set(queue.len() as f64);
            parts
        };
        if parts.is_empty() {
            batcher.is_writing.store(false, Ordering::Release);
            // Another part may have been queued between the check and the store.
            if lock(&batcher.queue).is_empty() || batcher.is_writing.swap(true, Ordering::AcqRel) {
                return;
            }
            continue;
        }
        // The ids of the tasks of one rollout are close together, so every writer locks them in
        // this order.
        parts.sort_by_key(|waiting| waiting.part.first_task());
        let done = write_parts(&app, &parts).await;
        reply_to_all(&app, parts, done);
    }
}

/// Writes all parts in one transaction and returns the result of each.
async fn write_parts(
    app: &Gateway,
    parts: &[QueuedPart],
) -> store::Result<Vec<store::Result<WriteResult>>> {
    let mut tx = app.db.begin().await?;
    let mut done: Vec<Option<store::Result<WriteResult>>> = Vec::with_capacity(parts.len());
    // Lock rollouts before servers, as the engine does when it claims servers. A fixed lock order
    // prevents deadlocks.
    let all_reported = write_reports(&mut tx, parts).await?;
    let mut logged = append_logs(&mut tx, parts).await?.map(Vec::into_iter);
    for waiting in parts {
        done.push(match &waiting.part {
            IngestPart::Report(news) if news.has_reports() && !all_reported => {
                tx.attempt(async |tx| news.write_report(tx).await).await?.err().map(Err)
            }
            IngestPart::Log(log) => match &mut logged {
                Some(logged) => logged.next().map(|end| Ok(WriteResult::Log(end))),
                None => Some(log.append(&mut tx).await?),
            },
            IngestPart::Report(_) | IngestPart::PackageSet { .. } => None,
        });
    }
    store_package_sets(&mut tx, parts).await?;
    store_wanted(&mut tx, parts).await?;
    scans::save(&mut tx, parts, &mut done).await?;
    tx.commit().await?;
    Ok(done.into_iter().map(|done| done.unwrap_or(Ok(WriteResult::Listing))).collect())
}

/// Writes all reports together. Returns whether that succeeded; if not, it is rolled back and each
/// report is written separately.
async fn write_reports(tx: &mut Tx, parts: &[QueuedPart]) -> store::Result<bool> {
    let reports = parts.iter().filter_map(|waiting| match &waiting.part {
        IngestPart::Report(news) if news.has_reports() => Some(AgentReports {
            reporter: Reporter { org: news.org, server: news.server },
            progress: &news.progress,
            results: &news.results,
            health: news.health.as_ref(),
            now: news.now,
        }),
        _ => None,
    });
    let reports: Vec<AgentReports<'_>> = reports.collect();
    if reports.len() < 2 {
        return Ok(false);
    }
    Ok(tx.attempt(async |tx| reports::store_all(tx, &reports).await).await?.is_ok())
}

/// Appends all log chunks together. Returns `None` if that failed; then it is rolled back and each
/// chunk is appended separately.
async fn append_logs(
    tx: &mut Tx,
    parts: &[QueuedPart],
) -> store::Result<Option<Vec<AppendResult>>> {
    let logs = parts.iter().filter_map(|waiting| match &waiting.part {
        IngestPart::Log(log) => Some(log.as_piece()),
        IngestPart::Report(_) | IngestPart::PackageSet { .. } => None,
    });
    let logs: Vec<_> = logs.collect();
    if logs.len() < 2 {
        return Ok(None);
    }
    Ok(tx.attempt(async |tx| task_logs::append(tx, &logs).await).await?.ok())
}

async fn store_package_sets(tx: &mut Tx, parts: &[QueuedPart]) -> store::Result<()> {
    let mut lists = Vec::new();
    let mut latest = Timestamp::MIN;
    for waiting in parts {
        if let IngestPart::PackageSet { org, kind, packed, now } = &waiting.part {
            lists.push((*org, *kind, packed));
            latest = latest.max(*now);
        }
    }
    package_sets::store_all(tx, &lists, latest).await.map(drop)
}

async fn store_wanted(tx: &mut Tx, parts: &[QueuedPart]) -> store::Result<()> {
    let mut wanted = Vec::new();
    let mut latest = Timestamp::MIN;
    for waiting in parts {
        if let IngestPart::Report(news) = &waiting.part {
            wanted.extend(news.wanted.iter().map(|(kind, digest)| (news.server, *kind, *digest)));
            latest = latest.max(news.now);
        }
    }
    package_set_requests::record_requests(tx, &wanted, latest).await
}

fn reply_to_all(
    app: &Gateway,
    parts: Vec<QueuedPart>,
    done: store::Result<Vec<store::Result<WriteResult>>>,
) {
    let mut retried = Vec::new();
    let mut again = |mut queued: QueuedPart| {
        queued.tries += 1;
        retried.push(queued);
    };
    match done {
        Ok(done) => {
            for (waiting, done) in parts.into_iter().zip(done) {
                match done {
                    Err(StoreError::Stale) if waiting.tries < ATTEMPTS_MAX => again(waiting),
                    done => drop(waiting.reply.send(done.map_err(Refusal::from))),
                }
            }
        }
        Err(error) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "failed to write the reports of agents"
            );
            for waiting in parts {
                match error {
                    StoreError::Busy(_) if waiting.tries < ATTEMPTS_MAX => again(waiting),
                    _ => drop(waiting.reply.send(Err(Refusal::unavailable()))),
                }
            }
        }
    }
    if !retried.is_empty() {
        // They arrived before everything that is queued now.
        retried.sort_by_key(|waiting| waiting.number);
        lock(&app.registry().write_batcher.queue).splice(0..0, retried);
    }
}

impl IngestPart {
    fn first_task(&self) -> Option<TaskId> {
        match self {
            IngestPart::Report(news) => {
                let results = news.results.iter().map(|result| result.order_id);
                results.chain(news.progress.iter().map(|progress| progress.order_id)).min()
            }
            IngestPart::PackageSet { .. } | IngestPart::Log(_) => None,
        }
    }
}

impl AgentReport {
    fn has_reports(&self) -> bool {
        !(self.progress.is_empty() && self.results.is_empty()) || self.health.is_some()
    }

    async fn write_report(&self, tx: &mut Tx) -> store::Result<()> {
        let reporter = Reporter { org: self.org, server: self.server };
        for progress in &self.progress {
            reports::store_progress(tx, reporter, progress, self.now).await?;
        }
        for result in &self.results {
            reports::store_result(tx, reporter, result, self.now).await?;
        }
        if let Some(report) = &self.health {
            let watched = WatchReport { reporter, report, now: self.now };
            store_watch_reports(tx, &[watched]).await?;
        }
        Ok(())
    }

    /// The server's row after this report.
    fn apply_to(&self, before: &Server) -> Server {
        let mut after = before.clone();
        if let Some(facts) = &self.facts {
            after.hostname = facts.hostname.clone();
            after.os = facts.os.clone();
            after.kernel = facts.kernel.to_string();
            after.arch = facts.arch.to_string();
            after.package_manager = Some(facts.package_manager);
            after.agent_version = facts.agent_version.to_string();
            after.reboot_required = facts.reboot_required;
            after.reboot_reasons = host_facts::reboot_reasons(facts);
            after.facts = host_facts::to_stored(facts);
        }
        if let Some(packages) = self.packages {
            after.package_set = Some(packages.digest);
            after.packages = packages.entries;
        }
        if let Some(updates) = self.updates {
            after.update_set = Some(updates.digest);
            after.updates = updates.entries;
            after.security_updates = updates.security_updates(before, after.package_manager);
        }
        let known = host_facts::runs_from_text(&before.runs);
        let runtime_state = match &self.facts {
            Some(facts) => host_facts::runtime_state(facts),
            None => (
                host_facts::outdated_packages(&host_facts::from_stored(&before.facts).old_code),
                known.foreign_kernel,
            ),
        };
        after.runs = host_facts::runs_to_text(&known.after_report(
            runtime_state,
            before.package_set,
            after.package_set,
        ));
        // The host's clock may be ahead; a scan cannot be in the future.
        after.last_scan_at = self.scanned_at.map(|at| at.min(self.now)).or(before.last_scan_at);
        after.activity = self.activity.to_owned();
        after
    }

    /// The state that is then in the database.
    fn stored_state(&self, after: Server) -> StoredState {
        StoredState {
            package_set: after.package_set,
            update_set: after.update_set,
            scanned_at: self.scanned_at.or(after.last_scan_at),
            activity: after.activity,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn next_writer_starts_after_a_panic() {
        let is_running = AtomicBool::new(true);
        drop(WriterGuard(&is_running));
        assert!(is_running.load(Ordering::Acquire), "only the writer itself clears the flag");
        let panicked = catch_unwind(|| {
            let _at_work = WriterGuard(&is_running);
            assert!(!is_running.load(Ordering::Acquire), "a bug");
        });
        assert!(panicked.is_err() && !is_running.load(Ordering::Acquire));
    }
}
