//! Servers, their packages and their CVEs.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{
    Assessment, BlockedBy, Environment, Hostname, Line, Os, PackageManager, PackagePattern,
    ServerId, Severity, Status, Tag, TaskId, UnassessedReason,
};

use super::Suppressed;

/// A server, as in lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Server {
    /// ID.
    pub id: ServerId,
    /// Host name.
    pub hostname: Hostname,
    /// Shown instead of the host name; null if none was set.
    #[serde(default)]
    pub display_name: Option<Line>,
    /// What its operators wrote about it.
    #[serde(default)]
    pub notes: String,
    /// Status.
    pub status: Status,
    /// Environment, if any.
    pub environment: Option<Environment>,
    /// Tags.
    pub tags: Vec<Tag>,
    /// Operating system.
    pub os: Option<Os>,
    /// Release of the running kernel.
    pub kernel: Option<Line>,
    /// CPU architecture.
    pub arch: Option<Line>,
    /// Package manager.
    pub package_manager: Option<PackageManager>,
    /// Version of the agent.
    pub agent_version: Option<Line>,
    /// Whether the agent is older than the one that the service carries for its architecture; null
    /// if the service carries none.
    #[serde(default)]
    pub agent_outdated: Option<bool>,
    /// Last contact of the agent.
    pub last_seen_at: Option<Timestamp>,
    /// When it was enrolled.
    pub enrolled_at: Timestamp,
    /// Last scan of its packages; null if never.
    pub last_scan_at: Option<Timestamp>,
    /// Whether the last scan is older than the service's `stale_after_days` (7 by default), so that
    /// its packages, updates and CVEs may be out of date.
    pub stale: bool,
    /// Whether its CVEs are known. Only `assessed` with no CVE means that none is known to affect
    /// it.
    pub assessment: Assessment,
    /// Whether it needs a reboot.
    pub reboot_required: bool,
    /// Why it needs a reboot.
    pub reboot_reasons: Vec<Line>,
    /// Current activity.
    pub activity: Activity,
    /// Other programs on the host that install updates automatically.
    pub other_updaters: Vec<Line>,
    /// What its administrator allows in `limits.toml`; null if its agent does not report it.
    #[serde(default)]
    pub limits: Option<HostLimits>,
    /// Why it is quarantined and gets no orders; null if it is not.
    pub quarantine: Option<Line>,
    /// Counts.
    pub summary: Summary,
}

impl Server {
    /// The name to show: the display name, or else the host name.
    pub fn name(&self) -> &str {
        self.display_name.as_ref().map_or(self.hostname.as_str(), Line::as_str)
    }
}

impl Server {
    /// Returns whether any of its packages were matched against advisories. If not, an empty CVE
    /// list means nothing.
    pub fn is_assessed(&self) -> bool {
        matches!(self.assessment, Assessment::Assessed | Assessment::Partial)
    }
}

/// What the administrator of a host allows in `/etc/fleetmend/limits.toml`. The host enforces it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct HostLimits {
    /// Why the file cannot be used; the host then allows scans only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Line>,
    /// Nothing may be installed, restarted or rebooted.
    pub frozen: bool,
    /// The host may not be rebooted.
    pub never_reboot: bool,
    /// The agent is never replaced by a newer version.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub never_upgrade_agent: bool,
    /// Only security updates may be installed.
    pub security_only: bool,
    /// Packages that are never changed.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub exclude: Vec<PackagePattern>,
    /// The largest number of packages that one order may change.
    pub max_packages: Option<u32>,
    /// When changes are allowed, in the host's local time; empty: always.
    pub allowed_hours: Vec<Line>,
}

impl HostLimits {
    /// Returns the reason if the host refuses every change.
    pub fn refuses_changes(&self) -> Option<String> {
        match (&self.error, self.frozen) {
            (Some(error), _) => Some(format!("limits.toml on the host cannot be used: {error}")),
            (None, true) => Some("`frozen` is set in limits.toml on the host".to_owned()),
            (None, false) => None,
        }
    }

