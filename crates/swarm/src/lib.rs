//! Thousands of simulated agents in one process, over the real protocol with real signatures.
//!
//! The protocol itself is `link`'s, which knows nothing of simulation. [`fleet`] makes
//! up the hosts, [`behave`] decides what an agent does with an order, [`Swarm`] runs one task
//! for each agent and keeps a [`Ledger`] of what really happened, against which every result is held.
//! Load tests, benchmarks, stories and the demo call [`Swarm::start`].

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
