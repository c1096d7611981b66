//! The application layer: all reads and writes, without HTTP.
//!
//! - [`requests`]: validates request bodies, and checks existence and permissions.
//! - [`commands`]: all writes. A command opens its own transaction, asks `domain`, writes through
//!   `store`, and adds the event and the audit entry in the same transaction.
//! - [`queries`]: read models for the dashboard, the API and CSV exports.
//! - [`projections`]: background work that keeps findings, patches and daily statistics current.
//! - [`auth`]: authentication and authorization: API keys, users, tokens, signing keys.
//!
//! This crate knows neither HTTP requests nor status codes. `api`, `dashboard`, `gateway` and
//! `engine` call it.

pub mod agent_install;
pub mod agent_releases;
pub mod app;
pub mod attention;
pub mod audit;
pub mod audit_anchor;
pub mod auth;
pub mod batch_name;
pub mod clock;
pub mod commands;
pub mod error;
pub mod events;
pub mod fetch;
pub mod health;
pub mod host_facts;
pub mod idempotency;
pub mod integrity;
pub mod mail;
pub mod options;
pub mod pins;
pub mod projections;
pub mod queries;
pub mod requests;
pub mod secrets;
pub mod supervise;
pub mod webhooks;

pub use app::App;
pub use error::{FieldError, ServiceError};
pub use events::{EventKind, emit};
pub use options::{OrderOptions, PatchOptions};

use jiff::Timestamp;
use serde_json::Value;
use store::Tx;
use store::audit::NewEntry;
use vocab::{OrgId, Role};

use crate::audit::Action;

/// On whose behalf something is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    pub org: OrgId,
    /// The id of an API key or a user, or `schedule`.
    pub id: String,
    pub role: Role,
}

pub type Result<T, E = ServiceError> = std::result::Result<T, E>;

/// How many times a transaction is attempted that conflicts with others.
pub const ATTEMPTS_MAX: u32 = 20;

/// Runs long computations on a separate thread, so that they do not delay requests.
pub async fn run_on_blocking_thread<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T> {
    let here = tokio::runtime::Handle::current();
    let done = tokio::task::spawn_blocking(move || here.block_on(work)).await;
    done.map_err(|error| ServiceError::Internal(error.into()))
}

/// Adds an audit entry to the transaction.
pub fn record(
    tx: &mut Tx,
    org: OrgId,
    at: Timestamp,
    actor: &str,
    action: Action,
    subject: impl ToString,
    detail: &Value,
) {
    tx.record(NewEntry {
        org_id: org,
        at,
        actor: actor.to_owned(),
        action: action.as_str().to_owned(),
        subject: subject.to_string(),
        detail: detail.to_string(),
    });
}
