//! Presence of servers: informs the planner which servers are available, and emits events when
//! servers go offline or come back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use domain::server::Presence;
use jiff::Timestamp;
use serde_json::json;
use store::absences::{self, Absence, Silent};
use store::leases::{self, Lease};
use store::{Topic, servers};
use tokio::sync::watch;

use crate::{Away, Lead, Unable, complain, until_leading};
use service::App;
use service::clock::Stopwatch;
use service::emit;

/// The pause after a check, as a multiple of its duration: presence checks use at most a twentieth
/// of a core. The planner checks a server again before it starts a task there, so a late presence
/// check costs a moment, not correctness.
const REST_TIMES: f64 = 19.0;

/// Watches the presence of servers while this process leads. Runs until it is aborted.
pub(super) async fn watch(
    app: App,
    look: Duration,
    mut lead: watch::Receiver<Lead>,
    away: watch::Sender<Away>,
) {
    let mut came = app.db.bell(Topic::Presence);
    let mut barred = app.db.bell(Topic::Servers);
    let mut leading: Option<(i64, Timestamp)> = None;
    let mut hands = app.clock.hands();
    loop {
        let lease = until_leading(&mut lead).await;
        if hands.look().is_some() {
            // After the clock was set, no server seems to have reported. That says nothing about
            // the servers.
            leading = None;
        }
        let now = hands.shown();
        let since = match leading {
            Some((token, since)) if token == lease.token => since,
            _ => {
                // The snapshot of an earlier lease is outdated.
                away.send_replace(None);
                now
            }
        };
        leading = Some((lease.token, since));
        let took = Stopwatch::start();
        if let Err(error) = look_around(&app, &lease, since, now, &away).await {
            complain("presence", &error);
        }
        // During a large rollout every commit sends a notification, and each check scans all busy
        // servers.
        tokio::time::sleep(Duration::from_secs_f64(took.seconds() * REST_TIMES).min(look)).await;
        tokio::select! {
            () = came.rung() => {}
            () = barred.rung() => {}
            () = tokio::time::sleep(look) => {}
            _ = lead.changed() => { lead.mark_changed(); }
        }
    }
}

async fn look_around(
    app: &App,
    lease: &Lease,
    leading_since: Timestamp,
    now: Timestamp,
    away: &watch::Sender<Away>,
) -> store::Result<()> {
    let sync_seconds = app.settings.sync_seconds;
    let patience = Presence { last_seen: None, sync_seconds }.patience();
    let limit = |at: Result<Timestamp, jiff::Error>, end| at.unwrap_or(end);
    let since = limit(now.checked_sub(patience), Timestamp::MIN);
    let until = limit(now.checked_add(patience), Timestamp::MAX);
    let mut reader = app.db.read().await?;
    let silent = absences::silent(&mut reader, since, until).await?;
    let barred = absences::barred(&mut reader).await?;
    let known = absences::known(&mut reader).await?;
    let at_work = absences::at_work(&mut reader).await?.into_iter().collect();
    drop(reader);
    let silent_ids = silent.iter().map(|server| server.server_id);
    let unable =
        Unable { away: silent_ids.chain(barred.iter().map(|server| server.id)).collect(), at_work };
    away.send_if_modified(|known| {
        let new = known.as_deref() != Some(&unable);
        if new {
            *known = Some(Arc::new(unable));
        }
        new
    });
    // A service that was down itself has received no reports. That says nothing about the servers.
    let settled = now.duration_since(leading_since) >= patience;
    announce(app, lease, &silent, &known, settled, now).await
}

/// Emits an event for each server that went offline or came back. Each change is announced once,
/// even if the leader changes.
async fn announce(
    app: &App,
    lease: &Lease,
    silent: &[Silent],
    known: &[Absence],
    settled: bool,
    now: Timestamp,
) -> store::Result<()> {
    let silent: BTreeMap<_, _> = silent.iter().map(|server| (server.server_id, server)).collect();
    let said: BTreeSet<_> = known.iter().map(|absence| absence.server_id).collect();
    let gone: Vec<Absence> = silent
        .values()
        .filter(|server| settled && !said.contains(&server.server_id))
        .map(|server| Absence {
            org_id: server.org,
            server_id: server.server_id,
            since: server.last_seen_at,
        })
        .collect();
    let back: Vec<_> =
        known.iter().filter(|absence| !silent.contains_key(&absence.server_id)).collect();
    if gone.is_empty() && back.is_empty() {
        return Ok(());
    }
    let mut tx = app.db.begin().await?;
    leases::fence(&mut tx, lease).await?;
    absences::note(&mut tx, &gone).await?;
    absences::end(&mut tx, &back.iter().map(|absence| absence.server_id).collect::<Vec<_>>())
        .await?;
    for absence in &gone {
        let told = json!({"server_id": absence.server_id, "last_seen_at": absence.since});
        emit(&mut tx, absence.org_id, "server.offline", now, told);
    }
    for absence in back {
        // A server that was removed in the meantime is not back online.
        let found = servers::identity(&mut tx, absence.server_id).await?;
        if found.is_some_and(|server| server.removed_at.is_none()) {
            let told = json!({"server_id": absence.server_id, "away_since": absence.since});
            emit(&mut tx, absence.org_id, "server.online", now, told);
        }
    }
    tx.commit().await
}
