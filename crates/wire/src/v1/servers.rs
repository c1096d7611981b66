//! Servers, their packages and their CVEs.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{
    Assessment, BlockedBy, Environment, Hostname, Line, Os, PackageManager, PackagePattern,
    ServerId, Severity, Status, Tag, TaskId, UnassessedReason,
};

use super::Suppressed;

/// A server, as a list shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Server {
    /// Which one.
    pub id: ServerId,
    /// What it calls itself.
    pub hostname: Hostname,
    /// Whether it is heard from.
    pub status: Status,
    /// The environment that it is in, if any.
    pub environment: Option<Environment>,
    /// The tags that it carries.
    pub tags: Vec<Tag>,
    /// The system that it runs.
    pub os: Option<Os>,
    /// The kernel that is running.
    pub kernel: Option<Line>,
    /// What its processor is called.
    pub arch: Option<Line>,
    /// The program that installs its packages.
    pub package_manager: Option<PackageManager>,
    /// The version of its agent.
    pub agent_version: Option<Line>,
    /// When its agent last said anything.
    pub last_seen_at: Option<Timestamp>,
    /// When it joined.
    pub enrolled_at: Timestamp,
    /// When its packages were last scanned; null if never.
    pub last_scan_at: Option<Timestamp>,
    /// Whether the last scan is older than the service's `stale_after_days` (7 by default), so that its
    /// packages, updates and CVEs may be out of date.
    pub stale: bool,
    /// Whether its CVEs are known. Only `assessed` with no CVE means that none is known to affect it.
    pub assessment: Assessment,
    /// Whether it should be rebooted.
    pub reboot_required: bool,
    /// Why it should.
    pub reboot_reasons: Vec<Line>,
    /// What it is doing.
    pub activity: Activity,
    /// Other programs on it that install updates by themselves, and so behind a rollout's back.
    pub other_updaters: Vec<Line>,
    /// What its administrator allows in `limits.toml`; null if its agent does not report it.
    #[serde(default)]
    pub limits: Option<HostLimits>,
    /// Why it gets no orders until an administrator decides; nothing if it gets them.
    pub quarantine: Option<Line>,
    /// What there is of it, in numbers.
    pub summary: Summary,
}

impl Server {
    /// Whether any of its packages were matched, so that "no CVE" says something.
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
    /// Only security updates may be installed.
    pub security_only: bool,
    /// Packages that are never touched.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub exclude: Vec<PackagePattern>,
    /// The largest number of packages that one order may change.
    pub max_packages: Option<u32>,
    /// When changes are allowed, in the host's local time; empty: always.
    pub allowed_hours: Vec<Line>,
}

impl HostLimits {
    /// Why the host refuses every change, if it does.
    pub fn refuses_changes(&self) -> Option<String> {
        match (&self.error, self.frozen) {
            (Some(error), _) => Some(format!("limits.toml on the host cannot be used: {error}")),
            (None, true) => Some("`frozen` is set in limits.toml on the host".to_owned()),
            (None, false) => None,
        }
    }

    /// What limits an order, one sentence per setting; empty if nothing does.
    pub fn sentences(&self) -> Vec<String> {
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
        if let Some(most) = self.max_packages {
            all.push(format!("the host allows {most} packages per order"));
        }
        if !self.allowed_hours.is_empty() {
            let hours: Vec<&str> = self.allowed_hours.iter().map(Line::as_str).collect();
            all.push(format!("the host allows changes only {}", hours.join("; ")));
        }
        all
    }
}

/// What a server is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// Nothing.
    Idle,
    /// Looking at its packages.
    Scanning,
    /// Installing updates.
    Patching,
    /// Rebooting.
    Rebooting,
}

/// A server in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Summary {
    /// How many packages are installed.
    pub packages: u32,
    /// How many updates are pending.
    pub updates: u32,
    /// How many of them are for security: those that the server's repositories call so, and those that close a flaw known from a feed. The same that an
    /// order with `security_only` means. Follows a scan or a feed by some seconds.
    pub security_updates: u32,
    /// How many CVEs it has, those that were set aside not counted.
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
    /// Whether these advisories also list CVEs that no update fixes yet. If not, such CVEs are unknown.
    pub lists_unfixed: bool,
    /// The system that this one is based on, if it is matched by that system's advisories:
    /// `Ubuntu 22.04` for Linux Mint 21.
    pub derived_from: Option<String>,
}

