//! The forecast: what the schedules will do in the next days.

use jiff::Timestamp;
use jiff::civil::Date;
use serde::{Deserialize, Serialize};
use vocab::{BatchId, Hostname, Line, ScheduleId, ServerId, SkipReason};

use super::{FreezeRequest, ScheduleRequest};

/// The body of `POST /v1/forecast`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ForecastRequest {
    /// How many days to forecast; 30 if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 90))]
    pub days: Option<i64>,
    /// Schedules and freezes that do not exist, to compare the plan with them to today's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<ForecastChanges>,
}

/// Schedules and freezes that do not exist.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ForecastChanges {
    /// Schedules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 20))]
    pub schedules: Option<Vec<ScheduleRequest>>,
    /// Freezes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 20))]
    pub freezes: Option<Vec<FreezeRequest>>,
}

/// What the schedules will do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Forecast {
    /// Start of the forecast.
    pub from: Timestamp,
    /// End of the forecast.
    pub until: Timestamp,
    /// With the schedules and freezes that exist.
    pub today: ForecastPlan,
    /// With `changes` as well; null without changes.
    pub with_changes: Option<ForecastPlan>,
    /// The effect of `changes`; null without changes.
    pub differences: Option<ForecastDifferences>,
}

/// The forecast of one plan. Lists are bounded; the counts are not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForecastPlan {
    /// What the forecast assumes. Show them with every number.
    pub assumptions: Vec<String>,
    /// Where it ended because there are too many runs and tasks; null if it is complete.
    pub ended_early_at: Option<Timestamp>,
    /// Servers by what becomes of their pending updates.
    pub servers: ForecastServers,
    /// Servers that no schedule covers, by reason.
    pub gaps: Vec<ForecastGap>,
    /// Runs whose window closes before all of their servers had their turn, at most 100.
    pub short_windows: Vec<ForecastShortWindow>,
    /// Number of runs whose window is too short.
    pub short_windows_total: u64,
    /// Runs that wait for an approval, at most 100.
    pub approvals: Vec<ForecastApproval>,
    /// Runs that do not start, at most 100.
    pub skipped: Vec<ForecastSkipped>,
    /// Number of runs that do not start.
    pub skipped_total: u64,
    /// Every day of the forecast. Dates are those of each schedule's time zone; UTC for other
    /// batches.
    pub days: Vec<ForecastDay>,
    /// When servers with pending updates are patched, at most 500: those that are not patched come
    /// first, then the latest.
    pub patches: Vec<ForecastPatch>,
}

/// Number of servers by what becomes of their pending updates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForecastServers {
    /// All servers.
    pub total: u64,
    /// No update is pending now.
    pub up_to_date: u64,
    /// The packages are not known.
    pub not_scanned: u64,
    /// All updates that can be installed will be.
    pub patched: u64,
    /// Some updates will be installed.
    pub partly_patched: u64,
    /// No update will be installed.
    pub not_patched: u64,
    /// No schedule covers the server, whether updates are pending or not.
    pub uncovered: u64,
}

/// Servers that no schedule covers, for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForecastGap {
    /// Reason.
    pub reason: ForecastGapReason,
    /// The reason as a sentence.
    pub detail: Line,
    /// Number of servers.
    pub total: u64,
    /// The servers, at most 100.
    pub servers: Vec<ForecastServer>,
}

/// Why no schedule covers a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ForecastGapReason {
    /// It is in quarantine.
    Quarantined,
    /// No schedule selects it.
    NoSchedule,
    /// Only disabled schedules select it.
    Disabled,
    /// Only schedules that simulate select it.
    DryRun,
    /// The limits of the host reject every change.
    HostLimits,
    /// The schedules that select it do not run in this period.
    NoRun,
    /// It is frozen at every run.
    Frozen,
    /// It is expected to be offline at every run.
    Offline,
    /// Every run waits for an approval before it is its turn.
    Approval,
    /// The window of every run closes before it is its turn.
    WindowCloses,
    /// Every run is skipped because the previous one has not ended.
    Overlap,
    /// No run reaches it.
    Waiting,
}

