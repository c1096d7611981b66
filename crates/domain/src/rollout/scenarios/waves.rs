//! Waves, soak, approval and freezes.

use vocab::Wave;

use super::*;

/// The next wave of this many servers.
fn wave(servers: u32) -> Wave {
    Wave { size: Some(Portion::Count(servers)), ..Wave::default() }
}

const REST: Wave = Wave { size: None, soak_minutes: 0, approval: false };

fn waves<const N: usize>(waves: [Wave; N]) -> Pace {
    Pace { waves: waves.to_vec(), ..pace() }
}

fn frozen(until: &str) -> ServerCondition {
    ServerCondition { frozen_until: Some(until.parse().unwrap()), ..ServerCondition::FREE }
}

#[test]
fn waves_follow_each_other() {
    let mut scenario = Scenario::new(["a", "b", "c", "d"], waves([wave(1), wave(2), REST]));
    scenario
        .assert_status(["a dispatched", "b waits: wave", "c waits: wave", "d waits: wave"])
        .apply_event("a", SUCCEEDED)
        .assert_status(["a succeeded", "b dispatched", "c dispatched", "d waits: wave"])
        .apply_event("c", SUCCEEDED)
        .assert_status(["a succeeded", "b dispatched", "c succeeded", "d waits: wave"])
        .apply_event("b", SUCCEEDED)
        .assert_status(["a succeeded", "b succeeded", "c succeeded", "d dispatched"])
        .apply_event("d", SUCCEEDED)
        .assert_phase(Phase::Ended(RolloutOutcome::Succeeded));
    let waves: Vec<u32> = scenario.rollout.tasks().map(|(_, status)| status.wave()).collect();
    assert_eq!(waves, [1, 2, 2, 3]);
}

#[test]
fn rest_follows_waves_that_do_not_cover_all_servers() {
    let limits = waves([wave(1), wave(2)]).limits(10);
    let sizes: Vec<_> = limits.waves().iter().map(|wave| wave.servers).collect();
    assert_eq!(sizes, [1, 2, 7]);
}

#[test]
fn waves_without_servers_are_dropped() {
    let percent = |share| Wave { size: Portion::percent(share).ok(), ..Wave::default() };
    let sizes = |pace: Pace, total| {
        pace.limits(total).waves().iter().map(|wave| wave.servers).collect::<Vec<_>>()
    };
    assert_eq!(sizes(waves([percent(10), percent(50), REST]), 500), [50, 250, 200]);
    assert_eq!(sizes(waves([percent(10), percent(50), REST]), 2), [1, 1]);
    assert_eq!(sizes(waves([wave(3), wave(3), wave(3)]), 4), [3, 1]);
    assert_eq!(sizes(waves([REST]), 4), [4]);
    assert_eq!(sizes(pace(), 4), [4]);
    assert_eq!(sizes(pace(), 0), [0]);
    assert_eq!(sizes(Pace { canary: Some(Portion::Count(1)), ..pace() }, 4), [1, 3]);
    assert_eq!(sizes(Pace { canary: Some(Portion::Count(9)), ..pace() }, 4), [4]);
}

#[test]
fn single_wave_without_size_is_no_canary() {
    Scenario::new(["a", "b"], Pace { max_parallel: Some(1), ..waves([REST]) })
        .apply_event("a", FAILED)
        .assert_status(["a failed: install_failed", "b dispatched"]);
}

#[test]
fn failure_in_first_wave_halts() {
    Scenario::new(["a", "b", "c"], waves([wave(1), wave(1), REST]))
        .apply_event("a", FAILED)
        .assert_phase(Phase::Halted(HaltReason::CanaryFailed))
        .apply_change(Change::Resume)
        .assert_status(["a failed: install_failed", "b dispatched", "c waits: wave"]);
}

#[test]
fn failures_in_later_waves_count_against_failure_limit() {
    let pace = Pace { max_failures: Some(Portion::Count(2)), ..waves([wave(1), wave(1), REST]) };
    Scenario::new(["a", "b", "c", "d"], pace)
        .apply_event("a", SUCCEEDED)
        .apply_event("b", FAILED)
        .assert_status(["a succeeded", "b failed: install_failed", "c dispatched", "d dispatched"])
        .apply_event("c", FAILED)
        .assert_phase(Phase::Halted(HaltReason::TooManyFailures));
}

