//! Presence of servers: informs the planner which servers are available, and emits events when
//! servers go offline or come back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use domain::server::Presence;
use jiff::Timestamp;
use serde_json::json;
use store::leases::{self, Lease};
use store::presence_transitions::{self, AnnouncedOffline, OfflineServer};
use store::{Topic, servers};
use tokio::sync::watch;

use crate::{LeaderLease, PresenceSnapshot, UnavailableServers, log_error, wait_for_lead};
use service::App;
use service::clock::Stopwatch;
use service::{EventKind, emit};

/// The pause after a check, as a multiple of its duration: presence checks use at most a twentieth
/// of a core. The planner checks a server again before it starts a task there, so a late presence
/// check costs a moment, not correctness.
const PAUSE_FACTOR: f64 = 19.0;

/// Watches the presence of servers while this process leads. Runs until it is aborted.
pub(super) async fn run(
    app: App,
    poll: Duration,
    mut lead: watch::Receiver<LeaderLease>,
    away: watch::Sender<PresenceSnapshot>,
) {
    let mut presence_changed = app.db.subscribe(Topic::Presence);
    let mut servers_changed = app.db.subscribe(Topic::Servers);
    let mut current_lease: Option<(i64, Timestamp)> = None;
    let mut clock = app.clock.watch();
    loop {
        let lease = wait_for_lead(&mut lead).await;
        if clock.clock_change().is_some() {
            // After the clock was set, no server seems to have reported. That says nothing about
            // the servers.
            current_lease = None;
        }
        let now = clock.last_time();
        let since = match current_lease {
            Some((token, since)) if token == lease.token => since,
            _ => {
                // The snapshot of an earlier lease is outdated.
                away.send_replace(None);
                now
            }
        };
        current_lease = Some((lease.token, since));
        let stopwatch = Stopwatch::start();
        if let Err(error) = check_presence(&app, &lease, since, now, &away).await {
            log_error("presence", &error);
        }
        // During a large rollout every commit sends a notification, and each check scans all busy
        // servers.
        tokio::time::sleep(Duration::from_secs_f64(stopwatch.seconds() * PAUSE_FACTOR).min(poll))
            .await;
        tokio::select! {
            () = presence_changed.notified() => {}
            () = servers_changed.notified() => {}
            () = tokio::time::sleep(poll) => {}
            _ = lead.changed() => { lead.mark_changed(); }
        }
    }
}

async fn check_presence(
    app: &App,
    lease: &Lease,
    leading_since: Timestamp,
    now: Timestamp,
    away: &watch::Sender<PresenceSnapshot>,
) -> store::Result<()> {
    let sync_seconds = app.settings.sync_seconds;
    let patience = Presence { last_seen: None, sync_seconds }.offline_after();
    let limit = |at: Result<Timestamp, jiff::Error>, end| at.unwrap_or(end);
    let since = limit(now.checked_sub(patience), Timestamp::MIN);
    let until = limit(now.checked_add(patience), Timestamp::MAX);
    let mut reader = app.db.read().await?;
    let silent = presence_transitions::list_offline(&mut reader, since, until).await?;
    let barred = presence_transitions::list_blocked(&mut reader).await?;
    let known = presence_transitions::list_announced(&mut reader).await?;
    let busy = presence_transitions::list_busy(&mut reader).await?.into_iter().collect();
    drop(reader);
    let silent_ids = silent.iter().map(|server| server.server_id);
    let unavailable = UnavailableServers {
        offline: silent_ids.chain(barred.iter().map(|server| server.id)).collect(),
        busy,
    };
    away.send_if_modified(|known| {
        let new = known.as_deref() != Some(&unavailable);
        if new {
            *known = Some(Arc::new(unavailable));
        }
        new
    });
    // A service that was down itself has received no reports. That says nothing about the servers.
    let past_grace_period = now.duration_since(leading_since) >= patience;
    announce(app, lease, &silent, &known, past_grace_period, now).await
}

/// Emits an event for each server that went offline or came back. Each change is announced once,
/// even if the leader changes.
async fn announce(
    app: &App,
    lease: &Lease,
    offline: &[OfflineServer],
    known: &[AnnouncedOffline],
    settled: bool,
    now: Timestamp,
) -> store::Result<()> {
    let silent: BTreeMap<_, _> = offline.iter().map(|server| (server.server_id, server)).collect();
    let announced: BTreeSet<_> = known.iter().map(|absence| absence.server_id).collect();
    let went_offline: Vec<AnnouncedOffline> = silent
        .values()
        .filter(|server| settled && !announced.contains(&server.server_id))
        .map(|server| AnnouncedOffline {
            org_id: server.org,
            server_id: server.server_id,
            since: server.last_seen_at,
        })
        .collect();
    let came_online: Vec<_> =
        known.iter().filter(|absence| !silent.contains_key(&absence.server_id)).collect();
    if went_offline.is_empty() && came_online.is_empty() {
        return Ok(());
    }
    let mut tx = app.db.begin().await?;
    leases::fence(&mut tx, lease).await?;
    presence_transitions::record_offline(&mut tx, &went_offline).await?;
    presence_transitions::record_online(
        &mut tx,
        &came_online.iter().map(|absence| absence.server_id).collect::<Vec<_>>(),
    )
    .await?;
    for absence in &went_offline {
        let payload = json!({"server_id": absence.server_id, "last_seen_at": absence.since});
        let (org, server) = (absence.org_id, absence.server_id);
        emit(&mut tx, org, now, "engine", EventKind::ServerOffline, server, payload);
    }
    for absence in came_online {
        // A server that was removed in the meantime is not back online.
        let found = servers::identity(&mut tx, absence.server_id).await?;
        if found.is_some_and(|server| server.removed_at.is_none()) {
            let payload = json!({"server_id": absence.server_id, "away_since": absence.since});
            let (org, server) = (absence.org_id, absence.server_id);
            emit(&mut tx, org, now, "engine", EventKind::ServerOnline, server, payload);
        }
    }
    tx.commit().await
}
