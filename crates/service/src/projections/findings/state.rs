//! The in-memory state of an organization's findings. A round compares with it to find what
//! changed, instead of reading everything again.
//!
//! A *server kind* is a group of servers with the same package set, OS release, kernel and running
//! code: they have the same findings.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use domain::advisory::{Advisory, Ecosystem};
use domain::finding::Finding;
use domain::finding::exposure_counts::{ExposureCounts, Occurrence, OccurrenceId};
use store::findings::{AssessedSet, Carrier, Cve, CvesBySeverity, KindCounts, ServerKind};
use vocab::{Assessment, Digest};

use super::ActiveSuppressions;
use super::changeset::Changeset;
use super::package_groups::PackageGroups;
use crate::host_facts;
use crate::projections::patches::severity_order;

/// The state of a server whose packages were matched.
pub(super) const fn assessment(is_covered: bool, unassessed: u32) -> Assessment {
    match (is_covered, unassessed) {
        (false, _) => Assessment::NoFeed,
        (true, 0) => Assessment::Assessed,
        (true, _) => Assessment::Partial,
    }
}

/// The maximum number of packages in one row.
pub(super) const PACKAGES_MAX: usize = 100;

/// The server kinds with their numbers of servers, counted at one time.
#[derive(Debug)]
pub(super) struct ServerKinds {
    pub(super) kinds: Vec<ServerKind>,
    /// Identifies this list of kinds.
    pub(super) digest: Digest,
}

impl ServerKinds {
    pub(super) fn new(kinds: Vec<ServerKind>) -> ServerKinds {
        let mut bytes = Vec::new();
        for kind in &kinds {
            bytes.extend_from_slice(kind.count_key().as_bytes());
            bytes.extend_from_slice(&kind.servers.to_be_bytes());
        }
        ServerKinds { digest: Digest::compute(&bytes), kinds }
    }
}

/// The findings, and which of them are stored in the database.
#[derive(Debug)]
pub(super) struct MatcherState {
    /// The generation of the stored summary.
    pub(super) generation: i64,
    pub(super) revision: i64,
    pub(super) server_kinds: Arc<ServerKinds>,
    pub(super) suppressions: ActiveSuppressions,
    pub(super) package_groups: BTreeMap<Ecosystem, PackageGroups>,
    /// The CVEs that the package manager reports, by update set, for the update sets that were
    /// read.
    pub(super) vendor_reported: BTreeMap<Digest, Vec<OccurrenceId>>,
    /// The update sets whose reported CVEs are stored in the database.
    pub(super) vendor_reported_sets: BTreeSet<Digest>,
    /// The package sets from which outdated processes still run. Their reports are kept.
    pub(super) outdated_code_sets: BTreeSet<(Ecosystem, Digest)>,
    /// The merged server kinds, by the key of their count.
    kinds_by_key: BTreeMap<Digest, ServerKind>,
    /// The server kinds with findings from feeds.
    carriers: BTreeMap<Digest, CarrierCves>,
    numbers: NumberPool,
    pub(super) counts: BTreeMap<Digest, KindCounts>,
    /// The rows as stored in the database.
    pub(super) rows: HashMap<Arc<str>, Box<Cve>>,
    pub(super) exploited: BTreeSet<String>,
    pub(super) exploited_count: i64,
    pub(super) tally: ExposureCounts,
    is_new: bool,
}

/// A server kind with findings, as stored in the database.
#[derive(Debug, Default)]
struct CarrierCves {
    number: u32,
    /// Indexes of the CVEs in the tally, sorted.
    cves: Vec<u32>,
}

/// Allocates the numbers of server kinds. Free numbers are reused first, so that they stay small.
#[derive(Debug, Default)]
struct NumberPool {
    next: u32,
    free: BTreeSet<u32>,
    /// Numbers that become free once the pending changes are written.
    released: BTreeSet<u32>,
}

