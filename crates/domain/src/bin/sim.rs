//! Runs the simulation over many seeds: `cargo xtask sim --seeds 100000`.

use std::io::Write as _;
use std::process::ExitCode;

use domain::sim::{Mode, RunFailure, RunStats, run};

const HELP: &str = "\
Tests the rollout planner in a simulated world with seeded faults.

Usage: cargo xtask sim [--seeds N] [--from S]    N seeds from S on (10000 from 0)
       cargo xtask sim --seed S                  one seed, with a full trace

Each seed runs twice: once with faults until the end (safety), and once with faults that stop or become permanent (liveness).
Failing seeds are printed; a seed always fails in the same way.";

struct Args {
    from: u64,
    seeds: u64,
    trace: bool,
}

fn args() -> Result<Option<Args>, String> {
    let mut args = Args { from: 0, seeds: 10_000, trace: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || {
            let value = words.next().ok_or(format!("{word} requires a number"))?;
            value.parse().map_err(|_| format!("{word} requires a number (got `{value}`)"))
        };
        match word.as_str() {
            "--seeds" => args.seeds = number()?,
            "--from" => args.from = number()?,
            "--seed" => args = Args { from: number()?, seeds: 1, trace: true },
            "-h" | "--help" => return Ok(None),
            _ => return Err(format!("unknown argument `{word}`; see --help")),
        }
    }
    Ok(Some(args))
}

fn main() -> ExitCode {
    let mut out = std::io::stdout();
    let failed = match args() {
        Ok(Some(args)) => simulate(&args, &mut out),
        Ok(None) => writeln!(out, "{HELP}").map(|()| 0),
        Err(wrong) => {
            let _ = writeln!(std::io::stderr(), "{wrong}");
            return ExitCode::from(2);
        }
    };
    match failed {
        Ok(0) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn simulate(args: &Args, out: &mut impl std::io::Write) -> std::io::Result<u64> {
    let (mut failed, mut sum) = (0, RunStats::default());
    let seeds = args.from..args.from.saturating_add(args.seeds);
    for (done, seed) in (1_u64..).zip(seeds) {
        for mode in [Mode::Safety, Mode::Liveness] {
            match run(seed, mode) {
                Ok(report) => sum = sum + report,
                Err(failure) => {
                    failed += 1;
                    print_failure(&failure, args.trace, out)?;
                }
            }
        }
        if done % 1_000 == 0 {
            writeln!(out, "{done} seeds, {failed} failures, {sum}")?;
        }
    }
    writeln!(out, "{} seeds, {failed} failures, {sum}", args.seeds)?;
    Ok(failed)
}

fn print_failure(
    failure: &RunFailure,
    trace: bool,
    out: &mut impl std::io::Write,
) -> std::io::Result<()> {
    for line in failure.trace.iter().filter(|_| trace) {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "{failure}")
}
