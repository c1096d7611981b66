//! Tests of the store's functions, on both engines.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cloned_ref_to_slice_refs,
    reason = "a failed test may panic, and an extra copy is easier to read"
)]

mod support;

mod agents;
mod claims;
mod credentials;
mod daily_stats;
mod database;
mod feeds;
mod findings;
mod freezes;
mod idempotency_effects;
mod leases;
mod package_sets;
mod patches;
mod query_plans;
mod rollouts;
mod schedules;
mod server_filters;
mod server_search;
mod servers;
mod transactions;
mod users;
mod worked_examples;
