//! The dashboard in a real Chromium: what people see and do, over the real service with a fleet that is at work.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a helper that fails fails the test, and a story that is skipped says so"
)]

#[path = "../fleetmend/operator.rs"]
#[allow(dead_code, reason = "the stories in tests/fleetmend use the rest of it")]
mod operator;

#[path = "../fleetmend/support.rs"]
#[allow(dead_code, reason = "the stories in tests/fleetmend use the rest of it")]
mod support;

#[path = "../agents/support.rs"]
#[allow(dead_code, reason = "the stories in tests/agents use the rest of it")]
mod agents;
// As the module above knows it.
use support as service;

mod axe;
mod driver;
mod node;
mod scene;

mod looks;
mod oidc;
mod patching;
mod previews;
mod work;
mod zone;
