//! Pending updates by package, made ready for reading.
//!
//! [`rebuild`] makes an organization's rows from its distinct lists of updates and how many servers carry each: 100,000
//! servers of 2,000 kinds cost 2,000 lists. [`spawn`] does so whenever servers changed, at most so often that it takes a
//! small part of one core. Whoever reads asks `store::patches`; a key that sees some environments only is answered by [`within`].
//! How bad an update is, comes from the flaws that it closes where it is pending, as the feeds know them, and from what
//! the hosts' package managers say. So does how many of a server's updates are for security; where another number stands
//! it is put right (`store::recounts`).

mod closing;
mod gather;

use async_recursion::async_recursion as boxed;
pub use domain::finding::PACKAGE_MANAGER;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use store::listings::Kind as ListingKind;
use store::patches::{self, Changes, Kind, Patch, Summary};
use store::servers::Server;
use store::{Conn, StoreError, Topic, advisories, findings, organizations, recounts};
use tokio::task::JoinHandle;
use vocab::{Digest, Environment, OrgId, Pending, Severity};

use self::closing::Closings;
use self::gather::{Ground, counted, gathered, named, sort};
use crate::App;
use crate::clock::Stopwatch;
use crate::commands::servers::{entries, severity as severity_of};
use crate::{Result, ServiceError, apart};

/// How many new lists are written down in one transaction.
const SETS_TOGETHER: usize = 50;
/// How many servers get another number in one transaction: nobody waits for it longer than some ten milliseconds.
const SERVERS_TOGETHER: usize = 1_000;
/// How often the rows are looked after when no bell rings.
const LOOK: Duration = Duration::from_secs(30);
/// The least rest between two rounds, and how many times as long as a round takes: a busy fleet has news all the time.
const REST: Duration = Duration::from_millis(500);
const REST_TIMES: f64 = 12.0;

/// The organization in numbers, as they are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// How many servers want a reboot.
    pub reboot_required: u64,
    /// How many get no orders until a person decides.
    pub quarantined: u64,
    /// How many were scanned recently and have updates pending.
    pub with_updates: u64,
    /// How many were scanned recently and have none.
    pub up_to_date: u64,
    /// How many were last scanned too long ago.
    pub stale: u64,
    /// How many never sent their packages.
    pub not_scanned: u64,
    /// How many have security updates pending.
    pub with_security_updates: u64,
    /// How many packages have an update pending.
    pub patches: u64,
    /// How many of those fix security flaws.
    pub security_patches: u64,
    /// How many there are of each severity, the worst first.
    pub severities: [u32; Severity::ALL.len()],
}

/// The lists of updates by what they are known by.
type Lists = BTreeMap<Digest, Vec<Pending>>;

/// What was read the last time, because most of it is still in use.
#[derive(Debug, Default)]
struct Known {
    lists: Lists,
    closings: Closings,
}

impl Known {
    async fn read(&mut self, conn: &mut Conn, org: OrgId, kinds: &[Kind]) -> Result<()> {
        read_lists(conn, org, kinds, &mut self.lists).await?;
        self.closings.read(conn, org, kinds, &self.lists).await
    }

    /// Those of the flaws that any update is about which are known to be exploited.
    async fn exploited(&self, conn: &mut Conn) -> Result<BTreeSet<String>> {
        let named = named(&self.lists, &self.closings);
        Ok(advisories::exploited(conn, &named).await?.into_keys().collect())
    }

    /// The kinds with as many security updates as they should have, and which of them have servers with another number.
    fn settled(&self, kinds: Vec<Kind>) -> (Vec<Kind>, Vec<(Kind, u32)>) {
        let mut wrong = Vec::new();
        let settle = |kind: Kind| {
            let Some(truth) = self.closings.secured(&kind, &self.lists) else { return kind };
            if (kind.fewest, kind.most) != (truth, truth) {
                wrong.push((kind.clone(), truth));
            }
            let insecure = if truth > 0 { kind.servers } else { 0 };
            Kind { fewest: truth, most: truth, insecure, ..kind }
        };
        (kinds.into_iter().map(settle).collect(), wrong)
    }

    /// The rows, in the order of the list.
    fn rows(
        &self,
        kinds: &[Kind],
        exploited: &BTreeSet<String>,
        before: &[Patch],
        now: Timestamp,
    ) -> Vec<Patch> {
        let Known { lists, closings } = self;
        let first_seen = &first_seen(before);
        gathered(&Ground { kinds, lists, closings, exploited, first_seen, now })
    }
}

/// The severity that stands at a place of the order; the worst is 0.
pub fn severity(order: i64) -> Severity {
    let place = usize::try_from(order).unwrap_or(usize::MAX);
    Severity::ALL.iter().rev().nth(place).copied().unwrap_or(Severity::Unknown)
}

/// The place of a severity in the order.
pub fn severity_order(severity: Severity) -> i64 {
    let place = Severity::ALL.iter().rev().position(|known| *known == severity);
    place.map_or(i64::MAX, |place| place as i64)
}

