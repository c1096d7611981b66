//! Serves the stylesheet, the script and the icon. `pages::asset` defines them.

use axum::extract::Path;
use axum::response::IntoResponse as _;
use httpkit::problem::{ApiError, Code};

use crate::pages::asset;
use crate::response::PageResult;

pub(crate) async fn asset(Path((digest, name)): Path<(String, String)>) -> PageResult {
    let path = format!("/assets/{digest}/{name}");
    let found = asset::ALL.into_iter().find(|asset| asset.path() == path);
    let missing = || ApiError::new(Code::NotFound, "There is nothing at this path.");
    Ok(found.ok_or_else(missing)?.into_response())
}
