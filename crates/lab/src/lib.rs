//! Real package managers on roots of their own, for tests. It knows nothing of the agent or the service.
//!
//! [`root`] makes whole systems that cost a few milliseconds each and leave nothing behind.
//! [`machine`] boots one of them with systemd, and [`network`] is where it meets a service.
//! [`apt`] makes packages and repositories for them, and servers that have them installed.
//! [`rpm`] does so for dnf and zypper.
//! [`pacman`] does the same for pacman.
//!
//! Everything needs root and Linux. Where that, or a tool, is missing, a door answers `None` after
//! [`skip`] has said why; a test then returns.

pub mod apt;
pub mod machine;
pub mod network;
pub mod pacman;
pub mod root;
pub mod rpm;

/// Says that a test is left out, and why. With `FLEETMEND_TEST_REQUIRE_TOOLS=1` it fails instead.
#[expect(clippy::print_stdout, reason = "a test that is left out must be seen")]
pub fn skip(why: &str) {
    let required = std::env::var_os("FLEETMEND_TEST_REQUIRE_TOOLS").is_some_and(|set| set == "1");
    assert!(!required, "{why}");
    println!("skipped: {why}");
}

/// Whether these programs are there; says which Debian package brings one that is not.
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
