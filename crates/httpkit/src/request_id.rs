//! The id of a request, which identifies it in the logs.

use axum::http::header::HeaderName;
use service::clock::random_bytes;

pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

#[derive(Debug, Clone)]
pub struct RequestId(String);

impl RequestId {
    #[allow(clippy::new_without_default, reason = "each call returns a different id")]
    pub fn new() -> RequestId {
        let id = u128::from_be_bytes(random_bytes());
        RequestId(format!("req_{id:032x}"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}
