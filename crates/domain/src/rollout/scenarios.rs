//! Scenarios of whole rollouts: the real planner and state machines with a manual clock. Each
//! scenario compares the status of every server.

use super::lint::lint_settled;
use super::*;
use vocab::{FailureCode, Portion, Stage};

mod edge_cases;
mod environment;
mod outcomes;
mod pace;
mod timing;

/// A rollout over named servers, with a clock that the test advances.
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
const NO_CHANGE: Event = Event::Reported(Verdict::NoChange);

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

    /// Like [`Story::of`], but only the first `expected` servers have something to install.
    fn expecting<const N: usize>(expected: u32, names: [&'static str; N], pace: Pace) -> Story {
        let rollout = Rollout::new(batch(1), pace, midnight(), (0..N).map(id), midnight());
        let rollout = rollout.expecting(expected);
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
        panic!("the plan never becomes idle");
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
            Target::Waiting => {
                let held = held(&self.rollout, server, self.now);
                if !matches!(held, Some(Held::Offline | Held::Elsewhere(_) | Held::AtWork)) {
                    let (head, tally) = (self.rollout.head(), self.rollout.tally());
                    let place = self.rollout.place(server).unwrap();
                    let back = held_back(head, tally, place, self.now);
                    assert_eq!(back, held, "{name}");
                }
                match held {
                    Some(held) => format!("{name} waits: {}", why(held)),
                    None => format!("{name} waits"),
                }
            }
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
        Held::Elsewhere(_) => "busy elsewhere".into(),
        Held::AtWork => "agent busy".into(),
        Held::Canary => "canary".into(),
        Held::Parallel => "parallel".into(),
        Held::Stagger { until } => format!("stagger until {}", clock(until)),
    }
}

fn pace() -> Pace {
    Pace::default()
}

const OFFLINE: Condition = Condition { online: false, ..Condition::FREE };

#[test]
fn without_limits_all_servers_start_at_once() {
    Story::of(["a", "b"], pace())
        .shows(["a dispatched", "b dispatched"])
        .happens("a", SUCCEEDED)
        .happens("b", Event::Reported(Verdict::NoChange))
        .shows(["a succeeded", "b had nothing to change"])
        .is(Phase::Ended(End::Succeeded));
}

#[test]
fn server_busy_in_another_rollout_waits() {
    let later = "2026-11-15T00:05:00Z".parse().unwrap();
    let elsewhere = Condition { busy_in: Some(batch(2)), ..Condition::FREE };
    Story::starting_at(later, ["a", "b"], pace())
        .notices("a", elsewhere)
        .minutes(5)
        .shows(["a waits: busy elsewhere", "b dispatched"])
        .notices("a", Condition::FREE)
        .shows(["a dispatched", "b dispatched"]);
}

#[test]
fn pause_stops_only_servers_that_have_not_started() {
    Story::of(["a", "b"], Pace { max_parallel: Some(1), ..pace() })
        .does(Change::Pause)
        .happens("a", SUCCEEDED)
        .shows(["a succeeded", "b waits: paused"])
        .does(Change::Resume)
        .shows(["a succeeded", "b dispatched"]);
}

#[test]
fn out_of_order_progress_is_ignored() {
    Story::of(["a"], pace())
        .happens("a", Event::Reached(Stage::Installing))
        .happens("a", Event::Reached(Stage::Downloading))
        .shows(["a installing"]);
}

#[test]
fn duplicate_server_counts_once() {
    let rollout = Rollout::new(batch(1), pace(), midnight(), [id(1), id(0), id(1)], midnight());
    assert_eq!(rollout.targets().map(|(server, _)| server).collect::<Vec<_>>(), [id(1), id(0)]);
}

#[test]
fn event_for_unknown_server_is_refused() {
    let mut story = Story::of(["a"], pace());
    let refused = story.rollout.happens(id(7), SUCCEEDED, story.now);
    assert_eq!(refused, Err(NotTaken::Stranger(id(7))));
    story.rollout.notice(id(7), OFFLINE);
    story.shows(["a dispatched"]);
}

#[test]
fn plans_start_at_most_a_thousand_servers() {
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

/// What users may do in each phase, and what the planner may; everything else is refused.
#[test]
fn phase_transitions() {
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

/// Every pair of state and event: a transition, no change, or refused as a bug of the planner.
#[test]
fn task_transitions() {
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
        Event::GivenBack,
        Event::Forgotten,
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
fn rollout_round_trips_through_json() {
    let mut story = Story::of(["a", "b"], Pace { stagger_minutes: 10, ..pace() });
    story.happens("a", Event::Reached(Stage::Downloading));
    let head = serde_json::to_string(story.rollout.head()).unwrap();
    let targets = serde_json::to_string(&story.rollout.targets().collect::<Vec<_>>()).unwrap();
    let head: Head = serde_json::from_str(&head).unwrap();
    let targets: Vec<(ServerId, Target)> = serde_json::from_str(&targets).unwrap();
    assert_eq!(Rollout::restore(head, targets), story.rollout);
}

/// A reader of what others stored must reach the same state.
#[test]
fn loading_changes_equals_restoring_from_storage() {
    let mut story = Story::of(["a", "b", "c"], Pace { max_parallel: Some(2), ..pace() });
    let mut reader = story.rollout.clone();
    story.happens("a", SUCCEEDED).happens("b", FAILED).minutes(1);
    for (server, target) in story.rollout.targets() {
        reader.learn(server, target);
    }
    reader.learn_head(story.rollout.head().clone());
    assert_eq!(reader, story.rollout);
    assert_eq!(reader, Rollout::restore(reader.head().clone(), reader.targets()));
}
