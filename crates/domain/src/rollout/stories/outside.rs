//! What the world around a rollout does to it: an outage of the service, a clock that is set, an agent
//! that is still at work on something else.

use super::*;

const PATIENCE: SignedDuration = SignedDuration::from_secs(3 * 60 + 30);

fn minutes(minutes: i64) -> SignedDuration {
    SignedDuration::from_mins(minutes)
}

impl Story {
    /// Nothing is planned and nobody is heard for so long; then somebody takes the lead.
    fn is_down_for(&mut self, time: SignedDuration) -> &mut Story {
        self.now += time;
        self.rollout = Rollout::restore(self.rollout.head().clone(), self.rollout.targets());
        self.rollout.was_deaf(self.now, PATIENCE);
        self.settle();
        self
    }

    /// The clock is set, and whoever leads notices it so long after.
    fn clock_is_set(&mut self, by: SignedDuration, noticed_after: SignedDuration) -> &mut Story {
        self.now += by + noticed_after;
        let since = self.now - noticed_after;
        self.does(Change::ClockSet(ClockSet { by, since, now: self.now }))
    }
}

/// Both were through long ago and had nobody to tell.
#[test]
fn a_deadline_that_passed_while_the_service_was_down_waits_for_those_who_come_to_report() {
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
    // And whoever is silent even then is given up.
    story.now += SignedDuration::from_secs(1);
    story.settle();
    story.shows(["a succeeded", "b timed out while dispatched", "c dispatched"]);
    story.is(Phase::Halted(Halt::TooManyFailures));
}

/// No server starts later than the window, whoever was away.
#[test]
fn a_window_that_closed_while_the_service_was_down_is_closed() {
    let pace = Pace { window_minutes: Some(30), max_parallel: Some(1), ..pace() };
    Story::of(["a", "b"], pace)
        .is_down_for(minutes(45))
        .shows(["a dispatched", "b skipped: WindowClosed"]);
}

#[test]
fn a_clock_that_is_set_shortens_and_lengthens_no_wait() {
    let hour = minutes(60);
    let ten_years = minutes(10 * 365 * 24 * 60);
    for by in [minutes(2), -minutes(2), hour, -hour, 24 * hour, -24 * hour, ten_years, -ten_years] {
        let pace =
            Pace { stagger_minutes: 15, window_minutes: Some(40), max_parallel: Some(2), ..pace() };
        let mut story = Story::of(["a", "b", "c", "d"], pace);
        story.happens("a", Event::Reached(Stage::Downloading)).minutes(15).minutes(1);
        story.clock_is_set(by, SignedDuration::from_secs(5));
        let seconds = |seconds| SignedDuration::from_secs(seconds);
        // Ten minutes for the second, since its start and not since the jump.
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
        // And the first has its two hours.
        story.now += minutes(80) - seconds(1);
        story.settle();
        assert_eq!(story.line("a"), "a downloading", "{by}");
        story.now += seconds(1);
        story.settle();
        assert_eq!(story.line("a"), "a timed out while downloading", "{by}");
    }
}

/// What an agent said after the clock was set, and before anyone noticed, is by the right clock.
#[test]
fn what_happened_since_the_clock_was_set_keeps_its_time() {
    for by in [minutes(60), -minutes(60)] {
        let mut story = Story::of(["a"], pace());
        let server = story.server("a");
        story.now += by;
        story.rollout.happens(server, Event::Reached(Stage::Preflight), story.now).unwrap();
        story.clock_is_set(SignedDuration::ZERO, SignedDuration::from_secs(5));
        let Some(Target::Busy(busy)) = story.rollout.target(server) else { panic!("it ended") };
        assert_eq!(busy.by, midnight() + by + limit(Stage::Preflight));
    }
}

/// Three in the morning is when the clock shows three, however it came to.
#[test]
fn an_hour_that_has_not_come_comes_by_the_clock_as_it_is_now() {
    let one = "2026-11-15T01:00:00Z".parse().unwrap();
    Story::starting_at(one, ["a"], pace())
        .clock_is_set(minutes(30), SignedDuration::ZERO)
        .shows(["a waits: starts at 01:00"])
        .minutes(30)
        .shows(["a dispatched"]);
}

/// "Timed out" was a guess; its agent is at work all the same and must not be given more.
#[test]
fn a_server_whose_agent_is_at_work_is_left_to_it() {
    let later = "2026-11-15T00:05:00Z".parse().unwrap();
    let at_work = Condition { at_work: true, ..Condition::FREE };
    Story::starting_at(later, ["a", "b"], pace())
        .notices("a", at_work)
        .minutes(5)
        .shows(["a waits: its agent is at work", "b dispatched"])
        .notices("a", Condition::FREE)
        .shows(["a dispatched", "b dispatched"]);
}
