//! Commands on servers: edit, remove, release from quarantine. Also reads a server's inventory.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use store::package_sets::{self, SetKind};
use store::servers::{self, Server};
use store::{Conn, StoreError, Topic, Tx, presence, presence_transitions, sync_sessions};
use vocab::listing::{self, Entry};
use vocab::{Digest, Environment, Installed, OrgId, Pending, ServerId, Severity, Tag};

use crate::audit::Action;
use crate::commands::batches;
use crate::{ATTEMPTS_MAX, App};
use crate::{Actor, EventKind, Result, ServiceError, emit, record};

/// Servers that are read and saved together when many are edited.
const EDITED_AT_ONCE: usize = 500;

/// Removes a server from every list, unless it has changed since it was `seen`. Its unfinished
/// tasks are canceled. The agent stays installed, learns of the removal at its next contact, and
/// does nothing more.
#[boxed]
pub async fn remove(app: &App, actor: &Actor, seen: &Server) -> Result<()> {
    let now = app.clock.now();
    let mut tx = app.db.begin().await?;
    // Rollouts are locked before servers, everywhere.
    batches::cancel_tasks_of_removed_server(&mut tx, actor.org, seen.id, now).await?;
    servers::remove(&mut tx, seen, now).await?;
    sync_sessions::delete(&mut tx, seen.id).await?;
    presence_transitions::record_online(&mut tx, &[seen.id]).await?;
    let detail = json!({"server_id": seen.id, "hostname": seen.hostname});
    record(&mut tx, actor.org, now, &actor.id, Action::ServerRemove, seen.id, &detail);
    emit(&mut tx, actor.org, now, &actor.id, EventKind::ServerRemoved, seen.id, detail);
    tx.notify(Topic::Servers);
    tx.notify(Topic::Rollouts);
    Ok(tx.commit().await?)
}

/// What a user changes about a server. `None` leaves it unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerEdit {
    /// The new environment; `Some(None)` removes the server from its environment.
    pub environment: Option<Option<Environment>>,
    pub tags: Option<Vec<Tag>>,
    /// Shown instead of the hostname; `Some(None)` removes it.
    pub display_name: Option<Option<String>>,
    pub notes: Option<String>,
}

impl ServerEdit {
    /// The server after this edit.
    fn apply(&self, seen: &Server) -> Server {
        let mut after = seen.clone();
        if let Some(environment) = &self.environment {
            after.environment.clone_from(environment);
        }
        if let Some(tags) = &self.tags {
            let mut seen = BTreeSet::new();
            after.tags = tags.iter().filter(|tag| seen.insert(*tag)).cloned().collect();
        }
        if let Some(name) = &self.display_name {
            after.display_name.clone_from(name);
        }
        if let Some(notes) = &self.notes {
            after.notes.clone_from(notes);
        }
        after
    }
}

/// Changes a server, unless it has changed since it was `seen`. Batches that were already created
/// keep their servers; schedules select by the new values from their next run on.
#[boxed]
pub async fn edit(app: &App, actor: &Actor, seen: &Server, edit: &ServerEdit) -> Result<Server> {
    let mut tx = app.db.begin().await?;
    let after = edit.apply(seen);
    let changed = save_edits(app, &mut tx, actor, vec![(seen.clone(), after.clone())]).await?;
    tx.commit().await?;
    Ok(Server { generation: seen.generation + changed as i64, ..after })
}

/// Changes those of these servers that exist and are `visible`, all or none. Returns how many
/// changed.
#[boxed]
pub async fn edit_all(
    app: &App,
    actor: &Actor,
    ids: &[ServerId],
    visible: &(dyn Fn(&Server) -> bool + Sync),
    edit: &(dyn Fn(&Server) -> Result<ServerEdit> + Sync),
) -> Result<u64> {
    // An inventory that arrives at the same time changes a row, but is no reason to refuse.
    for _ in 0..ATTEMPTS_MAX {
        match edit_all_once(app, actor, ids, visible, edit).await {
            Err(ServiceError::Stale) => {}
            done => return done,
        }
    }
    Err(ServiceError::Stale)
}

async fn edit_all_once(
    app: &App,
    actor: &Actor,
    ids: &[ServerId],
    visible: &(dyn Fn(&Server) -> bool + Sync),
    edit: &(dyn Fn(&Server) -> Result<ServerEdit> + Sync),
) -> Result<u64> {
    let mut tx = app.db.begin().await?;
    let mut changed = 0;
    for chunk in ids.chunks(EDITED_AT_ONCE) {
        // Without those that were removed in between.
        let mut seen = servers::get_all(&mut tx, chunk).await?;
        seen.sort_unstable_by_key(|server| server.id);
        let mut edits = Vec::with_capacity(seen.len());
        for seen in seen.into_iter().filter(|seen| seen.org_id == actor.org && visible(seen)) {
            let after = edit(&seen)?.apply(&seen);
            edits.push((seen, after));
        }
        changed += save_edits(app, &mut tx, actor, edits).await? as u64;
    }
    tx.commit().await?;
    Ok(changed)
}

