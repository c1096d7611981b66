//! Prepares a copied database for service.
//!
//! The source was not in use, so nothing that a process held there is held any more. Everything
//! else continues: batches, schedules, and the counters of the agents.

use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use serde_json::json;
use store::{Tx, idempotency, leases, organizations, sync_sessions};

use crate::audit::Action;
use crate::record;

/// The actor in audit entries.
const ACTOR: &str = "migrate";

/// Releases what processes held in the source, and records the move in every audit log.
#[boxed]
pub async fn prepare_for_service(
    tx: &mut Tx,
    [from, to]: [&str; 2],
    now: Timestamp,
) -> store::Result<()> {
    leases::expire_all(tx, now).await?;
    idempotency::expire_locks(tx, now).await?;
    // Only PostgreSQL has sessions. Those of a time before SQLite would be out of date.
    sync_sessions::delete_all(tx).await?;
    for organization in organizations::list(tx).await? {
        let detail = json!({"from": from, "to": to});
        record(
            tx,
            organization.id,
            now,
            ACTOR,
            Action::InstallationMigrate,
            organization.id,
            &detail,
        );
    }
    Ok(())
}
