//! The engine: background work that carries out batches, schedules and feed updates.
//!
//! It takes no input. A notification or a timer wakes its tasks, and they read the database to find
//! out what to do, so that recovery after a crash is the normal code path. Of several replicas one
//! leads (`leader`), and only the leader plans and starts work; its lease fences every transaction
//! in which it does so. Work for the agents connected to this process belongs to `gateway`, in
//! every replica.

mod daily_stats;
mod feeds;
mod leader;
mod notifications;
mod presence;
mod refresh;
mod retention;
mod rollouts;
mod schedules;
mod webhooks;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use store::leases::Lease;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use vocab::ServerId;

use service::App;

pub use leader::{LEASE_TTL, SKEW_MAX};

/// How often the engine runs work that no notification triggers.
#[derive(Debug, Clone, Copy)]
pub struct Intervals {
    /// Interval between renewals of the lease, or attempts to acquire it.
    pub lease_renewal: Duration,
    /// Interval at which a task checks for work without a notification.
    pub poll: Duration,
    /// Interval between deletions of old data.
    pub retention: Duration,
}

impl Default for Intervals {
    fn default() -> Self {
        Intervals {
            lease_renewal: Duration::from_secs(2),
            poll: Duration::from_secs(5),
            retention: Duration::from_secs(600),
        }
    }
}

/// A running engine. If it is dropped without [`Engine::stop`], its tasks are aborted wherever they
/// are, as in a crash.
#[must_use = "dropping the engine aborts its tasks"]
pub struct Engine {
    app: App,
    lead: watch::Receiver<LeaderLease>,
    tasks: Vec<JoinHandle<()>>,
}

/// The lease, while this process leads.
pub type LeaderLease = Option<Arc<Lease>>;

/// Serializes long writes of the engine's tasks. The schedule task holds it while it starts
/// everything that is due at one instant, so that driving the first batches does not delay the
/// others.
type WriteLock = Arc<tokio::sync::Mutex<()>>;

/// The servers that cannot take an order now. `None` until the first presence check.
type PresenceSnapshot = Option<Arc<UnavailableServers>>;

/// The servers that cannot take an order now, by reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct UnavailableServers {
    /// Offline, quarantined or removed.
    offline: BTreeSet<ServerId>,
    /// Servers whose agent reports work in progress.
    busy: BTreeSet<ServerId>,
}

/// What the engine's tasks need whenever they are started or restarted.
#[derive(Clone)]
struct TaskContext {
    app: App,
    intervals: Intervals,
    lease_sender: watch::Sender<LeaderLease>,
    lead: watch::Receiver<LeaderLease>,
    presence_sender: watch::Sender<PresenceSnapshot>,
    presence: watch::Receiver<PresenceSnapshot>,
    write_lock: WriteLock,
}

fn spawn_supervised<F>(
    context: &TaskContext,
    name: &'static str,
    start: fn(TaskContext) -> F,
) -> JoinHandle<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let parts = context.clone();
    tokio::spawn(service::supervise::run(name, move || start(parts.clone())))
}

pub fn spawn(app: App) -> Engine {
    spawn_with(app, Intervals::default())
}

/// Starts the engine with other intervals, for tests.
pub fn spawn_with(app: App, intervals: Intervals) -> Engine {
    let (lead_in, lead) = watch::channel(None);
    let (away_in, away) = watch::channel(None);
    let write_lock = WriteLock::default();
    let context = TaskContext {
        app,
        intervals,
        lease_sender: lead_in,
        lead,
        presence_sender: away_in,
        presence: away,
        write_lock,
    };
    let tasks = vec![
        spawn_supervised(&context, "leader", |p| {
            leader::run(p.app, p.intervals.lease_renewal, p.lease_sender)
        }),
        spawn_supervised(&context, "presence", |p| {
            presence::run(p.app, p.intervals.poll, p.lead, p.presence_sender)
        }),
        spawn_supervised(&context, "rollouts", |p| {
            rollouts::run(p.app, p.intervals.poll, p.lead, p.presence, p.write_lock)
        }),
        spawn_supervised(&context, "schedules", |p| {
            schedules::run(p.app, p.intervals.poll, p.lead, p.write_lock)
        }),
        spawn_supervised(&context, "refreshes", |p| refresh::run(p.app, p.intervals.poll, p.lead)),
        spawn_supervised(&context, "feeds", |p| feeds::update(p.app, p.intervals.poll, p.lead)),
        spawn_supervised(&context, "daily statistics", |p| {
            daily_stats::run(p.app, p.intervals.poll, p.lead)
        }),
        spawn_supervised(&context, "webhooks", |p| webhooks::run(p.app, p.intervals.poll, p.lead)),
        spawn_supervised(&context, "notifications", |p| {
            notifications::run(p.app, p.intervals.poll, p.lead)
        }),
        spawn_supervised(&context, "retention", |p| {
            retention::run(p.app, p.intervals.retention, p.lead)
        }),
    ];
    let TaskContext { app, lead, .. } = context;
    Engine { app, lead, tasks }
}

impl Engine {
    pub fn leads(&self) -> bool {
        self.lead.borrow().is_some()
    }

    /// Stops all tasks and releases the lease.
    pub async fn stop(mut self) {
        for task in std::mem::take(&mut self.tasks) {
            task.abort();
            // An aborted task ends at its next await point; uncommitted work is rolled back.
            let _ = task.await;
        }
        let lease = self.lead.borrow().clone();
        let Some(lease) = lease else { return };
        if let Err(error) = leader::release(&self.app, &lease).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "could not release the lease");
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn wait_for_lead(lead: &mut watch::Receiver<LeaderLease>) -> Arc<Lease> {
    loop {
        if let Some(lease) = lead.borrow_and_update().clone() {
            return lease;
        }
        if lead.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Returns the time until `at`, but at most `poll`, because the clock may be set.
fn sleep_time(at: Option<Timestamp>, now: Timestamp, poll: Duration) -> Duration {
    let left = at.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO));
    left.map_or(poll, |left| left.min(poll))
}

/// Logs an error once. A lost lease is not an error: another replica continues the work.
fn log_error(what: &str, error: &store::StoreError) {
    match error {
        store::StoreError::LeaseLost { .. } => {
            tracing::info!(what, "another replica is now the leader");
        }
        error => tracing::warn!(
            what,
            error = error as &dyn std::error::Error,
            "task failed; retrying later"
        ),
    }
}
