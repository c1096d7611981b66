//! Writes the reports of many agents in one transaction.
//!
//! A request adds its part to the queue and waits. One task at a time takes the queued parts and
//! commits them together, so that a thousand reports cost about ten commits. If a part fails, only
//! that part is rolled back. A success means that the part is committed.

mod scans;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use store::listings::{self, Kind, Packed};
use store::servers::Server;
use store::task_logs::{self, Append, Piece};
use store::{StoreError, Tx, wanted_listings};
use tokio::sync::oneshot;
use vocab::{Digest, OrgId, PackageManager, ServerId, TaskId};
use wire::agent::{Facts, OrderProgress, OrderResult};

use crate::Gateway;
use crate::Refusal;
use crate::limits::Reserved;
use crate::registry::{Known, lock};
use service::commands::reports;
use service::commands::reports::{Reporter, Told};
use service::host_facts;

/// The most parts in one transaction.
const TOGETHER_MAX: usize = 200;
/// How often a part is retried when concurrent writes keep making it stale.
const TRIES: u32 = 20;

/// Something to write.
pub(super) enum Part {
    /// The content of a sync.
    News(Box<News>),
    /// A package set.
    Listing {
        org: OrgId,
        kind: Kind,
        packed: Packed,
        /// When it was received.
        now: Timestamp,
    },
    /// A chunk of a task log.
    Log(Log),
}

/// A chunk of a task log.
pub(super) struct Log {
    pub(super) task: TaskId,
    /// The position of the chunk in the log.
    pub(super) offset: u64,
    pub(super) body: axum::body::Bytes,
    pub(super) now: Timestamp,
}

impl Log {
    fn piece(&self) -> Piece<'_> {
        Piece { task: self.task, position: self.offset, body: &self.body, at: self.now }
    }

    async fn append(&self, tx: &mut Tx) -> store::Result<store::Result<Written>> {
        let done = tx.attempt(async |tx| task_logs::append(tx, &[self.piece()]).await).await?;
        // One chunk has one end position.
        Ok(done.map(|ends| Written::Log(ends.first().copied().unwrap_or(Append::Gap(0)))))
    }
}

/// The content of a sync that has to be written.
pub(super) struct News {
    pub(super) org: OrgId,
    pub(super) server: ServerId,
    pub(super) facts: Option<Facts>,
    pub(super) packages: Option<Counted>,
    pub(super) updates: Option<Counted>,
    pub(super) scanned_at: Option<Timestamp>,
    pub(super) activity: &'static str,
    pub(super) progress: Vec<OrderProgress>,
    pub(super) results: Vec<OrderResult>,
    /// Package sets that the response requests.
    pub(super) wanted: Vec<(Kind, Digest)>,
    pub(super) now: Timestamp,
}

/// A stored package set, with its counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) digest: Digest,
    pub(super) entries: u32,
    pub(super) security: u32,
}

impl Counted {
    /// The number of security updates, until the feeds are taken into account
    /// (`service::projections::patches`). Some package managers do not report whether an update is
    /// for security. For these, the previous number stays, limited to the number of pending
    /// updates.
    fn for_security(self, before: &Server, manager: Option<PackageManager>) -> u32 {
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
pub(super) enum Written {
    /// The server's state after the write.
    Server(Known),
    Listing,
    /// The end of the log, or a gap before the chunk.
    Log(Append),
}

struct Waiting {
    part: Part,
    /// The memory reservation of the request, so that queued parts are limited too.
    _reserved: Reserved,
    tries: u32,
    reply: oneshot::Sender<Result<Written, Refusal>>,
}

/// The queue.
#[derive(Default)]
pub(super) struct WriteBatcher {
    pile: Mutex<Vec<Waiting>>,
    at_work: AtomicBool,
}

/// Writes a part. Returns once it is committed.
pub(super) async fn write(
    app: &Gateway,
    part: Part,
    reserved: Reserved,
) -> Result<Written, Refusal> {
    let (reply, answer) = oneshot::channel();
    let press = &app.registry().press;
    lock(&press.pile).push(Waiting { part, _reserved: reserved, tries: 0, reply });
    if !press.at_work.swap(true, Ordering::AcqRel) {
        // In a separate task: the request that starts it may be aborted while others wait for it.
        tokio::spawn(work(app.clone()));
    }
    answer.await.unwrap_or_else(|_| Err(Refusal::unavailable()))
}

/// Releases the writer role if the writer panics. Otherwise the queued parts would wait forever.
struct AtWork<'a>(&'a AtomicBool);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(false, Ordering::Release);
        }
    }
}

