//! How a simulated agent carries out its orders: how long they take, whether they succeed, and what
//! goes wrong.
//!
//! [`Worker`] is a state machine: it depends only on its arguments and its seed, never on the clock
//! or the network. `agent` drives it and reports the results to the service. Like a real agent, it
//! has a journal that survives a crash: an order takes effect at most once, and a repeated order is
//! answered with its earlier result.

mod execution_plan;
#[cfg(test)]
mod scenarios;
mod worker;

pub(crate) use worker::healthy;
pub use worker::{HostEvent, OrderReceipt, PersistentState, Worker};

use vocab::{FailureCode, Stage};

/// How the hosts of a fleet behave. All shares are from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Behavior {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Share of installations that fail.
    pub fail: f64,
    /// Share of orders during which the agent crashes and restarts.
    pub crash: f64,
    /// Share of time that a host is disconnected.
    pub offline: f64,
    /// Speed-up compared to real hosts.
    pub speed: f64,
}

impl Default for Behavior {
    fn default() -> Behavior {
        Behavior { seed: 1, fail: 0.02, crash: 0.005, offline: 0.01, speed: 1.0 }
    }
}

/// A scripted behavior of one agent, in effect until it is replaced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Script {
    /// Random behavior, as configured in [`Behavior`].
    #[default]
    Random,
    /// Everything succeeds, without a crash.
    Succeed,
    /// Every order fails with this code.
    FailWith(FailureCode),
    /// The agent ignores orders silently.
    IgnoreOrders,
    /// A host that reboots does not come back while this script is active.
    HangInReboot,
    /// The host keeps working but is disconnected while this script is active.
    Disconnect,
    /// The agent crashes in this stage and restarts.
    CrashIn(Stage),
}
