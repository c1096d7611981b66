//! The control plane.
//!
//! `http` turns words into meaning and back, `service` is the only way in which it writes, and `engine` carries
//! out what was ordered: it takes no input, is woken by a bell or a timer, and looks for itself, so
//! that the path after a crash is the path of every day.

pub mod agents;
pub mod app;
pub mod clock;
pub mod condition;
pub mod engine;
pub mod fetch;
pub mod http;
pub mod oidc;
mod run;
pub mod secrets;
pub mod service;
pub mod web;

pub use run::{end_abandoned_requests, run};
