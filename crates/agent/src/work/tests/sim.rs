//! The agent's decisions against a host of faults: cut at every instant, thousands of seeds.

use vocab::{FailureCode, RebootPolicy};
use wire::agent::{OrderResult, Outcome};

use super::nature::{Cut, Cuts, Dice, Nature};
use super::world::World;
use crate::work::step::Act;

/// What holds however an order went.
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
        Outcome::Unknown => panic!("the record is there: {result:?}"),
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
fn whatever_happens_the_order_ends_and_its_result_is_true() {
    for seed in 0..1_500 {
        let nature = Nature::of(&mut Dice::new(seed));
        let told = format!("seed {seed}: {nature:?}");
        let ran = std::panic::catch_unwind(|| run(&nature, seed + 1_000_000, Cuts::Often(12, 10)));
        assert!(ran.is_ok(), "{told}");
    }
}

/// The same order, cut once, at each of its instants in turn.
#[test]
fn an_order_that_is_cut_at_any_instant_is_carried_on_or_reported_truly() {
    for policy in RebootPolicy::ALL {
        let nature = Nature { damage: true, lock_ticks: 2, ..Nature::plain(*policy) };
        let (whole, result) = run(&nature, 1, Cuts::Often(0, 0));
        assert_eq!(result.outcome, Outcome::Succeeded, "{result:?}");
        let reboots = matches!(policy, RebootPolicy::Always | RebootPolicy::IfRequired);
        assert_eq!(whole.reboots, u32::from(reboots));
        for instant in 1..=whole.instants {
            // Whoever kills the agent alone changes nothing of what comes out.
            let (world, result) = run(&nature, 1, Cuts::At(instant, Cut::Agent));
            assert_eq!(result.outcome, Outcome::Succeeded, "{policy} {instant} {result:?}");
            assert_eq!(world.reboots, whole.reboots, "{policy} {instant}");
            for cut in [Cut::Supervisor, Cut::Power] {
                let (world, result) = run(&nature, 1, Cuts::At(instant, cut));
                let ended = [Outcome::Succeeded, Outcome::Failed];
                assert!(ended.contains(&result.outcome), "{policy} {cut:?} {instant} {result:?}");
                // A host that went down by itself has its new boot, and is not sent through another.
                assert!(cut == Cut::Supervisor || world.reboots <= 1);
            }
        }
    }
}

#[test]
fn a_lock_that_is_never_let_go_ends_the_order_and_names_the_holder() {
    let nature = Nature { lock_ticks: u64::MAX, ..Nature::plain(RebootPolicy::Never) };
    let (world, result) = run(&nature, 1, Cuts::Often(0, 0));
    assert_eq!(result.failure_code, Some(FailureCode::PkgLockTimeout));
    assert_eq!(result.message.unwrap().as_str(), "apt held the lock for more than 10 minutes");
    assert!(world.begun.is_empty());
}

#[test]
fn a_host_that_does_not_reboot_is_said_to_not_have_rebooted() {
    let nature = Nature { reboots_work: false, ..Nature::plain(RebootPolicy::IfRequired) };
    let (_, result) = run(&nature, 1, Cuts::Often(0, 0));
    assert_eq!(result.failure_code, Some(FailureCode::RebootTimeout));
    assert_eq!(result.packages.len(), 3, "what was installed is still told");
}

#[test]
fn where_nothing_may_reboot_the_installation_still_counts_and_the_reason_is_told() {
    let plain = Nature::plain(RebootPolicy::Always);
    for (nature, why) in [
        (Nature { container: true, ..plain.clone() }, "no reboot: a container"),
        (Nature { never_reboot: true, ..plain.clone() }, "no reboot: never_reboot"),
        (
            Nature { old_boot: true, ..plain.clone() },
            "no reboot: it was ordered for a boot that has ended",
        ),
        (
            Nature { check_unreadable: true, ..plain.clone() },
            "whether a reboot is needed could not be found out: unreadable",
        ),
    ] {
        let (world, result) = run(&nature, 1, Cuts::Often(0, 0));
        assert_eq!((result.outcome, world.reboots), (Outcome::Succeeded, 0), "{result:?}");
        assert!(result.notes.iter().any(|note| note.as_str() == why), "{:?}", result.notes);
    }
}

#[test]
fn a_manager_that_says_all_is_well_and_did_nothing_is_not_believed() {
    let nature = Nature { lies: true, ..Nature::plain(RebootPolicy::Always) };
    let (world, result) = run(&nature, 1, Cuts::Often(0, 0));
    assert_eq!(result.failure_code, Some(FailureCode::VerifyFailed));
    assert_eq!((result.exit, world.reboots), (Some(0), 0));
    assert_eq!(result.message.unwrap().as_str(), "bash is 1 and should be 2");
}
