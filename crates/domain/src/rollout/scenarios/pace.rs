//! Stagger, parallelism, canaries and failure limits.

use super::*;

#[test]
fn stagger_is_minimum_time_between_starts() {
    let mut scenario = Scenario::new(["a", "b", "c"], Pace { stagger_minutes: 10, ..pace() });
    scenario.assert_status([
        "a dispatched",
        "b waits: stagger until 00:10",
        "c waits: stagger until 00:10",
    ]);
    assert_eq!(
        plan(&scenario.rollout, scenario.now).wake_at.unwrap().to_string(),
        "2026-11-15T00:10:00Z"
    );
    // A task that ends early does not let the next one start sooner.
    scenario.apply_event("a", SUCCEEDED).advance_minutes(9);
    scenario.assert_status([
        "a succeeded",
        "b waits: stagger until 00:10",
        "c waits: stagger until 00:10",
    ]);
    scenario.advance_minutes(1).assert_status([
        "a succeeded",
        "b dispatched",
        "c waits: stagger until 00:20",
    ]);
}

#[test]
fn parallel_limit_is_respected() {
    Scenario::new(["a", "b", "c"], Pace { max_parallel: Some(2), ..pace() })
        .assert_status(["a dispatched", "b dispatched", "c waits: parallel"])
        .apply_event("b", FAILED)
        .assert_status(["a dispatched", "b failed: install_failed", "c dispatched"])
        .apply_event("a", SUCCEEDED)
        .apply_event("c", SUCCEEDED)
        .assert_phase(Phase::Ended(RolloutOutcome::CompletedWithErrors));
}

#[test]
fn rest_starts_after_every_canary_succeeded() {
    let canary = Some(Portion::Count(2));
    Scenario::new(["a", "b", "c", "d"], Pace { canary, ..pace() })
        .assert_status(["a dispatched", "b dispatched", "c waits: canary", "d waits: canary"])
        .apply_event("a", SUCCEEDED)
        .assert_status(["a succeeded", "b dispatched", "c waits: canary", "d waits: canary"])
        .apply_event("b", SUCCEEDED)
        .assert_status(["a succeeded", "b succeeded", "c dispatched", "d dispatched"]);
}

#[test]
fn canary_without_changes_is_replaced() {
    let canary = Some(Portion::Count(1));
    Scenario::new(["a", "b", "c"], Pace { canary, ..pace() })
        .apply_event("a", NO_CHANGE)
        .assert_status(["a had nothing to change", "b dispatched", "c waits: canary"])
        .apply_event("b", SUCCEEDED)
        .assert_status(["a had nothing to change", "b succeeded", "c dispatched"]);
}

#[test]
fn only_servers_with_expected_changes_replace_a_canary() {
    let canary = Some(Portion::Count(2));
    let mut scenario =
        Scenario::with_expected_changes(3, ["a", "b", "c", "d", "e"], Pace { canary, ..pace() });
    scenario
        .apply_event("a", NO_CHANGE)
        .apply_event("b", NO_CHANGE)
        // One canary is missing, and only c can replace it.
        .assert_status([
            "a had nothing to change",
            "b had nothing to change",
            "c dispatched",
            "d waits: canary",
            "e waits: canary",
        ]);
    assert!(!scenario.rollout.head().canary_unchanged);
    scenario.apply_event("c", SUCCEEDED);
    // One of two canaries has proved the update, and no server is left to be the second.
    assert!(scenario.rollout.head().canary_unchanged);
    scenario.assert_status([
        "a had nothing to change",
        "b had nothing to change",
        "c succeeded",
        "d dispatched",
        "e dispatched",
    ]);
}

#[test]
fn first_failure_after_unchanged_canary_halts() {
    let (canary, max_parallel) = (Some(Portion::Count(1)), Some(1));
    let pace = Pace { canary, max_parallel, ..pace() };
    let mut scenario = Scenario::with_expected_changes(0, ["a", "b", "c"], pace);
    scenario.apply_event("a", NO_CHANGE).assert_status([
        "a had nothing to change",
        "b dispatched",
        "c waits: parallel",
    ]);
    assert!(scenario.rollout.head().canary_unchanged);
    scenario.apply_event("b", FAILED).assert_phase(Phase::Halted(HaltReason::CanaryFailed));
}

#[test]
fn failed_canary_halts_until_resumed() {
    let canary = Some(Portion::Count(1));
    Scenario::new(["a", "b"], Pace { canary, ..pace() })
        .apply_event("a", FAILED)
        .assert_status(["a failed: install_failed", "b waits: halted, CanaryFailed"])
        .assert_phase(Phase::Halted(HaltReason::CanaryFailed))
        .apply_change(Change::Resume)
        .assert_status(["a failed: install_failed", "b dispatched"]);
}

