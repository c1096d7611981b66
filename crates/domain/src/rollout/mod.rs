//! The rollout aggregate: an order carried out on a number of servers at a given pace.
//!
//! A batch is a rollout that a user started, a schedule's run is one that the calendar started, and
//! the patch of a single server is one with a single task. `task` is the state machine of one
//! task, `phase` that of the whole rollout, `plan` decides what happens next, and `invariants`
//! checks that a rollout is consistent.
//!
//! A [`Rollout`] updates its counts and queues with every event, so that a step costs what it
//! changes and not what it looks at: a rollout over 100,000 servers is planned again after each
//! report. For the same reason it contains what the planner must know about the servers: see
//! [`Rollout::set_condition`].

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use vocab::{BatchId, HealthMode, ServerId};

mod health;
pub mod invariants;
mod pace;
mod phase;
pub mod pins;
mod plan;
#[cfg(test)]
pub(crate) mod planted;
#[cfg(test)]
mod scenarios;
mod start_order;
mod task;
mod task_counts;
mod wave;

pub use health::{
    COMPARISON_WAIT, HealthCounts, HealthMeasurement, HealthProblem, HealthProgress, HealthWatch,
    HealthWatches, PROBLEMS_MAX, SOAK_REPORT_WAIT, TaskHealth,
};
pub use pace::{APPROVAL_WAIT, Limits, OFFLINE_WAIT, Pace, WaveLimits};
pub use phase::{Change, ClockSet, HaltReason, InvalidChange, Phase, RolloutOutcome};
pub use plan::{EVENTS_MAX, Plan, WaitReason, plan, wait_reason, wait_reason_at};
pub use start_order::StartOrder;
pub use task::{
    ActiveTask, CancelReason, EndedTask, InvalidEvent, ReportedResult, TaskEvent, TaskOutcome,
    TaskSkipReason, TaskStatus, stage_limit, total_stage_limit,
};
use task::{add_time, longest_stage_limit, subtract_time};
pub use task_counts::TaskCounts;
pub use wave::{WaveApproval, WaveProgress};

/// Setting the clock back by less than this counts as a correction, not as a jump: waiting a minute
/// longer is better than moving every deadline for nothing.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_mins(1);

/// The state of a rollout as a whole; its tasks are stored separately.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutHead {
    pub id: BatchId,
    pub phase: Phase,
    pub pace: Pace,
    /// Start time, in the future or in the past.
    pub starts_at: Timestamp,
    /// No server may start after this time.
    pub start_by: Timestamp,
    /// When the last server was started.
    pub last_start: Option<Timestamp>,
    /// Number of failures that a user has reviewed and accepted by resuming.
    pub forgiven: u32,
    /// A user resumed the rollout although the canary had not succeeded.
    pub canary_waived: bool,
    /// How many tasks, from the first, are expected to install something; `None`: all of them. They
    /// are the canary, because a server with nothing to install proves nothing.
    #[serde(default)]
    pub expected: Option<u32>,
    /// The canary ended without a change on any server, and the rest started without its proof.
    #[serde(default)]
    pub canary_unchanged: bool,
    /// How far it has come through its waves.
    #[serde(default)]
    pub waves: WaveProgress,
    /// How far the health of its servers was judged.
    #[serde(default)]
    pub health: HealthProgress,
    /// The latest time at which anything happened to it.
    pub clock: Timestamp,
}

/// What the planner must know about a server in addition to its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerCondition {
    pub online: bool,
    /// The other rollout that is working on it.
    pub busy_in: Option<BatchId>,
    /// The agent reports that it is working. It may be working on an order that the engine
    /// considers lost.
    pub agent_busy: bool,
    /// When the freeze ends that covers it now.
    pub frozen_until: Option<Timestamp>,
    /// Versions are pinned, the first wave has passed, and none of its servers with the same system
    /// installed anything.
    pub unproven: bool,
}

impl ServerCondition {
    /// Online, not busy, not frozen and not without a proven version.
    pub const FREE: ServerCondition = ServerCondition {
        online: true,
        busy_in: None,
        agent_busy: false,
        frozen_until: None,
        unproven: false,
    };

