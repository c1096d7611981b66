//! The names of what ids stand for, for lists that hold ids.

use std::collections::BTreeSet;

use pages::Names;

use crate::app::App;
use crate::http::problem::ApiError;
use crate::web::Viewer;

/// The names of those of these that have one.
pub(crate) async fn names(
    app: &App,
    viewer: &Viewer,
    ids: impl IntoIterator<Item = String>,
) -> Result<Names, ApiError> {
    let ids: BTreeSet<String> = ids.into_iter().collect();
    if ids.is_empty() {
        return Ok(Names::default());
    }
    let found = store::names::of(&mut *app.db.read().await?, viewer.user.org_id, &ids).await?;
    Ok(Names(found))
}
