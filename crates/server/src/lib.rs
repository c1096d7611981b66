//! The control plane as one process: listeners, TLS, background work, and the combined routers of
//! `api`, `dashboard` and `gateway`.

mod answers;
pub mod app;
pub mod background;
mod observe;
mod run;
mod serve;
mod stall;

pub use answers::AnswerBudget;
pub use app::{Budgets, observed, router};
pub use run::{end_abandoned_requests, run};
pub use serve::serve;

/// The OpenAPI document as JSON.
pub fn openapi() -> &'static str {
    api::openapi::text()
}
