//! The protocol between an agent and its service: `/agent/v1`, with the single operation "sync".
//!
//! Server and agent must work with the previous version of each other. An unknown field is
//! therefore ignored, a missing field has a default, and an unknown enum value becomes the closest
//! value that does not claim too much. An order of an unknown kind keeps its name, so that the
//! agent can refuse it by that name.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use vocab::{
    Digest, Environment, FailureCode, HealthProblemKind, Hostname, Line, Os, PackageManager,
    PackageName, PackagePattern, RebootPolicy, ServerId, Stage, Tag, TaskId,
};

use crate::v1::{Activity, HostLimits};

/// Request body of `POST /agent/v1/sync`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncRequest {
    /// Boot id of the host. A different id means that the host rebooted.
    pub boot_id: Line,
    /// Incremented with each sync. A value behind the service's reveals a cloned host or a restored
    /// copy.
    pub counter: u64,
    /// Random; replaced whenever a response arrives. It distinguishes a sync that is repeated
    /// because its response was lost from the sync of a copy.
    #[serde(default)]
    pub nonce: u64,
    /// How long the service may hold the sync open while it has nothing to send; 0: not at all.
    #[serde(default)]
    pub hold_seconds: u32,
    /// Facts about the host. Sent when they change or when the service asks for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<Facts>,
    /// Digest of the installed packages, once the agent has scanned them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installed: Option<Digest>,
    /// Digest of the pending updates, once the agent has scanned for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<Digest>,
    /// Time of the scan behind both digests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scanned_at: Option<Timestamp>,
    #[serde(default = "default_activity", deserialize_with = "activity_or_idle")]
    pub activity: Activity,
    /// Results that the service has not acknowledged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<OrderResult>,
    /// Progress of unfinished orders.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub progress: Vec<OrderProgress>,
    /// The host's health during a watch ([`SyncResponse::watch_health_until`]). Sent when it
    /// changed and when the watch ended, until a response arrives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthReport>,
}

/// Facts about a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    pub hostname: Hostname,
    pub os: Os,
    /// Release of the running kernel.
    #[serde(default)]
    pub kernel: Line,
    /// CPU architecture.
    #[serde(default)]
    pub arch: Line,
    pub package_manager: PackageManager,
    #[serde(default)]
    pub agent_version: Line,
    #[serde(default)]
    pub reboot_required: bool,
    #[serde(default)]
    pub reboot_reasons: Vec<Line>,
    /// Processes that run code which is no longer on disk, by package; at most [`OLD_CODE_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub old_code: Vec<OldCode>,
    /// Other programs that install updates automatically, outside the control of a rollout.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_updaters: Vec<Line>,
    /// Whether the kernel belongs to the machine that runs the host, as in a container.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreign_kernel: bool,
    /// The limits that the host's administrator set; `None` from an agent that does not report
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<HostLimits>,
    /// Ids ([`orders_key_id`]) of the keys whose orders and responses the agent accepts, at most
    /// [`ORDERS_KEYS_MAX`]. Empty from an agent that cannot change its key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trusted_keys: Vec<Line>,
}

/// Maximum number of entries in [`Facts::old_code`].
pub const OLD_CODE_MAX: usize = 500;

/// A process that runs code which an update has replaced.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OldCode {
    /// The package whose old files the process runs; `None` if it could not be determined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<Line>,
    /// The service to restart, such as `ssh.service`; `None` if the process belongs to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Line>,
    /// Name of the process.
    pub process: Line,
}

