//! Leader election: one replica leads for as long as it renews its lease.
//!
//! On PostgreSQL, leases use the database's clock, which all replicas share. A replica whose own
//! clock differs from it by more than [`SKEW_MAX`] does not lead: it would start schedules at the
//! wrong time and treat online servers as offline. A replica without the current root key does not
//! lead either: it would treat authentic rows as forged.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use store::leases::{self, Lease};
use store::{StoreError, Tx, health};
use tokio::sync::watch;

use crate::{LeaderLease, log_error};
use service::App;
use service::auth::root_keys;

const NAME: &str = "engine";
/// How long the other replicas wait for a leader that stopped renewing.
pub const LEASE_TTL: SignedDuration = SignedDuration::from_secs(6);
/// Maximum difference between a leader's clock and the database's.
pub const SKEW_MAX: SignedDuration = SignedDuration::from_secs(5);

/// Acquires the lease whenever it is free, and renews it. Runs until it is aborted.
pub(super) async fn run(app: App, every: Duration, lead: watch::Sender<LeaderLease>) {
    let mut space = DiskSpaceCheck { errors_seen: store::disk_full_errors() };
    loop {
        let held = lead.borrow().clone();
        match acquire_or_renew(&app, held.as_deref()).await {
            Ok(next) => {
                match space.check(&app).await {
                    Ok(()) => app.condition().note_write(),
                    Err(error) => {
                        app.condition().note_write_error(&error);
                        log_error("space", &error);
                    }
                }
                note_lead_change(&app, held.as_deref(), next.as_ref());
                // Receivers are notified of a new lease, not of each renewal.
                lead.send_if_modified(|known| {
                    let new = known.as_ref().map(|lease| lease.token)
                        != next.as_ref().map(|lease| lease.token);
                    *known = next.map(Arc::new);
                    new
                });
            }
            // The lease remains valid until another replica takes it; every commit is fenced in any
            // case.
            Err(error) => {
                app.condition().note_write_error(&error);
                log_error("lead", &error);
            }
        }
        tokio::time::sleep(every).await;
    }
}

/// Detects a full database disk. A lease can be renewed on a full disk ([`health::check_space`]),
/// so once any write of this process has failed for that reason, a renewed lease does not prove
/// that writes work.
struct DiskSpaceCheck {
    errors_seen: u64,
}

impl DiskSpaceCheck {
    async fn check(&mut self, app: &App) -> store::Result<()> {
        let errors = store::disk_full_errors();
        if errors != self.errors_seen {
            match health::check_space(&app.db).await {
                Err(error @ StoreError::DiskFull(_)) => return Err(error),
                // For example, a database role that may not create tables. The next failing write
                // will show it.
                Err(error) => log_error("space", &error),
                Ok(()) => {}
            }
            self.errors_seen = errors;
        }
        Ok(())
    }
}

/// Acquires or renews the leader's lease, or gives it up. Returns the lease if this process holds
/// it.
async fn acquire_or_renew(app: &App, held_lease: Option<&Lease>) -> store::Result<Option<Lease>> {
    let mut tx = app.db.begin().await?;
    let time = LeaseTime::read(app, &mut tx).await?;
    note_skew(app, time.skew);
    let rotated = !root_keys::uses_recorded_key(app, &mut tx).await?;
    note_root_key_rotation(app, rotated);
    let may_lead = time.skew.is_none() && !rotated;
    let until = time.now.saturating_add(LEASE_TTL).unwrap_or(Timestamp::MAX);
    let replica = &app.settings.replica;
    let next = match (held_lease, may_lead) {
        (None, true) => leases::acquire(&mut tx, NAME, replica, time.now, until).await,
        (None, false) => Ok(None),
        (Some(lease), true) => leases::renew(&mut tx, lease, until).await.map(Some),
        (Some(lease), false) => leases::release(&mut tx, lease, time.now).await.map(|()| None),
    };
    match next {
        Ok(next) => {
            tx.commit().await?;
            Ok(next)
        }
        Err(StoreError::LeaseLost { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Releases the lease, so that another replica can lead immediately.
pub(super) async fn release(app: &App, lease: &Lease) -> store::Result<()> {
    let mut tx = app.db.begin().await?;
    let time = LeaseTime::read(app, &mut tx).await?;
    match leases::release(&mut tx, lease, time.now).await {
        Err(StoreError::LeaseLost { .. }) => {}
        released => {
            released?;
            tx.commit().await?;
        }
    }
    note_lead_change(app, Some(lease), None);
    Ok(())
}

/// The time that leases are measured by.
struct LeaseTime {
    now: Timestamp,
    /// How far this machine's clock is ahead of the database's; `None` if the difference is small
    /// enough to lead.
    skew: Option<SignedDuration>,
}

impl LeaseTime {
    async fn read(app: &App, tx: &mut Tx) -> store::Result<LeaseTime> {
        let before = app.clock.now();
        let database = match app.clock.is_real() {
            true => health::clock(tx).await?,
            false => None,
        };
        let Some(now) = database else { return Ok(LeaseTime { now: before, skew: None }) };
        // The database read its clock between `before` and `after`.
        let after = app.clock.now();
        let skew = match now {
            now if now < before => before.duration_since(now),
            now if now > after => after.duration_since(now),
            _ => SignedDuration::ZERO,
        };
        Ok(LeaseTime { now, skew: (skew.abs() > SKEW_MAX).then_some(skew) })
    }
}

fn note_skew(app: &App, skew: Option<SignedDuration>) {
    if !app.condition().note_clock_skew(skew) {
        return;
    }
    let replica = &app.settings.replica;
    match skew {
        Some(skew) => tracing::error!(
            replica,
            ahead_seconds = skew.as_secs(),
            "this machine's clock differs from the database's; this replica does not lead until the clock is corrected"
        ),
        None => tracing::info!(replica, "this machine's clock agrees with the database's again"),
    }
}

fn note_root_key_rotation(app: &App, rotated: bool) {
    if app.condition().note_root_key_rotated(rotated) && rotated {
        let replica = &app.settings.replica;
        tracing::error!(
            replica,
            "root.key was rotated: restart this replica with the new key files"
        );
    }
}

fn note_lead_change(app: &App, held_lease: Option<&Lease>, next: Option<&Lease>) {
    let replica = &app.settings.replica;
    app.condition().note_leads(next.is_some());
    match (held_lease, next) {
        (None, Some(lease)) => {
            tracing::info!(replica, token = lease.token, "this replica is now the leader");
        }
        (Some(lease), None) => {
            tracing::info!(replica, token = lease.token, "this replica is no longer the leader");
        }
        _ => {}
    }
}
