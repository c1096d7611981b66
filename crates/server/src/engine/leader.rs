//! Who leads: one replica, as long as it renews its lease.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use store::StoreError;
use store::leases::{self, Lease};
use tokio::sync::watch;

use super::{Lead, complain};
use crate::app::App;

const NAME: &str = "engine";
/// How long the others wait for a leader that fell silent.
const TTL: SignedDuration = SignedDuration::from_secs(6);

/// Takes the lead whenever nobody has it, and keeps it. Until it is aborted.
pub(super) async fn lead(app: App, every: Duration, lead: watch::Sender<Lead>) {
    loop {
        let held = lead.borrow().clone();
        let next = match held {
            Some(lease) => renew(&app, &lease).await,
            None => acquire(&app).await,
        };
        match next {
            Ok(next) => {
                app.condition().note_write();
                // Whoever looks for changes is woken by a new holding, not by each renewal.
                lead.send_if_modified(|known| {
                    let new = known.as_ref().map(|lease| lease.token)
                        != next.as_ref().map(|lease| lease.token);
                    *known = next.map(Arc::new);
                    new
                });
            }
            // The lease stands as long as nobody else took it; every commit is fenced in any case.
            Err(error) => {
                app.condition().note_write_error(&error);
                complain("lead", &error);
            }
        }
        tokio::time::sleep(every).await;
    }
}

async fn acquire(app: &App) -> store::Result<Option<Lease>> {
    let now = app.clock.now();
    let mut tx = app.db.begin().await?;
    let lease = leases::acquire(&mut tx, NAME, &app.settings.replica, now, now + TTL).await?;
    tx.commit().await?;
    Ok(lease)
}

async fn renew(app: &App, lease: &Lease) -> store::Result<Option<Lease>> {
    let mut tx = app.db.begin().await?;
    match leases::renew(&mut tx, lease, app.clock.now() + TTL).await {
        Ok(renewed) => {
            tx.commit().await?;
            Ok(Some(renewed))
        }
        Err(StoreError::LeaseLost { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Lets another replica lead at once.
pub(super) async fn give_back(app: &App, lease: &Lease) -> store::Result<()> {
    let mut tx = app.db.begin().await?;
    match leases::release(&mut tx, lease, app.clock.now()).await {
        Err(StoreError::LeaseLost { .. }) => Ok(()),
        released => {
            released?;
            tx.commit().await
        }
    }
}
