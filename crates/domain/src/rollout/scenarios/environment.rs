//! Events from outside a rollout: an outage of the service, a clock that is set, an agent that is
//! busy with something else.

use super::*;

const REPORT_GRACE: SignedDuration = SignedDuration::from_secs(3 * 60 + 30);

fn minutes(minutes: i64) -> SignedDuration {
    SignedDuration::from_mins(minutes)
}

impl Scenario {
    /// Nothing is planned and no report arrives for this long; then a replica becomes the leader.
    fn service_down_for(&mut self, time: SignedDuration) -> &mut Scenario {
        self.now += time;
        self.rollout = Rollout::restore(self.rollout.head().clone(), self.rollout.tasks());
        self.rollout.start_grace_period(self.now, REPORT_GRACE);
        self.run_planner();
        self
    }

    /// Sets the clock ahead by `by`, or back if negative. The leader notices it after
    /// `noticed_after`.
    fn set_clock(&mut self, by: SignedDuration, noticed_after: SignedDuration) -> &mut Scenario {
        self.now += by + noticed_after;
        let since = self.now - noticed_after;
        self.apply_change(Change::ClockSet(ClockSet { by, since, now: self.now }))
    }
}

/// Both tasks ended long ago, but their agents could not report it.
#[test]
fn deadline_passed_during_outage_waits_for_reports() {
    let pace = Pace { max_failures: Some(Portion::Count(1)), max_parallel: Some(2), ..pace() };
    let mut scenario = Scenario::new(["a", "b", "c"], pace);
    scenario.service_down_for(minutes(60));
    scenario.assert_status(["a dispatched", "b dispatched", "c waits: parallel"]);
    let wakes = plan(&scenario.rollout, scenario.now).wake_at;
    assert_eq!(wakes, Some(scenario.now + REPORT_GRACE));
    scenario.apply_event("a", SUCCEEDED);
    scenario
        .assert_status(["a succeeded", "b dispatched", "c dispatched"])
        .assert_phase(Phase::Running);
    scenario.now += REPORT_GRACE - SignedDuration::from_secs(1);
    scenario.run_planner();
    scenario.assert_status(["a succeeded", "b dispatched", "c dispatched"]);
    // A task without a report even then times out.
    scenario.now += SignedDuration::from_secs(1);
    scenario.run_planner();
    scenario.assert_status(["a succeeded", "b timed out while dispatched", "c dispatched"]);
    scenario.assert_phase(Phase::Halted(HaltReason::TooManyFailures));
}

/// No server starts after the window, even if the service was down.
#[test]
fn window_closes_even_during_outage() {
    let pace = Pace { window_minutes: Some(30), max_parallel: Some(1), ..pace() };
    Scenario::new(["a", "b"], pace)
        .service_down_for(minutes(45))
        .assert_status(["a dispatched", "b skipped: WindowClosed"]);
}

#[test]
fn setting_the_clock_keeps_every_wait() {
    let hour = minutes(60);
    let ten_years = minutes(10 * 365 * 24 * 60);
    for by in [minutes(2), -minutes(2), hour, -hour, 24 * hour, -24 * hour, ten_years, -ten_years] {
        let pace =
            Pace { stagger_minutes: 15, window_minutes: Some(40), max_parallel: Some(2), ..pace() };
        let mut scenario = Scenario::new(["a", "b", "c", "d"], pace);
        scenario
            .apply_event("a", TaskEvent::Reached(Stage::Downloading))
            .advance_minutes(15)
            .advance_minutes(1);
        scenario.set_clock(by, SignedDuration::from_secs(5));
        let seconds = |seconds| SignedDuration::from_secs(seconds);
        // Ten minutes for the second server, counted from its start and not from the jump.
        scenario.now += minutes(9) - seconds(6);
        scenario.run_planner();
        assert_eq!(scenario.status_line("b"), "b dispatched", "{by}");
        scenario.now += seconds(1);
        scenario.run_planner();
        assert_eq!(scenario.status_line("b"), "b timed out while dispatched", "{by}");
        // A quarter of an hour between two starts.
        scenario.now += minutes(5) - seconds(1);
        scenario.run_planner();
        assert!(
            scenario.status_line("c").starts_with("c waits: stagger"),
            "{by}: {}",
            scenario.status_line("c")
        );
        scenario.now += seconds(1);
        scenario.run_planner();
        assert_eq!(scenario.status_line("c"), "c dispatched", "{by}");
        // The window closes forty minutes after the start.
        scenario.now += minutes(10) - seconds(1);
        scenario.run_planner();
        assert!(
            scenario.status_line("d").starts_with("d waits"),
            "{by}: {}",
            scenario.status_line("d")
        );
        scenario.now += seconds(1);
        scenario.run_planner();
        assert_eq!(scenario.status_line("d"), "d skipped: WindowClosed", "{by}");
        // The first server has its two hours.
        scenario.now += minutes(80) - seconds(1);
        scenario.run_planner();
        assert_eq!(scenario.status_line("a"), "a downloading", "{by}");
        scenario.now += seconds(1);
        scenario.run_planner();
        assert_eq!(scenario.status_line("a"), "a timed out while downloading", "{by}");
    }
}

/// A report that arrived after the clock was set, and before the leader noticed it, uses the new
/// clock.
#[test]
fn events_after_clock_change_keep_their_time() {
    for by in [minutes(60), -minutes(60)] {
        let mut scenario = Scenario::new(["a"], pace());
        let server = scenario.server("a");
        scenario.now += by;
        scenario
            .rollout
            .apply_event(server, TaskEvent::Reached(Stage::Preflight), scenario.now)
            .unwrap();
        scenario.set_clock(SignedDuration::ZERO, SignedDuration::from_secs(5));
        let Some(TaskStatus::Busy(busy)) = scenario.rollout.task_status(server) else {
            panic!("the task ended")
        };
        assert_eq!(busy.by, midnight() + by + stage_limit(Stage::Preflight));
    }
}

/// A start at one o'clock happens when the clock shows one o'clock, even if the clock was set.
#[test]
fn future_start_follows_the_new_clock() {
    let one = "2026-11-15T01:00:00Z".parse().unwrap();
    Scenario::starting_at(one, ["a"], pace())
        .set_clock(minutes(30), SignedDuration::ZERO)
        .assert_status(["a waits: starts at 01:00"])
        .advance_minutes(30)
        .assert_status(["a dispatched"]);
}

/// "Timed out" was an assumption: the agent is still working and must not get another order.
#[test]
fn server_with_busy_agent_is_not_started() {
    let later = "2026-11-15T00:05:00Z".parse().unwrap();
    let busy_agent = ServerCondition { agent_busy: true, ..ServerCondition::FREE };
    Scenario::starting_at(later, ["a", "b"], pace())
        .set_condition("a", busy_agent)
        .advance_minutes(5)
        .assert_status(["a waits: agent busy", "b dispatched"])
        .set_condition("a", ServerCondition::FREE)
        .assert_status(["a dispatched", "b dispatched"]);
}
