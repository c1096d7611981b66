//! How tasks and rollouts end, and how late events affect the result.

use proptest::prelude::*;

use super::*;

#[test]
fn late_report_replaces_timeout_and_rollout_result() {
    let mut scenario = Scenario::new(["a", "b"], pace());
    scenario.apply_event("a", SUCCEEDED).advance_minutes(10);
    scenario.assert_status(["a succeeded", "b timed out while dispatched"]);
    scenario.assert_phase(Phase::Ended(RolloutOutcome::CompletedWithErrors));
    scenario.advance_minutes(3 * 24 * 60).apply_event("b", SUCCEEDED);
    scenario
        .assert_status(["a succeeded", "b succeeded"])
        .assert_phase(Phase::Ended(RolloutOutcome::Succeeded));
}

#[test]
fn reported_result_is_final() {
    Scenario::new(["a"], pace())
        .apply_event("a", FAILED)
        .apply_event("a", SUCCEEDED)
        .apply_event("a", TaskEvent::Reached(Stage::Verifying))
        .apply_event("a", TaskEvent::ServerRemoved)
        .assert_status(["a failed: install_failed"])
        .assert_phase(Phase::Ended(RolloutOutcome::Failed));
}

#[test]
fn canceling_stops_waiting_tasks_only() {
    Scenario::new(["a", "b"], Pace { max_parallel: Some(1), ..pace() })
        .apply_event("a", TaskEvent::Reached(Stage::Installing))
        .apply_change(Change::Cancel)
        .assert_status(["a installing", "b canceled: Person"])
        .assert_phase(Phase::Canceling)
        .apply_event("a", SUCCEEDED)
        .assert_phase(Phase::Ended(RolloutOutcome::Canceled));
}

#[test]
fn order_not_begun_can_be_withdrawn() {
    Scenario::new(["a"], pace())
        .apply_change(Change::Cancel)
        .apply_event("a", TaskEvent::Reported(ReportedResult::Withdrawn))
        .assert_status(["a canceled: Person"])
        .assert_phase(Phase::Ended(RolloutOutcome::Canceled));
}

/// A pause is not an end: a server whose order was dropped before it was begun waits to be started
/// again.
#[test]
fn order_not_begun_at_pause_is_started_again() {
    let withdrawn = TaskEvent::Reported(ReportedResult::Withdrawn);
    Scenario::new(["a", "b", "c"], Pace { max_parallel: Some(2), ..pace() })
        .apply_event("a", TaskEvent::Reached(Stage::Installing))
        .apply_change(Change::Pause)
        .apply_event("b", withdrawn)
        .assert_status(["a installing", "b waits: paused", "c waits: paused"])
        .apply_change(Change::Resume)
        .assert_status(["a installing", "b dispatched", "c waits: parallel"])
        // The reply of the agent may also arrive after the user has resumed the rollout.
        .apply_event("b", withdrawn)
        .assert_status(["a installing", "b dispatched", "c waits: parallel"]);
}

#[test]
fn order_not_begun_at_halt_is_started_again() {
    let canary = Some(Portion::Count(2));
    Scenario::new(["a", "b", "c"], Pace { canary, ..pace() })
        .apply_event("a", FAILED)
        .apply_event("b", TaskEvent::Reported(ReportedResult::Withdrawn))
        .assert_status([
            "a failed: install_failed",
            "b waits: halted, CanaryFailed",
            "c waits: halted, CanaryFailed",
        ])
        .apply_change(Change::Resume)
        .assert_status(["a failed: install_failed", "b dispatched", "c dispatched"]);
}

/// No user canceled it, and it was not carried out either.
#[test]
fn withdrawn_order_after_timeout_has_failed() {
    Scenario::new(["a", "b"], pace())
        .apply_event("b", SUCCEEDED)
        .apply_change(Change::Pause)
        .advance_minutes(10)
        .assert_status(["a timed out while dispatched", "b succeeded"])
        .apply_event("a", TaskEvent::Reported(ReportedResult::Withdrawn))
        .assert_status(["a failed: order_expired", "b succeeded"])
        .assert_phase(Phase::Ended(RolloutOutcome::CompletedWithErrors));
}

#[test]
fn canceling_after_the_last_start_cancels_nothing() {
    Scenario::new(["a"], pace())
        .apply_change(Change::Cancel)
        .apply_event("a", SUCCEEDED)
        .assert_status(["a succeeded"])
        .assert_phase(Phase::Ended(RolloutOutcome::Succeeded));
}

#[test]
fn removed_server_does_not_count_as_failure() {
    Scenario::new(["a", "b"], Pace { max_failures: Some(Portion::Count(1)), ..pace() })
        .apply_event("a", TaskEvent::ServerRemoved)
        .assert_status(["a canceled: ServerRemoved", "b dispatched"])
        .apply_event("b", SUCCEEDED)
        .assert_phase(Phase::Ended(RolloutOutcome::Succeeded));
    Scenario::new(["a"], pace())
        .apply_event("a", TaskEvent::ServerRemoved)
        .assert_phase(Phase::Ended(RolloutOutcome::Canceled));
}

/// After a restore from a backup, the control plane does not know which orders it issued.
#[test]
fn report_for_forgotten_order_is_accepted() {
    Scenario::new(["a", "b"], Pace { max_parallel: Some(1), ..pace() })
        .apply_event("b", SUCCEEDED)
        .assert_status(["a dispatched", "b succeeded"]);
}