    fn is_free(self) -> bool {
        self.online
            && self.busy_in.is_none()
            && !self.agent_busy
            && self.frozen_until.is_none()
            && !self.unproven
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Task {
    server: ServerId,
    status: TaskStatus,
    condition: ServerCondition,
    health: Option<Arc<TaskHealth>>,
}

/// A rollout with all its tasks. Restored from storage and updated by [`Rollout::apply_event`],
/// [`Rollout::apply_change`] and [`Rollout::set_condition`]; two rollouts with the same input are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollout {
    head: RolloutHead,
    limits: Limits,
    /// In the order in which they start. A position is an index into this list.
    tasks: Vec<Task>,
    /// Sorted by server.
    positions: Vec<(ServerId, u32)>,
    /// Positions of waiting tasks that could start.
    ready: BTreeSet<u32>,
    /// Positions of waiting tasks that cannot start: the server is offline or busy elsewhere.
    blocked: BTreeSet<u32>,
    /// Waiting tasks whose servers are frozen, earliest end first.
    frozen: BTreeSet<(Timestamp, u32)>,
    /// Positions of waiting tasks that no proven version exists for.
    unproven: BTreeSet<u32>,
    /// Tasks in progress, earliest deadline first.
    deadlines: BTreeSet<(Timestamp, u32)>,
    counts: TaskCounts,
    /// The same for the tasks that started in each wave, from the first.
    wave_counts: Vec<TaskCounts>,
    /// The health of the changed servers of each wave.
    wave_health: Vec<health::HealthCounts>,
    /// Positions of changed servers that are unhealthy.
    degraded: BTreeSet<u32>,
    control: health::ControlGroup,
    grace_period: Option<GracePeriod>,
}

/// A period in which no agent could report, and the extra time that agents get afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct GracePeriod {
    /// When agents could report again.
    since: Timestamp,
    /// How long it then takes until every agent with something to report has reported it.
    patience: SignedDuration,
}

