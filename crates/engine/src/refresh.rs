//! Expires refreshes that no agent answered in time.

use std::time::Duration;

use store::leases::{self, Lease};
use store::{Topic, refreshes};
use tokio::sync::watch;

use crate::{LeaderLease, log_error, sleep_time, wait_for_lead};
use serde_json::json;
use service::audit::Action;
use service::{App, record};

/// Expires overdue refreshes while this process leads. Runs until it is aborted.
pub(super) async fn run(app: App, poll: Duration, mut lead: watch::Receiver<LeaderLease>) {
    let mut requested = app.db.subscribe(Topic::Refreshes);
    loop {
        let lease = wait_for_lead(&mut lead).await;
        let sleep = match expire_once(&app, &lease).await {
            Ok(next) => sleep_time(next, app.clock.now(), poll),
            Err(error) => {
                log_error("refreshes", &error);
                poll
            }
        };
        tokio::select! {
            () = requested.notified() => {}
            () = tokio::time::sleep(sleep) => {}
        }
    }
}

async fn expire_once(app: &App, lease: &Lease) -> store::Result<Option<jiff::Timestamp>> {
    let now = app.clock.now();
    let open = refreshes::list_open(&mut *app.db.read().await?).await?;
    if open.iter().any(|refresh| refresh.deadline <= now) {
        let mut tx = app.db.begin().await?;
        leases::fence(&mut tx, lease).await?;
        for refresh in refreshes::expire(&mut tx, now).await? {
            let action = match refresh.upgrade {
                Some(_) => Action::AgentUpgradeFinish,
                None => Action::RefreshFinish,
            };
            let (org, server) = (refresh.org_id, refresh.server_id);
            let state = refresh.state.as_str();
            let detail = json!({"refresh_id": refresh.id, "server_id": server, "state": state});
            record(&mut tx, org, now, "engine", action, server, &detail);
        }
        tx.commit().await?;
    }
    Ok(open.iter().map(|refresh| refresh.deadline).filter(|deadline| *deadline > now).min())
}
