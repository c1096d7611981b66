//! Fuzz targets: one plain function for each parser of untrusted input.
//!
//! `cargo xtask fuzz` runs them under libFuzzer (`fuzz/` at the top of the repository). `cargo test
//! -p fuzz` replays `seeds` and `regressions`, and mutates them briefly ([`mutate`]). A target
//! fails if it panics, takes longer than a second, or uses more than 512 MiB, on an input of at
//! most [`INPUT_BYTES_MAX`].

#[cfg(feature = "server")]
mod backup;
pub mod mutate;
mod targets;

use std::sync::OnceLock;

/// Maximum bytes of an input.
pub const INPUT_BYTES_MAX: usize = 64 * 1024;

/// A parser of untrusted input.
#[derive(Clone, Copy)]
pub struct Target {
    /// The name on the command line, and of the directory with its seeds.
    pub name: &'static str,
    /// Parses an input. Must return, whatever the input contains.
    pub run: fn(&[u8]),
}

pub const TARGETS: &[Target] = targets::ALL;

pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|target| target.name == name).copied()
}

/// Runs the target that `FLEETMEND_FUZZ_TARGET` names. If it names several, separated by commas,
/// the first byte of the input selects one.
///
/// # Panics
///
/// If there is no such target.
pub fn run_selected(input: &[u8]) {
    static SELECTED: OnceLock<Vec<Target>> = OnceLock::new();
    let selected = SELECTED.get_or_init(|| {
        let names = std::env::var("FLEETMEND_FUZZ_TARGET").unwrap_or_default();
        let named = |name: &str| target(name).unwrap_or_else(|| panic!("no fuzz target `{name}`"));
        names.split(',').map(named).collect()
    });
    match (&selected[..], input) {
        ([only], input) => (only.run)(input),
        (several, [first, rest @ ..]) => (several[usize::from(*first) % several.len()].run)(rest),
        _ => {}
    }
}
