//! How many servers of a batch stand where is counted once it has ended, and then kept: a list of batches over the whole
//! fleet would count millions each time.

use std::time::Duration;

use store::leases::{self, Lease};
use store::{Topic, rollout_targets, rollouts};
use tokio::sync::watch;

use super::{Lead, complain, until_leading};
use crate::app::App;

/// How many times as long as usual nobody looks when no bell rings.
const LOOKS: u32 = 12;
/// How many are counted before somebody else has a turn.
const AT_ONCE: u32 = 50;

/// Counts what has ended, while this process leads. Until it is aborted.
pub(super) async fn keep(app: App, look: Duration, mut lead: watch::Receiver<Lead>) {
    let mut changed = app.db.bell(Topic::Rollouts);
    loop {
        let lease = until_leading(&mut lead).await;
        if let Err(error) = keep_once(&app, &lease).await {
            complain("tallies", &error);
        }
        // A rollout at work rings with every step; none of them is an end.
        tokio::time::sleep(look).await;
        tokio::select! {
            () = changed.rung() => {}
            () = tokio::time::sleep(look * LOOKS) => {}
        }
    }
}

async fn keep_once(app: &App, lease: &Lease) -> store::Result<()> {
    let ended = rollouts::uncounted(&mut *app.db.read().await?, AT_ONCE).await?;
    for (id, revision) in ended {
        let counts = rollout_targets::count(&mut *app.db.snapshot().await?, id).await?;
        let mut tx = app.db.begin().await?;
        leases::fence(&mut tx, lease).await?;
        rollouts::keep_counts(&mut tx, id, revision, &counts).await?;
        tx.commit().await?;
    }
    Ok(())
}
