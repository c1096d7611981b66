//! One matching round: reads what changed, updates the findings in memory, and writes the
//! difference.

use async_recursion::async_recursion as boxed;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use domain::advisory::{Advisory, Ecosystem};
use domain::finding::exposure_counts::Occurrence;
use domain::finding::{RULES_VERSION, for_each_vendor_reported, invalidation};
use jiff::Timestamp;
use store::findings::{self, Summary};
use store::package_sets::SetKind as ListingKind;
use store::{Conn, advisories, feeds};
use vocab::{Digest, Installed, OrgId, Pending};

use super::changeset::{Changeset, write};
use super::package_groups::{PackageGroups, StoredReports};
use super::state::{MatcherState, RoundInput, ServerKinds};
use super::{ActiveSuppressions, package_sets_of};
use crate::App;
use crate::commands::servers::entries;
use crate::{Result, ServiceError};

/// Which changes a round looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoundScope {
    /// All changes. Groups the servers again, which takes longer the more servers there are.
    All,
    /// Changed feeds and suppressions. Reuses the groups of servers from the last full round.
    FeedsAndSuppressions,
    /// Like `FeedsAndSuppressions`. If nothing changed, loads the state into memory, so that the
    /// next change is cheap.
    WarmUp,
}

/// Keeps an organization's findings up to date. It caches its state in memory; a new matcher loads
/// it from the database first.
#[derive(Debug)]
pub struct Matcher {
    org: OrgId,
    /// `None` if the cache is stale because another replica has written, or after an error. Then
    /// the state is loaded again.
    state: Option<MatcherState>,
}

impl Matcher {
    pub fn new(org: OrgId) -> Matcher {
        Matcher { org, state: None }
    }

    /// Whether the state is in memory, so that the cost of a round depends only on what changed.
    pub fn is_warm(&self) -> bool {
        self.state.is_some()
    }

    /// Updates the findings if the servers, the feeds or the suppressions have changed. Returns
    /// whether it wrote anything.
    #[boxed]
    pub async fn round(&mut self, app: &App, scope: RoundScope) -> Result<bool> {
        let org = self.org;
        let memory = self.state.take();
        let mut reader = app.db.snapshot().await?;
        let suppressions = ActiveSuppressions::read(&mut reader, org, app.clock.now()).await?;
        let revision = feeds::revision(&mut reader).await?;
        let incomplete = feeds::incomplete(&mut reader).await?;
        let seen = findings::summary(&mut reader, org).await?;
        let generation = seen.as_ref().map_or(0, |seen| seen.generation);
        let memory = memory.filter(|known| known.generation == generation);
        let memory = memory.filter(|known| !known.tally.needs_rebuild());
        let server_kinds = match &memory {
            Some(known)
                if scope != RoundScope::All
                    && known.suppressions.environments() == suppressions.environments() =>
            {
                known.server_kinds.clone()
            }
            _ => {
                let kinds =
                    findings::kinds(&mut reader, org, None, suppressions.environments()).await?;
                Arc::new(ServerKinds::new(kinds))
            }
        };
        let basis = input_digest(&server_kinds, revision, &incomplete, &suppressions);
        let is_done = seen.as_ref().is_some_and(|seen| seen.basis == basis);
        if is_done && (memory.is_some() || scope != RoundScope::WarmUp) {
            self.state = memory;
            return Ok(false);
        }
        let seen = seen.unwrap_or_else(|| empty_summary(org));
        let mut changeset = Changeset::default();
        let mut memory = match memory {
            Some(known) => known,
            None => load_state(&mut reader, &seen, &suppressions).await?,
        };
        let rules_changed = seen.generation > 0 && seen.rules != RULES_VERSION;
        let mut stored = match memory.server_kinds.kinds.is_empty() {
            true => load_stored_sets(&mut reader, org, &seen).await?,
            false => BTreeMap::new(),
        };
        update_package_sets(
            &mut reader,
            org,
            &mut memory,
            &server_kinds,
            (&mut stored, &mut changeset),
        )
        .await?;
        if rules_changed {
            memory.package_groups.values_mut().for_each(PackageGroups::mark_all_dirty);
        }
        let advisories = changed_advisories(&mut reader, &mut memory, revision).await?;
        let input = RoundInput { revision, server_kinds, suppressions, advisories };
        memory.apply(input, &mut changeset);
        update_exploited(&mut reader, &mut memory, &mut changeset).await?;
        let covered = covered_ecosystems(&mut reader, memory.package_groups.keys()).await?;
        drop(reader);
        if is_done {
            self.state = Some(memory);
            return Ok(false);
        }
        let assessments = memory.assessments(&covered);
        let made_at = app.clock.now();
        let next =
            Summary { basis, made_at, revision, rules: RULES_VERSION, assessments, ..seen.clone() };
        match write(app, &seen, &next, &changeset, &memory.rows).await {
            Ok(()) => {}
            // Another replica wrote first; its rows are equivalent.
            Err(ServiceError::Stale) => return Ok(false),
            Err(error) => return Err(error),
        }
        memory.generation = generation + 1;
        self.state = Some(memory);
        Ok(true)
    }
}

