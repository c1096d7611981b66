//! Start times, windows, deadlines, and wrong clocks.

use super::*;

#[test]
fn clock_set_back_never_lengthens_waits() {
    let mut story = Story::of(["a", "b"], Pace { stagger_minutes: 10, ..pace() });
    story.happens("a", Event::Reached(Stage::Preflight)).minutes(5);
    story.happens("a", Event::Reached(Stage::Downloading));
    // One day back: the stagger starts again, and the download has its full two hours.
    story.minutes(-24 * 60);
    story.shows(["a downloading", "b waits: stagger until 00:15"]);
    story.minutes(10).shows(["a downloading", "b dispatched"]);
    story.happens("b", SUCCEEDED).minutes(110);
    story.shows(["a timed out while downloading", "b succeeded"]);
}

#[test]
fn offline_server_is_skipped_after_a_week() {
    let later = "2026-11-15T00:05:00Z".parse().unwrap();
    Story::starting_at(later, ["a"], pace())
        .notices("a", OFFLINE)
        .minutes(6 * 24 * 60)
        .shows(["a waits: offline"])
        .minutes(24 * 60 + 5)
        .shows(["a skipped: WindowClosed"])
        .is(Phase::Ended(End::Expired));
}

#[test]
fn no_server_starts_after_the_window() {
    let pace = Pace { window_minutes: Some(25), stagger_minutes: 10, ..pace() };
    Story::of(["a", "b", "c", "d"], pace)
        .minutes(10)
        .minutes(10)
        .minutes(5)
        .shows([
            "a timed out while dispatched",
            "b timed out while dispatched",
            "c dispatched",
            "d skipped: WindowClosed",
        ])
        .happens("a", SUCCEEDED)
        .happens("b", SUCCEEDED)
        .happens("c", SUCCEEDED)
        .is(Phase::Ended(End::Expired));
}

#[test]
fn window_closes_on_paused_rollout() {
    let pace = Pace { window_minutes: Some(30), stagger_minutes: 20, ..pace() };
    Story::of(["a", "b"], pace)
        .happens("a", SUCCEEDED)
        .does(Change::Pause)
        .minutes(30)
        .shows(["a succeeded", "b skipped: WindowClosed"])
        .is(Phase::Ended(End::Expired));
}

#[test]
fn every_stage_times_out_at_its_deadline() {
    for stage in Stage::ALL {
        let mut story = Story::of(["a"], pace());
        story.happens("a", Event::Reached(*stage));
        let minutes = limit(*stage).as_mins();
        story.minutes(minutes - 1).shows([&format!("a {stage}")]);
        story.minutes(1).shows([&format!("a timed out while {stage}")]);
        story.is(Phase::Ended(End::Failed));
    }
}

#[test]
fn nothing_starts_before_start_time() {
    let one = "2026-11-15T01:00:00Z".parse().unwrap();
    let mut story = Story::starting_at(one, ["a"], pace());
    story.shows(["a waits: starts at 01:00"]).is(Phase::Scheduled);
    assert_eq!(plan(&story.rollout, story.now).wake_at, Some(one));
    story.minutes(60).shows(["a dispatched"]).is(Phase::Running);
}

#[test]
fn pause_before_start_time_outlasts_it() {
    let one = "2026-11-15T01:00:00Z".parse().unwrap();
    Story::starting_at(one, ["a"], pace())
        .does(Change::Pause)
        .does(Change::Resume)
        .is(Phase::Scheduled)
        .does(Change::Pause)
        .minutes(61)
        .shows(["a waits: paused"])
        .does(Change::Resume)
        .shows(["a dispatched"]);
}

/// One minute before the start time is still before it.
#[test]
fn nothing_starts_one_minute_early() {
    let one = "2026-11-15T01:00:00Z".parse().unwrap();
    Story::starting_at(one, ["a"], pace())
        .minutes(59)
        .shows(["a waits: starts at 01:00"])
        .is(Phase::Scheduled);
}

