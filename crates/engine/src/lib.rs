//! The engine: background work that carries out batches, schedules and feed updates.
//!
//! It takes no input. A notification or a timer wakes its tasks, and they read the database to find
//! out what to do, so that recovery after a crash is the normal code path. Of several replicas one
//! leads (`leader`), and only the leader plans and starts work; its lease fences every transaction
//! in which it does so. Work for the agents connected to this process belongs to `gateway`, in
//! every replica.

mod days;
mod feeds;
mod leader;
mod presence;
mod refresh;
mod retention;
mod rollouts;
mod schedules;

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
pub struct Pulse {
    /// Interval between renewals of the lease, or attempts to acquire it.
    pub lead: Duration,
    /// Interval at which a task checks for work without a notification.
    pub look: Duration,
    /// Interval between deletions of old data.
    pub sweep: Duration,
}

impl Default for Pulse {
    fn default() -> Self {
        Pulse {
            lead: Duration::from_secs(2),
            look: Duration::from_secs(5),
            sweep: Duration::from_secs(600),
        }
    }
}

/// A running engine. If it is dropped without [`Engine::stop`], its tasks are aborted wherever they
/// are, as in a crash.
#[must_use = "dropping the engine aborts its tasks"]
pub struct Engine {
    app: App,
    lead: watch::Receiver<Lead>,
    tasks: Vec<JoinHandle<()>>,
}

/// The lease, while this process leads.
pub type Lead = Option<Arc<Lease>>;

/// Serializes long writes of the engine's tasks. The schedule task holds it while it starts
/// everything that is due at one instant, so that driving the first batches does not delay the
/// others.
type Pen = Arc<tokio::sync::Mutex<()>>;

/// The servers that cannot take an order now. `None` until the first presence check.
type Away = Option<Arc<Unable>>;

/// The servers that cannot take an order now, by reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Unable {
    /// Offline or barred from orders.
    away: BTreeSet<ServerId>,
    /// The agent reports that it is working on something.
    at_work: BTreeSet<ServerId>,
}

/// What the engine's tasks need whenever they are started or restarted.
#[derive(Clone)]
struct Parts {
    app: App,
    pulse: Pulse,
    lead_in: watch::Sender<Lead>,
    lead: watch::Receiver<Lead>,
    away_in: watch::Sender<Away>,
    away: watch::Receiver<Away>,
    pen: Pen,
}

fn supervised<F>(parts: &Parts, name: &'static str, start: fn(Parts) -> F) -> JoinHandle<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let parts = parts.clone();
    tokio::spawn(service::supervise::run(name, move || start(parts.clone())))
}

pub fn spawn(app: App) -> Engine {
    spawn_with(app, Pulse::default())
}

/// Starts the engine with other intervals, for tests.
pub fn spawn_with(app: App, pulse: Pulse) -> Engine {
    let (lead_in, lead) = watch::channel(None);
    let (away_in, away) = watch::channel(None);
    let pen = Pen::default();
    let parts = Parts { app, pulse, lead_in, lead, away_in, away, pen };
    let tasks = vec![
        supervised(&parts, "leader", |p| leader::lead(p.app, p.pulse.lead, p.lead_in)),
        supervised(&parts, "presence", |p| presence::watch(p.app, p.pulse.look, p.lead, p.away_in)),
        supervised(&parts, "rollouts", |p| {
            rollouts::drive(p.app, p.pulse.look, p.lead, p.away, p.pen)
        }),
        supervised(&parts, "schedules", |p| schedules::fire(p.app, p.pulse.look, p.lead, p.pen)),
        supervised(&parts, "refreshes", |p| refresh::expire(p.app, p.pulse.look, p.lead)),
        supervised(&parts, "feeds", |p| feeds::update(p.app, p.pulse.look, p.lead)),
        supervised(&parts, "daily statistics", |p| days::write(p.app, p.pulse.look, p.lead)),
        supervised(&parts, "retention", |p| retention::sweep(p.app, p.pulse.sweep, p.lead)),
    ];
    let Parts { app, lead, .. } = parts;
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
        if let Err(error) = leader::give_back(&self.app, &lease).await {
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

async fn until_leading(lead: &mut watch::Receiver<Lead>) -> Arc<Lease> {
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
fn until(at: Option<Timestamp>, now: Timestamp, look: Duration) -> Duration {
    let left = at.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO));
    left.map_or(look, |left| left.min(look))
}

/// Logs an error once. A lost lease is not an error: another replica continues the work.
fn complain(what: &str, error: &store::StoreError) {
    match error {
        store::StoreError::LeaseLost { .. } => tracing::info!(what, "another replica leads now"),
        error => tracing::warn!(
            what,
            error = error as &dyn std::error::Error,
            "task failed; retrying later"
        ),
    }
}
