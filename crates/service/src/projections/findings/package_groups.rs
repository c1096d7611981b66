//! The package sets of one base ecosystem, split into groups by source package. Each group is
//! assessed once, however many package sets contain it, and again only if a change affects one of
//! its names.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use domain::advisory::{Advisory, Ecosystem};
use domain::finding::exposure_counts::{ExposureCounts, OccurrenceId};
use domain::finding::invalidation::SourceGroup;
use domain::finding::{
    AdvisoryIndex, Finding, MatchReport, RunningCode, RunningKernel, RuntimeState, ServerFinding,
    apply_runtime_state, foreign_kernel,
};
use vocab::{Digest, Exposure, Installed};

/// The stored reports of groups.
pub(super) type StoredReports = BTreeMap<Digest, MatchReport>;

#[derive(Debug)]
pub(super) struct PackageGroups {
    base: Ecosystem,
    groups: BTreeMap<u32, GroupEntry>,
    by_digest: HashMap<Digest, u32>,
    by_name: HashMap<String, BTreeSet<u32>>,
    sets: BTreeMap<Digest, Vec<u32>>,
    /// Package sets that are new. `unjudged` has the groups that must be assessed, or assessed
    /// again.
    new_sets: BTreeSet<Digest>,
    dirty: BTreeSet<u32>,
    next_id: u32,
}

#[derive(Debug)]
struct GroupEntry {
    digest: Digest,
    group: SourceGroup,
    report: MatchReport,
    /// The occurrences that its findings count as, unless it is a kernel.
    occurrence_ids: Vec<OccurrenceId>,
    is_kernel: bool,
    /// The number of package sets that contain it.
    set_count: u32,
    /// Whether it is a placeholder for a deleted package set: it is never assessed and never
    /// written.
    is_placeholder: bool,
}

/// The changes of groups: new reports in `changed`, and groups whose report became empty in `removed`.
#[derive(Debug, Default)]
pub(super) struct GroupChanges {
    pub(super) changed: Vec<(Digest, MatchReport)>,
    pub(super) removed: Vec<Digest>,
    /// The package sets whose findings changed.
    pub(super) sets: BTreeSet<Digest>,
}

impl PackageGroups {
    pub(super) fn new(base: Ecosystem) -> PackageGroups {
        PackageGroups {
            base,
            groups: BTreeMap::new(),
            by_digest: HashMap::new(),
            by_name: HashMap::new(),
            sets: BTreeMap::new(),
            new_sets: BTreeSet::new(),
            dirty: BTreeSet::new(),
            next_id: 0,
        }
    }

    pub(super) fn contains(&self, set: &Digest) -> bool {
        self.sets.contains_key(set)
    }

    /// Adds a package set. With `stored`, it was assessed before, and `stored` has the reports of
    /// its groups.
    pub(super) fn add(
        &mut self,
        tally: &mut ExposureCounts,
        set: Digest,
        groups: Vec<SourceGroup>,
        mut stored: Option<&mut StoredReports>,
    ) {
        let mut carried = Vec::with_capacity(groups.len());
        for group in groups {
            let digest = group.digest();
            let known = self.by_digest.get(&digest).copied();
            let id = known.unwrap_or_else(|| self.insert(digest, group, false));
            let is_new = known.is_none();
            if let Some(stored) = stored.as_mut().filter(|_| is_new || self.dirty.contains(&id)) {
                let report = stored.remove(&digest).unwrap_or_default();
                self.dirty.remove(&id);
                self.set_report(tally, id, report);
            } else if is_new {
                self.dirty.insert(id);
            }
            if let Some(known) = self.groups.get_mut(&id) {
                known.set_count += 1;
            }
            carried.push(id);
        }
        carried.sort_unstable();
        self.sets.insert(set, carried);
        if stored.is_none() {
            self.new_sets.insert(set);
        }
    }

