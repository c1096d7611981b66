//! How long the host's health is measured after a change, and what a watch reports. Pure.
//!
//! A service that is just starting again is not broken, and one that ends a moment after its start
//! is not healthy. So an order ends healthy after two good measurements in a row, and unhealthy when
//! the last measurement of the settling time is bad. Waiting is counted in pauses, as in
//! [`planner`](super::planner).

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use vocab::{HealthProblemKind, Line};
use wire::agent::{HealthProblem, HealthReport};

use super::step::Step;
use crate::host::health::{HealthSnapshot, HookState};

/// Maximum number of pauses until the host must be healthy: 30 seconds.
pub(super) const SETTLE_PAUSES: u32 = 6;
/// The same while a boot is not complete: two minutes, since services may take 90 seconds to fail to
/// start.
pub(super) const SETTLE_PAUSES_OF_BOOT: u32 = 24;
/// How many good measurements in a row are enough.
const GOOD_LOOKS: u32 = 2;
/// How many times failing hooks are run.
const HOOK_RUNS_MAX: u32 = 3;
/// How old the end of an order may be for a watch to compare with the health before it.
const BASELINE_AGE_MAX: SignedDuration = SignedDuration::from_hours(1);

/// The measurements after a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthCheck {
    /// The last one.
    pub report: HealthReport,
    /// Whether a pause has followed it.
    pub paused: bool,
    /// How many of the last ones in a row found no problem.
    pub good_looks: u32,
    pub pauses: u32,
    pub hook_runs: u32,
}

impl HealthCheck {
    /// The state after another measurement.
    pub(super) fn after(
        before: Option<HealthCheck>,
        report: HealthReport,
        with_hooks: bool,
    ) -> HealthCheck {
        let good = report.problems.is_empty() && report.not_measured.is_none();
        let (good_looks, pauses, hook_runs) =
            before.map_or((0, 0, 0), |check| (check.good_looks, check.pauses, check.hook_runs));
        HealthCheck {
            report,
            paused: false,
            good_looks: if good { good_looks + 1 } else { 0 },
            pauses,
            hook_runs: hook_runs + u32::from(with_hooks),
        }
    }

    /// The final state if the measurement fails.
    pub(super) fn unreadable(baseline: Option<&HealthSnapshot>, why: Line) -> HealthCheck {
        let at = baseline.map_or(Timestamp::UNIX_EPOCH, |baseline| baseline.at);
        let report = HealthReport {
            measured_at: at,
            baseline_at: at,
            problems: Vec::new(),
            not_measured: Some(why),
        };
        HealthCheck {
            report,
            paused: false,
            good_looks: 0,
            pauses: SETTLE_PAUSES_OF_BOOT,
            hook_runs: HOOK_RUNS_MAX,
        }
    }

    pub(super) fn pause(&mut self) {
        self.pauses += 1;
        self.paused = true;
    }

    fn has(&self, kind: HealthProblemKind) -> bool {
        self.report.problems.iter().any(|problem| problem.kind == kind)
    }
}

/// The next step of the measurement after a change; `None` if it is complete.
pub(super) fn next_step(baseline: &HealthSnapshot, check: Option<&HealthCheck>) -> Option<Step> {
    let Some(check) = check else { return Some(Step::Health { hooks: false }) };
    let boots = check.has(HealthProblemKind::BootIncomplete);
    let pauses_max = if boots { SETTLE_PAUSES_OF_BOOT } else { SETTLE_PAUSES };
    let is_over = check.pauses >= pauses_max && !check.paused;
    let look = |hooks| match check.paused {
        true => Some(Step::Health { hooks }),
        false => Some(Step::Pause),
    };
    if check.hook_runs > 0 {
        let repeat =
            check.has(HealthProblemKind::HookFailed) && check.hook_runs < HOOK_RUNS_MAX && !is_over;
        return if repeat { look(true) } else { None };
    }
    let is_settled = check.good_looks >= GOOD_LOOKS || is_over || !baseline.is_measured();
    match is_settled {
        false => look(false),
        true if baseline.hooks.is_empty() => None,
        true => Some(Step::Health { hooks: true }),
    }
}

