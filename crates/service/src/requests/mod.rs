//! Request bodies, from the API or a dashboard form.
//!
//! A function here validates a body, checks that all objects that it names exist and that the
//! caller may access them, and calls a [command](crate::commands). This is the only place where
//! that is checked. A body comes with the errors of its JSON structure ([`ValidationErrors`]), so
//! that a client gets all errors at once.

pub mod agents;
pub mod api_keys;
pub mod audit;
pub mod batches;
pub mod enrollment_tokens;
mod errors;
pub mod feeds;
pub mod forecast;
pub mod freezes;
pub mod notifications;
pub mod policies;
pub mod preview;
pub mod schedules;
pub mod servers;
pub mod suppressions;
pub mod validate;
pub mod webhooks;

pub use errors::{NAME_PATTERN, ValidationErrors};

use crate::{Result, ServiceError};

/// Servers per transaction of a request about many, so that others can write in between.
const CHUNK: usize = 200;

/// A body with the errors of its JSON structure.
pub type Body<T> = (T, ValidationErrors);

/// The versions of an object that a client is willing to change: from `If-Match`, or from a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Versions {
    Any,
    Only(Vec<i64>),
}

fn check_version(wanted: &Versions, current: i64) -> Result<()> {
    match wanted {
        Versions::Only(wanted) if !wanted.contains(&current) => {
            Err(ServiceError::VersionMismatch { current })
        }
        Versions::Any | Versions::Only(_) => Ok(()),
    }
}

fn forbidden<T>(detail: &str) -> Result<T> {
    Err(ServiceError::Forbidden(detail.to_owned()))
}
