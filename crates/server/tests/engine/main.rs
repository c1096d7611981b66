//! The engine and the agents' side door, told as stories on both databases: a real router, a real
//! engine, agents that sign with real keys, and a clock that is turned by hand.

#![expect(clippy::unwrap_used, reason = "a story stops at the first surprise")]
#![expect(clippy::print_stdout, reason = "a story that is left out says so")]

mod agent;
#[path = "../http/publisher.rs"]
mod publisher;
mod support;

mod abuse;
mod audit_log;
mod clocks;
mod days;
mod door;
mod feeds;
mod flaws;
mod key_rotation;
mod outside;
mod proxy;
mod recorded;
mod refreshes;
mod replicas;
mod rollouts;
mod root_rotation;
mod schedules;
mod tampering;
