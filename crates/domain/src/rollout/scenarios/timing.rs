//! Start times, windows, deadlines, and wrong clocks.

use super::*;

#[test]
fn clock_set_back_never_lengthens_waits() {
    let mut scenario = Scenario::new(["a", "b"], Pace { stagger_minutes: 10, ..pace() });
    scenario.apply_event("a", TaskEvent::Reached(Stage::Preflight)).advance_minutes(5);
    scenario.apply_event("a", TaskEvent::Reached(Stage::Downloading));
    // One day back: the stagger starts again, and the download has its full two hours.
    scenario.advance_minutes(-24 * 60);
    scenario.assert_status(["a downloading", "b waits: stagger until 00:15"]);
    scenario.advance_minutes(10).assert_status(["a downloading", "b dispatched"]);
    scenario.apply_event("b", SUCCEEDED).advance_minutes(110);
    scenario.assert_status(["a timed out while downloading", "b succeeded"]);
}

#[test]
fn offline_server_is_skipped_after_a_week() {
    let later = "2026-11-15T00:05:00Z".parse().unwrap();
    Scenario::starting_at(later, ["a"], pace())
        .set_condition("a", OFFLINE)
        .advance_minutes(6 * 24 * 60)
        .assert_status(["a waits: offline"])
        .advance_minutes(24 * 60 + 5)
        .assert_status(["a skipped: WindowClosed"])
        .assert_phase(Phase::Ended(RolloutOutcome::Expired));
}

#[test]
fn no_server_starts_after_the_window() {
    let pace = Pace { window_minutes: Some(25), stagger_minutes: 10, ..pace() };
    Scenario::new(["a", "b", "c", "d"], pace)
        .advance_minutes(10)
        .advance_minutes(10)
        .advance_minutes(5)
        .assert_status([
            "a timed out while dispatched",
            "b timed out while dispatched",
            "c dispatched",
            "d skipped: WindowClosed",
        ])
        .apply_event("a", SUCCEEDED)
        .apply_event("b", SUCCEEDED)
        .apply_event("c", SUCCEEDED)
        .assert_phase(Phase::Ended(RolloutOutcome::Expired));
}

#[test]
fn window_closes_on_paused_rollout() {
    let pace = Pace { window_minutes: Some(30), stagger_minutes: 20, ..pace() };
    Scenario::new(["a", "b"], pace)
        .apply_event("a", SUCCEEDED)
        .apply_change(Change::Pause)
        .advance_minutes(30)
        .assert_status(["a succeeded", "b skipped: WindowClosed"])
        .assert_phase(Phase::Ended(RolloutOutcome::Expired));
}

#[test]
fn every_stage_times_out_at_its_deadline() {
    for stage in Stage::ALL {
        let mut scenario = Scenario::new(["a"], pace());
        scenario.apply_event("a", TaskEvent::Reached(*stage));
        let minutes = stage_limit(*stage).as_mins();
        scenario.advance_minutes(minutes - 1).assert_status([&format!("a {stage}")]);
        scenario.advance_minutes(1).assert_status([&format!("a timed out while {stage}")]);
        scenario.assert_phase(Phase::Ended(RolloutOutcome::Failed));
    }
}

#[test]
fn nothing_starts_before_start_time() {
    let one = "2026-11-15T01:00:00Z".parse().unwrap();
    let mut scenario = Scenario::starting_at(one, ["a"], pace());
    scenario.assert_status(["a waits: starts at 01:00"]).assert_phase(Phase::Scheduled);
    assert_eq!(plan(&scenario.rollout, scenario.now).wake_at, Some(one));
    scenario.advance_minutes(60).assert_status(["a dispatched"]).assert_phase(Phase::Running);
}

#[test]
fn pause_before_start_time_outlasts_it() {
    let one = "2026-11-15T01:00:00Z".parse().unwrap();
    Scenario::starting_at(one, ["a"], pace())
        .apply_change(Change::Pause)
        .apply_change(Change::Resume)
        .assert_phase(Phase::Scheduled)
        .apply_change(Change::Pause)
        .advance_minutes(61)
        .assert_status(["a waits: paused"])
        .apply_change(Change::Resume)
        .assert_status(["a dispatched"]);
}

/// One minute before the start time is still before it.
#[test]
fn nothing_starts_one_minute_early() {
    let one = "2026-11-15T01:00:00Z".parse().unwrap();
    Scenario::starting_at(one, ["a"], pace())
        .advance_minutes(59)
        .assert_status(["a waits: starts at 01:00"])
        .assert_phase(Phase::Scheduled);
}

/// A server that could start at the very instant at which the window closes does not.
#[test]
fn no_server_starts_when_window_closes() {
    let pace = Pace { window_minutes: Some(5), max_parallel: Some(1), ..pace() };
    let mut scenario = Scenario::new(["a", "b"], pace);
    scenario.now += SignedDuration::from_mins(5);
    scenario.apply_event("a", SUCCEEDED).assert_status(["a succeeded", "b skipped: WindowClosed"]);
}