#[test]
fn next_wave_waits_until_wave_has_soaked() {
    let mut scenario =
        Scenario::new(["a", "b"], waves([Wave { soak_minutes: 30, ..wave(1) }, REST]));
    scenario
        .advance_minutes(5)
        .apply_event("a", SUCCEEDED)
        .assert_status(["a succeeded", "b waits: soak until 00:35"]);
    assert_eq!(
        plan(&scenario.rollout, scenario.now).wake_at.unwrap().to_string(),
        "2026-11-15T00:35:00Z"
    );
    scenario
        .advance_minutes(29)
        .assert_status(["a succeeded", "b waits: soak until 00:35"])
        .advance_minutes(1)
        .assert_status(["a succeeded", "b dispatched"]);
}

#[test]
fn soak_begins_when_last_server_of_wave_has_ended() {
    Scenario::new(["a", "b", "c"], waves([Wave { soak_minutes: 30, ..wave(2) }, REST]))
        .apply_event("a", SUCCEEDED)
        .advance_minutes(60)
        .assert_status([
            "a succeeded",
            "b timed out while dispatched",
            "c waits: halted, CanaryFailed",
        ])
        .apply_change(Change::Resume)
        .assert_status([
            "a succeeded",
            "b timed out while dispatched",
            "c waits: soak until 01:30",
        ]);
}

#[test]
fn wave_that_changed_nothing_does_not_soak() {
    let pace = waves([Wave { soak_minutes: 600, ..wave(1) }, REST]);
    Scenario::with_expected_changes(0, ["a", "b"], pace)
        .apply_event("a", NO_CHANGE)
        .assert_status(["a had nothing to change", "b dispatched"]);
}

#[test]
fn soak_of_last_wave_delays_nothing() {
    let last = Wave { soak_minutes: 60, ..REST };
    Scenario::new(["a", "b"], waves([wave(1), last]))
        .apply_event("a", SUCCEEDED)
        .apply_event("b", SUCCEEDED)
        .assert_phase(Phase::Ended(RolloutOutcome::Succeeded));
}

#[test]
fn pause_does_not_stop_the_soak() {
    Scenario::new(["a", "b"], waves([Wave { soak_minutes: 30, ..wave(1) }, REST]))
        .apply_event("a", SUCCEEDED)
        .apply_change(Change::Pause)
        .advance_minutes(40)
        .assert_status(["a succeeded", "b waits: paused"])
        .apply_change(Change::Resume)
        .assert_status(["a succeeded", "b dispatched"]);
}

#[test]
fn soak_keeps_its_length_when_the_clock_is_set() {
    let mut scenario =
        Scenario::new(["a", "b"], waves([Wave { soak_minutes: 30, ..wave(1) }, REST]));
    scenario.apply_event("a", SUCCEEDED).advance_minutes(10);
    let day = SignedDuration::from_hours(24);
    scenario.now += day;
    let set = ClockSet { by: day, since: scenario.now, now: scenario.now };
    scenario
        .apply_change(Change::ClockSet(set))
        .assert_status(["a succeeded", "b waits: soak until 00:30"])
        .advance_minutes(19)
        .assert_status(["a succeeded", "b waits: soak until 00:30"])
        .advance_minutes(1)
        .assert_status(["a succeeded", "b dispatched"]);
}

#[test]
fn soak_is_not_longer_after_clock_went_back_unnoticed() {
    Scenario::new(["a", "b"], waves([Wave { soak_minutes: 30, ..wave(1) }, REST]))
        .advance_minutes(100)
        .apply_change(Change::Resume)
        .apply_event("a", SUCCEEDED)
        .advance_minutes(-90)
        .assert_status(["a succeeded", "b waits: soak until 00:40"]);
}

#[test]
fn removed_server_does_not_block_its_wave() {
    Scenario::new(["a", "b", "c", "d"], waves([wave(1), wave(2), REST]))
        .apply_event("a", SUCCEEDED)
        .apply_event("b", TaskEvent::ServerRemoved)
        // Another server takes its place.
        .assert_status([
            "a succeeded",
            "b canceled: ServerRemoved",
            "c dispatched",
            "d dispatched",
        ]);
}