/// A watch of the host's health, which the service asks for after a change, and on servers that it
/// has not changed yet. Stored, so that it survives a restart of the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HealthWatch {
    /// With what the watch compares: the health before the last order that measured it, or at the
    /// beginning of the watch.
    pub baseline: Option<Box<HealthSnapshot>>,
    /// When that order ended, by this host's clock. `None` if the watch measured the baseline.
    pub order_ended_at: Option<Timestamp>,
    /// When the watch ends, by the service's clock.
    pub until: Option<Timestamp>,
    /// What was last reported.
    pub reported: Option<HealthReport>,
}

/// The measurement of a watch that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WatchStep {
    Measure,
    /// The last one, with hooks if this host was changed.
    MeasureAtEnd,
}

impl HealthWatch {
    /// An order that measured the host's health has ended.
    pub(super) fn set_order(
        &mut self,
        baseline: HealthSnapshot,
        report: Option<HealthReport>,
        now: Timestamp,
    ) {
        self.baseline = Some(Box::new(baseline));
        (self.order_ended_at, self.reported) = (Some(now), report);
    }

    /// Applies a response of the service. `now` is this host's clock.
    pub(super) fn apply(
        &mut self,
        until: Option<Timestamp>,
        server_time: Timestamp,
        now: Timestamp,
    ) -> Option<WatchStep> {
        let until = until.filter(|until| *until > server_time);
        let ended = self.until.is_some_and(|end| end <= server_time);
        if ended && until.is_none() {
            self.until = None;
            return Some(WatchStep::MeasureAtEnd);
        }
        let begins = self.until.is_none() && until.is_some();
        self.until = until;
        until?;
        let is_recent = |ended: Timestamp| now.duration_since(ended).abs() <= BASELINE_AGE_MAX;
        if begins && !self.order_ended_at.is_some_and(is_recent) {
            *self = HealthWatch { until, ..HealthWatch::default() };
        }
        Some(WatchStep::Measure)
    }

    /// Takes the result of a measurement. Returns the report to send, if any.
    pub(super) fn record(
        &mut self,
        snapshot: HealthSnapshot,
        step: WatchStep,
    ) -> Option<HealthReport> {
        let Some(baseline) = &self.baseline else {
            let at = snapshot.at;
            self.baseline = Some(Box::new(snapshot));
            let why = "the watch ended before the host was measured for the first time";
            return (step == WatchStep::MeasureAtEnd).then(|| HealthReport {
                measured_at: at,
                baseline_at: at,
                problems: Vec::new(),
                not_measured: Some(why.into()),
            });
        };
        let mut report = snapshot.report(baseline);
        if snapshot.hooks.is_empty() {
            // Hooks run at the end only; until then, their last results stand.
            let earlier = self.reported.iter().flat_map(|report| &report.problems);
            let hooks = earlier.filter(|problem| problem.kind == HealthProblemKind::HookFailed);
            let hooks: Vec<HealthProblem> = hooks.cloned().collect();
            report.problems.extend(hooks);
            report.problems.sort();
        }
        let is_same = match &self.reported {
            Some(last) => {
                last.problems == report.problems && last.not_measured == report.not_measured
            }
            None => report.problems.is_empty() && report.not_measured.is_none(),
        };
        if is_same && step == WatchStep::Measure {
            return None;
        }
        self.reported = Some(report.clone());
        Some(report)
    }

    /// Whether the hooks run at the end: only on a host that an order has changed.
    pub(super) fn runs_hooks(&self) -> bool {
        self.order_ended_at.is_some()
            && self.baseline.as_ref().is_some_and(|baseline| !baseline.hooks.is_empty())
    }
}

/// The results of hooks, by name.
pub(super) type HookResults = std::collections::BTreeMap<String, HookState>;

#[cfg(test)]
#[path = "health/tests.rs"]
mod tests;
