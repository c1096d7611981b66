//! The health of a simulated host, and how its agent watches it.
//!
//! What fails on a host is decided by the world. The agent compares it with the time before the last
//! change, or with the beginning of the watch, and reports differences.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use vocab::{HealthProblemKind, Line};

use crate::rollout::{HealthMeasurement, HealthProblem};

/// A service that can fail on a host.
pub(super) type Unit = &'static str;

/// What the agent can measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Instruments {
    All,
    /// Nothing can be measured on this host.
    None,
    /// The agent is older than the measurement of health.
    OldAgent,
}

#[derive(Debug, Clone)]
struct Baseline {
    failing: BTreeSet<Unit>,
    at: Timestamp,
}

#[derive(Debug, Clone)]
pub(super) struct HostHealth {
    pub(super) instruments: Instruments,
    pub(super) failing: BTreeSet<Unit>,
    before_order: Option<Baseline>,
    baseline: Option<Baseline>,
    order_ended_at: Option<Timestamp>,
    until: Option<Timestamp>,
    reported: Option<HealthMeasurement>,
    /// A report that was not acknowledged, with its number.
    pending: Option<(u32, HealthMeasurement)>,
    reports: u32,
}

impl HostHealth {
    pub(super) fn new(instruments: Instruments) -> HostHealth {
        HostHealth {
            instruments,
            failing: BTreeSet::new(),
            before_order: None,
            baseline: None,
            order_ended_at: None,
            until: None,
            reported: None,
            pending: None,
            reports: 0,
        }
    }

    pub(super) fn begin_order(&mut self, now: Timestamp) {
        self.before_order = Some(Baseline { failing: self.failing.clone(), at: now });
    }

    /// The health in the result of an order that changed something.
    pub(super) fn end_order(&mut self, now: Timestamp) -> Option<HealthMeasurement> {
        if self.instruments == Instruments::OldAgent {
            return None;
        }
        self.baseline = self.before_order.take();
        let report = self.measure()?;
        (self.order_ended_at, self.reported) = (Some(now), Some(report.clone()));
        Some(report)
    }

    fn measure(&self) -> Option<HealthMeasurement> {
        let baseline = self.baseline.as_ref()?;
        let unmeasured = self.instruments == Instruments::None;
        let worse = self.failing.difference(&baseline.failing).filter(|_| !unmeasured);
        Some(HealthMeasurement {
            problems: worse.map(|unit| problem(unit)).collect(),
            not_measured: unmeasured.then(|| Line::sanitize("no systemd")),
            baseline_at: baseline.at,
        })
    }

    /// Applies a response of the control plane. Returns whether there is something new to report.
    pub(super) fn watch(
        &mut self,
        until: Option<Timestamp>,
        server_time: Timestamp,
        now: Timestamp,
    ) -> bool {
        if self.instruments == Instruments::OldAgent {
            return false;
        }
        let until = until.filter(|until| *until > server_time);
        let ends = until.is_none() && self.until.is_some_and(|end| end <= server_time);
        let begins = self.until.is_none() && until.is_some();
        self.until = until;
        if !ends && until.is_none() {
            return false;
        }
        let hour = SignedDuration::from_hours(1);
        let recent = self.order_ended_at.is_some_and(|ended| now.duration_since(ended) <= hour);
        if begins && !recent || self.baseline.is_none() {
            self.baseline = Some(Baseline { failing: self.failing.clone(), at: now });
            self.reported = None;
        }
        let Some(report) = self.measure() else { return false };
        let known = self.reported.as_ref();
        let same = match known {
            Some(known) => *known == report,
            None => report.problems.is_empty() && report.not_measured.is_none(),
        };
        if same && !ends {
            return false;
        }
        self.reports += 1;
        self.pending = Some((self.reports, report.clone()));
        self.reported = Some(report);
        true
    }

    pub(super) fn pending(&self) -> Option<(u32, HealthMeasurement)> {
        self.pending.clone()
    }

    pub(super) fn acknowledge(&mut self, number: u32) {
        self.pending.take_if(|(pending, _)| *pending == number);
    }
}

fn problem(unit: Unit) -> HealthProblem {
    HealthProblem { kind: HealthProblemKind::UnitFailed, name: Line::sanitize(unit) }
}
