//! Pending updates, and the servers and CVEs that they concern.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{BlockedBy, Environment, Hostname, Line, ServerId, Severity, Status, UpdateType};

/// A package with an update pending on at least one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Patch {
    /// Package name.
    pub package_name: String,
    /// Highest severity of the CVEs that it fixes.
    pub severity: Severity,
    /// Source of the severity.
    pub severity_source: Option<String>,
    /// Kind of update.
    #[serde(rename = "type")]
    pub update_type: UpdateType,
    /// Installed and available versions per operating system.
    pub versions: Vec<PatchVersion>,
    /// Number of servers with the update pending.
    pub affected_servers: u64,
    /// The CVEs that it fixes.
    pub cves: Vec<String>,
    /// Whether one of them is in the catalog of known exploited vulnerabilities (KEV).
    pub kev: bool,
    /// When a server first reported it.
    pub first_seen_at: Timestamp,
}

/// An update on one operating system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PatchVersion {
    /// Operating system: `debian 12`.
    pub os: String,
    /// Installed version.
    pub from: String,
    /// Available version.
    pub to: String,
}

/// An update with its servers and CVEs: `GET /v1/patches/{package_name}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PatchDetail {
    /// The same fields as in list responses.
    #[serde(flatten)]
    pub patch: Patch,
    /// Servers with the update pending.
    pub servers: Vec<AffectedServer>,
    /// Details of the CVEs that it fixes.
    pub cve_details: Vec<PatchCve>,
    /// Number of servers with the update pending by environment.
    #[serde(default)]
    pub environments: Vec<PatchEnvironment>,
}

/// The servers of an environment with an update pending.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PatchEnvironment {
    /// Environment; null for servers without one.
    pub environment: Option<Environment>,
    /// Number of servers.
    pub servers: u64,
}

/// A server with an update pending.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AffectedServer {
    /// ID of the server.
    pub server_id: ServerId,
    /// Host name.
    pub hostname: Hostname,
    /// Shown instead of the host name; null if none was set.
    #[serde(default)]
    pub display_name: Option<Line>,
    /// Status.
    pub status: Status,
    /// Environment.
    pub environment: Option<Environment>,
    /// Installed version.
    pub installed_version: String,
    /// Available version.
    pub available_version: String,
    /// Why the update would not be installed.
    pub blocked_by: Option<BlockedBy>,
}

impl AffectedServer {
    /// The name to show: the display name, or else the host name.
    pub fn name(&self) -> &str {
        self.display_name.as_ref().map_or(self.hostname.as_str(), Line::as_str)
    }
}

/// A CVE that an update fixes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PatchCve {
    /// CVE ID.
    pub id: String,
    /// Severity.
    pub severity: Severity,
    /// CVSS score.
    pub cvss: Option<f64>,
    /// Whether it is in the catalog of known exploited vulnerabilities (KEV).
    pub kev: bool,
    /// References.
    pub url: String,
}
