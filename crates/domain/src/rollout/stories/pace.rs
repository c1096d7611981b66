//! How fast it goes, who goes first, and how much may go wrong.

use super::*;

#[test]
fn a_stagger_is_the_least_time_between_two_starts() {
    let mut story = Story::of(["a", "b", "c"], Pace { stagger_minutes: 10, ..pace() });
    story.shows(["a dispatched", "b waits: stagger until 00:10", "c waits: stagger until 00:10"]);
    assert_eq!(
        plan(&story.rollout, story.now).wake_at.unwrap().to_string(),
        "2026-11-15T00:10:00Z"
    );
    // An end before the time is up does not let the next one start sooner.
    story.happens("a", SUCCEEDED).minutes(9);
    story.shows(["a succeeded", "b waits: stagger until 00:10", "c waits: stagger until 00:10"]);
    story.minutes(1).shows(["a succeeded", "b dispatched", "c waits: stagger until 00:20"]);
}

#[test]
fn no_more_are_in_work_than_allowed() {
    Story::of(["a", "b", "c"], Pace { max_parallel: Some(2), ..pace() })
        .shows(["a dispatched", "b dispatched", "c waits: parallel"])
        .happens("b", FAILED)
        .shows(["a dispatched", "b failed: install_failed", "c dispatched"])
        .happens("a", SUCCEEDED)
        .happens("c", SUCCEEDED)
        .is(Phase::Ended(End::CompletedWithErrors));
}

#[test]
fn the_rest_starts_when_every_canary_has_succeeded() {
    let canary = Some(Portion::Count(2));
    Story::of(["a", "b", "c", "d"], Pace { canary, ..pace() })
        .shows(["a dispatched", "b dispatched", "c waits: canary", "d waits: canary"])
        .happens("a", SUCCEEDED)
        .shows(["a succeeded", "b dispatched", "c waits: canary", "d waits: canary"])
        .happens("b", SUCCEEDED)
        .shows(["a succeeded", "b succeeded", "c dispatched", "d dispatched"]);
}

#[test]
fn a_canary_with_nothing_to_install_is_replaced_by_the_next_server() {
    let canary = Some(Portion::Count(1));
    Story::of(["a", "b", "c"], Pace { canary, ..pace() })
        .happens("a", NO_CHANGE)
        .shows(["a had nothing to change", "b dispatched", "c waits: canary"])
        .happens("b", SUCCEEDED)
        .shows(["a had nothing to change", "b succeeded", "c dispatched"]);
}

#[test]
fn only_servers_that_should_install_something_replace_a_canary() {
    let canary = Some(Portion::Count(2));
    let mut story = Story::expecting(3, ["a", "b", "c", "d", "e"], Pace { canary, ..pace() });
    story
        .happens("a", NO_CHANGE)
        .happens("b", NO_CHANGE)
        // One canary is missing, and only c could be it.
        .shows([
            "a had nothing to change",
            "b had nothing to change",
            "c dispatched",
            "d waits: canary",
            "e waits: canary",
        ]);
    assert!(!story.rollout.head().canary_unchanged);
    story.happens("c", SUCCEEDED);
    // One of two has proved the update, and nobody is left to be the second.
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
fn a_canary_that_changed_nothing_is_recorded_and_the_first_failure_after_it_stops_the_rollout() {
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
fn a_failed_canary_stops_the_rollout_until_someone_decides() {
    let canary = Some(Portion::Count(1));
    Story::of(["a", "b"], Pace { canary, ..pace() })
        .happens("a", FAILED)
        .shows(["a failed: install_failed", "b waits: halted, CanaryFailed"])
        .is(Phase::Halted(Halt::CanaryFailed))
        .does(Change::Resume)
        .shows(["a failed: install_failed", "b dispatched"]);
}

/// Or one server that is switched off would keep the whole fleet from being patched.
#[test]
fn an_offline_server_leaves_its_place_as_canary_to_the_next() {
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

/// One bad package must cost a few servers, not the fleet.
#[test]
fn at_the_failure_limit_whoever_has_not_started_stays_untouched() {
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
        // Going on means going on in spite of these two: the limit counts anew.
        .does(Change::Resume)
        .happens("c", FAILED)
        .is(Phase::Running)
        .happens("d", FAILED)
        .is(Phase::Ended(End::Failed));
}

#[test]
fn a_share_of_failures_is_counted_from_all_servers() {
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
fn going_on_after_a_failed_canary_is_going_on_with_everyone() {
    let canary = Some(Portion::Count(1));
    Story::of(["a", "b", "c"], Pace { canary, ..pace() })
        .happens("a", FAILED)
        .does(Change::Resume)
        .shows(["a failed: install_failed", "b dispatched", "c dispatched"]);
}

/// Going on after a pause is no opinion on failures: nobody has been asked about them yet.
#[test]
fn a_pause_forgives_nothing() {
    let pace = Pace { max_failures: Some(Portion::Count(2)), max_parallel: Some(1), ..pace() };
    Story::of(["a", "b", "c"], pace)
        .happens("a", FAILED)
        .does(Change::Pause)
        .does(Change::Resume)
        .happens("b", FAILED)
        .is(Phase::Halted(Halt::TooManyFailures));
}

/// Nor on those that go first, which are still out.
#[test]
fn a_pause_waives_no_canary() {
    let canary = Some(Portion::Count(1));
    Story::of(["a", "b", "c"], Pace { canary, ..pace() })
        .does(Change::Pause)
        .does(Change::Resume)
        .shows(["a dispatched", "b waits: canary", "c waits: canary"]);
}

/// Both happen at the same look: the failure counts before anyone else is started.
#[test]
fn who_fell_silent_is_counted_before_the_next_one_starts() {
    let later = "2026-11-15T00:01:00Z".parse().unwrap();
    let pace = Pace { max_failures: Some(Portion::Count(1)), ..pace() };
    let mut story = Story::starting_at(later, ["a", "b"], pace);
    story.notices("b", OFFLINE).minutes(1).shows(["a dispatched", "b waits: offline"]);
    story.now += SignedDuration::from_mins(10);
    story.notices("b", Condition::FREE);
    story.shows(["a timed out while dispatched", "b waits: halted, TooManyFailures"]);
}

/// A stored pace may hold what the API refuses; the rollout must still move.
#[test]
fn none_at_once_is_one_at_once_and_no_failures_is_one_failure() {
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
fn a_canary_of_more_than_all_is_a_canary_of_all() {
    let canary = Some(Portion::Count(10));
    let mut story = Story::of(["a", "b"], Pace { canary, ..pace() });
    assert_eq!(story.rollout.limits().canary(), 2);
    story.shows(["a dispatched", "b dispatched"]);
}
