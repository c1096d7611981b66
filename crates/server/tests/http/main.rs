//! Integration tests of the API and the dashboard through the real router, on both databases.
//!
//! They are one program, so that they share what is in `support`, `fleet` and `browser`, and are
//! linked once.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::wrong_self_convention,
    reason = "a failed test stops, a skipped one says so, and `is` is an assertion"
)]

mod browser;
mod fleet;
mod markup;
mod provider;
mod support;

mod api_conventions;
mod credentials;
mod disk_full;
mod exhaustion;
mod idempotency;
mod install;
mod reference;
mod resources;
mod web;