impl NumberPool {
    fn allocate(&mut self) -> u32 {
        self.free.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// Marks a number as used that was allocated earlier.
    fn mark_used(&mut self, number: u32) {
        self.free.extend(self.next..number);
        self.free.remove(&number);
        self.next = self.next.max(number + 1);
    }
}

/// The input of a round.
pub(super) struct RoundInput {
    pub(super) revision: i64,
    pub(super) server_kinds: Arc<ServerKinds>,
    pub(super) suppressions: ActiveSuppressions,
    /// The advisories that name a package which must be assessed.
    pub(super) advisories: BTreeMap<Ecosystem, Vec<Advisory>>,
}

impl MatcherState {
    pub(super) fn new(
        generation: i64,
        revision: i64,
        active_suppressions: ActiveSuppressions,
    ) -> MatcherState {
        MatcherState {
            generation,
            revision,
            server_kinds: Arc::new(ServerKinds::new(Vec::new())),
            suppressions: active_suppressions,
            package_groups: BTreeMap::new(),
            vendor_reported: BTreeMap::new(),
            vendor_reported_sets: BTreeSet::new(),
            outdated_code_sets: BTreeSet::new(),
            kinds_by_key: BTreeMap::new(),
            carriers: BTreeMap::new(),
            numbers: NumberPool::default(),
            counts: BTreeMap::new(),
            rows: HashMap::new(),
            exploited: BTreeSet::new(),
            exploited_count: -1,
            tally: ExposureCounts::default(),
            is_new: true,
        }
    }

    /// Applies the changes of a round and collects the rows to write in `changeset`. The caller adds
    /// which CVEs are exploited.
    pub(super) fn apply(&mut self, mut input: RoundInput, changeset: &mut Changeset) {
        self.numbers.free.append(&mut self.numbers.released);
        let touched = self.assess(&mut input, changeset);
        let all = self.is_new || self.suppressions.ids() != input.suppressions.ids();
        let same_servers = Arc::ptr_eq(&self.server_kinds, &input.server_kinds) && !self.is_new;
        (self.suppressions, self.revision) = (input.suppressions, input.revision);
        let before = match same_servers {
            true => None,
            false => {
                self.server_kinds = input.server_kinds;
                let kinds = self.merge_kinds();
                Some(std::mem::replace(&mut self.kinds_by_key, kinds))
            }
        };
        let known = |count_key: &Digest| match &before {
            Some(before) => before.get(count_key),
            None => self.kinds_by_key.get(count_key),
        };
        let affected = |kind: &ServerKind| {
            let Some(base) = Ecosystem::for_os(&kind.os) else { return false };
            let Some(sets) = touched.get(&base) else { return false };
            super::package_sets_of(kind).any(|set| sets.contains(&set))
        };
        let changed: Vec<Digest> = self
            .kinds_by_key
            .iter()
            .filter(|(count_key, kind)| {
                all || known(count_key).is_none_or(|was| was.servers != kind.servers)
                    || affected(kind)
            })
            .map(|(count_key, _)| *count_key)
            .collect();
        for count_key in changed {
            self.count_kind(count_key, changeset);
        }
        if let Some(before) = before {
            self.remove_stale_kinds(&before, changeset);
        }
        self.update_vendor_reported(changeset);
        self.change_rows(changeset);
        self.is_new = false;
    }

