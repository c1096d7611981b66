//! The planner: decides what a rollout does next.
//!
//! A pure function of its arguments: no clock, no database, no randomness. `task` and `phase`
//! define the effect of each step. The caller saves and applies the steps of a plan and plans again
//! until nothing is left; then it waits for new events or for `wake_at`.
//!
//! A plan contains one kind of event, because each kind affects the next decision: timeouts must
//! count as failures before the planner decides whether another server may start.

use jiff::Timestamp;
use vocab::{BatchId, ServerId};

use super::health::{self, HealthGate};
use super::pace::Limits;
use super::phase::{Change, HaltReason, Phase, RolloutOutcome};
use super::task::{TaskEvent, TaskStatus, add_time};
use super::wave::{self, Tallies, WaveGate};
use super::{Rollout, RolloutHead, TaskCounts};

/// Maximum number of tasks that one plan moves. It bounds a transaction, not the rollout: the rest
/// follows immediately with the next plan.
pub const EVENTS_MAX: usize = 1_000;

/// What to do now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The change of the whole rollout.
    pub change: Option<Change>,
    /// The events of individual tasks.
    pub events: Vec<(ServerId, TaskEvent)>,
    /// Why no available server starts; [`wait_reason()`] answers this for a single server.
    pub wait_reason: Option<WaitReason>,
    /// When to plan again if nothing happens before. `None`: the rollout is over.
    pub wake_at: Option<Timestamp>,
}

/// Why a waiting server does not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitReason {
    /// The start time has not come.
    Scheduled {
        at: Timestamp,
    },
    /// A user paused the rollout.
    Paused,
    /// The rollout halted.
    Halted(HaltReason),
    Offline,
    /// Another rollout is working on the server.
    BusyElsewhere(BatchId),
    /// The agent is working on an order that the engine considered lost.
    AgentBusy,
    /// When the freeze that covers the server ends.
    Freeze {
        until: Timestamp,
    },
    /// The current wave needs an approval.
    Approval,
    /// The current wave soaks.
    Soak {
        /// When the next wave may start.
        until: Timestamp,
    },
    /// The health of the current wave is being judged.
    Health,
    /// The servers of the current wave have not ended.
    Wave,
    /// Not all canaries have succeeded.
    Canary,
    /// The maximum number of tasks is in progress.
    Parallel,
    /// The previous server started too recently.
    Stagger {
        /// When the next server may start.
        until: Timestamp,
    },
}

impl Plan {
    /// Whether there is nothing to do but wait.
    pub fn is_idle(&self) -> bool {
        self.change.is_none() && self.events.is_empty()
    }
}

/// Decides what happens next.
pub fn plan(rollout: &Rollout, now: Timestamp) -> Plan {
    let head = &rollout.head;
    if let Some(by) = rollout.clock_set_back_by(now) {
        return change_plan(Change::ClockWentBack { by }, now);
    }
    if rollout.counts.unfinished() == 0 {
        let end = rollout_outcome(&rollout.counts);
        return match head.phase {
            Phase::Ended(known) if known == end => Plan::default(),
            _ => change_plan(Change::End(end), now),
        };
    }
    if let Some(plan) = events_plan(rollout, rollout.overdue(now), TaskEvent::DeadlinePassed, now) {
        return plan;
    }
    let waiting = rollout.ready.iter().chain(&rollout.blocked);
    let end_waiting = match head.phase {
        Phase::Canceling => Some(TaskEvent::Canceled),
        _ if head.start_by <= now => Some(TaskEvent::WindowClosed),
        _ => None,
    };
    if let Some(plan) = end_waiting.and_then(|event| events_plan(rollout, waiting, event, now)) {
        return plan;
    }
    match head.phase {
        Phase::Scheduled if head.starts_at <= now => change_plan(Change::Start, now),
        Phase::Running => plan_running(rollout, now),
        Phase::Scheduled
        | Phase::AwaitingApproval
        | Phase::Paused
        | Phase::Halted(_)
        | Phase::Canceling => idle_plan(rollout),
        // A head that was saved without its tasks: they still have to end.
        Phase::Ended(_) => idle_plan(rollout),
    }
}

