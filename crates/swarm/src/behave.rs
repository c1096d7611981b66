//! What a simulated agent does with its orders: how long, how well, and what goes wrong.
//!
//! [`Worker`] is a state machine: it reads its arguments and the chance of its seed, and never the clock
//! or the network. `agent` turns it and tells the server what came of it. Like a real agent it
//! has a journal that outlives it: an order takes effect at most once, and one that comes again
//! is answered with the result that it had.

mod course;
#[cfg(test)]
mod stories;
mod worker;

pub use worker::{Durable, Happening, Taken, Worker};

use vocab::{FailureCode, Stage};

/// How the hosts of a fleet behave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Nature {
    /// What decides every chance.
    pub seed: u64,
    /// The share of installations that fail.
    pub fail: f64,
    /// The share of orders during which the agent crashes and comes back.
    pub crash: f64,
    /// The share of time that a host is cut off.
    pub offline: f64,
    /// How many times faster than on a real host everything goes.
    pub speed: f64,
}

impl Default for Nature {
    fn default() -> Nature {
        Nature { seed: 1, fail: 0.02, crash: 0.005, offline: 0.01, speed: 1.0 }
    }
}

/// What one agent does on demand, until it is told otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Script {
    /// As chance has it.
    #[default]
    Usual,
    /// Everything succeeds, without a crash.
    Succeed,
    /// Installations fail for this reason, and other orders as well.
    FailWith(FailureCode),
    /// Orders are passed over in silence.
    NeverAnswer,
    /// A host that reboots does not come back while this script holds.
    HangInReboot,
    /// The host works on and cannot be heard while this script holds.
    CutOff,
    /// The agent crashes in this stage and comes back.
    CrashIn(Stage),
}