fn empty_summary(org: OrgId) -> Summary {
    let basis = Digest::compute(b"nothing yet");
    Summary {
        org_id: org,
        basis,
        made_at: Timestamp::UNIX_EPOCH,
        generation: 0,
        revision: 0,
        rules: RULES_VERSION,
        assessments: BTreeMap::new(),
    }
}

/// Returns which of these base ecosystems a feed covers.
pub(super) async fn covered_ecosystems(
    conn: &mut Conn,
    bases: impl Iterator<Item = &Ecosystem>,
) -> Result<BTreeSet<Ecosystem>> {
    let mut covered = BTreeSet::new();
    for base in bases {
        if advisories::covers(conn, base).await? {
            covered.insert(base.clone());
        }
    }
    Ok(covered)
}

fn input_digest(
    server_kinds: &ServerKinds,
    revision: i64,
    incomplete_feeds: &[String],
    suppressions: &ActiveSuppressions,
) -> Digest {
    let text = format!(
        "{RULES_VERSION} {revision} {incomplete_feeds:?} {} {}",
        suppressions.ids().join(" "),
        server_kinds.digest
    );
    Digest::compute(text.as_bytes())
}

/// Loads the stored state that the new one is compared with.
async fn load_state(
    conn: &mut Conn,
    seen: &Summary,
    suppressions: &ActiveSuppressions,
) -> Result<MatcherState> {
    let org = seen.org_id;
    let mut state = MatcherState::new(seen.generation, seen.revision, suppressions.clone());
    let carriers = findings::carriers(conn, org).await?;
    state.load_carriers(carriers, findings::carriers_by_cve(conn, org).await?);
    state.counts = findings::counts(conn, org, None).await?;
    state.vendor_reported_sets = findings::vendor_reported_sets(conn, org).await?;
    let rows = findings::all(conn, org).await?;
    let exploited = rows.iter().filter(|row| row.kev_order == 0);
    state.exploited = exploited.map(|row| row.id.clone()).collect();
    state.rows = rows.into_iter().map(|row| (Arc::from(row.id.as_str()), Box::new(row))).collect();
    Ok(state)
}

/// Per base ecosystem: the package sets that were assessed, and the results of their groups.
type StoredSets = BTreeMap<String, (BTreeSet<Digest>, StoredReports)>;

async fn load_stored_sets(conn: &mut Conn, org: OrgId, seen: &Summary) -> Result<StoredSets> {
    let mut before = StoredSets::new();
    // Rows of an interrupted first round are not trusted; they are written again.
    if seen.generation > 0 {
        for set in findings::assessed_sets(conn, org).await? {
            before.entry(set.base).or_default().0.insert(set.package_set);
        }
    }
    for (base, groups) in findings::all_groups(conn, org).await? {
        before.entry(base).or_default().1 = groups;
    }
    Ok(before)
}

