//! Simulation of the planner against a faulty host: crashes at every instant, and thousands of
//! seeds.

use vocab::{FailureCode, RebootPolicy};
use wire::agent::{OrderResult, Outcome};

use super::nature::{Cut, Cuts, Dice, Nature};
use super::world::World;
use crate::work::step::Act;

/// Invariants that hold for every result.
fn judge(world: &World, result: &OrderResult) {
    let begun = |act| world.begun.get(&act).copied().unwrap_or(0);
    for act in [Act::PreInstall, Act::Install, Act::PostInstall, Act::PreReboot, Act::Reboot] {
        assert!(begun(act) <= 1, "{act:?} ran {} times", begun(act));
    }
    assert!(world.reboots <= 1);
    assert_eq!(result.packages, world.difference(), "{result:?}");
    match result.outcome {
        Outcome::Succeeded if world.nature.only_reboot => {
            assert!(result.reboot_seconds.is_some());
        }
        Outcome::Succeeded => assert!(world.is_as_asked(), "{result:?}"),
        Outcome::Withdrawn => {
            assert_eq!(begun(Act::Install) + begun(Act::PreInstall) + begun(Act::Reboot), 0);
        }
        Outcome::Failed => assert!(result.failure_code.is_some() && result.message.is_some()),
        Outcome::Unknown => panic!("the record exists: {result:?}"),
        Outcome::NoChange | Outcome::Skipped => assert!(result.packages.is_empty()),
    }
    if world.was_withdrawn_in_time() {
        let early = [Outcome::Withdrawn, Outcome::Failed, Outcome::NoChange];
        assert!(early.contains(&result.outcome), "{result:?}");
    }
    assert_eq!(begun(Act::PreInstall), begun(Act::PostInstall), "{result:?}");
    assert!(result.reboot_seconds.is_none() || begun(Act::Reboot) == 1 || world.was_cut > 0);
}

fn run(nature: &Nature, seed: u64, cuts: Cuts) -> (World, OrderResult) {
    let mut world = World::new(nature.clone(), Dice::new(seed), cuts);
    let result = world.run();
    judge(&world, &result);
    (world, result)
}

#[test]
fn every_order_ends_with_a_correct_result() {
    for seed in 0..1_500 {
        let nature = Nature::of(&mut Dice::new(seed));
        let told = format!("seed {seed}: {nature:?}");
        let ran = std::panic::catch_unwind(|| run(&nature, seed + 1_000_000, Cuts::Often(12, 10)));
        assert!(ran.is_ok(), "{told}");
    }
}

/// The same order, with one crash, at each of its instants in turn.
#[test]
fn order_survives_a_crash_at_any_instant() {
    for policy in RebootPolicy::ALL {
        let nature = Nature { damage: true, lock_ticks: 2, ..Nature::plain(*policy) };
        let (whole, result) = run(&nature, 1, Cuts::Often(0, 0));
        assert_eq!(result.outcome, Outcome::Succeeded, "{result:?}");
        let reboots = matches!(policy, RebootPolicy::Always | RebootPolicy::IfRequired);
        assert_eq!(whole.reboots, u32::from(reboots));
        for instant in 1..=whole.instants {
            // Killing only the agent does not change the result.
            let (world, result) = run(&nature, 1, Cuts::At(instant, Cut::Agent));
            assert_eq!(result.outcome, Outcome::Succeeded, "{policy} {instant} {result:?}");
            assert_eq!(world.reboots, whole.reboots, "{policy} {instant}");
            for cut in [Cut::Supervisor, Cut::Power] {
                let (world, result) = run(&nature, 1, Cuts::At(instant, cut));
                let ended = [Outcome::Succeeded, Outcome::Failed];
                assert!(ended.contains(&result.outcome), "{policy} {cut:?} {instant} {result:?}");
                // After a power failure the host has a new boot, and is not rebooted again.
                assert!(cut == Cut::Supervisor || world.reboots <= 1);
            }
        }
    }
}

#[test]
fn lock_never_released_fails_the_order_naming_its_holder() {
    let nature = Nature { lock_ticks: u64::MAX, ..Nature::plain(RebootPolicy::Never) };
    let (world, result) = run(&nature, 1, Cuts::Often(0, 0));
    assert_eq!(result.failure_code, Some(FailureCode::PkgLockTimeout));
    assert_eq!(
        result.message.unwrap().as_str(),
        "apt held the package database lock for more than 10 minutes"
    );
    assert!(world.begun.is_empty());
}

#[test]
fn missing_reboot_is_reported_as_timeout() {
    let nature = Nature { reboots_work: false, ..Nature::plain(RebootPolicy::IfRequired) };
    let (_, result) = run(&nature, 1, Cuts::Often(0, 0));
    assert_eq!(result.failure_code, Some(FailureCode::RebootTimeout));
    assert_eq!(result.packages.len(), 3, "the installed packages are still reported");
}

#[test]
fn forbidden_reboot_does_not_fail_the_installation() {
    let plain = Nature::plain(RebootPolicy::Always);
    for (nature, why) in [
        (Nature { container: true, ..plain.clone() }, "no reboot: a container"),
        (Nature { never_reboot: true, ..plain.clone() }, "no reboot: never_reboot"),
        (
            Nature { old_boot: true, ..plain.clone() },
            "no reboot: the host has already rebooted since the order was issued",
        ),
        (
            Nature { check_unreadable: true, ..plain.clone() },
            "cannot determine whether a reboot is needed: unreadable",
        ),
    ] {
        let (world, result) = run(&nature, 1, Cuts::Often(0, 0));
        assert_eq!((result.outcome, world.reboots), (Outcome::Succeeded, 0), "{result:?}");
        assert!(result.notes.iter().any(|note| note.as_str() == why), "{:?}", result.notes);
    }
}

#[test]
fn false_success_of_the_package_manager_is_detected() {
    let nature = Nature { lies: true, ..Nature::plain(RebootPolicy::Always) };
    let (world, result) = run(&nature, 1, Cuts::Often(0, 0));
    assert_eq!(result.failure_code, Some(FailureCode::VerifyFailed));
    assert_eq!((result.exit, world.reboots), (Some(0), 0));
    assert_eq!(result.message.unwrap().as_str(), "bash: installed 1, expected 2");
}
