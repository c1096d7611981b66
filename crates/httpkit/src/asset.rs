//! Static assets of pages. Their paths contain a hash of their content, so browsers can cache them
//! indefinitely.

use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::{IntoResponse, Response};

#[derive(Debug, Clone, Copy)]
pub struct Asset {
    pub name: &'static str,
    pub media_type: &'static str,
    pub text: &'static str,
}

impl Asset {
    pub fn path(&self) -> String {
        format!("/assets/{:016x}/{}", self.content_hash(), self.name)
    }

    /// FNV-1a hash of the content. It only has to differ between versions; it protects nothing.
    fn content_hash(&self) -> u64 {
        self.text.bytes().fold(0xcbf2_9ce4_8422_2325, |mark, byte| {
            (mark ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

impl IntoResponse for Asset {
    fn into_response(self) -> Response {
        let headers = [
            (CONTENT_TYPE, HeaderValue::from_static(self.media_type)),
            (CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
            (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        ];
        (headers, self.text).into_response()
    }
}
