//! The control plane as one process: the API, the dashboard, and everything below them put together.
//!
//! `http` and `web` turn requests into calls of `service` and its answers into JSON and pages. The agent
//! protocol is `gateway`, and what happens without a request is `engine`.

pub mod app;
pub mod background;
pub mod http;
mod run;
pub mod web;

pub use run::{end_abandoned_requests, run};
