//! The display names of ids.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, BTreeSet};

use super::Scope;
use crate::{App, Result};

/// The names of those ids that have one.
#[boxed]
pub async fn by_id(
    app: &App,
    scope: &Scope,
    ids: &BTreeSet<String>,
) -> Result<BTreeMap<String, String>> {
    Ok(store::names::find(&mut *app.db.read().await?, scope.org, ids).await?)
}
