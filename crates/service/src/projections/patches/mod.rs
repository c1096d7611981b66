//! Pending updates by package, prepared for reading.
//!
//! [`rebuild`] computes an organization's rows from its distinct update sets and the number of
//! servers with each: 100,000 servers of 2,000 kinds cost 2,000 update sets. [`spawn`] runs it
//! whenever servers change, limited to a small share of one core. Readers use `store::patches`;
//! requests by a key that is limited to some environments use [`patches_in_environments`].
//!
//! The severity of an update comes from the findings that it closes and from the hosts' package
//! managers. So does a server's number of security updates; wrong stored numbers are corrected
//! (`store::security_counts`).

mod aggregate;
mod closed_cves;

use async_recursion::async_recursion as boxed;
pub use domain::finding::PACKAGE_MANAGER;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use store::package_sets::SetKind as ListingKind;
use store::patches::{self, Changes, Patch, PatchServerKind, Summary};
use store::servers::Server;
use store::{Conn, StoreError, Topic, advisories, findings, organizations, security_counts};
use tokio::task::JoinHandle;
use vocab::{Digest, Environment, OrgId, Pending, Severity};

use self::aggregate::{PatchInputs, all_cves, build_rows, count_fleet, sort};
use self::closed_cves::ClosureIndex;
use crate::App;
use crate::clock::Stopwatch;
use crate::commands::servers::{entries, reported_severity as severity_of};
use crate::{Result, ServiceError, run_on_blocking_thread};

/// The number of new update sets that are written in one transaction.
const SETS_PER_TRANSACTION: usize = 50;
/// The number of servers that are corrected in one transaction, which keeps other writers waiting
/// for at most some ten milliseconds.
const SERVERS_PER_TRANSACTION: usize = 1_000;
/// The interval at which the rows are updated without a notification.
const POLL_INTERVAL: Duration = Duration::from_secs(30);
/// The minimum pause between two rounds, and the pause as a multiple of a round's duration: in a
/// busy fleet, changes arrive all the time.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_FACTOR: f64 = 12.0;

/// The stored totals of an organization.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Servers that need a reboot.
    pub reboot_required: u64,
    /// Servers that get no orders until a user releases them from quarantine.
    pub quarantined: u64,
    /// Servers with a recent inventory and pending updates.
    pub with_updates: u64,
    /// Servers with a recent inventory and no pending updates.
    pub up_to_date: u64,
    /// Servers whose last inventory is too old.
    pub stale: u64,
    /// Servers that never reported their packages.
    pub not_scanned: u64,
    /// Servers with pending security updates.
    pub with_security_updates: u64,
    /// Packages with a pending update.
    pub patches: u64,
    /// Packages with a pending security update.
    pub security_patches: u64,
    /// Packages by severity of their update, the most severe first.
    pub severities: [u32; Severity::ALL.len()],
}

/// Pending updates by the digest of their update set.
type UpdateSets = BTreeMap<Digest, Vec<Pending>>;

/// Data of the last round, kept because the next round needs most of it again.
#[derive(Debug, Default)]
struct PatchState {
    update_sets: UpdateSets,
    closed_cves: ClosureIndex,
}

impl PatchState {
    async fn read(&mut self, conn: &mut Conn, org: OrgId, kinds: &[PatchServerKind]) -> Result<()> {
        read_update_sets(conn, org, kinds, &mut self.update_sets).await?;
        self.closed_cves.refresh(conn, org, kinds, &self.update_sets).await
    }

    /// The CVEs with a pending update that are known to be exploited.
    async fn exploited(&self, conn: &mut Conn) -> Result<BTreeSet<String>> {
        let named = all_cves(&self.update_sets, &self.closed_cves);
        Ok(advisories::exploited(conn, &named).await?.into_keys().collect())
    }

    /// Returns the server kinds with the correct number of security updates, and those of them
    /// that have servers with a wrong stored number.
    fn with_security_counts(
        &self,
        kinds: Vec<PatchServerKind>,
    ) -> (Vec<PatchServerKind>, Vec<(PatchServerKind, u32)>) {
        let mut wrong = Vec::new();
        let settle = |kind: PatchServerKind| {
            let Some(count) = self.closed_cves.security_update_count(&kind, &self.update_sets)
            else {
                return kind;
            };
            if (kind.fewest, kind.most) != (count, count) {
                wrong.push((kind.clone(), count));
            }
            let insecure = if count > 0 { kind.servers } else { 0 };
            PatchServerKind { fewest: count, most: count, insecure, ..kind }
        };
        (kinds.into_iter().map(settle).collect(), wrong)
    }

    /// The rows, in list order.
    fn rows(
        &self,
        kinds: &[PatchServerKind],
        exploited: &BTreeSet<String>,
        before: &[Patch],
        now: Timestamp,
    ) -> Vec<Patch> {
        let PatchState { update_sets: lists, closed_cves: closings } = self;
        let first_seen = &first_seen(before);
        build_rows(&PatchInputs {
            kinds,
            update_sets: lists,
            closure_index: closings,
            exploited,
            first_seen,
            now,
        })
    }
}

