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
    /// What people call it.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200))]
    pub name: String,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 2_000, pattern = r"^[^\u0000]*$"))]
    pub description: Option<String>,
    /// Whether it runs; yes if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// When it runs.
    #[cfg_attr(feature = "openapi", schema(value_type = Cron))]
    pub cron: String,
    /// Whose clock `cron` speaks of; UTC if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Zone>))]
    pub timezone: Option<String>,
    /// Which servers.
    #[cfg_attr(feature = "openapi", schema(value_type = Selector))]
    pub targets: serde_json::Value,
    /// How it is carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<OptionsRequest>,
    /// Save the schedule even if no server matches `targets` today; false if left out. Not part of the schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_empty: Option<bool>,
}

/// A schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Schedule {
    /// Which one.
    pub id: ScheduleId,
    /// What people call it.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// Whether it runs.
    pub enabled: bool,
    /// When it runs.
    pub cron: Cron,
    /// Whose clock `cron` speaks of.
    pub timezone: Zone,
    /// Which servers; resolved when a run starts.
    pub targets: Selector,
    /// How it is carried out.
    pub options: Options,
    /// The next five instants at which it runs; none while it is disabled.
    pub next_runs: Vec<Timestamp>,
    /// Its newest run, if there was one.
    pub last_run: Option<LastRun>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// Likely mistakes, such as targets that no server matches today.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The newest run of a schedule, in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LastRun {
    /// Which one.
    pub id: RunId,
    /// Where it stands.
    pub state: RunState,
    /// For which instant it started.
    pub scheduled_for: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
}

/// One execution of a schedule, or the record that there was none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Run {
    /// Which one.
    pub id: RunId,
    /// Of which schedule.
    pub schedule_id: ScheduleId,
    /// What started it.
    pub trigger: Trigger,
    /// Where it stands.
    pub state: RunState,
    /// Why it was skipped.
    pub skip_reason: Option<SkipReason>,
    /// For which instant it started, or should have.
    pub scheduled_for: Timestamp,
    /// When it started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// The batch that carries it out. A scheduled run has it a moment after its start; a skipped one has none.
    pub batch_id: Option<BatchId>,
    /// How far it is.
    pub progress: Option<Progress>,
    /// How it is carried out, as it was ordered at that moment.
    pub options: Options,
    /// Which servers were meant at that moment.
    pub targets: Selector,
}

/// What started a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// Its schedule.
    Cron,
    /// A person.
    Manual,
}

/// Where a run stands: as its batch does, or skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    Scheduled,
    Running,
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
