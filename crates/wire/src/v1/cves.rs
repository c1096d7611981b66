//! CVEs, and where an organization is exposed to them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{Environment, Hostname, Line, ServerId, Severity, Status};

use super::{CveState, Fix, Suppressed};

/// A CVE that affects a server of the organization: `GET /v1/cves`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CveSummary {
    /// CVE ID; the ID of the advisory where there is none.
    pub id: String,
    /// Highest severity on any affected server.
    pub severity: Severity,
    /// Source of the severity: a distribution, or a CVSS version.
    pub severity_source: Option<String>,
    /// CVSS score.
    pub cvss: Option<f64>,
    /// Whether it is in the catalog of known exploited vulnerabilities (KEV).
    pub kev: bool,
    /// EPSS: probability of exploitation within 30 days, from 0 to 1.
    pub epss: Option<f64>,
    /// Number of affected servers, without those on which it is suppressed.
    pub affected_servers: u64,
    /// Number of servers on which it is suppressed.
    pub suppressed_servers: u64,
    /// Affected source packages.
    pub packages: Vec<String>,
    /// When it was published.
    pub published: Option<Timestamp>,
}

/// A CVE and the servers that it affects: `GET /v1/cves/{cve_id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CveDetail {
    /// The same fields as in list responses.
    #[serde(flatten)]
    pub cve: CveSummary,
    /// References.
    pub url: String,
    /// Affected servers by name, including those on which it is suppressed.
    pub servers: Vec<ExposedServer>,
}

/// A server with a package that is affected by a CVE.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExposedServer {
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
    /// Affected source package.
    pub package: String,
    /// Installed version.
    pub installed_version: String,
    /// Fixed version, if there is one.
    pub fixed_version: Option<String>,
    /// Whether it is still exploitable.
    pub state: CveState,
    /// Fix status according to the distribution.
    pub fix: Fix,
    /// Source of the finding.
    pub found: String,
    /// The suppression that applies; null if none does.
    pub suppressed: Option<Suppressed>,
}

impl ExposedServer {
    /// The name to show: the display name, or else the host name.
    pub fn name(&self) -> &str {
        self.display_name.as_ref().map_or(self.hostname.as_str(), Line::as_str)
    }
}
