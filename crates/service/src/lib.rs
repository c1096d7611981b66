//! Everything that can be asked of Fleetmend or changed in it, without HTTP.
//!
//! - [`requests`]: what clients ask for: bodies are validated, existence and permission are checked.
//! - [`commands`]: every write. A command opens its own transaction, asks `domain`, writes through
//!   `store`, and adds the event and the audit entry in that same transaction.
//! - [`queries`]: what pages, the API and files show.
//! - [`projections`]: background work that keeps findings, patches and daily statistics current.
//! - [`auth`]: who may do what: keys, people, tokens, signing keys.
//!
//! Nothing here knows a request or a status code. `api`, `dashboard`, `gateway` and `engine` call it.

pub mod app;
pub mod audit;
pub mod audit_anchor;
pub mod auth;
pub mod clock;
pub mod commands;
pub mod condition;
pub mod error;
pub mod fetch;
pub mod host_facts;
pub mod idempotency;
pub mod integrity;
pub mod options;
pub mod projections;
pub mod queries;
pub mod requests;
pub mod secrets;
pub mod supervise;

pub use app::App;
pub use error::{FieldError, ServiceError};
pub use options::{Order, PatchOptions};

use jiff::Timestamp;
use serde_json::Value;
use store::Tx;
use store::audit::NewEntry;
use store::events::NewEvent;
use vocab::{EventId, OrgId, Role};

use crate::clock::dice;

/// On whose behalf something is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// In which organization.
    pub org: OrgId,
    /// Who: the id of a key or of a person, or `schedule`.
    pub who: String,
    /// What they may do.
    pub role: Role,
}

/// What a service function answers.
pub type Result<T, E = ServiceError> = std::result::Result<T, E>;

/// How often a transaction is tried that others keep overtaking.
pub const TRIES: u32 = 20;

/// Does work that computes for long on a thread of its own: those who answer requests must not wait for it.
pub async fn apart<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Result<T> {
    let here = tokio::runtime::Handle::current();
    let done = tokio::task::spawn_blocking(move || here.block_on(work)).await;
    done.map_err(|error| ServiceError::Internal(error.into()))
}

/// Writes with the commit what happened: an event for those who listen.
pub fn emit(tx: &mut Tx, org: OrgId, kind: &str, at: Timestamp, data: Value) {
    let id = EventId::new(at, dice());
    tx.emit(NewEvent { id, org_id: org, kind: kind.to_owned(), at, data });
}

/// Writes with the commit who did what: an entry of the audit log.
pub fn record(
    tx: &mut Tx,
    org: OrgId,
    at: Timestamp,
    actor: &str,
    action: &str,
    subject: impl ToString,
    detail: &Value,
) {
    tx.record(NewEntry {
        org_id: org,
        at,
        actor: actor.to_owned(),
        action: action.to_owned(),
        subject: subject.to_string(),
        detail: detail.to_string(),
    });
}