async fn work(app: Gateway) {
    let press = &app.registry().press;
    let _at_work = AtWork(&press.at_work);
    loop {
        let mut parts = {
            let mut pile = lock(&press.pile);
            let first = pile.len().min(TOGETHER_MAX);
            pile.drain(..first).collect::<Vec<_>>()
        };
        if parts.is_empty() {
            press.at_work.store(false, Ordering::Release);
            // Another part may have been queued between the check and the store.
            if lock(&press.pile).is_empty() || press.at_work.swap(true, Ordering::AcqRel) {
                return;
            }
            continue;
        }
        // The ids of the tasks of one rollout are close together, so every writer locks them in
        // this order.
        parts.sort_by_key(|waiting| waiting.part.first_task());
        let done = together(&app, &parts).await;
        answer(&app, parts, done);
    }
}

/// Writes all parts in one transaction and returns the result of each.
async fn together(app: &Gateway, parts: &[Waiting]) -> store::Result<Vec<store::Result<Written>>> {
    let mut tx = app.db.begin().await?;
    let mut done: Vec<Option<store::Result<Written>>> = Vec::with_capacity(parts.len());
    // Lock rollouts before servers, as the engine does when it claims servers. A fixed lock order
    // prevents deadlocks.
    let all_reported = report_together(&mut tx, parts).await?;
    let mut logged = append_together(&mut tx, parts).await?.map(Vec::into_iter);
    for waiting in parts {
        done.push(match &waiting.part {
            Part::News(news) if news.reports() && !all_reported => {
                tx.attempt(async |tx| news.report(tx).await).await?.err().map(Err)
            }
            Part::Log(log) => match &mut logged {
                Some(logged) => logged.next().map(|end| Ok(Written::Log(end))),
                None => Some(log.append(&mut tx).await?),
            },
            Part::News(_) | Part::Listing { .. } => None,
        });
    }
    store_listings(&mut tx, parts).await?;
    store_wanted(&mut tx, parts).await?;
    scans::save(&mut tx, parts, &mut done).await?;
    tx.commit().await?;
    Ok(done.into_iter().map(|done| done.unwrap_or(Ok(Written::Listing))).collect())
}

/// Writes all reports together. Returns whether that succeeded; if not, it is rolled back and each
/// report is written separately.
async fn report_together(tx: &mut Tx, parts: &[Waiting]) -> store::Result<bool> {
    let told = parts.iter().filter_map(|waiting| match &waiting.part {
        Part::News(news) if news.reports() => Some(Told {
            who: Reporter { org: news.org, server: news.server },
            progress: &news.progress,
            results: &news.results,
            now: news.now,
        }),
        _ => None,
    });
    let told: Vec<Told<'_>> = told.collect();
    if told.len() < 2 {
        return Ok(false);
    }
    Ok(tx.attempt(async |tx| reports::together(tx, &told).await).await?.is_ok())
}

/// Appends all log chunks together. Returns `None` if that failed; then it is rolled back and each
/// chunk is appended separately.
async fn append_together(tx: &mut Tx, parts: &[Waiting]) -> store::Result<Option<Vec<Append>>> {
    let logs = parts.iter().filter_map(|waiting| match &waiting.part {
        Part::Log(log) => Some(log.piece()),
        Part::News(_) | Part::Listing { .. } => None,
    });
    let logs: Vec<_> = logs.collect();
    if logs.len() < 2 {
        return Ok(None);
    }
    Ok(tx.attempt(async |tx| task_logs::append(tx, &logs).await).await?.ok())
}

async fn store_listings(tx: &mut Tx, parts: &[Waiting]) -> store::Result<()> {
    let mut lists = Vec::new();
    let mut latest = Timestamp::MIN;
    for waiting in parts {
        if let Part::Listing { org, kind, packed, now } = &waiting.part {
            lists.push((*org, *kind, packed));
            latest = latest.max(*now);
        }
    }
    listings::store_all(tx, &lists, latest).await.map(drop)
}

