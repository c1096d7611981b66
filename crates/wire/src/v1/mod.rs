//! The public API: `/v1`.
//!
//! Requests reject unknown fields, because a typo in a patch request must never be ignored.
//! Enumerated values in requests are plain strings: the server parses all of them and reports every
//! error at once, where a typed field would stop at the first. Responses use typed values, and
//! clients ignore unknown fields, because `/v1` only grows.

mod agents;
mod batches;
mod credentials;
mod cves;
mod feeds;
mod list;
mod options;
mod patches;
mod preview;
mod problem;
mod schedules;
mod servers;
mod summary;
mod suppressions;

pub use agents::{
    AgentRelease, AgentUpgradeStatus, AgentUpgrades, AgentVersion, Agents, UpgradeAgents,
};
pub use batches::{
    Batch, BatchState, CreateBatch, Origin, PackageChange, PatchServer, Progress, Reboot, Task,
    TaskResult, TaskState, WaitingFor,
};
pub use credentials::{
    ApiKey, CreateApiKey, CreateEnrollmentToken, CreatedApiKey, CreatedEnrollmentToken,
    EnrollmentToken,
};
pub use cves::{
    AdvisoryReference, CveDetail, CveEnvironment, CveFix, CveSummary, CvssMetric, ExposedServer,
    KevEntry,
};
pub use feeds::{CatalogFeed, CreateFeed, Feed, FeedPhase, FeedProgress, FeedState};
pub use list::{Links, List, Meta};
pub use options::{Options, OptionsRequest};
pub use patches::{AffectedServer, Patch, PatchCve, PatchDetail, PatchEnvironment, PatchVersion};
pub use preview::{Preview, PreviewRequest, PreviewServer, PreviewUpdate, RebootOutlook};
pub use problem::{FieldError, Problem};
pub use schedules::{LastRun, Run, RunState, Schedule, ScheduleRequest, Trigger};
pub use servers::{
    Activity, Coverage, Cve, CveState, EditServer, EditServers, EditedServers, Fix, HostLimits,
    OldCode, Package, Refresh, RefreshState, Server, ServerDetail, SeverityCounts, Summary,
    UnassessedPackage,
};
pub use summary::{
    AssessmentCounts, BatchCounts, FleetSummary, PatchCounts, ScheduleCounts, ServerCounts,
};
pub use suppressions::{CreateSuppression, Suppressed, Suppression};

#[cfg(test)]
mod tests;
