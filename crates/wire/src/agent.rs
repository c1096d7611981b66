//! What an agent and its server say to each other: `/agent/v1`, one verb, "sync".
//!
//! Server and agent work with the version before them, so a field that is not known is passed over,
//! one that is missing has a default, and a word that is not known becomes the nearest honest one.
//! An order of an unknown kind keeps its name, so that the agent can refuse it by that name.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use vocab::{
    Digest, Environment, FailureCode, Hostname, Line, Os, PackageManager, PackageName,
    PackagePattern, RebootPolicy, ServerId, Stage, Tag, TaskId,
};

use crate::v1::{Activity, HostLimits};

/// What an agent says: `POST /agent/v1/sync`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncRequest {
    /// Which boot of the host this is; another id means that it rebooted.
    pub boot_id: Line,
    /// Rolls with each sync. Behind the server's it gives away a clone or a restored copy.
    pub counter: u64,
    /// Drawn anew whenever an answer arrives, so that a sync which is repeated because its answer
    /// was lost can be told from one of a copy.
    #[serde(default)]
    pub nonce: u64,
    /// How long the server may hold the sync open while it has nothing to say; 0: not at all.
    #[serde(default)]
    pub hold_seconds: u32,
    /// What the host is, when it changed or the server asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<Facts>,
    /// The digest of the packages that are installed, once they were looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installed: Option<Digest>,
    /// The digest of the updates that are pending, once they were looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<Digest>,
    /// When both were looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scanned_at: Option<Timestamp>,
    /// What the agent is doing.
    #[serde(default = "idle", deserialize_with = "activity_or_idle")]
    pub activity: Activity,
    /// Results that the server has not acknowledged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<OrderResult>,
    /// How far unfinished orders are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub progress: Vec<OrderProgress>,
}

/// What a host is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// What it calls itself.
    pub hostname: Hostname,
    /// The system that it runs.
    pub os: Os,
    /// The kernel that is running.
    #[serde(default)]
    pub kernel: Line,
    /// What its processor is called.
    #[serde(default)]
    pub arch: Line,
    /// The program that installs its packages.
    pub package_manager: PackageManager,
    /// The version of the agent.
    #[serde(default)]
    pub agent_version: Line,
    /// Whether it should be rebooted.
    #[serde(default)]
    pub reboot_required: bool,
    /// Why it should.
    #[serde(default)]
    pub reboot_reasons: Vec<Line>,
    /// What runs code that is no longer on the disk, by package; at most [`OLD_CODE_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub old_code: Vec<OldCode>,
    /// Other programs that install updates by themselves, and so behind a rollout's back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_updaters: Vec<Line>,
    /// Whether the kernel belongs to the machine below, as in a container.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreign_kernel: bool,
    /// What the host's administrator allows; `None` from an agent that does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<HostLimits>,
    /// The ids ([`orders_key_id`]) of the keys whose orders and answers the agent accepts, at most
    /// [`ORDERS_KEYS_MAX`]. Empty from an agent that cannot change its key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trusted_keys: Vec<Line>,
}

/// The most lines of [`Facts::old_code`].
pub const OLD_CODE_MAX: usize = 500;

/// A process that runs code which an update has replaced.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OldCode {
    /// The package whose old files it runs; nothing if that could not be found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<Line>,
    /// The service to restart: `ssh.service`; nothing if it belongs to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Line>,
    /// What the process is called.
    pub process: Line,
}

/// What the server answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncResponse {
    /// The counter to send with the next sync.
    pub counter: u64,
    /// What is to be done. An order comes again until its result has arrived.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orders: Vec<Envelope>,
    /// Listings that the server does not have and wants to be sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wanted: Vec<Digest>,
    /// Whether the server wants to be told what the host is.
    #[serde(default)]
    pub wants_facts: bool,
    /// The orders whose results are safe with the server and need not be sent again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acknowledged: Vec<TaskId>,
    /// Orders to be dropped, if nothing was done for them yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub withdrawn: Vec<TaskId>,
    /// Orders that the server believes to be in progress and that the sync mentioned neither as
    /// progress nor as a result. The agent reports the result of each again; one that it has no
    /// record of ends as [`Outcome::Unknown`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreported: Vec<TaskId>,
    /// How often to sync, in seconds, if there is nothing to say.
    pub sync_seconds: u32,
    /// What time it is there; 1970 if the server does not say.
    #[serde(default)]
    pub server_time: Timestamp,
    /// Every key that the server signs with, oldest first, if the agent trusts others than these.
    /// It replaces the agent's trusted keys, if the answer is signed with one of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orders_keys: Vec<OrdersKey>,
    /// The tag to send from now on instead of the one of the request ([`EnrollResponse::tag`]): the server
    /// is rotating the key that tags are made with. It counts in signed answers only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewed_tag: Option<String>,
}

