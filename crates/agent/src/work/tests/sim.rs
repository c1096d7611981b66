//! Simulation of the planner against a faulty host: crashes at every instant, and thousands of
//! seeds.

use vocab::{FailureCode, RebootPolicy};
use wire::agent::{OrderResult, Outcome};

use super::scenario::{Crash, CrashPlan, Rng, Scenario};
use super::simulated_host::SimulatedHost;
use crate::work::step::Action;

/// Invariants that hold for every result.
fn check_invariants(host: &SimulatedHost, result: &OrderResult) {
    let started = |act| host.starts.get(&act).copied().unwrap_or(0);
    for act in [
        Action::PreInstall,
        Action::Install,
        Action::PostInstall,
        Action::PreReboot,
        Action::Reboot,
    ] {
        assert!(started(act) <= 1, "{act:?} ran {} times", started(act));
    }
    assert!(host.reboots <= 1);
    assert_eq!(result.packages, host.difference(), "{result:?}");
    match result.outcome {
        Outcome::Succeeded if host.scenario.only_reboot => {
            assert!(result.reboot_seconds.is_some());
        }
        Outcome::Succeeded => assert!(host.is_fully_updated(), "{result:?}"),
        Outcome::Withdrawn => {
            assert_eq!(
                started(Action::Install) + started(Action::PreInstall) + started(Action::Reboot),
                0
            );
        }
        Outcome::Failed => assert!(result.failure_code.is_some() && result.message.is_some()),
        Outcome::Unknown => panic!("the record exists: {result:?}"),
        Outcome::NoChange | Outcome::Skipped => assert!(result.packages.is_empty()),
    }
    if host.was_withdrawn_in_time() {
        let early = [Outcome::Withdrawn, Outcome::Failed, Outcome::NoChange];
        assert!(early.contains(&result.outcome), "{result:?}");
    }
    assert_eq!(started(Action::PreInstall), started(Action::PostInstall), "{result:?}");
    check_health(host, result, started(Action::Install) > 0);
    assert!(result.reboot_seconds.is_none() || started(Action::Reboot) == 1 || host.crashes > 0);
}

/// Health is reported if and only if the order asks for it and something was installed; it compares
/// with the host before the installation, whatever crashed in between.
fn check_health(host: &SimulatedHost, result: &OrderResult, installed: bool) {
    let measured = host.scenario.measures_health && !host.scenario.only_reboot && installed;
    assert_eq!(result.health.is_some(), measured, "{result:?}");
    let Some(health) = &result.health else { return };
    let names: Vec<&str> = health.problems.iter().map(|problem| problem.name.as_str()).collect();
    let expected = if host.is_broken() { vec!["tcp/80"] } else { Vec::new() };
    assert_eq!((names, &health.not_measured), (expected, &None), "{result:?}");
    assert_eq!(Some(health.baseline_at), host.baseline_at);
}

fn run(scenario: &Scenario, seed: u64, crash_plan: CrashPlan) -> (SimulatedHost, OrderResult) {
    let mut host = SimulatedHost::new(scenario.clone(), Rng::new(seed), crash_plan);
    let result = host.run();
    check_invariants(&host, &result);
    (host, result)
}

#[test]
fn every_order_ends_with_a_correct_result() {
    for seed in 0..1_500 {
        let scenario = Scenario::random(&mut Rng::new(seed));
        let reported = format!("seed {seed}: {scenario:?}");
        let ran =
            std::panic::catch_unwind(|| run(&scenario, seed + 1_000_000, CrashPlan::Often(12, 10)));
        assert!(ran.is_ok(), "{reported}");
    }
}

/// The same order, with one crash, at each of its instants in turn.
#[test]
fn order_survives_a_crash_at_any_instant() {
    for policy in RebootPolicy::ALL {
        let scenario = Scenario { damage: true, lock_ticks: 2, ..Scenario::with_policy(*policy) };
        let (whole, result) = run(&scenario, 1, CrashPlan::Often(0, 0));
        assert_eq!(result.outcome, Outcome::Succeeded, "{result:?}");
        let reboots = matches!(policy, RebootPolicy::Always | RebootPolicy::IfRequired);
        assert_eq!(whole.reboots, u32::from(reboots));
        for instant in 1..=whole.instants {
            // Killing only the agent does not change the result.
            let (world, result) = run(&scenario, 1, CrashPlan::At(instant, Crash::Agent));
            assert_eq!(result.outcome, Outcome::Succeeded, "{policy} {instant} {result:?}");
            assert_eq!(world.reboots, whole.reboots, "{policy} {instant}");
            for cut in [Crash::Supervisor, Crash::Power] {
                let (world, result) = run(&scenario, 1, CrashPlan::At(instant, cut));
                let ended = [Outcome::Succeeded, Outcome::Failed];
                assert!(ended.contains(&result.outcome), "{policy} {cut:?} {instant} {result:?}");
                // After a power failure the host has a new boot, and is not rebooted again.
                assert!(cut == Crash::Supervisor || world.reboots <= 1);
            }
        }
    }
}

#[test]
fn lock_never_released_fails_the_order_naming_its_holder() {
    let scenario = Scenario { lock_ticks: u64::MAX, ..Scenario::with_policy(RebootPolicy::Never) };
    let (world, result) = run(&scenario, 1, CrashPlan::Often(0, 0));
    assert_eq!(result.failure_code, Some(FailureCode::PkgLockTimeout));
    assert_eq!(
        result.message.unwrap().as_str(),
        "apt held the package database lock for more than 10 minutes"
    );
    assert!(world.starts.is_empty());
}

#[test]
fn missing_reboot_is_reported_as_timeout() {
    let scenario =
        Scenario { reboots_work: false, ..Scenario::with_policy(RebootPolicy::IfRequired) };
    let (_, result) = run(&scenario, 1, CrashPlan::Often(0, 0));
    assert_eq!(result.failure_code, Some(FailureCode::RebootTimeout));
    assert_eq!(result.packages.len(), 3, "the installed packages are still reported");
}

#[test]
fn forbidden_reboot_does_not_fail_the_installation() {
    let plain = Scenario::with_policy(RebootPolicy::Always);
    for (nature, why) in [
        (Scenario { container: true, ..plain.clone() }, "no reboot: a container"),
        (Scenario { never_reboot: true, ..plain.clone() }, "no reboot: never_reboot"),
        (
            Scenario { old_boot: true, ..plain.clone() },
            "no reboot: the host has already rebooted since the order was issued",
        ),
        (
            Scenario { check_unreadable: true, ..plain.clone() },
            "cannot determine whether a reboot is needed: unreadable",
        ),
    ] {
        let (world, result) = run(&nature, 1, CrashPlan::Often(0, 0));
        assert_eq!((result.outcome, world.reboots), (Outcome::Succeeded, 0), "{result:?}");
        assert!(result.notes.iter().any(|note| note.as_str() == why), "{:?}", result.notes);
    }
}

#[test]
fn false_success_of_the_package_manager_is_detected() {
    let scenario =
        Scenario { reports_false_success: true, ..Scenario::with_policy(RebootPolicy::Always) };
    let (world, result) = run(&scenario, 1, CrashPlan::Often(0, 0));
    assert_eq!(result.failure_code, Some(FailureCode::VerifyFailed));
    assert_eq!((result.exit, world.reboots), (Some(0), 0));
    assert_eq!(result.message.unwrap().as_str(), "bash: installed 1, expected 2");
}
