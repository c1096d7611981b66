//! Schedules and their runs.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{BatchId, Cron, RunId, ScheduleId, Selector, SkipReason, Zone};

use super::{Options, OptionsRequest, Progress};

/// The body of `POST /v1/schedules` and `PUT /v1/schedules/{schedule_id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ScheduleRequest {
    /// Name.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200))]
    pub name: String,
    /// Description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 2_000, pattern = r"^[^\u0000]*$"))]
    pub description: Option<String>,
    /// Whether it is enabled; true if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Cron expression with five fields.
    #[cfg_attr(feature = "openapi", schema(value_type = Cron))]
    pub cron: String,
    /// IANA time zone of `cron`; UTC if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Zone>))]
    pub timezone: Option<String>,
    /// Target servers.
    #[cfg_attr(feature = "openapi", schema(value_type = Selector))]
    pub targets: serde_json::Value,
    /// Patch options.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<OptionsRequest>,
    /// Save the schedule even if no server matches `targets`; false if omitted. Not stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_empty: Option<bool>,
}

/// A schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Schedule {
    /// ID.
    pub id: ScheduleId,
    /// Name.
    pub name: String,
    /// Description.
    pub description: String,
    /// Whether it is enabled.
    pub enabled: bool,
    /// Cron expression with five fields.
    pub cron: Cron,
    /// IANA time zone of `cron`.
    pub timezone: Zone,
    /// Target servers; resolved when a run starts.
    pub targets: Selector,
    /// Patch options.
    pub options: Options,
    /// The next five start times; empty if it is disabled.
    pub next_runs: Vec<Timestamp>,
    /// Latest run, if any.
    pub last_run: Option<LastRun>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// Likely mistakes, such as targets that match no server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The latest run of a schedule, in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LastRun {
    /// ID.
    pub id: RunId,
    /// State.
    pub state: RunState,
    /// Scheduled start time.
    pub scheduled_for: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
}

/// A run of a schedule, or the record that one was skipped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Run {
    /// ID.
    pub id: RunId,
    /// ID of the schedule.
    pub schedule_id: ScheduleId,
    /// What started it.
    pub trigger: Trigger,
    /// State.
    pub state: RunState,
    /// Why it was skipped.
    pub skip_reason: Option<SkipReason>,
    /// Scheduled start time.
    pub scheduled_for: Timestamp,
    /// When it started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// The batch of the run. Set shortly after the start; null if the run was skipped.
    pub batch_id: Option<BatchId>,
    /// Progress.
    pub progress: Option<Progress>,
    /// Patch options at the time of the run.
    pub options: Options,
    /// Targets at the time of the run.
    pub targets: Selector,
}

/// What started a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// The schedule.
    Cron,
    /// A user or API client.
    Manual,
}

/// State of a run: that of its batch, or skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    Scheduled,
    Running,
    /// The next wave of its batch needs an approval.
    AwaitingApproval,
    Paused,
    Halted,
    Canceling,
    Succeeded,
    CompletedWithErrors,
    Failed,
    Canceled,
    Expired,
    /// It did not start: see `skip_reason`.
    Skipped,
}
