//! The health of servers after their change, and whether a wave passes.
//!
//! Agents measure what is worse than before: after the change, and during and at the end of the
//! soak. Under [`HealthMode::Gate`] a wave passes only if no more of its servers than
//! `max_unhealthy` are unhealthy, and at least one was measured. Servers that have not been changed
//! yet are the control group: what is worse there as well does not come from the change.
//!
//! A server whose health is unknown (an older agent, or a host where nothing can be measured) never
//! counts as healthy.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use vocab::{HealthMode, HealthProblemKind, HealthState, Line};

use super::phase::{Change, HaltReason};
use super::task::add_time;
use super::{Limits, Rollout, RolloutHead, ServerCondition, TaskOutcome, TaskStatus};

/// Maximum number of problems that are kept per server.
pub const PROBLEMS_MAX: usize = 20;
/// How long a rollout with too many unhealthy servers waits for the reports of the control group,
/// before it blames the change.
pub const COMPARISON_WAIT: SignedDuration = SignedDuration::from_mins(5);
/// How long after the soak a wave waits for the last reports of its servers.
pub const SOAK_REPORT_WAIT: SignedDuration = SignedDuration::from_mins(15);
/// A problem is fleet-wide if at least one in this many servers of the control group has it.
const CONTROL_SHARE: u32 = 10;

/// Something that is worse than before: `unit_failed`, `nginx.service`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HealthProblem {
    pub kind: HealthProblemKind,
    pub name: Line,
}

/// The last known health of one server of a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskHealth {
    pub state: HealthState,
    /// Whether it compares with the time before the change of this rollout. Otherwise the server
    /// was waiting, and it compares with the beginning of the watch.
    pub changed: bool,
    /// Whether it was reported after the soak of the server's wave.
    #[serde(default)]
    pub soaked: bool,
    /// What is worse, sorted; at most [`PROBLEMS_MAX`].
    #[serde(default)]
    pub problems: Vec<HealthProblem>,
    /// Why it could not be measured.
    #[serde(default)]
    pub not_measured: Option<Line>,
    /// When the measurement was taken that it compares with, by the host's clock.
    pub baseline_at: Timestamp,
    /// When the service received it.
    pub reported_at: Timestamp,
}

/// What an agent measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthMeasurement {
    pub problems: Vec<HealthProblem>,
    pub not_measured: Option<Line>,
    /// When the measurement was taken that it compares with, by the host's clock.
    pub baseline_at: Timestamp,
}

impl TaskHealth {
    /// The health that the result of an order contains.
    pub fn from_result(measurement: HealthMeasurement, now: Timestamp) -> TaskHealth {
        TaskHealth::new(measurement, true, false, now)
    }

    /// The health of a server after a report from its watch; `None` if the report says nothing
    /// about this task. `total`: number of tasks of the rollout.
    pub fn from_watch(
        head: &RolloutHead,
        total: u32,
        status: TaskStatus,
        before: Option<&TaskHealth>,
        measurement: HealthMeasurement,
        now: Timestamp,
    ) -> Option<TaskHealth> {
        match status {
            TaskStatus::Waiting => {
                let watched = head.pace.health == HealthMode::Gate && head.last_start.is_some();
                watched.then(|| TaskHealth::new(measurement, false, false, now))
            }
            TaskStatus::Busy(_) => None,
            TaskStatus::Done(done) => {
                let before = before.filter(|before| before.changed)?;
                // A watch that began after the change cannot say that nothing is worse than before
                // the change, but what is worse since then is.
                let comparable = before.baseline_at == measurement.baseline_at;
                if !comparable && measurement.problems.is_empty() {
                    return None;
                }
                let soak_is_over = done.wave == head.waves.number()
                    && head.soak_ends_at(total).is_some_and(|end| end <= now);
                let mut after =
                    TaskHealth::new(measurement, true, before.soaked || soak_is_over, now);
                after.baseline_at = before.baseline_at;
                Some(after)
            }
        }
    }

    /// Evaluates a measurement. A problem is a fact, even if something else could not be measured.
    fn new(
        measurement: HealthMeasurement,
        changed: bool,
        soaked: bool,
        now: Timestamp,
    ) -> TaskHealth {
        let HealthMeasurement { mut problems, not_measured, baseline_at } = measurement;
        problems.sort();
        problems.dedup();
        problems.truncate(PROBLEMS_MAX);
        let state = match (&not_measured, problems.is_empty()) {
            (_, false) => HealthState::Degraded,
            (Some(_), true) => HealthState::NotMeasured,
            (None, true) => HealthState::Healthy,
        };
        TaskHealth { state, changed, soaked, problems, not_measured, baseline_at, reported_at: now }
    }
}