/// Looks after the rows of every organization for as long as it is not aborted.
pub fn spawn(app: App) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut changed = app.db.bell(Topic::Servers);
        let mut matched = app.db.bell(Topic::Findings);
        let mut known = BTreeMap::new();
        loop {
            let watch = Stopwatch::start();
            let (taken, its_app) = (std::mem::take(&mut known), app.clone());
            let done = apart(async move {
                let mut known = taken;
                let done = rebuild_all(&its_app, &mut known).await;
                (known, done)
            });
            let done = done.await.and_then(|(taken, done)| {
                known = taken;
                done
            });
            if let Err(error) = done {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "patches are counted later"
                );
            }
            let rest = Duration::from_secs_f64(watch.seconds() * REST_TIMES).max(REST);
            tokio::time::sleep(rest).await;
            tokio::select! {
                () = changed.rung() => {}
                () = matched.rung() => {}
                () = tokio::time::sleep(LOOK) => {}
                () = app.until_drain() => return,
            }
        }
    })
}

async fn rebuild_all(app: &App, known: &mut BTreeMap<OrgId, Known>) -> Result<()> {
    let all = organizations::list(&mut *app.db.read().await?).await?;
    for organization in all {
        rebuild_from(app, organization.id, known.entry(organization.id).or_default()).await?;
    }
    Ok(())
}

/// Makes the rows of an organization anew, if its servers or their flaws are not as they were. Says whether it did.
#[boxed]
pub async fn rebuild(app: &App, org: OrgId) -> Result<bool> {
    rebuild_from(app, org, &mut Known::default()).await
}

async fn rebuild_from(app: &App, org: OrgId, known: &mut Known) -> Result<bool> {
    let now = app.clock.now();
    let mut reader = app.db.snapshot().await?;
    let kinds = patches::kinds(&mut reader, org, None, app.stale_before()).await?;
    let seen = patches::summary(&mut reader, org).await?;
    let matched = findings::summary(&mut reader, org).await?;
    let matched = matched.map(|matched| matched.basis);
    if seen.as_ref().is_some_and(|seen| seen.basis == basis(&kinds, matched)) {
        return Ok(false);
    }
    known.read(&mut reader, org, &kinds).await?;
    let (kinds, wrong) = known.settled(kinds);
    let before = patches::all(&mut reader, org).await?;
    let known_sets = patches::sets(&mut reader, org).await?;
    let exploited = known.exploited(&mut reader).await?;
    drop(reader);
    recount(app, org, &wrong).await?;
    let rows = known.rows(&kinds, &exploited, &before, now);
    let counts = counted(&kinds, &rows);
    let (changes, sets) = difference(before, rows, &known_sets, &known.lists);
    let next = Summary {
        org_id: org,
        basis: basis(&kinds, matched),
        counts: serde_json::to_value(counts)
            .map_err(|error| ServiceError::Internal(error.into()))?,
        made_at: now,
        generation: seen.map_or(0, |seen| seen.generation),
    };
    for some in sets.chunks(SETS_TOGETHER) {
        let mut tx = app.db.begin().await?;
        patches::add_sets(&mut tx, org, some).await?;
        tx.commit().await?;
    }
    let mut tx = app.db.begin().await?;
    match patches::begin(&mut tx, &next).await {
        // Another replica was faster; its rows are as good as ours.
        Err(StoreError::Stale) => return Ok(false),
        begun => begun?,
    }
    patches::change(&mut tx, org, &changes).await?;
    tx.commit().await?;
    Ok(true)
}

/// Writes down how many security updates servers have, where another number stands. Whoever sends news meanwhile is left
/// for the next round, which finds them.
async fn recount(app: &App, org: OrgId, wrong: &[(Kind, u32)]) -> Result<()> {
    let wrong: Vec<(&Kind, u32)> = wrong.iter().map(|(kind, truth)| (kind, *truth)).collect();
    let all = recounts::wanted(&mut *app.db.read().await?, org, &wrong).await?;
    for some in all.chunks(SERVERS_TOGETHER) {
        let mut tx = app.db.begin().await?;
        recounts::write(&mut tx, some).await?;
        tx.commit().await?;
    }
    Ok(())
}

/// The patches of a few environments, in the order of the list. Made on the spot.
#[boxed]
pub async fn within(
    app: &App,
    conn: &mut Conn,
    org: OrgId,
    environments: &[Environment],
) -> Result<(Vec<Patch>, Counts)> {
    let kinds = patches::kinds(conn, org, Some(environments), app.stale_before()).await?;
    let mut known = Known::default();
    known.read(conn, org, &kinds).await?;
    let (kinds, _) = known.settled(kinds);
    let before = patches::all(conn, org).await?;
    let exploited = known.exploited(conn).await?;
    let rows = known.rows(&kinds, &exploited, &before, app.clock.now());
    let counts = counted(&kinds, &rows);
    Ok((rows, counts))
}

