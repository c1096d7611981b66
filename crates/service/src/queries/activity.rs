//! The audit log.

use async_recursion::async_recursion as boxed;
use store::audit;
pub use store::audit::Entry;

use super::Scope;
use crate::{App, Result};

/// The entries before the one with this sequence number, newest first.
#[boxed]
pub async fn before(app: &App, scope: &Scope, seq: i64, limit: u32) -> Result<Vec<Entry>> {
    Ok(audit::before(&mut *app.db.read().await?, scope.org, seq, limit).await?)
}