/// How far the health of a rollout was judged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthProgress {
    /// Since when more servers than allowed are unhealthy.
    pub exceeded_at: Option<Timestamp>,
    /// Number of unhealthy servers per wave that a user has accepted by resuming.
    pub forgiven: Vec<u32>,
    /// A user resumed the rollout although the health of the current wave was unknown.
    pub unknown_waived: bool,
}

impl HealthProgress {
    pub(super) fn forgiven(&self, wave: usize) -> u32 {
        self.forgiven.get(wave).copied().unwrap_or(0)
    }

    pub(super) fn forgive_one_less(&mut self, wave: usize) {
        if let Some(forgiven) = self.forgiven.get_mut(wave) {
            *forgiven = forgiven.saturating_sub(1);
        }
    }
}

/// The number of changed servers by health.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HealthCounts {
    pub healthy: u32,
    pub degraded: u32,
    pub not_measured: u32,
    /// Healthy ones that reported after the soak.
    pub healthy_soaked: u32,
    /// Degraded ones that reported after the soak.
    pub degraded_soaked: u32,
}

impl HealthCounts {
    pub(super) fn add(&mut self, health: &TaskHealth, by: i64) {
        let change = |counter: &mut u32| *counter = counter.saturating_add_signed(by as i32);
        match health.state {
            HealthState::Healthy => {
                change(&mut self.healthy);
                if health.soaked {
                    change(&mut self.healthy_soaked);
                }
            }
            HealthState::Degraded => {
                change(&mut self.degraded);
                if health.soaked {
                    change(&mut self.degraded_soaked);
                }
            }
            HealthState::NotMeasured => change(&mut self.not_measured),
        }
    }

    fn measured(self) -> u32 {
        self.healthy + self.degraded
    }

    fn soaked(self) -> u32 {
        self.healthy_soaked + self.degraded_soaked
    }
}

/// The servers that have not been changed and can report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ControlGroup {
    pub(super) servers: u32,
    /// How many of them have each problem.
    pub(super) problems: BTreeMap<HealthProblem, u32>,
}

impl ControlGroup {
    pub(super) fn add(&mut self, health: Option<&TaskHealth>) {
        self.servers += 1;
        for problem in control_problems(health) {
            *self.problems.entry(problem.clone()).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, health: Option<&TaskHealth>) {
        self.servers -= 1;
        for problem in control_problems(health) {
            if let Some(count) = self.problems.get_mut(problem) {
                *count -= 1;
                if *count == 0 {
                    self.problems.remove(problem);
                }
            }
        }
    }

    fn has(&self, problem: &HealthProblem) -> bool {
        let affected = self.problems.get(problem).copied().unwrap_or(0);
        affected > 0 && u64::from(affected) * u64::from(CONTROL_SHARE) >= u64::from(self.servers)
    }
}

fn control_problems(health: Option<&TaskHealth>) -> impl Iterator<Item = &HealthProblem> {
    health.into_iter().filter(|health| !health.changed).flat_map(|health| &health.problems)
}

/// Whether a server belongs to the control group.
pub(super) fn is_control(status: &TaskStatus, condition: &ServerCondition) -> bool {
    *status == TaskStatus::Waiting && condition.online
}

/// Whether the health after the change counts for the wave of a task.
pub(super) fn counts_for_wave(status: &TaskStatus, health: &TaskHealth) -> bool {
    health.changed
        && matches!(status, TaskStatus::Done(done) if !matches!(done.outcome, TaskOutcome::Canceled(_)))
}

/// What the health of its servers means for a running rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HealthGate {
    /// It does not prevent anything.
    Open,
    /// No server starts, and no wave ends, until then.
    Hold {
        until: Timestamp,
    },
    Change(Change),
}

