//! What the things of Fleetmend are and how they move.
//!
//! No async, no I/O, no clock, no chance: time comes in as an argument, and the same arguments give the
//! same answer. Shells (the server's engine, the store, the tests) load, ask, save and do.

pub mod advisory;
pub mod finding;
pub mod inventory;
pub mod rollout;
pub mod schedule;
pub mod selector;
pub mod server;
pub mod sim;
