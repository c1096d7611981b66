//! The parts of one process, put together.

use axum::Router;
use axum::middleware::from_fn_with_state;
use gateway::Gateway;
use httpkit::{ApiError, BodyBudget, Code};
pub use service::app::{Parts, Settings};

use crate::answers::AnswerBudget;
use crate::observe::observe;

/// A service with its gateway. Cheap to clone.
#[derive(Clone)]
pub struct App(Gateway);

impl App {
    /// Puts the parts together.
    pub fn new(parts: Parts) -> App {
        App(Gateway::new(service::App::new(parts)))
    }

    /// What commands and queries need.
    pub fn service(&self) -> &service::App {
        &self.0
    }

    /// The agents that talk to this process.
    pub fn gateway(&self) -> &Gateway {
        &self.0
    }
}

impl std::ops::Deref for App {
    type Target = service::App;
    fn deref(&self) -> &service::App {
        self.service()
    }
}

/// Everything that this process answers: the API, the dashboard and the agent protocol.
pub fn router(app: &App) -> Router {
    let router = Router::new()
        .merge(api::router(api::Api::new(app.service().clone())))
        .merge(gateway::router(app.gateway()))
        .merge(dashboard::router(dashboard::Dashboard::new(app.service().clone())))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed);
    observed(router, Budgets::default())
}

/// The memory that requests and answers may use, over all connections. `gateway` has separate limits for agents' requests.
#[derive(Debug, Clone, Default)]
pub struct Budgets {
    /// For the bodies of requests.
    pub requests: BodyBudget,
    /// For large answers.
    pub answers: AnswerBudget,
}

/// A router with what is around every request: an id, a line in the log, metrics and limits.
pub fn observed(router: Router, budgets: Budgets) -> Router {
    router.layer(from_fn_with_state(budgets, observe))
}

async fn not_found() -> ApiError {
    ApiError::new(Code::NotFound, "There is nothing at this path.")
}

async fn method_not_allowed() -> ApiError {
    ApiError::new(Code::MethodNotAllowed, "This path does not take this method; see `Allow`.")
}
