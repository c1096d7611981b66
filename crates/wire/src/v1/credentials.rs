//! API keys and enrolment tokens. The secret itself is in the answer to its making, and nowhere else.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{Environment, KeyId, Role, Tag, TokenId};

/// The body of `POST /v1/api-keys`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateApiKey {
    /// What people call it.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200, example = "ci"))]
    pub name: String,
    /// What it may do.
    #[cfg_attr(feature = "openapi", schema(value_type = Role, example = "operator"))]
    pub role: String,
    /// Where it may do it; everywhere if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<Environment>>, min_items = 1))]
    pub environments: Option<Vec<String>>,
    /// When it ends; never if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub expires_at: Option<String>,
}

/// An API key, without the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApiKey {
    /// Which one.
    pub id: KeyId,
    /// What people call it.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// Where it may do it; null: everywhere.
    pub environments: Option<Vec<Environment>>,
    /// When it was made.
    pub created_at: Timestamp,
    /// By whom: the id of a key, or `init`.
    pub created_by: String,
    /// When it ends.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked, if it was.
    pub revoked_at: Option<Timestamp>,
    /// When it was last used, to within some seconds.
    pub last_used_at: Option<Timestamp>,
}

/// An API key with the key itself: the only time that it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatedApiKey {
    /// What a list shows of it.
    #[serde(flatten)]
    pub key: ApiKey,
    /// The key. Keep it: it is not shown again.
    #[cfg_attr(feature = "openapi", schema(example = "fmk_…"))]
    pub api_key: String,
}

/// The body of `POST /v1/enrollment-tokens`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateEnrollmentToken {
    /// What people call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(min_length = 1, max_length = 200, example = "web image")
    )]
    pub name: Option<String>,
    /// The environment of servers that join with it; what their agent says if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Environment>))]
    pub environment: Option<String>,
    /// The tags of servers that join with it; what their agent says if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<Tag>>, max_items = 50))]
    pub tags: Option<Vec<String>>,
    /// How many servers may join with it; no limit if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000))]
    pub max_uses: Option<i64>,
    /// When it ends; never if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub expires_at: Option<String>,
}

/// An enrolment token, without the token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EnrollmentToken {
    /// Which one.
    pub id: TokenId,
    /// What people call it; may be empty.
    pub name: String,
    /// The environment of servers that join with it.
    pub environment: Option<Environment>,
    /// The tags of servers that join with it.
    pub tags: Vec<Tag>,
    /// How many servers joined with it.
    pub uses: u32,
    /// How many may; null: no limit.
    pub max_uses: Option<u32>,
    /// When it was made.
    pub created_at: Timestamp,
    /// By whom: the id of a key.
    pub created_by: String,
    /// When it ends.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked, if it was.
    pub revoked_at: Option<Timestamp>,
}

/// An enrolment token with the token itself: the only time that it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatedEnrollmentToken {
    /// What a list shows of it.
    #[serde(flatten)]
    pub enrollment_token: EnrollmentToken,
    /// The token. Keep it: it is not shown again.
    #[cfg_attr(feature = "openapi", schema(example = "fme_….plain"))]
    pub token: String,
}
