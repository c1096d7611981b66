//! Health: gates, the control group, and what is unknown.

use std::sync::Arc;

use vocab::{HealthMode, HealthProblemKind, Line, Wave};

use super::*;

fn gate<const N: usize>(sizes: [u32; N], soak_minutes: u32) -> Pace {
    let wave = |size| Wave { size: Some(Portion::Count(size)), soak_minutes, ..Wave::default() };
    Pace { waves: sizes.map(wave).to_vec(), health: HealthMode::Gate, ..pace() }
}

fn measured(units: &[&str]) -> HealthMeasurement {
    let problem = |unit: &&str| HealthProblem {
        kind: HealthProblemKind::UnitFailed,
        name: Line::sanitize(unit),
    };
    HealthMeasurement {
        problems: units.iter().map(problem).collect(),
        not_measured: None,
        baseline_at: midnight(),
    }
}

fn unmeasured() -> HealthMeasurement {
    HealthMeasurement { not_measured: Some(Line::sanitize("no systemd")), ..measured(&[]) }
}

impl Scenario {
    /// The server succeeds, and its result contains this health.
    fn succeed(&mut self, name: &str, health: Option<HealthMeasurement>) -> &mut Scenario {
        self.rollout.apply_event(self.server(name), SUCCEEDED, self.now).unwrap();
        let health = health.map(|it| Arc::new(TaskHealth::from_result(it, self.now)));
        self.rollout.set_health(self.server(name), health);
        self.run_planner();
        self
    }

    /// The server reports this from its watch.
    fn watch(&mut self, name: &str, report: HealthMeasurement) -> &mut Scenario {
        let (server, rollout) = (self.server(name), &self.rollout);
        let status = rollout.task_status(server).unwrap();
        let before = rollout.task_health(server).cloned();
        let total = rollout.counts().total();
        let head = rollout.head();
        let after =
            TaskHealth::from_watch(head, total, status, before.as_deref(), report, self.now);
        if let Some(after) = after {
            self.rollout.set_health(server, Some(Arc::new(after)));
        }
        self.run_planner();
        self
    }
}

const DEGRADED: Phase = Phase::Halted(HaltReason::HealthDegraded { wave: 1 });
const UNKNOWN: Phase = Phase::Halted(HaltReason::HealthUnknown { wave: 1 });
const FLEET_WIDE: Phase = Phase::Halted(HaltReason::FleetWideDegradation { wave: 1 });

#[test]
fn healthy_wave_passes() {
    Scenario::new(["a", "b"], gate([1], 0))
        .succeed("a", Some(measured(&[])))
        .assert_status(["a succeeded", "b dispatched"]);
}

#[test]
fn unhealthy_wave_halts_after_comparison_with_waiting_servers() {
    Scenario::new(["a", "b"], gate([1], 0))
        .succeed("a", Some(measured(&["nginx.service"])))
        .assert_phase(Phase::Running)
        .assert_status(["a succeeded", "b waits: health"])
        .advance_minutes(4)
        .assert_phase(Phase::Running)
        .advance_minutes(1)
        .assert_phase(DEGRADED)
        .apply_change(Change::Resume)
        .assert_status(["a succeeded", "b dispatched"]);
}

#[test]
fn unhealthy_server_halts_at_once_if_nothing_can_be_compared() {
    let later = "2026-11-15T00:05:00Z".parse().unwrap();
    Scenario::starting_at(later, ["a", "b"], gate([1], 0))
        .set_condition("b", OFFLINE)
        .advance_minutes(5)
        .succeed("a", Some(measured(&["nginx.service"])))
        .assert_phase(DEGRADED);
}

#[test]
fn same_problem_on_waiting_servers_pauses_without_blame() {
    let mut scenario = Scenario::new(["a", "b", "c"], gate([1], 0));
    scenario
        .succeed("a", Some(measured(&["app.service"])))
        .watch("b", measured(&["dns.service"]))
        .assert_phase(Phase::Running)
        .watch("c", measured(&["app.service"]))
        .assert_phase(FLEET_WIDE)
        .apply_change(Change::Pause)
        .assert_phase(FLEET_WIDE)
        .apply_change(Change::Resume)
        .assert_status(["a succeeded", "b dispatched", "c dispatched"]);
}