    /// Assesses the groups that need it. Returns the package sets whose findings changed.
    fn assess(
        &mut self,
        input: &mut RoundInput,
        changeset: &mut Changeset,
    ) -> BTreeMap<Ecosystem, BTreeSet<Digest>> {
        let mut touched = BTreeMap::new();
        let mut since: BTreeSet<(Ecosystem, Digest)> = BTreeSet::new();
        for kind in &input.server_kinds.kinds {
            let old = host_facts::runs_from_text(&kind.runs).since;
            since.extend(Ecosystem::for_os(&kind.os).zip(old));
        }
        for (base, groups) in &mut self.package_groups {
            let advisories = input.advisories.remove(base).unwrap_or_default();
            let changes = groups.assess(&mut self.tally, advisories);
            let judged = changes.sets.iter().map(|set| AssessedSet {
                package_set: *set,
                base: base.as_str().to_owned(),
                changed: input.revision,
            });
            changeset.assessed_sets.extend(judged);
            touched.insert(base.clone(), changes.sets.clone());
            changeset.groups.push((base.as_str().to_owned(), changes));
        }
        for (base, set) in &since {
            let is_new = !self.outdated_code_sets.contains(&(base.clone(), *set));
            let is_touched = touched.get(base).is_some_and(|sets| sets.contains(set));
            if let Some(shelf) = self.package_groups.get(base).filter(|_| is_new || is_touched) {
                changeset.kept_reports.push((base.as_str().to_owned(), *set, shelf.report(set)));
            }
        }
        self.outdated_code_sets = since;
        touched
    }

    /// Merges server kinds that share one count. Kinds that differ only in update sets without CVEs
    /// are merged.
    fn merge_kinds(&self) -> BTreeMap<Digest, ServerKind> {
        let mut kinds: BTreeMap<Digest, ServerKind> = BTreeMap::new();
        for kind in &self.server_kinds.kinds {
            let mut kind = kind.clone();
            kind.update_set = kind
                .update_set
                .filter(|set| self.vendor_reported.get(set).is_some_and(|cells| !cells.is_empty()));
            kinds
                .entry(kind.count_key())
                .and_modify(|known| known.servers += kind.servers)
                .or_insert(kind);
        }
        kinds
    }

    fn count_kind(&mut self, count_key: Digest, changeset: &mut Changeset) {
        let Some(kind) = self.kinds_by_key.get(&count_key).cloned() else { return };
        let package_groups =
            Ecosystem::for_os(&kind.os).and_then(|base| self.package_groups.get(&base));
        let (mut cells, unassessed) = match package_groups {
            Some(shelf) => {
                let runs = host_facts::runs_from_text(&kind.runs);
                let running = (kind.kernel.as_str(), &runs);
                let cells = shelf.occurrence_ids(&mut self.tally, &kind.package_set, running);
                (cells, shelf.unassessed_count(&kind.package_set, running))
            }
            None => (Vec::new(), 0),
        };
        let flaws = ExposureCounts::distinct_cves(cells.iter().copied());
        // A finding from a feed takes precedence over the package manager's report of the same CVE.
        let vendor_reported =
            kind.update_set.and_then(|set| self.vendor_reported.get(&set)).into_iter().flatten();
        cells.extend(
            vendor_reported
                .filter(|occurrence_id| flaws.binary_search(&occurrence_id.cve()).is_err()),
        );
        let counts = KindCounts { cves: self.tally_kind(count_key, &kind, &cells), unassessed };
        match counts.is_empty() {
            true if self.counts.remove(&count_key).is_some() => {
                changeset.counts_gone.push(count_key);
            }
            false if self.counts.get(&count_key) != Some(&counts) => {
                self.counts.insert(count_key, counts.clone());
                changeset.counts.push((count_key, counts));
            }
            _ => {}
        }
        self.update_carrier(kind, flaws, changeset);
    }

    /// The number of servers per assessment, if feeds cover these base ecosystems. Does not include
    /// servers that have not reported their packages.
    pub(super) fn assessments(&self, covered: &BTreeSet<Ecosystem>) -> BTreeMap<Assessment, u64> {
        let mut servers = BTreeMap::new();
        for (count_key, kind) in &self.kinds_by_key {
            let unassessed = self.counts.get(count_key).map_or(0, |counts| counts.unassessed);
            let is_covered =
                Ecosystem::for_os(&kind.os).is_some_and(|base| covered.contains(&base));
            *servers.entry(assessment(is_covered, unassessed)).or_default() += kind.servers;
        }
        servers
    }

