//! Saves the reports of many servers in a few statements.
//!
//! Most reports are scans, which change a few columns. A report that changes what a server is (its
//! name, its system, a required reboot) is rare and saved separately.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use store::listings::{self, Kind};
use store::servers::{self, Scan, Server};
use store::{StoreError, Topic, Tx};
use vocab::{Digest, OrgId, ServerId};

use super::{News, Part, Waiting, Written};

/// One server before and after its report.
struct Change<'a> {
    place: usize,
    news: &'a News,
    before: Server,
    after: Server,
}

/// Saves the servers of all parts that are not `done` yet.
pub(super) async fn save(
    tx: &mut Tx,
    parts: &[Waiting],
    done: &mut [Option<store::Result<Written>>],
) -> store::Result<()> {
    let mut changes = changes(tx, parts, done).await?;
    let missing = take_up(tx, &changes).await?;
    changes.retain(|change| {
        let lost = change.lists().find(|list| missing.contains(list));
        if let Some((_, _, digest)) = lost {
            let error = StoreError::not_found("package list", digest);
            done[change.place] = Some(Err(error));
        }
        lost.is_none()
    });
    let scans: Vec<Scan> = changes.iter().filter_map(Change::as_scan).collect();
    let saved = servers::save_scans(tx, &scans).await?;
    let scans: BTreeSet<ServerId> = scans.iter().map(|scan| scan.id).collect();
    for Change { place, news, before, after } in changes {
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
            tx.ring(Topic::Servers);
        }
        done[place] = Some(result.map(|()| Written::Server(news.known(after))));
    }
    Ok(())
}

/// The changes of the parts, at most one per server. A second one for the same server is stale and
/// is retried.
async fn changes<'a>(
    tx: &mut Tx,
    parts: &'a [Waiting],
    done: &mut [Option<store::Result<Written>>],
) -> store::Result<Vec<Change<'a>>> {
    let mut news = BTreeMap::new();
    for (place, waiting) in parts.iter().enumerate() {
        let Part::News(told) = &waiting.part else { continue };
        if done[place].is_some() {
            continue;
        }
        match news.entry(told.server) {
            Entry::Vacant(first) => drop(first.insert((place, &**told))),
            Entry::Occupied(_) => done[place] = Some(Err(StoreError::Stale)),
        }
    }
    let ids: Vec<ServerId> = news.keys().copied().collect();
    let mut found: BTreeMap<ServerId, Server> =
        servers::get_all(tx, &ids).await?.into_iter().map(|server| (server.id, server)).collect();
    let mut changes = Vec::with_capacity(news.len());
    for (id, (place, news)) in news {
        match found.remove(&id).filter(|server| server.org_id == news.org) {
            Some(before) => {
                let after = news.applied(&before);
                changes.push(Change { place, news, before, after });
            }
            None => done[place] = Some(Err(StoreError::not_found("server", id))),
        }
    }
    Ok(changes)
}

/// A package set that a server starts to use.
type Taken = (OrgId, Kind, Digest);

impl Change<'_> {
    /// The package sets that the server did not have before.
    fn lists(&self) -> impl Iterator<Item = Taken> {
        let (before, after) = (&self.before, &self.after);
        let new = |was, is: Option<Digest>| is.filter(|_| was != is);
        let packages = new(before.package_set, after.package_set);
        let updates = new(before.update_set, after.update_set);
        let (org, packages) = (after.org_id, packages.map(|digest| (Kind::Packages, digest)));
        let lists = packages.into_iter().chain(updates.map(|digest| (Kind::Updates, digest)));
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
async fn take_up(tx: &mut Tx, changes: &[Change<'_>]) -> store::Result<BTreeSet<Taken>> {
    let now = changes.iter().map(|change| change.news.now).max().unwrap_or(Timestamp::MIN);
    let mut lists: BTreeMap<(OrgId, Kind), Vec<Digest>> = BTreeMap::new();
    for (org, kind, digest) in changes.iter().flat_map(Change::lists) {
        lists.entry((org, kind)).or_default().push(digest);
    }
    let mut missing = BTreeSet::new();
    for ((org, kind), digests) in lists {
        let unknown = listings::keep_all(tx, org, kind, &digests, now).await?;
        missing.extend(unknown.into_iter().map(|digest| (org, kind, digest)));
    }
    Ok(missing)
}