/// Returns why `server` waits, if it does.
pub fn wait_reason(rollout: &Rollout, server: ServerId, now: Timestamp) -> Option<WaitReason> {
    let position = rollout.position(server)?;
    let slot = &rollout.tasks[position as usize];
    if slot.status != TaskStatus::Waiting {
        return None;
    }
    let (head, limits) = (&rollout.head, &rollout.limits);
    let in_wave = rollout.wave_counts(head.waves.current);
    let tallies = Tallies { all: &rollout.counts, wave: &in_wave };
    phase_wait_reason(head)
        .or_else(|| (!slot.condition.online).then_some(WaitReason::Offline))
        .or_else(|| slot.condition.busy_in.map(WaitReason::BusyElsewhere))
        .or_else(|| slot.condition.agent_busy.then_some(WaitReason::AgentBusy))
        .or_else(|| slot.condition.frozen_until.map(|until| WaitReason::Freeze { until }))
        .or_else(|| pace_wait_reason(head, limits, tallies, position, now))
}

/// Returns why an available server at `position` in the start order waits, from the head and the
/// counts alone: of all tasks, and of those that started in the current wave. The cost is the same
/// for ten servers and for 100,000.
pub fn wait_reason_at(
    head: &RolloutHead,
    tally: &TaskCounts,
    in_wave: &TaskCounts,
    place: u32,
    now: Timestamp,
) -> Option<WaitReason> {
    let limits = head.pace.limits(tally.total());
    let tallies = Tallies { all: tally, wave: in_wave };
    phase_wait_reason(head).or_else(|| pace_wait_reason(head, &limits, tallies, place, now))
}

fn pace_wait_reason(
    head: &RolloutHead,
    limits: &Limits,
    tallies: Tallies<'_>,
    place: u32,
    now: Timestamp,
) -> Option<WaitReason> {
    let judged = head.health.exceeded_at.is_some().then_some(WaitReason::Health);
    let blocked = judged.or_else(|| startable_count(head, limits, tallies, now).err());
    let is_expected = head.expected.is_none_or(|expected| place < expected);
    let must_wait = !is_expected && only_replacements_start(head, limits, tallies.all);
    blocked.or_else(|| must_wait.then(|| first_wave_reason(head)))
}

fn plan_running(rollout: &Rollout, now: Timestamp) -> Plan {
    let (head, limits, tally) = (&rollout.head, &rollout.limits, &rollout.counts);
    if let Some(why) = halt_reason(rollout) {
        return change_plan(Change::Halt(why), now);
    }
    // The first wave decides which versions the others install. A server without one never starts.
    let unproven = rollout.unproven.iter().filter(|_| head.waves.current > 0);
    if let Some(plan) = events_plan(rollout, unproven, TaskEvent::VersionUnproven, now) {
        return plan;
    }
    match health::judge(rollout, now) {
        HealthGate::Open => {}
        HealthGate::Hold { until } => return hold_plan(rollout, until),
        HealthGate::Change(change) => return change_plan(change, now),
    }
    let in_wave = rollout.wave_counts(head.waves.current);
    let tallies = Tallies { all: tally, wave: &in_wave };
    let change = match wave_gate(head, limits, tallies, now) {
        WaveGate::NeedsApproval => Some(Change::AskApproval),
        WaveGate::Ended => Some(Change::WaveEnded),
        WaveGate::Passed => match health::judge_passed_wave(rollout, now) {
            HealthGate::Open => Some(Change::NextWave),
            HealthGate::Hold { until } => return hold_plan(rollout, until),
            HealthGate::Change(change) => Some(change),
        },
        WaveGate::Soaking { .. } | WaveGate::Open(_) => None,
    };
    if let Some(change) = change {
        return change_plan(change, now);
    }
    let replaces = only_replacements_start(head, limits, tally);
    let expected = head.expected.unwrap_or(u32::MAX);
    // No server is left that could replace a canary that had nothing to install.
    let unproven = replaces && rollout.ready.first().is_some_and(|place| *place >= expected);
    if unproven && tally.in_progress() == 0 {
        return change_plan(Change::CanaryUnchanged, now);
    }
    match startable_count(head, limits, tallies, now) {
        Ok(_) if unproven => idle_plan(rollout).with_wait_reason(first_wave_reason(head)),
        Ok(room) => {
            // This many servers may start whether they are expected to install something or not;
            // the others are replacements. Servers that are expected to install something come
            // first.
            let any = match waits_for_canary(head, limits, tally) {
                true => limits.canary.saturating_sub(tally.successes() + tally.in_progress()),
                false => u32::MAX,
            };
            let first = (0_u32..).zip(rollout.ready.iter().take(room));
            let first = first.filter(|(nth, place)| *nth < any || **place < expected);
            let offered = TaskEvent::Offered { wave: head.waves.number() };
            events_plan(rollout, first.map(|(_, place)| place), offered, now)
                .unwrap_or_else(|| idle_plan(rollout))
        }
        Err(held) => idle_plan(rollout).with_wait_reason(held),
    }
}

