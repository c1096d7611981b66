//! Faults of the simulation, and actions of users.

use jiff::SignedDuration;
use vocab::{BatchId, HealthMode, Portion, Wave};

use super::agent::{Agent, BROKEN_BY_UPDATES, Health};
use super::host_health::{Instruments, Unit};
use super::oracle::SimFreeze;
use super::rng::Rng;
use super::situations::Situation;
use super::world::{SimEvent, World};
use crate::rollout::{Change, Pace, Phase};

impl World {
    pub(super) fn faults_active(&self) -> bool {
        self.now.duration_since(self.began) < self.fault_duration
    }

    pub(super) fn inject_fault(&mut self) {
        let agent = self.some_agent();
        let back = SignedDuration::from_secs(self.rng.between(1, 3_600));
        match self.rng.between(0, 13) {
            0..=2 => {
                self.control.situations.count(Situation::Vanished);
                self.agents[agent].connected = false;
                self.schedule(back, SimEvent::Reconnect { agent });
            }
            3..=5 if self.agents[agent].health == Health::Up => {
                self.control.situations.count(Situation::Crashed);
                self.agents[agent].crash(Health::Crashed);
                self.schedule(back, SimEvent::Restart { agent });
            }
            6 => self.kill_host(agent),
            7 | 8 => {
                self.control_is_up = false;
                let back = SignedDuration::from_secs(self.rng.between(0, 1_200));
                self.schedule(back, SimEvent::ControlBack);
            }
            9 | 10 if self.rng.percent(25) => self.jump_clock(),
            12 => {
                let losers = self.agents.iter_mut().filter(|agent| agent.is_busy());
                let lost = losers.filter_map(Agent::lose_record).next();
                self.control.trace(|| format!("the record of {lost:?} was lost"));
            }
            13 if self.rng.percent(30) => {
                self.control.situations.count(Situation::FleetOutage);
                for agent in 0..self.agents.len() {
                    self.agents[agent].connected = false;
                    self.schedule(back, SimEvent::Reconnect { agent });
                }
            }
            11 if self.rng.percent(20) => self.restore_backup(),
            11 => {
                self.control.back_up();
                self.clock_sets_at_backup = self.clock_sets;
            }
            _ => {}
        }
    }

    /// Services break and are repaired, on one host, on the changed ones, or on all.
    pub(super) fn change_health(&mut self) {
        if self.agents.iter().any(Agent::is_rebooting) && self.health_rng.percent(20) {
            self.kill_host(0);
        }
        let unit: Unit = self.health_rng.pick(&["app.service", "dns.service", "db.service"]);
        let which = self.health_rng.between(0, 5);
        let changed_first = self.health_rng.percent(50);
        let one = self.health_rng.between(0, self.agents.len() as i64 - 1) as usize;
        let mut broken = Vec::new();
        for (number, agent) in self.agents.iter_mut().enumerate() {
            let hit = match which {
                0 => number == one,
                1 => !agent.effects.is_empty() && changed_first,
                2 | 3 => true,
                _ => {
                    agent.host.failing.remove(unit);
                    false
                }
            };
            if hit {
                agent.host.failing.insert(unit);
                broken.push(number);
            }
        }
        // Often someone repairs it at once.
        if !broken.is_empty() && self.health_rng.percent(50) {
            let repaired = SignedDuration::from_secs(self.health_rng.between(60, 400));
            self.schedule(repaired, SimEvent::Repair { unit });
        }
        if matches!(which, 2 | 3) {
            self.control.situations.count(Situation::FleetBroken);
        }
        self.control.trace(|| format!("{unit} broke on {broken:?} ({which})"));
        self.notice_health();
    }

    /// An order ended with a broken service. Sometimes the service recovers after some minutes.
    pub(super) fn ended_broken(&mut self) {
        if self.health_rng.percent(70) {
            let soon = SignedDuration::from_secs(self.health_rng.between(20, 200));
            self.schedule(soon, SimEvent::Repair { unit: BROKEN_BY_UPDATES });
        }
    }

    /// An update broke a service. Sometimes it fails everywhere at that time.
    pub(super) fn update_broke(&mut self) {
        if self.health_rng.percent(30) {
            for agent in &mut self.agents {
                agent.host.failing.insert(BROKEN_BY_UPDATES);
            }
            self.control.situations.count(Situation::FleetBroken);
            self.notice_health();
        }
    }

    pub(super) fn repair(&mut self, unit: Unit) {
        for agent in &mut self.agents {
            agent.host.failing.remove(unit);
        }
        self.notice_health();
    }

