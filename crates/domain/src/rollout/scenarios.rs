//! Scenarios of whole rollouts: the real planner and state machines with a manual clock. Each
//! scenario compares the status of every server.

use super::invariants::check_settled;
use super::*;
use vocab::{FailureCode, Portion, Stage};

mod edge_cases;
mod environment;
mod health;
mod outcomes;
mod pace;
mod timing;
mod waves;

/// A rollout over named servers, with a clock that the test advances.
struct Scenario {
    rollout: Rollout,
    now: Timestamp,
    names: Vec<&'static str>,
}

fn id(number: usize) -> ServerId {
    ServerId::new(midnight(), number as u128)
}

fn midnight() -> Timestamp {
    "2026-11-15T00:00:00Z".parse().unwrap()
}

fn batch(number: u128) -> BatchId {
    BatchId::new(midnight(), number)
}

const FAILED: TaskEvent = TaskEvent::Reported(ReportedResult::Failed(FailureCode::InstallFailed));
const SUCCEEDED: TaskEvent = TaskEvent::Reported(ReportedResult::Succeeded);
const NO_CHANGE: TaskEvent = TaskEvent::Reported(ReportedResult::NoChange);

impl Scenario {
    fn new<const N: usize>(names: [&'static str; N], pace: Pace) -> Scenario {
        Scenario::starting_at(midnight(), names, pace)
    }

    fn starting_at<const N: usize>(
        starts_at: Timestamp,
        names: [&'static str; N],
        pace: Pace,
    ) -> Scenario {
        let rollout = Rollout::new(batch(1), pace, starts_at, (0..N).map(id), midnight());
        let mut scenario = Scenario { rollout, now: midnight(), names: names.to_vec() };
        scenario.run_planner();
        scenario
    }

    /// Like [`Scenario::new`], but only the first `expected` servers have something to install.
    fn with_expected_changes<const N: usize>(
        expected: u32,
        names: [&'static str; N],
        pace: Pace,
    ) -> Scenario {
        let rollout = Rollout::new(batch(1), pace, midnight(), (0..N).map(id), midnight());
        let rollout = rollout.with_expected_changes(expected);
        let mut scenario = Scenario { rollout, now: midnight(), names: names.to_vec() };
        scenario.run_planner();
        scenario
    }

    fn run_planner(&mut self) {
        self.rollout.end_freezes(self.now);
        for _ in 0..1_000 {
            let next = plan(&self.rollout, self.now);
            if next.is_idle() {
                assert_eq!(check_settled(&self.rollout, self.now), Vec::<String>::new());
                return;
            }
            if let Some(change) = next.change {
                self.rollout.apply_change(change, self.now).unwrap();
            }
            for (server, event) in next.events {
                self.rollout.apply_event(server, event, self.now).unwrap();
            }
        }
        panic!("the plan never becomes idle");
    }

    fn advance_minutes(&mut self, minutes: i64) -> &mut Scenario {
        self.now += SignedDuration::from_mins(minutes);
        self.run_planner();
        self
    }

    fn apply_event(&mut self, name: &str, event: TaskEvent) -> &mut Scenario {
        self.rollout.apply_event(self.server(name), event, self.now).unwrap();
        self.run_planner();
        self
    }

    fn apply_change(&mut self, change: Change) -> &mut Scenario {
        self.rollout.apply_change(change, self.now).unwrap();
        self.run_planner();
        self
    }

    fn set_condition(&mut self, name: &str, condition: ServerCondition) -> &mut Scenario {
        self.rollout.set_condition(self.server(name), condition);
        self.run_planner();
        self
    }

    fn server(&self, name: &str) -> ServerId {
        id(self.names.iter().position(|known| *known == name).unwrap())
    }

    #[track_caller]
    fn assert_status<const N: usize>(&mut self, expected: [&str; N]) -> &mut Scenario {
        let lines: Vec<_> = self.names.iter().map(|name| self.status_line(name)).collect();
        assert_eq!(lines, expected);
        self
    }

    #[track_caller]
    fn assert_phase(&mut self, phase: Phase) -> &mut Scenario {
        assert_eq!(self.rollout.head().phase, phase);
        self
    }

    fn status_line(&self, name: &str) -> String {
        let server = self.server(name);
        match self.rollout.task_status(server).unwrap() {
            TaskStatus::Waiting => {
                let held = wait_reason(&self.rollout, server, self.now);
                if !matches!(
                    held,
                    Some(
                        WaitReason::Offline
                            | WaitReason::BusyElsewhere(_)
                            | WaitReason::AgentBusy
                            | WaitReason::Freeze { .. }
                    )
                ) {
                    let (head, tally) = (self.rollout.head(), self.rollout.counts());
                    let place = self.rollout.position(server).unwrap();
                    let in_wave = self.rollout.wave_counts(head.waves.current);
                    let back = wait_reason_at(head, tally, &in_wave, place, self.now);
                    assert_eq!(back, held, "{name}");
                }
                match held {
                    Some(held) => format!("{name} waits: {}", describe(held)),
                    None => format!("{name} waits"),
                }
            }
            TaskStatus::Busy(busy) => format!("{name} {}", busy.stage),
            TaskStatus::Done(done) => match done.outcome {
                TaskOutcome::Succeeded => format!("{name} succeeded"),
                TaskOutcome::NoChange => format!("{name} had nothing to change"),
                TaskOutcome::Failed(code) => format!("{name} failed: {code}"),
                TaskOutcome::TimedOut(stage) => format!("{name} timed out while {stage}"),
                TaskOutcome::Skipped(skip) => format!("{name} skipped: {skip:?}"),
                TaskOutcome::Canceled(cancel) => format!("{name} canceled: {cancel:?}"),
            },
        }
    }
}

fn describe(wait_reason: WaitReason) -> String {
    let clock = |at: Timestamp| at.to_string()[11..16].to_owned();
    match wait_reason {
        WaitReason::Scheduled { at } => format!("starts at {}", clock(at)),
        WaitReason::Paused => "paused".into(),
        WaitReason::Halted(halt) => format!("halted, {halt:?}"),
        WaitReason::Offline => "offline".into(),
        WaitReason::BusyElsewhere(_) => "busy elsewhere".into(),
        WaitReason::AgentBusy => "agent busy".into(),
        WaitReason::Freeze { until } => format!("frozen until {}", clock(until)),
        WaitReason::Approval => "approval".into(),
        WaitReason::Soak { until } => format!("soak until {}", clock(until)),
        WaitReason::Health => "health".into(),
        WaitReason::Wave => "wave".into(),
        WaitReason::Canary => "canary".into(),
        WaitReason::Parallel => "parallel".into(),
        WaitReason::Stagger { until } => format!("stagger until {}", clock(until)),
    }
}

fn pace() -> Pace {
    Pace::default()
}

const OFFLINE: ServerCondition = ServerCondition { online: false, ..ServerCondition::FREE };

#[test]
fn without_limits_all_servers_start_at_once() {
    Scenario::new(["a", "b"], pace())
        .assert_status(["a dispatched", "b dispatched"])
        .apply_event("a", SUCCEEDED)
        .apply_event("b", TaskEvent::Reported(ReportedResult::NoChange))
        .assert_status(["a succeeded", "b had nothing to change"])
        .assert_phase(Phase::Ended(RolloutOutcome::Succeeded));
}

#[test]
fn server_busy_in_another_rollout_waits() {
    let later = "2026-11-15T00:05:00Z".parse().unwrap();
    let elsewhere = ServerCondition { busy_in: Some(batch(2)), ..ServerCondition::FREE };
    Scenario::starting_at(later, ["a", "b"], pace())
        .set_condition("a", elsewhere)
        .advance_minutes(5)
        .assert_status(["a waits: busy elsewhere", "b dispatched"])
        .set_condition("a", ServerCondition::FREE)
        .assert_status(["a dispatched", "b dispatched"]);
}

#[test]
fn pause_stops_only_servers_that_have_not_started() {
    Scenario::new(["a", "b"], Pace { max_parallel: Some(1), ..pace() })
        .apply_change(Change::Pause)
        .apply_event("a", SUCCEEDED)
        .assert_status(["a succeeded", "b waits: paused"])
        .apply_change(Change::Resume)
        .assert_status(["a succeeded", "b dispatched"]);
}

#[test]
fn out_of_order_progress_is_ignored() {
    Scenario::new(["a"], pace())
        .apply_event("a", TaskEvent::Reached(Stage::Installing))
        .apply_event("a", TaskEvent::Reached(Stage::Downloading))
        .assert_status(["a installing"]);
}

#[test]
fn duplicate_server_counts_once() {
    let rollout = Rollout::new(batch(1), pace(), midnight(), [id(1), id(0), id(1)], midnight());
    assert_eq!(rollout.tasks().map(|(server, _)| server).collect::<Vec<_>>(), [id(1), id(0)]);
}

#[test]
fn event_for_unknown_server_is_refused() {
    let mut scenario = Scenario::new(["a"], pace());
    let refused = scenario.rollout.apply_event(id(7), SUCCEEDED, scenario.now);
    assert_eq!(refused, Err(EventError::UnknownServer(id(7))));
    scenario.rollout.set_condition(id(7), OFFLINE);
    scenario.assert_status(["a dispatched"]);
}

#[test]
fn plans_start_at_most_a_thousand_servers() {
    let servers = (0..2_500).map(id);
    let mut rollout = Rollout::new(batch(1), pace(), midnight(), servers, midnight());
    rollout.apply_change(Change::Start, midnight()).unwrap();
    let mut sizes = Vec::new();
    loop {
        let next = plan(&rollout, midnight());
        if next.is_idle() {
            break;
        }
        sizes.push(next.events.len());
        for (server, event) in next.events {
            rollout.apply_event(server, event, midnight()).unwrap();
        }
    }
    assert_eq!(sizes, [1_000, 1_000, 500]);
}

/// What users may do in each phase, and what the planner may; everything else is rejected.
#[test]
fn phase_transitions() {
    let phases = [
        Phase::Scheduled,
        Phase::Running,
        Phase::AwaitingApproval,
        Phase::Paused,
        Phase::Halted(HaltReason::CanaryFailed),
        Phase::Halted(HaltReason::FleetWideDegradation { wave: 1 }),
        Phase::Canceling,
        Phase::Ended(RolloutOutcome::Failed),
    ];
    let changes = [
        Change::Pause,
        Change::Resume,
        Change::Cancel,
        Change::Start,
        Change::Halt(HaltReason::CanaryFailed),
        Change::WaveEnded,
        Change::NextWave,
        Change::AskApproval,
        Change::Approve,
        Change::Reject,
        Change::HealthExceeded,
    ];
    let mut table = String::new();
    for phase in phases {
        for change in changes {
            let next = match phase.apply(change, true) {
                Ok(next) if next == phase => "stays".into(),
                Ok(next) => format!("{next:?}"),
                Err(_) => "refused".into(),
            };
            table += &format!("{phase:?} + {change:?} = {next}\n");
        }
    }
    insta::assert_snapshot!(table);
}

/// Every pair of state and event: a transition, no change, or refused as a bug of the planner.
#[test]
fn task_transitions() {
    let now = midnight();
    let busy = |stage| TaskStatus::Busy(ActiveTask { stage, started_at: now, by: now, wave: 1 });
    let done =
        |outcome| TaskStatus::Done(EndedTask { outcome, started_at: Some(now), at: now, wave: 1 });
    let states = [
        TaskStatus::Waiting,
        busy(Stage::Installing),
        done(TaskOutcome::Succeeded),
        done(TaskOutcome::TimedOut(Stage::Installing)),
        done(TaskOutcome::Canceled(CancelReason::Person)),
    ];
    let events = [
        TaskEvent::Offered { wave: 1 },
        TaskEvent::DeadlinePassed,
        TaskEvent::WindowClosed,
        TaskEvent::VersionUnproven,
        TaskEvent::Canceled,
        TaskEvent::ServerRemoved,
        TaskEvent::Reached(Stage::Preflight),
        TaskEvent::Reached(Stage::Verifying),
        SUCCEEDED,
        FAILED,
        TaskEvent::Reported(ReportedResult::NotApplicable),
        TaskEvent::Reported(ReportedResult::VersionGone),
        TaskEvent::Reported(ReportedResult::Withdrawn),
        TaskEvent::GivenBack,
        TaskEvent::Forgotten,
    ];
    let word = |status: TaskStatus| match status {
        TaskStatus::Waiting => "Waiting".to_owned(),
        TaskStatus::Busy(busy) => format!("Busy({:?})", busy.stage),
        TaskStatus::Done(done) => format!("Done({:?})", done.outcome),
    };
    let mut table = String::new();
    for state in states {
        for event in events {
            let next = match state.apply(event, now) {
                Ok(next) if next == state => "stays".to_owned(),
                Ok(next) => word(next),
                Err(_) => "refused".to_owned(),
            };
            table += &format!("{} + {event:?} = {next}\n", word(state));
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn rollout_round_trips_through_json() {
    let mut scenario = Scenario::new(["a", "b"], Pace { stagger_minutes: 10, ..pace() });
    scenario.apply_event("a", TaskEvent::Reached(Stage::Downloading));
    let head = serde_json::to_string(scenario.rollout.head()).unwrap();
    let targets = serde_json::to_string(&scenario.rollout.tasks().collect::<Vec<_>>()).unwrap();
    let head: RolloutHead = serde_json::from_str(&head).unwrap();
    let targets: Vec<(ServerId, TaskStatus)> = serde_json::from_str(&targets).unwrap();
    assert_eq!(Rollout::restore(head, targets), scenario.rollout);
}

/// A reader of what others stored must reach the same state.
#[test]
fn loading_changes_equals_restoring_from_storage() {
    let mut scenario = Scenario::new(["a", "b", "c"], Pace { max_parallel: Some(2), ..pace() });
    let mut reader = scenario.rollout.clone();
    scenario.apply_event("a", SUCCEEDED).apply_event("b", FAILED).advance_minutes(1);
    for (server, target) in scenario.rollout.tasks() {
        reader.load_task(server, target);
    }
    reader.load_head(scenario.rollout.head().clone());
    assert_eq!(reader, scenario.rollout);
    assert_eq!(reader, Rollout::restore(reader.head().clone(), reader.tasks()));
}
