//! Updates that are pending somewhere, and what they concern.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{BlockedBy, Environment, Hostname, ServerId, Severity, Status, UpdateType};

/// A package with an update pending somewhere in the organization.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Patch {
    /// The package, as hosts name it.
    pub package_name: String,
    /// The worst that it fixes.
    pub severity: Severity,
    /// Who says so.
    pub severity_source: Option<String>,
    /// What the update is for.
    #[serde(rename = "type")]
    pub update_type: UpdateType,
    /// From which version to which, by system.
    pub versions: Vec<PatchVersion>,
    /// How many servers wait for it.
    pub affected_servers: u64,
    /// The CVEs that it fixes.
    pub cves: Vec<String>,
    /// Whether one of them is on the list of known exploited vulnerabilities.
    pub kev: bool,
    /// When a server first reported it.
    pub first_seen_at: Timestamp,
}

/// An update on one kind of system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PatchVersion {
    /// The system: `debian 12`.
    pub os: String,
    /// The version that is installed.
    pub from: String,
    /// The version that it brings.
    pub to: String,
}

/// An update with all that it concerns: `GET /v1/patches/{package_name}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PatchDetail {
    /// What a list shows of it.
    #[serde(flatten)]
    pub patch: Patch,
    /// The servers that wait for it.
    pub servers: Vec<AffectedServer>,
    /// More of the CVEs that it fixes.
    pub cve_details: Vec<PatchCve>,
}

/// A server that waits for an update.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AffectedServer {
    /// Which one.
    pub server_id: ServerId,
    /// What it calls itself.
    pub hostname: Hostname,
    /// Whether it is heard from.
    pub status: Status,
    /// The environment that it is in, if any.
    pub environment: Option<Environment>,
    /// The version that it has.
    pub installed_version: String,
    /// The version that it would get.
    pub available_version: String,
    /// Why it would not get it.
    pub blocked_by: Option<BlockedBy>,
}

/// A CVE that an update fixes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PatchCve {
    /// Its number.
    pub id: String,
    /// How bad it is.
    pub severity: Severity,
    /// Its CVSS score.
    pub cvss: Option<f64>,
    /// Whether it is on the list of known exploited vulnerabilities.
    pub kev: bool,
    /// Where to read about it.
    pub url: String,
}
