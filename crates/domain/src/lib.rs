//! Domain model and rules: rollouts, schedules, freezes, advisories, findings, policies,
//! inventories.
//!
//! Pure code: no async, no I/O, no clock, no randomness. Time is an argument, and the same
//! arguments always give the same result. The callers (engine, store, tests) load, call, save and
//! act.

pub mod advisory;
pub mod explain;
pub mod finding;
pub mod forecast;
pub mod freeze;
pub mod inventory;
pub mod policy;
pub mod rollout;
pub mod schedule;
pub mod selector;
pub mod server;
pub mod sim;