/// Response to a sync.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncResponse {
    /// The counter to send with the next sync.
    pub counter: u64,
    /// Orders to carry out. The service repeats an order until its result has arrived.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orders: Vec<Envelope>,
    /// Digests of package sets that the service does not have and wants the agent to upload.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wanted: Vec<Digest>,
    /// Whether the agent should send its facts.
    #[serde(default)]
    pub wants_facts: bool,
    /// Orders whose results the service has stored. The agent does not send them again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acknowledged: Vec<TaskId>,
    /// Orders to drop, if the agent has not begun to work on them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub withdrawn: Vec<TaskId>,
    /// Orders that are in progress according to the service, but that the sync mentioned neither as
    /// progress nor as a result. The agent reports the result of each again; an order that it has
    /// no record of ends as [`Outcome::Unknown`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreported: Vec<TaskId>,
    /// Sync interval in seconds while there is nothing to report.
    pub sync_seconds: u32,
    /// The service's clock; 1970 if the service does not send it.
    #[serde(default)]
    pub server_time: Timestamp,
    /// Every key that the service signs with, oldest first. Sent if the agent trusts a different
    /// set. The agent replaces its trusted keys with it if the response is signed with one of the
    /// old ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orders_keys: Vec<OrdersKey>,
    /// Replaces the tag of the request ([`EnrollResponse::tag`]) from now on: the service is
    /// rotating the key that tags are made with. The agent accepts it from signed responses only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewed_tag: Option<String>,
    /// Until when the agent measures the host's health with each sync, by the service's clock. A
    /// response without it ends a watch whose end has not passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watch_health_until: Option<Timestamp>,
}

/// A key with which a service signs orders and responses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrdersKey {
    pub id: String,
    /// The Ed25519 public key, in base64.
    pub public_key: String,
}

/// Maximum number of keys that a service announces and an agent trusts.
pub const ORDERS_KEYS_MAX: usize = 4;

/// Returns the id of a key: the first 16 hexadecimal digits of the BLAKE3 hash of the public key.
pub fn orders_key_id(public_key: &[u8]) -> String {
    Digest::compute(public_key).to_string()[..16].to_owned()
}

/// Request body of `POST /agent/v1/enroll`: a host joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrollRequest {
    /// The enrollment token.
    pub token: String,
    /// The Ed25519 public key of the agent, in base64. The private key never leaves the host.
    pub public_key: String,
    pub facts: Facts,
    /// The environment that the host claims; the token's environment takes precedence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<Environment>,
    /// The tags that the host claims; the token's tags take precedence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<Tag>,
}

/// Response to an enrollment: the identity of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrollResponse {
    pub server_id: ServerId,
    /// Sent with each request to prove that this service issued the id to this key. In base64.
    pub tag: String,
    /// The Ed25519 public key that verifies orders, in base64. While the service rotates its key,
    /// this is the old one, which agents without support for `orders_keys` need.
    pub orders_key: String,
    /// Every key that the service signs with, oldest first. Older services omit it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orders_keys: Vec<OrdersKey>,
    /// The counter to send with the first sync.
    pub counter: u64,
    /// Sync interval in seconds while there is nothing to report.
    pub sync_seconds: u32,
    /// Whether the service signs its responses ([`response_signing_text`]). Older services omit it.
    #[serde(default)]
    pub signs_answers: bool,
}

/// Request header: random bytes in base64, new for every request, retries included.
pub const NONCE_HEADER: &str = "fleetmend-nonce";
/// Maximum length of [`NONCE_HEADER`] that a service accepts.
pub const NONCE_CHARS_MAX: usize = 64;
/// Response header: the id of the key, a space, and the Ed25519 signature over
/// [`response_signing_text`] in base64.
pub const SIGNATURE_HEADER: &str = "fleetmend-signature";

/// Request header: the ids of the keys that the agent trusts, separated by commas. It selects the
/// key that signs the response. An attacker who changes it in transit gets a response that the
/// agent refuses, or one that is signed with another key that the agent trusts.
pub const TRUSTED_KEYS_HEADER: &str = "fleetmend-trusted-keys";

/// Returns the text that a service signs for a response: the recipient, the request that it
/// answers, and everything in it that an agent acts on. `request_signature` is the agent's own
/// signature in base64; it covers method, path, query and body. No order starts like this text, so
/// a signature over one can never pass for a signature over the other.
pub fn response_signing_text(
    server_id: ServerId,
    nonce: &str,
    request_signature: &str,
    status: u16,
    body: &[u8],
) -> String {
    let body = Digest::compute(body);
    format!("fleetmend-answer-v1\n{server_id}\n{nonce}\n{request_signature}\n{status}\n{body}")
}

/// A signed order in transit: the signed text and its signature. The text is opaque here because
/// the signature covers bytes, not their meaning. Once verified, it is parsed as an [`Order`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// The signed text: an [`Order`] as JSON.
    pub order: String,
    /// Id of the key that signed it.
    pub key: String,
    /// The Ed25519 signature over `order`, in base64.
    pub signature: String,
}

