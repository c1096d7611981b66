//! The audit log: who changed what.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{EventActor, Links};

/// An entry of the audit log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditEntry {
    /// Number within the organization, without gaps.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, example = 1_204))]
    pub sequence: u64,
    /// When it happened.
    pub at: Timestamp,
    /// Who did it.
    pub actor: EventActor,
    /// What was done.
    #[cfg_attr(feature = "openapi", schema(example = "batch.pause"))]
    pub action: String,
    /// The resource that was changed.
    pub subject: AuditSubject,
    /// Details, depending on the action.
    #[cfg_attr(feature = "openapi", schema(value_type = Object, example = json!({"state": "paused"})))]
    pub details: Map<String, Value>,
}

/// The resource that an audit entry is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditSubject {
    /// ID of the resource.
    #[cfg_attr(feature = "openapi", schema(example = "bat_01k9zq3c8efxr9w1m6t5y0b7a2"))]
    pub id: String,
    /// Current name of the resource, or its last one if it was removed; null if it has none.
    #[cfg_attr(feature = "openapi", schema(example = "Security updates · production"))]
    pub name: Option<String>,
}

/// A part of the audit log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditEntryList {
    /// Entries, newest first.
    pub data: Vec<AuditEntry>,
    /// Position in the log.
    pub meta: AuditMeta,
    /// Links to other parts of the log.
    pub links: Links,
}

/// Position in the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditMeta {
    /// Maximum number of entries per response.
    pub limit: u32,
    /// Pass it as `before` to continue with older entries; null if there are none.
    #[cfg_attr(feature = "openapi", schema(example = 1_155))]
    pub next_before: Option<u64>,
}

/// Which part of the audit log to verify.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct VerifyAudit {
    /// Start after this sequence number, to continue an earlier request; 0 if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, example = 0))]
    pub after: Option<i64>,
    /// Maximum number of entries to verify; 100,000 if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 100_000, example = 100_000))]
    pub limit: Option<i64>,
}

/// The result of a verification of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditVerification {
    /// Whether everything that was checked is intact.
    pub valid: bool,
    /// Whether the end of the log was reached. If not, continue with `verified_to` as `after`.
    pub complete: bool,
    /// Number of entries that were verified by this request.
    #[cfg_attr(feature = "openapi", schema(example = 1_204))]
    pub entries: u64,
    /// Sequence number of the last entry that was verified.
    #[cfg_attr(feature = "openapi", schema(example = 1_204))]
    pub verified_to: u64,
    /// Sequence number of the latest entry.
    #[cfg_attr(feature = "openapi", schema(example = 1_204))]
    pub latest: u64,
    /// Sequence number of the first entry that was changed or removed; null if there is none.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>, example = json!(null)))]
    pub first_invalid: Option<u64>,
    /// Whether entries are missing at the end of the log; null if this replica cannot tell, because
    /// it keeps no record of the latest entry.
    #[cfg_attr(feature = "openapi", schema(example = false))]
    pub truncated: Option<bool>,
    /// The result as text.
    #[cfg_attr(feature = "openapi", schema(example = "All 1204 entries are intact."))]
    pub detail: String,
}
