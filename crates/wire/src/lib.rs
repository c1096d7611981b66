//! Request and response bodies: [`v1`] is the public API, [`agent`] is the protocol between agents
//! and the service.
//!
//! This crate contains types only: no rules, no defaults, no behavior. The `service` crate
//! interprets the bodies and maps them to `domain` types with exhaustive matches, so that a new
//! state does not compile until someone decides how the API shows it.

pub mod agent;
pub mod v1;
