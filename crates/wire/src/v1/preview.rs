//! What an order would do: `POST /v1/preview`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{BlockedBy, Environment, Hostname, ServerId, Status};

use super::options::{takes_options, with_options};
use super::{Options, WaitingFor};

with_options! {
    /// The body of `POST /v1/preview`: an order as `POST /v1/batches` takes it, or with `targets` instead of
    /// `server_ids` as a schedule has it.
    pub struct PreviewRequest {
        /// The servers, by name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<ServerId>>, min_items = 1, max_items = 10_000))]
        pub server_ids: Option<Vec<String>>,
        /// The servers, by what they are.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<vocab::Selector>))]
        pub targets: Option<serde_json::Value>,
    }
}
takes_options!(PreviewRequest);

/// What an order would do, as far as it is known now. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Preview {
    /// How it would be carried out.
    pub options: Options,
    /// How many servers are meant.
    pub total: u32,
    /// How many of them are offline and would be waited for.
    pub offline: u32,
    /// When the first server would start.
    pub first_start_at: Option<Timestamp>,
    /// When the last server could start by the pace alone, if all goes well.
    pub last_start_at: Option<Timestamp>,
    /// How many servers the window leaves out, by the pace alone.
    pub beyond_window: u32,
    /// The servers in the order of their turns, the first 500.
    pub servers: Vec<PreviewServer>,
    /// What its author may not have meant.
    pub warnings: Vec<String>,
}

/// What an order would do to one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PreviewServer {
    /// Which one.
    pub server_id: ServerId,
    /// What it calls itself.
    pub hostname: Hostname,
    /// Whether it is heard from.
    pub status: Status,
    /// The environment that it is in, if any.
    pub environment: Option<Environment>,
    /// Whether it is one of those that go first.
    pub canary: bool,
    /// The earliest start by the pace; nothing if the window has closed by then.
    pub starts_at: Option<Timestamp>,
    /// What else it would have to wait for.
    pub waits_for: Vec<WaitingFor>,
    /// The updates that would be installed, as of its last scan.
    pub updates: Vec<PreviewUpdate>,
    /// Updates that are meant and would not be installed, with the reason.
    pub blocked: Vec<PreviewUpdate>,
    /// Packages that the order names and of which no update is pending there.
    pub nothing_pending: Vec<String>,
    /// Whether it would be rebooted.
    pub reboot: RebootOutlook,
    /// Settings of the host's own `limits.toml` that affect this order, in words.
    #[serde(default)]
    pub host_limits: Vec<String>,
}

/// An update that an order would install, or would not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PreviewUpdate {
    /// The package.
    pub name: String,
    /// The version that is installed.
    pub from: String,
    /// The version that it brings.
    pub to: String,
    /// Whether it fixes a security flaw.
    pub security: bool,
    /// Why it would not be installed.
    pub blocked_by: Option<BlockedBy>,
}

/// Whether a server would be rebooted. It is decided after the install.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RebootOutlook {
    /// It would not.
    No,
    /// It would if the updates ask for it.
    Possible,
    /// It would.
    Certain,
}
