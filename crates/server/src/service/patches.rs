//! Pending updates by package, made ready for reading.
//!
//! [`rebuild`] makes an organization's rows from its distinct lists of updates and how many servers carry each: 100,000
//! servers of 2,000 kinds cost 2,000 lists. [`spawn`] does so whenever servers changed, at most so often that it takes a
//! fifth of one core. Whoever reads asks `store::patches`; a key that sees some environments only is answered by [`within`].

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::listings::Kind as ListingKind;
use store::patches::{self, Changes, Kind, Patch, Summary};
use store::servers::Server;
use store::{Conn, StoreError, Topic, organizations};
use tokio::task::JoinHandle;
use vocab::{Digest, Environment, OrgId, Pending, Severity, UpdateType};

use super::servers::{entries, severity as severity_of};
use super::{Result, ServiceError};
use crate::app::App;
use crate::clock::Stopwatch;

/// How many pairs of versions one row shows, and how many CVEs.
const VERSIONS_MAX: usize = 100;
const CVES_MAX: usize = 1_000;
/// How many new lists are written down in one transaction.
const SETS_TOGETHER: usize = 50;
/// How often the rows are looked after when no bell rings.
const LOOK: Duration = Duration::from_secs(30);
/// The least rest between two rounds, and how many times as long as a round takes.
const REST: Duration = Duration::from_millis(500);
const REST_TIMES: f64 = 4.0;

/// The organization in numbers, as they are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// How many servers want a reboot.
    pub reboot_required: u64,
    /// How many get no orders until a person decides.
    pub quarantined: u64,
    /// How many have updates pending.
    pub with_updates: u64,
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
        let mut known = BTreeMap::new();
        loop {
            let watch = Stopwatch::start();
            if let Err(error) = rebuild_all(&app, &mut known).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "patches are counted later"
                );
            }
            let rest = Duration::from_secs_f64(watch.seconds() * REST_TIMES).max(REST);
            tokio::time::sleep(rest).await;
            tokio::select! {
                () = changed.rung() => {}
                () = tokio::time::sleep(LOOK) => {}
                () = app.until_drain() => return,
            }
        }
    })
}

/// `known`: the lists of the last time, because most of them are still in use.
async fn rebuild_all(app: &App, known: &mut BTreeMap<OrgId, Lists>) -> Result<()> {
    let all = organizations::list(&mut *app.db.read().await?).await?;
    for organization in all {
        rebuild_from(app, organization.id, known.entry(organization.id).or_default()).await?;
    }
    Ok(())
}

/// Makes the rows of an organization anew, if its servers are not as they were. Says whether it did.
pub async fn rebuild(app: &App, org: OrgId) -> Result<bool> {
    rebuild_from(app, org, &mut Lists::new()).await
}

