//! What agents tell that must be written down, many of them in one transaction.
//!
//! Whoever brings something puts it on the pile and waits; one task at a time takes what lies there
//! and commits it together, so that a thousand reports cost some ten commits. A part that fails is
//! undone alone. An answer means: it is committed.

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

/// How many parts share a commit at the most.
const TOGETHER_MAX: usize = 200;
/// How often a part is tried that others keep overtaking.
const TRIES: u32 = 20;

/// Something to be written down.
pub(super) enum Part {
    /// What a sync tells.
    News(Box<News>),
    /// A list of packages.
    Listing {
        /// Whose.
        org: OrgId,
        /// Of what.
        kind: Kind,
        /// The list.
        packed: Packed,
        /// When it came.
        now: Timestamp,
    },
    /// A piece of a log.
    Log(Log),
}

/// A piece of a log.
pub(super) struct Log {
    pub(super) task: TaskId,
    /// Where it begins.
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
        // One piece has one end.
        Ok(done.map(|ends| Written::Log(ends.first().copied().unwrap_or(Append::Gap(0)))))
    }
}

/// What a sync tells.
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
    /// Package sets that the answer asks for.
    pub(super) wanted: Vec<(Kind, Digest)>,
    pub(super) now: Timestamp,
}

/// A list that is in the store, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) digest: Digest,
    pub(super) entries: u32,
    pub(super) security: u32,
}

impl Counted {
    /// How many of these updates are for security, until what the feeds know of them is counted in (`service::projections::patches`). A
    /// manager that says nothing of security does not say that there are none: then what was counted before stands, as far
    /// as so many are pending.
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

/// What came of a part.
pub(super) enum Written {
    /// It stands so.
    Server(Known),
    /// It is stored.
    Listing,
    /// The log is this long, or has a gap.
    Log(Append),
}

struct Waiting {
    part: Part,
    /// The memory of the request that brought it, so that what waits here is limited too.
    _reserved: Reserved,
    tries: u32,
    reply: oneshot::Sender<Result<Written, Refusal>>,
}

/// The pile.
#[derive(Default)]
pub(super) struct WriteBatcher {
    pile: Mutex<Vec<Waiting>>,
    at_work: AtomicBool,
}

/// Writes a part down. Answers once it is committed.
pub(super) async fn write(
    app: &Gateway,
    part: Part,
    reserved: Reserved,
) -> Result<Written, Refusal> {
    let (reply, answer) = oneshot::channel();
    let press = &app.registry().press;
    lock(&press.pile).push(Waiting { part, _reserved: reserved, tries: 0, reply });
    if !press.at_work.swap(true, Ordering::AcqRel) {
        // A task of its own: the request that began it may be cut while others wait for it.
        tokio::spawn(work(app.clone()));
    }
    answer.await.unwrap_or_else(|_| Err(Refusal::unavailable()))
}

/// Lets others begin if the one at work panics: their parts would wait forever.
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
            // Someone may have come between the look and the store.
            if lock(&press.pile).is_empty() || press.at_work.swap(true, Ordering::AcqRel) {
                return;
            }
            continue;
        }
        // Tasks of one rollout have ids of one time, so this is the order in which everyone locks.
        parts.sort_by_key(|waiting| waiting.part.first_task());
        let done = together(&app, &parts).await;
        answer(&app, parts, done);
    }
}

/// All parts in one transaction, each with what came of it.
async fn together(app: &Gateway, parts: &[Waiting]) -> store::Result<Vec<store::Result<Written>>> {
    let mut tx = app.db.begin().await?;
    let mut done: Vec<Option<store::Result<Written>>> = Vec::with_capacity(parts.len());
    // Rollouts before servers, as the engine does when it claims servers: who locks in one order
    // never waits crosswise.
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

/// All reports at once. Whether that went well: if not, nothing of it stands, and each is taken by itself.
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

/// All pieces of logs at once. Nothing, if that did not go well: then nothing of it stands, and each is taken by itself.
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
            tracing::warn!(error = &error as &dyn std::error::Error, "nothing was written");
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

    /// The server once it knows this.
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
        // A host's clock may be ahead; nobody has looked at packages tomorrow.
        after.last_scan_at = self.scanned_at.map(|at| at.min(self.now)).or(before.last_scan_at);
        after.activity = self.activity.to_owned();
        after
    }

    /// What is written down then.
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
    fn writer_that_panics_lets_the_next_one_begin() {
        let at_work = AtomicBool::new(true);
        drop(AtWork(&at_work));
        assert!(at_work.load(Ordering::Acquire), "the writer itself says when it is done");
        let panicked = catch_unwind(|| {
            let _at_work = AtWork(&at_work);
            assert!(!at_work.load(Ordering::Acquire), "a bug");
        });
        assert!(panicked.is_err() && !at_work.load(Ordering::Acquire));
    }
}
