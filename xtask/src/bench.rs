//! `cargo xtask bench`: runs every benchmark of the workspace, and prints the hardware it ran on.

use std::process::{Command, ExitCode, Stdio};

use crate::package;
use crate::postgres::{Durability, Keep, Postgres};
use crate::process::{Processes, TERMINATE_GROUP, TaskError};
use crate::requirements;
use crate::screen::Screen;
use crate::workspace::Workspace;

/// The crate whose benchmarks run real agents on lab systems.
const CRATE_WITH_AGENTS: &str = "cli";

/// Runs the benchmarks whose name contains the filter.
pub(crate) fn run_all(
    workspace: &Workspace,
    filter: Option<&str>,
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<ExitCode, TaskError> {
    let crates = workspace.crates_with_benches();
    if crates.is_empty() {
        return Err(TaskError::Failed("no crate has benchmarks".to_owned()));
    }
    requirements::ensure_installed(&requirements::for_benchmarks(), processes, screen)?;
    show_machine(workspace, processes, screen)?;
    let postgres = Postgres::start(Durability::On, processes)?;
    let result = run_each(&crates, workspace, filter, &postgres, processes, screen);
    postgres.stop(Keep::No, processes, screen);
    match result?.as_slice() {
        [] => Ok(ExitCode::SUCCESS),
        failed => Err(TaskError::Failed(format!("benchmarks failed: {}", failed.join(", ")))),
    }
}

/// Returns the crates whose benchmarks failed.
fn run_each(
    crates: &[String],
    workspace: &Workspace,
    filter: Option<&str>,
    postgres: &Postgres,
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<Vec<String>, TaskError> {
    let mut failed = Vec::new();
    for name in crates {
        screen.line(&format!("\n{name}"));
        let mut cargo = workspace.cargo();
        if name == CRATE_WITH_AGENTS {
            cargo.env("FLEETMEND_TEST_AGENT", package::build_agent(workspace, processes, screen)?);
        }
        // Only the benchmarks: `--benches` would also run the library's unit tests.
        cargo.args(["bench", "--quiet", "--package", name, "--bench", "*", "--"]);
        cargo.args(filter).stdin(Stdio::null());
        postgres.export(&mut cargo);
        if !processes.run(&mut cargo)?.success() {
            failed.push(name.clone());
        }
    }
    Ok(failed)
}

/// Prints the CPU, the memory and the load, because results are meaningless without them.
fn show_machine(
    workspace: &Workspace,
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<(), TaskError> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let (info, memory, load) =
        (read("/proc/cpuinfo"), read("/proc/meminfo"), read("/proc/loadavg"));
    let model = field(&info, "model name").unwrap_or("unknown CPU");
    let memory = field(&memory, "MemTotal").and_then(mebibytes).unwrap_or(0);
    screen.line(&format!("{cores} cores, {model}, {memory} MiB memory"));
    screen.line(&format!("load before: {}", load.trim()));
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.arg("--version").current_dir(workspace.started_in());
    processes.run_with_lines(&mut rustc, TERMINATE_GROUP, &mut |line| screen.line(line))?;
    Ok(())
}

/// The value of the first `name : value` line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

fn mebibytes(kibibytes: &str) -> Option<u64> {
    kibibytes.strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_fields_are_read_by_name() {
        let info = "processor\t: 0\nmodel name\t: Some CPU: 2 GHz\nmodel name\t: Other\n";
        assert_eq!(field(info, "model name"), Some("Some CPU: 2 GHz"));
        assert_eq!(field("MemTotal:  2048 kB\n", "MemTotal").and_then(mebibytes), Some(2));
        assert_eq!(field(info, "flags"), None);
    }
}