/// So many of each severity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SeverityCounts {
    pub critical: u32,
    pub high: u32,
    pub medium: u32,
    pub low: u32,
    pub unknown: u32,
}

/// A server with all that is known of it: `GET /v1/servers/{server_id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServerDetail {
    /// What a list shows of it.
    #[serde(flatten)]
    pub server: Server,
    /// Its packages, by name.
    pub packages: Vec<Package>,
    /// The CVEs that concern it, the worst first; also those that were set aside.
    pub cves: Vec<Cve>,
    /// How many of them were set aside.
    pub suppressed_cves: u32,
    /// Whether its packages were held against advisories for its system. If not, that no CVE is listed does not
    /// mean that it has none.
    pub cves_checked: bool,
    /// The packages whose CVEs could not be assessed, by name.
    pub unassessed: Vec<UnassessedPackage>,
    /// The vulnerability data that it is matched against; null if no feed covers its system.
    pub coverage: Option<Coverage>,
    /// What runs code that an update has replaced on the disk.
    pub old_code: Vec<OldCode>,
}

/// A process that runs code which an update has replaced on the disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OldCode {
    /// The package whose old files it runs; nothing if that could not be found out.
    pub package: Option<Line>,
    /// The service to restart; nothing if it belongs to none.
    pub unit: Option<Line>,
    /// What the process is called.
    pub process: Line,
}

/// A package of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Package {
    /// Its name, as the host says it.
    pub name: String,
    /// The version that is installed.
    pub version: String,
    /// Its architecture.
    pub arch: String,
    /// The source package that it was built from.
    pub source: String,
    /// The version that an update would bring.
    pub available_version: Option<String>,
    /// Whether that update fixes a security flaw.
    pub security: bool,
    /// Whether the administrator holds it.
    pub held: bool,
    /// Why the update would not be installed.
    pub blocked_by: Option<BlockedBy>,
}

/// A CVE that concerns a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Cve {
    /// Its number: `CVE-2026-1234`.
    pub id: String,
    /// Other ids of the same vulnerability, such as `GHSA-…`.
    pub aliases: Vec<String>,
    /// How bad it is.
    pub severity: Severity,
    /// Who says so: a distribution, a version of CVSS, or the host's package manager.
    pub severity_source: Option<String>,
    /// Its CVSS score.
    pub cvss: Option<f64>,
    /// The source package that it is in.
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
    /// Whether it is on the list of known exploited vulnerabilities.
    pub kev: bool,
    /// How probably it is exploited within 30 days, from 0 to 1.
    pub epss: Option<f64>,
    /// When it became known.
    pub published: Option<Timestamp>,
    /// By what it was set aside; null if it was not.
    pub suppressed: Option<Suppressed>,
}

/// Whether a CVE can still be exploited on a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CveState {
    /// The flaw is installed.
    Open,
    /// The fix is installed, and old code still runs.
    FixedOnDisk,
}

/// What the distribution says of a fix in the release that is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Fix {
    /// A version of this release fixes it.
    Fixed,
    /// The release is affected, and nothing fixes it yet.
    Affected,
    /// It will be fixed later, with something else.
    Deferred,
    /// It will not be fixed in this release.
    WontFix,
    /// The release never had it.
    NotAffected,
    /// It is there and harmless, in the distribution's opinion.
    Unimportant,
    /// The distribution no longer looks after this package.
    EndOfLife,
    /// The fix is for subscribers only.
    Subscription,
    /// Nobody can say.
    Unknown,
}

/// A refresh that was asked for: `POST /v1/servers/{server_id}/refresh` and its `Location`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Refresh {
    /// Which one.
    pub id: TaskId,
    /// Of which server.
    pub server_id: ServerId,
    /// Whether it is done.
    pub state: RefreshState,
    /// When it was asked for.
    pub requested_at: Timestamp,
    /// When it ends in any case.
    pub deadline_at: Timestamp,
    /// When the scan had arrived, or it ended otherwise.
    pub completed_at: Option<Timestamp>,
    /// Why it ended so, for people.
    pub message: Option<Line>,
}

/// Whether a refresh is done.
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
