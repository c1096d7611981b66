//! Integration tests of the engine and the agent protocol on both databases: a real router, a real
//! engine, agents that sign with real keys, and a clock that the test sets.

#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

mod agent;
mod support;

mod abuse;
mod agent_protocol;
mod audit_log;
mod automatic_feeds;
mod clocks;
mod daily_stats;
mod feeds;
mod health;
mod interruptions;
mod key_rotation;
mod notifications;
mod pinned_versions;
mod proxy;
mod recorded_agent;
mod refreshes;
mod replicas;
mod rollouts;
mod root_rotation;
mod runtime_findings;
mod schedules;
mod tampering;
mod webhooks;
