//! Hours, windows, deadlines, and clocks that are wrong.

use super::*;

#[test]
fn a_clock_that_is_set_back_leaves_no_wait_longer_than_it_can_have_been() {
    let mut story = Story::of(["a", "b"], Pace { stagger_minutes: 10, ..pace() });
    story.happens("a", Event::Reached(Stage::Preflight)).minutes(5);
    story.happens("a", Event::Reached(Stage::Downloading));
    // A day back: the stagger begins anew, and the download has its two hours.
    story.minutes(-24 * 60);
    story.shows(["a downloading", "b waits: stagger until 00:15"]);
    story.minutes(10).shows(["a downloading", "b dispatched"]);
    story.happens("b", SUCCEEDED).minutes(110);
    story.shows(["a timed out while downloading", "b succeeded"]);
}

#[test]
fn without_a_window_an_absent_server_is_given_up_after_a_week() {
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
fn no_server_starts_after_the_window_and_the_rollout_says_so() {
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
fn the_window_also_closes_on_a_rollout_that_nobody_resumes() {
    let pace = Pace { window_minutes: Some(30), stagger_minutes: 20, ..pace() };
    Story::of(["a", "b"], pace)
        .happens("a", SUCCEEDED)
        .does(Change::Pause)
        .minutes(30)
        .shows(["a succeeded", "b skipped: WindowClosed"])
        .is(Phase::Ended(End::Expired));
}

#[test]
fn every_stage_has_a_deadline_and_silence_ends_there() {
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
fn nothing_starts_before_the_hour() {
    let one = "2026-11-15T01:00:00Z".parse().unwrap();
    let mut story = Story::starting_at(one, ["a"], pace());
    story.shows(["a waits: starts at 01:00"]).is(Phase::Scheduled);
    assert_eq!(plan(&story.rollout, story.now).wake_at, Some(one));
    story.minutes(60).shows(["a dispatched"]).is(Phase::Running);
}

#[test]
fn a_pause_before_the_hour_lasts_beyond_it() {
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

/// A minute before is before.
#[test]
fn the_last_minute_before_the_hour_is_still_before_it() {
    let one = "2026-11-15T01:00:00Z".parse().unwrap();
    Story::starting_at(one, ["a"], pace())
        .minutes(59)
        .shows(["a waits: starts at 01:00"])
        .is(Phase::Scheduled);
}

/// A server that could start at the very instant at which the window closes does not.
#[test]
fn at_the_closing_of_the_window_nobody_slips_through() {
    let pace = Pace { window_minutes: Some(5), max_parallel: Some(1), ..pace() };
    let mut story = Story::of(["a", "b"], pace);
    story.now += SignedDuration::from_mins(5);
    story.happens("a", SUCCEEDED).shows(["a succeeded", "b skipped: WindowClosed"]);
}

/// The planner is asked again in time for whatever comes first.
#[test]
fn it_wakes_for_whichever_comes_first() {
    let wakes = |story: &Story| plan(&story.rollout, story.now).wake_at.unwrap().to_string();
    let stagger = Story::of(["a", "b"], Pace { stagger_minutes: 5, ..pace() });
    assert_eq!(wakes(&stagger), "2026-11-15T00:05:00Z");
    let deadline = Story::of(["a", "b"], Pace { max_parallel: Some(1), ..pace() });
    assert_eq!(wakes(&deadline), "2026-11-15T00:10:00Z");
    let window = Pace { max_parallel: Some(1), window_minutes: Some(7), ..pace() };
    assert_eq!(wakes(&Story::of(["a", "b"], window)), "2026-11-15T00:07:00Z");
}

/// The time without a window grows with the pace: 25 servers an hour apart, or one at a time.
#[test]
fn a_slow_pace_has_longer_before_it_is_given_up() {
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

/// What an agent said tells the time too.
#[test]
fn a_clock_that_goes_back_behind_the_last_report_is_noticed() {
    let mut story = Story::of(["a"], pace());
    story.now += SignedDuration::from_hours(24);
    let server = story.server("a");
    story.rollout.happens(server, Event::Reached(Stage::Preflight), story.now).unwrap();
    story.minutes(-24 * 60).shows(["a preflight"]);
    story.minutes(20).shows(["a timed out while preflight"]);
}

/// Or it would be open for the years by which the clock was wrong.
#[test]
fn a_window_closes_by_the_clock_that_was_set_back() {
    let ten_years = 10 * 365 * 24 * 60;
    let pace = Pace { window_minutes: Some(60), max_parallel: Some(1), ..pace() };
    Story::of(["a", "b"], pace)
        .happens("a", Event::Reached(Stage::Downloading))
        .minutes(-ten_years)
        .shows(["a downloading", "b waits: parallel"])
        .minutes(60)
        .shows(["a downloading", "b skipped: WindowClosed"]);
}

/// One that has begun does not wait for its hour a second time.
#[test]
fn a_clock_that_is_set_back_before_the_hour_does_not_undo_the_start() {
    Story::of(["a", "b"], Pace { max_parallel: Some(1), ..pace() })
        .does(Change::Pause)
        .minutes(-24 * 60)
        .happens("a", SUCCEEDED)
        .does(Change::Resume)
        .is(Phase::Running)
        .shows(["a succeeded", "b dispatched"]);
}

/// A second opinion on "now" that differs by seconds is no news.
#[test]
fn a_clock_that_is_corrected_by_less_than_a_minute_moves_nothing() {
    let mut story = Story::of(["a", "b"], Pace { stagger_minutes: 10, ..pace() });
    let before = story.rollout.clone();
    story.now -= SignedDuration::from_secs(59);
    story.settle();
    assert_eq!(story.rollout, before);
}

/// Or an agent that hangs and says so again and again would never be given up.
#[test]
fn saying_the_same_again_wins_no_time() {
    let mut story = Story::of(["a"], pace());
    story.happens("a", Event::Reached(Stage::Preflight)).minutes(15);
    story.happens("a", Event::Reached(Stage::Preflight)).minutes(5);
    story.shows(["a timed out while preflight"]);
}

/// Two planners, one of them late: what the other has put off must not be given up.
#[test]
fn a_deadline_that_has_not_passed_is_refused_and_changes_nothing() {
    let mut story = Story::of(["a"], pace());
    story.minutes(9);
    let refused = story.rollout.happens(story.server("a"), Event::DeadlinePassed, story.now);
    assert!(matches!(refused, Err(NotTaken::Illegal(_))), "{refused:?}");
    story.shows(["a dispatched"]);
}

#[test]
fn the_slowest_server_is_through_within_a_working_day() {
    assert_eq!(limit(Stage::Dispatched), SignedDuration::from_mins(10));
    assert!(limit_in_all() < SignedDuration::from_hours(8), "{:?}", limit_in_all());
}
