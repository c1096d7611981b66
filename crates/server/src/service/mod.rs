//! The only way in which anything from outside changes anything: one function for each thing a caller may do.
//!
//! A function here opens its own transaction, asks `domain`, writes through `store`, and notes the event
//! and the audit entry in that same transaction. It never sees a request or a status code;
//! `http`, `web` and the engine call it.

pub mod audit;
pub mod audit_anchor;
pub mod days;
pub mod error;
pub(crate) mod facts;
pub mod federated;
pub mod feeds;
pub mod findings;
pub mod integrity;
pub mod keys;
pub mod options;
pub mod orders_keys;
pub mod organizations;
pub(crate) mod passwords;
pub mod patches;
pub mod preview;
pub mod refresh;
pub(crate) mod reports;
pub mod restore;
pub mod rollouts;
pub mod root_keys;
pub mod runs;
pub mod schedules;
pub mod second;
pub mod servers;
pub mod setup;
pub(crate) mod stamped;
pub mod summary;
pub mod suppressions;
pub mod targets;
pub mod tokens;
pub mod totp;
pub mod users;

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
pub(crate) const TRIES: u32 = 20;

/// Does work that computes for long on a thread of its own: those who answer requests must not wait for it.
pub(crate) async fn apart<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T> {
    let here = tokio::runtime::Handle::current();
    let done = tokio::task::spawn_blocking(move || here.block_on(work)).await;
    done.map_err(|error| ServiceError::Internal(error.into()))
}

/// Writes with the commit what happened: an event for those who listen.
pub(crate) fn emit(tx: &mut Tx, org: OrgId, kind: &str, at: Timestamp, data: Value) {
    let id = EventId::new(at, dice());
    tx.emit(NewEvent { id, org_id: org, kind: kind.to_owned(), at, data });
}

/// Writes with the commit who did what: an entry of the audit log.
pub(crate) fn record(
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
