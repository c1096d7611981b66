//! CVEs that someone has looked at and set aside.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{Environment, SuppressionId};

/// The body of `POST /v1/suppressions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateSuppression {
    /// The CVE, as lists show it.
    #[cfg_attr(
        feature = "openapi",
        schema(pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,99}$", example = "CVE-2026-1234")
    )]
    pub cve: String,
    /// The source package that it is about; all that have the CVE if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200, example = "zlib"))]
    pub package: Option<String>,
    /// The environment that it is about; all servers if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Environment>))]
    pub environment: Option<String>,
    /// Why the CVE does not matter there.
    #[cfg_attr(
        feature = "openapi",
        schema(min_length = 1, max_length = 1_000, example = "the vulnerable code is not built")
    )]
    pub reason: String,
    /// Until when this holds; until it is taken back if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub expires_at: Option<String>,
}

/// A CVE that was set aside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Suppression {
    /// Which one.
    pub id: SuppressionId,
    /// The CVE.
    #[cfg_attr(feature = "openapi", schema(example = "CVE-2026-1234"))]
    pub cve: String,
    /// The source package that it is about; null: all that have the CVE.
    pub package: Option<String>,
    /// The environment that it is about; null: all servers.
    pub environment: Option<Environment>,
    /// Why the CVE does not matter there.
    #[cfg_attr(feature = "openapi", schema(example = "the vulnerable code is not built"))]
    pub reason: String,
    /// Until when this holds; null: until it is taken back.
    pub expires_at: Option<Timestamp>,
    /// Whether it holds now.
    pub active: bool,
    /// When it was made.
    pub created_at: Timestamp,
    /// By whom: the id of a key.
    pub created_by: String,
}

/// By what a CVE was set aside on a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Suppressed {
    /// The suppression.
    pub suppression_id: SuppressionId,
    /// Why the CVE does not matter there.
    #[cfg_attr(feature = "openapi", schema(example = "the vulnerable code is not built"))]
    pub reason: String,
    /// Until when; null: until it is taken back.
    pub until: Option<Timestamp>,
}