/// Saves the servers that differ. Returns how many do.
async fn save_edits(
    app: &App,
    tx: &mut Tx,
    actor: &Actor,
    mut edits: Vec<(Server, Server)>,
) -> Result<usize> {
    edits.retain(|(seen, after)| seen != after);
    if edits.is_empty() {
        return Ok(0);
    }
    servers::save_edits(tx, &edits).await?;
    let now = app.clock.now();
    for (seen, after) in &edits {
        let detail = json!({"server_id": seen.id, "hostname": seen.hostname,
            "environment": [&seen.environment, &after.environment],
            "tags": [&seen.tags, &after.tags],
            "display_name": [&seen.display_name, &after.display_name],
            "notes_changed": seen.notes != after.notes});
        record(tx, actor.org, now, &actor.id, Action::ServerEdit, seen.id, &detail);
        emit(tx, actor.org, now, &actor.id, EventKind::ServerEdited, seen.id, detail);
    }
    tx.notify(Topic::Servers);
    Ok(edits.len())
}

/// Releases a server from quarantine. If there are two clones, the one that makes contact first is
/// the server from then on.
#[boxed]
pub async fn release(app: &App, actor: &Actor, seen: &Server) -> Result<Server> {
    let Some(reason) = &seen.quarantine else {
        let detail = format!("{} is not in quarantine", seen.hostname);
        return Err(ServiceError::conflict("not_quarantined", detail));
    };
    let now = app.clock.now();
    let after = Server { quarantine: None, ..seen.clone() };
    let mut tx = app.db.begin().await?;
    servers::save(&mut tx, seen, &after, now).await?;
    let counter = servers::get(&mut tx, actor.org, seen.id).await?.counter;
    let counter = presence::next_epoch(counter);
    presence::set_counter(&mut tx, actor.org, seen.id, counter).await?;
    sync_sessions::delete(&mut tx, seen.id).await?;
    let detail = json!({"server_id": seen.id, "hostname": seen.hostname, "reason": reason});
    record(&mut tx, actor.org, now, &actor.id, Action::ServerRelease, seen.id, &detail);
    emit(&mut tx, actor.org, now, &actor.id, EventKind::ServerReleased, seen.id, detail);
    tx.notify(Topic::Servers);
    tx.commit().await?;
    Ok(Server { generation: seen.generation + 1, counter, ..after })
}

/// The installed packages and the pending updates of a server. A list that the agent never sent is
/// empty.
#[boxed]
pub async fn inventory(conn: &mut Conn, server: &Server) -> Result<(Vec<Installed>, Vec<Pending>)> {
    let installed = match server.package_set {
        Some(digest) => entries(conn, server.org_id, SetKind::Packages, digest).await?,
        None => Vec::new(),
    };
    let pending = match server.update_set {
        Some(digest) => entries(conn, server.org_id, SetKind::Updates, digest).await?,
        None => Vec::new(),
    };
    Ok((installed, pending))
}

/// The entries of a stored list. A list that was deleted concurrently is empty.
pub async fn entries<T: Entry>(
    conn: &mut Conn,
    org: OrgId,
    kind: SetKind,
    digest: Digest,
) -> Result<Vec<T>> {
    let bytes = match package_sets::get(conn, org, kind, digest).await {
        Err(StoreError::NotFound { .. }) => return Ok(Vec::new()),
        bytes => bytes?,
    };
    let mut entries: Vec<T> = listing::decode(&bytes).map_err(|source| StoreError::Corrupt {
        table: "listings",
        id: digest.to_string(),
        source: source.into(),
    })?;
    listing::sort(&mut entries);
    Ok(entries)
}

/// Maps the index of an installed package to its pending update. If several versions of a package
/// are installed side by side, as kernels are, the update belongs to the version that it replaces
/// according to the package manager, or else to the newest.
pub fn match_updates<'a>(
    installed: &[Installed],
    pending: &'a [Pending],
) -> BTreeMap<usize, &'a Pending> {
    let mut places: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (place, package) in installed.iter().enumerate() {
        places.entry(&package.name).or_default().push(place);
    }
    let mut joined = BTreeMap::new();
    for update in pending {
        let same_arch =
            |place: &&usize| update.arch.is_empty() || installed[**place].arch == update.arch;
        let candidates: Vec<usize> = places
            .get(update.name.as_str())
            .map(|places| places.iter().filter(same_arch).copied().collect())
            .unwrap_or_default();
        let replaced =
            candidates.iter().find(|place| installed[**place].version == update.installed);
        if let Some(place) = replaced.or(candidates.last()) {
            joined.insert(*place, update);
        }
    }
    joined
}

/// The severity of an update as its host's package manager reports it.
pub fn reported_severity(update: &Pending) -> Severity {
    update.severity.unwrap_or(Severity::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn update_belongs_to_the_version_it_replaces() {
        let installed = [
            Installed::new("kernel", "5.1", "x86_64"),
            Installed::new("kernel", "5.2", "x86_64"),
            Installed::new("libc", "2.1", "amd64"),
            Installed::new("libc", "2.1", "i386"),
        ];
        let pending = [
            Pending::new("kernel", "x86_64", "5.2", "5.3"),
            Pending::new("libc", "i386", "2.1", "2.2"),
            Pending::new("elsewhere", "amd64", "1", "2"),
        ];
        let joined = match_updates(&installed, &pending);
        let places: Vec<_> =
            joined.iter().map(|(place, update)| (*place, update.name.as_str())).collect();
        assert_eq!(places, [(1, "kernel"), (3, "libc")]);
    }
}