/// The patches that wait on one server, with what is known of them in the whole organization.
#[boxed]
pub async fn of_server(app: &App, conn: &mut Conn, server: &Server) -> Result<Vec<Patch>> {
    let Some(set) = server.update_set else { return Ok(Vec::new()) };
    let list: Vec<Pending> = entries(conn, server.org_id, ListingKind::Updates, set).await?;
    let names: BTreeSet<&String> = list.iter().map(|update| &update.name).collect();
    let names: Vec<String> = names.into_iter().cloned().collect();
    let mut rows = patches::of_names(conn, server.org_id, &names).await?;
    // A list that has only just arrived may not be counted yet.
    let counted: BTreeSet<String> = rows.iter().map(|row| row.package_name.clone()).collect();
    if names.iter().all(|name| counted.contains(name)) {
        sort(&mut rows);
        return Ok(rows);
    }
    let alone = Kind {
        update_set: Some(set),
        package_set: server.package_set,
        os_release: server.os.to_string(),
        kernel: server.kernel.clone(),
        runs: server.runs.clone(),
        os: server.os.clone(),
        servers: 1,
        reboot_required: 0,
        quarantined: 0,
        outdated: 0,
        stale: 0,
        insecure: 0,
        fewest: 0,
        most: 0,
    };
    let kinds = [alone];
    let mut known = Known { lists: Lists::from([(set, list)]), ..Known::default() };
    known.read(conn, server.org_id, &kinds).await?;
    let exploited = known.exploited(conn).await?;
    let fresh = known.rows(&kinds, &exploited, &[], app.clock.now());
    rows.extend(fresh.into_iter().filter(|row| !counted.contains(&row.package_name)));
    sort(&mut rows);
    Ok(rows)
}

/// `matched` stands for the flaws that the servers have.
fn basis(kinds: &[Kind], matched: Option<Digest>) -> Digest {
    let word = |digest: Option<Digest>| digest.map(|digest| digest.to_string()).unwrap_or_default();
    let mut text = format!("{}\n", word(matched));
    for kind in kinds {
        let (updates, packages) = (word(kind.update_set), word(kind.package_set));
        let Kind { os_release, kernel, runs, servers, .. } = kind;
        let Kind { reboot_required, quarantined, outdated, stale, insecure, fewest, most, .. } =
            kind;
        text += &format!(
            "{updates} {packages} {os_release} {kernel} {runs} {servers} {reboot_required} \
             {quarantined} {outdated} {stale} {insecure} {fewest} {most}\n"
        );
    }
    Digest::of(text.as_bytes())
}

/// Reads those lists that are not there yet, and forgets those that no server has any more.
async fn read_lists(conn: &mut Conn, org: OrgId, kinds: &[Kind], lists: &mut Lists) -> Result<()> {
    let used: BTreeSet<Digest> = kinds.iter().filter_map(|kind| kind.update_set).collect();
    lists.retain(|set, _| used.contains(set));
    for set in used {
        if let Entry::Vacant(new) = lists.entry(set) {
            new.insert(entries(conn, org, ListingKind::Updates, set).await?);
        }
    }
    Ok(())
}

fn first_seen(rows: &[Patch]) -> BTreeMap<String, Timestamp> {
    rows.iter().map(|row| (row.package_name.clone(), row.first_seen_at)).collect()
}

/// A list and the packages that it names.
type Named = (Digest, Vec<String>);

fn difference(
    before: Vec<Patch>,
    after: Vec<Patch>,
    known: &[Digest],
    lists: &Lists,
) -> (Changes, Vec<Named>) {
    let mut before: BTreeMap<String, Patch> =
        before.into_iter().map(|row| (row.package_name.clone(), row)).collect();
    let put = after
        .into_iter()
        .filter(|row| before.remove(&row.package_name).is_none_or(|was| was != *row))
        .collect();
    let known: BTreeSet<Digest> = known.iter().copied().collect();
    let named = |list: &[Pending]| -> Vec<String> {
        let names: BTreeSet<&String> = list.iter().map(|update| &update.name).collect();
        names.into_iter().cloned().collect()
    };
    let fresh = lists.iter().filter(|(set, _)| !known.contains(set));
    let changes = Changes {
        put,
        gone: before.into_keys().collect(),
        sets_gone: known.iter().filter(|set| !lists.contains_key(set)).copied().collect(),
    };
    (changes, fresh.map(|(set, list)| (*set, named(list))).collect())
}

/// How bad one flaw of an update is, as far as its host knows.
pub fn flaw_severity(updates: &[Pending], cve: &str) -> Severity {
    let with = updates.iter().filter(|update| update.cves.iter().any(|id| id == cve));
    with.map(severity_of).max().unwrap_or(Severity::Unknown)
}

#[cfg(test)]
mod tests {
    use vocab::UpdateType;

    use super::*;

    #[test]
    fn the_order_of_severities_begins_with_the_worst_and_finds_back() {
        assert_eq!(severity_order(Severity::Critical), 0);
        for known in Severity::ALL {
            assert_eq!(severity(severity_order(*known)), *known);
        }
    }

    #[test]
    fn words_for_an_update_stand_in_the_order_of_their_weight() {
        assert!(UpdateType::Security < UpdateType::Bugfix);
        assert!(UpdateType::Bugfix < UpdateType::Enhancement);
        assert!(UpdateType::Enhancement < UpdateType::Other);
    }
}
