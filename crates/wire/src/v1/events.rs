//! Events: what happened.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use vocab::{Environment, EventId};

use super::Links;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// ID.
    pub id: EventId,
    /// Number within the organization, without gaps. A later event has a larger number.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, example = 1_204))]
    pub sequence: u64,
    /// Type of event.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "openapi", schema(example = "batch.halted"))]
    pub kind: String,
    /// When it happened.
    pub occurred_at: Timestamp,
    /// Who caused it.
    pub actor: EventActor,
    /// What it is about.
    pub subject: EventSubject,
    /// Environment of the server that it is about, at that time; null if it is about something
    /// else.
    pub environment: Option<Environment>,
    /// Details, depending on the type.
    #[cfg_attr(
        feature = "openapi",
        schema(value_type = Object, example = json!({"state": "halted", "reason": "canary_failed"}))
    )]
    pub data: Map<String, Value>,
    /// Dashboard page of the subject. Without the setting `public_url`, only its path.
    #[cfg_attr(
        feature = "openapi",
        schema(example = "https://fleetmend.example.com/batches/bat_01k9zq3c8efxr9w1m6t5y0b7a2")
    )]
    pub url: String,
}

/// Who caused an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventActor {
    /// Type: a user, a key, a token, or the service itself.
    #[serde(rename = "type")]
    pub kind: ActorKind,
    /// ID, or the part of the service: `engine`, `schedule`.
    #[cfg_attr(feature = "openapi", schema(example = "usr_01k9zq3c8efxr9w1m6t5y0b7a2"))]
    pub id: String,
    /// Name at that time; null if it has none.
    #[cfg_attr(feature = "openapi", schema(example = "ann"))]
    pub name: Option<String>,
}

/// The type of an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ActorKind {
    User,
    ApiKey,
    EnrollmentToken,
    System,
}

impl ActorKind {
    /// The type of the actor with this id.
    pub fn of(id: &str) -> ActorKind {
        match id.split_once('_').map(|(prefix, _)| prefix) {
            Some("usr") => ActorKind::User,
            Some("key") => ActorKind::ApiKey,
            Some("enr") => ActorKind::EnrollmentToken,
            _ => ActorKind::System,
        }
    }
}

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventSubject {
    /// Type of resource.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "openapi", schema(example = "batch"))]
    pub kind: String,
    /// ID of the resource.
    #[cfg_attr(feature = "openapi", schema(example = "bat_01k9zq3c8efxr9w1m6t5y0b7a2"))]
    pub id: String,
    /// Name of the resource at that time.
    #[cfg_attr(feature = "openapi", schema(example = "Security updates · production"))]
    pub name: String,
}

/// Events after a sequence number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventList {
    /// Events, oldest first.
    pub data: Vec<Event>,
    /// Position in the log.
    pub meta: EventsMeta,
    /// Links to other parts of the log.
    pub links: Links,
}

/// Position in the event log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventsMeta {
    /// Maximum number of events per response.
    pub limit: u32,
    /// Sequence number up to which this response covers the log. Pass it as `after` to continue.
    #[cfg_attr(feature = "openapi", schema(example = 1_204))]
    pub last: u64,
    /// Sequence number of the latest event of the organization; 0 if there is none.
    #[cfg_attr(feature = "openapi", schema(example = 1_204))]
    pub latest: u64,
}
