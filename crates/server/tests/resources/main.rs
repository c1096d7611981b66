//! Servers, schedules, patches and batches through the real router, told as stories on both engines.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::wrong_self_convention,
    reason = "a story that fails stops, one that is skipped says so, and an answer is what it is"
)]

#[path = "../http/support.rs"]
#[allow(dead_code, reason = "the stories in tests/http use the rest of it")]
mod support;

#[path = "../http/publisher.rs"]
mod publisher;

mod fleet;

mod apart;
mod assessment;
mod audit;
mod batches;
mod crashes;
mod cves;
mod feeds;
mod follow;
mod matching;
mod mutations;
mod patches;
mod preview;
mod schedules;
mod secured;
mod servers;
mod severity;
mod suppressions;