/// A key that a server signs orders and answers with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrdersKey {
    /// [`orders_key_id`] of the public key.
    pub id: String,
    /// The Ed25519 public key, in base 64.
    pub public_key: String,
}

/// The most keys that a server announces and an agent trusts.
pub const ORDERS_KEYS_MAX: usize = 4;

/// The id of a key: the start of the BLAKE3 hash of the public key, in hexadecimal.
pub fn orders_key_id(public_key: &[u8]) -> String {
    Digest::of(public_key).to_string()[..16].to_owned()
}

/// How a host joins: `POST /agent/v1/enroll`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrollRequest {
    /// What lets it in.
    pub token: String,
    /// The Ed25519 key with which it will sign, in base 64. The other half never leaves the host.
    pub public_key: String,
    /// What the host is.
    pub facts: Facts,
    /// The environment that it says it is in; the token's own comes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<Environment>,
    /// The tags that it says it has; the token's own come first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<Tag>,
}

/// Who a host is from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrollResponse {
    /// Its id.
    pub server_id: ServerId,
    /// Shows with each request that this server gave the id to this key. In base 64.
    pub tag: String,
    /// The Ed25519 key with which orders are signed, in base 64. While the server changes its key,
    /// this is the old one, which agents without `orders_keys` need.
    pub orders_key: String,
    /// Every key that the server signs with, oldest first. Older servers leave it out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orders_keys: Vec<OrdersKey>,
    /// The counter to send with the first sync.
    pub counter: u64,
    /// How often to sync, in seconds, if there is nothing to say.
    pub sync_seconds: u32,
    /// Whether the server signs its answers ([`answer_text`]). Older servers leave it out.
    #[serde(default)]
    pub signs_answers: bool,
}

/// Request header: random bytes in base 64, new for every request, repetitions included.
pub const NONCE_HEADER: &str = "fleetmend-nonce";
/// The longest value of [`NONCE_HEADER`] that a server uses.
pub const NONCE_CHARS_MAX: usize = 64;
/// Response header: the id of the key, a space, and the Ed25519 signature over [`answer_text`] in
/// base 64.
pub const SIGNATURE_HEADER: &str = "fleetmend-signature";

/// Request header: the ids of the keys that the agent trusts, separated by commas. It selects the key
/// that the answer is signed with. Whoever changes it on its way gets an answer that the agent
/// refuses, or one that is signed with another key that the agent trusts.
pub const TRUSTED_KEYS_HEADER: &str = "fleetmend-trusted-keys";

/// The text that a server signs for an answer: who it is for, which request it answers, and all of it
/// that an agent acts on. `request_signature` is the agent's own signature in base 64; it covers
/// method, path, query and body. No order starts like this text, so neither passes for the other.
pub fn answer_text(
    server_id: ServerId,
    nonce: &str,
    request_signature: &str,
    status: u16,
    body: &[u8],
) -> String {
    let body = Digest::of(body);
    format!("fleetmend-answer-v1\n{server_id}\n{nonce}\n{request_signature}\n{status}\n{body}")
}

/// An order as it travels: the text that was signed, and its signature. The text is opaque here
/// because a signature is over bytes, not over their meaning; once it is verified, it reads as
/// an [`Order`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// What was signed: an [`Order`] as JSON.
    pub order: String,
    /// Which key signed it.
    pub key: String,
    /// The Ed25519 signature over `order`, in base 64.
    pub signature: String,
}

/// What an agent is to do, bound to one server and a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// By what it is known. The same id is the same order, however often it comes.
    pub id: TaskId,
    /// Who is to do it, and nobody else.
    pub server_id: ServerId,
    /// When it was given.
    pub issued_at: Timestamp,
    /// When it is too late to start.
    pub expires_at: Timestamp,
    /// What is to be done.
    pub work: Work,
}

