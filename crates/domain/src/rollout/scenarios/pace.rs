//! Stagger, parallelism, canaries and failure limits.

use super::*;

#[test]
fn stagger_is_minimum_time_between_starts() {
    let mut story = Story::of(["a", "b", "c"], Pace { stagger_minutes: 10, ..pace() });
    story.shows(["a dispatched", "b waits: stagger until 00:10", "c waits: stagger until 00:10"]);
    assert_eq!(
        plan(&story.rollout, story.now).wake_at.unwrap().to_string(),
        "2026-11-15T00:10:00Z"
    );
    // A task that ends early does not let the next one start sooner.
    story.happens("a", SUCCEEDED).minutes(9);
    story.shows(["a succeeded", "b waits: stagger until 00:10", "c waits: stagger until 00:10"]);
    story.minutes(1).shows(["a succeeded", "b dispatched", "c waits: stagger until 00:20"]);
}

#[test]
fn parallel_limit_is_respected() {
    Story::of(["a", "b", "c"], Pace { max_parallel: Some(2), ..pace() })
        .shows(["a dispatched", "b dispatched", "c waits: parallel"])
        .happens("b", FAILED)
        .shows(["a dispatched", "b failed: install_failed", "c dispatched"])
        .happens("a", SUCCEEDED)
        .happens("c", SUCCEEDED)
        .is(Phase::Ended(End::CompletedWithErrors));
}

#[test]
fn rest_starts_after_every_canary_succeeded() {
    let canary = Some(Portion::Count(2));
    Story::of(["a", "b", "c", "d"], Pace { canary, ..pace() })
        .shows(["a dispatched", "b dispatched", "c waits: canary", "d waits: canary"])
        .happens("a", SUCCEEDED)
        .shows(["a succeeded", "b dispatched", "c waits: canary", "d waits: canary"])
        .happens("b", SUCCEEDED)
        .shows(["a succeeded", "b succeeded", "c dispatched", "d dispatched"]);
}

#[test]
fn canary_without_changes_is_replaced() {
    let canary = Some(Portion::Count(1));
    Story::of(["a", "b", "c"], Pace { canary, ..pace() })
        .happens("a", NO_CHANGE)
        .shows(["a had nothing to change", "b dispatched", "c waits: canary"])
        .happens("b", SUCCEEDED)
        .shows(["a had nothing to change", "b succeeded", "c dispatched"]);
}

