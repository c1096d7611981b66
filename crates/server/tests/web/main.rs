//! The dashboard through the real router, told as stories on both engines.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::wrong_self_convention,
    reason = "a story that fails stops, one that is skipped says so, and an answer is what it is"
)]

#[path = "../http/support.rs"]
#[allow(dead_code, reason = "the stories in tests/http use the rest of it")]
mod support;

#[path = "../resources/fleet.rs"]
#[allow(dead_code, reason = "the stories in tests/resources use the rest of it")]
mod fleet;

mod browser;
mod markup;
mod provider;

mod actions;
mod door;
mod every_page;
mod files;
mod oidc;
mod previews;
mod root_rotation;
mod tables;
