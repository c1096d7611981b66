//! Commands on saved views: save, delete.
//!
//! A view belongs to the user who saved it. A shared view is visible to everyone in the
//! organization; only operators can share one, and only its user or an administrator can delete it.

use async_recursion::async_recursion as boxed;
use serde_json::json;
use store::saved_views::{self, SavedView};
use store::users::User;
use vocab::{Role, ViewId};

use crate::App;
use crate::audit::Action;
use crate::auth::users::actor;
use crate::clock::random_u128;
use crate::{FieldError, Result, ServiceError, audit};

/// Maximum number of views that a user can save.
pub const VIEWS_MAX: u64 = 100;
pub const NAME_CHARS_MAX: usize = 60;
const QUERY_BYTES_MAX: usize = 2_000;

#[derive(Debug, Clone)]
pub struct NewView {
    /// The list that it is a view of.
    pub list: &'static str,
    pub name: String,
    /// The query string of the list, without the question mark.
    pub query: String,
    pub shared: bool,
}

/// Saves a view. It replaces the user's view of the same list with the same name and visibility.
#[boxed]
pub async fn save(app: &App, user: &User, new: NewView) -> Result<ViewId> {
    let mut errors = Vec::new();
    let chars = new.name.chars().count();
    if chars == 0 || chars > NAME_CHARS_MAX || new.name.chars().any(char::is_control) {
        let detail = format!("must be a line of 1 to {NAME_CHARS_MAX} characters");
        errors.push(FieldError::new("/name", "invalid_name", detail));
    }
    if new.query.len() > QUERY_BYTES_MAX || new.query.chars().any(char::is_control) {
        errors.push(FieldError::new("/query", "too_long", "has too many filters to save"));
    }
    if !errors.is_empty() {
        return Err(ServiceError::Invalid(errors));
    }
    if new.shared && !user.role.includes(Role::Operator) {
        let detail = "Only operators can share a view. You can save it for yourself.";
        return Err(ServiceError::Forbidden(detail.to_owned()));
    }
    let now = app.clock.now();
    let view = SavedView {
        id: ViewId::new(now, random_u128()),
        org_id: user.org_id,
        user_id: user.id,
        list: new.list.to_owned(),
        name: new.name,
        query: new.query,
        shared: new.shared,
        created_at: now,
    };
    let mut tx = app.db.begin().await?;
    saved_views::save(&mut tx, &view).await?;
    if saved_views::count(&mut tx, user.id).await? > VIEWS_MAX {
        let detail = format!("You have {VIEWS_MAX} saved views. Delete one of them first.");
        return Err(ServiceError::conflict("conflict", detail));
    }
    audit::record(app, &mut tx, &actor(user), Action::ViewSave, view.id, details(&view));
    tx.commit().await?;
    Ok(view.id)
}

/// Deletes a view that the user may delete.
#[boxed]
pub async fn delete(app: &App, user: &User, seen: &SavedView) -> Result<()> {
    if !may_delete(user, seen) {
        let detail = "Only an administrator can delete a shared view of another person.";
        return Err(ServiceError::Forbidden(detail.to_owned()));
    }
    let mut tx = app.db.begin().await?;
    saved_views::delete(&mut tx, user.org_id, seen.id).await?;
    audit::record(app, &mut tx, &actor(user), Action::ViewDelete, seen.id, details(seen));
    Ok(tx.commit().await?)
}

/// Whether the user may delete this view.
pub fn may_delete(user: &User, view: &SavedView) -> bool {
    view.user_id == user.id || (view.shared && user.role.includes(Role::Admin))
}

fn details(view: &SavedView) -> serde_json::Value {
    json!({"name": view.name, "list": view.list, "query": view.query, "shared": view.shared})
}