#[test]
fn retry_creates_rollout_of_failed_servers() {
    let mut scenario = Scenario::new(["a", "b", "c"], pace());
    assert_eq!(scenario.rollout.retry(batch(2), scenario.now), Err(RetryError::NotEnded));
    scenario.apply_event("a", FAILED).apply_event("b", SUCCEEDED).advance_minutes(10);
    let again = scenario.rollout.retry(batch(2), scenario.now).unwrap();
    let servers: Vec<_> = again.tasks().collect();
    assert_eq!(servers, [(id(0), TaskStatus::Waiting), (id(2), TaskStatus::Waiting)]);

    let mut good = Scenario::new(["a"], pace());
    good.apply_event("a", SUCCEEDED);
    assert_eq!(good.rollout.retry(batch(2), good.now), Err(RetryError::NothingFailed));
}

#[test]
fn rollout_without_servers_ends_immediately() {
    let pace = Pace { max_parallel: Some(1), canary: Some(Portion::Count(1)), ..pace() };
    Scenario::new([], pace).assert_phase(Phase::Ended(RolloutOutcome::Succeeded));
}

#[test]
fn percent_reaches_100_only_at_the_end() {
    let mut scenario = Scenario::new(["a", "b", "c"], pace());
    scenario.apply_event("a", SUCCEEDED).apply_event("b", FAILED);
    assert_eq!(scenario.rollout.counts().percent(), 66);
    scenario.apply_event("c", SUCCEEDED);
    assert_eq!(scenario.rollout.counts().percent(), 100);
}

#[test]
fn inapplicable_updates_do_not_count_as_success() {
    let not_applicable = TaskEvent::Reported(ReportedResult::NotApplicable);
    Scenario::new(["a", "b"], pace())
        .apply_event("a", not_applicable)
        .apply_event("b", SUCCEEDED)
        .assert_status(["a skipped: NotApplicable", "b succeeded"])
        .assert_phase(Phase::Ended(RolloutOutcome::CompletedWithErrors));
    Scenario::new(["a"], pace())
        .apply_event("a", not_applicable)
        .assert_phase(Phase::Ended(RolloutOutcome::Failed));
}

/// If both apply, the user's action is what people ask about.
#[test]
fn canceling_takes_precedence_over_expiry() {
    Scenario::new(["a", "b"], Pace { window_minutes: Some(5), max_parallel: Some(1), ..pace() })
        .advance_minutes(5)
        .assert_status(["a dispatched", "b skipped: WindowClosed"])
        .apply_change(Change::Cancel)
        .apply_event("a", TaskEvent::Reported(ReportedResult::Withdrawn))
        .assert_phase(Phase::Ended(RolloutOutcome::Canceled));
}

/// A result records when its task started and ended, even if it arrived late.
#[test]
fn result_keeps_start_time_of_its_order() {
    let mut scenario = Scenario::new(["a", "b"], pace());
    scenario
        .advance_minutes(5)
        .apply_event("a", TaskEvent::Reached(Stage::Preflight))
        .advance_minutes(4);
    scenario.apply_event("a", SUCCEEDED).advance_minutes(60).apply_event("b", SUCCEEDED);
    for (name, at) in [("a", 9), ("b", 69)] {
        let done = EndedTask {
            outcome: TaskOutcome::Succeeded,
            started_at: Some(midnight()),
            at: midnight() + SignedDuration::from_mins(at),
            wave: 1,
        };
        assert_eq!(
            scenario.rollout.task_status(scenario.server(name)),
            Some(TaskStatus::Done(done))
        );
    }
}

/// An assumption of the service must not be mistaken for a report of the agent.
#[test]
fn silent_server_gets_a_failure_code() {
    let code = |outcome: TaskOutcome| outcome.failure_code();
    assert_eq!(code(TaskOutcome::TimedOut(Stage::Rebooting)), Some(FailureCode::RebootTimeout));
    assert_eq!(code(TaskOutcome::TimedOut(Stage::Installing)), Some(FailureCode::AgentLost));
    assert_eq!(
        code(TaskOutcome::Skipped(TaskSkipReason::WindowClosed)),
        Some(FailureCode::WindowClosed)
    );
    assert_eq!(code(TaskOutcome::Canceled(CancelReason::Person)), None);
}

/// Everything that the agents of five servers report, each result twice.
fn reports() -> Vec<(ServerId, TaskEvent)> {
    let verdicts = [
        ReportedResult::Succeeded,
        ReportedResult::NoChange,
        ReportedResult::Failed(FailureCode::InstallFailed),
        ReportedResult::NotApplicable,
        ReportedResult::Succeeded,
    ];
    let server_reports = |(server, verdict): (usize, ReportedResult)| {
        let stages = [Stage::Preflight, Stage::Downloading, Stage::Installing, Stage::Verifying];
        let reached = stages.map(|stage| (id(server), TaskEvent::Reached(stage)));
        let ended = [(id(server), TaskEvent::Reported(verdict)); 2];
        reached.into_iter().chain(ended)
    };
    verdicts.into_iter().enumerate().flat_map(server_reports).collect()
}

proptest! {
    /// Agents repeat unacknowledged reports, and requests overtake each other. In whatever order
    /// the reports arrive, before or after the deadlines, every task ends with the same result.
    #[test]
    fn final_results_do_not_depend_on_report_order(
        order in Just(reports()).prop_shuffle(),
        late in 0..=30_usize,
    ) {
        let mut scenario = Scenario::new(["a", "b", "c", "d", "e"], pace());
        for (nth, (server, event)) in order.into_iter().enumerate() {
            if nth == late {
                // Tasks without a result time out now, and their agents report later.
                scenario.advance_minutes(24 * 60);
            }
            scenario.rollout.apply_event(server, event, scenario.now).unwrap();
            scenario.run_planner();
        }
        scenario.assert_status([
            "a succeeded",
            "b had nothing to change",
            "c failed: install_failed",
            "d skipped: NotApplicable",
            "e succeeded",
        ]);
        scenario.assert_phase(Phase::Ended(RolloutOutcome::CompletedWithErrors));
    }
}
