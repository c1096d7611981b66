//! Notifications by email.

use serde::{Deserialize, Serialize};

/// The body of `POST /v1/notifications/test`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TestNotification {
    /// Address that the message is sent to.
    #[cfg_attr(feature = "openapi", schema(max_length = 254, example = "ann@example.com"))]
    pub to: String,
}

/// The result of a test message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NotificationTest {
    /// Whether the SMTP server accepted the message.
    pub sent: bool,
    /// Response of the SMTP server; null if it did not accept the message.
    #[cfg_attr(feature = "openapi", schema(example = "250 2.0.0 Ok: queued"))]
    pub response: Option<String>,
    /// Why the message was not sent; null if it was.
    pub error: Option<String>,
    /// Duration, in milliseconds.
    pub duration_ms: u64,
}
