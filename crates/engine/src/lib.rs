//! The engine: it carries out what was ordered.
//!
//! It takes no input. Its tasks are woken by a bell or a timer and look for themselves, so that the
//! path after a crash is the path of every day. Of several replicas one leads (`leader`), and only
//! that one plans and starts things; every transaction in which it does so is fenced by its lease.
//! What concerns the agents that are connected to this process is the gateway's, in every replica.

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

/// How often the engine does what no bell tells it to.
#[derive(Debug, Clone, Copy)]
pub struct Pulse {
    /// How often the lead is renewed, or asked for.
    pub lead: Duration,
    /// How often a task looks without having been woken.
    pub look: Duration,
    /// How often what is old is forgotten.
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

/// A running engine. Dropped without [`Engine::stop`], it dies where it stands, as in a crash.
#[must_use = "an engine that is dropped dies at once"]
pub struct Engine {
    app: App,
    lead: watch::Receiver<Lead>,
    tasks: Vec<JoinHandle<()>>,
}

/// The lease, while this process leads.
pub type Lead = Option<Arc<Lease>>;

/// Held by whoever of the engine writes for long: the calendar takes it for all that is due at an instant, so that
/// what it starts first does not keep the rest waiting.
type Pen = Arc<tokio::sync::Mutex<()>>;

/// Those who cannot take an order now. Nothing until somebody has looked.
type Away = Option<Arc<Unable>>;

/// Those who cannot take an order now, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Unable {
    /// Not heard from, or barred.
    away: BTreeSet<ServerId>,
    /// Their agents say that they are at work, on whatever.
    at_work: BTreeSet<ServerId>,
}

/// What tasks of the engine are started with, as often as they have to be started.
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

/// Starts the engine.
pub fn spawn(app: App) -> Engine {
    spawn_with(app, Pulse::default())
}

/// Starts the engine with another pulse: for tests, which are in a hurry.
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
    /// Whether this process leads.
    pub fn leads(&self) -> bool {
        self.lead.borrow().is_some()
    }

    /// Ends its tasks and gives the lead back.
    pub async fn stop(mut self) {
        for task in std::mem::take(&mut self.tasks) {
            task.abort();
            // An aborted task ends at its next pause; what it had not committed never was.
            let _ = task.await;
        }
        let lease = self.lead.borrow().clone();
        let Some(lease) = lease else { return };
        if let Err(error) = leader::give_back(&self.app, &lease).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "the lead could not be given back");
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Waits until this process leads.
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

/// How long to sleep until `at`, and no longer than `look`: the clock may be set.
fn until(at: Option<Timestamp>, now: Timestamp, look: Duration) -> Duration {
    let left = at.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO));
    left.map_or(look, |left| left.min(look))
}

/// Says once what went wrong. A lost lease is not an error: another replica goes on.
fn complain(what: &str, error: &store::StoreError) {
    match error {
        store::StoreError::LeaseLost { .. } => tracing::info!(what, "another replica leads now"),
        error => tracing::warn!(what, error = error as &dyn std::error::Error, "tried again later"),
    }
}