/// The planner runs again in time for whatever comes first.
#[test]
fn planner_wakes_for_earliest_event() {
    let wakes =
        |scenario: &Scenario| plan(&scenario.rollout, scenario.now).wake_at.unwrap().to_string();
    let stagger = Scenario::new(["a", "b"], Pace { stagger_minutes: 5, ..pace() });
    assert_eq!(wakes(&stagger), "2026-11-15T00:05:00Z");
    let deadline = Scenario::new(["a", "b"], Pace { max_parallel: Some(1), ..pace() });
    assert_eq!(wakes(&deadline), "2026-11-15T00:10:00Z");
    let window = Pace { max_parallel: Some(1), window_minutes: Some(7), ..pace() };
    assert_eq!(wakes(&Scenario::new(["a", "b"], window)), "2026-11-15T00:07:00Z");
}

/// The time without a window grows with the pace: 25 servers an hour apart, or a few at a time.
#[test]
fn slow_pace_extends_default_window() {
    let week = OFFLINE_WAIT;
    let allowed = |pace: Pace| pace.start_by(midnight(), 25).duration_since(midnight());
    assert_eq!(allowed(pace()), week);
    assert_eq!(
        allowed(Pace { stagger_minutes: 60, ..pace() }),
        week + SignedDuration::from_hours(24)
    );
    assert_eq!(
        allowed(Pace { max_parallel: Some(5), ..pace() }),
        week + SignedDuration::from_hours(4)
    );
    assert_eq!(allowed(Pace { window_minutes: Some(1), ..pace() }), SignedDuration::from_mins(1));
}

/// Reports of agents carry the time as well.
#[test]
fn clock_set_back_before_last_report_is_detected() {
    let mut scenario = Scenario::new(["a"], pace());
    scenario.now += SignedDuration::from_hours(24);
    let server = scenario.server("a");
    scenario
        .rollout
        .apply_event(server, TaskEvent::Reached(Stage::Preflight), scenario.now)
        .unwrap();
    scenario.advance_minutes(-24 * 60).assert_status(["a preflight"]);
    scenario.advance_minutes(20).assert_status(["a timed out while preflight"]);
}

/// Otherwise it would stay open for the years by which the clock was wrong.
#[test]
fn window_closes_by_the_clock_set_back() {
    let ten_years = 10 * 365 * 24 * 60;
    let pace = Pace { window_minutes: Some(60), max_parallel: Some(1), ..pace() };
    Scenario::new(["a", "b"], pace)
        .apply_event("a", TaskEvent::Reached(Stage::Downloading))
        .advance_minutes(-ten_years)
        .assert_status(["a downloading", "b waits: parallel"])
        .advance_minutes(60)
        .assert_status(["a downloading", "b skipped: WindowClosed"]);
}

/// A rollout that has started does not wait for its start time a second time.
#[test]
fn clock_set_back_before_start_keeps_running() {
    Scenario::new(["a", "b"], Pace { max_parallel: Some(1), ..pace() })
        .apply_change(Change::Pause)
        .advance_minutes(-24 * 60)
        .apply_event("a", SUCCEEDED)
        .apply_change(Change::Resume)
        .assert_phase(Phase::Running)
        .assert_status(["a succeeded", "b dispatched"]);
}

/// A difference of a few seconds between two clocks is ignored.
#[test]
fn clock_correction_under_a_minute_changes_nothing() {
    let mut scenario = Scenario::new(["a", "b"], Pace { stagger_minutes: 10, ..pace() });
    let before = scenario.rollout.clone();
    scenario.now -= SignedDuration::from_secs(59);
    scenario.run_planner();
    assert_eq!(scenario.rollout, before);
}

/// Otherwise an agent that hangs and repeats its report would never time out.
#[test]
fn repeated_report_does_not_extend_deadline() {
    let mut scenario = Scenario::new(["a"], pace());
    scenario.apply_event("a", TaskEvent::Reached(Stage::Preflight)).advance_minutes(15);
    scenario.apply_event("a", TaskEvent::Reached(Stage::Preflight)).advance_minutes(5);
    scenario.assert_status(["a timed out while preflight"]);
}

/// An outdated planner must not enforce a deadline that another planner has extended.
#[test]
fn timeout_before_deadline_is_refused() {
    let mut scenario = Scenario::new(["a"], pace());
    scenario.advance_minutes(9);
    let refused =
        scenario.rollout.apply_event(scenario.server("a"), TaskEvent::DeadlinePassed, scenario.now);
    assert!(matches!(refused, Err(EventError::Invalid(_))), "{refused:?}");
    scenario.assert_status(["a dispatched"]);
}

#[test]
fn slowest_task_ends_within_eight_hours() {
    assert_eq!(stage_limit(Stage::Dispatched), SignedDuration::from_mins(10));
    assert!(total_stage_limit() < SignedDuration::from_hours(8), "{:?}", total_stage_limit());
}
