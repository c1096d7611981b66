//! Batches, their tasks and results.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{BatchId, FailureCode, Hostname, Line, RunId, ScheduleId, ServerId, TaskId};

use super::Options;
use super::options::{takes_options, with_options};

with_options! {
    /// The body of `POST /v1/batches`.
    pub struct CreateBatch {
        /// The servers to patch; duplicates count once.
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<ServerId>, min_items = 1, max_items = 10_000))]
        pub server_ids: Vec<String>,
    }
}
takes_options!(CreateBatch);

with_options! {
    /// The body of `POST /v1/servers/{server_id}/patch`.
    pub struct PatchServer {}
}
takes_options!(PatchServer);

/// A batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Batch {
    /// Which one.
    pub id: BatchId,
    /// Where it stands.
    pub state: BatchState,
    /// Why it halted, in words.
    pub halt_reason: Option<String>,
    /// By which door it came.
    pub origin: Origin,
    /// Who started it.
    pub started_by: Option<String>,
    /// The schedule that started it.
    pub schedule_id: Option<ScheduleId>,
    /// The run that it carries out.
    pub run_id: Option<RunId>,
    /// How it is carried out.
    pub options: Options,
    /// How far it is.
    pub progress: Progress,
    /// When it was ordered.
    pub created_at: Timestamp,
    /// When it started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// One task a server, up to 500; the rest is at `/v1/batches/{batch_id}/tasks`. Left out of lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub results: Option<Vec<Task>>,
    /// What its author may not have meant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Where a batch stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum BatchState {
    /// It has not started.
    Scheduled,
    /// It is under way.
    Running,
    /// A person stopped it for now.
    Paused,
    /// The failure limit or the canary stopped it.
    Halted,
    /// It ends as soon as what is under way has ended.
    Canceling,
    /// Every server is well.
    Succeeded,
    /// Some servers are well.
    CompletedWithErrors,
    /// No server is well.
    Failed,
    /// A person ended it.
    Canceled,
    /// Its window closed before every server had started.
    Expired,
}

/// By which door a batch came.
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

/// How far a batch is: how many tasks are in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Progress {
    /// How many tasks there are.
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
    /// How many of a hundred tasks have ended.
    pub percent: u8,
}

/// The part of a batch that concerns one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Task {
    /// Which one.
    pub id: TaskId,
    /// Of which server.
    pub server_id: ServerId,
    /// What the server calls itself.
    pub hostname: Hostname,
    /// Where it stands.
    pub state: TaskState,
    /// What it waits for.
    pub waiting_for: Option<WaitingFor>,
    /// When its state ends in any case.
    pub deadline_at: Option<Timestamp>,
    /// When it started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// What came of it.
    pub result: Option<TaskResult>,
}

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Its batch has not started.
    Pending,
    /// It may not start yet: see `waiting_for`.
    Waiting,
    /// The order is on its way.
    Dispatched,
    /// The agent checks limits, locks and free space.
    Preflight,
    /// Packages are fetched.
    Downloading,
    /// The package manager is at work.
    Installing,
    /// Services that run old code are restarted.
    RestartingServices,
    /// The server reboots.
    Rebooting,
    /// What is there is compared with what was asked for.
    Verifying,
    /// Versions changed as asked.
    Succeeded,
    /// There was nothing to do.
    NoChange,
    /// It failed: see `failure_code`.
    Failed,
    /// It did not end in time; a late result still corrects this.
    TimedOut,
    /// It was passed over.
    Skipped,
    /// A person ended it.
    Canceled,
}

/// What a task waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum WaitingFor {
    /// Its turn, so many minutes after the server before it.
    Stagger,
    /// The canary's success.
    Canary,
    /// One of those in work to end.
    Parallel,
    /// The server to be heard from.
    Offline,
    /// The time at which it may start.
    Window,
}

/// What came of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskResult {
    /// What changed.
    pub packages: Vec<PackageChange>,
    /// Whether the server was rebooted.
    pub reboot: Reboot,
    /// How many seconds it took.
    pub duration: u64,
    /// With what the package manager ended.
    pub exit: Option<i32>,
    /// Why it failed, for programs.
    pub failure_code: Option<FailureCode>,
    /// Why it failed, for people.
    pub message: Option<Line>,
    /// Configuration files that packages brought and that were put beside edited ones, by path.
    pub set_aside: Vec<Line>,
    /// The services that were restarted.
    pub restarted: Vec<Line>,
    /// What else a person should know: what was repaired, what was passed over and why, why there was
    /// no reboot.
    pub notes: Vec<Line>,
    /// Where the log is, relative to the base URL.
    pub log: String,
}

/// A package that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PackageChange {
    /// Its name, as the host says it.
    pub name: String,
    /// The version that went; nothing if it was new.
    pub from: Option<String>,
    /// The version that came; nothing if it was removed.
    pub to: Option<String>,
}

/// Whether a server was rebooted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reboot {
    /// Whether it needed to be.
    pub needed: bool,
    /// Whether it was.
    pub done: bool,
    /// How many seconds it was gone.
    pub seconds: Option<u64>,
}
