//! Policies, and which servers comply with them.

use jiff::Timestamp;
use jiff::civil::Date;
use serde::{Deserialize, Serialize};
use vocab::{
    ComplianceState, Environment, Hostname, Line, PolicyId, Selector, ServerId, Severity,
    UnknownCompliance,
};

/// The body of `POST /v1/policies` and `PUT /v1/policies/{policy_id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PolicyRequest {
    /// Name.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200))]
    pub name: String,
    /// What it is for.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_length = 2_000))]
    pub description: String,
    /// Servers that it applies to; new servers that match are included.
    #[cfg_attr(feature = "openapi", schema(value_type = Selector))]
    pub targets: serde_json::Value,
    /// What must be installed by when. If several rules match, the strictest one counts.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 20))]
    pub rules: Vec<PolicyRuleRequest>,
}

/// A rule of a policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PolicyRuleRequest {
    /// Which fixes it applies to.
    #[serde(rename = "match")]
    pub matches: PolicyMatchRequest,
    /// Days from when a fix became available to the server until it must be installed and running.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 3_650))]
    pub within_days: i64,
}

/// Which fixes a rule applies to: exactly one of the fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PolicyMatchRequest {
    /// `true`: fixes of CVEs that are known to be exploited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kev: Option<bool>,
    /// Fixes of CVEs of at least this severity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Severity>))]
    pub severity: Option<String>,
    /// `true`: fixes of all CVEs, and updates that the package manager marks as security updates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security: Option<bool>,
}

/// A rule of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PolicyRule {
    /// Which fixes it applies to.
    #[serde(rename = "match")]
    pub matches: PolicyMatch,
    /// Days from when a fix became available to the server until it must be installed and running.
    pub within_days: u32,
}

/// Which fixes a rule applies to: exactly one of the fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PolicyMatch {
    /// `true`: fixes of CVEs that are known to be exploited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kev: Option<bool>,
    /// Fixes of CVEs of at least this severity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
    /// `true`: fixes of all CVEs, and updates that the package manager marks as security updates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security: Option<bool>,
}

impl PolicyMatch {
    /// The fixes it matches, in words: "known exploited", "critical", "all security updates".
    pub fn description(self) -> String {
        match self {
            PolicyMatch { kev: Some(true), .. } => "known exploited".to_owned(),
            PolicyMatch { severity: Some(Severity::Critical), .. } => "critical".to_owned(),
            PolicyMatch { severity: Some(severity), .. } => format!("{severity} or worse"),
            PolicyMatch { .. } => "all security updates".to_owned(),
        }
    }
}

/// A policy: by when servers must install their fixes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Policy {
    /// ID.
    pub id: PolicyId,
    /// Name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// Servers that it applies to.
    pub targets: Selector,
    /// What must be installed by when.
    pub rules: Vec<PolicyRule>,
    /// Number of servers that match `targets` now.
    pub servers: u64,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// ID of the key or user that created it.
    pub created_by: String,
    /// Likely mistakes, such as targets that match no server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The servers of one environment under one policy. Every server is in exactly one state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Compliance {
    /// The policy.
    pub policy_id: PolicyId,
    /// Its name.
    pub policy: String,
    /// The environment; null for servers without one.
    pub environment: Option<Environment>,
    /// Number of servers: the sum of the four states.
    pub servers: u64,
    /// Nothing is overdue, and nothing is due within 48 hours.
    pub compliant: u64,
    /// The next fix is due within 48 hours.
    pub due_soon: u64,
    /// A fix is overdue.
    pub breaching: u64,
    /// Cannot be determined: not scanned, no feed, or the last scan is too old. Never counted as
    /// compliant.
    pub unknown: u64,
    /// The earliest due date that was missed; null if no server is in breach.
    pub oldest_breach_at: Option<Timestamp>,
    /// The counts of the last 90 days, oldest first. Days on which nothing was counted are missing.
    pub trend: Vec<ComplianceDay>,
}

/// The counts at the end of a day, or the current counts for today.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ComplianceDay {
    /// The day in UTC.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = Date))]
    pub day: Date,
    /// Compliant servers.
    pub compliant: u64,
    /// Servers with a fix due within 48 hours.
    pub due_soon: u64,
    /// Servers in breach.
    pub breaching: u64,
    /// Servers whose state cannot be determined.
    pub unknown: u64,
}

