//! The control plane as one process: listeners, TLS, background work, and the combined routers of
//! `api`, `dashboard` and `gateway`.

pub mod app;
pub mod background;
mod lingering_close;
mod request_log;
mod response_budget;
mod run;
mod serve;
mod stall;

pub use app::{Budgets, router, with_request_log};
pub use response_budget::ResponseBudget;
pub use run::{end_abandoned_requests, run};
pub use serve::serve;

/// The OpenAPI document as JSON.
pub fn openapi() -> &'static str {
    api::openapi::text()
}
