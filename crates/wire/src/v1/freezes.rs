//! Freezes: times in which no task starts on the selected servers.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use vocab::{Cron, FreezeId, Selector, Zone};

/// The body of `POST /v1/freezes` and `PUT /v1/freezes/{freeze_id}`: either `ends_at` for a one-off
/// freeze, or `cron` and `duration_minutes` for a recurring one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FreezeRequest {
    /// Name.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200))]
    pub name: String,
    /// Why nothing may change.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 2_000))]
    pub reason: String,
    /// Servers to freeze; resolved whenever it matters.
    #[cfg_attr(feature = "openapi", schema(value_type = Selector))]
    pub targets: serde_json::Value,
    /// Start of a one-off freeze; now if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub starts_at: Option<String>,
    /// End of a one-off freeze, at most 400 days after its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub ends_at: Option<String>,
    /// When a recurring freeze starts: a cron expression with five fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Cron>))]
    pub cron: Option<String>,
    /// How long a recurring freeze lasts each time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 43_200))]
    pub duration_minutes: Option<i64>,
    /// IANA time zone of `cron`; UTC if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Zone>))]
    pub timezone: Option<String>,
}

/// A freeze: no task starts on the selected servers while it is active.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Freeze {
    /// ID.
    pub id: FreezeId,
    /// Name.
    pub name: String,
    /// Why nothing may change.
    pub reason: String,
    /// Frozen servers; resolved whenever it matters.
    pub targets: Selector,
    /// Start of a one-off freeze; null if it recurs.
    pub starts_at: Option<Timestamp>,
    /// End of a one-off freeze; null if it recurs.
    pub ends_at: Option<Timestamp>,
    /// When a recurring freeze starts; null if it is one-off.
    pub cron: Option<Cron>,
    /// How long a recurring freeze lasts each time; null if it is one-off.
    pub duration_minutes: Option<u32>,
    /// IANA time zone of `cron`; null if it is one-off.
    pub timezone: Option<Zone>,
    /// Whether it is active now.
    pub active: bool,
    /// End of the active period; null if it is not active.
    pub active_until: Option<Timestamp>,
    /// The next periods, at most five. Periods that overlap or touch are one.
    pub next: Vec<FreezePeriod>,
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

/// A period of a freeze.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FreezePeriod {
    /// Start; included.
    pub starts_at: Timestamp,
    /// End; not included.
    pub ends_at: Timestamp,
}
