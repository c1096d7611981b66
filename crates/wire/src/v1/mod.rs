//! The public API: `/v1`.
//!
//! Requests reject unknown fields, because a typo in a patch request must never be ignored.
//! Enumerated values in requests are plain strings: the server parses all of them and reports every
//! error at once, where a typed field would stop at the first. Responses use typed values, and
//! clients ignore unknown fields, because `/v1` only grows.

mod agents;
mod audit;
mod batches;
mod credentials;
mod cves;
mod events;
mod explain;
mod feeds;
mod forecast;
mod freezes;
mod list;
mod notifications;
mod options;
mod patches;
mod policies;
mod preview;
mod problem;
mod schedules;
mod servers;
mod summary;
mod suppressions;
mod webhooks;

pub use agents::{
    AgentRelease, AgentUpgradeStatus, AgentUpgrades, AgentVersion, Agents, UpgradeAgents,
};
pub use audit::{
    AuditEntry, AuditEntryList, AuditMeta, AuditSubject, AuditVerification, VerifyAudit,
};
pub use batches::{
    Batch, BatchState, BatchWave, BatchWaveState, CreateBatch, Decision, HaltCode, HealthProblem,
    NewerVersion, Origin, PackageChange, PatchServer, Progress, Reboot, Task, TaskHealth,
    TaskResult, TaskState, WaitingFor, WaveCounts, WaveHealth,
};
pub use credentials::{
    ApiKey, CreateApiKey, CreateEnrollmentToken, CreatedApiKey, CreatedEnrollmentToken,
    EnrollmentToken,
};
pub use cves::{
    AdvisoryReference, CveDetail, CveEnvironment, CveFix, CveSummary, CvssMetric, ExposedServer,
    KevEntry,
};
pub use events::{ActorKind, Event, EventActor, EventList, EventSubject, EventsMeta};
pub use explain::{ExplainedPackage, Explanation, NextInstall, Reason};
pub use feeds::{CatalogFeed, CreateFeed, Feed, FeedPhase, FeedProgress, FeedState};
pub use forecast::{
    Forecast, ForecastApproval, ForecastChanges, ForecastDay, ForecastDayDifference,
    ForecastDifferences, ForecastGap, ForecastGapReason, ForecastOutlook, ForecastPatch,
    ForecastPlan, ForecastRequest, ForecastRun, ForecastServer, ForecastServerList,
    ForecastServers, ForecastShortWindow, ForecastSkipped,
};
pub use freezes::{Freeze, FreezePeriod, FreezeRequest};
pub use list::{Links, List, Meta};
pub use notifications::{NotificationTest, TestNotification};
pub use options::{Options, OptionsRequest, WaveRequest};
pub use patches::{AffectedServer, Patch, PatchCve, PatchDetail, PatchEnvironment, PatchVersion};
pub use policies::{
    Compliance, ComplianceDay, ComplianceReport, ExplainedPolicy, Policy, PolicyMatch,
    PolicyMatchRequest, PolicyRequest, PolicyRule, PolicyRuleRequest, ReportedFigures,
    ReportedFreeze, ReportedPolicy, ReportedSuppression, ServerCompliance, SignedReport,
    report_signing_text,
};
pub use preview::{
    Preview, PreviewFreeze, PreviewReboots, PreviewRequest, PreviewServer, PreviewUpdate,
    PreviewWave, RebootOutlook,
};
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
pub use webhooks::{
    CreateWebhook, Delivery, DeliveryDetail, DeliveryState, EditWebhook, RotateWebhook, Webhook,
    WebhookFormat, WebhookTest, WebhookWithSecret,
};

#[cfg(test)]
mod tests;
