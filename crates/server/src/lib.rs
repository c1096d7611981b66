//! The control plane as one process: listeners, TLS, background work, and the combined routers of
//! `api`, `dashboard` and `gateway`.

mod response_budget;
pub mod app;
pub mod background;
mod request_log;
mod run;
mod serve;
mod stall;

pub use response_budget::ResponseBudget;
pub use app::{Budgets, with_request_log, router};
pub use run::{end_abandoned_requests, run};
pub use serve::serve;

/// The OpenAPI document as JSON.
pub fn openapi() -> &'static str {
    api::openapi::text()
}
