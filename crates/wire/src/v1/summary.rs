//! Totals of the organization: `GET /v1/summary`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::SeverityCounts;

/// Summary of the organization.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FleetSummary {
    /// Servers.
    pub servers: ServerCounts,
    /// Number of servers in each state of assessment.
    pub assessment: AssessmentCounts,
    /// Pending updates.
    pub patches: PatchCounts,
    /// Batches.
    pub batches: BatchCounts,
    /// Schedules.
    pub schedules: ScheduleCounts,
    /// When the counts of patches were updated, about a second after a scan.
    pub counted_at: Option<Timestamp>,
}

/// Counts of servers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServerCounts {
    /// Total.
    pub total: u64,
    /// Online.
    pub online: u64,
    /// Offline.
    pub offline: u64,
    /// Need a reboot.
    pub reboot_required: u64,
    /// Quarantined: they get no orders until an administrator releases them.
    pub quarantined: u64,
    /// Scanned recently, and no update is pending. `up_to_date`, `with_updates`, `stale` and
    /// `not_scanned` add up to `total`, except for servers that changed since `counted_at`.
    pub up_to_date: u64,
    /// Scanned recently, and updates are pending.
    pub with_updates: u64,
    /// The last scan is older than the service's `stale_after_days`.
    pub stale: u64,
    /// Never reported their packages.
    pub not_scanned: u64,
    /// With pending security updates, according to their repositories or the feeds.
    pub with_security_updates: u64,
}

/// Number of servers in each state of assessment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AssessmentCounts {
    /// All packages were matched.
    pub assessed: u64,
    /// Some packages or the kernel could not be matched.
    pub partial: u64,
    /// No imported feed covers the system.
    pub no_feed: u64,
    /// Packages were never reported, or are not matched yet.
    pub not_scanned: u64,
}

/// Counts of pending updates, by package name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PatchCounts {
    /// Packages with an update pending on at least one server.
    pub total: u64,
    /// Of these, security updates.
    pub security: u64,
    /// By severity.
    pub severity: SeverityCounts,
}

/// Counts of batches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchCounts {
    /// Not ended.
    pub open: u64,
    /// Running.
    pub running: u64,
    /// Paused by a user.
    pub paused: u64,
    /// Halted by failures, waiting for a decision.
    pub halted: u64,
    /// Waiting for the approval of a wave.
    #[serde(default)]
    pub awaiting_approval: u64,
}

/// Counts of schedules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScheduleCounts {
    /// Total.
    pub total: u64,
    /// Enabled.
    pub enabled: u64,
    /// Next start time.
    pub next_run_at: Option<Timestamp>,
}