/// An instruction to one agent, bound to one server and limited in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Orders with the same id are the same order, however often they arrive.
    pub id: TaskId,
    /// The only server that may carry it out.
    pub server_id: ServerId,
    pub issued_at: Timestamp,
    /// The order must not start after this time.
    pub expires_at: Timestamp,
    pub work: Work,
}

/// The work of an order. A service cannot ask an agent for anything else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Work {
    /// Scan packages.
    Scan,
    /// Determine what an installation would change, without changing anything.
    Plan(Install),
    /// Install updates of packages that are already installed.
    Install(Install),
    /// Like `Install`, but only these versions. A separate kind, because an agent that does not
    /// know it must refuse it: it would install other versions.
    InstallVersions(InstallVersions),
    /// Restart the services that run old code.
    RestartServices,
    Reboot(Reboot),
    /// Replace the agent's program by the one that the service carries.
    UpgradeAgent(AgentUpgrade),
    /// A kind of work that this version does not know, with its name. Never serialized.
    #[serde(skip_serializing)]
    Unknown {
        name: Line,
    },
    /// A known kind with an invalid part, such as an invalid package name. It is still
    /// deserialized, so that the agent can refuse the order by its id. Never serialized.
    #[serde(skip_serializing)]
    Malformed {
        /// The kind of work.
        name: Line,
        reason: Line,
    },
}

/// Which updates to install, and whether to reboot afterwards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Install {
    /// Exact package names; empty means every pending update.
    #[serde(default)]
    pub packages: Vec<PackageName>,
    /// Packages that must not be changed.
    #[serde(default)]
    pub exclude: Vec<PackagePattern>,
    /// Install security updates only.
    #[serde(default)]
    pub security_only: bool,
    /// Packages whose updates fix vulnerabilities, even if the host's repositories do not mark them
    /// as security updates. `security_only` includes them; the host's own limits use only what the
    /// host knows.
    #[serde(default)]
    pub security_packages: Vec<PackageName>,
    /// Whether the host may be rebooted afterwards.
    #[serde(default)]
    pub reboot: RebootPolicy,
    /// The boot that the order was issued for. If the host has rebooted since, the order does not
    /// reboot it again.
    #[serde(default)]
    pub boot_id: Line,
    /// Whether the agent measures the host's health before and after the change, and reports the
    /// difference in the result.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub health: bool,
}

/// Exactly these versions, and nothing else. Versions of packages that are not installed are
/// ignored, and so are versions that are installed already or older than the installed ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstallVersions {
    /// The other rules. `packages` restricts the versions to these packages; `security_only` has no
    /// effect, because the versions were selected already.
    #[serde(flatten)]
    pub install: Install,
    /// At most [`VERSIONS_MAX`].
    #[serde(deserialize_with = "limited_versions")]
    pub versions: Vec<PackageVersion>,
}

/// Maximum number of versions in an order.
pub const VERSIONS_MAX: usize = 5_000;

/// A version of a package.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PackageVersion {
    pub name: PackageName,
    /// The architecture, in the package manager's spelling. Empty: the installed one.
    #[serde(default)]
    pub arch: Line,
    pub version: Line,
}

/// A reboot, carried out at most once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reboot {
    /// The boot that the reboot ends. If the host has a different boot id, the reboot has already
    /// happened.
    pub boot_id: Line,
}

/// The agent's program that the service carries, at `/agent/v1/releases/{architecture}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentUpgrade {
    pub version: Line,
    /// The SHA-256 digest of the program, in lowercase hexadecimal.
    pub sha256: String,
    pub size_bytes: u64,
    /// The publisher's Ed25519 signature over [`release_signing_text`], in base64.
    #[serde(default)]
    pub signature: String,
}

/// Returns the text that the publisher of an agent signs for a program.
pub fn release_signing_text(version: &str, architecture: &str, sha256: &str) -> String {
    format!("fleetmend-agent-release-v1\n{version}\n{architecture}\n{sha256}")
}