impl GracePeriod {
    fn ends_at(self) -> Timestamp {
        add_time(self.since, self.patience)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RetryError {
    #[error("the rollout has not ended")]
    NotEnded,
    #[error("no server failed")]
    NothingFailed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    #[error("server {0} is not part of this rollout")]
    UnknownServer(ServerId),
    /// The event is invalid in the task's state.
    #[error(transparent)]
    Invalid(#[from] InvalidEvent),
}

impl Rollout {
    /// Creates a rollout over `servers` in this order, without duplicates, that starts at
    /// `starts_at`.
    pub fn new(
        id: BatchId,
        pace: Pace,
        starts_at: Timestamp,
        servers: impl IntoIterator<Item = ServerId>,
        now: Timestamp,
    ) -> Rollout {
        let mut known = BTreeSet::new();
        let targets: Vec<_> = servers
            .into_iter()
            .filter(|server| known.insert(*server))
            .map(|server| (server, TaskStatus::Waiting))
            .collect();
        let start_by = pace.start_by(starts_at, targets.len() as u32);
        let head = RolloutHead {
            id,
            phase: Phase::Scheduled,
            pace,
            starts_at,
            start_by,
            last_start: None,
            forgiven: 0,
            canary_waived: false,
            expected: None,
            canary_unchanged: false,
            waves: WaveProgress::default(),
            health: HealthProgress::default(),
            clock: now,
        };
        Rollout::restore(head, targets)
    }

    /// Declares that only the first `count` servers are expected to install something.
    pub fn with_expected_changes(mut self, count: u32) -> Rollout {
        self.head.expected = Some(count);
        self
    }

    /// Declares that nothing is known about the health of the servers in the future: every server
    /// counts as healthy.
    pub fn without_health(mut self) -> Rollout {
        self.head.pace.health = HealthMode::Off;
        self.head.health = HealthProgress::default();
        self
    }

    /// Restores a rollout from its stored `head` and `targets`. Every server counts as free until
    /// [`Rollout::set_condition`] is called for it.
    pub fn restore(
        head: RolloutHead,
        targets: impl IntoIterator<Item = (ServerId, TaskStatus)>,
    ) -> Rollout {
        let slots: Vec<_> = targets
            .into_iter()
            .map(|(server, target)| Task {
                server,
                status: target,
                condition: ServerCondition::FREE,
                health: None,
            })
            .collect();
        let numbered = || (0_u32..).zip(&slots);
        let mut places: Vec<_> = numbered().map(|(place, slot)| (slot.server, place)).collect();
        places.sort_unstable();
        let ready = numbered()
            .filter(|(_, slot)| slot.status == TaskStatus::Waiting)
            .map(|(place, _)| place)
            .collect();
        let deadlines =
            numbered().filter_map(|(place, slot)| Some((slot.status.deadline()?, place))).collect();
        let limits = head.pace.limits(slots.len() as u32);
        let mut wave_counts = vec![TaskCounts::default(); limits.waves.len()];
        for slot in &slots {
            if let Some(counts) = wave_index(slot.status).and_then(|wave| wave_counts.get_mut(wave))
            {
                counts.add(&slot.status);
            }
        }
        let counts = TaskCounts::from_tasks(slots.iter().map(|slot| &slot.status));
        Rollout {
            wave_health: vec![HealthCounts::default(); limits.waves.len()],
            degraded: BTreeSet::new(),
            control: health::ControlGroup { servers: counts.waiting, ..Default::default() },
            limits,
            wave_counts,
            counts,
            blocked: BTreeSet::new(),
            frozen: BTreeSet::new(),
            unproven: BTreeSet::new(),
            grace_period: None,
            head,
            positions: places,
            ready,
            deadlines,
            tasks: slots,
        }
    }

    /// Creates a new rollout at the same pace, with the failed servers of this ended one.
    pub fn retry(&self, id: BatchId, now: Timestamp) -> Result<Rollout, RetryError> {
        if !self.head.phase.is_ended() {
            return Err(RetryError::NotEnded);
        }
        if self.counts.failures() == 0 {
            return Err(RetryError::NothingFailed);
        }
        let failed = self.tasks.iter().filter_map(|slot| match slot.status {
            TaskStatus::Done(done) if done.outcome.is_failure() => Some(slot.server),
            _ => None,
        });
        Ok(Rollout::new(id, self.head.pace.clone(), now, failed, now))
    }

    /// Applies an event to one task. Returns the new state of the task.
    pub fn apply_event(
        &mut self,
        server: ServerId,
        event: TaskEvent,
        now: Timestamp,
    ) -> Result<TaskStatus, EventError> {
        let position = self.position(server).ok_or(EventError::UnknownServer(server))?;
        let event = event.in_phase(self.head.phase);
        let next = self.tasks[position as usize].status.apply(event, now)?;
        if matches!(event, TaskEvent::Offered { .. }) {
            self.head.last_start = Some(now);
        }
        self.head.clock = self.head.clock.max(now);
        self.set_status(position, next);
        Ok(next)
    }

    /// Applies a change to the whole rollout.
    pub fn apply_change(&mut self, change: Change, now: Timestamp) -> Result<(), InvalidChange> {
        let before = self.head.phase;
        self.head.phase = before.apply(change, self.head.starts_at <= now)?;
        if let (Phase::Halted(why), Change::Resume) = (before, change) {
            self.forgive_health(why);
            // If late reports have corrected every failure, nothing is waived.
            let failed = self.counts.failures() > self.head.forgiven;
            self.head.forgiven = self.counts.failures();
            self.head.canary_waived |= failed && before == Phase::Halted(HaltReason::CanaryFailed);
        }
        match change {
            Change::ClockWentBack { .. } => self.cap_waits(now),
            Change::ClockSet(set) => self.set_clock(set),
            Change::CanaryUnchanged => self.head.canary_unchanged = true,
            Change::WaveEnded => self.head.waves.ended_at = Some(now),
            Change::NextWave => self.open_next_wave(),
            Change::HealthExceeded => self.head.health.exceeded_at = Some(now),
            Change::HealthRecovered => self.head.health.exceeded_at = None,
            Change::Approve => self.record_approval(String::new(), None, now),
            _ => {}
        }
        self.head.clock = match change {
            Change::ClockWentBack { .. } | Change::ClockSet(_) => now,
            _ => self.head.clock.max(now),
        };
        Ok(())
    }

    /// Approves the current wave on behalf of `by`.
    pub fn approve(
        &mut self,
        by: String,
        comment: Option<String>,
        now: Timestamp,
    ) -> Result<(), InvalidChange> {
        self.apply_change(Change::Approve, now)?;
        self.record_approval(by, comment, now);
        Ok(())
    }

    fn record_approval(&mut self, by: String, comment: Option<String>, now: Timestamp) {
        let waves = &mut self.head.waves;
        let wave = waves.current;
        waves.approvals.retain(|approval| approval.wave != wave);
        waves.approvals.push(WaveApproval { wave, at: now, by, comment });
    }

    fn open_next_wave(&mut self) {
        let waves = &mut self.head.waves;
        waves.current = waves.current.saturating_add(1);
        waves.ended_at = None;
        self.head.health.unknown_waived = false;
    }

    /// Updates the condition of a server. Servers that are not part of this rollout are ignored.
    /// A rollout that overrides freezes ignores `frozen_until`.
    pub fn set_condition(&mut self, server: ServerId, mut condition: ServerCondition) {
        if self.head.pace.override_freeze.is_some() {
            condition.frozen_until = None;
        }
        if let Some(place) = self.position(server) {
            let task = &self.tasks[place as usize];
            if let Some(until) = task.condition.frozen_until {
                self.frozen.remove(&(until, place));
            }
            self.forget_health(place);
            self.tasks[place as usize].condition = condition;
            self.account_health(place);
            self.set_status(place, self.tasks[place as usize].status);
        }
    }

    /// Ends the freezes of servers that are over. The caller does this before it plans.
    pub fn end_freezes(&mut self, now: Timestamp) {
        while let Some((until, place)) = self.frozen.first().copied()
            && until <= now
        {
            let task = &self.tasks[place as usize];
            let condition = ServerCondition { frozen_until: None, ..task.condition };
            self.set_condition(task.server, condition);
        }
    }

    /// Records that the leader could receive reports only since `since`: the service or its
    /// database was down. A deadline that passed in the meantime is not the agents' fault, so no
    /// deadline counts until they have had `patience` to report. Windows follow the calendar and
    /// close as they would have.
    pub fn start_grace_period(&mut self, since: Timestamp, duration: SignedDuration) {
        self.grace_period = Some(GracePeriod { since, patience: duration });
    }

    /// Returns the positions of tasks whose deadline has passed.
    fn overdue(&self, now: Timestamp) -> impl Iterator<Item = &u32> {
        let grace_over = self.grace_period.is_none_or(|grace| grace.ends_at() <= now);
        let late = self.deadlines.iter().take_while(move |(by, _)| grace_over && *by <= now);
        late.map(|(_, place)| place)
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        let (by, _) = self.deadlines.first()?;
        Some(self.grace_period.map_or(*by, |grace| grace.ends_at().max(*by)))
    }

    /// Sets a task to its stored state, written by this process or another. Servers that are not
    /// part of this rollout are ignored.
    pub fn load_task(&mut self, server: ServerId, status: TaskStatus) {
        if let Some(place) = self.position(server) {
            self.set_status(place, status);
        }
    }

    /// Sets the head to its stored state, written by this process or another.
    pub fn load_head(&mut self, head: RolloutHead) {
        self.head = head;
    }

    /// Returns by how much the clock was set back, if it was.
    fn clock_set_back_by(&self, now: Timestamp) -> Option<SignedDuration> {
        // Deadlines show it too: none is further away than the longest limit.
        let furthest = self.deadlines.last().map_or(Timestamp::MIN, |(by, _)| *by);
        let latest = self.head.clock.max(subtract_time(furthest, longest_stage_limit()));
        let back = latest.duration_since(now);
        (back > CLOCK_TOLERANCE).then_some(back)
    }

    /// Shortens every wait that would be too long by the current clock. A wait that was correct
    /// stays correct, however often two clocks alternate; shifting every time back by the
    /// difference would shorten the waits with each alternation. A start time in the future belongs
    /// to the calendar and stays.
    fn cap_waits(&mut self, now: Timestamp) {
        let head = &mut self.head;
        if head.starts_at <= head.clock {
            let window = head.start_by.duration_since(head.starts_at);
            head.starts_at = head.starts_at.min(now);
            head.start_by = head.start_by.min(add_time(now, window));
        }
        head.last_start = head.last_start.map(|last| last.min(now));
        head.waves.ended_at = head.waves.ended_at.map(|ended| ended.min(now));
        head.health.exceeded_at = head.health.exceeded_at.map(|since| since.min(now));
        self.grace_period =
            self.grace_period.map(|grace| GracePeriod { since: grace.since.min(now), ..grace });
        for (_, place) in self.deadlines.clone() {
            let near = self.tasks[place as usize].status.with_capped_deadline(now);
            self.set_status(place, near);
        }
    }

    /// Moves every time that was taken from the clock before it was set.
    fn set_clock(&mut self, set: ClockSet) {
        let head = &mut self.head;
        if head.starts_at <= head.clock {
            let window = head.start_by.duration_since(head.starts_at);
            head.starts_at = set.convert(head.starts_at);
            head.start_by = add_time(head.starts_at, window);
        }
        head.last_start = head.last_start.map(|last| set.convert(last));
        head.waves.ended_at = head.waves.ended_at.map(|ended| set.convert(ended));
        head.health.exceeded_at = head.health.exceeded_at.map(|since| set.convert(since));
        self.grace_period =
            self.grace_period.map(|grace| GracePeriod { since: set.convert(grace.since), ..grace });
        for (_, place) in self.deadlines.clone() {
            let moved = self.tasks[place as usize].status.with_clock_set(set);
            self.set_status(place, moved);
        }
    }

    /// The only place that stores the state of a task, so that counts and queues stay consistent.
    fn set_status(&mut self, place: u32, next: TaskStatus) {
        self.forget_health(place);
        let before = std::mem::replace(&mut self.tasks[place as usize].status, next);
        self.account_health(place);
        let slot = &self.tasks[place as usize];
        self.counts.record_move(&before, &next);
        if let Some(counts) = wave_index(before).and_then(|wave| self.wave_counts.get_mut(wave)) {
            counts.remove(&before);
        }
        if let Some(counts) = wave_index(next).and_then(|wave| self.wave_counts.get_mut(wave)) {
            counts.add(&next);
        }
        // A timeout that a late result corrected leaves no failure to accept. Which failures were
        // accepted is not stored: subtracting one for each errs on the side of halting.
        if before.is_failure() && !next.is_failure() {
            self.head.forgiven = self.head.forgiven.saturating_sub(1);
        }
        if let Some(by) = before.deadline() {
            self.deadlines.remove(&(by, place));
        }
        if let Some(by) = next.deadline() {
            self.deadlines.insert((by, place));
        }
        let waits = next == TaskStatus::Waiting;
        let free = slot.condition.is_free();
        if let Some(until) = slot.condition.frozen_until {
            if waits {
                self.frozen.insert((until, place));
            } else {
                self.frozen.remove(&(until, place));
            }
        }
        set_membership(&mut self.unproven, place, waits && slot.condition.unproven);
        set_membership(&mut self.ready, place, waits && free);
        set_membership(&mut self.blocked, place, waits && !free);
    }

    fn position(&self, server: ServerId) -> Option<u32> {
        let found = self.positions.binary_search_by_key(&server, |(id, _)| *id).ok()?;
        Some(self.positions[found].1)
    }

    /// Whether a waiting server could start if pace and waves allowed it: it is online, not busy and
    /// not frozen.
    pub fn has_available(&self) -> bool {
        !self.ready.is_empty()
    }

    pub fn head(&self) -> &RolloutHead {
        &self.head
    }

    /// The pace, with percentages resolved to numbers of servers.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Number of tasks in each state.
    pub fn counts(&self) -> &TaskCounts {
        &self.counts
    }

    /// Number of tasks in each state that started in the wave with this index.
    pub fn wave_counts(&self, wave: u32) -> TaskCounts {
        self.wave_counts.get(wave as usize).copied().unwrap_or_default()
    }

    pub fn task_status(&self, server: ServerId) -> Option<TaskStatus> {
        Some(self.tasks[self.position(server)? as usize].status)
    }

    /// Every server and the state of its task, in start order.
    pub fn tasks(&self) -> impl ExactSizeIterator<Item = (ServerId, TaskStatus)> {
        self.tasks.iter().map(|slot| (slot.server, slot.status))
    }
}

impl TaskStatus {
    fn is_failure(self) -> bool {
        matches!(self, TaskStatus::Done(done) if done.outcome.is_failure())
    }

    fn deadline(self) -> Option<Timestamp> {
        match self {
            TaskStatus::Busy(busy) => Some(busy.by),
            TaskStatus::Waiting | TaskStatus::Done(_) => None,
        }
    }
}

/// Index of the wave in which a task started, if it has.
fn wave_index(status: TaskStatus) -> Option<usize> {
    (status.wave() as usize).checked_sub(1)
}

fn set_membership(set: &mut BTreeSet<u32>, place: u32, member: bool) {
    if member {
        set.insert(place);
    } else {
        set.remove(&place);
    }
}
