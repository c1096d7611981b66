//! The saved views that a user sees: their own, and those that were shared.

use async_recursion::async_recursion as boxed;
use store::saved_views;
pub use store::saved_views::SavedView;
use store::users::User;
use vocab::ViewId;

use crate::{App, Result};

/// Maximum number of views in a menu.
const MENU_MAX: u32 = 500;

/// The views of a list, by name.
#[boxed]
pub async fn list(app: &App, user: &User, list: &str) -> Result<Vec<SavedView>> {
    let mut reader = app.db.read().await?;
    Ok(saved_views::list(&mut reader, user.org_id, user.id, list, MENU_MAX).await?)
}

/// A view that the user sees.
#[boxed]
pub async fn find(app: &App, user: &User, id: ViewId) -> Result<SavedView> {
    Ok(saved_views::get(&mut *app.db.read().await?, user.org_id, user.id, id).await?)
}