    /// The agents notice soon what changed.
    fn notice_health(&mut self) {
        for agent in 0..self.agents.len() {
            let soon = SignedDuration::from_secs(self.health_rng.between(1, 90));
            self.schedule(soon, SimEvent::WatchSync { agent });
        }
    }

    fn some_agent(&mut self) -> usize {
        self.rng.between(0, self.agents.len() as i64 - 1) as usize
    }

    /// A host that is rebooting never comes back; if none is rebooting, any host may die.
    fn kill_host(&mut self, any: usize) {
        let rebooting = self.agents.iter().position(super::agent::Agent::is_rebooting);
        if rebooting.is_some() {
            self.control.situations.count(Situation::RebootHung);
        }
        if rebooting.is_some() || self.rng.percent(20) {
            self.agents[rebooting.unwrap_or(any)].crash(Health::Dead);
        }
    }

    fn jump_clock(&mut self) {
        let minute = 60;
        let jump = SignedDuration::from_secs(self.rng.pick(&[
            minute / 2,
            minute * 2,
            minute * 60,
            minute * 60 * 24,
            minute * 60 * 24 * 3_650,
        ]));
        let set_right = self.skew != SignedDuration::ZERO && self.rng.percent(60);
        let next = match (set_right, self.rng.percent(50)) {
            (true, _) => SignedDuration::ZERO,
            (false, true) => self.skew + jump,
            (false, false) => self.skew - jump,
        };
        self.control.situations.count(match next > self.skew {
            true => Situation::ClockForward,
            false => Situation::ClockBack,
        });
        let by = next - self.skew;
        self.skew = next;
        let wall = self.wall();
        self.control.trace(|| format!("the clock shows {wall}"));
        self.clock_sets += 1;
        // A running control plane notices that the clock was set; a stopped one does not.
        if self.control_is_up {
            self.control.set_clock(by, self.moment());
            self.run_planner();
        } else {
            self.unnoticed_clock_sets += 1;
            self.unnoticed_forward_sets += u32::from(by.is_positive());
        }
    }

    /// Messages in transit are dropped, and agents notice that their counter is ahead.
    fn restore_backup(&mut self) {
        let at = self.moment();
        if self.control.restore(at) {
            // The restored state does not know that the clock was set.
            if self.clock_sets != self.clock_sets_at_backup {
                self.unnoticed_clock_sets += 1;
                self.unnoticed_forward_sets += 1;
            }
            self.was_restored = true;
            self.queue.retain(|_, happening| !happening.is_message());
            for agent in &mut self.agents {
                agent.report_all_again();
            }
            self.run_planner();
        }
    }

    /// The network recovers and crashed agents are restarted; dead hosts stay dead. A clock may
    /// stay wrong, but if a rollout waits for its start time, it is corrected.
    pub(super) fn end_faults(&mut self) {
        self.loss = 0;
        let wall = self.wall();
        if self.control.rollouts().any(|rollout| rollout.head().starts_at > wall) {
            self.unnoticed_forward_sets += 1;
            self.unnoticed_clock_sets += 1;
            self.clock_sets += 1;
            self.skew = SignedDuration::ZERO;
            self.run_planner();
        }
        for agent in 0..self.agents.len() {
            self.agents[agent].connected = true;
            if self.agents[agent].health == Health::Crashed {
                self.schedule(SignedDuration::ZERO, SimEvent::Restart { agent });
            }
        }
    }

    pub(super) fn user_action(&mut self) {
        if !self.control_is_up {
            return;
        }
        let batch = BatchId::new(self.began, self.rng.pick(&[1, 2]));
        let at = self.moment();
        match self.rng.between(0, 26) {
            0..=3 => _ = self.control.apply_change(batch, Change::Pause, at),
            4..=11 => _ = self.control.apply_change(batch, Change::Resume, at),
            // Usually users cancel what has only just started.
            12 | 13 => {
                let batch = self.control.with_new_order().unwrap_or(batch);
                self.control.apply_change(batch, Change::Cancel, at);
            }
            14 => {
                let agent = self.some_agent();
                let server = self.agents[agent].server;
                self.removed.insert(server);
                self.control.remove(server, at);
            }
            15..=18 => self.retry(batch),
            19..=23 => {
                let asked = |phase| phase == Phase::AwaitingApproval;
                let waiting = self.control.rollouts().find(|rollout| asked(rollout.head().phase));
                let batch = waiting.map_or(batch, |rollout| rollout.head().id);
                let reject = self.rng.percent(45);
                let answer = if reject { Change::Reject } else { Change::Approve };
                self.control.apply_change(batch, answer, at);
            }
            24 | 25 => self.freeze(),
            _ => {}
        }
        self.run_planner();
    }