/// Whether an agent's version `first` is older than `second`. Versions are compared by their
/// numbers; of equal numbers, one with a suffix such as `-rc.1` is older.
pub fn is_older_version(first: &str, second: &str) -> bool {
    fn key(version: &str) -> (Vec<u64>, bool, &str) {
        let (numbers, suffix) = version.split_once('-').unwrap_or((version, ""));
        let numbers = numbers.split('.').map(|part| part.parse().unwrap_or(0)).collect();
        (numbers, suffix.is_empty(), suffix)
    }
    key(first) < key(second)
}

impl<'de> Deserialize<'de> for Work {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        let kind = value.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let work = match kind.as_str() {
            "scan" => Ok(Work::Scan),
            "plan" => serde_json::from_value(value).map(Work::Plan),
            "install" => serde_json::from_value(value).map(Work::Install),
            "install_versions" => serde_json::from_value(value).map(Work::InstallVersions),
            "restart_services" => Ok(Work::RestartServices),
            "reboot" => serde_json::from_value(value).map(Work::Reboot),
            "upgrade_agent" => serde_json::from_value(value).map(Work::UpgradeAgent),
            _ => Ok(Work::Unknown { name: Line::sanitize(&kind) }),
        };
        Ok(work.unwrap_or_else(|error| Work::Malformed {
            name: Line::sanitize(&kind),
            reason: Line::sanitize(&error.to_string()),
        }))
    }
}

/// Progress of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderProgress {
    pub order_id: TaskId,
    /// Current stage; `None` if this version does not know the stage.
    #[serde(default, deserialize_with = "stage_or_none")]
    pub stage: Option<Stage>,
    /// When the stage began.
    pub at: Timestamp,
    /// Human-readable details.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Line>,
}

/// Result of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderResult {
    pub order_id: TaskId,
    #[serde(deserialize_with = "outcome_or_failed")]
    pub outcome: Outcome,
    /// Machine-readable reason of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "code_or_agent_error")]
    pub failure_code: Option<FailureCode>,
    /// Human-readable reason for the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Line>,
    /// Packages that changed, or that would change after a plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<PackageMove>,
    /// Whether a reboot was needed at the end.
    #[serde(default)]
    pub reboot_needed: bool,
    /// Duration of the reboot in seconds, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot_seconds: Option<u64>,
    /// Exit code of the package manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<i32>,
    /// Paths of new configuration files that the package manager installed next to edited ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set_aside: Vec<Line>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restarted: Vec<Line>,
    /// Further information for people: what was repaired, what was skipped and why, why there was
    /// no reboot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Line>,
    /// Packages of an order for exact versions of which the repositories offer a newer version; at
    /// most [`NEWER_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "limited_newer")]
    pub newer_available: Vec<NewerVersion>,
    /// The host's health after the change, if the order asked for it and changed something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthReport>,
    pub started_at: Timestamp,
    pub finished_at: Timestamp,
}

/// A package of which the repositories offer a newer version than the one that was ordered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NewerVersion {
    /// Package name, as the host reports it.
    pub name: Line,
    /// The version that was ordered.
    pub pinned: Line,
    /// The newest version that the repositories offer.
    pub available: Line,
}

/// Maximum number of entries in [`OrderResult::newer_available`].
pub const NEWER_MAX: usize = 100;

/// The health of a host compared with an earlier measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthReport {
    pub measured_at: Timestamp,
    /// When the measurement was taken with which this one is compared: before the change, or at the
    /// beginning of a watch.
    pub baseline_at: Timestamp,
    /// What is worse than at `baseline_at`; at most [`HEALTH_PROBLEMS_MAX`]. Empty: nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "limited_problems")]
    pub problems: Vec<HealthProblem>,
    /// Why the host's health could not be determined. Then an empty list of problems says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_measured: Option<Line>,
}

/// Maximum number of problems in a [`HealthReport`].
pub const HEALTH_PROBLEMS_MAX: usize = 100;

/// Something that is worse than before: `unit_failed`, `nginx.service`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HealthProblem {
    #[serde(deserialize_with = "kind_or_other")]
    pub kind: HealthProblemKind,
    /// The unit, the socket (`tcp/80`), the hook, or the state of the boot.
    pub name: Line,
}