fn halt_reason(rollout: &Rollout) -> Option<HaltReason> {
    let new_failures = rollout.counts.failures().saturating_sub(rollout.head.forgiven);
    if new_failures > 0 && canary_incomplete(&rollout.head, &rollout.limits, &rollout.counts) {
        return Some(HaltReason::CanaryFailed);
    }
    (new_failures >= rollout.limits.failures).then_some(HaltReason::TooManyFailures)
}

/// Whether fewer servers than the canary requires have installed something successfully. A server
/// that had nothing to install proves nothing about the update.
///
/// The first servers to start are the canary, whichever they are: one that is offline or was
/// removed must not keep the rest waiting.
fn canary_incomplete(head: &RolloutHead, limits: &Limits, tally: &TaskCounts) -> bool {
    !head.canary_waived && tally.succeeded < limits.canary
}

/// Whether the rest waits for the canary.
fn waits_for_canary(head: &RolloutHead, limits: &Limits, tally: &TaskCounts) -> bool {
    canary_incomplete(head, limits, tally) && !head.canary_unchanged && head.waves.current == 0
}

fn wave_gate(
    head: &RolloutHead,
    limits: &Limits,
    tallies: Tallies<'_>,
    now: Timestamp,
) -> WaveGate {
    wave::gate(head, limits, tallies, !waits_for_canary(head, limits, tallies.all), now)
}

/// What the other servers wait for while the first wave is in progress.
fn first_wave_reason(head: &RolloutHead) -> WaitReason {
    if head.pace.waves.is_empty() { WaitReason::Canary } else { WaitReason::Wave }
}

/// Whether the canary is complete except for servers that had nothing to install: only servers that
/// are expected to install something may replace them.
fn only_replacements_start(head: &RolloutHead, limits: &Limits, tally: &TaskCounts) -> bool {
    waits_for_canary(head, limits, tally)
        && tally.successes() + tally.in_progress() >= limits.canary
}

