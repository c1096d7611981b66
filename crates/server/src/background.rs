//! Everything that this process does besides answering requests: the engine and the gateway's tasks.

use std::time::Duration;

use engine::Engine;

use crate::app::App;

/// How often background work is done that no notification asks for.
#[derive(Debug, Clone, Copy)]
pub struct Pulse {
    /// How often the lead is renewed, or asked for.
    pub lead: Duration,
    /// How often a task looks without having been woken.
    pub look: Duration,
    /// How often heartbeats are written.
    pub beats: Duration,
    /// How often what is old is deleted.
    pub sweep: Duration,
}

impl Default for Pulse {
    fn default() -> Self {
        let engine::Pulse { lead, look, sweep } = engine::Pulse::default();
        Pulse { lead, look, beats: gateway::Pulse::default().beats, sweep }
    }
}

/// Running background work. Dropped without [`Background::stop`], it ends where it is, as in a crash.
#[must_use = "background work that is dropped ends at once"]
pub struct Background {
    engine: Engine,
    gateway: gateway::Background,
}

/// Starts it.
pub fn spawn(app: &App) -> Background {
    spawn_with(app, Pulse::default())
}

/// Starts it with another pulse: for tests, which cannot wait for seconds.
pub fn spawn_with(app: &App, pulse: Pulse) -> Background {
    let Pulse { lead, look, beats, sweep } = pulse;
    Background {
        engine: engine::spawn_with(app.service().clone(), engine::Pulse { lead, look, sweep }),
        gateway: gateway::Background::spawn(app.gateway().clone(), gateway::Pulse { look, beats }),
    }
}

impl Background {
    /// Whether this process leads.
    pub fn leads(&self) -> bool {
        self.engine.leads()
    }

    /// Ends in order: agents are answered, heartbeats written, the lead given back.
    pub async fn stop(self) {
        self.gateway.stop().await;
        self.engine.stop().await;
    }
}
