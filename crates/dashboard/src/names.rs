//! Looks up the names behind ids, for lists that contain ids.

use std::collections::BTreeSet;

use httpkit::problem::ApiError;
use service::queries;

use crate::pages::Names;
use crate::{Dashboard, Viewer};

/// The names of all ids that have one.
pub(crate) async fn names(
    app: &Dashboard,
    viewer: &Viewer,
    ids: impl IntoIterator<Item = String>,
) -> Result<Names, ApiError> {
    let ids: BTreeSet<String> = ids.into_iter().collect();
    if ids.is_empty() {
        return Ok(Names::default());
    }
    Ok(Names(queries::names::by_id(app, &viewer.caller().scope(), &ids).await?))
}