    /// Lists the limits that apply to an order, one sentence per setting; empty if there are none.
    pub fn describe(&self) -> Vec<String> {
        let mut all: Vec<String> = self.refuses_changes().into_iter().collect();
        if self.never_reboot {
            all.push("the host allows no reboot".to_owned());
        }
        if self.security_only {
            all.push("the host allows security updates only".to_owned());
        }
        if !self.exclude.is_empty() {
            let names: Vec<String> = self.exclude.iter().map(ToString::to_string).collect();
            all.push(format!("the host excludes {}", names.join(", ")));
        }
        if let Some(max) = self.max_packages {
            all.push(format!("the host allows {max} packages per order"));
        }
        if !self.allowed_hours.is_empty() {
            let hours: Vec<&str> = self.allowed_hours.iter().map(Line::as_str).collect();
            all.push(format!("the host allows changes only {}", hours.join("; ")));
        }
        all
    }
}

/// Current activity of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// Idle.
    Idle,
    /// Scanning packages.
    Scanning,
    /// Installing updates.
    Patching,
    /// Rebooting.
    Rebooting,
}

/// Counts of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Summary {
    /// Number of installed packages.
    pub packages: u32,
    /// Number of pending updates.
    pub updates: u32,
    /// Number of pending security updates: those that the server's repositories mark as such, and
    /// those that fix a CVE from a feed. These are what `security_only` installs. Updated within
    /// seconds of a scan or a feed import.
    pub security_updates: u32,
    /// CVEs by severity, without suppressed ones.
    pub cves: SeverityCounts,
    /// Number of packages whose CVEs could not be assessed; `assessment` is then `partial`.
    pub unassessed: u32,
}

/// A package whose CVEs could not be assessed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UnassessedPackage {
    /// The source package; for `foreign_kernel`, the release of the running kernel.
    pub package: String,
    /// The installed version; null for a kernel.
    pub version: Option<String>,
    /// Why it was not assessed.
    pub reason: UnassessedReason,
    /// The reason in words, with the package's origin if that is known.
    pub detail: String,
}

/// The vulnerability data that a server is matched against.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Coverage {
    /// The system whose advisories apply: `Debian:12`.
    pub ecosystem: String,
    /// Whether these advisories also list CVEs that no update fixes yet. If not, such CVEs are
    /// unknown.
    pub lists_unfixed: bool,
    /// The system that this one is based on, if it is matched by that system's advisories:
    /// `Ubuntu 22.04` for Linux Mint 21.
    pub derived_from: Option<String>,
}

/// Counts by severity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SeverityCounts {
    pub critical: u32,
    pub high: u32,
    pub medium: u32,
    pub low: u32,
    pub unknown: u32,
}

/// A server with its packages and CVEs: `GET /v1/servers/{server_id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServerDetail {
    /// The same fields as in list responses.
    #[serde(flatten)]
    pub server: Server,
    /// Packages, by name.
    pub packages: Vec<Package>,
    /// CVEs that affect it, most severe first, including suppressed ones.
    pub cves: Vec<Cve>,
    /// Number of suppressed CVEs.
    pub suppressed_cves: u32,
    /// Whether its packages were matched against advisories for its operating system. If not, an
    /// empty list of CVEs does not mean that it has none.
    pub cves_checked: bool,
    /// The packages whose CVEs could not be assessed, by name.
    pub unassessed: Vec<UnassessedPackage>,
    /// The vulnerability data that it is matched against; null if no feed covers its system.
    pub coverage: Option<Coverage>,
    /// Processes that run code which an update has replaced on disk.
    pub old_code: Vec<OldCode>,
    /// The last upgrade of its agent; null if none was requested.
    #[serde(default)]
    pub agent_upgrade: Option<super::AgentUpgradeStatus>,
}

/// A process that runs code which an update has replaced on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OldCode {
    /// Package whose old files it runs; null if unknown.
    pub package: Option<Line>,
    /// Service to restart; null if it belongs to none.
    pub unit: Option<Line>,
    /// Name of the process.
    pub process: Line,
}

