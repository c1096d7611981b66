//! Faults of the simulation, and actions of users.

use jiff::SignedDuration;
use vocab::{BatchId, Portion};

use super::agent::{Agent, Health};
use super::chance::Chance;
use super::reach::Trial;
use super::world::{Happening, World};
use crate::rollout::{Change, Pace};

impl World {
    pub(super) fn is_faulty(&self) -> bool {
        self.now.duration_since(self.began) < self.faulty
    }

    pub(super) fn fault(&mut self) {
        let agent = self.some_agent();
        let back = SignedDuration::from_secs(self.chance.between(1, 3_600));
        match self.chance.between(0, 12) {
            0..=2 => {
                self.control.reached.count(Trial::Vanished);
                self.agents[agent].connected = false;
                self.after(back, Happening::Reconnect { agent });
            }
            3..=5 if self.agents[agent].health == Health::Up => {
                self.control.reached.count(Trial::Crashed);
                self.agents[agent].crash(Health::Crashed);
                self.after(back, Happening::Restart { agent });
            }
            6 => self.someone_dies(agent),
            7 | 8 => {
                self.control_is_up = false;
                let back = SignedDuration::from_secs(self.chance.between(0, 1_200));
                self.after(back, Happening::ControlBack);
            }
            9 | 10 if self.chance.percent(25) => self.clock_jumps(),
            12 => {
                let losers = self.agents.iter_mut().filter(|agent| agent.is_at_work());
                let lost = losers.filter_map(Agent::loses_record).next();
                self.control.trace(|| format!("the record of {lost:?} was lost"));
            }
            11 if self.chance.percent(20) => self.restored(),
            11 => {
                self.control.back_up();
                self.settings_backed_up = self.settings;
            }
            _ => {}
        }
    }

    fn some_agent(&mut self) -> usize {
        self.chance.between(0, self.agents.len() as i64 - 1) as usize
    }

    /// A host that is rebooting never comes back; if none is rebooting, any host may die.
    fn someone_dies(&mut self, any: usize) {
        let rebooting = self.agents.iter().position(super::agent::Agent::is_rebooting);
        if rebooting.is_some() {
            self.control.reached.count(Trial::RebootHung);
        }
        if rebooting.is_some() || self.chance.percent(20) {
            self.agents[rebooting.unwrap_or(any)].crash(Health::Dead);
        }
    }

    fn clock_jumps(&mut self) {
        let minute = 60;
        let jump = SignedDuration::from_secs(self.chance.pick(&[
            minute / 2,
            minute * 2,
            minute * 60,
            minute * 60 * 24,
            minute * 60 * 24 * 3_650,
        ]));
        let set_right = self.skew != SignedDuration::ZERO && self.chance.percent(60);
        let next = match (set_right, self.chance.percent(50)) {
            (true, _) => SignedDuration::ZERO,
            (false, true) => self.skew + jump,
            (false, false) => self.skew - jump,
        };
        self.control.reached.count(match next > self.skew {
            true => Trial::ClockForward,
            false => Trial::ClockBack,
        });
        let by = next - self.skew;
        self.skew = next;
        let wall = self.wall();
        self.control.trace(|| format!("the clock shows {wall}"));
        self.settings += 1;
        // A running control plane notices that the clock was set; a stopped one does not.
        if self.control_is_up {
            self.control.clock_was_set(by, self.moment());
            self.look();
        } else {
            self.jumps += 1;
            self.forward += u32::from(by.is_positive());
        }
    }

    /// Messages in transit are dropped, and agents notice that their counter is ahead.
    fn restored(&mut self) {
        let at = self.moment();
        if self.control.restore(at) {
            // The restored state does not know that the clock was set.
            if self.settings != self.settings_backed_up {
                self.jumps += 1;
                self.forward += 1;
            }
            self.was_restored = true;
            self.queue.retain(|_, happening| !happening.is_message());
            for agent in &mut self.agents {
                agent.says_all_again();
            }
            self.look();
        }
    }

    /// The network recovers and crashed agents are restarted; dead hosts stay dead. A clock may
    /// stay wrong, but if a rollout waits for its start time, it is corrected.
    pub(super) fn faults_end(&mut self) {
        self.loss = 0;
        let wall = self.wall();
        if self.control.rollouts().any(|rollout| rollout.head().starts_at > wall) {
            self.forward += 1;
            self.jumps += 1;
            self.settings += 1;
            self.skew = SignedDuration::ZERO;
            self.look();
        }
        for agent in 0..self.agents.len() {
            self.agents[agent].connected = true;
            if self.agents[agent].health == Health::Crashed {
                self.after(SignedDuration::ZERO, Happening::Restart { agent });
            }
        }
    }

    pub(super) fn person(&mut self) {
        if !self.control_is_up {
            return;
        }
        let of = BatchId::new(self.began, self.chance.pick(&[1, 2]));
        let at = self.moment();
        match self.chance.between(0, 19) {
            0..=3 => _ = self.control.change(of, Change::Pause, at),
            4..=11 => _ = self.control.change(of, Change::Resume, at),
            // Usually users cancel what has only just started.
            12 | 13 => {
                let of = self.control.just_ordered().unwrap_or(of);
                self.control.change(of, Change::Cancel, at);
            }
            14 => {
                let agent = self.some_agent();
                let server = self.agents[agent].server;
                self.removed.insert(server);
                self.control.remove(server, at);
            }
            15..=18 => self.retry(of),
            _ => {}
        }
        self.look();
    }

    /// At most once for each rollout.
    fn retry(&mut self, of: BatchId) {
        let at = self.moment();
        let Some(ended) = self.control.rollouts().find(|rollout| rollout.head().id == of) else {
            return;
        };
        let id = BatchId::new(self.began, u128::from(self.queued) << 8);
        if let (false, Ok(again)) = (self.retried.contains(&of), ended.retry(id, at.wall)) {
            self.retried.insert(of);
            self.control.reached.count(Trial::Retried);
            self.control.create(again, SignedDuration::ZERO, at);
        }
    }
}

pub(super) fn pace(chance: &mut Chance) -> Pace {
    let percent = |share| Portion::percent(share).expect("between 1 and 100");
    Pace {
        stagger_minutes: chance.pick(&[0, 0, 1, 5, 20]),
        max_parallel: chance.pick(&[None, None, Some(1), Some(3)]),
        canary: chance.pick(&[None, None, Some(Portion::Count(1)), Some(percent(20))]),
        max_failures: chance.pick(&[None, Some(Portion::Count(1)), Some(percent(25))]),
        window_minutes: chance.pick(&[Some(15), Some(60), Some(240), Some(240), None]),
    }
}