/// Returns how many servers may start now, or what prevents it.
fn startable_count(
    head: &RolloutHead,
    limits: &Limits,
    tallies: Tallies<'_>,
    now: Timestamp,
) -> Result<usize, WaitReason> {
    let tally = tallies.all;
    let in_progress = tally.in_progress();
    let left_in_wave = match wave_gate(head, limits, tallies, now) {
        WaveGate::Open(left) => left,
        WaveGate::NeedsApproval => return Err(WaitReason::Approval),
        WaveGate::Soaking { until } => return Err(WaitReason::Soak { until }),
        // Its last reports are missing.
        WaveGate::Passed if head.waves.ended_at.is_some() => return Err(WaitReason::Health),
        WaveGate::Ended | WaveGate::Passed => 0,
    };
    if left_in_wave == 0 {
        return Err(WaitReason::Wave);
    }
    let mut free_slots = limits.parallel.saturating_sub(in_progress).min(left_in_wave);
    if waits_for_canary(head, limits, tally) {
        let canaries = limits.canary.saturating_sub(tally.succeeded + in_progress);
        if canaries == 0 {
            return Err(first_wave_reason(head));
        }
        free_slots = free_slots.min(canaries);
    }
    if free_slots == 0 {
        return Err(WaitReason::Parallel);
    }
    if !limits.stagger.is_zero() {
        free_slots = 1;
        let until = head.last_start.map(|last| add_time(last, limits.stagger));
        if let Some(until) = until.filter(|until| *until > now) {
            return Err(WaitReason::Stagger { until });
        }
    }
    Ok(free_slots as usize)
}

fn phase_wait_reason(head: &RolloutHead) -> Option<WaitReason> {
    match head.phase {
        Phase::Scheduled => Some(WaitReason::Scheduled { at: head.starts_at }),
        Phase::AwaitingApproval => Some(WaitReason::Approval),
        Phase::Paused => Some(WaitReason::Paused),
        Phase::Halted(why) => Some(WaitReason::Halted(why)),
        Phase::Running | Phase::Canceling | Phase::Ended(_) => None,
    }
}

/// Returns the overall result of an ended rollout. A removed server counts neither as a success nor
/// as a failure.
fn rollout_outcome(tally: &TaskCounts) -> RolloutOutcome {
    let unsuccessful = tally.failures() + tally.not_applicable;
    match tally {
        TaskCounts { canceled: 1.., .. } => RolloutOutcome::Canceled,
        TaskCounts { expired: 1.., .. } => RolloutOutcome::Expired,
        _ if unsuccessful > 0 && tally.successes() > 0 => RolloutOutcome::CompletedWithErrors,
        _ if unsuccessful > 0 => RolloutOutcome::Failed,
        TaskCounts { removed: 1.., .. } if tally.successes() == 0 => RolloutOutcome::Canceled,
        _ => RolloutOutcome::Succeeded,
    }
}

fn change_plan(change: Change, now: Timestamp) -> Plan {
    Plan { change: Some(change), wake_at: Some(now), ..Plan::default() }
}

fn events_plan<'a>(
    rollout: &Rollout,
    places: impl Iterator<Item = &'a u32>,
    event: TaskEvent,
    now: Timestamp,
) -> Option<Plan> {
    let moves: Vec<_> = places
        .take(EVENTS_MAX)
        .map(|place| (rollout.tasks[*place as usize].server, event))
        .collect();
    (!moves.is_empty()).then(|| Plan { events: moves, wake_at: Some(now), ..Plan::default() })
}

/// Waits for reports about the health of servers.
fn hold_plan(rollout: &Rollout, until: Timestamp) -> Plan {
    let mut plan = idle_plan(rollout).with_wait_reason(WaitReason::Health);
    plan.wake_at = plan.wake_at.map_or(Some(until), |at| Some(at.min(until)));
    plan
}

fn idle_plan(rollout: &Rollout) -> Plan {
    let head = &rollout.head;
    let late = rollout.next_deadline();
    let closes = (rollout.counts.waiting > 0).then_some(head.start_by);
    let starts = (head.phase == Phase::Scheduled).then_some(head.starts_at);
    let thaws = rollout.frozen.first().map(|(until, _)| *until);
    Plan {
        wait_reason: phase_wait_reason(head),
        wake_at: [late, closes, starts, thaws].into_iter().flatten().min(),
        ..Plan::default()
    }
}

impl Plan {
    fn with_wait_reason(mut self, wait_reason: WaitReason) -> Plan {
        self.wait_reason = Some(wait_reason);
        if let WaitReason::Stagger { until } | WaitReason::Soak { until } = wait_reason {
            self.wake_at = self.wake_at.map(|at| at.min(until));
        }
        self
    }
}
