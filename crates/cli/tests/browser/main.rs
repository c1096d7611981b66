//! The dashboard in a real Chromium, with a real service and a working fleet.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failing helper fails the test, and a skipped test says so"
)]

#[path = "../fleetmend/operator.rs"]
#[allow(dead_code, reason = "the tests in tests/fleetmend use the rest of it")]
mod operator;

#[path = "../fleetmend/support.rs"]
#[allow(dead_code, reason = "the tests in tests/fleetmend use the rest of it")]
mod support;

#[path = "../agents/support.rs"]
#[allow(dead_code, reason = "the tests in tests/agents use the rest of it")]
mod agents;
// The name that the module above uses.
use support as service;

mod axe;
mod driver;
mod fixture;
mod node;

mod account;
mod api_reference;
mod lists;
mod notifications;
mod oidc;
mod operator_tasks;
mod page_layout;
mod patching;
mod previews;
mod time_zones;
