//! CVEs that a person has reviewed and suppressed, with a reason.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{Environment, SuppressionId};

/// The body of `POST /v1/suppressions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateSuppression {
    /// CVE ID, as in lists.
    #[cfg_attr(
        feature = "openapi",
        schema(pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,99}$", example = "CVE-2026-1234")
    )]
    pub cve: String,
    /// Source package; all affected packages if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200, example = "zlib"))]
    pub package: Option<String>,
    /// Environment; all servers if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Environment>))]
    pub environment: Option<String>,
    /// Why the CVE can be ignored.
    #[cfg_attr(
        feature = "openapi",
        schema(min_length = 1, max_length = 1_000, example = "the vulnerable code is not built")
    )]
    pub reason: String,
    /// Expiry; if omitted, the suppression lasts until it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub expires_at: Option<String>,
}

/// A suppressed CVE.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Suppression {
    /// ID.
    pub id: SuppressionId,
    /// CVE ID.
    #[cfg_attr(feature = "openapi", schema(example = "CVE-2026-1234"))]
    pub cve: String,
    /// Source package; null: all affected packages.
    pub package: Option<String>,
    /// Environment; null: all servers.
    pub environment: Option<Environment>,
    /// Why the CVE can be ignored.
    #[cfg_attr(feature = "openapi", schema(example = "the vulnerable code is not built"))]
    pub reason: String,
    /// Expiry; null if the suppression lasts until it is deleted.
    pub expires_at: Option<Timestamp>,
    /// Whether it applies now.
    pub active: bool,
    /// When it was created.
    pub created_at: Timestamp,
    /// ID of the key or user that created it.
    pub created_by: String,
}

/// The suppression of a CVE on a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Suppressed {
    /// ID of the suppression.
    pub suppression_id: SuppressionId,
    /// Why the CVE can be ignored.
    #[cfg_attr(feature = "openapi", schema(example = "the vulnerable code is not built"))]
    pub reason: String,
    /// Expiry; null if the suppression lasts until it is deleted.
    pub until: Option<Timestamp>,
}
