//! What wrong clocks, half-saved rollouts and second thoughts must not lead to.

use super::*;

fn t(text: &str) -> Timestamp {
    text.parse().unwrap()
}
fn mins(m: i64) -> SignedDuration {
    SignedDuration::from_mins(m)
}
fn settle(r: &mut Rollout, now: Timestamp) {
    for _ in 0..10_000 {
        let next = plan(r, now);
        if next.is_idle() {
            return;
        }
        if let Some(c) = next.change {
            r.change(c, now).unwrap();
        }
        for (s, e) in next.moves {
            r.happens(s, e, now).unwrap();
        }
    }
    panic!("never settles");
}
fn rollout(pace: Pace, n: usize, now: Timestamp) -> Rollout {
    let mut r = Rollout::new(batch(1), pace, now, (0..n).map(id), now);
    settle(&mut r, now);
    r
}
fn busy(r: &Rollout, n: usize) -> bool {
    matches!(r.target(id(n)), Some(Target::Busy(_)))
}

#[test]
fn a_clock_at_the_end_of_time_panics_nobody() {
    rollout(Pace::default(), 1, Timestamp::MAX - mins(1) - mins(1));
}
#[test]
fn nor_does_a_stagger_that_reaches_beyond_it() {
    rollout(Pace { stagger_minutes: 1_440, ..Pace::default() }, 2, Timestamp::MAX - mins(700));
}
#[test]
fn nor_does_a_stagger_that_nobody_could_have_asked_for() {
    rollout(
        Pace { stagger_minutes: u32::MAX, window_minutes: Some(60), ..Pace::default() },
        2,
        t("2026-11-15T00:00:00Z"),
    );
}
#[test]
fn nor_does_a_clock_that_goes_back_by_all_of_time() {
    let now = t("2026-11-15T00:00:00Z");
    let mut r = rollout(Pace { max_parallel: Some(1), ..Pace::default() }, 2, now);
    // An outage of an hour; before the planner sees that a deadline has passed the clock goes back.
    r.happens(id(1), Event::Reached(Stage::Preflight), now + mins(60)).unwrap();
    settle(&mut r, Timestamp::MIN);
}
#[test]
fn nor_does_a_pace_over_more_servers_than_there_are() {
    Pace { stagger_minutes: u32::MAX, ..Pace::default() }.span(u32::MAX);
}
/// A word of an agent that arrives after the clock went back and before the planner looked.
#[test]
fn a_report_between_a_clock_set_back_and_the_next_plan_is_not_taken_for_late() {
    let now = t("2026-11-15T00:00:00Z");
    let mut r = rollout(Pace::default(), 1, now);
    let yesterday = now - mins(24 * 60);
    r.happens(id(0), Event::Reached(Stage::Downloading), yesterday).unwrap();
    settle(&mut r, yesterday);
    assert!(busy(&r, 0), "{:?}", r.target(id(0)));
}
/// Two replicas whose clocks differ by two minutes take turns.
#[test]
fn two_replicas_whose_clocks_differ_do_not_eat_up_the_stagger() {
    let now = t("2026-11-15T00:00:00Z");
    let mut r =
        rollout(Pace { stagger_minutes: 10, window_minutes: Some(240), ..Pace::default() }, 3, now);
    let start_by = r.head().start_by;
    for _ in 0..6 {
        settle(&mut r, now + mins(2));
        r.happens(id(0), Event::Reached(Stage::Dispatched), now + mins(2)).unwrap();
        settle(&mut r, now);
    }
    assert!(
        !busy(&r, 1),
        "the second started, the window closes {} early",
        start_by.duration_since(r.head().start_by)
    );
    assert!(busy(&r, 0), "the first was given up: {:?}", r.target(id(0)));
}
/// The clock is ten minutes ahead for a moment the evening before.
#[test]
fn a_clock_that_was_ahead_for_a_moment_does_not_make_a_rollout_start_early() {
    let now = t("2026-11-15T00:00:00Z");
    let two = t("2026-11-15T02:00:00Z");
    let mut r = Rollout::new(batch(1), Pace::default(), two, [id(0)], now);
    r.change(Change::Pause, now + mins(30)).unwrap(); // someone presses pause …
    r.change(Change::Resume, now + mins(30)).unwrap(); // … and resume while the clock is ahead
    settle(&mut r, now);
    settle(&mut r, two - mins(25));
    assert!(!busy(&r, 0), "started at {}", two - mins(25));
}
/// An hour ahead for a moment, then right again: the window is an hour shorter.
#[test]
fn nor_does_it_close_the_window_early() {
    let now = t("2026-11-15T00:00:00Z");
    let mut r = rollout(
        Pace { window_minutes: Some(90), max_parallel: Some(1), ..Pace::default() },
        2,
        now,
    );
    r.happens(id(0), Event::Reached(Stage::Installing), now + mins(60)).unwrap();
    settle(&mut r, now);
    r.happens(id(0), SUCCEEDED, now + mins(40)).unwrap();
    settle(&mut r, now + mins(40));
    assert!(busy(&r, 1), "{:?}", r.target(id(1)));
}
/// Three fell silent, a person went on, the three turn out well: now the limit must count anew.
#[test]
fn a_forgiven_failure_that_was_none_forgives_no_other() {
    let now = t("2026-11-15T00:00:00Z");
    let pace = Pace {
        max_failures: Some(Portion::Count(3)),
        max_parallel: Some(3),
        window_minutes: Some(600),
        ..Pace::default()
    };
    let mut r = rollout(pace, 20, now);
    let now = now + mins(10);
    settle(&mut r, now); // 0, 1, 2 silent
    assert!(matches!(r.head().phase, Phase::Halted(_)));
    r.change(Change::Resume, now).unwrap();
    for n in 0..3 {
        r.happens(id(n), SUCCEEDED, now).unwrap();
    }
    settle(&mut r, now);
    for n in 3..6 {
        r.happens(id(n), FAILED, now).unwrap();
        settle(&mut r, now);
    }
    assert!(
        matches!(r.head().phase, Phase::Halted(_)),
        "{} failures, limit 3, {:?}",
        r.tally().failures(),
        r.head().phase
    );
}
/// The control plane is down for a quarter of an hour; every agent has its success to report.
#[test]
fn an_end_that_was_saved_without_its_targets_still_wakes() {
    let now = t("2026-11-15T00:00:00Z");
    let mut r = rollout(Pace::default(), 1, now);
    let targets: Vec<_> = r.targets().collect();
    r.happens(id(0), SUCCEEDED, now).unwrap();
    settle(&mut r, now);
    let torn = Rollout::restore(r.head().clone(), targets);
    assert_ne!(plan(&torn, now).wake_at, None);
}
/// The clock went back ten years; the head was saved, the moved deadlines were not.
#[test]
fn a_clock_set_back_is_noticed_by_the_deadlines_too() {
    let now = t("2026-11-15T00:00:00Z");
    let mut r = rollout(Pace::default(), 1, now);
    let targets: Vec<_> = r.targets().collect();
    let then = now - mins(10 * 365 * 24 * 60);
    settle(&mut r, then);
    let torn = Rollout::restore(r.head().clone(), targets);
    assert!(
        plan(&torn, then).wake_at.unwrap() < then + mins(24 * 60),
        "{:?}",
        plan(&torn, then).wake_at
    );
}
/// A canary that fell silent and then succeeded needs no waiver; the second canary still counts.
#[test]
fn a_canary_that_a_late_report_put_right_is_not_waived() {
    let now = t("2026-11-15T00:00:00Z");
    let pace = Pace { canary: Some(Portion::Count(2)), max_parallel: Some(1), ..Pace::default() };
    let mut r = rollout(pace, 10, now);
    settle(&mut r, now + mins(10));
    let now = now + mins(10);
    r.happens(id(0), SUCCEEDED, now).unwrap();
    r.change(Change::Resume, now).unwrap();
    assert!(!r.head().canary_waived);
}
