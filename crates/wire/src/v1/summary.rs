//! The organization in numbers: `GET /v1/summary`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::SeverityCounts;

/// The organization in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FleetSummary {
    /// Its servers.
    pub servers: ServerCounts,
    /// Number of servers in each state of assessment.
    pub assessment: AssessmentCounts,
    /// What is pending on them.
    pub patches: PatchCounts,
    /// Its batches.
    pub batches: BatchCounts,
    /// Its schedules.
    pub schedules: ScheduleCounts,
    /// As of when the counts of patches are; they follow the scans by about a second.
    pub counted_at: Option<Timestamp>,
}

/// Servers in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServerCounts {
    /// How many there are.
    pub total: u64,
    /// How many are heard from.
    pub online: u64,
    /// How many are not.
    pub offline: u64,
    /// How many should be rebooted.
    pub reboot_required: u64,
    /// How many get no orders until an administrator decides.
    pub quarantined: u64,
    /// Scanned recently, and no update is pending. `up_to_date`, `with_updates`, `stale` and
    /// `not_scanned` add up to `total`, give or take servers that changed since `counted_at`.
    pub up_to_date: u64,
    /// Scanned recently, and updates are pending.
    pub with_updates: u64,
    /// The last scan is older than the service's `stale_after_days`.
    pub stale: u64,
    /// Never reported their packages.
    pub not_scanned: u64,
    /// How many have security updates pending, as their repositories or the feeds know them.
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

/// Pending updates in numbers, one a package name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PatchCounts {
    /// How many packages have an update pending somewhere.
    pub total: u64,
    /// How many of them fix security flaws.
    pub security: u64,
    /// How many of each severity.
    pub severity: SeverityCounts,
}

/// Batches in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchCounts {
    /// How many have not ended.
    pub open: u64,
    /// How many are under way.
    pub running: u64,
    /// How many a person stopped for now.
    pub paused: u64,
    /// How many stopped themselves and wait for a person.
    pub halted: u64,
}

/// Schedules in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScheduleCounts {
    /// How many there are.
    pub total: u64,
    /// How many of them run.
    pub enabled: u64,
    /// When the next of them runs.
    pub next_run_at: Option<Timestamp>,
}
