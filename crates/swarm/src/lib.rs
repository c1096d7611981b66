//! Thousands of simulated agents in one process, over the real protocol with real signatures.
//!
//! The protocol comes from the crate `agent-client`, which has no simulation code. [`fleet`]
//! generates the hosts, [`behavior`] decides what an agent does with an order, and [`Swarm`] runs
//! one task per agent. A [`Ledger`] records what really happened on each host, and every reported
//! result is checked against it. Load tests, benchmarks, end-to-end tests and the demo call
//! [`Swarm::start`].

mod agent;
pub mod behavior;
pub mod fleet;
mod ledger;
mod outage;
mod rng;
mod saved;
mod swarm;

pub use ledger::{Ledger, Violation, WorkSpan};
pub use rng::Rng;
pub use saved::{SavedAgents, SavedError};
pub use swarm::{Config, Counts, EnrollmentRefused, StartError, Swarm, SyncMode};
