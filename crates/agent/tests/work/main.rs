//! Orders executed for real: the worker thread, the supervisor process, the journal on disk.

#![expect(clippy::unwrap_used, reason = "a test whose setup fails has failed")]

mod apt;
mod disk_full;
mod fake_host;
mod health;
mod orders;
mod pinned;
mod query_count;
mod state_damage;