/// Otherwise a single powered-off server would keep the whole fleet from being patched.
#[test]
fn offline_canary_is_replaced_by_next_server() {
    let canary = Some(Portion::Count(1));
    let later = "2026-11-15T00:05:00Z".parse().unwrap();
    Scenario::starting_at(later, ["a", "b", "c"], Pace { canary, ..pace() })
        .set_condition("a", OFFLINE)
        .advance_minutes(5)
        .assert_status(["a waits: offline", "b dispatched", "c waits: canary"])
        .apply_event("b", SUCCEEDED)
        .assert_status(["a waits: offline", "b succeeded", "c dispatched"])
        .set_condition("a", ServerCondition::FREE)
        .assert_status(["a dispatched", "b succeeded", "c dispatched"]);
}

/// One bad package must affect a few servers, not the fleet.
#[test]
fn failure_limit_stops_further_starts() {
    let pace = Pace { max_failures: Some(Portion::Count(2)), max_parallel: Some(1), ..pace() };
    Scenario::new(["a", "b", "c", "d"], pace)
        .apply_event("a", FAILED)
        .apply_event("b", FAILED)
        .assert_status([
            "a failed: install_failed",
            "b failed: install_failed",
            "c waits: halted, TooManyFailures",
            "d waits: halted, TooManyFailures",
        ])
        // Resuming accepts these two failures: the limit starts from zero again.
        .apply_change(Change::Resume)
        .apply_event("c", FAILED)
        .assert_phase(Phase::Running)
        .apply_event("d", FAILED)
        .assert_phase(Phase::Ended(RolloutOutcome::Failed));
}

#[test]
fn failure_percentage_counts_all_servers() {
    let max_failures = Some(Portion::percent(50).unwrap());
    let pace = Pace { max_failures, stagger_minutes: 1, ..pace() };
    Scenario::new(["a", "b", "c", "d"], pace)
        .apply_event("a", FAILED)
        .assert_phase(Phase::Running)
        .advance_minutes(1)
        .apply_event("b", FAILED)
        .assert_phase(Phase::Halted(HaltReason::TooManyFailures));
}

#[test]
fn resuming_after_failed_canary_starts_everyone() {
    let canary = Some(Portion::Count(1));
    Scenario::new(["a", "b", "c"], Pace { canary, ..pace() })
        .apply_event("a", FAILED)
        .apply_change(Change::Resume)
        .assert_status(["a failed: install_failed", "b dispatched", "c dispatched"]);
}

/// Resuming a paused rollout does not accept its failures. Only resuming a halted one does.
#[test]
fn pause_and_resume_accept_no_failures() {
    let pace = Pace { max_failures: Some(Portion::Count(2)), max_parallel: Some(1), ..pace() };
    Scenario::new(["a", "b", "c"], pace)
        .apply_event("a", FAILED)
        .apply_change(Change::Pause)
        .apply_change(Change::Resume)
        .apply_event("b", FAILED)
        .assert_phase(Phase::Halted(HaltReason::TooManyFailures));
}

/// It does not waive the canary either, which is still in progress.
#[test]
fn pause_and_resume_do_not_waive_canary() {
    let canary = Some(Portion::Count(1));
    Scenario::new(["a", "b", "c"], Pace { canary, ..pace() })
        .apply_change(Change::Pause)
        .apply_change(Change::Resume)
        .assert_status(["a dispatched", "b waits: canary", "c waits: canary"]);
}

/// Both happen in the same plan: the timeout counts as a failure before another server starts.
#[test]
fn timeout_counts_before_next_server_starts() {
    let later = "2026-11-15T00:01:00Z".parse().unwrap();
    let pace = Pace { max_failures: Some(Portion::Count(1)), ..pace() };
    let mut scenario = Scenario::starting_at(later, ["a", "b"], pace);
    scenario
        .set_condition("b", OFFLINE)
        .advance_minutes(1)
        .assert_status(["a dispatched", "b waits: offline"]);
    scenario.now += SignedDuration::from_mins(10);
    scenario.set_condition("b", ServerCondition::FREE);
    scenario.assert_status(["a timed out while dispatched", "b waits: halted, TooManyFailures"]);
}

/// A stored pace may contain values that the API refuses; the rollout must still make progress.
#[test]
fn zero_limits_are_treated_as_one() {
    let pace = Pace {
        max_parallel: Some(0),
        max_failures: Some(Portion::Count(0)),
        canary: Some(Portion::Count(0)),
        ..pace()
    };
    Scenario::new(["a", "b", "c"], pace)
        .assert_status(["a dispatched", "b waits: parallel", "c waits: parallel"])
        .apply_event("a", SUCCEEDED)
        .assert_status(["a succeeded", "b dispatched", "c waits: parallel"])
        .apply_event("b", FAILED)
        .assert_phase(Phase::Halted(HaltReason::TooManyFailures));
}

#[test]
fn canary_is_capped_at_number_of_servers() {
    let canary = Some(Portion::Count(10));
    let mut scenario = Scenario::new(["a", "b"], Pace { canary, ..pace() });
    assert_eq!(scenario.rollout.limits().canary(), 2);
    scenario.assert_status(["a dispatched", "b dispatched"]);
}
