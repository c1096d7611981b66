//! How targets and rollouts come to an end, and what an end is worth.

use proptest::prelude::*;

use super::*;

#[test]
fn a_late_report_replaces_the_guess_and_the_end() {
    let mut story = Story::of(["a", "b"], pace());
    story.happens("a", SUCCEEDED).minutes(10);
    story.shows(["a succeeded", "b timed out while dispatched"]);
    story.is(Phase::Ended(End::CompletedWithErrors));
    story.minutes(3 * 24 * 60).happens("b", SUCCEEDED);
    story.shows(["a succeeded", "b succeeded"]).is(Phase::Ended(End::Succeeded));
}

#[test]
fn a_report_is_final_whatever_is_said_afterwards() {
    Story::of(["a"], pace())
        .happens("a", FAILED)
        .happens("a", SUCCEEDED)
        .happens("a", Event::Reached(Stage::Verifying))
        .happens("a", Event::ServerRemoved)
        .shows(["a failed: install_failed"])
        .is(Phase::Ended(End::Failed));
}

#[test]
fn canceling_calls_off_what_waits_and_lets_the_rest_end() {
    Story::of(["a", "b"], Pace { max_parallel: Some(1), ..pace() })
        .happens("a", Event::Reached(Stage::Installing))
        .does(Change::Cancel)
        .shows(["a installing", "b canceled: Person"])
        .is(Phase::Canceling)
        .happens("a", SUCCEEDED)
        .is(Phase::Ended(End::Canceled));
}

#[test]
fn an_order_that_was_not_begun_can_be_withdrawn() {
    Story::of(["a"], pace())
        .does(Change::Cancel)
        .happens("a", Event::Reported(Verdict::Withdrawn))
        .shows(["a canceled: Person"])
        .is(Phase::Ended(End::Canceled));
}

/// A pause is no end: whoever gives his order back unbegun waits for his turn as before.
#[test]
fn an_order_that_was_not_begun_when_a_pause_came_is_given_back() {
    let withdrawn = Event::Reported(Verdict::Withdrawn);
    Story::of(["a", "b", "c"], Pace { max_parallel: Some(2), ..pace() })
        .happens("a", Event::Reached(Stage::Installing))
        .does(Change::Pause)
        .happens("b", withdrawn)
        .shows(["a installing", "b waits: paused", "c waits: paused"])
        .does(Change::Resume)
        .shows(["a installing", "b dispatched", "c waits: parallel"])
        // Its answer may also be slower than whoever presses "resume".
        .happens("b", withdrawn)
        .shows(["a installing", "b dispatched", "c waits: parallel"]);
}

#[test]
fn a_halt_takes_back_what_was_not_begun() {
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

/// Nobody called it off, and it was not done either.
#[test]
fn what_was_given_up_and_then_given_back_has_failed() {
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
fn a_server_that_was_removed_is_nobodys_failure() {
    Story::of(["a", "b"], Pace { max_failures: Some(Portion::Count(1)), ..pace() })
        .happens("a", Event::ServerRemoved)
        .shows(["a canceled: ServerRemoved", "b dispatched"])
        .happens("b", SUCCEEDED)
        .is(Phase::Ended(End::Succeeded));
    Story::of(["a"], pace()).happens("a", Event::ServerRemoved).is(Phase::Ended(End::Canceled));
}

/// After a restore from a backup the control plane does not know what it ordered.
#[test]
fn a_report_for_an_order_that_was_forgotten_is_believed() {
    Story::of(["a", "b"], Pace { max_parallel: Some(1), ..pace() })
        .happens("b", SUCCEEDED)
        .shows(["a dispatched", "b succeeded"]);
}

#[test]
fn retrying_takes_the_failed_ones_into_a_new_rollout() {
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
fn a_rollout_over_nobody_ends_at_once() {
    let pace = Pace { max_parallel: Some(1), canary: Some(Portion::Count(1)), ..pace() };
    Story::of([], pace).is(Phase::Ended(End::Succeeded));
}

#[test]
fn percent_reaches_a_hundred_only_at_the_end() {
    let mut story = Story::of(["a", "b", "c"], pace());
    story.happens("a", SUCCEEDED).happens("b", FAILED);
    assert_eq!(story.rollout.tally().percent(), 66);
    story.happens("c", SUCCEEDED);
    assert_eq!(story.rollout.tally().percent(), 100);
}

#[test]
fn where_nothing_applied_the_order_fell_short() {
    let not_applicable = Event::Reported(Verdict::NotApplicable);
    Story::of(["a", "b"], pace())
        .happens("a", not_applicable)
        .happens("b", SUCCEEDED)
        .shows(["a skipped: NotApplicable", "b succeeded"])
        .is(Phase::Ended(End::CompletedWithErrors));
    Story::of(["a"], pace()).happens("a", not_applicable).is(Phase::Ended(End::Failed));
}

/// Of the two, what a person did is what people ask about.
#[test]
fn a_rollout_that_expired_and_was_then_canceled_is_canceled() {
    Story::of(["a", "b"], Pace { window_minutes: Some(5), max_parallel: Some(1), ..pace() })
        .minutes(5)
        .shows(["a dispatched", "b skipped: WindowClosed"])
        .does(Change::Cancel)
        .happens("a", Event::Reported(Verdict::Withdrawn))
        .is(Phase::Ended(End::Canceled));
}

/// A result says when its server was started and when it ended, also one that came late.
#[test]
fn an_end_remembers_when_its_order_was_given() {
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

/// A service that guesses must not take its guess for what the agent said.
#[test]
fn a_silent_server_is_given_a_reason() {
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
    /// Agents repeat what was not acknowledged, and requests overtake each other. In whatever order their
    /// reports arrive, before or after the deadlines, every task ends the same.
    #[test]
    fn the_order_of_reports_does_not_change_the_final_table(
        order in Just(reports()).prop_shuffle(),
        late in 0..=30_usize,
    ) {
        let mut story = Story::of(["a", "b", "c", "d", "e"], pace());
        for (nth, (server, event)) in order.into_iter().enumerate() {
            if nth == late {
                // Whoever has not reported by now is given up for lost, and heard from afterwards.
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
