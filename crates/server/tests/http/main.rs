//! The service through its real router, told as stories on both engines.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails the test")]
#![expect(clippy::print_stdout, reason = "a test says so when it skips")]

mod support;

mod credentials;
mod disk_full;
mod everywhere;
mod exhaustion;
mod idempotency;