/// A server that could start at the very instant at which the window closes does not.
#[test]
fn no_server_starts_when_window_closes() {
    let pace = Pace { window_minutes: Some(5), max_parallel: Some(1), ..pace() };
    let mut story = Story::of(["a", "b"], pace);
    story.now += SignedDuration::from_mins(5);
    story.happens("a", SUCCEEDED).shows(["a succeeded", "b skipped: WindowClosed"]);
}

/// The planner runs again in time for whatever comes first.
#[test]
fn planner_wakes_for_earliest_event() {
    let wakes = |story: &Story| plan(&story.rollout, story.now).wake_at.unwrap().to_string();
    let stagger = Story::of(["a", "b"], Pace { stagger_minutes: 5, ..pace() });
    assert_eq!(wakes(&stagger), "2026-11-15T00:05:00Z");
    let deadline = Story::of(["a", "b"], Pace { max_parallel: Some(1), ..pace() });
    assert_eq!(wakes(&deadline), "2026-11-15T00:10:00Z");
    let window = Pace { max_parallel: Some(1), window_minutes: Some(7), ..pace() };
    assert_eq!(wakes(&Story::of(["a", "b"], window)), "2026-11-15T00:07:00Z");
}

/// The time without a window grows with the pace: 25 servers an hour apart, or a few at a time.
#[test]
fn slow_pace_extends_default_window() {
    let week = PATIENCE;
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
    let mut story = Story::of(["a"], pace());
    story.now += SignedDuration::from_hours(24);
    let server = story.server("a");
    story.rollout.happens(server, Event::Reached(Stage::Preflight), story.now).unwrap();
    story.minutes(-24 * 60).shows(["a preflight"]);
    story.minutes(20).shows(["a timed out while preflight"]);
}

/// Otherwise it would stay open for the years by which the clock was wrong.
#[test]
fn window_closes_by_the_clock_set_back() {
    let ten_years = 10 * 365 * 24 * 60;
    let pace = Pace { window_minutes: Some(60), max_parallel: Some(1), ..pace() };
    Story::of(["a", "b"], pace)
        .happens("a", Event::Reached(Stage::Downloading))
        .minutes(-ten_years)
        .shows(["a downloading", "b waits: parallel"])
        .minutes(60)
        .shows(["a downloading", "b skipped: WindowClosed"]);
}

/// A rollout that has started does not wait for its start time a second time.
#[test]
fn clock_set_back_before_start_keeps_running() {
    Story::of(["a", "b"], Pace { max_parallel: Some(1), ..pace() })
        .does(Change::Pause)
        .minutes(-24 * 60)
        .happens("a", SUCCEEDED)
        .does(Change::Resume)
        .is(Phase::Running)
        .shows(["a succeeded", "b dispatched"]);
}

/// A difference of a few seconds between two clocks is ignored.
#[test]
fn clock_correction_under_a_minute_changes_nothing() {
    let mut story = Story::of(["a", "b"], Pace { stagger_minutes: 10, ..pace() });
    let before = story.rollout.clone();
    story.now -= SignedDuration::from_secs(59);
    story.settle();
    assert_eq!(story.rollout, before);
}

/// Otherwise an agent that hangs and repeats its report would never time out.
#[test]
fn repeated_report_does_not_extend_deadline() {
    let mut story = Story::of(["a"], pace());
    story.happens("a", Event::Reached(Stage::Preflight)).minutes(15);
    story.happens("a", Event::Reached(Stage::Preflight)).minutes(5);
    story.shows(["a timed out while preflight"]);
}

/// Two planners, one of them late: a deadline that the other has moved must not be enforced.
#[test]
fn timeout_before_deadline_is_refused() {
    let mut story = Story::of(["a"], pace());
    story.minutes(9);
    let refused = story.rollout.happens(story.server("a"), Event::DeadlinePassed, story.now);
    assert!(matches!(refused, Err(NotTaken::Illegal(_))), "{refused:?}");
    story.shows(["a dispatched"]);
}

#[test]
fn slowest_task_ends_within_eight_hours() {
    assert_eq!(limit(Stage::Dispatched), SignedDuration::from_mins(10));
    assert!(limit_in_all() < SignedDuration::from_hours(8), "{:?}", limit_in_all());
}