#[test]
fn offline_server_does_not_block_its_wave() {
    let later = "2026-11-15T00:05:00Z".parse().unwrap();
    Scenario::starting_at(later, ["a", "b", "c", "d"], waves([wave(1), wave(1), REST]))
        .set_condition("b", OFFLINE)
        .advance_minutes(5)
        .apply_event("a", SUCCEEDED)
        .assert_status(["a succeeded", "b waits: offline", "c dispatched", "d waits: wave"])
        .apply_event("c", SUCCEEDED)
        .assert_status(["a succeeded", "b waits: offline", "c succeeded", "d dispatched"]);
}

#[test]
fn parallel_limit_applies_within_a_wave() {
    let pace = Pace { max_parallel: Some(1), ..waves([wave(1), wave(2), REST]) };
    Scenario::new(["a", "b", "c", "d"], pace)
        .apply_event("a", SUCCEEDED)
        .assert_status(["a succeeded", "b dispatched", "c waits: parallel", "d waits: parallel"])
        .apply_event("b", SUCCEEDED)
        .assert_status(["a succeeded", "b succeeded", "c dispatched", "d waits: wave"]);
}

// --- Approval --------------------------------------------------------------------------------

fn approved_second_wave() -> Pace {
    waves([wave(1), Wave { approval: true, ..REST }])
}

#[test]
fn wave_waits_for_approval() {
    let mut scenario = Scenario::new(["a", "b"], approved_second_wave());
    scenario
        .assert_status(["a dispatched", "b waits: wave"])
        .apply_event("a", SUCCEEDED)
        .assert_phase(Phase::AwaitingApproval)
        .assert_status(["a succeeded", "b waits: approval"]);
    let now = scenario.now;
    scenario.rollout.approve("usr_1".into(), Some("looks good".into()), now).unwrap();
    scenario.run_planner();
    scenario.assert_status(["a succeeded", "b dispatched"]);
    let approval = scenario.rollout.head().waves.approval(1).unwrap();
    assert_eq!((approval.by.as_str(), approval.at), ("usr_1", now));
    assert_eq!(approval.comment.as_deref(), Some("looks good"));
}

#[test]
fn first_wave_may_need_an_approval() {
    Scenario::new(["a", "b"], waves([Wave { approval: true, ..REST }]))
        .assert_phase(Phase::AwaitingApproval)
        .assert_status(["a waits: approval", "b waits: approval"])
        .apply_change(Change::Approve)
        .assert_status(["a dispatched", "b dispatched"]);
}

#[test]
fn approval_is_asked_after_the_soak() {
    let first = Wave { soak_minutes: 30, ..wave(1) };
    Scenario::new(["a", "b"], waves([first, Wave { approval: true, ..REST }]))
        .apply_event("a", SUCCEEDED)
        .assert_phase(Phase::Running)
        .advance_minutes(30)
        .assert_phase(Phase::AwaitingApproval);
}

#[test]
fn rejected_wave_cancels_the_rest() {
    Scenario::new(["a", "b"], approved_second_wave())
        .apply_event("a", SUCCEEDED)
        .apply_change(Change::Reject)
        .assert_status(["a succeeded", "b canceled: Person"])
        .assert_phase(Phase::Ended(RolloutOutcome::Canceled));
}

#[test]
fn approval_survives_pause_and_is_asked_again_without_one() {
    Scenario::new(["a", "b"], approved_second_wave())
        .apply_event("a", SUCCEEDED)
        .apply_change(Change::Pause)
        .assert_phase(Phase::Paused)
        .apply_change(Change::Resume)
        .assert_phase(Phase::AwaitingApproval)
        .apply_change(Change::Approve)
        .apply_change(Change::Pause)
        .apply_change(Change::Resume)
        .assert_phase(Phase::Running);
}

#[test]
fn resume_is_no_approval() {
    let mut scenario = Scenario::new(["a", "b"], approved_second_wave());
    scenario.apply_event("a", SUCCEEDED);
    let now = scenario.now;
    assert!(scenario.rollout.apply_change(Change::Resume, now).is_err());
    assert!(scenario.rollout.clone().apply_change(Change::Cancel, now).is_ok());
}

