//! Requests to agents outside of batches: to report the packages immediately, or to upgrade
//! themselves.

use async_recursion::async_recursion as boxed;
use domain::server::Presence;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use store::refreshes::{self, Refresh, RefreshState};
use store::{Tx, servers};
use vocab::{Line, OrgId, Selector, ServerId, TaskId};
use wire::agent::{AgentUpgrade, is_older_version};

use crate::App;
use crate::audit::Action;
use crate::clock::random_u128;
use crate::{Actor, EventKind, Result, ServiceError, emit, record};

/// The time limit for an agent to report.
pub const TIMEOUT: SignedDuration = SignedDuration::from_mins(5);

/// Requests a refresh of a server's inventory. While one is in progress, returns that one.
#[boxed]
pub async fn request(app: &App, actor: &Actor, server: ServerId) -> Result<Refresh> {
    let org = actor.org;
    let now = app.clock.now();
    let mut tx = app.db.begin().await?;
    let row = servers::get(&mut tx, org, server).await?;
    // This process may have heard from the server since the row was last written.
    let last_contact = app.last_contact(server);
    let last_contact_at = last_contact.map_or(row.last_seen_at, |at| at.max(row.last_seen_at));
    let sync_seconds = app.settings.sync_seconds;
    if !(Presence { last_seen: Some(last_contact_at), sync_seconds }.is_online(now)) {
        let detail = format!("{} has not been heard from since {last_contact_at}", row.hostname);
        return Err(ServiceError::conflict("server_offline", detail));
    }
    let created = request_in(&mut tx, &actor.id, org, server, now).await?;
    tx.commit().await?;
    Ok(created)
}

/// Stores the request in the caller's transaction.
pub(super) async fn request_in(
    tx: &mut Tx,
    who: &str,
    org: OrgId,
    server: ServerId,
    now: Timestamp,
) -> store::Result<Refresh> {
    let wanted = Refresh {
        id: TaskId::new(now, random_u128()),
        org_id: org,
        server_id: server,
        state: RefreshState::Requested,
        requested_by: who.to_owned(),
        requested_at: now,
        deadline: now + TIMEOUT,
        ended_at: None,
        message: None,
        upgrade: None,
        seal: store::seals::SealCode::default(),
    };
    let created = refreshes::request(tx, &wanted).await?;
    if created.id == wanted.id {
        let detail = json!({"refresh_id": created.id, "server_id": server});
        record(tx, org, now, who, Action::ServerRefresh, server, &detail);
        emit(tx, org, now, who, EventKind::ServerRefreshRequested, server, detail);
    }
    Ok(created)
}

/// How long an agent may take to upgrade itself; it may be offline at first.
const UPGRADE_TIMEOUT: SignedDuration = SignedDuration::from_hours(24);

/// What became of a request to upgrade the agent of one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpgradeRequest {
    /// It is requested now, or was already.
    Requested,
    /// The agent is not older than the one that this service carries.
    Current,
    /// This service carries no signed agent for its architecture.
    NoRelease,
}

/// Records in the audit log that a user asks for upgrades, before any is requested.
#[boxed]
pub async fn record_upgrade_request(
    app: &App,
    actor: &Actor,
    targets: &Selector,
    servers: usize,
) -> Result<()> {
    let now = app.clock.now();
    let mut tx = app.db.begin().await?;
    let detail = json!({"targets": targets, "servers": servers});
    record(&mut tx, actor.org, now, &actor.id, Action::AgentUpgradeRequest, "agents", &detail);
    Ok(tx.commit().await?)
}

/// Requests upgrades of the agents of these servers. Returns what became of each.
#[boxed]
pub async fn request_upgrades(
    app: &App,
    actor: &Actor,
    ids: &[ServerId],
) -> Result<Vec<UpgradeRequest>> {
    let now = app.clock.now();
    let mut all = Vec::with_capacity(ids.len());
    let mut tx = app.db.begin().await?;
    for id in ids {
        let row = servers::get(&mut tx, actor.org, *id).await?;
        let release = row.arch.parse().ok().and_then(|arch| app.settings.agents.get(arch));
        let signed = release.and_then(|release| Some((release, release.signature.clone()?)));
        let Some((release, signature)) = signed else {
            all.push(UpgradeRequest::NoRelease);
            continue;
        };
        if !is_older_version(&row.agent_version, &release.version) {
            all.push(UpgradeRequest::Current);
            continue;
        }
        all.push(UpgradeRequest::Requested);
        let upgrade = AgentUpgrade {
            version: Line::sanitize(&release.version),
            sha256: release.sha256.clone(),
            size_bytes: release.size_bytes,
            signature,
        };
        let wanted = Refresh {
            id: TaskId::new(now, random_u128()),
            org_id: actor.org,
            server_id: *id,
            state: RefreshState::Requested,
            requested_by: actor.id.clone(),
            requested_at: now,
            deadline: now + UPGRADE_TIMEOUT,
            ended_at: None,
            message: None,
            upgrade: Some(json!(upgrade).to_string()),
            seal: store::seals::SealCode::default(),
        };
        let created = refreshes::request(&mut tx, &wanted).await?;
        if created.id == wanted.id {
            let detail = json!({"server_id": id, "hostname": row.hostname,
                "from": row.agent_version, "to": release.version, "sha256": release.sha256});
            record(&mut tx, actor.org, now, &actor.id, Action::AgentUpgrade, id, &detail);
            emit(&mut tx, actor.org, now, &actor.id, EventKind::AgentUpgradeRequested, id, detail);
        }
    }
    tx.commit().await?;
    Ok(all)
}

/// A refresh of this server.
#[boxed]
pub async fn get(app: &App, org: OrgId, server: ServerId, id: TaskId) -> Result<Refresh> {
    let mut reader = app.db.read().await?;
    let found = refreshes::get(&mut reader, org, id).await?;
    if found.server_id != server || found.upgrade.is_some() {
        return Err(ServiceError::NotFound { kind: "refresh", id: id.to_string() });
    }
    Ok(found)
}
