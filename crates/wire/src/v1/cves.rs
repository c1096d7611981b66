//! CVEs, and where an organization is exposed to them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{Environment, Hostname, ServerId, Severity, Status};

use super::{CveState, Fix, Suppressed};

/// A CVE that some server of the organization has: `GET /v1/cves`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CveSummary {
    /// Its number: `CVE-2026-1234`; or the advisory's, where none was given.
    pub id: String,
    /// How bad it is, where it is worst.
    pub severity: Severity,
    /// Who says so: a distribution, or a version of CVSS.
    pub severity_source: Option<String>,
    /// Its CVSS score.
    pub cvss: Option<f64>,
    /// Whether it is on the list of known exploited vulnerabilities.
    pub kev: bool,
    /// How probably it is exploited within 30 days, from 0 to 1.
    pub epss: Option<f64>,
    /// How many servers have it, those on which it was set aside not counted.
    pub affected_servers: u64,
    /// On how many servers it was set aside.
    pub suppressed_servers: u64,
    /// The source packages that it is in.
    pub packages: Vec<String>,
    /// When it became known.
    pub published: Option<Timestamp>,
}

/// Where the organization is exposed to a CVE: `GET /v1/cves/{cve_id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CveDetail {
    /// What a list shows of it.
    #[serde(flatten)]
    pub cve: CveSummary,
    /// Where to read about it.
    pub url: String,
    /// The servers that have it, by name; also those on which it was set aside.
    pub servers: Vec<ExposedServer>,
}

/// A server that has a CVE in one of its packages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExposedServer {
    /// Which one.
    pub server_id: ServerId,
    /// What it calls itself.
    pub hostname: Hostname,
    /// Whether it is heard from.
    pub status: Status,
    /// The environment that it is in, if any.
    pub environment: Option<Environment>,
    /// The source package that the CVE is in.
    pub package: String,
    /// The version that is installed.
    pub installed_version: String,
    /// The version in which it is fixed, if there is one.
    pub fixed_version: Option<String>,
    /// Whether it can still be exploited.
    pub state: CveState,
    /// What the distribution says of a fix.
    pub fix: Fix,
    /// How it was found.
    pub found: String,
    /// By what it was set aside here; null if it was not.
    pub suppressed: Option<Suppressed>,
}