/// The severity at a position of the sort order; 0 is the most severe.
pub fn severity_at(order: i64) -> Severity {
    let place = usize::try_from(order).unwrap_or(usize::MAX);
    Severity::ALL.iter().rev().nth(place).copied().unwrap_or(Severity::Unknown)
}

/// The position of a severity in the sort order.
pub fn severity_order(severity: Severity) -> i64 {
    let place = Severity::ALL.iter().rev().position(|known| *known == severity);
    place.map_or(i64::MAX, |place| place as i64)
}

/// Keeps the rows of every organization current until it is aborted or the app drains.
pub fn spawn(app: App) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut changed = app.db.subscribe(Topic::Servers);
        let mut matched = app.db.subscribe(Topic::Findings);
        let mut states = BTreeMap::new();
        loop {
            let watch = Stopwatch::start();
            let (taken, its_app) = (std::mem::take(&mut states), app.clone());
            let done = run_on_blocking_thread(async move {
                let mut known = taken;
                let done = rebuild_all(&its_app, &mut known).await;
                (known, done)
            });
            let done = done.await.and_then(|(taken, done)| {
                states = taken;
                done
            });
            if let Err(error) = done {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "counting of patches failed and will be retried"
                );
            }
            let rest = Duration::from_secs_f64(watch.seconds() * PAUSE_FACTOR).max(PAUSE_MIN);
            tokio::time::sleep(rest).await;
            tokio::select! {
                () = changed.notified() => {}
                () = matched.notified() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = app.until_drain() => return,
            }
        }
    })
}

async fn rebuild_all(app: &App, states: &mut BTreeMap<OrgId, PatchState>) -> Result<()> {
    let all = organizations::list(&mut *app.db.read().await?).await?;
    for organization in all {
        rebuild_from(app, organization.id, states.entry(organization.id).or_default()).await?;
    }
    Ok(())
}

/// Rebuilds the rows of an organization if its servers or their findings have changed. Returns
/// whether it wrote anything.
#[boxed]
pub async fn rebuild(app: &App, org: OrgId) -> Result<bool> {
    rebuild_from(app, org, &mut PatchState::default()).await
}

async fn rebuild_from(app: &App, org: OrgId, state: &mut PatchState) -> Result<bool> {
    let now = app.clock.now();
    let mut reader = app.db.snapshot().await?;
    let kinds = patches::kinds(&mut reader, org, None, app.stale_before()).await?;
    let seen = patches::summary(&mut reader, org).await?;
    let matched = findings::summary(&mut reader, org).await?;
    let matched = matched.map(|matched| matched.basis);
    if seen.as_ref().is_some_and(|seen| seen.basis == input_digest(&kinds, matched)) {
        return Ok(false);
    }
    state.read(&mut reader, org, &kinds).await?;
    let (kinds, wrong) = state.with_security_counts(kinds);
    let before = patches::all(&mut reader, org).await?;
    let known_sets = patches::recorded_sets(&mut reader, org).await?;
    let exploited = state.exploited(&mut reader).await?;
    drop(reader);
    correct_security_counts(app, org, &wrong).await?;
    let rows = state.rows(&kinds, &exploited, &before, now);
    let counts = count_fleet(&kinds, &rows);
    let (changes, sets) = difference(before, rows, &known_sets, &state.update_sets);
    let next = Summary {
        org_id: org,
        basis: input_digest(&kinds, matched),
        counts: serde_json::to_value(counts)
            .map_err(|error| ServiceError::Internal(error.into()))?,
        made_at: now,
        generation: seen.map_or(0, |seen| seen.generation),
    };
    for some in sets.chunks(SETS_PER_TRANSACTION) {
        let mut tx = app.db.begin().await?;
        patches::add_sets(&mut tx, org, some).await?;
        tx.commit().await?;
    }
    let mut tx = app.db.begin().await?;
    match patches::save_summary(&mut tx, &next).await {
        // Another replica wrote first; its rows are equivalent.
        Err(StoreError::Stale) => return Ok(false),
        begun => begun?,
    }
    patches::apply_changes(&mut tx, org, &changes).await?;
    tx.commit().await?;
    Ok(true)
}

/// Corrects the stored number of security updates of servers. Servers that report a change
/// meanwhile are corrected in the next round.
async fn correct_security_counts(
    app: &App,
    org: OrgId,
    wrong: &[(PatchServerKind, u32)],
) -> Result<()> {
    let wrong: Vec<(&PatchServerKind, u32)> =
        wrong.iter().map(|(kind, truth)| (kind, *truth)).collect();
    let all = security_counts::find_wrong(&mut *app.db.read().await?, org, &wrong).await?;
    for some in all.chunks(SERVERS_PER_TRANSACTION) {
        let mut tx = app.db.begin().await?;
        security_counts::write(&mut tx, some).await?;
        tx.commit().await?;
    }
    Ok(())
}

