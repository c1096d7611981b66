//! Planted faults: a planner that decides wrongly must not pass the simulation.
//!
//! The test runs seeds with each faulty planner until the simulation finds a violation. What
//! compares a rollout with the real planner is switched off, so that only the records of the oracle
//! and the invariants decide.

use super::{Mode, world::World};
use crate::rollout::plan;
use crate::rollout::planted::{FAULTS, Planner};

/// Seeds after which a fault counts as undetected.
const SEEDS_MAX: u64 = 400;

/// The first seed in which the simulation finds a violation.
fn caught_by(planner: Planner) -> Option<u64> {
    (0..SEEDS_MAX).find(|seed| {
        [Mode::Safety, Mode::Liveness]
            .into_iter()
            .any(|mode| World::new(*seed, mode, false).with_planner(planner).run().is_err())
    })
}

#[test]
fn every_planted_fault_is_caught() {
    assert!(FAULTS.len() >= 90, "{} faults", FAULTS.len());
    let workers = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let missed: Vec<&str> = std::thread::scope(|scope| {
        let parts: Vec<_> = (0..workers)
            .map(|worker| {
                let faults = FAULTS.iter().skip(worker).step_by(workers);
                scope.spawn(move || {
                    let missed = faults.filter(|(_, planner)| caught_by(*planner).is_none());
                    missed.map(|(name, _)| *name).collect::<Vec<_>>()
                })
            })
            .collect();
        parts.into_iter().flat_map(|part| part.join().expect("no fault panics")).collect()
    });
    assert_eq!(missed, Vec::<&str>::new(), "the simulation does not notice these faults");
}

#[test]
fn planner_without_a_fault_is_not_caught() {
    for seed in 0..50 {
        assert!(World::new(seed, Mode::Safety, false).with_planner(plan).run().is_ok());
    }
}
