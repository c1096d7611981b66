//! The waves of a rollout: which one is current, and what happens between two of them.
//!
//! Waves follow each other: the servers that start first are the first wave, whichever they are.
//! When enough servers of a wave have started and all of them have ended, the wave soaks. After
//! that the next wave opens, and starts at once or when it is approved.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::pace::{Limits, WaveLimits};
use super::task::add_time;
use super::{RolloutHead, TaskCounts};

/// How far a rollout has come through its waves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WaveProgress {
    /// Index of the current wave.
    pub current: u32,
    /// When the last task of the current wave ended; the soak began then.
    pub ended_at: Option<Timestamp>,
    /// The approvals so far, in the order of the waves.
    pub approvals: Vec<WaveApproval>,
}

/// The approval of a wave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaveApproval {
    /// Index of the wave.
    pub wave: u32,
    pub at: Timestamp,
    /// ID of the user or API key.
    pub by: String,
    pub comment: Option<String>,
}

impl WaveProgress {
    /// The approval of the wave with this index.
    pub fn approval(&self, wave: u32) -> Option<&WaveApproval> {
        self.approvals.iter().find(|approval| approval.wave == wave)
    }

    /// Number of the current wave, from 1.
    pub fn number(&self) -> u32 {
        self.current.saturating_add(1)
    }
}

/// What a running rollout does about its waves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaveGate {
    /// This many more servers of the current wave may start, if pace and canary allow it.
    Open(u32),
    /// The current wave needs an approval first.
    NeedsApproval,
    /// Every task of the current wave has ended, and its soak begins.
    Ended,
    /// The current wave soaks.
    Soaking { until: Timestamp },
    /// The next wave opens.
    Passed,
}

/// The tasks that the decision depends on.
#[derive(Clone, Copy)]
pub(super) struct Tallies<'a> {
    /// All tasks of the rollout.
    pub(super) all: &'a TaskCounts,
    /// The tasks that started in the current wave.
    pub(super) wave: &'a TaskCounts,
}

/// Decides about the current wave. `first_complete`: the canary rules do not hold the rollout in
/// its first wave any longer.
pub(super) fn gate(
    head: &RolloutHead,
    limits: &Limits,
    tallies: Tallies<'_>,
    first_complete: bool,
    now: Timestamp,
) -> WaveGate {
    let progress = &head.waves;
    let (wave, is_last) = current_wave(progress, limits);
    if wave.approval && progress.approval(progress.current).is_none() {
        return WaveGate::NeedsApproval;
    }
    if is_last {
        return WaveGate::Open(u32::MAX);
    }
    if let Some(ended_at) = progress.ended_at {
        let until = add_time(ended_at, wave.soak);
        return if until <= now { WaveGate::Passed } else { WaveGate::Soaking { until } };
    }
    // The canary rules decide about the size of the first wave.
    let is_first = progress.current == 0;
    let left = match is_first {
        true => u32::MAX,
        false => wave.servers.saturating_sub(started(tallies.wave)),
    };
    let complete = if is_first { first_complete } else { left == 0 };
    // Who accepts a failed canary does not wait for the others, unless for their soak.
    let waived = is_first && head.canary_waived && wave.soak.is_zero();
    if !complete || (tallies.all.in_progress() > 0 && !waived) {
        return WaveGate::Open(if is_first && complete { 0 } else { left });
    }
    // A wave that changed nothing has nothing to soak.
    let affected = tallies.wave.succeeded + tallies.wave.failures() > 0;
    if affected && !wave.soak.is_zero() { WaveGate::Ended } else { WaveGate::Passed }
}

/// The current wave, and whether it is the last one.
pub(super) fn current_wave(progress: &WaveProgress, limits: &Limits) -> (WaveLimits, bool) {
    let last = limits.waves.len() - 1;
    let index = (progress.current as usize).min(last);
    (limits.waves[index], index == last)
}

/// How many servers have started and were not removed.
pub(super) fn started(tally: &TaskCounts) -> u32 {
    tally.in_progress() + tally.successes() + tally.failures() + tally.not_applicable
}
