//! Request parsing and error responses, shared by `api` and `dashboard`.
//!
//! Contains extractors that report every error at once ([`Body`], [`Query`], [`Id`], [`IfMatch`]),
//! lists and paging ([`filters`], [`page`]), errors as RFC 9457 problems ([`problem`]),
//! `Idempotency-Key` ([`idempotency`]), rate limits for unauthenticated clients ([`throttle`]), and
//! static assets ([`Asset`]).
//! The dashboard validates its forms with the same code as the API, so both depend on this crate
//! and neither depends on the other. It contains no routes and no pages.

mod asset;
pub mod body;
mod budget;
pub mod csv;
pub mod etag;
pub mod filters;
pub mod idempotency;
pub mod page;
pub mod path;
pub mod problem;
pub mod query;
mod request_id;
mod strict_json;
pub mod task_log;
pub mod throttle;

use std::net::SocketAddr;

pub use asset::Asset;
pub use body::{Body, NoBody};
pub use budget::BodyBudget;
pub use etag::{ETag, IfMatch};
pub use page::{Limit, Offset, RequestUrl};
pub use path::{Id, Ids};
pub use problem::{ApiError, Code};
pub use query::{NoQuery, Query};
pub use request_id::{RequestId, X_REQUEST_ID};

/// The remote address of a connection. The listener adds it to every request.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

/// Marks a response whose body is shared by all clients that receive it: a document that is part of
/// the program, or one that is cached between requests. Such responses are not charged to a memory
/// limit.
#[derive(Debug, Clone, Copy)]
pub struct SharedBody;