/// Where one server stands with one policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServerCompliance {
    /// The server.
    pub server_id: ServerId,
    /// Host name.
    pub hostname: Hostname,
    /// Shown instead of the host name; null if none was set.
    #[serde(default)]
    pub display_name: Option<Line>,
    /// Environment; null if it has none.
    pub environment: Option<Environment>,
    /// The policy.
    pub policy_id: PolicyId,
    /// Its name.
    pub policy: String,
    /// Where the server stands.
    pub state: ComplianceState,
    /// Why the state is `unknown`; null otherwise.
    pub unknown_reason: Option<UnknownCompliance>,
    /// The earliest due date; null if nothing is due. For an `unknown` server: as last known.
    pub due_at: Option<Timestamp>,
    /// Number of fixes that the policy requires.
    pub open: u32,
    /// How many of them are overdue.
    pub overdue: u32,
}

impl ServerCompliance {
    /// The name of the server to show: the display name, or else the host name.
    pub fn server_name(&self) -> &str {
        self.display_name.as_ref().map_or(self.hostname.as_str(), Line::as_str)
    }
}

/// The due date of a fix under a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExplainedPolicy {
    /// The policy with the earliest due date.
    pub policy_id: PolicyId,
    /// Its name.
    pub policy: String,
    /// When the fix became available to the server. Time in which it was withdrawn does not count.
    pub available_since: Timestamp,
    /// When it must be installed and running.
    pub due_at: Timestamp,
    /// Whether it is overdue.
    pub breach: bool,
}

/// A compliance report, and a signature that proves which installation created it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SignedReport {
    /// The report: JSON text, exactly as it was signed. It has the scope, the policies with their
    /// rules, figures and servers, and the exceptions.
    pub report: String,
    /// The public Ed25519 key, in Base64.
    pub key: String,
    /// The Ed25519 signature of `fleetmend compliance report v1\n` followed by `report`, in Base64.
    pub signature: String,
}

/// What the signature of a report covers. The first line keeps it from being mistaken for anything
/// else that an installation signs.
pub fn report_signing_text(report: &str) -> Vec<u8> {
    format!("fleetmend compliance report v1\n{report}").into_bytes()
}

/// What a compliance report says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ComplianceReport {
    /// The organization.
    pub organization: String,
    /// When the report was created.
    pub created_at: Timestamp,
    /// The environments that it is limited to; null: all.
    pub environments: Option<Vec<Environment>>,
    /// The policies in scope, with their rules and figures.
    pub policies: Vec<ReportedPolicy>,
    /// Suppressions that are active: fixes that do not count, with the reasons.
    pub suppressions: Vec<ReportedSuppression>,
    /// Freezes that have not ended: times in which nothing is installed, with the reasons. They do
    /// not stop the clock.
    pub freezes: Vec<ReportedFreeze>,
}

/// A policy in a report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReportedPolicy {
    /// ID.
    pub id: PolicyId,
    /// Name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The servers that it applies to.
    pub targets: Selector,
    /// Its rules.
    pub rules: Vec<PolicyRule>,
    /// The figures of each environment.
    pub figures: Vec<ReportedFigures>,
    /// The servers in breach with the oldest breaches, at most 100.
    pub breaches: Vec<ServerCompliance>,
    /// Servers whose state cannot be determined, at most 100.
    pub unknown: Vec<ServerCompliance>,
}

/// The figures of an environment in a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReportedFigures {
    /// The environment; null for servers without one.
    pub environment: Option<Environment>,
    /// Number of servers.
    pub servers: u64,
    /// Compliant servers.
    pub compliant: u64,
    /// Servers with a fix due within 48 hours.
    pub due_soon: u64,
    /// Servers in breach.
    pub breaching: u64,
    /// Servers whose state cannot be determined.
    pub unknown: u64,
    /// The earliest due date that was missed.
    pub oldest_breach_at: Option<Timestamp>,
}

/// A suppression in a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReportedSuppression {
    /// The CVE.
    pub cve: String,
    /// The source package; null for all.
    pub package: Option<String>,
    /// The environment; null for all.
    pub environment: Option<Environment>,
    /// The reason.
    pub reason: String,
    /// Its end; null if it does not end.
    pub expires_at: Option<Timestamp>,
    /// When it was created.
    pub created_at: Timestamp,
}

/// A freeze in a report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReportedFreeze {
    /// Its name.
    pub name: String,
    /// The reason.
    pub reason: String,
    /// The servers that it freezes.
    pub targets: Selector,
    /// Whether it is active now.
    pub active: bool,
}