/// A package of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Package {
    /// Package name.
    pub name: String,
    /// Installed version.
    pub version: String,
    /// Architecture.
    pub arch: String,
    /// Source package.
    pub source: String,
    /// Available version, if an update is pending.
    pub available_version: Option<String>,
    /// Whether the update is a security update.
    pub security: bool,
    /// Whether the package is held on the host.
    pub held: bool,
    /// Why the update would not be installed.
    pub blocked_by: Option<BlockedBy>,
}

/// A CVE that affects a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Cve {
    /// CVE ID.
    pub id: String,
    /// Other ids of the same vulnerability, such as `GHSA-…`.
    pub aliases: Vec<String>,
    /// Severity.
    pub severity: Severity,
    /// Source of the severity: a distribution, a CVSS version, or the host's package manager.
    pub severity_source: Option<String>,
    /// CVSS score.
    pub cvss: Option<f64>,
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
    /// Whether it is in the catalog of known exploited vulnerabilities (KEV).
    pub kev: bool,
    /// EPSS: probability of exploitation within 30 days, from 0 to 1.
    pub epss: Option<f64>,
    /// When it was published.
    pub published: Option<Timestamp>,
    /// The suppression that applies; null if none does.
    pub suppressed: Option<Suppressed>,
}

/// Whether a CVE is still exploitable on a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CveState {
    /// A vulnerable version is installed.
    Open,
    /// The fix is installed, but old code is still running.
    FixedOnDisk,
}

/// Fix status in the installed release, according to the distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Fix {
    /// A fixed version is available.
    Fixed,
    /// Affected; no fix is available yet.
    Affected,
    /// The fix is deferred.
    Deferred,
    /// It will not be fixed in this release.
    WontFix,
    /// The release is not affected.
    NotAffected,
    /// Affected, but the distribution considers it harmless.
    Unimportant,
    /// The distribution no longer supports this package.
    EndOfLife,
    /// The fix is available to subscribers only.
    Subscription,
    /// Unknown.
    Unknown,
}

/// The body of `PATCH /v1/servers/{server_id}` (JSON Merge Patch). Omitted fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EditServer {
    /// Environment; `null` removes the server from its environment.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Environment>, example = "staging"))]
    pub environment: Option<Option<String>>,
    /// All tags of the server from now on; `null` removes them.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<Tag>>, max_items = 50))]
    pub tags: Option<Option<Vec<String>>>,
    /// Shown instead of the host name; `null` removes it.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, max_length = 200, example = "Shop database"))]
    pub display_name: Option<Option<String>>,
    /// Notes; `null` removes them.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, max_length = 2_000))]
    pub notes: Option<Option<String>>,
}

/// The body of `POST /v1/servers/edit`. Omitted fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EditServers {
    /// The servers to change.
    #[cfg_attr(feature = "openapi", schema(value_type = vocab::Selector))]
    pub targets: serde_json::Value,
    /// Environment; `null` removes the servers from their environments.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Environment>, example = "staging"))]
    pub environment: Option<Option<String>>,
    /// Tags to add.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Tag>, max_items = 50))]
    pub add_tags: Vec<String>,
    /// Tags to remove.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Tag>, max_items = 50))]
    pub remove_tags: Vec<String>,
}

/// The response of `POST /v1/servers/edit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EditedServers {
    /// Number of servers that the targets match.
    pub matched: u64,
    /// Number of servers that changed.
    pub changed: u64,
}

/// Reads a field that is present, `null` included, as `Some`.
pub(super) fn present<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A refresh: `POST /v1/servers/{server_id}/refresh` and its `Location`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Refresh {
    /// ID.
    pub id: TaskId,
    /// ID of the server.
    pub server_id: ServerId,
    /// State.
    pub state: RefreshState,
    /// When it was requested.
    pub requested_at: Timestamp,
    /// When it times out.
    pub deadline_at: Timestamp,
    /// When it ended.
    pub completed_at: Option<Timestamp>,
    /// Why it ended, as a message.
    pub message: Option<Line>,
}

/// State of a refresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RefreshState {
    /// The scan has not arrived.
    Pending,
    /// The scan has arrived.
    Completed,
    /// The agent could not scan.
    Failed,
    /// The agent did not answer in time.
    TimedOut,
    /// The server was removed.
    Canceled,
}