/// What is to be done. There is nothing else that a server can ask of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Work {
    /// Look at the packages.
    Scan,
    /// Find out what an installation would do, and do nothing.
    Plan(Install),
    /// Install updates of packages that are installed.
    Install(Install),
    /// Restart the services that run old code.
    RestartServices,
    /// Reboot.
    Reboot(Reboot),
    /// Something that this version does not know, under its name. Never written.
    #[serde(skip_serializing)]
    Unknown {
        /// What it is called.
        name: Line,
    },
    /// A known kind with a part that cannot be meant, such as a name that is none. It is read all
    /// the same, so that the agent can refuse the order under its id. Never written.
    #[serde(skip_serializing)]
    Malformed {
        /// What it is called.
        name: Line,
        /// What is wrong with it.
        reason: Line,
    },
}

/// Which updates, and what after them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Install {
    /// Exact names; none means every update.
    #[serde(default)]
    pub packages: Vec<PackageName>,
    /// What never to touch.
    #[serde(default)]
    pub exclude: Vec<PackagePattern>,
    /// Only updates that fix security flaws.
    #[serde(default)]
    pub security_only: bool,
    /// Packages whose updates fix security flaws though the host's repositories may not say so. They are meant by
    /// `security_only` too; the host's own limits go by what the host knows.
    #[serde(default)]
    pub security_packages: Vec<PackageName>,
    /// Whether the host may be rebooted afterwards.
    #[serde(default)]
    pub reboot: RebootPolicy,
    /// The boot that the order was given for: in any other, it reboots no more.
    #[serde(default)]
    pub boot_id: Line,
}

/// A reboot, at most once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reboot {
    /// The boot that is to end: in any other, it is done already.
    pub boot_id: Line,
}

impl<'de> Deserialize<'de> for Work {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        let kind = value.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let work = match kind.as_str() {
            "scan" => Ok(Work::Scan),
            "plan" => serde_json::from_value(value).map(Work::Plan),
            "install" => serde_json::from_value(value).map(Work::Install),
            "restart_services" => Ok(Work::RestartServices),
            "reboot" => serde_json::from_value(value).map(Work::Reboot),
            _ => Ok(Work::Unknown { name: Line::made_of(&kind) }),
        };
        Ok(work.unwrap_or_else(|error| Work::Malformed {
            name: Line::made_of(&kind),
            reason: Line::made_of(&error.to_string()),
        }))
    }
}

/// How far an order is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderProgress {
    /// Which order.
    pub order_id: TaskId,
    /// What the agent is doing for it; nothing if this version has no word for it.
    #[serde(default, deserialize_with = "stage_or_none")]
    pub stage: Option<Stage>,
    /// Since when.
    pub at: Timestamp,
    /// More about it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Line>,
}

/// What came of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderResult {
    /// Which order.
    pub order_id: TaskId,
    /// How it ended.
    #[serde(deserialize_with = "outcome_or_failed")]
    pub outcome: Outcome,
    /// Why it failed, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "code_or_agent_error")]
    pub failure_code: Option<FailureCode>,
    /// Why it ended so, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Line>,
    /// What changed, or after a plan what would.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<PackageMove>,
    /// Whether a reboot was needed at the end.
    #[serde(default)]
    pub reboot_needed: bool,
    /// How many seconds a reboot took, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot_seconds: Option<u64>,
    /// With what the package manager ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<i32>,
    /// Configuration that packages brought and that was put beside an edited file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set_aside: Vec<Line>,
    /// The services that were restarted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restarted: Vec<Line>,
    /// What else a person should know: what was repaired, what was passed over and why, why there was
    /// no reboot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Line>,
    /// When the agent began.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Timestamp,
}

/// How an order ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Done as asked.
    Succeeded,
    /// There was nothing to do.
    NoChange,
    /// It could have been done and was passed over: held, phased.
    Skipped,
    /// It was not done.
    Failed,
    /// It was withdrawn before anything was done for it.
    Withdrawn,
    /// The server asked about an order in progress of which the agent has no record. A server that
    /// does not know this word reads it as `failed`.
    Unknown,
}

