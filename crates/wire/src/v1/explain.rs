//! Why an update or a CVE on a server is not patched.

use super::ExplainedPolicy;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{BatchId, Hostname, Line, PatchState, ReasonCode, ScheduleId, ServerId};

/// Why an update or a CVE on a server is not patched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// The server.
    pub server_id: ServerId,
    /// Host name.
    pub hostname: Hostname,
    /// Shown instead of the host name; null if none was set.
    #[serde(default)]
    pub display_name: Option<Line>,
    /// The package or the CVE that was asked about.
    pub subject: String,
    /// The packages that it concerns.
    pub packages: Vec<ExplainedPackage>,
    /// Where it stands. With several packages, that of the one that needs most attention.
    pub state: PatchState,
    /// What prevents it or what it waits for, the most important first.
    pub reasons: Vec<Reason>,
    /// The run that will install it; null if there is none.
    pub next: Option<NextInstall>,
    /// The batch that installs it; null if there is none.
    pub batch_id: Option<BatchId>,
    /// By when a policy requires it; null if no policy does.
    #[serde(default)]
    pub policy: Option<ExplainedPolicy>,
}

impl Explanation {
    /// The name of the server to show: the display name, or else the host name.
    pub fn server_name(&self) -> &str {
        self.display_name.as_ref().map_or(self.hostname.as_str(), Line::as_str)
    }
}

/// A package that an explanation concerns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExplainedPackage {
    /// Package name.
    pub name: String,
    /// Installed version.
    pub installed_version: String,
    /// Version of the pending update; null if there is none.
    pub available_version: Option<String>,
}

/// Why something is not patched, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reason {
    /// The reason as a code.
    pub code: ReasonCode,
    /// The reason as a sentence.
    pub detail: String,
    /// What to do about it.
    pub remedy: String,
}

/// The run of a schedule that will install an update.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NextInstall {
    /// The schedule.
    pub schedule_id: ScheduleId,
    /// Its name.
    pub schedule: String,
    /// When the run starts.
    pub at: Timestamp,
}