#[test]
fn approval_of_one_wave_is_none_of_the_next() {
    let approved = Wave { approval: true, ..wave(1) };
    Scenario::new(["a", "b", "c"], waves([wave(1), approved, Wave { approval: true, ..REST }]))
        .apply_event("a", SUCCEEDED)
        .apply_change(Change::Approve)
        .apply_event("b", SUCCEEDED)
        .assert_phase(Phase::AwaitingApproval)
        .assert_status(["a succeeded", "b succeeded", "c waits: approval"]);
}

#[test]
fn approval_that_never_comes_ends_the_rollout() {
    let mut scenario = Scenario::new(["a", "b"], approved_second_wave());
    scenario.apply_event("a", SUCCEEDED);
    let wait = OFFLINE_WAIT + APPROVAL_WAIT;
    assert_eq!(scenario.rollout.head().start_by.duration_since(midnight()), wait);
    scenario
        .advance_minutes(wait.as_mins() - 1)
        .assert_phase(Phase::AwaitingApproval)
        .advance_minutes(1)
        .assert_status(["a succeeded", "b skipped: WindowClosed"])
        .assert_phase(Phase::Ended(RolloutOutcome::Expired));
}

#[test]
fn wait_without_window_includes_soaks() {
    let week = Wave { soak_minutes: 10_080, ..wave(1) };
    let start_by = waves([week, week, REST]).start_by(midnight(), 3);
    assert_eq!(start_by.duration_since(midnight()), OFFLINE_WAIT + SignedDuration::from_hours(336));
}

// --- Freezes ---------------------------------------------------------------------------------

#[test]
fn frozen_server_does_not_start() {
    let later = "2026-11-15T00:05:00Z".parse().unwrap();
    let mut scenario = Scenario::starting_at(later, ["a", "b"], pace());
    scenario
        .set_condition("a", frozen("2026-11-15T02:00:00Z"))
        .advance_minutes(5)
        .assert_status(["a waits: frozen until 02:00", "b dispatched"])
        .apply_event("b", SUCCEEDED);
    assert_eq!(
        plan(&scenario.rollout, scenario.now).wake_at.unwrap().to_string(),
        "2026-11-15T02:00:00Z"
    );
    scenario
        .advance_minutes(114)
        .assert_status(["a waits: frozen until 02:00", "b succeeded"])
        .advance_minutes(1)
        .assert_status(["a dispatched", "b succeeded"]);
}

#[test]
fn freeze_does_not_stop_a_server_in_progress() {
    Scenario::new(["a"], pace())
        .set_condition("a", frozen("2026-11-15T02:00:00Z"))
        .apply_event("a", TaskEvent::Reached(Stage::Installing))
        .apply_event("a", SUCCEEDED)
        .assert_phase(Phase::Ended(RolloutOutcome::Succeeded));
}

#[test]
fn frozen_server_does_not_block_its_wave() {
    let later = "2026-11-15T00:05:00Z".parse().unwrap();
    Scenario::starting_at(later, ["a", "b", "c"], waves([wave(1), wave(1), REST]))
        .set_condition("a", frozen("2026-11-15T02:00:00Z"))
        .advance_minutes(5)
        .assert_status(["a waits: frozen until 02:00", "b dispatched", "c waits: wave"])
        .apply_event("b", SUCCEEDED)
        .assert_status(["a waits: frozen until 02:00", "b succeeded", "c dispatched"]);
}

#[test]
fn overridden_freeze_is_ignored() {
    let later = "2026-11-15T00:05:00Z".parse().unwrap();
    let pace = Pace { override_freeze: Some("CVE-2026-1".into()), ..pace() };
    Scenario::starting_at(later, ["a"], pace)
        .set_condition("a", frozen("2026-11-15T02:00:00Z"))
        .advance_minutes(5)
        .assert_status(["a dispatched"]);
}

