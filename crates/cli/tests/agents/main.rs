//! The real service and the real agent, on systems with real package managers.

#![expect(clippy::unwrap_used, reason = "a test that fails to set up has failed")]

mod apt;
mod clocks;
mod hostile;
mod hosts;
mod key_rotation;
mod kills;
mod life;
mod others;
mod proxy;
mod reboots;
#[path = "../fleetmend/support.rs"]
#[expect(dead_code, reason = "what the other tests of this binary need as well")]
mod service;
mod support;
mod ten;
mod tutorial;
mod villain;
