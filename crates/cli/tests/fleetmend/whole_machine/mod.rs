//! Tests with hundreds or thousands of agents. `cargo xtask test` runs them when nothing else runs:
//! next to other programs they would measure how the machine is shared, not how the service behaves.

pub(crate) mod fleet;
mod memory;
mod outage;
mod replicas;
