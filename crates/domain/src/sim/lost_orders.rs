//! Orders that an agent never received or has lost the record of: one agent, one rollout, no
//! randomness.

use jiff::{SignedDuration, Timestamp};
use vocab::{BatchId, FailureCode, ServerId, Stage};

use super::agent::{Agent, Health, OrderId};
use super::chance::Chance;
use super::control::Control;
use super::judge::Moment;
use crate::rollout::{Change, End, Outcome, Pace, Phase, Rollout, Target};

struct Story {
    control: Control,
    agent: Agent,
    of: BatchId,
    now: Timestamp,
}

impl Story {
    /// The order was sent, and the agent died before it received it.
    fn unread() -> Story {
        let mut story = Story::ordered();
        story.agent.crash(Health::Crashed);
        story
    }

    /// The order was sent.
    fn ordered() -> Story {
        let now: Timestamp = "2026-03-01T02:00:00Z".parse().unwrap();
        let (server, of) = (ServerId::new(now, 1), BatchId::new(now, 1));
        let mut control = Control::new(60, false);
        let pace = Pace { window_minutes: Some(60), ..Pace::default() };
        let mut story = Story {
            agent: Agent::new(server, 5),
            of,
            now,
            control: {
                let rollout = Rollout::new(of, pace, now, [server], now);
                control.create(rollout, SignedDuration::ZERO, moment(now));
                control
            },
        };
        story.control.hears(server, &[], false, moment(now));
        let (offered, _) = story.control.settle(moment(now));
        assert_eq!(offered, [server]);
        story
    }

    fn change(&mut self, change: Change) {
        assert!(self.control.change(self.of, change, moment(self.now)));
        self.control.settle(moment(self.now));
    }

    /// The agent sends its reports and processes the reply.
    fn sync(&mut self) {
        let at = moment(self.now);
        let words = self.agent.says();
        let acks = self.control.hears(self.agent.server, &words, self.agent.is_at_work(), at);
        self.control.settle(at);
        let mentioned: Vec<OrderId> = words.iter().map(|(id, _)| *id).collect();
        let mut message = self.control.says(self.agent.server, Some(&mentioned));
        message.acks = acks;
        self.agent.hears(&message);
    }

    fn phase(&self) -> Phase {
        self.control.rollouts().next().unwrap().head().phase
    }

    fn target(&self) -> Target {
        self.control.rollouts().next().unwrap().target(self.agent.server).unwrap()
    }
}

fn moment(at: Timestamp) -> Moment {
    Moment { really: at, wall: at, forward: 0, jumps: 0, settings: 0 }
}

#[test]
fn canceled_batch_ends_although_order_never_arrived() {
    let mut story = Story::unread();
    story.change(Change::Cancel);
    assert_eq!(story.phase(), Phase::Canceling);
    story.agent.health = Health::Up;
    story.sync();
    story.sync();
    assert_eq!(story.phase(), Phase::Ended(End::Canceled));
}

#[test]
fn paused_task_waits_again_although_order_never_arrived() {
    let mut story = Story::unread();
    let before = story.control.order_of(story.of, story.agent.server);
    story.change(Change::Pause);
    story.agent.health = Health::Up;
    story.sync();
    story.sync();
    assert_eq!(story.target(), Target::Waiting);
    assert_ne!(story.control.order_of(story.of, story.agent.server), before);
    story.change(Change::Resume);
    story.sync();
    let mut chance = Chance::new(1);
    assert!(story.agent.step(&mut chance, story.now), "the agent has the new order");
}

#[test]
fn order_with_lost_record_fails_and_runs_once() {
    let mut story = Story::ordered();
    let mut chance = Chance::new(1);
    story.sync();
    while story.agent.effects.is_empty() {
        assert!(story.agent.step(&mut chance, story.now));
    }
    story.sync();
    let Target::Busy(busy) = story.target() else { panic!("{:?}", story.target()) };
    assert_eq!(busy.stage, Stage::Installing);
    let lost = story.agent.loses_record();
    assert!(lost.is_some());
    story.sync();
    story.sync();
    let Target::Done(done) = story.target() else { panic!("{:?}", story.target()) };
    assert_eq!(done.outcome, Outcome::Failed(FailureCode::OrderLost));
    while story.agent.step(&mut chance, story.now) {}
    assert_eq!(story.agent.effects.into_values().collect::<Vec<_>>(), [1]);
}
