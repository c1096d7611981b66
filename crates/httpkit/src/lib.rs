//! How requests are read and refused, for `api` and `dashboard` alike.
//!
//! Extractors that report everything that is wrong at once ([`Body`], [`Query`], [`Id`], [`IfMatch`]), lists and their pages
//! ([`filters`], [`page`]), errors as RFC 9457 problems ([`problem`]), `Idempotency-Key` ([`idempotency`]), and rate
//! limits for what strangers send ([`throttle`]). The dashboard validates its forms with the same code as the API, so both
//! need these; neither needs the other. No routes and no pages here.

pub mod body;
mod budget;
pub mod etag;
pub mod filters;
pub mod idempotency;
mod objects;
pub mod page;
pub mod path;
pub mod problem;
pub mod query;
mod request_id;
pub mod task_log;
pub mod throttle;

use std::net::SocketAddr;

pub use body::{Body, NoBody};
pub use budget::BodyBudget;
pub use etag::{ETag, IfMatch};
pub use page::{Here, Limit, Offset};
pub use path::{Id, Ids};
pub use problem::{ApiError, Code};
pub use query::{NoQuery, Query};
pub use request_id::{RequestId, X_REQUEST_ID};

/// Where a connection comes from. The listener puts it into every request.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

/// Marks an answer whose body is in memory anyway, however many clients are sent it: a document that is part of the
/// program, or that is kept between requests. Such answers are not charged for.
#[derive(Debug, Clone, Copy)]
pub struct SharedBody;
