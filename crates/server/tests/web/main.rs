//! Integration tests of the dashboard through the real router, on both databases.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::wrong_self_convention,
    reason = "a failed test stops, a skipped one says so, and `is` is an assertion"
)]

#[path = "../http/support.rs"]
#[allow(dead_code, reason = "the tests in tests/http use the rest")]
mod support;

#[path = "../resources/fleet.rs"]
#[allow(dead_code, reason = "the tests in tests/resources use the rest")]
mod fleet;

mod browser;
mod markup;
mod provider;

mod actions;
mod csv_exports;
mod every_page;
mod login;
mod oidc;
mod previews;
mod root_rotation;
mod tables;
