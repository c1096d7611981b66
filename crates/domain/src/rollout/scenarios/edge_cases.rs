//! Regression tests: wrong clocks, partially saved rollouts, and failures that turn out to be none.

use super::*;

fn timestamp(text: &str) -> Timestamp {
    text.parse().unwrap()
}
fn mins(m: i64) -> SignedDuration {
    SignedDuration::from_mins(m)
}
fn run_planner(r: &mut Rollout, now: Timestamp) {
    for _ in 0..10_000 {
        let next = plan(r, now);
        if next.is_idle() {
            return;
        }
        if let Some(c) = next.change {
            r.apply_change(c, now).unwrap();
        }
        for (s, e) in next.events {
            r.apply_event(s, e, now).unwrap();
        }
    }
    panic!("the plan never becomes idle");
}
fn rollout(pace: Pace, n: usize, now: Timestamp) -> Rollout {
    let mut r = Rollout::new(batch(1), pace, now, (0..n).map(id), now);
    run_planner(&mut r, now);
    r
}
fn is_busy(r: &Rollout, n: usize) -> bool {
    matches!(r.task_status(id(n)), Some(TaskStatus::Busy(_)))
}

#[test]
fn maximum_timestamp_does_not_panic() {
    rollout(Pace::default(), 1, Timestamp::MAX - mins(1) - mins(1));
}
#[test]
fn stagger_beyond_maximum_timestamp_does_not_panic() {
    rollout(Pace { stagger_minutes: 1_440, ..Pace::default() }, 2, Timestamp::MAX - mins(700));
}
#[test]
fn maximum_stagger_does_not_panic() {
    rollout(
        Pace { stagger_minutes: u32::MAX, window_minutes: Some(60), ..Pace::default() },
        2,
        timestamp("2026-11-15T00:00:00Z"),
    );
}
#[test]
fn clock_set_to_minimum_timestamp_does_not_panic() {
    let now = timestamp("2026-11-15T00:00:00Z");
    let mut r = rollout(Pace { max_parallel: Some(1), ..Pace::default() }, 2, now);
    // An outage of an hour; the clock is set back before the planner sees the passed deadline.
    r.apply_event(id(1), TaskEvent::Reached(Stage::Preflight), now + mins(60)).unwrap();
    run_planner(&mut r, Timestamp::MIN);
}
#[test]
fn maximum_server_count_does_not_panic() {
    Pace { stagger_minutes: u32::MAX, ..Pace::default() }.min_duration(u32::MAX);
}
/// A report arrives after the clock was set back and before the planner ran.
#[test]
fn report_after_clock_set_back_is_not_late() {
    let now = timestamp("2026-11-15T00:00:00Z");
    let mut r = rollout(Pace::default(), 1, now);
    let yesterday = now - mins(24 * 60);
    r.apply_event(id(0), TaskEvent::Reached(Stage::Downloading), yesterday).unwrap();
    run_planner(&mut r, yesterday);
    assert!(is_busy(&r, 0), "{:?}", r.task_status(id(0)));
}
/// Two replicas whose clocks differ by two minutes lead alternately.
#[test]
fn replicas_with_different_clocks_keep_the_stagger() {
    let now = timestamp("2026-11-15T00:00:00Z");
    let mut r =
        rollout(Pace { stagger_minutes: 10, window_minutes: Some(240), ..Pace::default() }, 3, now);
    let start_by = r.head().start_by;
    for _ in 0..6 {
        run_planner(&mut r, now + mins(2));
        r.apply_event(id(0), TaskEvent::Reached(Stage::Dispatched), now + mins(2)).unwrap();
        run_planner(&mut r, now);
    }
    assert!(
        !is_busy(&r, 1),
        "the second server started, the window closes {} early",
        start_by.duration_since(r.head().start_by)
    );
    assert!(is_busy(&r, 0), "the first server timed out: {:?}", r.task_status(id(0)));
}
/// The clock is ahead for a moment in the evening before.
#[test]
fn clock_briefly_ahead_does_not_start_early() {
    let now = timestamp("2026-11-15T00:00:00Z");
    let two = timestamp("2026-11-15T02:00:00Z");
    let mut r = Rollout::new(batch(1), Pace::default(), two, [id(0)], now);
    r.apply_change(Change::Pause, now + mins(30)).unwrap(); // a user pauses …
    r.apply_change(Change::Resume, now + mins(30)).unwrap(); // … and resumes while the clock is ahead
    run_planner(&mut r, now);
    run_planner(&mut r, two - mins(25));
    assert!(!is_busy(&r, 0), "started at {}", two - mins(25));
}
/// The clock is an hour ahead for a moment, then correct again: the window must not become an hour
/// shorter.
#[test]
fn clock_briefly_ahead_does_not_close_window_early() {
    let now = timestamp("2026-11-15T00:00:00Z");
    let mut r = rollout(
        Pace { window_minutes: Some(90), max_parallel: Some(1), ..Pace::default() },
        2,
        now,
    );
    r.apply_event(id(0), TaskEvent::Reached(Stage::Installing), now + mins(60)).unwrap();
    run_planner(&mut r, now);
    r.apply_event(id(0), SUCCEEDED, now + mins(40)).unwrap();
    run_planner(&mut r, now + mins(40));
    assert!(is_busy(&r, 1), "{:?}", r.task_status(id(1)));
}
/// Three tasks time out, a user resumes, and the three succeed after all: the failure limit must
/// start from zero again.
#[test]
fn corrected_failure_does_not_excuse_another() {
    let now = timestamp("2026-11-15T00:00:00Z");
    let pace = Pace {
        max_failures: Some(Portion::Count(3)),
        max_parallel: Some(3),
        window_minutes: Some(600),
        ..Pace::default()
    };
    let mut r = rollout(pace, 20, now);
    let now = now + mins(10);
    run_planner(&mut r, now); // 0, 1, 2 time out
    assert!(matches!(r.head().phase, Phase::Halted(_)));
    r.apply_change(Change::Resume, now).unwrap();
    for n in 0..3 {
        r.apply_event(id(n), SUCCEEDED, now).unwrap();
    }
    run_planner(&mut r, now);
    for n in 3..6 {
        r.apply_event(id(n), FAILED, now).unwrap();
        run_planner(&mut r, now);
    }
    assert!(
        matches!(r.head().phase, Phase::Halted(_)),
        "{} failures, limit 3, {:?}",
        r.counts().failures(),
        r.head().phase
    );
}
/// After a partial save: the rollout's head is stored as ended, and its task as unfinished.
#[test]
fn ended_head_without_tasks_still_wakes() {
    let now = timestamp("2026-11-15T00:00:00Z");
    let mut r = rollout(Pace::default(), 1, now);
    let targets: Vec<_> = r.tasks().collect();
    r.apply_event(id(0), SUCCEEDED, now).unwrap();
    run_planner(&mut r, now);
    let torn = Rollout::restore(r.head().clone(), targets);
    assert_ne!(plan(&torn, now).wake_at, None);
}
/// The clock was set back ten years, and a crash left the rollout's new head but the old deadlines
/// of its tasks.
#[test]
fn clock_set_back_is_detected_from_deadlines() {
    let now = timestamp("2026-11-15T00:00:00Z");
    let mut r = rollout(Pace::default(), 1, now);
    let targets: Vec<_> = r.tasks().collect();
    let then = now - mins(10 * 365 * 24 * 60);
    run_planner(&mut r, then);
    let torn = Rollout::restore(r.head().clone(), targets);
    assert!(
        plan(&torn, then).wake_at.unwrap() < then + mins(24 * 60),
        "{:?}",
        plan(&torn, then).wake_at
    );
}
/// A canary that timed out and then succeeded needs no waiver; the second canary is still required.
#[test]
fn canary_corrected_by_late_report_is_not_waived() {
    let now = timestamp("2026-11-15T00:00:00Z");
    let pace = Pace { canary: Some(Portion::Count(2)), max_parallel: Some(1), ..Pace::default() };
    let mut r = rollout(pace, 10, now);
    run_planner(&mut r, now + mins(10));
    let now = now + mins(10);
    r.apply_event(id(0), SUCCEEDED, now).unwrap();
    r.apply_change(Change::Resume, now).unwrap();
    assert!(!r.head().canary_waived);
}
