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
    /// What it is about, shortened, according to a distribution; null if no feed describes it.
    #[serde(default)]
    pub description: Option<String>,
    /// CVSS vector of the score.
    #[serde(default)]
    pub cvss_vector: Option<String>,
    /// The base metrics of the vector in words.
    #[serde(default)]
    pub cvss_metrics: Vec<CvssMetric>,
    /// Share of all CVEs with the same or a lower EPSS score, from 0 to 1.
    #[serde(default)]
    pub epss_percentile: Option<f64>,
    /// When the EPSS score was published first. Later publications had the same score.
    #[serde(default)]
    pub epss_as_of: Option<Timestamp>,
    /// Its entry in the catalog of known exploited vulnerabilities; null if there is none.
    #[serde(default)]
    pub kev_entry: Option<KevEntry>,
    /// Advisories that determined the findings on the servers of this page.
    #[serde(default)]
    pub advisories: Vec<AdvisoryReference>,
    /// Number of servers by environment, including those on which it is suppressed.
    #[serde(default)]
    pub environments: Vec<CveEnvironment>,
    /// Pending updates that fix it.
    #[serde(default)]
    pub fixed_by: Vec<CveFix>,
    /// Number of affected servers on which one of these updates is pending, at most 10,000.
    #[serde(default)]
    pub patchable_servers: u64,
    /// Affected servers by name, including those on which it is suppressed.
    pub servers: Vec<ExposedServer>,
}

/// A metric of a CVSS vector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CvssMetric {
    /// Name.
    #[cfg_attr(feature = "openapi", schema(example = "Attack vector"))]
    pub name: String,
    /// Value.
    #[cfg_attr(feature = "openapi", schema(example = "Network"))]
    pub value: String,
}

/// An entry in the catalog of known exploited vulnerabilities (KEV).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KevEntry {
    /// When it was added to the catalog.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = Date, example = "2026-08-04"))]
    pub added: jiff::civil::Date,
    /// The date by which agencies of the United States must fix it.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = Date, example = "2026-08-25"))]
    pub due: Option<jiff::civil::Date>,
    /// Whether ransomware is known to use it.
    pub ransomware: bool,
}

/// An advisory of a distribution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AdvisoryReference {
    /// ID.
    #[cfg_attr(feature = "openapi", schema(example = "DSA-5764-1"))]
    pub id: String,
    /// Summary in one line; empty if it has none.
    pub summary: String,
}

/// The servers of an environment that a CVE affects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CveEnvironment {
    /// Environment; null for servers without one.
    pub environment: Option<Environment>,
    /// Number of servers.
    pub servers: u64,
    /// Whether the CVE is suppressed there in every affected package.
    pub suppressed: bool,
}

/// A pending update that fixes a CVE.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CveFix {
    /// Package.
    #[cfg_attr(feature = "openapi", schema(example = "openssl"))]
    pub package_name: String,
    /// Number of servers on which it is pending.
    pub servers: u64,
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
