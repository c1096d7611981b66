//! The audit log: who did what.

use async_recursion::async_recursion as boxed;
use store::audit;
pub use store::audit::Entry;

use super::Scope;
use crate::{App, Result};

/// Entries before the one with this number, the newest first.
#[boxed]
pub async fn before(app: &App, scope: &Scope, seq: i64, limit: u32) -> Result<Vec<Entry>> {
    Ok(audit::before(&mut *app.db.read().await?, scope.org, seq, limit).await?)
}