    /// Adds a deleted package set of which only the report is left.
    pub(super) fn add_deleted_set(
        &mut self,
        tally: &mut ExposureCounts,
        set: Digest,
        report: MatchReport,
    ) {
        let group = SourceGroup { names: Vec::new(), packages: Vec::new() };
        let id = self.insert(Digest::compute(format!("memory of {set}").as_bytes()), group, true);
        self.set_report(tally, id, report);
        if let Some(known) = self.groups.get_mut(&id) {
            known.set_count = 1;
        }
        self.sets.insert(set, vec![id]);
    }

    fn insert(&mut self, digest: Digest, group: SourceGroup, is_memory: bool) -> u32 {
        let id = self.next_id;
        self.next_id += 1;
        for name in &group.names {
            self.by_name.entry(name.clone()).or_default().insert(id);
        }
        let is_kernel = group.has_kernel(&self.base);
        let (report, cells) = (MatchReport::default(), Vec::new());
        let known = GroupEntry {
            digest,
            group,
            report,
            occurrence_ids: cells,
            is_kernel,
            set_count: 0,
            is_placeholder: is_memory,
        };
        self.groups.insert(id, known);
        self.by_digest.insert(digest, id);
        id
    }

    fn set_report(&mut self, tally: &mut ExposureCounts, id: u32, report: MatchReport) {
        let Some(known) = self.groups.get_mut(&id) else { return };
        known.occurrence_ids = match known.is_kernel {
            true => Vec::new(),
            false => visible(&report.findings).map(|one| tally.register(one.into())).collect(),
        };
        known.report = report;
    }

    /// Drops the package sets that are not wanted, and the groups that only those contained.
    /// Returns the dropped sets, and the dropped groups that had a report.
    pub(super) fn retain(&mut self, wanted: &BTreeSet<Digest>) -> (Vec<Digest>, Vec<Digest>) {
        let removed: Vec<Digest> =
            self.sets.keys().filter(|set| !wanted.contains(set)).copied().collect();
        let mut groups = Vec::new();
        for id in removed.iter().filter_map(|set| self.sets.remove(set)).flatten() {
            let Some(known) = self.groups.get_mut(&id) else { continue };
            known.set_count -= 1;
            if known.set_count > 0 {
                continue;
            }
            let Some(known) = self.groups.remove(&id) else { continue };
            self.by_digest.remove(&known.digest);
            self.dirty.remove(&id);
            for name in &known.group.names {
                if let Some(ids) = self.by_name.get_mut(name) {
                    ids.remove(&id);
                }
            }
            if !known.is_placeholder && !known.report.is_empty() {
                groups.push(known.digest);
            }
        }
        self.new_sets.retain(|set| self.sets.contains_key(set));
        (removed, groups)
    }

    /// Marks all groups for assessment.
    pub(super) fn mark_all_dirty(&mut self) {
        let all = self.groups.iter().filter(|(_, known)| !known.is_placeholder).map(|(id, _)| *id);
        self.dirty.extend(all);
    }

    /// The number of packages of a set that could not be assessed on servers with this kernel and
    /// running code.
    pub(super) fn unassessed_count(
        &self,
        set: &Digest,
        (kernel, runs): (&str, &RunningCode),
    ) -> u32 {
        let mut count = 0;
        let mut kernels = Vec::new();
        for known in self.groups_of(set) {
            count += known.report.unassessed.len();
            if known.is_kernel {
                kernels.extend(known.group.packages.iter().cloned());
            }
        }
        let foreign = foreign_kernel(self.base.family(), &kernels, running_kernel(kernel, runs));
        u32::try_from(count + usize::from(foreign.is_some())).unwrap_or(u32::MAX)
    }

    /// Marks the groups with these names for assessment.
    pub(super) fn mark_dirty(&mut self, names: &[String]) {
        let touched = names.iter().filter_map(|name| self.by_name.get(name)).flatten();
        self.dirty.extend(touched);
    }

    /// The names by which to look up advisories for the groups that must be assessed.
    pub(super) fn dirty_names(&self) -> BTreeSet<String> {
        let unjudged = self.dirty.iter().filter_map(|id| self.groups.get(id));
        unjudged.flat_map(|known| known.group.names.iter().cloned()).collect()
    }

