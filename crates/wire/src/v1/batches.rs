//! Batches, their tasks and results.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{
    BatchId, FailureCode, HealthProblemKind, HealthState, Hostname, Line, RunId, ScheduleId,
    ServerId, TaskId,
};

use super::Options;
use super::options::{takes_options, with_options};

with_options! {
    /// The body of `POST /v1/batches`.
    pub struct CreateBatch {
        /// The servers to patch; duplicates count once.
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<ServerId>, min_items = 1, max_items = 10_000))]
        pub server_ids: Vec<String>,
        /// Name; derived from the options and the servers if omitted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200))]
        pub name: Option<String>,
    }
}
takes_options!(CreateBatch);

with_options! {
    /// The body of `POST /v1/servers/{server_id}/patch`.
    pub struct PatchServer {
        /// Name of the batch; derived from the options and the server if omitted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200))]
        pub name: Option<String>,
    }
}
takes_options!(PatchServer);

/// A batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Batch {
    /// ID.
    pub id: BatchId,
    /// Name: the one that was given, or one derived from the options and the servers.
    pub name: Line,
    /// State.
    pub state: BatchState,
    /// Why the batch halted, or why it paused by itself.
    pub halt_reason: Option<String>,
    /// The same as a code; null if a user paused it.
    #[serde(default)]
    pub halt_code: Option<HaltCode>,
    /// How it was created.
    pub origin: Origin,
    /// ID of the API key or user that created it.
    pub started_by: Option<String>,
    /// The schedule that created it.
    pub schedule_id: Option<ScheduleId>,
    /// The run of that schedule.
    pub run_id: Option<RunId>,
    /// Patch options.
    pub options: Options,
    /// Progress.
    pub progress: Progress,
    /// Waves, in order. A batch without waves has a single one.
    #[serde(default)]
    pub waves: Vec<BatchWave>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// One task per server, up to 500; list the rest with `/v1/batches/{batch_id}/tasks`. Omitted
    /// in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub results: Option<Vec<Task>>,
    /// Likely mistakes in the options.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Why a batch halted or paused by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum HaltCode {
    /// A canary server failed.
    CanaryFailed,
    /// The number of failed servers reached `max_failures`.
    TooManyFailures,
    /// More servers of a wave than `max_unhealthy` are worse than before their updates.
    HealthDegraded,
    /// It is unknown whether a wave is healthy: no server of it could be measured, or too few
    /// reported at the end of the soak.
    HealthUnknown,
    /// Servers that were not changed have the same problems as those that were. The batch is
    /// paused.
    FleetWideDegradation,
}

/// State of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum BatchState {
    /// It has not started.
    Scheduled,
    /// It is running.
    Running,
    /// Its next wave needs an approval.
    AwaitingApproval,
    /// A user paused it, or it paused because of a problem of the whole fleet.
    Paused,
    /// It stopped because of the failure limit, a failed canary, or the health of its servers.
    Halted,
    /// It was canceled; servers in progress finish.
    Canceling,
    /// All servers succeeded.
    Succeeded,
    /// Some servers succeeded.
    CompletedWithErrors,
    /// No server succeeded.
    Failed,
    /// A user canceled it.
    Canceled,
    /// Its window closed before every server had started.
    Expired,
}

/// A wave of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchWave {
    /// Number, from 1.
    pub number: u32,
    /// Planned number of servers.
    pub size: u32,
    /// State.
    pub state: BatchWaveState,
    /// Minutes between the end of its last server and the start of the next wave.
    pub soak_minutes: u32,
    /// When it will have soaked, while it does.
    pub soak_until: Option<Timestamp>,
    /// Whether it needs an approval.
    pub approval: bool,
    /// ID of the user or API key that approved it.
    pub approved_by: Option<String>,
    /// When it was approved.
    pub approved_at: Option<Timestamp>,
    /// Comment of the person who approved it.
    pub comment: Option<String>,
    /// Servers of this wave so far.
    pub servers: WaveCounts,
    /// Changed servers of this wave so far, by health.
    #[serde(default)]
    pub health: WaveHealth,
    /// Number of servers that may become unhealthy, with `health: gate`.
    #[serde(default)]
    pub max_unhealthy: u32,
}

