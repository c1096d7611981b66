//! The real service and the real agent, on systems with real package managers.

#![expect(clippy::unwrap_used, reason = "a failing setup fails the test")]

mod apt;
mod attacker;
mod clocks;
mod first_hour;
mod hostile;
mod hosts;
mod install;
mod key_rotation;
mod kills;
mod lifecycle;
mod other_package_managers;
mod pinned_waves;
mod proxy;
mod reboots;
#[path = "../fleetmend/support.rs"]
#[expect(dead_code, reason = "other tests use the rest of it")]
mod service;
mod support;
mod ten_hosts;
mod tutorial;
