//! How tasks and rollouts end, and how late events affect the result.

use proptest::prelude::*;

use super::*;

#[test]
fn late_report_replaces_timeout_and_rollout_result() {
    let mut story = Story::of(["a", "b"], pace());
    story.happens("a", SUCCEEDED).minutes(10);
    story.shows(["a succeeded", "b timed out while dispatched"]);
    story.is(Phase::Ended(End::CompletedWithErrors));
    story.minutes(3 * 24 * 60).happens("b", SUCCEEDED);
    story.shows(["a succeeded", "b succeeded"]).is(Phase::Ended(End::Succeeded));
}

#[test]
fn reported_result_is_final() {
    Story::of(["a"], pace())
        .happens("a", FAILED)
        .happens("a", SUCCEEDED)
        .happens("a", Event::Reached(Stage::Verifying))
        .happens("a", Event::ServerRemoved)
        .shows(["a failed: install_failed"])
        .is(Phase::Ended(End::Failed));
}

#[test]
fn canceling_stops_waiting_tasks_only() {
    Story::of(["a", "b"], Pace { max_parallel: Some(1), ..pace() })
        .happens("a", Event::Reached(Stage::Installing))
        .does(Change::Cancel)
        .shows(["a installing", "b canceled: Person"])
        .is(Phase::Canceling)
        .happens("a", SUCCEEDED)
        .is(Phase::Ended(End::Canceled));
}

#[test]
fn order_not_begun_can_be_withdrawn() {
    Story::of(["a"], pace())
        .does(Change::Cancel)
        .happens("a", Event::Reported(Verdict::Withdrawn))
        .shows(["a canceled: Person"])
        .is(Phase::Ended(End::Canceled));
}

/// A pause is not an end: a server whose order was dropped before it was begun waits to be started
/// again.
#[test]
fn order_not_begun_at_pause_is_started_again() {
    let withdrawn = Event::Reported(Verdict::Withdrawn);
    Story::of(["a", "b", "c"], Pace { max_parallel: Some(2), ..pace() })
        .happens("a", Event::Reached(Stage::Installing))
        .does(Change::Pause)
        .happens("b", withdrawn)
        .shows(["a installing", "b waits: paused", "c waits: paused"])
        .does(Change::Resume)
        .shows(["a installing", "b dispatched", "c waits: parallel"])
        // The reply of the agent may also arrive after the user has resumed the rollout.
        .happens("b", withdrawn)
        .shows(["a installing", "b dispatched", "c waits: parallel"]);
}

#[test]
fn order_not_begun_at_halt_is_started_again() {
    let canary = Some(Portion::Count(2));
    Story::of(["a", "b", "c"], Pace { canary, ..pace() })
        .happens("a", FAILED)
        .happens("b", Event::Reported(Verdict::Withdrawn))
        .shows([
            "a failed: install_failed",
            "b waits: halted, CanaryFailed",
            "c waits: halted, CanaryFailed",
        ])
        .does(Change::Resume)
        .shows(["a failed: install_failed", "b dispatched", "c dispatched"]);
}

/// No user canceled it, and it was not carried out either.
#[test]
fn withdrawn_order_after_timeout_has_failed() {
    Story::of(["a", "b"], pace())
        .happens("b", SUCCEEDED)
        .does(Change::Pause)
        .minutes(10)
        .shows(["a timed out while dispatched", "b succeeded"])
        .happens("a", Event::Reported(Verdict::Withdrawn))
        .shows(["a failed: order_expired", "b succeeded"])
        .is(Phase::Ended(End::CompletedWithErrors));
}

#[test]
fn canceling_after_the_last_start_cancels_nothing() {
    Story::of(["a"], pace())
        .does(Change::Cancel)
        .happens("a", SUCCEEDED)
        .shows(["a succeeded"])
        .is(Phase::Ended(End::Succeeded));
}

#[test]
fn removed_server_does_not_count_as_failure() {
    Story::of(["a", "b"], Pace { max_failures: Some(Portion::Count(1)), ..pace() })
        .happens("a", Event::ServerRemoved)
        .shows(["a canceled: ServerRemoved", "b dispatched"])
        .happens("b", SUCCEEDED)
        .is(Phase::Ended(End::Succeeded));
    Story::of(["a"], pace()).happens("a", Event::ServerRemoved).is(Phase::Ended(End::Canceled));
}

/// After a restore from a backup, the control plane does not know which orders it issued.
#[test]
fn report_for_forgotten_order_is_accepted() {
    Story::of(["a", "b"], Pace { max_parallel: Some(1), ..pace() })
        .happens("b", SUCCEEDED)
        .shows(["a dispatched", "b succeeded"]);
}

