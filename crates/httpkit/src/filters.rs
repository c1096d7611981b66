//! Query parameters of lists, shared by the API and the dashboard.

use service::EventKind;
use service::audit::Action;
use service::queries;
use service::queries::Page;
use service::queries::servers::Sort;
use service::queries::webhooks::DeliveryState;
use vocab::{ComplianceState, Environment, OsFilter, PolicyId, ServerId, Severity, Status, Tag};

use crate::{Limit, Offset, page};

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageParams {
    /// Maximum number of results.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    pub limit: Limit,
    /// Number of results to skip.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    pub offset: Offset,
}

impl PageParams {
    pub fn page(&self) -> Page {
        page::page(self.limit, self.offset)
    }
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ServerFilter {
    /// Only servers with this status.
    status: Option<Status>,
    /// Only servers in this environment.
    #[param(value_type = Option<Environment>)]
    environment: Option<Environment>,
    /// Only servers with this operating system, by ID or by ID and version: `debian`, `Debian 12`.
    #[param(value_type = Option<OsFilter>)]
    os: Option<OsFilter>,
    /// Only servers whose name contains this text, ignoring case.
    #[param(min_length = 1)]
    q: Option<String>,
    /// Only servers with all of these tags, separated by commas.
    #[serde(default)]
    #[param(value_type = Option<String>, required = false, example = "web,team:shop")]
    tag: CommaSeparated<Tag>,
    /// Only servers that do or do not need a reboot.
    reboot_required: Option<bool>,
    /// Sort order; by name if omitted.
    #[param(inline)]
    sort: Option<ServerSort>,
    /// Maximum number of results.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    limit: Limit,
    /// Number of results to skip.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

impl ServerFilter {
    pub fn page(&self) -> Page {
        page::page(self.limit, self.offset)
    }

    pub fn into_filter(self) -> (queries::servers::Filter, Sort) {
        let sort = match self.sort.unwrap_or_default() {
            ServerSort::Hostname => Sort::Hostname,
            ServerSort::LastSeen => Sort::LastSeen,
            ServerSort::SecurityUpdates => Sort::SecurityUpdates,
            ServerSort::Newest => Sort::Newest,
        };
        let wanted = queries::servers::Filter {
            status: self.status,
            environment: self.environment,
            os: self.os,
            search: self.q,
            tags: self.tag.0,
            reboot_required: self.reboot_required,
        };
        (wanted, sort)
    }
}

/// The order in which servers are listed. Ties are sorted by ID.
#[derive(Debug, Clone, Copy, Default, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServerSort {
    /// By name.
    #[default]
    Hostname,
    /// Longest without contact first.
    LastSeen,
    /// Most pending security updates first.
    SecurityUpdates,
    /// Most recently enrolled first.
    Newest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BatchState(&'static str);

impl std::str::FromStr for BatchState {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        parse_one_of("a state of a batch", text, &queries::batches::STATES).map(BatchState)
    }
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct BatchFilter {
    /// Only results in one of these states, separated by commas.
    #[serde(default)]
    #[param(value_type = Option<String>, required = false, example = "running,paused")]
    state: CommaSeparated<BatchState>,
    /// Maximum number of results.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    limit: Limit,
    /// Number of results to skip.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

impl BatchFilter {
    pub fn page(&self) -> Page {
        page::page(self.limit, self.offset)
    }

    pub fn states(&self) -> Vec<&'static str> {
        self.state.0.iter().map(|word| word.0).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TaskState(&'static str);

pub const TASK_STATES: [&str; 15] = [
    "pending",
    "waiting",
    "dispatched",
    "preflight",
    "downloading",
    "installing",
    "restarting_services",
    "rebooting",
    "verifying",
    "succeeded",
    "no_change",
    "failed",
    "timed_out",
    "skipped",
    "canceled",
];

impl std::str::FromStr for TaskState {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        parse_one_of("a state of a task", text, &TASK_STATES).map(TaskState)
    }
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TaskFilter {
    /// Only results in one of these states, separated by commas.
    #[serde(default)]
    #[param(value_type = Option<String>, required = false, example = "failed,timed_out")]
    state: CommaSeparated<TaskState>,
    /// Maximum number of results.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    limit: Limit,
    /// Number of results to skip.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

impl TaskFilter {
    pub fn page(&self) -> Page {
        page::page(self.limit, self.offset)
    }

    pub fn states(&self) -> Vec<&'static str> {
        self.state.0.iter().map(|word| word.0).collect()
    }
}

pub const DELIVERY_STATES: [&str; 3] = ["pending", "delivered", "failed"];

/// A state of a delivery to a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryStateParam(pub DeliveryState);

impl std::str::FromStr for DeliveryStateParam {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let word = parse_one_of("a state of a delivery", text, &DELIVERY_STATES)?;
        word.parse().map(DeliveryStateParam)
    }
}

/// The types of events that a pattern selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventTypes(pub Vec<EventKind>);

impl std::str::FromStr for EventTypes {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        EventKind::select(text).map(EventTypes)
    }
}

/// The actions in the audit log that a pattern selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actions(pub Vec<Action>);

impl std::str::FromStr for Actions {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match Action::matching(text) {
            actions if actions.is_empty() => {
                let known = Action::ALL.iter().map(|action| action.as_str());
                Err(match vocab::nearest(text, known) {
                    Some(nearest) => format!("not an action; did you mean `{nearest}`?"),
                    None => "not an action; `batch.*` selects a group of them".to_owned(),
                })
            }
            actions => Ok(Actions(actions)),
        }
    }
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CveFilter {
    /// Only results with one of these severities, separated by commas.
    #[serde(default)]
    #[param(value_type = Option<String>, required = false, example = "critical,high")]
    severity: CommaSeparated<Severity>,
    /// Only CVEs that are or are not in the catalog of known exploited vulnerabilities (KEV).
    kev: Option<bool>,
    /// Only CVEs that are or are not suppressed on all affected servers.
    suppressed: Option<bool>,
    /// Only CVEs whose ID contains this text: `2026-12`.
    #[param(min_length = 1)]
    q: Option<String>,
    /// Sort order; by severity if omitted.
    #[param(inline)]
    sort: Option<CveSort>,
    /// Maximum number of results.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    limit: Limit,
    /// Number of results to skip.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

impl CveFilter {
    pub fn page(&self) -> Page {
        page::page(self.limit, self.offset)
    }

    pub fn into_filter(self) -> queries::cves::Filter {
        queries::cves::Filter {
            severities: self.severity.0,
            kev: self.kev,
            suppressed: self.suppressed,
            search: self.q,
            sort: match self.sort.unwrap_or_default() {
                CveSort::Severity => queries::cves::Sort::Severity,
                CveSort::AffectedServers => queries::cves::Sort::AffectedServers,
                CveSort::Published => queries::cves::Sort::Published,
                CveSort::Id => queries::cves::Sort::Id,
            },
        }
    }
}

/// The order in which CVEs are listed. Ties are sorted by ID.
#[derive(Debug, Clone, Copy, Default, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CveSort {
    /// By severity, then known exploited ones first, then by affected servers.
    #[default]
    Severity,
    /// Most affected servers first.
    AffectedServers,
    /// Most recently published first. Those without a date come last.
    Published,
    /// By ID.
    Id,
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CveServers {
    /// Maximum number of affected servers; 100 if omitted.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 500, default = 100, required = false)]
    limit: Option<Limit>,
    /// Number of affected servers to skip.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

impl CveServers {
    pub fn page(&self) -> Page {
        page::page(self.limit.unwrap_or(Limit(100)), self.offset)
    }
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PatchFilter {
    /// Only packages whose name contains this text, ignoring case.
    #[param(min_length = 1)]
    q: Option<String>,
    /// Only updates that are pending on this server.
    #[param(value_type = Option<ServerId>)]
    server_id: Option<String>,
    /// Only results with one of these severities, separated by commas.
    #[serde(default)]
    #[param(value_type = Option<String>, required = false, example = "critical,high")]
    severity: CommaSeparated<Severity>,
    /// Only patches that do or do not fix a CVE in the catalog of known exploited vulnerabilities
    /// (KEV).
    kev: Option<bool>,
    /// Sort order; by severity if omitted.
    #[param(inline)]
    sort: Option<PatchSort>,
    /// Maximum number of results.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    limit: Limit,
    /// Number of results to skip.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

/// The order in which patches are listed. Ties are sorted by name.
#[derive(Debug, Clone, Copy, Default, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PatchSort {
    /// By severity, then known exploited ones first, then by affected servers.
    #[default]
    Severity,
    /// Most affected servers first.
    AffectedServers,
    /// Longest pending first.
    FirstSeen,
    /// By name.
    Name,
}

impl PatchFilter {
    pub fn page(&self) -> Page {
        page::page(self.limit, self.offset)
    }

    pub fn into_filter(self) -> queries::patches::Filter {
        queries::patches::Filter {
            server: self.server_id,
            severities: self.severity.0,
            kev: self.kev,
            search: self.q,
            sort: match self.sort.unwrap_or_default() {
                PatchSort::Severity => queries::patches::Sort::Severity,
                PatchSort::AffectedServers => queries::patches::Sort::AffectedServers,
                PatchSort::FirstSeen => queries::patches::Sort::FirstSeen,
                PatchSort::Name => queries::patches::Sort::Name,
            },
        }
    }
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PatchServers {
    /// Maximum number of affected servers; 500 if omitted.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 500, default = 500, required = false)]
    limit: Option<Limit>,
    /// Number of affected servers to skip.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

impl PatchServers {
    pub fn page(&self) -> Page {
        page::page(self.limit.unwrap_or(Limit(500)), self.offset)
    }
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ScheduleList {
    /// Maximum number of results; all if omitted.
    #[serde(default)]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 500, required = false)]
    limit: Option<Limit>,
    /// Number of results to skip.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

impl ScheduleList {
    /// The limit, if there is one, and the offset.
    pub fn limit_and_offset(&self) -> (Option<u32>, u64) {
        (self.limit.map(|limit| limit.0), self.offset.0)
    }
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ComplianceFilter {
    /// Only this policy.
    #[param(value_type = Option<PolicyId>)]
    policy: Option<PolicyId>,
    /// Only servers in this environment.
    #[param(value_type = Option<Environment>)]
    environment: Option<Environment>,
    /// Maximum number of results.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    limit: Limit,
    /// Number of results to skip.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

impl ComplianceFilter {
    pub fn wanted(&self) -> queries::compliance::Wanted {
        queries::compliance::Wanted { policy: self.policy, environment: self.environment.clone() }
    }

    pub fn page(&self) -> Page {
        page::page(self.limit, self.offset)
    }
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ComplianceReportFilter {
    /// Only this policy.
    #[param(value_type = Option<PolicyId>)]
    policy: Option<PolicyId>,
    /// Only servers in this environment.
    #[param(value_type = Option<Environment>)]
    environment: Option<Environment>,
}

impl ComplianceReportFilter {
    pub fn wanted(self) -> queries::compliance::Wanted {
        queries::compliance::Wanted { policy: self.policy, environment: self.environment }
    }
}

#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ComplianceServers {
    /// The policy.
    #[param(value_type = PolicyId)]
    pub policy: PolicyId,
    /// Only servers in this environment.
    #[param(value_type = Option<Environment>)]
    pub environment: Option<Environment>,
    /// Only servers in this state.
    #[param(value_type = Option<ComplianceState>)]
    pub state: Option<ComplianceState>,
    /// Maximum number of results.
    #[serde(default)]
    #[param(value_type = u32, minimum = 1, maximum = 500, default = 50, required = false)]
    limit: Limit,
    /// Number of results to skip.
    #[serde(default)]
    #[param(value_type = u64, minimum = 0, default = 0, required = false)]
    offset: Offset,
}

impl ComplianceServers {
    pub fn page(&self) -> Page {
        page::page(self.limit, self.offset)
    }
}

/// Several values in one query parameter, separated by commas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommaSeparated<T>(pub Vec<T>);

impl<T> Default for CommaSeparated<T> {
    fn default() -> Self {
        CommaSeparated(Vec::new())
    }
}

impl<'de, T: std::str::FromStr<Err: std::fmt::Display>> serde::Deserialize<'de>
    for CommaSeparated<T>
{
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let words = text.split(',').map(|word| word.trim().parse());
        words.collect::<Result<_, _>>().map(CommaSeparated).map_err(serde::de::Error::custom)
    }
}

/// Matches one of `words`, or returns an error with the nearest one.
pub fn parse_one_of(
    what: &str,
    text: &str,
    words: &'static [&'static str],
) -> Result<&'static str, String> {
    let found = words.iter().find(|word| **word == text).copied();
    found.ok_or_else(|| match vocab::nearest(text, words.iter().copied()) {
        Some(nearest) => format!("not {what}; did you mean `{nearest}`?"),
        None => format!("not {what}; expected one of {}", words.join(", ")),
    })
}