    /// Freezes some servers, from now or from a later time on.
    fn freeze(&mut self) {
        let servers: Vec<_> = self.agents.iter().map(|agent| agent.server).collect();
        let all = self.rng.percent(30);
        let servers = servers.into_iter().filter(|_| all || self.rng.percent(50)).collect();
        let wait = self.rng.pick(&[0, 0, 1, 20, 120]);
        let length = self.rng.pick(&[1, 10, 60, 240, 20_000]);
        let from = self.wall() + SignedDuration::from_mins(wait);
        let until = from + SignedDuration::from_mins(length);
        self.control.add_freeze(SimFreeze { servers, from, until });
    }

    /// At most once for each rollout.
    fn retry(&mut self, batch: BatchId) {
        let at = self.moment();
        let Some(ended) = self.control.rollouts().find(|rollout| rollout.head().id == batch) else {
            return;
        };
        let id = BatchId::new(self.began, u128::from(self.queued) << 8);
        if let (false, Ok(again)) = (self.retried.contains(&batch), ended.retry(id, at.wall)) {
            self.retried.insert(batch);
            self.control.situations.count(Situation::Retried);
            self.control.create(again, SignedDuration::ZERO, at);
        }
    }
}

pub(super) fn pace(rng: &mut Rng) -> Pace {
    let percent = |share| Portion::percent(share).expect("between 1 and 100");
    let canary = rng.pick(&[None, None, Some(Portion::Count(1)), Some(percent(20))]);
    let waves = waves(rng);
    Pace {
        stagger_minutes: rng.pick(&[0, 0, 1, 5, 20]),
        max_parallel: rng.pick(&[None, None, Some(1), Some(3)]),
        canary: canary.filter(|_| waves.is_empty()),
        waves,
        override_freeze: rng.percent(5).then(|| "urgent".to_owned()),
        pin_versions: rng.percent(25),
        max_failures: rng.pick(&[None, Some(Portion::Count(1)), Some(percent(25))]),
        window_minutes: rng.pick(&[Some(15), Some(60), Some(240), Some(240), None]),
        health: HealthMode::Report,
        max_unhealthy: None,
    }
}

/// The pace with a random treatment of health.
pub(super) fn with_health(mut pace: Pace, rng: &mut Rng) -> Pace {
    if pace.waves.is_empty() && pace.canary.is_none() && rng.percent(50) {
        let size = Some(Portion::Count(rng.pick(&[1, 2])));
        let soak_minutes = rng.pick(&[0, 1, 30]);
        pace.waves.push(Wave { size, soak_minutes, approval: false });
    }
    let percent = |share| Portion::percent(share).expect("between 1 and 100");
    Pace {
        health: rng.pick(&[
            HealthMode::Gate,
            HealthMode::Gate,
            HealthMode::Gate,
            HealthMode::Gate,
            HealthMode::Report,
            HealthMode::Off,
        ]),
        max_unhealthy: rng.pick(&[None, None, Some(Portion::Count(1)), Some(percent(50))]),
        ..pace
    }
}

/// How hosts are measured, and how likely an update breaks them, in percent.
pub(super) fn set_up_hosts(agents: &mut [Agent], rng: &mut Rng) {
    let breaks = rng.pick(&[0, 30, 100, 100]);
    let odd = rng.pick(&[0, 10, 10, 50, 100]);
    for agent in agents {
        let odd = rng.percent(odd);
        agent.host.instruments = match (odd, rng.percent(50)) {
            (false, _) => Instruments::All,
            (true, true) => Instruments::None,
            (true, false) => Instruments::OldAgent,
        };
        agent.breaks = (breaks, rng.fork());
    }
}

/// No waves, or up to four.
fn waves(rng: &mut Rng) -> Vec<Wave> {
    let percent = |share| Portion::percent(share).expect("between 1 and 100");
    let count = if rng.percent(50) { 0 } else { rng.between(1, 4) };
    let mut waves: Vec<Wave> = (0..count)
        .map(|_| Wave {
            size: Some(rng.pick(&[Portion::Count(1), Portion::Count(2), percent(30)])),
            soak_minutes: rng.pick(&[0, 0, 1, 30, 120]),
            approval: rng.percent(25),
        })
        .collect();
    if rng.percent(30)
        && let Some(last) = waves.last_mut()
    {
        last.size = None;
    }
    waves
}
