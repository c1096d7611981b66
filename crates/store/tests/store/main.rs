//! Every function of the store, told as stories on both engines.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cloned_ref_to_slice_refs,
    reason = "a story that fails stops, and a copy more is read more easily"
)]

mod support;

mod agents;
mod claims;
mod credentials;
mod database;
mod days;
mod effects;
mod every_filter;
mod feeds;
mod findings;
mod leases;
mod lists;
mod logs;
mod patches;
mod plans;
mod rollouts;
mod schedules;
mod search;
mod servers;
mod users;
mod worked_examples;
