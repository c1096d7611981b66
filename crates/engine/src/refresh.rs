//! Expires refreshes that no agent answered in time.

use std::time::Duration;

use store::leases::{self, Lease};
use store::{Topic, refreshes};
use tokio::sync::watch;

use crate::{Lead, complain, until, until_leading};
use service::App;

/// Expires overdue refreshes while this process leads. Runs until it is aborted.
pub(super) async fn expire(app: App, look: Duration, mut lead: watch::Receiver<Lead>) {
    let mut asked = app.db.bell(Topic::Refreshes);
    loop {
        let lease = until_leading(&mut lead).await;
        let sleep = match expire_once(&app, &lease).await {
            Ok(next) => until(next, app.clock.now(), look),
            Err(error) => {
                complain("refreshes", &error);
                look
            }
        };
        tokio::select! {
            () = asked.rung() => {}
            () = tokio::time::sleep(sleep) => {}
        }
    }
}

async fn expire_once(app: &App, lease: &Lease) -> store::Result<Option<jiff::Timestamp>> {
    let now = app.clock.now();
    let open = refreshes::open(&mut *app.db.read().await?).await?;
    if open.iter().any(|refresh| refresh.deadline <= now) {
        let mut tx = app.db.begin().await?;
        leases::fence(&mut tx, lease).await?;
        refreshes::expire(&mut tx, now).await?;
        tx.commit().await?;
    }
    Ok(open.iter().map(|refresh| refresh.deadline).filter(|deadline| *deadline > now).min())
}
