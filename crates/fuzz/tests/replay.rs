//! Replays every seed and every input that once made a target fail, then mutates them briefly.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
#![expect(clippy::disallowed_methods, reason = "a slow input is a failure")]

use std::path::Path;
use std::time::{Duration, Instant};

use fuzz::mutate::{Rng, corpus, mutate_seed};
use fuzz::{INPUT_BYTES_MAX, TARGETS, Target};

/// Maximum time of one input: one second, plus a margin for a busy machine and an unoptimized
/// build.
const TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum memory of the targets, including the test program and two concurrent tests.
const MIB_MAX: u64 = 512;
/// Number of mutations per target.
const MUTATIONS: u64 = 300;
/// Maximum total bytes of all seeds and regressions.
const CORPUS_BYTES_MAX: usize = 200 * 1024;

fn folder(kind: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(kind)
}

/// Peak memory of this process so far.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() / 1024
}

fn run(target: Target, what: &str, input: &[u8]) {
    let start = Instant::now();
    (target.run)(input);
    let took = start.elapsed();
    assert!(took < TIME_MAX, "{}: {what} took {took:?}", target.name);
    let peak = peak_mib();
    assert!(peak < MIB_MAX, "{}: {what} took {peak} MiB", target.name);
}

#[test]
fn every_seed_and_regression_is_read_in_time() {
    let mut bytes = 0;
    for target in TARGETS {
        let seeds = corpus(&folder("seeds").join(target.name)).unwrap();
        assert!(!seeds.is_empty(), "{} has no seeds", target.name);
        let regressions = corpus(&folder("regressions").join(target.name)).unwrap();
        for (path, input) in seeds.iter().chain(&regressions) {
            assert!(input.len() <= INPUT_BYTES_MAX, "{} is too long", path.display());
            bytes += input.len();
            run(*target, &path.display().to_string(), input);
        }
    }
    assert!(bytes <= CORPUS_BYTES_MAX, "seeds and regressions have {bytes} bytes");
}

/// A short run. `FLEETMEND_FUZZ_SECONDS` sets the time per target instead, and
/// `FLEETMEND_FUZZ_TARGET` selects one target.
#[test]
fn mutated_seeds_are_read_in_time() {
    let setting = |name| std::env::var(name).ok();
    let seconds = setting("FLEETMEND_FUZZ_SECONDS").and_then(|text| text.parse().ok());
    let only = setting("FLEETMEND_FUZZ_TARGET");
    for target in TARGETS.iter().filter(|one| only.as_ref().is_none_or(|name| name == one.name)) {
        let mut inputs = corpus(&folder("seeds").join(target.name)).unwrap();
        inputs.extend(corpus(&folder("regressions").join(target.name)).unwrap());
        let inputs: Vec<Vec<u8>> = inputs.into_values().collect();
        let start = Instant::now();
        let is_enough = |tries: u64| match seconds {
            Some(seconds) => start.elapsed() >= Duration::from_secs(seconds),
            None => tries == MUTATIONS,
        };
        let mut tries = 0;
        while !is_enough(tries) {
            let input = mutate_seed(&inputs, &mut Rng::new(tries));
            run(*target, &format!("mutation {tries}"), &input);
            tries += 1;
        }
        if seconds.is_some() {
            println!("{}: {tries} inputs", target.name);
        }
    }
}

#[test]
fn every_directory_belongs_to_a_target() {
    for kind in ["seeds", "regressions"] {
        for entry in std::fs::read_dir(folder(kind)).unwrap() {
            let name = entry.unwrap().file_name();
            let name = name.to_string_lossy();
            assert!(name == "README.md" || fuzz::target(&name).is_some(), "{kind}/{name}");
        }
    }
}
