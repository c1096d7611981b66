//! Starts and stops the background work of this process: the engine and the gateway's tasks.

use std::time::Duration;

use engine::Engine;

use crate::app::App;

/// How often background work runs without a notification.
#[derive(Debug, Clone, Copy)]
pub struct Intervals {
    /// How often the leader lease is renewed or requested.
    pub lease: Duration,
    /// How often a task checks the database without a notification.
    pub poll: Duration,
    /// How often heartbeats are written.
    pub heartbeats: Duration,
    /// How often expired data is deleted.
    pub sweep: Duration,
}

impl Default for Intervals {
    fn default() -> Self {
        let engine::Intervals { lease_renewal: lead, poll: look, retention: sweep } =
            engine::Intervals::default();
        Intervals {
            lease: lead,
            poll: look,
            heartbeats: gateway::Intervals::default().heartbeats,
            sweep,
        }
    }
}

/// Running background work. If dropped without [`Background::stop`], it ends immediately, as in a
/// crash.
#[must_use = "dropping it stops the background work immediately"]
pub struct Background {
    engine: Engine,
    gateway: gateway::Background,
}

/// Starts the background work.
pub fn spawn(app: &App) -> Background {
    spawn_with(app, Intervals::default())
}

/// Starts the background work with other intervals, for tests.
pub fn spawn_with(app: &App, intervals: Intervals) -> Background {
    let Intervals { lease: lead, poll: look, heartbeats: beats, sweep } = intervals;
    Background {
        engine: engine::spawn_with(
            app.service().clone(),
            engine::Intervals { lease_renewal: lead, poll: look, retention: sweep },
        ),
        gateway: gateway::Background::spawn(
            app.gateway().clone(),
            gateway::Intervals { poll: look, heartbeats: beats },
        ),
    }
}

impl Background {
    /// Whether this process is the leader.
    pub fn is_leader(&self) -> bool {
        self.engine.leads()
    }

    /// Stops in order: responds to agents, writes heartbeats, releases the leader lease.
    pub async fn stop(self) {
        self.gateway.stop().await;
        self.engine.stop().await;
    }
}
