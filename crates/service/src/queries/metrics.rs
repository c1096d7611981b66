//! Counts of an organization, for the metrics.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeMap;

use store::health::{self, FleetCounts};
use vocab::{OrgId, Severity};
use wire::v1::FleetSummary;

use super::{Scope, agents, summary};
use crate::projections::patches::severity_order;
use crate::{App, Result};

/// What the metrics show about the fleet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FleetMetrics {
    pub online: u64,
    pub offline: u64,
    pub stale: u64,
    pub quarantined: u64,
    pub reboot_required: u64,
    /// Servers by assessment.
    pub assessments: [(&'static str, u64); 4],
    pub agents_outdated: u64,
    pub security_updates: u64,
    pub other_updates: u64,
    /// Open CVEs by severity.
    pub cves: Vec<(Severity, u64)>,
    /// Open CVEs that are known to be exploited.
    pub exploited: u64,
    /// Unfinished batches by state.
    pub batches: Vec<(&'static str, u64)>,
    /// The tasks of unfinished batches that wait, and that run.
    pub tasks_waiting: u64,
    pub tasks_running: u64,
}

/// The counts of an organization.
#[boxed]
pub async fn fleet(app: &App, org: OrgId) -> Result<FleetMetrics> {
    let counts = health::fleet_counts(&mut *app.db.read().await?, org).await?;
    let scope = Scope { org, environments: None };
    let FleetSummary { servers, assessment, .. } = summary::fleet(app, &scope).await?;
    Ok(FleetMetrics {
        online: servers.online,
        offline: servers.offline,
        stale: servers.stale,
        quarantined: servers.quarantined,
        reboot_required: servers.reboot_required,
        agents_outdated: agents::agents(app, &scope).await?.outdated,
        assessments: [
            ("assessed", assessment.assessed),
            ("partial", assessment.partial),
            ("no_feed", assessment.no_feed),
            ("not_scanned", assessment.not_scanned),
        ],
        ..from_counts(&counts)
    })
}

fn from_counts(counts: &FleetCounts) -> FleetMetrics {
    let count =
        |map: &BTreeMap<String, u64>, name: &str| map.get(name).copied().unwrap_or_default();
    let of_severity = |severity: Severity| {
        let order = severity_order(severity);
        let rows = counts.cves.iter().filter(|(known, _, _)| *known == order);
        (severity, rows.map(|(_, _, count)| count).sum())
    };
    let exploited = counts.cves.iter().filter(|(_, exploited, _)| *exploited);
    FleetMetrics {
        security_updates: counts.security_updates,
        other_updates: counts.updates.saturating_sub(counts.security_updates),
        cves: Severity::ALL.iter().copied().map(of_severity).collect(),
        exploited: exploited.map(|(_, _, count)| count).sum(),
        batches: summary::OPEN_PHASES.map(|phase| (phase, count(&counts.batches, phase))).to_vec(),
        tasks_waiting: count(&counts.tasks, "waiting"),
        tasks_running: count(&counts.tasks, "running"),
        ..FleetMetrics::default()
    }
}