/// How an order ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Completed as requested.
    Succeeded,
    /// There was nothing to do.
    NoChange,
    /// The updates were available but skipped: held or phased. Or none of the ordered versions is
    /// available anymore ([`FailureCode::VersionGone`]).
    Skipped,
    Failed,
    /// The service withdrew it before the agent began to work on it.
    Withdrawn,
    /// The service asked about an order in progress of which the agent has no record. A service
    /// that does not know this value reads it as `failed`.
    Unknown,
}

/// A package that changed or would change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageMove {
    /// Package name, as the host reports it.
    pub name: Line,
    #[serde(default)]
    pub arch: Line,
    /// The previous version; `None` if the package is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Line>,
    /// The new version; `None` if the package was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Line>,
}

fn default_activity() -> Activity {
    Activity::Idle
}

/// Deserializes an enum value, or `None` if this version does not know it.
fn deserialize_if_known<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    use serde::de::IntoDeserializer;
    let text = Option::<String>::deserialize(from)?;
    Ok(text.and_then(|text| {
        T::deserialize::<serde::de::value::StringDeserializer<D::Error>>(text.into_deserializer())
            .ok()
    }))
}

fn activity_or_idle<'de, D: Deserializer<'de>>(from: D) -> Result<Activity, D::Error> {
    Ok(deserialize_if_known(from)?.unwrap_or(Activity::Idle))
}

fn stage_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Stage>, D::Error> {
    deserialize_if_known(from)
}

fn outcome_or_failed<'de, D: Deserializer<'de>>(from: D) -> Result<Outcome, D::Error> {
    Ok(deserialize_if_known(from)?.unwrap_or(Outcome::Failed))
}

fn kind_or_other<'de, D: Deserializer<'de>>(from: D) -> Result<HealthProblemKind, D::Error> {
    Ok(deserialize_if_known(from)?.unwrap_or(HealthProblemKind::Other))
}

/// Too many versions are an error: an order must not be carried out in part.
fn limited_versions<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PackageVersion>, D::Error> {
    let versions = Vec::<PackageVersion>::deserialize(from)?;
    if versions.len() > VERSIONS_MAX {
        return Err(serde::de::Error::custom(format!("more than {VERSIONS_MAX} versions")));
    }
    Ok(versions)
}

/// Deserializes a list of information for people; entries beyond the maximum are dropped.
fn limited_newer<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<NewerVersion>, D::Error> {
    let mut list = Vec::<NewerVersion>::deserialize(from)?;
    list.truncate(NEWER_MAX);
    Ok(list)
}

fn limited_problems<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<HealthProblem>, D::Error> {
    let mut list = Vec::<HealthProblem>::deserialize(from)?;
    list.truncate(HEALTH_PROBLEMS_MAX);
    Ok(list)
}

