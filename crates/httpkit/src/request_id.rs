//! By what a request is known in the logs.

use axum::http::header::HeaderName;
use service::clock::chance;

/// What the header with a request's id is called.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// By what a request is known in the logs.
#[derive(Debug, Clone)]
pub struct RequestId(String);

impl RequestId {
    /// A new one.
    #[allow(clippy::new_without_default, reason = "each is another")]
    pub fn new() -> RequestId {
        let id = u128::from_be_bytes(chance());
        RequestId(format!("req_{id:032x}"))
    }

    /// The id's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