#[test]
fn freeze_longer_than_the_window_skips_the_server() {
    let later = "2026-11-15T00:05:00Z".parse().unwrap();
    Scenario::starting_at(later, ["a"], Pace { window_minutes: Some(60), ..pace() })
        .set_condition("a", frozen("2026-11-20T00:00:00Z"))
        .advance_minutes(64)
        .assert_status(["a waits: frozen until 00:00"])
        .advance_minutes(1)
        .assert_status(["a skipped: WindowClosed"]);
}

const UNPROVEN: ServerCondition = ServerCondition { unproven: true, ..ServerCondition::FREE };

fn pinned<const N: usize>(list: [Wave; N]) -> Pace {
    Pace { pin_versions: true, ..waves(list) }
}

#[test]
fn server_without_a_proven_version_is_skipped_after_the_first_wave() {
    let mut scenario = Scenario::new(["a", "b", "c"], pinned([wave(1), REST]));
    scenario
        .set_condition("b", UNPROVEN)
        .assert_status(["a dispatched", "b waits: wave", "c waits: wave"])
        .apply_event("a", SUCCEEDED)
        .assert_status(["a succeeded", "b skipped: VersionUnproven", "c dispatched"])
        .apply_event("c", SUCCEEDED)
        .assert_phase(Phase::Ended(RolloutOutcome::CompletedWithErrors));
    let skipped = scenario.rollout.task_status(scenario.server("b")).unwrap();
    assert_eq!(skipped.wave(), 0);
}

#[test]
fn skipped_servers_do_not_use_up_their_wave() {
    let names = ["a", "b", "c", "d", "e"];
    Scenario::new(names, pinned([wave(1), wave(2), REST]))
        .set_condition("b", UNPROVEN)
        .apply_event("a", SUCCEEDED)
        .assert_status([
            "a succeeded",
            "b skipped: VersionUnproven",
            "c dispatched",
            "d dispatched",
            "e waits: wave",
        ]);
}

#[test]
fn offline_server_without_a_proven_version_is_not_waited_for() {
    Scenario::new(["a", "b"], pinned([wave(1), REST]))
        .set_condition("b", ServerCondition { online: false, ..UNPROVEN })
        .apply_event("a", SUCCEEDED)
        .assert_status(["a succeeded", "b skipped: VersionUnproven"])
        .assert_phase(Phase::Ended(RolloutOutcome::CompletedWithErrors));
}

#[test]
fn paused_rollout_skips_nobody() {
    Scenario::new(["a", "b"], pinned([Wave { soak_minutes: 30, ..wave(1) }, REST]))
        .set_condition("b", UNPROVEN)
        .apply_event("a", SUCCEEDED)
        .assert_status(["a succeeded", "b waits: soak until 00:30"])
        .apply_change(Change::Pause)
        .advance_minutes(40)
        .assert_status(["a succeeded", "b waits: paused"])
        .apply_change(Change::Resume)
        .assert_status(["a succeeded", "b skipped: VersionUnproven"]);
}

#[test]
fn vanished_version_skips_the_task() {
    let gone = TaskEvent::Reported(ReportedResult::VersionGone);
    Scenario::new(["a", "b", "c"], pinned([wave(1), REST]))
        .apply_event("a", SUCCEEDED)
        .apply_event("b", gone)
        .apply_event("c", SUCCEEDED)
        .assert_status(["a succeeded", "b skipped: VersionGone", "c succeeded"])
        .assert_phase(Phase::Ended(RolloutOutcome::CompletedWithErrors));
}

#[test]
fn expected_duration_follows_waves_stagger_and_parallel_tasks() {
    let task = SignedDuration::from_mins(5);
    let minutes = |pace: Pace, total| pace.expected_duration(total, task).as_mins();
    assert_eq!(minutes(pace(), 0), 0);
    assert_eq!(minutes(pace(), 100), 5);
    assert_eq!(minutes(Pace { max_parallel: Some(10), ..pace() }, 25), 15);
    assert_eq!(minutes(Pace { stagger_minutes: 2, ..pace() }, 4), 11);
    let soaks = Wave { soak_minutes: 60, ..wave(1) };
    assert_eq!(minutes(waves([soaks, wave(2), REST]), 10), 75);
    assert_eq!(minutes(Pace { max_parallel: Some(2), ..waves([soaks, REST]) }, 10), 90);
}
