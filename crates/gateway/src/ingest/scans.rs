//! Saves the reports of many servers in a few statements.
//!
//! Most reports are scans, which change a few columns. A report that changes what a server is (its
//! name, its system, a required reboot) is rare and saved separately.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::json;
use service::{EventKind, emit};
use store::package_sets::{self, SetKind};
use store::servers::{self, Scan, Server};
use store::{StoreError, Topic, Tx};
use vocab::{Digest, OrgId, ServerId};

use super::{AgentReport, IngestPart, QueuedPart, WriteResult};

/// One server before and after its report.
struct ServerChange<'a> {
    index: usize,
    report: &'a AgentReport,
    before: Server,
    after: Server,
}

/// Saves the servers of all parts that are not `done` yet.
pub(super) async fn save(
    tx: &mut Tx,
    parts: &[QueuedPart],
    done: &mut [Option<store::Result<WriteResult>>],
) -> store::Result<()> {
    let mut changes = changes(tx, parts, done).await?;
    let missing = mark_used(tx, &changes).await?;
    changes.retain(|change| {
        let lost = change.new_package_sets().find(|list| missing.contains(list));
        if let Some((_, _, digest)) = lost {
            let error = StoreError::not_found("package set", digest);
            done[change.index] = Some(Err(error));
        }
        lost.is_none()
    });
    let scans: Vec<Scan> = changes.iter().filter_map(ServerChange::as_scan).collect();
    let saved = servers::save_scans(tx, &scans).await?;
    let scans: BTreeSet<ServerId> = scans.iter().map(|scan| scan.id).collect();
    for ServerChange { index: place, report: news, before, after } in changes {
        let result = if before == after {
            Ok(())
        } else if !scans.contains(&before.id) {
            tx.attempt(async |tx| servers::save(tx, &before, &after, news.now).await).await?
        } else if saved.contains(&before.id) {
            Ok(())
        } else {
            Err(StoreError::Stale)
        };
        if before != after && result.is_ok() {
            tx.notify(Topic::Servers);
            if after.reboot_required && !before.reboot_required {
                let data = json!({"server_id": after.id, "reasons": after.reboot_reasons});
                let kind = EventKind::ServerRebootRequired;
                emit(tx, after.org_id, news.now, "engine", kind, after.id, data);
            }
        }
        done[place] = Some(result.map(|()| WriteResult::Server(news.stored_state(after))));
    }
    Ok(())
}

/// The changes of the parts, at most one per server: that of its newest report. The others were
/// abandoned by their agent, which sent the same again.
async fn changes<'a>(
    tx: &mut Tx,
    parts: &'a [QueuedPart],
    done: &mut [Option<store::Result<WriteResult>>],
) -> store::Result<Vec<ServerChange<'a>>> {
    let mut report: BTreeMap<ServerId, (usize, &AgentReport)> = BTreeMap::new();
    for (place, waiting) in parts.iter().enumerate() {
        let IngestPart::Report(told) = &waiting.part else { continue };
        if done[place].is_some() {
            continue;
        }
        let this = (place, &**told);
        match report.entry(told.server) {
            Entry::Vacant(first) => drop(first.insert(this)),
            Entry::Occupied(mut other) => {
                let older = match other.get().1.order <= told.order {
                    true => other.insert(this),
                    false => this,
                };
                done[older.0] = Some(Ok(WriteResult::Superseded));
            }
        }
    }
    let ids: Vec<ServerId> = report.keys().copied().collect();
    let mut found: BTreeMap<ServerId, Server> =
        servers::get_all(tx, &ids).await?.into_iter().map(|server| (server.id, server)).collect();
    let mut changes = Vec::with_capacity(report.len());
    for (id, (place, news)) in report {
        match found.remove(&id).filter(|server| server.org_id == news.org) {
            Some(before) => {
                let after = news.apply_to(&before);
                changes.push(ServerChange { index: place, report: news, before, after });
            }
            None => done[place] = Some(Err(StoreError::not_found("server", id))),
        }
    }
    Ok(changes)
}

/// A package set that a server starts to use.
type UsedPackageSet = (OrgId, SetKind, Digest);

impl ServerChange<'_> {
    /// The package sets that the server did not have before.
    fn new_package_sets(&self) -> impl Iterator<Item = UsedPackageSet> {
        let (before, after) = (&self.before, &self.after);
        let new = |was, is: Option<Digest>| is.filter(|_| was != is);
        let packages = new(before.package_set, after.package_set);
        let updates = new(before.update_set, after.update_set);
        let (org, packages) = (after.org_id, packages.map(|digest| (SetKind::Packages, digest)));
        let lists = packages.into_iter().chain(updates.map(|digest| (SetKind::Updates, digest)));
        lists.map(move |(kind, digest)| (org, kind, digest))
    }

    /// The change as a scan. `None` if nothing changed, or more than a scan changes.
    fn as_scan(&self) -> Option<Scan> {
        let after = &self.after;
        let scanned = Server {
            last_scan_at: after.last_scan_at,
            activity: after.activity.clone(),
            package_set: after.package_set,
            update_set: after.update_set,
            packages: after.packages,
            updates: after.updates,
            security_updates: after.security_updates,
            ..self.before.clone()
        };
        (self.before != *after && scanned == *after).then(|| Scan {
            id: after.id,
            seen: self.before.generation,
            last_scan_at: after.last_scan_at,
            activity: after.activity.clone(),
            package_set: after.package_set,
            update_set: after.update_set,
            packages: after.packages,
            updates: after.updates,
            security_updates: after.security_updates,
        })
    }
}

/// Marks every package set as used. Returns those that are not stored.
async fn mark_used(
    tx: &mut Tx,
    changes: &[ServerChange<'_>],
) -> store::Result<BTreeSet<UsedPackageSet>> {
    let now = changes.iter().map(|change| change.report.now).max().unwrap_or(Timestamp::MIN);
    let mut lists: BTreeMap<(OrgId, SetKind), Vec<Digest>> = BTreeMap::new();
    for (org, kind, digest) in changes.iter().flat_map(ServerChange::new_package_sets) {
        lists.entry((org, kind)).or_default().push(digest);
    }
    let mut missing = BTreeSet::new();
    for ((org, kind), digests) in lists {
        let unknown = package_sets::mark_all_used(tx, org, kind, &digests, now).await?;
        missing.extend(unknown.into_iter().map(|digest| (org, kind, digest)));
    }
    Ok(missing)
}