#[test]
fn problem_of_the_change_is_blamed_during_a_fleet_wide_one() {
    Scenario::new(["a", "b"], gate([1], 0))
        .succeed("a", Some(measured(&["app.service", "nginx.service"])))
        .watch("b", measured(&["app.service"]))
        .advance_minutes(5)
        .assert_phase(DEGRADED);
}

#[test]
fn one_of_many_waiting_servers_is_no_excuse() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
    Scenario::new(names, gate([1], 0))
        .succeed("a", Some(measured(&["app.service"])))
        .watch("b", measured(&["app.service"]))
        .assert_phase(Phase::Running)
        .watch("c", measured(&["app.service"]))
        .assert_phase(FLEET_WIDE);
}

#[test]
fn recovery_during_the_comparison_continues() {
    Scenario::new(["a", "b"], gate([1], 30))
        .succeed("a", Some(measured(&["nginx.service"])))
        .assert_status(["a succeeded", "b waits: health"])
        .watch("a", measured(&[]))
        .assert_status(["a succeeded", "b waits: soak until 00:30"]);
}

#[test]
fn degradation_during_the_soak_halts() {
    Scenario::new(["a", "b"], gate([1], 30))
        .succeed("a", Some(measured(&[])))
        .advance_minutes(20)
        .watch("a", measured(&["nginx.service"]))
        .assert_status(["a succeeded", "b waits: health"])
        .advance_minutes(5)
        .assert_phase(DEGRADED);
}

#[test]
fn wave_passes_after_the_report_at_the_end_of_the_soak() {
    Scenario::new(["a", "b"], gate([1], 30))
        .succeed("a", Some(measured(&[])))
        .advance_minutes(30)
        .assert_status(["a succeeded", "b waits: health"])
        .watch("a", measured(&[]))
        .assert_status(["a succeeded", "b dispatched"]);
}

#[test]
fn silence_at_the_end_of_the_soak_is_not_health() {
    Scenario::new(["a", "b", "c"], gate([2], 30))
        .succeed("a", Some(measured(&[])))
        .succeed("b", Some(measured(&[])))
        .advance_minutes(30)
        .watch("a", measured(&[]))
        .advance_minutes(14)
        .assert_phase(Phase::Running)
        .advance_minutes(1)
        .assert_phase(UNKNOWN)
        .apply_change(Change::Resume)
        .assert_status(["a succeeded", "b succeeded", "c dispatched"]);
}

#[test]
fn watch_that_began_after_the_change_proves_nothing() {
    let restarted =
        HealthMeasurement { baseline_at: "2026-11-15T00:10:00Z".parse().unwrap(), ..measured(&[]) };
    Scenario::new(["a", "b"], gate([1], 30))
        .succeed("a", Some(measured(&[])))
        .advance_minutes(30)
        .watch("a", restarted)
        .assert_status(["a succeeded", "b waits: health"])
        .advance_minutes(15)
        .assert_phase(UNKNOWN);
}

#[test]
fn wave_that_could_not_be_measured_is_no_proof() {
    Scenario::new(["a", "b"], gate([1], 0)).succeed("a", Some(unmeasured())).assert_phase(UNKNOWN);
    Scenario::new(["a", "b"], gate([1], 0)).succeed("a", None).assert_phase(UNKNOWN);
}

#[test]
fn one_measured_server_proves_a_wave() {
    Scenario::new(["a", "b", "c"], gate([2], 0))
        .succeed("a", Some(unmeasured()))
        .succeed("b", Some(measured(&[])))
        .assert_status(["a succeeded", "b succeeded", "c dispatched"]);
}