async fn store_wanted(tx: &mut Tx, parts: &[Waiting]) -> store::Result<()> {
    let mut wanted = Vec::new();
    let mut latest = Timestamp::MIN;
    for waiting in parts {
        if let Part::News(news) = &waiting.part {
            wanted.extend(news.wanted.iter().map(|(kind, digest)| (news.server, *kind, *digest)));
            latest = latest.max(news.now);
        }
    }
    wanted_listings::ask(tx, &wanted, latest).await
}

fn answer(app: &Gateway, parts: Vec<Waiting>, done: store::Result<Vec<store::Result<Written>>>) {
    let pile = &app.registry().press.pile;
    let again = |mut waiting: Waiting| {
        waiting.tries += 1;
        lock(pile).push(waiting);
    };
    match done {
        Ok(done) => {
            for (waiting, done) in parts.into_iter().zip(done) {
                match done {
                    Err(StoreError::Stale) if waiting.tries < TRIES => again(waiting),
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
                    StoreError::Busy(_) if waiting.tries < TRIES => again(waiting),
                    _ => drop(waiting.reply.send(Err(Refusal::unavailable()))),
                }
            }
        }
    }
}

impl Part {
    fn first_task(&self) -> Option<TaskId> {
        match self {
            Part::News(news) => {
                let results = news.results.iter().map(|result| result.order_id);
                results.chain(news.progress.iter().map(|progress| progress.order_id)).min()
            }
            Part::Listing { .. } | Part::Log(_) => None,
        }
    }
}

impl News {
    fn reports(&self) -> bool {
        !(self.progress.is_empty() && self.results.is_empty())
    }

    async fn report(&self, tx: &mut Tx) -> store::Result<()> {
        let who = Reporter { org: self.org, server: self.server };
        for progress in &self.progress {
            reports::progress(tx, who, progress, self.now).await?;
        }
        for result in &self.results {
            reports::result(tx, who, result, self.now).await?;
        }
        Ok(())
    }

    /// The server's row after this report.
    fn applied(&self, before: &Server) -> Server {
        let mut after = before.clone();
        if let Some(told) = &self.facts {
            after.hostname = told.hostname.clone();
            after.os = told.os.clone();
            after.kernel = told.kernel.to_string();
            after.arch = told.arch.to_string();
            after.package_manager = Some(told.package_manager);
            after.agent_version = told.agent_version.to_string();
            after.reboot_required = told.reboot_required;
            after.reboot_reasons = host_facts::reboot_reasons(told);
            after.facts = host_facts::keep(told);
        }
        if let Some(packages) = self.packages {
            after.package_set = Some(packages.digest);
            after.packages = packages.entries;
        }
        if let Some(updates) = self.updates {
            after.update_set = Some(updates.digest);
            after.updates = updates.entries;
            after.security_updates = updates.for_security(before, after.package_manager);
        }
        let known = host_facts::runs_of(&before.runs);
        let told = match &self.facts {
            Some(told) => host_facts::runs(told),
            None => (
                host_facts::old_packages(&host_facts::kept(&before.facts).old_code),
                known.foreign_kernel,
            ),
        };
        after.runs =
            host_facts::runs_text(&known.next(told, before.package_set, after.package_set));
        // The host's clock may be ahead; a scan cannot be in the future.
        after.last_scan_at = self.scanned_at.map(|at| at.min(self.now)).or(before.last_scan_at);
        after.activity = self.activity.to_owned();
        after
    }

    /// The state that is then in the database.
    fn known(&self, after: Server) -> Known {
        Known {
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
        let at_work = AtomicBool::new(true);
        drop(AtWork(&at_work));
        assert!(at_work.load(Ordering::Acquire), "only the writer itself clears the flag");
        let panicked = catch_unwind(|| {
            let _at_work = AtWork(&at_work);
            assert!(!at_work.load(Ordering::Acquire), "a bug");
        });
        assert!(panicked.is_err() && !at_work.load(Ordering::Acquire));
    }
}
