//! Integration tests of the API through its real router, on both databases.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails the test")]
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

mod support;

mod api_conventions;
mod credentials;
mod disk_full;
mod exhaustion;
mod idempotency;
