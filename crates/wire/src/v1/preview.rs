//! Preview of a batch: `POST /v1/preview`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{BlockedBy, Environment, FreezeId, Hostname, Line, ServerId, Status};

use super::options::{takes_options, with_options};
use super::{Options, WaitingFor};

with_options! {
    /// The body of `POST /v1/preview`: like that of `POST /v1/batches`, or with `targets` instead
    /// of `server_ids`, like a schedule.
    pub struct PreviewRequest {
        /// Servers, by ID.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<ServerId>>, min_items = 1, max_items = 10_000))]
        pub server_ids: Option<Vec<String>>,
        /// Servers, by selector.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<vocab::Selector>))]
        pub targets: Option<serde_json::Value>,
    }
}
takes_options!(PreviewRequest);

/// What a batch would do, based on the latest reports of the servers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Preview {
    /// Patch options.
    pub options: Options,
    /// Number of servers.
    pub total: u32,
    /// Number of offline servers; the batch would wait for them.
    pub offline: u32,
    /// When the first server would start.
    pub first_start_at: Option<Timestamp>,
    /// Earliest start of the last server according to the options, if nothing fails.
    pub last_start_at: Option<Timestamp>,
    /// Number of servers that could not start within the window.
    pub beyond_window: u32,
    /// The waves, in order. Without waves, all servers are one.
    #[serde(default)]
    pub waves: Vec<PreviewWave>,
    /// Expected duration in minutes, with soaks but without approvals and offline servers: from the
    /// durations of past tasks. Null if there are none.
    #[serde(default)]
    pub expected_minutes: Option<u64>,
    /// Number of `servers` that would be rebooted.
    #[serde(default)]
    pub reboots: PreviewReboots,
    /// Active freezes that cover some of `servers`; the batch would wait for their end.
    #[serde(default)]
    pub freezes: Vec<PreviewFreeze>,
    /// The first 500 servers in the order in which they start.
    pub servers: Vec<PreviewServer>,
    /// Likely mistakes in the options.
    pub warnings: Vec<String>,
}

/// A wave of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PreviewWave {
    /// Number, from 1.
    pub number: u32,
    /// Number of servers.
    pub size: u32,
    /// Number of these with updates that would be installed; null if some of its servers are not
    /// among `servers`.
    pub with_updates: Option<u32>,
    /// Minutes between its last server and the next wave.
    pub soak_minutes: u32,
    /// Whether it needs an approval.
    pub approval: bool,
}

/// Number of servers that would be rebooted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PreviewReboots {
    /// Certainly.
    pub certain: u32,
    /// If the updates require it.
    pub possible: u32,
}

/// A freeze that covers servers of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PreviewFreeze {
    /// ID.
    pub freeze_id: FreezeId,
    /// Name.
    pub name: String,
    /// When it ends.
    pub ends_at: Timestamp,
    /// Number of servers that it covers.
    pub servers: u32,
}

/// What a batch would do on one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PreviewServer {
    /// ID of the server.
    pub server_id: ServerId,
    /// Host name.
    pub hostname: Hostname,
    /// Shown instead of the host name; null if none was set.
    #[serde(default)]
    pub display_name: Option<Line>,
    /// Status.
    pub status: Status,
    /// Environment, if any.
    pub environment: Option<Environment>,
    /// Whether it is part of the canary.
    pub canary: bool,
    /// Number of the wave in which it would start, if every server starts in its turn.
    #[serde(default)]
    pub wave: u32,
    /// Earliest start; null if it could not start within the window.
    pub starts_at: Option<Timestamp>,
    /// What else it would wait for.
    pub waits_for: Vec<WaitingFor>,
    /// Updates that would be installed, as of the last scan.
    pub updates: Vec<PreviewUpdate>,
    /// Selected updates that would not be installed, with the reason.
    pub blocked: Vec<PreviewUpdate>,
    /// Selected packages without a pending update.
    pub nothing_pending: Vec<String>,
    /// Whether it would be rebooted.
    pub reboot: RebootOutlook,
    /// Settings in the host's `limits.toml` that affect this batch.
    #[serde(default)]
    pub host_limits: Vec<String>,
}

impl PreviewServer {
    /// The name to show: the display name, or else the host name.
    pub fn name(&self) -> &str {
        self.display_name.as_ref().map_or(self.hostname.as_str(), Line::as_str)
    }
}

/// An update that would or would not be installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PreviewUpdate {
    /// Package name.
    pub name: String,
    /// Installed version.
    pub from: String,
    /// Available version.
    pub to: String,
    /// Whether it is a security update.
    pub security: bool,
    /// Why it would not be installed.
    pub blocked_by: Option<BlockedBy>,
}

/// Whether a server would be rebooted. Decided after the installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RebootOutlook {
    /// It is not rebooted.
    No,
    /// It is rebooted if the updates require it.
    Possible,
    /// It is rebooted.
    Certain,
}