    fn tally_kind(
        &mut self,
        count_key: Digest,
        kind: &ServerKind,
        occurrence_ids: &[OccurrenceId],
    ) -> CvesBySeverity {
        let MatcherState { suppressions: aside, tally, .. } = self;
        let counts_here = |occurrence: &Occurrence| {
            aside.covering(kind.environment.as_ref(), &occurrence.cve, &occurrence.source).is_none()
        };
        let marks: Vec<(OccurrenceId, bool)> = occurrence_ids
            .iter()
            .map(|occurrence_id| {
                (*occurrence_id, aside.is_empty() || counts_here(tally.occurrence(*occurrence_id)))
            })
            .collect();
        tally.set_group(count_key, kind.servers, marks)
    }

    /// Counts a server kind with these findings, for a caller that only needs [the
    /// rows](MatcherState::into_rows).
    pub(super) fn add_kind<'a>(
        &mut self,
        kind: &ServerKind,
        has: impl Iterator<Item = &'a Finding>,
    ) {
        let occurrence_ids: Vec<OccurrenceId> =
            has.map(|finding| self.tally.register(finding.into())).collect();
        self.tally_kind(kind.count_key(), kind, &occurrence_ids);
    }

    /// The rows, unordered. The caller adds which CVEs are exploited.
    pub(super) fn into_rows(mut self) -> Vec<Cve> {
        let mut changeset = Changeset::default();
        self.change_rows(&mut changeset);
        self.rows.into_values().map(|row| *row).collect()
    }

    /// Loads which server kinds have which CVEs according to the database.
    pub(super) fn load_carriers(&mut self, carriers: Vec<Carrier>, flaws: Vec<(String, Vec<u32>)>) {
        let mut by_number: HashMap<u32, Vec<u32>> = HashMap::new();
        for (cve, numbers) in flaws {
            let flaw = self.tally.cve_index(&Arc::from(cve));
            for number in numbers {
                by_number.entry(number).or_default().push(flaw);
            }
        }
        for carrier in carriers {
            let number = carrier.number;
            self.numbers.mark_used(number);
            let mut flaws = by_number.remove(&number).unwrap_or_default();
            flaws.sort_unstable();
            self.carriers.insert(carrier.digest(), CarrierCves { number, cves: flaws });
        }
    }

    /// Updates which CVEs a server kind has.
    fn update_carrier(&mut self, kind: ServerKind, flaws: Vec<u32>, changeset: &mut Changeset) {
        let digest = kind.digest();
        let before = match self.carriers.remove(&digest) {
            None if flaws.is_empty() => return,
            None => {
                let number = self.numbers.allocate();
                let ServerKind { package_set, os_release, kernel, runs, .. } = kind;
                changeset.carriers.push(Carrier { number, package_set, os_release, kernel, runs });
                CarrierCves { number, cves: Vec::new() }
            }
            Some(known) => known,
        };
        let number = before.number;
        self.record_cve_changes(before, &flaws, changeset);
        if !flaws.is_empty() {
            self.carriers.insert(digest, CarrierCves { number, cves: flaws });
        }
    }

    /// Records the CVEs that a server kind gained and lost. A kind without CVEs is no longer
    /// stored.
    fn record_cve_changes(
        &mut self,
        before: CarrierCves,
        flaws: &[u32],
        changeset: &mut Changeset,
    ) {
        let CarrierCves { number, cves: had } = before;
        for flaw in flaws.iter().filter(|flaw| had.binary_search(flaw).is_err()) {
            changeset.cve_change(*flaw, &self.tally).gained.push(number);
        }
        for flaw in had.iter().filter(|flaw| flaws.binary_search(flaw).is_err()) {
            changeset.cve_change(*flaw, &self.tally).lost.push(number);
        }
        if flaws.is_empty() {
            changeset.carriers_gone.push(number);
            self.numbers.released.insert(number);
        }
    }