#[test]
fn retry_creates_rollout_of_failed_servers() {
    let mut story = Story::of(["a", "b", "c"], pace());
    assert_eq!(story.rollout.retry(batch(2), story.now), Err(NoRetry::NotEnded));
    story.happens("a", FAILED).happens("b", SUCCEEDED).minutes(10);
    let again = story.rollout.retry(batch(2), story.now).unwrap();
    let servers: Vec<_> = again.targets().collect();
    assert_eq!(servers, [(id(0), Target::Waiting), (id(2), Target::Waiting)]);

    let mut good = Story::of(["a"], pace());
    good.happens("a", SUCCEEDED);
    assert_eq!(good.rollout.retry(batch(2), good.now), Err(NoRetry::NothingFailed));
}

#[test]
fn rollout_without_servers_ends_immediately() {
    let pace = Pace { max_parallel: Some(1), canary: Some(Portion::Count(1)), ..pace() };
    Story::of([], pace).is(Phase::Ended(End::Succeeded));
}

#[test]
fn percent_reaches_100_only_at_the_end() {
    let mut story = Story::of(["a", "b", "c"], pace());
    story.happens("a", SUCCEEDED).happens("b", FAILED);
    assert_eq!(story.rollout.tally().percent(), 66);
    story.happens("c", SUCCEEDED);
    assert_eq!(story.rollout.tally().percent(), 100);
}

#[test]
fn inapplicable_updates_do_not_count_as_success() {
    let not_applicable = Event::Reported(Verdict::NotApplicable);
    Story::of(["a", "b"], pace())
        .happens("a", not_applicable)
        .happens("b", SUCCEEDED)
        .shows(["a skipped: NotApplicable", "b succeeded"])
        .is(Phase::Ended(End::CompletedWithErrors));
    Story::of(["a"], pace()).happens("a", not_applicable).is(Phase::Ended(End::Failed));
}

/// If both apply, the user's action is what people ask about.
#[test]
fn canceling_takes_precedence_over_expiry() {
    Story::of(["a", "b"], Pace { window_minutes: Some(5), max_parallel: Some(1), ..pace() })
        .minutes(5)
        .shows(["a dispatched", "b skipped: WindowClosed"])
        .does(Change::Cancel)
        .happens("a", Event::Reported(Verdict::Withdrawn))
        .is(Phase::Ended(End::Canceled));
}

/// A result records when its task started and ended, even if it arrived late.
#[test]
fn result_keeps_start_time_of_its_order() {
    let mut story = Story::of(["a", "b"], pace());
    story.minutes(5).happens("a", Event::Reached(Stage::Preflight)).minutes(4);
    story.happens("a", SUCCEEDED).minutes(60).happens("b", SUCCEEDED);
    for (name, at) in [("a", 9), ("b", 69)] {
        let done = Done {
            outcome: Outcome::Succeeded,
            started_at: Some(midnight()),
            at: midnight() + SignedDuration::from_mins(at),
        };
        assert_eq!(story.rollout.target(story.server(name)), Some(Target::Done(done)));
    }
}

/// An assumption of the service must not be mistaken for a report of the agent.
#[test]
fn silent_server_gets_a_failure_code() {
    let code = |outcome: Outcome| outcome.failure_code();
    assert_eq!(code(Outcome::TimedOut(Stage::Rebooting)), Some(FailureCode::RebootTimeout));
    assert_eq!(code(Outcome::TimedOut(Stage::Installing)), Some(FailureCode::AgentLost));
    assert_eq!(code(Outcome::Skipped(Skip::WindowClosed)), Some(FailureCode::WindowClosed));
    assert_eq!(code(Outcome::Canceled(Cancel::Person)), None);
}

/// Everything that the agents of five servers report, each result twice.
fn reports() -> Vec<(ServerId, Event)> {
    let verdicts = [
        Verdict::Succeeded,
        Verdict::NoChange,
        Verdict::Failed(FailureCode::InstallFailed),
        Verdict::NotApplicable,
        Verdict::Succeeded,
    ];
    let of_server = |(server, verdict): (usize, Verdict)| {
        let stages = [Stage::Preflight, Stage::Downloading, Stage::Installing, Stage::Verifying];
        let reached = stages.map(|stage| (id(server), Event::Reached(stage)));
        let ended = [(id(server), Event::Reported(verdict)); 2];
        reached.into_iter().chain(ended)
    };
    verdicts.into_iter().enumerate().flat_map(of_server).collect()
}

proptest! {
    /// Agents repeat unacknowledged reports, and requests overtake each other. In whatever order
    /// the reports arrive, before or after the deadlines, every task ends with the same result.
    #[test]
    fn final_results_do_not_depend_on_report_order(
        order in Just(reports()).prop_shuffle(),
        late in 0..=30_usize,
    ) {
        let mut story = Story::of(["a", "b", "c", "d", "e"], pace());
        for (nth, (server, event)) in order.into_iter().enumerate() {
            if nth == late {
                // Tasks without a result time out now, and their agents report later.
                story.minutes(24 * 60);
            }
            story.rollout.happens(server, event, story.now).unwrap();
            story.settle();
        }
        story.shows([
            "a succeeded",
            "b had nothing to change",
            "c failed: install_failed",
            "d skipped: NotApplicable",
            "e succeeded",
        ]);
        story.is(Phase::Ended(End::CompletedWithErrors));
    }
}
