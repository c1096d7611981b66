//! Stories of rollouts, each with a picture at the end: the real planner and the real machines, a
//! hand-turned clock.

use super::lint::lint_settled;
use super::*;
use vocab::{FailureCode, Portion, Stage};

/// A rollout over servers with names, one minute after another.
struct Story {
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

const FAILED: Event = Event::Reported(Verdict::Failed(FailureCode::InstallFailed));
const SUCCEEDED: Event = Event::Reported(Verdict::Succeeded);

impl Story {
    fn of<const N: usize>(names: [&'static str; N], pace: Pace) -> Story {
        Story::starting_at(midnight(), names, pace)
    }

    fn starting_at<const N: usize>(
        starts_at: Timestamp,
        names: [&'static str; N],
        pace: Pace,
    ) -> Story {
        let rollout = Rollout::new(batch(1), pace, starts_at, (0..N).map(id), midnight());
        let mut story = Story { rollout, now: midnight(), names: names.to_vec() };
        story.settle();
        story
    }

    fn settle(&mut self) {
        for _ in 0..1_000 {
            let next = plan(&self.rollout, self.now);
            if next.is_idle() {
                assert_eq!(lint_settled(&self.rollout, self.now), Vec::<String>::new());
                return;
            }
            if let Some(change) = next.change {
                self.rollout.change(change, self.now).unwrap();
            }
            for (server, event) in next.moves {
                self.rollout.happens(server, event, self.now).unwrap();
            }
        }
        panic!("it never settles");
    }

    fn minutes(&mut self, minutes: i64) -> &mut Story {
        self.now += SignedDuration::from_mins(minutes);
        self.settle();
        self
    }

    fn happens(&mut self, name: &str, event: Event) -> &mut Story {
        self.rollout.happens(self.server(name), event, self.now).unwrap();
        self.settle();
        self
    }

    fn does(&mut self, change: Change) -> &mut Story {
        self.rollout.change(change, self.now).unwrap();
        self.settle();
        self
    }

    fn notices(&mut self, name: &str, condition: Condition) -> &mut Story {
        self.rollout.notice(self.server(name), condition);
        self.settle();
        self
    }

    fn server(&self, name: &str) -> ServerId {
        id(self.names.iter().position(|known| *known == name).unwrap())
    }

    #[track_caller]
    fn shows<const N: usize>(&mut self, expected: [&str; N]) -> &mut Story {
        let lines: Vec<_> = self.names.iter().map(|name| self.line(name)).collect();
        assert_eq!(lines, expected);
        self
    }

    #[track_caller]
    fn is(&mut self, phase: Phase) -> &mut Story {
        assert_eq!(self.rollout.head().phase, phase);
        self
    }

    fn line(&self, name: &str) -> String {
        let server = self.server(name);
        match self.rollout.target(server).unwrap() {
            Target::Waiting => match held(&self.rollout, server, self.now) {
                Some(held) => format!("{name} waits: {}", why(held)),
                None => format!("{name} waits"),
            },
            Target::Busy(busy) => format!("{name} {}", busy.stage),
            Target::Done(done) => match done.outcome {
                Outcome::Succeeded => format!("{name} succeeded"),
                Outcome::NoChange => format!("{name} had nothing to change"),
                Outcome::Failed(code) => format!("{name} failed: {code}"),
                Outcome::TimedOut(stage) => format!("{name} timed out while {stage}"),
                Outcome::Skipped(skip) => format!("{name} skipped: {skip:?}"),
                Outcome::Canceled(cancel) => format!("{name} canceled: {cancel:?}"),
            },
        }
    }
}

fn why(held: Held) -> String {
    let clock = |at: Timestamp| at.to_string()[11..16].to_owned();
    match held {
        Held::Scheduled { at } => format!("starts at {}", clock(at)),
        Held::Paused => "paused".into(),
        Held::Halted(halt) => format!("halted, {halt:?}"),
        Held::Offline => "offline".into(),
        Held::Elsewhere(_) => "in work elsewhere".into(),
        Held::Canary => "canary".into(),
        Held::Parallel => "parallel".into(),
        Held::Stagger { until } => format!("stagger until {}", clock(until)),
    }
}

fn pace() -> Pace {
    Pace::default()
}

const OFFLINE: Condition = Condition { online: false, busy_in: None };

#[test]
fn without_a_pace_everyone_starts_at_once() {
    Story::of(["a", "b"], pace())
        .shows(["a dispatched", "b dispatched"])
        .happens("a", SUCCEEDED)
        .happens("b", Event::Reported(Verdict::NoChange))
        .shows(["a succeeded", "b had nothing to change"])
        .is(Phase::Ended(End::Succeeded));
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
fn a_stagger_is_the_least_time_between_two_starts() {
    let mut story = Story::of(["a", "b", "c"], Pace { stagger_minutes: 10, ..pace() });
    story.shows(["a dispatched", "b waits: stagger until 00:10", "c waits: stagger until 00:10"]);
    assert_eq!(
        plan(&story.rollout, story.now).wake_at.unwrap().to_string(),
        "2026-11-15T00:10:00Z"
    );
    // An end before the time is up does not let the next one start sooner.
    story.happens("a", SUCCEEDED).minutes(9);
    story.shows(["a succeeded", "b waits: stagger until 00:10", "c waits: stagger until 00:10"]);
    story.minutes(1).shows(["a succeeded", "b dispatched", "c waits: stagger until 00:20"]);
}

#[test]
fn no_more_are_in_work_than_allowed() {
    Story::of(["a", "b", "c"], Pace { max_parallel: Some(2), ..pace() })
        .shows(["a dispatched", "b dispatched", "c waits: parallel"])
        .happens("b", FAILED)
        .shows(["a dispatched", "b failed: install_failed", "c dispatched"])
        .happens("a", SUCCEEDED)
        .happens("c", SUCCEEDED)
        .is(Phase::Ended(End::CompletedWithErrors));
}

#[test]
fn the_rest_starts_when_every_canary_has_succeeded() {
    let canary = Some(Portion::Count(2));
    Story::of(["a", "b", "c", "d"], Pace { canary, ..pace() })
        .shows(["a dispatched", "b dispatched", "c waits: canary", "d waits: canary"])
        .happens("a", SUCCEEDED)
        .shows(["a succeeded", "b dispatched", "c waits: canary", "d waits: canary"])
        .happens("b", Event::Reported(Verdict::NoChange))
        .shows(["a succeeded", "b had nothing to change", "c dispatched", "d dispatched"]);
}

#[test]
fn a_failed_canary_stops_the_rollout_until_someone_decides() {
    let canary = Some(Portion::Count(1));
    Story::of(["a", "b"], Pace { canary, ..pace() })
        .happens("a", FAILED)
        .shows(["a failed: install_failed", "b waits: halted, CanaryFailed"])
        .is(Phase::Halted(Halt::CanaryFailed))
        .does(Change::Resume)
        .shows(["a failed: install_failed", "b dispatched"]);
}

/// Or one server that is switched off would keep the whole fleet from being patched.
#[test]
fn an_offline_server_leaves_its_place_as_canary_to_the_next() {
    let canary = Some(Portion::Count(1));
    let later = "2026-11-15T00:05:00Z".parse().unwrap();
    Story::starting_at(later, ["a", "b", "c"], Pace { canary, ..pace() })
        .notices("a", OFFLINE)
        .minutes(5)
        .shows(["a waits: offline", "b dispatched", "c waits: canary"])
        .happens("b", SUCCEEDED)
        .shows(["a waits: offline", "b succeeded", "c dispatched"])
        .notices("a", Condition::FREE)
        .shows(["a dispatched", "b succeeded", "c dispatched"]);
}

/// One bad package must cost a few servers, not the fleet.
#[test]
fn at_the_failure_limit_whoever_has_not_started_stays_untouched() {
    let pace = Pace { max_failures: Some(Portion::Count(2)), max_parallel: Some(1), ..pace() };
    Story::of(["a", "b", "c", "d"], pace)
        .happens("a", FAILED)
        .happens("b", FAILED)
        .shows([
            "a failed: install_failed",
            "b failed: install_failed",
            "c waits: halted, TooManyFailures",
            "d waits: halted, TooManyFailures",
        ])
        // Going on means going on in spite of these two: the limit counts anew.
        .does(Change::Resume)
        .happens("c", FAILED)
        .is(Phase::Running)
        .happens("d", FAILED)
        .is(Phase::Ended(End::Failed));
}

#[test]
fn a_share_of_failures_is_counted_from_all_servers() {
    let max_failures = Some(Portion::percent(50).unwrap());
    let pace = Pace { max_failures, stagger_minutes: 1, ..pace() };
    Story::of(["a", "b", "c", "d"], pace)
        .happens("a", FAILED)
        .is(Phase::Running)
        .minutes(1)
        .happens("b", FAILED)
        .is(Phase::Halted(Halt::TooManyFailures));
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
fn a_server_that_another_rollout_works_on_waits_for_its_end() {
    let later = "2026-11-15T00:05:00Z".parse().unwrap();
    let elsewhere = Condition { online: true, busy_in: Some(batch(2)) };
    Story::starting_at(later, ["a", "b"], pace())
        .notices("a", elsewhere)
        .minutes(5)
        .shows(["a waits: in work elsewhere", "b dispatched"])
        .notices("a", Condition::FREE)
        .shows(["a dispatched", "b dispatched"]);
}

#[test]
fn a_pause_stops_whoever_has_not_started_and_nobody_else() {
    Story::of(["a", "b"], Pace { max_parallel: Some(1), ..pace() })
        .does(Change::Pause)
        .happens("a", SUCCEEDED)
        .shows(["a succeeded", "b waits: paused"])
        .does(Change::Resume)
        .shows(["a succeeded", "b dispatched"]);
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

#[test]
fn canceling_calls_off_what_waits_and_lets_the_rest_end() {
    Story::of(["a", "b"], Pace { max_parallel: Some(1), ..pace() })
        .happens("a", Event::Reached(Stage::Installing))
        .does(Change::Cancel)
        .shows(["a installing", "b canceled: Person"])
        .is(Phase::Canceling)
        .happens("a", SUCCEEDED)
        .is(Phase::Ended(End::Canceled));
}

#[test]
fn an_order_that_was_not_begun_can_be_withdrawn() {
    Story::of(["a"], pace())
        .does(Change::Cancel)
        .happens("a", Event::Reported(Verdict::Withdrawn))
        .shows(["a canceled: Person"])
        .is(Phase::Ended(End::Canceled));
}

#[test]
fn canceling_after_the_last_start_cancels_nothing() {
    Story::of(["a"], pace())
        .does(Change::Cancel)
        .happens("a", SUCCEEDED)
        .shows(["a succeeded"])
        .is(Phase::Ended(End::Succeeded));
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
fn a_late_report_replaces_the_guess_and_the_end() {
    let mut story = Story::of(["a", "b"], pace());
    story.happens("a", SUCCEEDED).minutes(10);
    story.shows(["a succeeded", "b timed out while dispatched"]);
    story.is(Phase::Ended(End::CompletedWithErrors));
    story.minutes(3 * 24 * 60).happens("b", SUCCEEDED);
    story.shows(["a succeeded", "b succeeded"]).is(Phase::Ended(End::Succeeded));
}

#[test]
fn a_report_is_final_whatever_is_said_afterwards() {
    Story::of(["a"], pace())
        .happens("a", FAILED)
        .happens("a", SUCCEEDED)
        .happens("a", Event::Reached(Stage::Verifying))
        .happens("a", Event::ServerRemoved)
        .shows(["a failed: install_failed"])
        .is(Phase::Ended(End::Failed));
}

#[test]
fn progress_that_arrives_out_of_order_does_not_go_back() {
    Story::of(["a"], pace())
        .happens("a", Event::Reached(Stage::Installing))
        .happens("a", Event::Reached(Stage::Downloading))
        .shows(["a installing"]);
}

#[test]
fn a_server_that_was_removed_is_nobodys_failure() {
    Story::of(["a", "b"], Pace { max_failures: Some(Portion::Count(1)), ..pace() })
        .happens("a", Event::ServerRemoved)
        .shows(["a canceled: ServerRemoved", "b dispatched"])
        .happens("b", SUCCEEDED)
        .is(Phase::Ended(End::Succeeded));
    Story::of(["a"], pace()).happens("a", Event::ServerRemoved).is(Phase::Ended(End::Canceled));
}

/// After a restore from a backup the control plane does not know what it ordered.
#[test]
fn a_report_for_an_order_that_was_forgotten_is_believed() {
    Story::of(["a", "b"], Pace { max_parallel: Some(1), ..pace() })
        .happens("b", SUCCEEDED)
        .shows(["a dispatched", "b succeeded"]);
}

#[test]
fn a_clock_that_is_set_back_takes_what_is_to_come_along() {
    let mut story = Story::of(["a", "b"], Pace { stagger_minutes: 10, ..pace() });
    story.happens("a", Event::Reached(Stage::Preflight)).minutes(5);
    story.happens("a", Event::Reached(Stage::Downloading));
    // A day back: the stagger has five minutes to go, and the download its two hours.
    story.minutes(-24 * 60);
    story.shows(["a downloading", "b waits: stagger until 00:10"]);
    story.minutes(5).shows(["a downloading", "b dispatched"]);
    story.happens("b", SUCCEEDED).minutes(115);
    story.shows(["a timed out while downloading", "b succeeded"]);
}

#[test]
fn retrying_takes_the_failed_ones_into_a_new_rollout() {
    let mut story = Story::of(["a", "b", "c"], pace());
    assert_eq!(story.rollout.retry(batch(2), story.now), Err(NoRetry::NotEnded));
    story.happens("a", FAILED).happens("b", SUCCEEDED).minutes(10);
    let again = story.rollout.retry(batch(2), story.now).unwrap();
    let servers: Vec<_> = again.targets().collect();
    assert_eq!(servers, [(id(0), Target::Waiting), (id(2), Target::Waiting)]);

    let mut good = Story::of(["a"], pace());
    good.happens("a", SUCCEEDED);
    assert_eq!(good.rollout.retry(batch(2), good.now), Err(NoRetry::NothingFailed));
}

#[test]
fn a_server_that_is_named_twice_counts_once() {
    let rollout = Rollout::new(batch(1), pace(), midnight(), [id(1), id(0), id(1)], midnight());
    assert_eq!(rollout.targets().map(|(server, _)| server).collect::<Vec<_>>(), [id(1), id(0)]);
}

#[test]
fn a_rollout_over_nobody_ends_at_once() {
    let pace = Pace { max_parallel: Some(1), canary: Some(Portion::Count(1)), ..pace() };
    Story::of([], pace).is(Phase::Ended(End::Succeeded));
}

#[test]
fn a_stranger_is_refused() {
    let mut story = Story::of(["a"], pace());
    let refused = story.rollout.happens(id(7), SUCCEEDED, story.now);
    assert_eq!(refused, Err(NotTaken::Stranger(id(7))));
    story.rollout.notice(id(7), OFFLINE);
    story.shows(["a dispatched"]);
}

#[test]
fn a_thousand_at_a_time_until_all_have_started() {
    let servers = (0..2_500).map(id);
    let mut rollout = Rollout::new(batch(1), pace(), midnight(), servers, midnight());
    rollout.change(Change::Start, midnight()).unwrap();
    let mut sizes = Vec::new();
    loop {
        let next = plan(&rollout, midnight());
        if next.is_idle() {
            break;
        }
        sizes.push(next.moves.len());
        for (server, event) in next.moves {
            rollout.happens(server, event, midnight()).unwrap();
        }
    }
    assert_eq!(sizes, [1_000, 1_000, 500]);
}

/// What a person may do in each phase, and what the planner may; the rest is refused.
#[test]
fn the_way_from_phase_to_phase() {
    let phases = [
        Phase::Scheduled,
        Phase::Running,
        Phase::Paused,
        Phase::Halted(Halt::CanaryFailed),
        Phase::Canceling,
        Phase::Ended(End::Failed),
    ];
    let changes = [
        Change::Pause,
        Change::Resume,
        Change::Cancel,
        Change::Start,
        Change::Halt(Halt::CanaryFailed),
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

/// Every pair of state and event: moved, left as it is, or refused as a planner's mistake.
#[test]
fn the_way_of_a_target() {
    let now = midnight();
    let busy = |stage| Target::Busy(Busy { stage, started_at: now, by: now });
    let done = |outcome| Target::Done(Done { outcome, started_at: Some(now), at: now });
    let states = [
        Target::Waiting,
        busy(Stage::Installing),
        done(Outcome::Succeeded),
        done(Outcome::TimedOut(Stage::Installing)),
        done(Outcome::Canceled(Cancel::Person)),
    ];
    let events = [
        Event::Offered,
        Event::DeadlinePassed,
        Event::WindowClosed,
        Event::Canceled,
        Event::ServerRemoved,
        Event::Reached(Stage::Preflight),
        Event::Reached(Stage::Verifying),
        SUCCEEDED,
        FAILED,
        Event::Reported(Verdict::NotApplicable),
        Event::Reported(Verdict::Withdrawn),
    ];
    let word = |target: Target| match target {
        Target::Waiting => "Waiting".to_owned(),
        Target::Busy(busy) => format!("Busy({:?})", busy.stage),
        Target::Done(done) => format!("Done({:?})", done.outcome),
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
fn percent_reaches_a_hundred_only_at_the_end() {
    let mut story = Story::of(["a", "b", "c"], pace());
    story.happens("a", SUCCEEDED).happens("b", FAILED);
    assert_eq!(story.rollout.tally().percent(), 66);
    story.happens("c", SUCCEEDED);
    assert_eq!(story.rollout.tally().percent(), 100);
}

#[test]
fn what_is_stored_comes_back_the_same() {
    let mut story = Story::of(["a", "b"], Pace { stagger_minutes: 10, ..pace() });
    story.happens("a", Event::Reached(Stage::Downloading));
    let head = serde_json::to_string(story.rollout.head()).unwrap();
    let targets = serde_json::to_string(&story.rollout.targets().collect::<Vec<_>>()).unwrap();
    let head: Head = serde_json::from_str(&head).unwrap();
    let targets: Vec<(ServerId, Target)> = serde_json::from_str(&targets).unwrap();
    assert_eq!(Rollout::restore(head, targets), story.rollout);
}