/// Reads the package sets that are new, and drops those that no server has anymore.
async fn update_package_sets(
    conn: &mut Conn,
    org: OrgId,
    state: &mut MatcherState,
    server_kinds: &Arc<ServerKinds>,
    (before, writes): (&mut StoredSets, &mut Changeset),
) -> Result<()> {
    if Arc::ptr_eq(&state.server_kinds, server_kinds) {
        return Ok(());
    }
    let mut wanted: BTreeMap<Ecosystem, BTreeSet<Digest>> = BTreeMap::new();
    for kind in &server_kinds.kinds {
        if let Some(base) = Ecosystem::for_os(&kind.os) {
            wanted.entry(base).or_default().extend(package_sets_of(kind));
        }
        if let Some(set) = kind.update_set
            && !state.vendor_reported.contains_key(&set)
        {
            let pending: Vec<Pending> = entries(conn, org, ListingKind::Updates, set).await?;
            let mut cells = Vec::new();
            for_each_vendor_reported(&kind.os_release, &pending, |finding| {
                cells.push(state.tally.register(Occurrence::from(&finding)));
            });
            state.vendor_reported.insert(set, cells);
        }
    }
    let updates: BTreeSet<Digest> =
        server_kinds.kinds.iter().filter_map(|one| one.update_set).collect();
    state.vendor_reported.retain(|set, _| updates.contains(set));
    for base in state.package_groups.keys().cloned().collect::<Vec<_>>() {
        wanted.entry(base).or_default();
    }
    for (base, sets) in wanted {
        let word = base.as_str().to_owned();
        let (judged, mut groups) = before.remove(&word).unwrap_or_default();
        let package_groups = state
            .package_groups
            .entry(base.clone())
            .or_insert_with(|| PackageGroups::new(base.clone()));
        for set in &sets {
            if package_groups.contains(set) {
                continue;
            }
            let packages = installed_packages(conn, org, *set).await?;
            let was_judged = judged.contains(set);
            if packages.is_empty() && was_judged {
                // The package set that only outdated processes still run from may be deleted; its
                // findings are kept.
                let kept = findings::saved_report(conn, org, *set, &word).await?;
                package_groups.add_deleted_set(&mut state.tally, *set, kept.unwrap_or_default());
                continue;
            }
            let stored = was_judged.then_some(&mut groups);
            package_groups.add(
                &mut state.tally,
                *set,
                invalidation::group_by_source(&base, &packages),
                stored,
            );
        }
        let (mut sets_gone, mut groups_gone) = package_groups.retain(&sets);
        sets_gone.extend(judged.difference(&sets));
        groups_gone.extend(groups.into_keys());
        writes.drop_sets(&word, sets_gone, groups_gone);
    }
    // Base ecosystems that no server has anymore.
    for (word, (judged, groups)) in std::mem::take(before) {
        writes.drop_sets(&word, judged.into_iter().collect(), groups.into_keys().collect());
    }
    Ok(())
}

/// The advisories that name a package to assess: of new package sets, or changed since the last
/// round.
async fn changed_advisories(
    conn: &mut Conn,
    state: &mut MatcherState,
    revision: i64,
) -> Result<BTreeMap<Ecosystem, Vec<Advisory>>> {
    let mut found = BTreeMap::new();
    for (base, groups) in &mut state.package_groups {
        if state.revision != revision {
            let names = advisories::changed_since(conn, base, state.revision).await?;
            groups.mark_dirty(&names);
        }
        let names = groups.dirty_names();
        if !names.is_empty() {
            found.insert(base.clone(), advisories::by_package_names(conn, base, &names).await?);
        }
    }
    Ok(found)
}

async fn update_exploited(
    conn: &mut Conn,
    state: &mut MatcherState,
    changeset: &mut Changeset,
) -> Result<()> {
    let count = advisories::exploited_count(conn).await?;
    let ids: BTreeSet<&str> = match count == state.exploited_count {
        true => changeset.rows.iter().map(AsRef::as_ref).collect(),
        false => state.rows.keys().map(AsRef::as_ref).collect(),
    };
    let exploited = advisories::exploited(conn, &ids).await?;
    state.exploited_count = count;
    state.mark_exploited(exploited.into_keys().collect(), changeset);
    Ok(())
}

pub(super) async fn installed_packages(
    conn: &mut Conn,
    org: OrgId,
    set: Digest,
) -> Result<Vec<Installed>> {
    entries(conn, org, ListingKind::Packages, set).await
}
