//! Integration tests of the API's resources through the real router, on both databases.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::wrong_self_convention,
    reason = "a failed test stops, a skipped one says so, and `is` is an assertion"
)]

#[path = "../http/support.rs"]
#[allow(dead_code, reason = "the tests in tests/http use the rest")]
mod support;

#[path = "../http/publisher.rs"]
mod publisher;

mod fleet;

mod assessment;
mod audit;
mod batches;
mod crashes;
mod cves;
mod feed_downloads;
mod feeds;
mod matching;
mod mutations;
mod patches;
mod preview;
mod schedules;
mod security_updates;
mod servers;
mod severity;
mod suppressions;
mod tenant_isolation;
