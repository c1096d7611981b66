//! The parts of one process, put together.

use std::sync::Arc;

use gateway::Gateway;
pub use service::app::{Parts, Settings};

use crate::http::limit::Limits;
use crate::web::gate::Gate;

/// What the routers are mounted with. Cheap to clone. Nothing below this crate knows it.
#[derive(Clone)]
pub struct App(Arc<Inner>);

struct Inner {
    gateway: Gateway,
    limits: Limits,
    gate: Gate,
}

impl App {
    /// Puts the parts together.
    pub fn new(parts: Parts) -> App {
        let limits = Limits::new(&parts.settings);
        let gateway = Gateway::new(service::App::new(parts));
        App(Arc::new(Inner { gateway, limits, gate: Gate::new() }))
    }

    /// What commands and queries need.
    pub fn service(&self) -> &service::App {
        &self.0.gateway
    }

    /// The agents that talk to this process.
    pub fn gateway(&self) -> &Gateway {
        &self.0.gateway
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.0.limits
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.0.gate
    }
}

impl std::ops::Deref for App {
    type Target = service::App;
    fn deref(&self) -> &service::App {
        self.service()
    }
}