/// The number of changed servers of a wave, by health.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WaveHealth {
    /// Nothing is worse than before.
    pub healthy: u32,
    /// Something is worse than before.
    pub degraded: u32,
    /// The agent could not measure it.
    pub not_measured: u32,
    /// The agent did not report it.
    pub unknown: u32,
}

/// State of a wave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum BatchWaveState {
    /// An earlier wave has not passed, or the batch has not started.
    Pending,
    /// It needs an approval.
    AwaitingApproval,
    /// Its servers may start.
    Running,
    /// Its servers have ended; the next wave waits for the end of the soak.
    Soaking,
    /// The next wave has opened.
    Passed,
    /// The batch ended in this wave.
    Ended,
}

/// The number of servers of a wave, by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WaveCounts {
    pub in_progress: u32,
    pub succeeded: u32,
    pub no_change: u32,
    /// Failed or timed out.
    pub failed: u32,
    /// Skipped or canceled after the start.
    pub skipped: u32,
}

/// The body of an approval or a rejection.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Decision {
    /// Comment for the audit log and the timeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 2_000))]
    pub comment: Option<String>,
    /// Number of the wave that was reviewed. If another wave waits for an approval by now, nothing
    /// is decided (409 `changed_meanwhile`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wave: Option<u32>,
}

/// How a batch was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The API or the command line.
    Api,
    /// A schedule.
    Schedule,
    /// The dashboard.
    Dashboard,
}

/// Progress of a batch: the number of tasks in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Progress {
    /// Number of tasks.
    pub total: u32,
    pub pending: u32,
    pub waiting: u32,
    pub dispatched: u32,
    pub preflight: u32,
    pub downloading: u32,
    pub installing: u32,
    pub restarting_services: u32,
    pub rebooting: u32,
    pub verifying: u32,
    pub succeeded: u32,
    pub no_change: u32,
    pub failed: u32,
    pub timed_out: u32,
    pub skipped: u32,
    pub canceled: u32,
    /// Percentage of tasks that have ended.
    pub percent: u8,
}

/// The part of a batch for one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Task {
    /// ID.
    pub id: TaskId,
    /// ID of the server.
    pub server_id: ServerId,
    /// Host name.
    pub hostname: Hostname,
    /// Shown instead of the host name; null if none was set.
    #[serde(default)]
    pub display_name: Option<Line>,
    /// State.
    pub state: TaskState,
    /// What it is waiting for.
    pub waiting_for: Option<WaitingFor>,
    /// Number of the wave in which it started.
    #[serde(default)]
    pub wave: Option<u32>,
    /// Last known health of the server; null if it is unknown.
    #[serde(default)]
    pub health: Option<TaskHealth>,
    /// When the current state times out.
    pub deadline_at: Option<Timestamp>,
    /// When it started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Result.
    pub result: Option<TaskResult>,
}

impl Task {
    /// The name to show: the display name, or else the host name.
    pub fn name(&self) -> &str {
        self.display_name.as_ref().map_or(self.hostname.as_str(), Line::as_str)
    }
}

/// Last known health of a server in a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskHealth {
    /// State.
    pub state: HealthState,
    /// What is worse than before.
    pub problems: Vec<HealthProblem>,
    /// Why the agent could not measure it.
    pub not_measured: Option<Line>,
    /// Whether it compares with the time before the change. Otherwise the server waits, and it
    /// compares with the beginning of the watch.
    pub after_change: bool,
    /// Whether it was reported after the soak of its wave.
    pub after_soak: bool,
    /// When the service received it.
    pub reported_at: Timestamp,
}

