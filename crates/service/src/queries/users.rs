//! The users of the dashboard.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeSet;

pub use store::organizations::Organization;
pub use store::users::User;
use store::{Page, Paged};
use vocab::{OrgId, UserId};

use super::Scope;
use crate::{App, Result};

#[boxed]
pub async fn list(app: &App, scope: &Scope, page: Page) -> Result<Paged<User>> {
    Ok(store::users::list(&mut *app.db.snapshot().await?, scope.org, page).await?)
}

#[boxed]
pub async fn get(app: &App, scope: &Scope, id: UserId) -> Result<User> {
    Ok(store::users::get(&mut *app.db.read().await?, scope.org, id).await?)
}

/// The users who are linked to an identity of the identity provider.
#[boxed]
pub async fn linked(app: &App, scope: &Scope) -> Result<BTreeSet<UserId>> {
    let found = store::identities::list_by_org(&mut *app.db.read().await?, scope.org).await?;
    Ok(found.into_iter().map(|identity| identity.user_id).collect())
}

/// Whether there are several organizations. If so, users name theirs when they sign in.
#[boxed]
pub async fn has_several_organizations(app: &App) -> Result<bool> {
    Ok(store::organizations::list(&mut *app.db.read().await?).await?.len() > 1)
}

/// The organization itself.
#[boxed]
pub async fn organization(app: &App, org: OrgId) -> Result<Organization> {
    Ok(store::organizations::get(&mut *app.db.read().await?, org).await?)
}

#[boxed]
pub async fn organization_name(app: &App, org: OrgId) -> Result<String> {
    Ok(store::organizations::get(&mut *app.db.read().await?, org).await?.name)
}