#[test]
fn only_servers_with_expected_changes_replace_a_canary() {
    let canary = Some(Portion::Count(2));
    let mut story = Story::expecting(3, ["a", "b", "c", "d", "e"], Pace { canary, ..pace() });
    story
        .happens("a", NO_CHANGE)
        .happens("b", NO_CHANGE)
        // One canary is missing, and only c can replace it.
        .shows([
            "a had nothing to change",
            "b had nothing to change",
            "c dispatched",
            "d waits: canary",
            "e waits: canary",
        ]);
    assert!(!story.rollout.head().canary_unchanged);
    story.happens("c", SUCCEEDED);
    // One of two canaries has proved the update, and no server is left to be the second.
    assert!(story.rollout.head().canary_unchanged);
    story.shows([
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
    let mut story = Story::expecting(0, ["a", "b", "c"], pace);
    story.happens("a", NO_CHANGE).shows([
        "a had nothing to change",
        "b dispatched",
        "c waits: parallel",
    ]);
    assert!(story.rollout.head().canary_unchanged);
    story.happens("b", FAILED).is(Phase::Halted(Halt::CanaryFailed));
}

#[test]
fn failed_canary_halts_until_resumed() {
    let canary = Some(Portion::Count(1));
    Story::of(["a", "b"], Pace { canary, ..pace() })
        .happens("a", FAILED)
        .shows(["a failed: install_failed", "b waits: halted, CanaryFailed"])
        .is(Phase::Halted(Halt::CanaryFailed))
        .does(Change::Resume)
        .shows(["a failed: install_failed", "b dispatched"]);
}

/// Otherwise a single powered-off server would keep the whole fleet from being patched.
#[test]
fn offline_canary_is_replaced_by_next_server() {
    let canary = Some(Portion::Count(1));
    let later = "2026-11-15T00:05:00Z".parse().unwrap();
    Story::starting_at(later, ["a", "b", "c"], Pace { canary, ..pace() })
        .notices("a", OFFLINE)
        .minutes(5)
        .shows(["a waits: offline", "b dispatched", "c waits: canary"])
        .happens("b", SUCCEEDED)
        .shows(["a waits: offline", "b succeeded", "c dispatched"])
        .notices("a", Condition::FREE)
        .shows(["a dispatched", "b succeeded", "c dispatched"]);
}

/// One bad package must affect a few servers, not the fleet.
#[test]
fn failure_limit_stops_further_starts() {
    let pace = Pace { max_failures: Some(Portion::Count(2)), max_parallel: Some(1), ..pace() };
    Story::of(["a", "b", "c", "d"], pace)
        .happens("a", FAILED)
        .happens("b", FAILED)
        .shows([
            "a failed: install_failed",
            "b failed: install_failed",
            "c waits: halted, TooManyFailures",
            "d waits: halted, TooManyFailures",
        ])
        // Resuming accepts these two failures: the limit starts from zero again.
        .does(Change::Resume)
        .happens("c", FAILED)
        .is(Phase::Running)
        .happens("d", FAILED)
        .is(Phase::Ended(End::Failed));
}

#[test]
fn failure_percentage_counts_all_servers() {
    let max_failures = Some(Portion::percent(50).unwrap());
    let pace = Pace { max_failures, stagger_minutes: 1, ..pace() };
    Story::of(["a", "b", "c", "d"], pace)
        .happens("a", FAILED)
        .is(Phase::Running)
        .minutes(1)
        .happens("b", FAILED)
        .is(Phase::Halted(Halt::TooManyFailures));
}

#[test]
fn resuming_after_failed_canary_starts_everyone() {
    let canary = Some(Portion::Count(1));
    Story::of(["a", "b", "c"], Pace { canary, ..pace() })
        .happens("a", FAILED)
        .does(Change::Resume)
        .shows(["a failed: install_failed", "b dispatched", "c dispatched"]);
}

/// Resuming after a pause accepts no failures: no user has been asked about them yet.
#[test]
fn pause_and_resume_accept_no_failures() {
    let pace = Pace { max_failures: Some(Portion::Count(2)), max_parallel: Some(1), ..pace() };
    Story::of(["a", "b", "c"], pace)
        .happens("a", FAILED)
        .does(Change::Pause)
        .does(Change::Resume)
        .happens("b", FAILED)
        .is(Phase::Halted(Halt::TooManyFailures));
}

/// It does not waive the canary either, which is still in progress.
#[test]
fn pause_and_resume_do_not_waive_canary() {
    let canary = Some(Portion::Count(1));
    Story::of(["a", "b", "c"], Pace { canary, ..pace() })
        .does(Change::Pause)
        .does(Change::Resume)
        .shows(["a dispatched", "b waits: canary", "c waits: canary"]);
}

/// Both happen in the same plan: the timeout counts as a failure before another server starts.
#[test]
fn timeout_counts_before_next_server_starts() {
    let later = "2026-11-15T00:01:00Z".parse().unwrap();
    let pace = Pace { max_failures: Some(Portion::Count(1)), ..pace() };
    let mut story = Story::starting_at(later, ["a", "b"], pace);
    story.notices("b", OFFLINE).minutes(1).shows(["a dispatched", "b waits: offline"]);
    story.now += SignedDuration::from_mins(10);
    story.notices("b", Condition::FREE);
    story.shows(["a timed out while dispatched", "b waits: halted, TooManyFailures"]);
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
    Story::of(["a", "b", "c"], pace)
        .shows(["a dispatched", "b waits: parallel", "c waits: parallel"])
        .happens("a", SUCCEEDED)
        .shows(["a succeeded", "b dispatched", "c waits: parallel"])
        .happens("b", FAILED)
        .is(Phase::Halted(Halt::TooManyFailures));
}

#[test]
fn canary_is_capped_at_number_of_servers() {
    let canary = Some(Portion::Count(10));
    let mut story = Story::of(["a", "b"], Pace { canary, ..pace() });
    assert_eq!(story.rollout.limits().canary(), 2);
    story.shows(["a dispatched", "b dispatched"]);
}
