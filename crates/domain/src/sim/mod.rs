//! Deterministic simulation of a fleet: the real planner and state machines, a manual clock, and
//! faults known from production, chosen by a seed.
//!
//! Servers disconnect and return, agents crash, messages are lost, repeated, reordered and late,
//! reboots hang, updates break services, services break everywhere, the control plane crashes or is restored from a backup, its clock jumps by minutes
//! or years, two rollouts need the same servers, and users pause, resume, cancel, retry and remove
//! servers. After every step the invariants of the rollouts are checked, and a test oracle with its
//! own records checks every decision.
//!
//! [`Mode::Safety`] checks that nothing forbidden ever happens. [`Mode::Liveness`] lets the faults
//! stop after a while, or become permanent, and checks that everything ends in time and that what
//! the control plane then reports is true.

mod agent;
mod control;
mod faults;
mod host_health;
#[cfg(test)]
mod lost_orders;
mod oracle;
#[cfg(test)]
mod planted;
pub(crate) mod rng;
mod situations;
mod task_record;
mod world;

pub use rng::Rng;
pub use situations::{Situation, SituationCounts};

/// What a run checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Faults until the end; nothing forbidden may happen.
    Safety,
    /// Faults stop or become permanent; everything must end by its deadline, with the correct
    /// result.
    Liveness,
}

/// Statistics of one run, so that a test can verify that it did something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunStats {
    /// Number of simulated events.
    pub steps: u64,
    /// Number of servers started.
    pub starts: u64,
    /// Number of rollouts that ended.
    pub ended: u64,
    /// The situations that occurred.
    pub situations: SituationCounts,
}

impl std::ops::Add for RunStats {
    type Output = RunStats;
    fn add(self, other: RunStats) -> RunStats {
        RunStats {
            steps: self.steps + other.steps,
            starts: self.starts + other.starts,
            ended: self.ended + other.ended,
            situations: self.situations + other.situations,
        }
    }
}

impl std::fmt::Display for RunStats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let RunStats { steps, starts, ended, situations: reached } = self;
        write!(f, "{steps} steps, {starts} servers started, {ended} rollouts ended; {reached}")
    }
}

/// A run that violated a check.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "seed {seed} ({mode:?}): {}\nreplay it with: cargo xtask sim --seed {seed}",
    violations.join("; ")
)]
pub struct RunFailure {
    pub seed: u64,
    pub mode: Mode,
    pub violations: Vec<String>,
    /// The events that led to it.
    pub trace: Vec<String>,
}

/// Runs one seed.
pub fn run(seed: u64, mode: Mode) -> Result<RunStats, Box<RunFailure>> {
    let result = world::World::new(seed, mode, false).run();
    // Runs are deterministic: a failed run is repeated with tracing.
    result.or_else(|_| world::World::new(seed, mode, true).run())
}

#[cfg(test)]
mod tests {
    use std::ops::Add as _;

    use super::*;

    const SEEDS: u64 = 2_000;

    fn every_seed(mode: Mode) -> RunStats {
        let workers = std::thread::available_parallelism().map_or(2, std::num::NonZero::get) as u64;
        std::thread::scope(|scope| {
            let parts: Vec<_> = (0..workers)
                .map(|worker| {
                    scope.spawn(move || {
                        (worker..SEEDS)
                            .step_by(workers as usize)
                            .map(|seed| {
                                run(seed, mode).unwrap_or_else(|failure| {
                                    panic!("{failure}\n{}", failure.trace.join("\n"))
                                })
                            })
                            .fold(RunStats::default(), RunStats::add)
                    })
                })
                .collect();
            parts
                .into_iter()
                .map(|part| part.join().expect("the seed that failed is printed above"))
                .fold(RunStats::default(), RunStats::add)
        })
    }

    #[test]
    fn no_violation_happens_under_faults() {
        let sum = every_seed(Mode::Safety);
        assert!(sum.starts > 2 * SEEDS, "too few servers started: {sum:?}");
        for trial in Situation::ALL {
            let often = sum.situations.times(trial) > SEEDS / 40;
            assert!(often, "{trial:?} occurred too rarely; all counts: {}", sum.situations);
        }
    }

    #[test]
    fn everything_ends_in_time_after_faults() {
        let sum = every_seed(Mode::Liveness);
        assert!(sum.ended >= SEEDS, "not every seed ended a rollout: {sum:?}");
    }

    #[test]
    fn seed_replays_to_same_run() {
        for seed in 0..20 {
            assert_eq!(run(seed, Mode::Safety), run(seed, Mode::Safety));
        }
    }
}