async fn rebuild_from(app: &App, org: OrgId, lists: &mut Lists) -> Result<bool> {
    let now = app.clock.now();
    let mut reader = app.db.snapshot().await?;
    let kinds = patches::kinds(&mut reader, org, None).await?;
    let seen = patches::summary(&mut reader, org).await?;
    let basis = basis(&kinds);
    if seen.as_ref().is_some_and(|seen| seen.basis == basis) {
        return Ok(false);
    }
    read_lists(&mut reader, org, &kinds, lists).await?;
    let before = patches::all(&mut reader, org).await?;
    let known_sets = patches::sets(&mut reader, org).await?;
    drop(reader);
    let rows = gathered(&kinds, lists, &first_seen(&before), now);
    let counts = counted(&kinds, &rows);
    let next = Summary {
        org_id: org,
        basis,
        counts: serde_json::to_value(counts)
            .map_err(|error| ServiceError::Internal(error.into()))?,
        made_at: now,
        generation: seen.map_or(0, |seen| seen.generation),
    };
    let (changes, sets) = difference(before, rows, &known_sets, lists);
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

/// The patches of a few environments, in the order of the list. Made on the spot.
pub async fn within(
    app: &App,
    conn: &mut Conn,
    org: OrgId,
    environments: &[Environment],
) -> Result<(Vec<Patch>, Counts)> {
    let kinds = patches::kinds(conn, org, Some(environments)).await?;
    let mut lists = Lists::new();
    read_lists(conn, org, &kinds, &mut lists).await?;
    let known = first_seen(&patches::all(conn, org).await?);
    let rows = gathered(&kinds, &lists, &known, app.clock.now());
    let counts = counted(&kinds, &rows);
    Ok((rows, counts))
}

/// The patches that wait on one server, with what is known of them in the whole organization.
pub async fn of_server(app: &App, conn: &mut Conn, server: &Server) -> Result<Vec<Patch>> {
    let Some(set) = server.update_set else { return Ok(Vec::new()) };
    let list = entries(conn, server.org_id, ListingKind::Updates, set).await?;
    let names: BTreeSet<String> = list.iter().map(|update: &Pending| update.name.clone()).collect();
    let names: Vec<String> = names.into_iter().collect();
    let mut rows = patches::of_names(conn, server.org_id, &names).await?;
    // A list that has only just arrived may not be counted yet.
    let counted: BTreeSet<String> = rows.iter().map(|row| row.package_name.clone()).collect();
    let alone = Kind {
        update_set: Some(set),
        os_release: server.os.to_string(),
        servers: 1,
        reboot_required: 0,
        quarantined: 0,
        outdated: 0,
        insecure: 0,
    };
    let fresh = gathered(&[alone], &Lists::from([(set, list)]), &BTreeMap::new(), app.clock.now());
    rows.extend(fresh.into_iter().filter(|row| !counted.contains(&row.package_name)));
    sort(&mut rows);
    Ok(rows)
}

fn basis(kinds: &[Kind]) -> Digest {
    let mut text = String::new();
    for kind in kinds {
        let set = kind.update_set.map(|set| set.to_string()).unwrap_or_default();
        let Kind { os_release, servers, reboot_required, quarantined, outdated, insecure, .. } =
            kind;
        text += &format!(
            "{set} {os_release} {servers} {reboot_required} {quarantined} {outdated} {insecure}\n"
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

/// What is gathered of one package.
#[derive(Default)]
struct Gathered<'a> {
    severity: Option<Severity>,
    security: bool,
    update_type: Option<UpdateType>,
    servers: u64,
    versions: BTreeSet<(&'a str, &'a str, &'a str)>,
    cves: BTreeSet<&'a str>,
}

/// One row a package, in the order of the list.
fn gathered(
    kinds: &[Kind],
    lists: &Lists,
    first_seen: &BTreeMap<String, Timestamp>,
    now: Timestamp,
) -> Vec<Patch> {
    let mut packages: BTreeMap<&str, Gathered<'_>> = BTreeMap::new();
    for kind in kinds {
        let Some(list) = kind.update_set.and_then(|set| lists.get(&set)) else { continue };
        let mut last = None;
        for update in list {
            let package = packages.entry(&update.name).or_default();
            // A package of two architectures is one row, and a server waits for it once.
            if last.replace(&update.name) != Some(&update.name) {
                package.servers += kind.servers;
            }
            package.take(update, &kind.os_release);
        }
    }
    let mut rows: Vec<Patch> = packages
        .into_iter()
        .map(|(name, package)| package.row(name, first_seen.get(name).copied().unwrap_or(now)))
        .collect();
    sort(&mut rows);
    rows
}

impl<'a> Gathered<'a> {
    fn take(&mut self, update: &'a Pending, os: &'a str) {
        self.severity = self.severity.max(update.severity);
        self.security |= update.security;
        // The most important word that any of them says; the words are in that order.
        let worse =
            self.update_type.map_or(update.update_type, |known| known.min(update.update_type));
        self.update_type = Some(worse);
        if self.versions.len() < VERSIONS_MAX {
            self.versions.insert((os, &update.installed, &update.candidate));
        }
        let room = CVES_MAX.saturating_sub(self.cves.len());
        self.cves.extend(update.cves.iter().take(room).map(String::as_str));
    }

    fn row(self, name: &str, first_seen_at: Timestamp) -> Patch {
        let severity = self.severity.unwrap_or(Severity::Unknown);
        let update_type = match self.security {
            true => UpdateType::Security,
            false => self.update_type.unwrap_or(UpdateType::Other),
        };
        let versions = self.versions.iter();
        let versions = versions.map(|(os, from, to)| json!({"os": os, "from": from, "to": to}));
        Patch {
            package_name: name.to_owned(),
            severity_order: severity_order(severity),
            // Until there is a list of exploited flaws, none is known to be.
            kev_order: 1,
            servers_order: i64::try_from(self.servers).map_or(i64::MIN, |servers| -servers),
            update_type,
            severity_source: self.severity.map(|_| "package_manager".to_owned()),
            versions: versions.collect(),
            cves: self.cves.into_iter().map(str::to_owned).collect(),
            first_seen_at,
        }
    }
}

fn sort(rows: &mut [Patch]) {
    rows.sort_by(|a, b| {
        let key = |row: &Patch| (row.severity_order, row.kev_order, row.servers_order);
        key(a).cmp(&key(b)).then_with(|| a.package_name.cmp(&b.package_name))
    });
}

fn counted(kinds: &[Kind], rows: &[Patch]) -> Counts {
    let mut counts = Counts { patches: rows.len() as u64, ..Counts::default() };
    for kind in kinds {
        counts.reboot_required += kind.reboot_required;
        counts.quarantined += kind.quarantined;
        counts.with_updates += kind.outdated;
        counts.with_security_updates += kind.insecure;
    }
    for row in rows {
        counts.security_patches += u64::from(row.update_type == UpdateType::Security);
        let place = usize::try_from(row.severity_order).unwrap_or(usize::MAX);
        if let Some(count) = counts.severities.get_mut(place) {
            *count += 1;
        }
    }
    counts
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

    #[test]
    fn a_server_waits_for_a_package_once_however_many_architectures_it_has() {
        let set = Digest::of(b"one");
        let kind = Kind {
            update_set: Some(set),
            os_release: "debian 12".into(),
            servers: 3,
            reboot_required: 1,
            quarantined: 0,
            outdated: 3,
            insecure: 0,
        };
        let list =
            vec![Pending::new("libc6", "amd64", "1", "2"), Pending::new("libc6", "i386", "1", "2")];
        let rows =
            gathered(&[kind], &Lists::from([(set, list)]), &BTreeMap::new(), Timestamp::UNIX_EPOCH);
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].servers_order, -3);
        assert_eq!(rows[0].versions, json!([{"os": "debian 12", "from": "1", "to": "2"}]));
    }
}