/// Judges the current wave and those before it: a late result counts too.
pub(super) fn judge(rollout: &Rollout, now: Timestamp) -> HealthGate {
    let head = &rollout.head;
    if head.pace.health != HealthMode::Gate {
        return HealthGate::Open;
    }
    let waves = 0..=head.waves.current.min(rollout.limits.waves.len() as u32 - 1);
    let Some(wave) = waves.into_iter().find(|wave| exceeds(rollout, *wave)) else {
        return match head.health.exceeded_at {
            Some(_) => HealthGate::Change(Change::HealthRecovered),
            None => HealthGate::Open,
        };
    };
    let number = wave.saturating_add(1);
    if is_fleet_wide(rollout, wave) {
        return HealthGate::Change(Change::Halt(HaltReason::FleetWideDegradation { wave: number }));
    }
    let until = head
        .health
        .exceeded_at
        .map(|since| rollout.after_grace_period(add_time(since, COMPARISON_WAIT)));
    match until {
        // Nothing can be compared, or everyone had the time to report.
        _ if rollout.control.servers == 0 => {}
        Some(until) if until <= now => {}
        Some(until) => return HealthGate::Hold { until },
        None => return HealthGate::Change(Change::HealthExceeded),
    }
    HealthGate::Change(Change::Halt(HaltReason::HealthDegraded { wave: number }))
}

/// Judges a wave that would pass.
pub(super) fn judge_passed_wave(rollout: &Rollout, now: Timestamp) -> HealthGate {
    let (head, wave) = (&rollout.head, rollout.head.waves.current);
    let changed = rollout.wave_counts(wave).succeeded > 0;
    if head.pace.health != HealthMode::Gate || head.health.unknown_waived || !changed {
        return HealthGate::Open;
    }
    let counts = rollout.wave_health(wave);
    let limits = rollout.limits.waves[wave as usize];
    let unknown = match head.waves.ended_at {
        None => counts.measured() == 0,
        Some(ended_at) => {
            let until = add_time(add_time(ended_at, limits.soak), SOAK_REPORT_WAIT);
            let until = rollout.after_grace_period(until);
            if counts.soaked() < counts.measured() && now < until {
                return HealthGate::Hold { until };
            }
            // Healthy before, and silent since.
            let silent = counts.healthy - counts.healthy_soaked;
            let unproven = counts.degraded + silent;
            let forgiven = head.health.forgiven(wave as usize);
            counts.soaked() == 0 || unproven.saturating_sub(forgiven) > limits.unhealthy
        }
    };
    match unknown {
        true => {
            let reason = HaltReason::HealthUnknown { wave: wave.saturating_add(1) };
            HealthGate::Change(Change::Halt(reason))
        }
        false => HealthGate::Open,
    }
}

/// Whether more servers of this wave than allowed are unhealthy.
fn exceeds(rollout: &Rollout, wave: u32) -> bool {
    let degraded = rollout.wave_health(wave).degraded;
    is_over_limit(&rollout.head, &rollout.limits, wave, degraded)
}

fn is_over_limit(head: &RolloutHead, limits: &Limits, wave: u32, degraded: u32) -> bool {
    let wave = wave as usize;
    degraded.saturating_sub(head.health.forgiven(wave)) > limits.waves[wave].unhealthy
}

/// Whether the wave would be within its limits without the servers of which every problem also
/// affects the control group.
fn is_fleet_wide(rollout: &Rollout, wave: u32) -> bool {
    let own = rollout.degraded.iter().filter(|place| {
        let task = &rollout.tasks[**place as usize];
        let problems = task.health.iter().flat_map(|health| &health.problems);
        task.status.wave() == wave + 1 && !problems.into_iter().all(|it| rollout.control.has(it))
    });
    let own = u32::try_from(own.count()).unwrap_or(u32::MAX);
    !is_over_limit(&rollout.head, &rollout.limits, wave, own)
}

impl Rollout {
    /// Sets the last known health of a server. Servers that are not part of this rollout are
    /// ignored.
    pub fn set_health(&mut self, server: vocab::ServerId, health: Option<Arc<TaskHealth>>) {
        if let Some(place) = self.position(server) {
            let was_degraded = self.degraded.contains(&place);
            self.forget_health(place);
            self.tasks[place as usize].health = health;
            self.account_health(place);
            let wave = self.tasks[place as usize].status.wave();
            if was_degraded && !self.degraded.contains(&place) {
                self.head.health.forgive_one_less((wave as usize).wrapping_sub(1));
            }
        }
    }

    /// Number of changed servers by health that started in the wave with this index.
    pub fn wave_health(&self, wave: u32) -> HealthCounts {
        self.wave_health.get(wave as usize).copied().unwrap_or_default()
    }