#[test]
fn accepted_unknown_health_is_accepted_for_one_wave() {
    Scenario::new(["a", "b", "c"], gate([1, 1], 0))
        .succeed("a", None)
        .apply_change(Change::Resume)
        .succeed("b", None)
        .assert_phase(Phase::Halted(HaltReason::HealthUnknown { wave: 2 }));
}

#[test]
fn wave_without_changes_needs_no_proof() {
    let mut scenario = Scenario::with_expected_changes(0, ["a", "b"], gate([1], 30));
    scenario.apply_event("a", NO_CHANGE).assert_status(["a had nothing to change", "b dispatched"]);
}

#[test]
fn tolerated_servers_do_not_halt() {
    let pace = Pace { max_unhealthy: Some(Portion::Count(1)), ..gate([2], 0) };
    Scenario::new(["a", "b", "c"], pace)
        .succeed("a", Some(measured(&["nginx.service"])))
        .succeed("b", Some(measured(&[])))
        .assert_status(["a succeeded", "b succeeded", "c dispatched"]);
}

#[test]
fn tolerated_share_is_rounded_down() {
    let pace = Pace { max_unhealthy: Portion::percent(10).ok(), ..gate([5, 20], 0) };
    let limits: Vec<_> = pace.limits(25).waves().iter().map(|wave| wave.unhealthy).collect();
    assert_eq!(limits, [0, 2]);
}

#[test]
fn accepted_server_that_recovers_is_not_accepted_again() {
    Scenario::new(["a", "b", "c"], gate([2], 30))
        .succeed("b", Some(measured(&[])))
        .succeed("a", Some(measured(&["nginx.service"])))
        .advance_minutes(5)
        .assert_phase(DEGRADED)
        .apply_change(Change::Resume)
        .assert_phase(Phase::Running)
        .watch("a", measured(&[]))
        .watch("a", measured(&["nginx.service"]))
        .advance_minutes(5)
        .assert_phase(DEGRADED);
}

#[test]
fn last_wave_halts_too() {
    Scenario::new(["a", "b"], Pace { max_parallel: Some(1), ..gate([], 0) })
        .succeed("a", Some(measured(&["nginx.service"])))
        .advance_minutes(5)
        .assert_phase(DEGRADED);
}

#[test]
fn report_mode_changes_nothing() {
    Scenario::new(["a", "b"], Pace { health: HealthMode::Report, ..gate([1], 0) })
        .succeed("a", Some(measured(&["nginx.service"])))
        .assert_status(["a succeeded", "b dispatched"]);
}

#[test]
fn reports_are_late_while_the_service_is_down() {
    let mut scenario = Scenario::new(["a", "b"], gate([1], 30));
    scenario.succeed("a", Some(measured(&[]))).advance_minutes(30);
    let now = scenario.now + SignedDuration::from_mins(60);
    scenario.rollout.start_grace_period(now, SignedDuration::from_mins(10));
    scenario
        .advance_minutes(60)
        .assert_status(["a succeeded", "b waits: health"])
        .watch("a", measured(&[]))
        .assert_status(["a succeeded", "b dispatched"]);
}

#[test]
fn servers_are_watched_while_a_wave_is_judged() {
    let mut scenario = Scenario::new(["a", "b"], gate([1], 30));
    let watch = |scenario: &Scenario, name| {
        let status = scenario.rollout.task_status(scenario.server(name)).unwrap();
        scenario.rollout.head().health_watches(2).for_task(status)
    };
    assert_eq!(watch(&scenario, "b"), HealthWatch::Open);
    scenario.succeed("a", Some(measured(&[])));
    let until = "2026-11-15T00:30:00Z".parse().unwrap();
    assert_eq!(watch(&scenario, "a"), HealthWatch::Until(until));
    assert_eq!(watch(&scenario, "b"), HealthWatch::Until(until));
    scenario.advance_minutes(30).watch("a", measured(&[]));
    assert_eq!(watch(&scenario, "a"), HealthWatch::Off);
}
