//! Serves the stylesheet, the script and the icon. `pages::asset` defines them.

use axum::extract::Path;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::IntoResponse as _;
use httpkit::problem::{ApiError, Code};

use crate::pages::Asset;
use crate::response::PageResult;

/// Browsers may cache an asset indefinitely: its path contains a hash of its content.
pub(crate) async fn asset(Path((digest, name)): Path<(String, String)>) -> PageResult {
    let path = format!("/assets/{digest}/{name}");
    let Some(found) = Asset::ALL.into_iter().find(|asset| asset.path() == path) else {
        return Err(ApiError::new(Code::NotFound, "There is nothing at this path."));
    };
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(found.media_type)),
        (CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
    ];
    Ok((headers, found.text).into_response())
}