    /// The last known health of a server.
    pub fn task_health(&self, server: vocab::ServerId) -> Option<&Arc<TaskHealth>> {
        self.tasks[self.position(server)? as usize].health.as_ref()
    }

    /// Takes a task out of the counts, before its state, condition or health changes.
    pub(super) fn forget_health(&mut self, place: u32) {
        let task = &self.tasks[place as usize];
        if is_control(&task.status, &task.condition) {
            self.control.remove(task.health.as_deref());
        }
        if let Some(health) = &task.health
            && counts_for_wave(&task.status, health)
        {
            let wave = (task.status.wave() as usize).wrapping_sub(1);
            if let Some(counts) = self.wave_health.get_mut(wave) {
                counts.add(health, -1);
            }
            self.degraded.remove(&place);
        }
    }

    /// Adds a task to the counts, after its state, condition or health changed.
    pub(super) fn account_health(&mut self, place: u32) {
        let task = &self.tasks[place as usize];
        if is_control(&task.status, &task.condition) {
            self.control.add(task.health.as_deref());
        }
        if let Some(health) = &task.health
            && counts_for_wave(&task.status, health)
        {
            let wave = (task.status.wave() as usize).wrapping_sub(1);
            if let Some(counts) = self.wave_health.get_mut(wave) {
                counts.add(health, 1);
                if health.state == HealthState::Degraded {
                    self.degraded.insert(place);
                }
            }
        }
    }

    /// The later one of this time and the end of the grace period.
    pub(super) fn after_grace_period(&self, at: Timestamp) -> Timestamp {
        self.grace_period.map_or(at, |grace| grace.ends_at().max(at))
    }

    /// A user resumes: the health so far is accepted.
    pub(super) fn forgive_health(&mut self, halted: HaltReason) {
        let forgiven = self.wave_health.iter().map(|counts| counts.degraded).collect();
        let health = &mut self.head.health;
        (health.forgiven, health.exceeded_at) = (forgiven, None);
        health.unknown_waived |= matches!(halted, HaltReason::HealthUnknown { .. });
    }
}

/// Until when the agents of a rollout watch the health of their hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthWatch {
    Off,
    /// Until the end of the soak.
    Until(Timestamp),
    /// As long as the wave is in progress; when it ends is not known yet.
    Open,
}

impl RolloutHead {
    /// The end of the soak of the current wave, if it soaks or has soaked.
    pub fn soak_ends_at(&self, total: u32) -> Option<Timestamp> {
        let waves = self.pace.limits(total).waves;
        let wave = waves.get(self.waves.current as usize)?;
        self.waves.ended_at.map(|ended_at| add_time(ended_at, wave.soak))
    }

    /// Which servers watch their health, and until when. Changed servers of a wave that another one
    /// follows do, and under [`HealthMode::Gate`] those that wait too.
    pub fn health_watches(&self, total: u32) -> HealthWatches {
        use super::Phase::{Halted, Paused, Running};
        let waves = self.pace.limits(total).waves.len();
        let is_last = self.waves.current as usize + 1 >= waves;
        let watch = match (self.phase, self.soak_ends_at(total)) {
            (Running | Paused | Halted(_), Some(until)) => HealthWatch::Until(until),
            (Running, None) => HealthWatch::Open,
            _ => HealthWatch::Off,
        };
        let watch_if = |holds| if holds { watch } else { HealthWatch::Off };
        let mode = self.pace.health;
        HealthWatches {
            waiting: watch_if(mode == HealthMode::Gate && self.last_start.is_some()),
            changed: watch_if(mode != HealthMode::Off && !is_last),
            wave: self.waves.number(),
        }
    }
}

/// The watches of a rollout, for servers in each state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthWatches {
    waiting: HealthWatch,
    changed: HealthWatch,
    /// Number of the wave whose changed servers are watched.
    wave: u32,
}

impl HealthWatches {
    /// The watch of a server whose task has this state.
    pub fn for_task(&self, status: TaskStatus) -> HealthWatch {
        match status {
            TaskStatus::Waiting => self.waiting,
            TaskStatus::Done(done)
                if done.wave == self.wave
                    && matches!(done.outcome, TaskOutcome::Succeeded | TaskOutcome::Failed(_)) =>
            {
                self.changed
            }
            TaskStatus::Busy(_) | TaskStatus::Done(_) => HealthWatch::Off,
        }
    }
}
