//! Orders that an agent never received or has lost the record of: one agent, one rollout, no
//! randomness.

use jiff::{SignedDuration, Timestamp};
use vocab::{BatchId, FailureCode, ServerId, Stage};

use super::agent::{Agent, Health, OrderId};
use super::control::{ControlPlane, HealthReports};
use super::oracle::Moment;
use super::rng::Rng;
use crate::rollout::{Change, Pace, Phase, Rollout, RolloutOutcome, TaskOutcome, TaskStatus};

struct Scenario {
    control: ControlPlane,
    agent: Agent,
    batch: BatchId,
    now: Timestamp,
}

impl Scenario {
    /// The order was sent, and the agent died before it received it.
    fn order_not_received() -> Scenario {
        let mut scenario = Scenario::order_sent();
        scenario.agent.crash(Health::Crashed);
        scenario
    }

    /// The order was sent.
    fn order_sent() -> Scenario {
        let now: Timestamp = "2026-03-01T02:00:00Z".parse().unwrap();
        let (server, of) = (ServerId::new(now, 1), BatchId::new(now, 1));
        let mut control = ControlPlane::new(60, false);
        let pace = Pace { window_minutes: Some(60), ..Pace::default() };
        let mut scenario = Scenario {
            agent: Agent::new(server, 5),
            batch: of,
            now,
            control: {
                let rollout = Rollout::new(of, pace, now, [server], now);
                control.create(rollout, SignedDuration::ZERO, moment(now));
                control
            },
        };
        scenario.control.receive(server, &[], &HealthReports::default(), false, moment(now));
        let (offered, _) = scenario.control.run_planner(moment(now));
        assert_eq!(offered, [server]);
        scenario
    }

    fn change(&mut self, change: Change) {
        assert!(self.control.apply_change(self.batch, change, moment(self.now)));
        self.control.run_planner(moment(self.now));
    }

    /// The agent sends its reports and processes the reply.
    fn sync(&mut self) {
        let at = moment(self.now);
        let words = self.agent.pending_reports();
        let health = HealthReports::default();
        let busy = self.agent.is_busy();
        let acks = self.control.receive(self.agent.server, &words, &health, busy, at);
        self.control.run_planner(at);
        let mentioned: Vec<OrderId> = words.iter().map(|(id, _)| *id).collect();
        let mut message = self.control.message_for(self.agent.server, Some(&mentioned), self.now);
        message.acks = acks;
        self.agent.receive(&message);
    }

    fn phase(&self) -> Phase {
        self.control.rollouts().next().unwrap().head().phase
    }

    fn target(&self) -> TaskStatus {
        self.control.rollouts().next().unwrap().task_status(self.agent.server).unwrap()
    }
}

fn moment(at: Timestamp) -> Moment {
    Moment { real: at, wall: at, unnoticed_forward_sets: 0, unnoticed_clock_sets: 0, clock_sets: 0 }
}

#[test]
fn canceled_batch_ends_although_order_never_arrived() {
    let mut scenario = Scenario::order_not_received();
    scenario.change(Change::Cancel);
    assert_eq!(scenario.phase(), Phase::Canceling);
    scenario.agent.health = Health::Up;
    scenario.sync();
    scenario.sync();
    assert_eq!(scenario.phase(), Phase::Ended(RolloutOutcome::Canceled));
}

#[test]
fn paused_task_waits_again_although_order_never_arrived() {
    let mut scenario = Scenario::order_not_received();
    let before = scenario.control.order_id(scenario.batch, scenario.agent.server);
    scenario.change(Change::Pause);
    scenario.agent.health = Health::Up;
    scenario.sync();
    scenario.sync();
    assert_eq!(scenario.target(), TaskStatus::Waiting);
    assert_ne!(scenario.control.order_id(scenario.batch, scenario.agent.server), before);
    scenario.change(Change::Resume);
    scenario.sync();
    let mut rng = Rng::new(1);
    assert!(scenario.agent.step(&mut rng, scenario.now), "the agent has the new order");
}

#[test]
fn order_with_lost_record_fails_and_runs_once() {
    let mut scenario = Scenario::order_sent();
    let mut rng = Rng::new(1);
    scenario.sync();
    while scenario.agent.effects.is_empty() {
        assert!(scenario.agent.step(&mut rng, scenario.now));
    }
    scenario.sync();
    let TaskStatus::Busy(busy) = scenario.target() else { panic!("{:?}", scenario.target()) };
    assert_eq!(busy.stage, Stage::Installing);
    let lost = scenario.agent.lose_record();
    assert!(lost.is_some());
    scenario.sync();
    scenario.sync();
    let TaskStatus::Done(done) = scenario.target() else { panic!("{:?}", scenario.target()) };
    assert_eq!(done.outcome, TaskOutcome::Failed(FailureCode::OrderLost));
    while scenario.agent.step(&mut rng, scenario.now) {}
    assert_eq!(scenario.agent.effects.into_values().collect::<Vec<_>>(), [1]);
}
