//! Real package managers in their own root directories, for tests. Independent of the agent and the
//! service.
//!
//! - [`root`] creates whole systems in a few milliseconds each and leaves nothing behind.
//! - [`machine`] boots one of them with systemd, and [`network`] isolates it together with the
//!   service under test.
//! - [`apt`], [`rpm`] (dnf and zypper) and [`pacman`] create packages, repositories, and servers
//!   that have them installed.
//!
//! Everything requires root and Linux. If these, or a tool, are missing, constructors return `None`
//! after [`skip`] has printed why; the test then returns.

pub mod apt;
pub mod machine;
pub mod network;
pub mod pacman;
pub mod root;
pub mod rpm;

/// Prints that a test is skipped, and why. With `FLEETMEND_TEST_REQUIRE_TOOLS=1` the test fails
/// instead.
#[expect(clippy::print_stdout, reason = "a skipped test must be visible")]
pub fn skip(why: &str) {
    let required = std::env::var_os("FLEETMEND_TEST_REQUIRE_TOOLS").is_some_and(|set| set == "1");
    assert!(!required, "{why}");
    println!("skipped: {why}");
}

/// Whether these programs are installed; otherwise reports the Debian package of the missing one.
pub fn has_programs(programs: &[(&str, &str)]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    for (program, package) in programs {
        if !std::env::split_paths(&path).any(|directory| directory.join(program).is_file()) {
            skip(&format!("{program} is not installed (Debian package {package})"));
            return false;
        }
    }
    true
}