/// A package that changed or would.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageMove {
    /// Its name, as the host says it.
    pub name: Line,
    /// Its architecture.
    #[serde(default)]
    pub arch: Line,
    /// The version that went; nothing if it was new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Line>,
    /// The version that came; nothing if it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Line>,
}

fn idle() -> Activity {
    Activity::Idle
}

/// A word, or nothing if this version does not know it.
fn known<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    use serde::de::IntoDeserializer;
    let text = Option::<String>::deserialize(from)?;
    Ok(text.and_then(|text| {
        T::deserialize::<serde::de::value::StringDeserializer<D::Error>>(text.into_deserializer())
            .ok()
    }))
}

fn activity_or_idle<'de, D: Deserializer<'de>>(from: D) -> Result<Activity, D::Error> {
    Ok(known(from)?.unwrap_or(Activity::Idle))
}

fn stage_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Stage>, D::Error> {
    known(from)
}

fn outcome_or_failed<'de, D: Deserializer<'de>>(from: D) -> Result<Outcome, D::Error> {
    Ok(known(from)?.unwrap_or(Outcome::Failed))
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
    fn every_kind_of_order_is_read_as_it_is_written() {
        for work in [
            json!({"kind": "scan"}),
            json!({"kind": "restart_services"}),
            json!({"kind": "reboot", "boot_id": "b-1"}),
            json!({"kind": "install", "packages": ["bash"], "exclude": ["linux-*"],
                "security_only": true, "security_packages": ["openssl"], "reboot": "if_required", "boot_id": "b-1"}),
            json!({"kind": "plan", "packages": [], "exclude": [], "security_only": false, "security_packages": [],
                "reboot": "never", "boot_id": ""}),
        ] {
            let read = order(work.clone()).unwrap();
            assert!(!matches!(read.work, Work::Unknown { .. }), "{work}");
            assert_eq!(serde_json::to_value(&read.work).unwrap(), work);
        }
    }

    #[test]
    fn an_order_of_an_unknown_kind_keeps_its_name_so_that_it_can_be_refused_by_it() {
        let read = order(json!({"kind": "run_script", "script": "rm -rf /"})).unwrap();
        assert_eq!(read.work, Work::Unknown { name: "run_script".into() });
        assert_eq!(order(json!({})).unwrap().work, Work::Unknown { name: "".into() });
    }

    #[test]
    fn an_order_that_cannot_be_meant_is_read_so_that_it_can_be_refused_under_its_id() {
        for name in ["bash-", "/tmp/x.deb", "?upgradable", "bash=1"] {
            let read = order(json!({"kind": "install", "packages": [name]})).unwrap();
            let Work::Malformed { name: kind, reason } = read.work else { panic!("{name}") };
            assert_eq!(kind.as_str(), "install");
            assert!(reason.as_str().contains(name), "{reason}");
        }
        assert!(matches!(order(json!({"kind": "reboot"})).unwrap().work, Work::Malformed { .. }));
    }

    #[test]
    fn a_sync_needs_little_and_passes_over_what_it_does_not_know() {
        let sync: SyncRequest = serde_json::from_value(
            json!({"boot_id": "b-1", "counter": 7, "activity": "meditating", "mood": "calm"}),
        )
        .unwrap();
        assert_eq!((sync.counter, sync.activity), (7, Activity::Idle));
        assert!(sync.results.is_empty() && sync.installed.is_none());
        let answer: SyncResponse =
            serde_json::from_value(json!({"counter": 8, "sync_seconds": 60, "news": []})).unwrap();
        assert!(answer.orders.is_empty() && !answer.wants_facts);
    }

    /// Results are never shed: not for a word that is new, nor for what a message holds.
    #[test]
    fn a_result_from_a_newer_agent_is_not_lost() {
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
    fn an_envelope_carries_the_signed_text_byte_for_byte() {
        let text = "{ \"id\":\"x\" ,\"a\":1}\u{e9}";
        let envelope =
            Envelope { order: text.to_owned(), key: "k1".to_owned(), signature: "c2ln".to_owned() };
        let travelled: Envelope =
            serde_json::from_str(&serde_json::to_string(&envelope).unwrap()).unwrap();
        assert_eq!(travelled.order.as_bytes(), text.as_bytes());
    }
}