/// The patches of some environments, in list order. Computed on demand.
#[boxed]
pub async fn patches_in_environments(
    app: &App,
    conn: &mut Conn,
    org: OrgId,
    environments: &[Environment],
) -> Result<(Vec<Patch>, Counts)> {
    let kinds = patches::kinds(conn, org, Some(environments), app.stale_before()).await?;
    let mut state = PatchState::default();
    state.read(conn, org, &kinds).await?;
    let (kinds, _) = state.with_security_counts(kinds);
    let before = patches::all(conn, org).await?;
    let exploited = state.exploited(conn).await?;
    let rows = state.rows(&kinds, &exploited, &before, app.clock.now());
    let counts = count_fleet(&kinds, &rows);
    Ok((rows, counts))
}

/// The patches pending on one server, with their data for the whole organization.
#[boxed]
pub async fn server_patches(app: &App, conn: &mut Conn, server: &Server) -> Result<Vec<Patch>> {
    let Some(set) = server.update_set else { return Ok(Vec::new()) };
    let list: Vec<Pending> = entries(conn, server.org_id, ListingKind::Updates, set).await?;
    let names: BTreeSet<&String> = list.iter().map(|update| &update.name).collect();
    let names: Vec<String> = names.into_iter().cloned().collect();
    let mut rows = patches::by_names(conn, server.org_id, &names).await?;
    // An update set that has just arrived may not be counted yet.
    let counted: BTreeSet<String> = rows.iter().map(|row| row.package_name.clone()).collect();
    if names.iter().all(|name| counted.contains(name)) {
        sort(&mut rows);
        return Ok(rows);
    }
    let alone = PatchServerKind {
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
    let mut state =
        PatchState { update_sets: UpdateSets::from([(set, list)]), ..PatchState::default() };
    state.read(conn, server.org_id, &kinds).await?;
    let exploited = state.exploited(conn).await?;
    let fresh = state.rows(&kinds, &exploited, &[], app.clock.now());
    rows.extend(fresh.into_iter().filter(|row| !counted.contains(&row.package_name)));
    sort(&mut rows);
    Ok(rows)
}

/// A digest of everything that the rows are computed from. `matched` identifies the findings of
/// the servers.
fn input_digest(kinds: &[PatchServerKind], matched: Option<Digest>) -> Digest {
    let word = |digest: Option<Digest>| digest.map(|digest| digest.to_string()).unwrap_or_default();
    let mut text = format!("{}\n", word(matched));
    for kind in kinds {
        let (updates, packages) = (word(kind.update_set), word(kind.package_set));
        let PatchServerKind { os_release, kernel, runs, servers, .. } = kind;
        let PatchServerKind {
            reboot_required,
            quarantined,
            outdated,
            stale,
            insecure,
            fewest,
            most,
            ..
        } = kind;
        text += &format!(
            "{updates} {packages} {os_release} {kernel} {runs} {servers} {reboot_required} \
             {quarantined} {outdated} {stale} {insecure} {fewest} {most}\n"
        );
    }
    Digest::compute(text.as_bytes())
}

/// Reads the update sets that are missing, and drops those that no server has anymore.
async fn read_update_sets(
    conn: &mut Conn,
    org: OrgId,
    kinds: &[PatchServerKind],
    update_sets: &mut UpdateSets,
) -> Result<()> {
    let used: BTreeSet<Digest> = kinds.iter().filter_map(|kind| kind.update_set).collect();
    update_sets.retain(|set, _| used.contains(set));
    for set in used {
        if let Entry::Vacant(new) = update_sets.entry(set) {
            new.insert(entries(conn, org, ListingKind::Updates, set).await?);
        }
    }
    Ok(())
}

fn first_seen(rows: &[Patch]) -> BTreeMap<String, Timestamp> {
    rows.iter().map(|row| (row.package_name.clone(), row.first_seen_at)).collect()
}

/// An update set and the packages in it.
type NamedSet = (Digest, Vec<String>);

fn difference(
    before: Vec<Patch>,
    after: Vec<Patch>,
    known: &[Digest],
    update_sets: &UpdateSets,
) -> (Changes, Vec<NamedSet>) {
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
    let fresh = update_sets.iter().filter(|(set, _)| !known.contains(set));
    let changes = Changes {
        put,
        removed: before.into_keys().collect(),
        sets_gone: known.iter().filter(|set| !update_sets.contains_key(set)).copied().collect(),
    };
    (changes, fresh.map(|(set, list)| (*set, named(list))).collect())
}

/// The severity of a CVE according to the host's package manager.
pub fn reported_cve_severity(updates: &[Pending], cve: &str) -> Severity {
    let with = updates.iter().filter(|update| update.cves.iter().any(|id| id == cve));
    with.map(severity_of).max().unwrap_or(Severity::Unknown)
}

#[cfg(test)]
mod tests {
    use vocab::UpdateType;

    use super::*;

    #[test]
    fn severity_order_starts_with_most_severe_and_is_reversible() {
        assert_eq!(severity_order(Severity::Critical), 0);
        for known in Severity::ALL {
            assert_eq!(severity_at(severity_order(*known)), *known);
        }
    }

    #[test]
    fn update_types_are_ordered_by_importance() {
        assert!(UpdateType::Security < UpdateType::Bugfix);
        assert!(UpdateType::Bugfix < UpdateType::Enhancement);
        assert!(UpdateType::Enhancement < UpdateType::Other);
    }
}
