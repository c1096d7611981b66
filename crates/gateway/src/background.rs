//! Background tasks of the gateway: write heartbeats, and follow orders, refreshes and removals in
//! the database. They run in every replica.

use std::time::Duration;

use service::supervise;
use tokio::task::JoinHandle;

use crate::{Gateway, dispatcher};

/// How often the tasks run without a notification.
#[derive(Debug, Clone, Copy)]
pub struct Intervals {
    /// How often a task checks the database without a notification.
    pub poll: Duration,
    /// How often heartbeats are written.
    pub heartbeats: Duration,
}

impl Default for Intervals {
    fn default() -> Self {
        Intervals { poll: Duration::from_secs(5), heartbeats: Duration::from_secs(2) }
    }
}

/// The running tasks of a gateway. If dropped without [`Background::stop`], they end immediately,
/// as in a crash.
#[must_use = "dropping it stops the tasks immediately"]
pub struct Background {
    gateway: Gateway,
    tasks: Vec<JoinHandle<()>>,
}

impl Background {
    pub fn spawn(gateway: Gateway, intervals: Intervals) -> Background {
        let Intervals { poll: look, heartbeats: beats } = intervals;
        let of = &gateway;
        let tasks = vec![
            supervised("heartbeats", of, move |gateway| write_heartbeats(gateway, beats)),
            supervised("dispatcher", of, move |gateway| dispatcher::run(gateway, look)),
            supervised("removals", of, move |gateway| dispatcher::watch_access(gateway, look)),
        ];
        Background { gateway, tasks }
    }

    /// Responds to the held syncs, stops the tasks and writes the last heartbeats.
    pub async fn stop(mut self) {
        self.gateway.drain();
        for task in std::mem::take(&mut self.tasks) {
            task.abort();
            // An aborted task ends at its next await; its uncommitted transaction is rolled back.
            let _ = task.await;
        }
        if let Err(error) = self.gateway.registry().write_heartbeats(&self.gateway, false).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "failed to write the last heartbeats");
        }
    }
}

fn supervised<F>(
    name: &'static str,
    gateway: &Gateway,
    start: impl Fn(Gateway) -> F + Send + 'static,
) -> JoinHandle<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let gateway = gateway.clone();
    tokio::spawn(supervise::run(name, move || start(gateway.clone())))
}

impl Drop for Background {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Writes heartbeats periodically, and immediately when an agent comes back online, until aborted.
async fn write_heartbeats(gateway: Gateway, every: Duration) {
    let registry = gateway.registry();
    let mut tick = tokio::time::interval(every);
    loop {
        let someone_returned = tokio::select! {
            () = registry.returned.notified() => true,
            _ = tick.tick() => false,
        };
        metrics::gauge!("fleetmend_agent_sessions").set(registry.session_count() as f64);
        if let Err(error) = registry.write_heartbeats(&gateway, someone_returned).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "failed to write heartbeats; retrying later"
            );
            if someone_returned {
                registry.returned.notify_one();
                tokio::time::sleep(every).await;
            }
        }
    }
}