/// A server in a forecast.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForecastServer {
    /// ID of the server.
    pub server_id: ServerId,
    /// Hostname.
    pub hostname: Hostname,
    /// Display name.
    pub display_name: Option<Line>,
}

/// A run of a schedule, or a batch that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForecastRun {
    /// Name of the schedule or the batch.
    pub name: Line,
    /// The schedule; null for a batch, and for a schedule in `changes`.
    pub schedule_id: Option<ScheduleId>,
    /// The batch, if it exists already.
    pub batch_id: Option<BatchId>,
    /// When it is scheduled; for a batch, when it started.
    pub at: Timestamp,
}

/// A run whose window closes before all of its servers had their turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForecastShortWindow {
    /// Run.
    pub run: ForecastRun,
    /// When the window closes.
    pub closes_at: Timestamp,
    /// Number of servers of the run.
    pub servers: u32,
    /// Number of servers that could start, but have no turn.
    pub no_turn: u32,
    /// Number of servers that are offline when the window closes.
    pub offline: u32,
    /// Number of servers that are frozen when the window closes.
    pub frozen: u32,
    /// How many minutes longer the window has to be for the servers without a turn; null if a week
    /// is not enough.
    pub minutes_short: Option<i64>,
}

/// A run that waits for an approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForecastApproval {
    /// Run.
    pub run: ForecastRun,
    /// Since when it waits.
    pub since: Timestamp,
    /// Number of the wave, from 1.
    pub wave: u32,
    /// Number of servers that wait.
    pub servers: u32,
}

/// A run that does not start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForecastSkipped {
    /// Run.
    pub run: ForecastRun,
    /// Why it does not start.
    pub reason: SkipReason,
}

/// What happens on one day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForecastDay {
    /// Date.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = Date))]
    pub date: Date,
    /// Number of runs that start.
    pub runs: u32,
    /// Number of runs that do not start.
    pub skipped: u32,
    /// Number of reboots that are certain.
    pub reboots: u32,
    /// Number of further reboots, if the installed updates require them.
    pub possible_reboots: u32,
    /// Number of servers that install the last of the updates that are pending now.
    pub patched: u32,
}

/// What becomes of the pending updates of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForecastPatch {
    /// Server.
    pub server: ForecastServer,
    /// What becomes of them.
    pub outlook: ForecastOutlook,
    /// Why none is installed, as a sentence.
    pub reason: Option<Line>,
    /// The first run that installs some.
    pub run: Option<ForecastRun>,
    /// When that run installs them.
    pub first_at: Option<Timestamp>,
    /// When the last of them is installed.
    pub last_at: Option<Timestamp>,
    /// Number of updates that no run installs.
    pub left: u32,
}

/// What becomes of the pending updates of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ForecastOutlook {
    /// None is installed.
    NotPatched,
    /// Some are installed.
    PartlyPatched,
    /// All that can be installed are.
    Patched,
}

/// The effect of the changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForecastDifferences {
    /// Servers that a schedule covers only with the changes.
    pub covered: ForecastServerList,
    /// Servers that a schedule covers only without the changes.
    pub uncovered: ForecastServerList,
    /// Servers that are patched only with the changes.
    pub patched: ForecastServerList,
    /// Servers that are patched only without the changes.
    pub not_patched: ForecastServerList,
    /// Servers that are patched earlier.
    pub earlier: ForecastServerList,
    /// Servers that are patched later.
    pub later: ForecastServerList,
    /// The days that differ.
    pub days: Vec<ForecastDayDifference>,
}

/// Some servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForecastServerList {
    /// Number of servers.
    pub total: u64,
    /// The servers, at most 100.
    pub servers: Vec<ForecastServer>,
}

/// A day that differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForecastDayDifference {
    /// Without the changes.
    pub today: ForecastDay,
    /// With the changes.
    pub with_changes: ForecastDay,
}
