//! What clients ask for: the bodies of requests, from the API or a form of the dashboard.
//!
//! A function here validates a body, checks that everything that it names exists and that the caller may touch it, and calls a
//! [command](crate::commands). It is the one place where that is checked. Bodies come with what is wrong with their shape
//! ([`Errors`]), so that a client is told of all its mistakes at once.

pub mod api_keys;
pub mod batches;
pub mod enrollment_tokens;
mod errors;
pub mod preview;
pub mod read;
pub mod schedules;
pub mod servers;
pub mod suppressions;

pub use errors::{Errors, NAME_PATTERN};

use crate::{Result, ServiceError};

/// A body, with what is wrong with its shape.
pub type Body<T> = (T, Errors);

/// The versions of a thing that a client is willing to change: `If-Match`, or what a form was made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Versions {
    /// Whatever version it is in.
    Any,
    /// Only these.
    Only(Vec<i64>),
}

fn check_version(wanted: &Versions, current: i64) -> Result<()> {
    match wanted {
        Versions::Only(wanted) if !wanted.contains(&current) => {
            Err(ServiceError::OtherVersion { current })
        }
        Versions::Any | Versions::Only(_) => Ok(()),
    }
}

fn forbidden<T>(detail: &str) -> Result<T> {
    Err(ServiceError::Forbidden(detail.to_owned()))
}
