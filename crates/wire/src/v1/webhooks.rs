//! Webhooks: where events are sent.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vocab::{DeliveryId, EventId, Selector, WebhookId};

use super::servers::present;

/// The body of `POST /v1/webhooks`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateWebhook {
    /// Name, unique in the organization.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200, example = "Chat"))]
    pub name: String,
    /// Address that events are sent to.
    #[cfg_attr(
        feature = "openapi",
        schema(max_length = 2_000, example = "https://hooks.example.com/fleetmend")
    )]
    pub url: String,
    /// Types of events; `batch.*` stands for all types of a group, `*` for all types.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 100, example = json!(["batch.*", "server.offline"])))]
    pub types: Vec<String>,
    /// Servers whose events are sent; all if omitted. Events that are not about a server are always
    /// sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Selector>))]
    pub targets: Option<Value>,
    /// Format of the requests: `standard` (default), `slack` or `teams`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<WebhookFormat>))]
    pub format: Option<String>,
    /// Whether events are sent; true if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// The body of `PATCH /v1/webhooks/{webhook_id}`. Omitted fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EditWebhook {
    /// Name, unique in the organization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200, example = "Chat"))]
    pub name: Option<String>,
    /// Address that events are sent to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(max_length = 2_000, example = "https://hooks.example.com/fleetmend")
    )]
    pub url: Option<String>,
    /// Types of events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 100, example = json!(["batch.*"])))]
    pub types: Option<Vec<String>>,
    /// Servers whose events are sent; null: all.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Selector>))]
    pub targets: Option<Option<Value>>,
    /// Format of the requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<WebhookFormat>))]
    pub format: Option<String>,
    /// Whether events are sent. Events that happened while it was disabled are not sent later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// The format of a webhook's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum WebhookFormat {
    /// One request per event, with all of its fields.
    Standard,
    /// Messages for an incoming webhook of Slack.
    Slack,
    /// Messages for a workflow of Microsoft Teams.
    Teams,
}

/// Where events are sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Webhook {
    /// ID.
    pub id: WebhookId,
    /// Name.
    #[cfg_attr(feature = "openapi", schema(example = "Chat"))]
    pub name: String,
    /// Address that events are sent to.
    #[cfg_attr(feature = "openapi", schema(example = "https://hooks.example.com/fleetmend"))]
    pub url: String,
    /// Types of events.
    #[cfg_attr(feature = "openapi", schema(example = json!(["batch.*", "server.offline"])))]
    pub types: Vec<String>,
    /// Servers whose events are sent; null: all.
    pub targets: Option<Selector>,
    /// Format of the requests.
    pub format: WebhookFormat,
    /// Whether events are sent.
    pub enabled: bool,
    /// Why the service disabled it; null if it did not.
    pub disabled_reason: Option<String>,
    /// Since when every attempt has failed; null if the last one succeeded.
    pub failing_since: Option<Timestamp>,
    /// Number of deliveries that are tried again, or wait for an earlier one.
    pub pending: u64,
    /// Until when requests are also signed with the previous secret; null if they are not.
    pub old_secret_until: Option<Timestamp>,
    /// When it was created.
    pub created_at: Timestamp,
    /// ID of the key or user that created it.
    pub created_by: String,
}

impl Webhook {
    /// The scheme and the host of the URL. Lists show only these: the rest may contain a secret.
    pub fn origin(&self) -> &str {
        let host = self.url.find("://").map_or(0, |at| at + 3);
        let end =
            self.url[host..].find(['/', '?', '#', '\\']).map_or(self.url.len(), |at| host + at);
        &self.url[..end]
    }
}

/// A webhook with its signing secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WebhookWithSecret {
    #[serde(flatten)]
    pub webhook: Webhook,
    /// Signing secret. It is shown only once.
    #[cfg_attr(feature = "openapi", schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))]
    pub secret: String,
}

/// The body of `POST /v1/webhooks/{webhook_id}/rotate`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RotateWebhook {
    /// How long requests are also signed with the previous secret; 24 if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 720, example = 24))]
    pub overlap_hours: Option<u32>,
}

/// An event on its way to a webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Delivery {
    /// ID.
    pub id: DeliveryId,
    /// ID of the event, and the `webhook-id` of the request.
    pub event_id: EventId,
    /// Sequence number of the event.
    #[cfg_attr(feature = "openapi", schema(example = 1_204))]
    pub sequence: u64,
    /// Type of the event.
    #[cfg_attr(feature = "openapi", schema(example = "batch.halted"))]
    pub event_type: String,
    /// Name of what the event is about.
    #[cfg_attr(feature = "openapi", schema(example = "Security updates · production"))]
    pub subject_name: String,
    /// State.
    pub state: DeliveryState,
    /// Number of attempts.
    pub attempts: u32,
    /// When it is tried next; null if it is over, or waits for an earlier one about the same
    /// subject.
    pub next_attempt_at: Option<Timestamp>,
    /// When the event was queued.
    pub created_at: Timestamp,
    /// When it was last tried; null if it was not.
    pub last_attempt_at: Option<Timestamp>,
    /// Duration of the last attempt, in milliseconds.
    pub duration_ms: Option<u64>,
    /// Status of the last response; null if there was none.
    #[cfg_attr(feature = "openapi", schema(example = 200))]
    pub response_status: Option<u16>,
    /// First 1,024 bytes of the last response.
    #[cfg_attr(feature = "openapi", schema(example = "ok"))]
    pub response_body: Option<String>,
    /// Why the last attempt failed; null if it succeeded.
    pub error: Option<String>,
}

/// The state of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// It is tried again, or waits for an earlier one.
    Pending,
    /// The receiver accepted it.
    Delivered,
    /// Every attempt failed.
    Failed,
}

/// A delivery with its request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeliveryDetail {
    #[serde(flatten)]
    pub delivery: Delivery,
    /// Body of the request; null once the event was deleted. Messages of the formats `slack` and
    /// `teams` may describe several events; this is the part about this one.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub request_body: Option<Value>,
}

/// The result of a test request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WebhookTest {
    /// Whether the receiver accepted the request.
    pub delivered: bool,
    /// Status of the response; null if there was none.
    #[cfg_attr(feature = "openapi", schema(example = 200))]
    pub response_status: Option<u16>,
    /// First 1,024 bytes of the response.
    #[cfg_attr(feature = "openapi", schema(example = "ok"))]
    pub response_body: Option<String>,
    /// Why the request failed; null if it succeeded.
    pub error: Option<String>,
    /// Duration, in milliseconds.
    pub duration_ms: u64,
}
