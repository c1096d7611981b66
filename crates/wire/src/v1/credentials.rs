//! API keys and enrollment tokens. A secret appears only in the response that creates it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{Environment, KeyId, Role, Tag, TokenId};

/// The body of `POST /v1/api-keys`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateApiKey {
    /// Name.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200, example = "ci"))]
    pub name: String,
    /// Role.
    #[cfg_attr(feature = "openapi", schema(value_type = Role, example = "operator"))]
    pub role: String,
    /// Environments that it is limited to; all if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<Environment>>, min_items = 1))]
    pub environments: Option<Vec<String>>,
    /// Expiry; never if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub expires_at: Option<String>,
}

/// An API key, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApiKey {
    /// ID.
    pub id: KeyId,
    /// Name.
    pub name: String,
    /// Role.
    pub role: Role,
    /// Environments that it is limited to; null: all.
    pub environments: Option<Vec<Environment>>,
    /// When it was created.
    pub created_at: Timestamp,
    /// ID of the key that created it, or `init`.
    pub created_by: String,
    /// Expiry.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked, if it was.
    pub revoked_at: Option<Timestamp>,
    /// When it was last used, accurate to a few seconds.
    pub last_used_at: Option<Timestamp>,
}

/// An API key with its secret, which is shown only once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatedApiKey {
    /// The same fields as in list responses.
    #[serde(flatten)]
    pub key: ApiKey,
    /// The key. It is not shown again.
    #[cfg_attr(feature = "openapi", schema(example = "fmk_…"))]
    pub api_key: String,
}

/// The body of `POST /v1/enrollment-tokens`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateEnrollmentToken {
    /// Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(min_length = 1, max_length = 200, example = "web image")
    )]
    pub name: Option<String>,
    /// Environment of servers that enroll with it; as sent by the agent if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Environment>))]
    pub environment: Option<String>,
    /// Tags of servers that enroll with it; as sent by the agent if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<Tag>>, max_items = 50))]
    pub tags: Option<Vec<String>>,
    /// Number of servers that can enroll with it; unlimited if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000))]
    pub max_uses: Option<i64>,
    /// Expiry; never if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub expires_at: Option<String>,
}

/// An enrollment token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EnrollmentToken {
    /// ID.
    pub id: TokenId,
    /// Name; may be empty.
    pub name: String,
    /// Environment of servers that enroll with it.
    pub environment: Option<Environment>,
    /// Tags of servers that enroll with it.
    pub tags: Vec<Tag>,
    /// Number of servers that enrolled with it.
    pub uses: u32,
    /// Number of servers that can enroll with it; null: unlimited.
    pub max_uses: Option<u32>,
    /// When it was created.
    pub created_at: Timestamp,
    /// ID of the key that created it.
    pub created_by: String,
    /// Expiry.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked, if it was.
    pub revoked_at: Option<Timestamp>,
}

/// An enrollment token with its secret, which is shown only once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatedEnrollmentToken {
    /// The same fields as in list responses.
    #[serde(flatten)]
    pub enrollment_token: EnrollmentToken,
    /// The token. It is not shown again.
    #[cfg_attr(feature = "openapi", schema(example = "fme_….plain"))]
    pub token: String,
    /// The command that installs the agent on a server and enrolls the server. Only if the service
    /// carries agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(
            example = "curl -fsSL https://fleet.example/install.sh | sudo sh -s -- fme_….plain"
        )
    )]
    pub install_command: Option<String>,
}
