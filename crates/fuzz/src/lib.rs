//! Fuzz targets: one plain function per parser of bytes that come from outside.
//!
//! `cargo xtask fuzz` runs them under libFuzzer (`fuzz/` at the top of the repository). `cargo test -p fuzz` replays `seeds`
//! and `regressions`, and mutates them for a moment ([`mutate`]). A target fails by a panic, by taking longer than a
//! second, or by taking more than 512 MiB, on an input of at most [`INPUT_BYTES_MAX`].

#[cfg(feature = "server")]
mod backup;
pub mod mutate;
mod targets;

use std::sync::OnceLock;

/// The most bytes of an input.
pub const INPUT_BYTES_MAX: usize = 64 * 1024;

/// A parser of outside bytes.
#[derive(Clone, Copy)]
pub struct Target {
    /// What it is called on the command line; its seeds are in the directory of that name.
    pub name: &'static str,
    /// Reads an input. Must return, whatever it holds.
    pub run: fn(&[u8]),
}

/// Every target.
pub const TARGETS: &[Target] = targets::ALL;

/// The target of this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().find(|target| target.name == name).copied()
}

/// Runs the target that `FLEETMEND_FUZZ_TARGET` names. Of several, divided by commas, the first byte chooses one.
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
