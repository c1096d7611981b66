//! Thousands of simulated agents in one process, over the real protocol with real signatures.
//!
//! The protocol comes from the crate `agent-client`, which has no simulation code. [`fleet`]
//! generates the hosts, [`behave`] decides what an agent does with an order, and [`Swarm`] runs one
//! task per agent. A [`Ledger`] records what really happened on each host, and every reported
//! result is checked against it. Load tests, benchmarks, end-to-end tests and the demo call
//! [`Swarm::start`].

mod agent;
pub mod behave;
mod chance;
pub mod fleet;
mod ledger;
mod outage;
mod saved;
mod swarm;

pub use chance::Chance;
pub use ledger::{Ledger, Span, Violation};
pub use saved::{Saved, SavedError};
pub use swarm::{Config, Counts, EnrollmentRefused, Pace, StartError, Swarm};