    /// Removes the server kinds that no longer exist.
    fn remove_stale_kinds(
        &mut self,
        before: &BTreeMap<Digest, ServerKind>,
        changeset: &mut Changeset,
    ) {
        for count_key in
            before.keys().filter(|count_key| !self.kinds_by_key.contains_key(count_key))
        {
            self.tally.remove_group(count_key);
        }
        let removed: Vec<Digest> = self
            .counts
            .keys()
            .filter(|count_key| !self.kinds_by_key.contains_key(count_key))
            .copied()
            .collect();
        removed.iter().for_each(|count_key| drop(self.counts.remove(count_key)));
        changeset.counts_gone.extend(removed);
        let kinds: BTreeSet<Digest> = self.kinds_by_key.values().map(ServerKind::digest).collect();
        let removed: Vec<Digest> =
            self.carriers.keys().filter(|kind| !kinds.contains(kind)).copied().collect();
        for kind in removed.iter().filter_map(|kind| self.carriers.remove(kind)).collect::<Vec<_>>()
        {
            self.record_cve_changes(kind, &[], changeset);
        }
    }

    /// Updates which update sets report which CVEs.
    fn update_vendor_reported(&mut self, changeset: &mut Changeset) {
        let telling: BTreeSet<Digest> =
            self.kinds_by_key.values().filter_map(|kind| kind.update_set).collect();
        for set in telling.difference(&self.vendor_reported_sets) {
            let cells = self.vendor_reported.get(set).into_iter().flatten().copied();
            let named = ExposureCounts::distinct_cves(cells)
                .into_iter()
                .map(|flaw| self.tally.cve(flaw).clone());
            changeset.vendor_reported.extend(named.map(|cve| (cve, *set)));
        }
        changeset.vendor_reported_gone.extend(self.vendor_reported_sets.difference(&telling));
        self.vendor_reported_sets = telling;
    }

    fn change_rows(&mut self, changeset: &mut Changeset) {
        let changes = self.tally.take_changes();
        // A new state does not know which of the stored rows are still counted.
        let mut unknown: BTreeSet<Arc<str>> = match self.is_new {
            true => self.rows.keys().cloned().collect(),
            false => BTreeSet::new(),
        };
        for (id, row) in changes {
            unknown.remove(&id);
            let Some(row) = row else {
                unknown.insert(id);
                continue;
            };
            let next = Cve {
                id: id.to_string(),
                severity_order: severity_order(row.worst.severity),
                kev_order: i64::from(!self.exploited.contains(id.as_ref())),
                servers_order: i64::try_from(row.servers).map_or(i64::MIN, |servers| -servers),
                suppressed: row.suppressed,
                severity_source: row.worst.severity_source.as_ref().map(ToString::to_string),
                cvss: row.worst.cvss.as_ref().map(ToString::to_string),
                published: row.worst.published,
                packages: row.packages.into_iter().take(PACKAGES_MAX).map(str::to_owned).collect(),
            };
            if self.rows.get(&id).map(AsRef::as_ref) != Some(&next) {
                self.rows.insert(id.clone(), Box::new(next));
                changeset.rows.insert(id);
            }
        }
        let gone = unknown.into_iter().filter_map(|id| self.rows.remove(&id));
        changeset.rows_gone.extend(gone.map(|row| row.id));
    }

    /// Marks these CVEs as exploited.
    pub(super) fn mark_exploited(
        &mut self,
        exploited: BTreeSet<String>,
        changeset: &mut Changeset,
    ) {
        for id in &exploited {
            let id: Arc<str> = Arc::from(id.as_str());
            if let Some(row) = self.rows.get_mut(&id).filter(|row| row.kev_order != 0) {
                row.kev_order = 0;
                changeset.rows.insert(id);
            }
        }
        self.exploited.extend(exploited);
    }
}
