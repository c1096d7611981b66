//! A fleet in a box: the real planner and the real state machines, a hand-turned clock, and every
//! fault that the field has taught us, chosen by a seed.
//!
//! Servers vanish and return, agents crash, messages are lost, repeated, reordered and late, reboots
//! hang, the control plane crashes or is restored from a backup, its clock jumps by minutes or years,
//! two rollouts want the same servers, people pause, resume, cancel, retry and remove servers. After
//! every step the rollouts are linted, and a judge who keeps a book of his own is asked.
//!
//! [`Mode::Safety`] asks: does anything ever happen that must not? [`Mode::Liveness`] lets the faults
//! stop after a while, or become permanent, and asks: does everything come to an end in time, and is
//! what the control plane then says true?

mod agent;
mod chance;
mod control;
mod faults;
mod judge;
#[cfg(test)]
mod lost_orders;
mod reach;
mod seen;
mod world;

pub use chance::Chance;
pub use reach::{Reached, Trial};

/// Which question is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Faults to the end; nothing forbidden may happen.
    Safety,
    /// Faults stop or stay for good; everything must end by its deadline, and truly.
    Liveness,
}

/// What one run did, so that a test can see that it did something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Things that happened.
    pub steps: u64,
    /// Servers started.
    pub starts: u64,
    /// Rollouts that came to an end.
    pub ended: u64,
    /// What it came upon.
    pub reached: Reached,
}

impl std::ops::Add for Report {
    type Output = Report;
    fn add(self, other: Report) -> Report {
        Report {
            steps: self.steps + other.steps,
            starts: self.starts + other.starts,
            ended: self.ended + other.ended,
            reached: self.reached + other.reached,
        }
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Report { steps, starts, ended, reached } = self;
        write!(f, "{steps} steps, {starts} servers started, {ended} rollouts ended; {reached}")
    }
}

/// A run in which something did not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "seed {seed} ({mode:?}): {}\nreplay it with: cargo xtask sim --seed {seed}",
    broken.join("; ")
)]
pub struct Failure {
    /// Which run.
    pub seed: u64,
    /// Which question.
    pub mode: Mode,
    /// What did not hold.
    pub broken: Vec<String>,
    /// What led to it.
    pub trace: Vec<String>,
}

/// Runs one seed.
pub fn run(seed: u64, mode: Mode) -> Result<Report, Box<Failure>> {
    let quietly = world::World::new(seed, mode, false).run();
    // A run is the same each time: one that failed is simply written down the second time.
    quietly.or_else(|_| world::World::new(seed, mode, true).run())
}

#[cfg(test)]
mod tests {
    use std::ops::Add as _;

    use super::*;

    const SEEDS: u64 = 2_000;

    fn every_seed(mode: Mode) -> Report {
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
                            .fold(Report::default(), Report::add)
                    })
                })
                .collect();
            parts
                .into_iter()
                .map(|part| part.join().expect("the seed that failed is printed above"))
                .fold(Report::default(), Report::add)
        })
    }

    #[test]
    fn nothing_forbidden_ever_happens_however_faulty_the_world() {
        let sum = every_seed(Mode::Safety);
        assert!(sum.starts > 2 * SEEDS, "hardly anything started: {sum:?}");
        for trial in Trial::ALL {
            let often = sum.reached.times(trial) > SEEDS / 40;
            assert!(often, "hardly ever tried: {trial:?}, in all {}", sum.reached);
        }
    }

    #[test]
    fn everything_ends_in_time_and_truly_once_the_faults_stop_or_stay() {
        let sum = every_seed(Mode::Liveness);
        assert!(sum.ended >= SEEDS, "not every seed ended a rollout: {sum:?}");
    }

    #[test]
    fn a_seed_replays_to_the_same_run() {
        for seed in 0..20 {
            assert_eq!(run(seed, Mode::Safety), run(seed, Mode::Safety));
        }
    }
}