/// Something that is worse than before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HealthProblem {
    /// Kind.
    pub kind: HealthProblemKind,
    /// The unit, the port (`tcp/80`), or the hook.
    pub name: Line,
    /// The problem in words: `nginx.service failed`.
    pub description: String,
}

/// State of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Its batch has not started.
    Pending,
    /// It cannot start yet: see `waiting_for`.
    Waiting,
    /// The order is being sent to the agent.
    Dispatched,
    /// The agent is checking limits, locks and free space.
    Preflight,
    /// Packages are being downloaded.
    Downloading,
    /// The package manager is running.
    Installing,
    /// Services that run old code are being restarted.
    RestartingServices,
    /// The server is rebooting.
    Rebooting,
    /// The installed versions are being verified.
    Verifying,
    /// The updates were installed.
    Succeeded,
    /// There was nothing to do.
    NoChange,
    /// It failed: see `failure_code`.
    Failed,
    /// It did not end in time. A late result still replaces this state.
    TimedOut,
    /// It was skipped.
    Skipped,
    /// A user canceled it.
    Canceled,
}

/// What a task is waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum WaitingFor {
    /// Its start time, `stagger_minutes` after the previous server.
    Stagger,
    /// The canary to succeed.
    Canary,
    /// A server in progress to finish (`max_parallel`).
    Parallel,
    /// The server to come online.
    Offline,
    /// The start time of the batch.
    Window,
    /// The servers of an earlier wave to end.
    Wave,
    /// The soak of the previous wave to end.
    Soak,
    /// The approval of its wave.
    Approval,
    /// The freeze of the server to end.
    Freeze,
    /// Reports about the health of the servers that were changed.
    Health,
}

impl WaitingFor {
    /// For display, after "waiting for ".
    pub fn description(self) -> &'static str {
        match self {
            WaitingFor::Stagger => "its staggered start",
            WaitingFor::Canary => "the canary",
            WaitingFor::Parallel => "a free slot",
            WaitingFor::Offline => "the server to come online",
            WaitingFor::Window => "the start of the batch",
            WaitingFor::Wave => "an earlier wave",
            WaitingFor::Soak => "the end of the soak",
            WaitingFor::Approval => "an approval",
            WaitingFor::Freeze => "the end of a freeze",
            WaitingFor::Health => "reports about health",
        }
    }
}

/// Result of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskResult {
    /// Packages that changed.
    pub packages: Vec<PackageChange>,
    /// Reboot.
    pub reboot: Reboot,
    /// Duration in seconds.
    pub duration: u64,
    /// Exit code of the package manager.
    pub exit: Option<i32>,
    /// Why it failed, as a code.
    pub failure_code: Option<FailureCode>,
    /// Why it failed, as a message.
    pub message: Option<Line>,
    /// Paths of new configuration files that were installed beside edited ones.
    pub set_aside: Vec<Line>,
    /// Services that were restarted.
    pub restarted: Vec<Line>,
    /// Further information: what was repaired, what was skipped and why, why there was no reboot.
    pub notes: Vec<Line>,
    /// Packages of which the repositories offered a newer version than the pinned one.
    #[serde(default)]
    pub newer_available: Vec<NewerVersion>,
    /// Path of the log, relative to the base URL.
    pub log: String,
}

/// A package of which a newer version than the pinned one was available.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewerVersion {
    /// Package name.
    pub name: String,
    /// Version that was installed by the first wave.
    pub pinned: String,
    /// Newest available version.
    pub available: String,
}

/// A package that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PackageChange {
    /// Package name.
    pub name: String,
    /// Previous version; null if it was not installed.
    pub from: Option<String>,
    /// New version; null if it was removed.
    pub to: Option<String>,
}

/// Whether a server needed a reboot, and was rebooted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reboot {
    /// Whether a reboot was needed.
    pub needed: bool,
    /// Whether it was rebooted.
    pub done: bool,
    /// Downtime in seconds.
    pub seconds: Option<u64>,
}
