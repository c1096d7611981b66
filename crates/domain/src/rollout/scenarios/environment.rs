//! Events from outside a rollout: an outage of the service, a clock that is set, an agent that is
//! busy with something else.

use super::*;

const PATIENCE: SignedDuration = SignedDuration::from_secs(3 * 60 + 30);

fn minutes(minutes: i64) -> SignedDuration {
    SignedDuration::from_mins(minutes)
}

impl Story {
    /// Nothing is planned and no report arrives for this long; then a replica takes the lead.
    fn is_down_for(&mut self, time: SignedDuration) -> &mut Story {
        self.now += time;
        self.rollout = Rollout::restore(self.rollout.head().clone(), self.rollout.targets());
        self.rollout.was_deaf(self.now, PATIENCE);
        self.settle();
        self
    }

    /// The clock is set, and the leader notices it after this time.
    fn clock_is_set(&mut self, by: SignedDuration, noticed_after: SignedDuration) -> &mut Story {
        self.now += by + noticed_after;
        let since = self.now - noticed_after;
        self.does(Change::ClockSet(ClockSet { by, since, now: self.now }))
    }
}

/// Both tasks ended long ago, but their agents could not report it.
#[test]
fn deadline_passed_during_outage_waits_for_reports() {
    let pace = Pace { max_failures: Some(Portion::Count(1)), max_parallel: Some(2), ..pace() };
    let mut story = Story::of(["a", "b", "c"], pace);
    story.is_down_for(minutes(60));
    story.shows(["a dispatched", "b dispatched", "c waits: parallel"]);
    let wakes = plan(&story.rollout, story.now).wake_at;
    assert_eq!(wakes, Some(story.now + PATIENCE));
    story.happens("a", SUCCEEDED);
    story.shows(["a succeeded", "b dispatched", "c dispatched"]).is(Phase::Running);
    story.now += PATIENCE - SignedDuration::from_secs(1);
    story.settle();
    story.shows(["a succeeded", "b dispatched", "c dispatched"]);
    // A task without a report even then times out.
    story.now += SignedDuration::from_secs(1);
    story.settle();
    story.shows(["a succeeded", "b timed out while dispatched", "c dispatched"]);
    story.is(Phase::Halted(Halt::TooManyFailures));
}

/// No server starts after the window, even if the service was down.
#[test]
fn window_closes_even_during_outage() {
    let pace = Pace { window_minutes: Some(30), max_parallel: Some(1), ..pace() };
    Story::of(["a", "b"], pace)
        .is_down_for(minutes(45))
        .shows(["a dispatched", "b skipped: WindowClosed"]);
}

#[test]
fn setting_the_clock_keeps_every_wait() {
    let hour = minutes(60);
    let ten_years = minutes(10 * 365 * 24 * 60);
    for by in [minutes(2), -minutes(2), hour, -hour, 24 * hour, -24 * hour, ten_years, -ten_years] {
        let pace =
            Pace { stagger_minutes: 15, window_minutes: Some(40), max_parallel: Some(2), ..pace() };
        let mut story = Story::of(["a", "b", "c", "d"], pace);
        story.happens("a", Event::Reached(Stage::Downloading)).minutes(15).minutes(1);
        story.clock_is_set(by, SignedDuration::from_secs(5));
        let seconds = |seconds| SignedDuration::from_secs(seconds);
        // Ten minutes for the second server, counted from its start and not from the jump.
        story.now += minutes(9) - seconds(6);
        story.settle();
        assert_eq!(story.line("b"), "b dispatched", "{by}");
        story.now += seconds(1);
        story.settle();
        assert_eq!(story.line("b"), "b timed out while dispatched", "{by}");
        // A quarter of an hour between two starts.
        story.now += minutes(5) - seconds(1);
        story.settle();
        assert!(story.line("c").starts_with("c waits: stagger"), "{by}: {}", story.line("c"));
        story.now += seconds(1);
        story.settle();
        assert_eq!(story.line("c"), "c dispatched", "{by}");
        // The window closes forty minutes after the start.
        story.now += minutes(10) - seconds(1);
        story.settle();
        assert!(story.line("d").starts_with("d waits"), "{by}: {}", story.line("d"));
        story.now += seconds(1);
        story.settle();
        assert_eq!(story.line("d"), "d skipped: WindowClosed", "{by}");
        // The first server has its two hours.
        story.now += minutes(80) - seconds(1);
        story.settle();
        assert_eq!(story.line("a"), "a downloading", "{by}");
        story.now += seconds(1);
        story.settle();
        assert_eq!(story.line("a"), "a timed out while downloading", "{by}");
    }
}

/// A report that arrived after the clock was set, and before the leader noticed it, uses the new
/// clock.
#[test]
fn events_after_clock_change_keep_their_time() {
    for by in [minutes(60), -minutes(60)] {
        let mut story = Story::of(["a"], pace());
        let server = story.server("a");
        story.now += by;
        story.rollout.happens(server, Event::Reached(Stage::Preflight), story.now).unwrap();
        story.clock_is_set(SignedDuration::ZERO, SignedDuration::from_secs(5));
        let Some(Target::Busy(busy)) = story.rollout.target(server) else {
            panic!("the task ended")
        };
        assert_eq!(busy.by, midnight() + by + limit(Stage::Preflight));
    }
}

/// A start at one o'clock happens when the clock shows one o'clock, even if the clock was set.
#[test]
fn future_start_follows_the_new_clock() {
    let one = "2026-11-15T01:00:00Z".parse().unwrap();
    Story::starting_at(one, ["a"], pace())
        .clock_is_set(minutes(30), SignedDuration::ZERO)
        .shows(["a waits: starts at 01:00"])
        .minutes(30)
        .shows(["a dispatched"]);
}

/// "Timed out" was an assumption: the agent is still working and must not get another order.
#[test]
fn server_with_busy_agent_is_not_started() {
    let later = "2026-11-15T00:05:00Z".parse().unwrap();
    let at_work = Condition { at_work: true, ..Condition::FREE };
    Story::starting_at(later, ["a", "b"], pace())
        .notices("a", at_work)
        .minutes(5)
        .shows(["a waits: agent busy", "b dispatched"])
        .notices("a", Condition::FREE)
        .shows(["a dispatched", "b dispatched"]);
}