    /// Assesses the marked groups with the advisories that name any of their packages.
    pub(super) fn assess(
        &mut self,
        tally: &mut ExposureCounts,
        advisories: Vec<Advisory>,
    ) -> GroupChanges {
        let mut changes =
            GroupChanges { sets: std::mem::take(&mut self.new_sets), ..GroupChanges::default() };
        let index = AdvisoryIndex::new(&self.base, advisories);
        let mut changed = BTreeSet::new();
        for id in std::mem::take(&mut self.dirty) {
            let Some(known) = self.groups.get(&id) else { continue };
            let report = index.match_packages(&known.group.packages);
            if report == known.report {
                continue;
            }
            match report.is_empty() {
                true => changes.removed.push(known.digest),
                false => changes.changed.push((known.digest, report.clone())),
            }
            self.set_report(tally, id, report);
            changed.insert(id);
        }
        // Usually either few groups change, or nearly all.
        let carries = |carried: &[u32]| match changed.len() < carried.len() {
            true => changed.iter().any(|id| carried.binary_search(id).is_ok()),
            false => carried.iter().any(|id| changed.contains(id)),
        };
        if !changed.is_empty() {
            let touched = self.sets.iter().filter(|(_, carried)| carries(carried));
            changes.sets.extend(touched.map(|(set, _)| *set));
        }
        changes
    }

    /// The report of a package set.
    pub(super) fn report(&self, set: &Digest) -> MatchReport {
        MatchReport::merge(self.groups_of(set).map(|known| &known.report))
    }

    fn groups_of(&self, set: &Digest) -> impl Iterator<Item = &GroupEntry> {
        let ids = self.sets.get(set).into_iter().flatten();
        ids.filter_map(|id| self.groups.get(id))
    }

    /// The occurrences that count for servers with this package set, kernel and running code.
    pub(super) fn occurrence_ids(
        &self,
        tally: &mut ExposureCounts,
        set: &Digest,
        (kernel, runs): (&str, &RunningCode),
    ) -> Vec<OccurrenceId> {
        let mut cells = Vec::new();
        let has_old_code = runs.since.is_some();
        let (mut findings, mut packages) = (Vec::new(), Vec::new());
        for known in self.groups_of(set) {
            if !known.is_kernel && !has_old_code {
                cells.extend_from_slice(&known.occurrence_ids);
                continue;
            }
            findings.extend(known.report.findings.iter().cloned());
            packages.extend(known.group.packages.iter().cloned());
        }
        if findings.is_empty() && !has_old_code {
            return cells;
        }
        let before = runs.since.map(|since| self.report(&since)).unwrap_or_default();
        let settled = visible_findings(&self.base, before, &findings, &packages, (kernel, runs));
        cells.extend(settled.iter().map(|one| tally.register((&one.finding).into())));
        cells
    }
}

/// What findings mean with this kernel and running code. Hidden findings are left out. `before` is
/// the report of the package set from which outdated processes run.
pub(super) fn visible_findings(
    base: &Ecosystem,
    before: MatchReport,
    findings: &[Finding],
    packages: &[Installed],
    (kernel, runs): (&str, &RunningCode),
) -> Vec<ServerFinding> {
    let kernel = running_kernel(kernel, runs);
    let open = |finding| ServerFinding { finding, exposure: Exposure::Open };
    let before: Vec<ServerFinding> = before.findings.into_iter().map(open).collect();
    let runtime_state = RuntimeState { kernel, old_code: &runs.old_code };
    let mut settled =
        apply_runtime_state(base.family(), &before, findings, packages, &runtime_state);
    settled.retain(|one| !one.finding.state.is_hidden());
    settled
}

pub(super) fn running_kernel<'a>(kernel: &'a str, running_code: &RunningCode) -> RunningKernel<'a> {
    match kernel {
        _ if running_code.foreign_kernel => RunningKernel::Foreign,
        "" => RunningKernel::Unknown,
        release => RunningKernel::Release(release),
    }
}

fn visible(findings: &[Finding]) -> impl Iterator<Item = &Finding> {
    findings.iter().filter(|finding| !finding.state.is_hidden())
}
