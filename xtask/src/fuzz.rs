//! `cargo xtask fuzz`: runs the targets of `crates/fuzz` under libFuzzer.
//!
//! Builds `fuzz/` with coverage instrumentation into a separate target directory. A stable compiler
//! is sufficient: the coverage comes from an LLVM pass alone, and no sanitizer is used because
//! there is no unsafe code to check.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::args::FuzzOptions;
use crate::process::{Processes, TaskError};
use crate::screen::Screen;
use crate::workspace::Workspace;

const TRIPLE: &str = "x86_64-unknown-linux-gnu";
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";
/// Maximum wall-clock time of one input. Far more than an input needs, because the machine may be
/// busy.
const SECONDS_MAX: u32 = 5;
const MIB_MAX: u32 = 512;
const INPUT_BYTES_MAX: u32 = 64 * 1024;

/// Runs the selected targets, or all targets one after another.
pub(crate) fn run(
    workspace: &Workspace,
    options: &FuzzOptions,
    processes: &mut Processes,
    screen: &mut Screen,
) -> Result<ExitCode, TaskError> {
    let all = targets(workspace);
    let named: Vec<String> = match &options.target {
        Some(name) => vec![name.clone()],
        None => all.clone(),
    };
    let unknown = named
        .iter()
        .flat_map(|name| name.split(','))
        .find(|name| !all.iter().any(|known| known == name));
    if let Some(name) = unknown {
        let why = format!("unknown fuzz target `{name}`; use one of {}", all.join(", "));
        return Err(TaskError::Failed(why));
    }
    let target_dir = workspace.target().join("fuzz");
    let mut build = workspace.cargo();
    build.current_dir(workspace.path("fuzz")).args(["build", "--release", "--target", TRIPLE]);
    build.env("RUSTFLAGS", COVERAGE).env("CARGO_TARGET_DIR", &target_dir).stdin(Stdio::null());
    if !processes.run(&mut build)?.success() {
        return Err(TaskError::Failed("cannot build the fuzz targets".to_owned()));
    }
    let program = target_dir.join(TRIPLE).join("release/fleetmend-libfuzzer");
    let mut broken = Vec::new();
    for name in named {
        screen.line(&format!("{name}: {} minutes", options.minutes));
        let mut fuzzer = fuzzer(workspace, &program, &target_dir, &name, options.minutes)?;
        if !processes.run(&mut fuzzer)?.success() {
            broken.push(name);
        }
    }
    match broken.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => Err(TaskError::Failed(format!(
            "failed: {}. The inputs are in {}; copy each to crates/fuzz/regressions/TARGET once it is fixed",
            broken.join(", "),
            target_dir.join("artifacts").display()
        ))),
    }
}

/// Each target has a directory of seeds.
fn targets(workspace: &Workspace) -> Vec<String> {
    let entries = std::fs::read_dir(workspace.path("crates/fuzz/seeds"));
    let folders = entries.into_iter().flatten().flatten().filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> =
        folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn fuzzer(
    workspace: &Workspace,
    program: &Path,
    target_dir: &Path,
    name: &str,
    minutes: u64,
) -> Result<Command, TaskError> {
    let create_dir = |path: PathBuf| {
        let failed =
            |error| TaskError::Failed(format!("cannot create {}: {error}", path.display()));
        std::fs::create_dir_all(&path).map_err(failed).map(|()| path.clone())
    };
    let corpus = create_dir(target_dir.join("corpus").join(name))?;
    let artifacts = create_dir(target_dir.join("artifacts").join(name))?;
    let mut fuzzer = Command::new(program);
    fuzzer.env("FLEETMEND_FUZZ_TARGET", name).stdin(Stdio::null());
    fuzzer.arg(corpus);
    for one in name.split(',') {
        let seeds = workspace.path(&format!("crates/fuzz/seeds/{one}"));
        fuzzer.arg(seeds);
        let regressions = workspace.path(&format!("crates/fuzz/regressions/{one}"));
        if regressions.is_dir() {
            fuzzer.arg(regressions);
        }
    }
    fuzzer.arg(format!("-max_total_time={}", minutes * 60));
    fuzzer.arg(format!("-timeout={SECONDS_MAX}")).arg(format!("-rss_limit_mb={MIB_MAX}"));
    fuzzer.arg(format!("-max_len={INPUT_BYTES_MAX}"));
    fuzzer.arg(format!("-artifact_prefix={}/", artifacts.display()));
    fuzzer.args(["-print_final_stats=1", "-verbosity=0"]);
    Ok(fuzzer)
}