fn code_or_agent_error<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<FailureCode>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    Ok(text.map(|text| text.parse().unwrap_or(FailureCode::AgentError)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TASK: &str = "tsk_01jcqk3m8ye0fr5cq0k6s8v2xw";

    fn order(work: Value) -> serde_json::Result<Order> {
        serde_json::from_value(json!({"id": TASK, "server_id": "srv_01jcqk3m8ye0fr5cq0k6s8v2xw",
            "issued_at": "2026-11-15T04:00:00Z", "expires_at": "2026-11-15T05:00:00Z", "work": work}))
    }

    #[test]
    fn every_order_kind_round_trips() {
        for work in [
            json!({"kind": "scan"}),
            json!({"kind": "restart_services"}),
            json!({"kind": "reboot", "boot_id": "b-1"}),
            json!({"kind": "install", "packages": ["bash"], "exclude": ["linux-*"],
                "security_only": true, "security_packages": ["openssl"], "reboot": "if_required", "boot_id": "b-1"}),
            json!({"kind": "plan", "packages": [], "exclude": [], "security_only": false, "security_packages": [],
                "reboot": "never", "boot_id": ""}),
            json!({"kind": "install_versions", "packages": [], "exclude": [], "security_only": false,
                "security_packages": [], "reboot": "never", "boot_id": "b-1", "health": true,
                "versions": [{"name": "bash", "arch": "amd64", "version": "5.2-2"}]}),
        ] {
            let read = order(work.clone()).unwrap();
            assert!(!matches!(read.work, Work::Unknown { .. }), "{work}");
            assert_eq!(serde_json::to_value(&read.work).unwrap(), work);
        }
    }

    #[test]
    fn order_of_unknown_kind_keeps_its_name() {
        let read = order(json!({"kind": "run_script", "script": "rm -rf /"})).unwrap();
        assert_eq!(read.work, Work::Unknown { name: "run_script".into() });
        assert_eq!(order(json!({})).unwrap().work, Work::Unknown { name: "".into() });
    }

    #[test]
    fn malformed_order_is_deserialized_and_keeps_its_id() {
        for name in ["bash-", "/tmp/x.deb", "?upgradable", "bash=1"] {
            let read = order(json!({"kind": "install", "packages": [name]})).unwrap();
            let Work::Malformed { name: kind, reason } = read.work else { panic!("{name}") };
            assert_eq!(kind.as_str(), "install");
            assert!(reason.as_str().contains(name), "{reason}");
        }
        assert!(matches!(order(json!({"kind": "reboot"})).unwrap().work, Work::Malformed { .. }));
        let version = json!({"name": "bash", "version": "2"});
        for versions in [
            json!(null),
            json!([{"name": "bash"}]),
            json!([{"name": "/tmp/x.deb", "version": "2"}]),
            json!(vec![version; VERSIONS_MAX + 1]),
        ] {
            let read = order(json!({"kind": "install_versions", "versions": versions})).unwrap();
            assert!(matches!(read.work, Work::Malformed { .. }), "{:?}", read.work);
        }
        let missing = order(json!({"kind": "install_versions"})).unwrap();
        assert!(matches!(missing.work, Work::Malformed { .. }));
    }

    #[test]
    fn health_from_newer_agent_is_readable_and_limited() {
        let problem = json!({"kind": "disk_on_fire", "name": "sda"});
        let report: HealthReport = serde_json::from_value(json!({
            "measured_at": "2026-11-15T04:01:00Z", "baseline_at": "2026-11-15T04:00:00Z",
            "problems": vec![problem; HEALTH_PROBLEMS_MAX + 1], "mood": "calm"}))
        .unwrap();
        assert_eq!(report.problems.len(), HEALTH_PROBLEMS_MAX);
        assert_eq!(report.problems[0].kind, HealthProblemKind::Other);
    }

    #[test]
    fn sync_ignores_unknown_fields_and_defaults_missing_ones() {
        let sync: SyncRequest = serde_json::from_value(
            json!({"boot_id": "b-1", "counter": 7, "activity": "meditating", "mood": "calm"}),
        )
        .unwrap();
        assert_eq!((sync.counter, sync.activity), (7, Activity::Idle));
        assert!(sync.results.is_empty() && sync.installed.is_none());
        let response: SyncResponse =
            serde_json::from_value(json!({"counter": 8, "sync_seconds": 60, "news": []})).unwrap();
        assert!(response.orders.is_empty() && !response.wants_facts);
    }

    /// Results are never discarded: not because of an unknown value, nor because of the content of
    /// a message.
    #[test]
    fn result_from_newer_agent_is_not_lost() {
        let result: OrderResult =
            serde_json::from_value(json!({"order_id": TASK, "outcome": "marvellous",
            "failure_code": "moon_phase", "message": "dpkg:\u{1b}[31m no\n",
            "started_at": "2026-11-15T04:00:00Z", "finished_at": "2026-11-15T04:01:00Z"}))
            .unwrap();
        assert_eq!(result.outcome, Outcome::Failed);
        assert_eq!(result.failure_code, Some(FailureCode::AgentError));
        assert_eq!(result.message, Some("dpkg: [31m no".into()));
        let progress: OrderProgress = serde_json::from_value(
            json!({"order_id": TASK, "stage": "levitating", "at": "2026-11-15T04:00:00Z"}),
        )
        .unwrap();
        assert_eq!(progress.stage, None);
    }

    #[test]
    fn envelope_preserves_signed_text_byte_for_byte() {
        let text = "{ \"id\":\"x\" ,\"a\":1}\u{e9}";
        let envelope =
            Envelope { order: text.to_owned(), key: "k1".to_owned(), signature: "c2ln".to_owned() };
        let received: Envelope =
            serde_json::from_str(&serde_json::to_string(&envelope).unwrap()).unwrap();
        assert_eq!(received.order.as_bytes(), text.as_bytes());
    }
}
