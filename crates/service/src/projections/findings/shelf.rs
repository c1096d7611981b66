//! The package sets of one base ecosystem, split into groups by source package. Each group is
//! assessed once, however many package sets contain it, and again only if a change affects one of
//! its names.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use domain::advisory::{Advisory, Ecosystem};
use domain::finding::tally::{Cell, Tally};
use domain::finding::touch::Group;
use domain::finding::{
    Finding, Index, Kernel, Report, Running, Runs, Settled, foreign_kernel, settle,
};
use vocab::{Digest, Exposure, Installed};

/// The stored reports of groups.
pub(super) type Stored = BTreeMap<Digest, Report>;

#[derive(Debug)]
pub(super) struct Shelf {
    base: Ecosystem,
    groups: BTreeMap<u32, Known>,
    by_digest: HashMap<Digest, u32>,
    by_name: HashMap<String, BTreeSet<u32>>,
    sets: BTreeMap<Digest, Vec<u32>>,
    /// Package sets that are new. `unjudged` has the groups that must be assessed, or assessed
    /// again.
    fresh: BTreeSet<Digest>,
    unjudged: BTreeSet<u32>,
    next: u32,
}

#[derive(Debug)]
struct Known {
    digest: Digest,
    group: Group,
    report: Report,
    /// The tally cells of its findings, unless it is a kernel.
    cells: Vec<Cell>,
    is_kernel: bool,
    /// The number of package sets that contain it.
    users: u32,
    /// Whether it is a placeholder for a deleted package set: it is never assessed and never
    /// written.
    is_memory: bool,
}

/// The changes of groups: new reports in `put`, and groups whose report became empty in `gone`.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) put: Vec<(Digest, Report)>,
    pub(super) gone: Vec<Digest>,
    /// The package sets whose findings changed.
    pub(super) sets: BTreeSet<Digest>,
}

impl Shelf {
    pub(super) fn new(base: Ecosystem) -> Shelf {
        Shelf {
            base,
            groups: BTreeMap::new(),
            by_digest: HashMap::new(),
            by_name: HashMap::new(),
            sets: BTreeMap::new(),
            fresh: BTreeSet::new(),
            unjudged: BTreeSet::new(),
            next: 0,
        }
    }

    pub(super) fn has(&self, set: &Digest) -> bool {
        self.sets.contains_key(set)
    }

    /// Adds a package set. With `stored`, it was assessed before, and `stored` has the reports of
    /// its groups.
    pub(super) fn add(
        &mut self,
        tally: &mut Tally,
        set: Digest,
        groups: Vec<Group>,
        mut stored: Option<&mut Stored>,
    ) {
        let mut carried = Vec::with_capacity(groups.len());
        for group in groups {
            let digest = group.digest();
            let known = self.by_digest.get(&digest).copied();
            let id = known.unwrap_or_else(|| self.insert(digest, group, false));
            let is_new = known.is_none();
            if let Some(stored) = stored.as_mut().filter(|_| is_new || self.unjudged.contains(&id))
            {
                let report = stored.remove(&digest).unwrap_or_default();
                self.unjudged.remove(&id);
                self.learn(tally, id, report);
            } else if is_new {
                self.unjudged.insert(id);
            }
            if let Some(known) = self.groups.get_mut(&id) {
                known.users += 1;
            }
            carried.push(id);
        }
        carried.sort_unstable();
        self.sets.insert(set, carried);
        if stored.is_none() {
            self.fresh.insert(set);
        }
    }

    /// Adds a deleted package set of which only the report is left.
    pub(super) fn add_memory(&mut self, tally: &mut Tally, set: Digest, report: Report) {
        let group = Group { names: Vec::new(), packages: Vec::new() };
        let id = self.insert(Digest::of(format!("memory of {set}").as_bytes()), group, true);
        self.learn(tally, id, report);
        if let Some(known) = self.groups.get_mut(&id) {
            known.users = 1;
        }
        self.sets.insert(set, vec![id]);
    }

    fn insert(&mut self, digest: Digest, group: Group, is_memory: bool) -> u32 {
        let id = self.next;
        self.next += 1;
        for name in &group.names {
            self.by_name.entry(name.clone()).or_default().insert(id);
        }
        let is_kernel = group.has_kernel(&self.base);
        let (report, cells) = (Report::default(), Vec::new());
        let known = Known { digest, group, report, cells, is_kernel, users: 0, is_memory };
        self.groups.insert(id, known);
        self.by_digest.insert(digest, id);
        id
    }

    fn learn(&mut self, tally: &mut Tally, id: u32, report: Report) {
        let Some(known) = self.groups.get_mut(&id) else { return };
        known.cells = match known.is_kernel {
            true => Vec::new(),
            false => shown(&report.findings).map(|one| tally.cell(one.into())).collect(),
        };
        known.report = report;
    }

    /// Drops all other package sets, and the groups that only those contained. Returns the dropped
    /// sets, and the dropped groups that had a report.
    pub(super) fn retain(&mut self, wanted: &BTreeSet<Digest>) -> (Vec<Digest>, Vec<Digest>) {
        let gone: Vec<Digest> =
            self.sets.keys().filter(|set| !wanted.contains(set)).copied().collect();
        let mut groups = Vec::new();
        for id in gone.iter().filter_map(|set| self.sets.remove(set)).flatten() {
            let Some(known) = self.groups.get_mut(&id) else { continue };
            known.users -= 1;
            if known.users > 0 {
                continue;
            }
            let Some(known) = self.groups.remove(&id) else { continue };
            self.by_digest.remove(&known.digest);
            self.unjudged.remove(&id);
            for name in &known.group.names {
                if let Some(ids) = self.by_name.get_mut(name) {
                    ids.remove(&id);
                }
            }
            if !known.is_memory && !known.report.is_empty() {
                groups.push(known.digest);
            }
        }
        self.fresh.retain(|set| self.sets.contains_key(set));
        (gone, groups)
    }

    /// Marks all groups for assessment.
    pub(super) fn touch_all(&mut self) {
        let all = self.groups.iter().filter(|(_, known)| !known.is_memory).map(|(id, _)| *id);
        self.unjudged.extend(all);
    }

    /// The number of packages of a set that could not be assessed on servers with this kernel and
    /// running code.
    pub(super) fn unassessed(&self, set: &Digest, (kernel, runs): (&str, &Runs)) -> u32 {
        let mut count = 0;
        let mut kernels = Vec::new();
        for known in self.carried(set) {
            count += known.report.unassessed.len();
            if known.is_kernel {
                kernels.extend(known.group.packages.iter().cloned());
            }
        }
        let foreign = foreign_kernel(self.base.family(), &kernels, running_kernel(kernel, runs));
        u32::try_from(count + usize::from(foreign.is_some())).unwrap_or(u32::MAX)
    }

    /// Marks the groups with these names for assessment.
    pub(super) fn touch(&mut self, names: &[String]) {
        let touched = names.iter().filter_map(|name| self.by_name.get(name)).flatten();
        self.unjudged.extend(touched);
    }

    /// The names by which to look up advisories for the groups that must be assessed.
    pub(super) fn unjudged_names(&self) -> BTreeSet<String> {
        let unjudged = self.unjudged.iter().filter_map(|id| self.groups.get(id));
        unjudged.flat_map(|known| known.group.names.iter().cloned()).collect()
    }

    /// Assesses the marked groups with the advisories that name any of their packages.
    pub(super) fn judge(&mut self, tally: &mut Tally, advisories: Vec<Advisory>) -> Changes {
        let mut changes = Changes { sets: std::mem::take(&mut self.fresh), ..Changes::default() };
        let index = Index::new(&self.base, advisories);
        let mut changed = BTreeSet::new();
        for id in std::mem::take(&mut self.unjudged) {
            let Some(known) = self.groups.get(&id) else { continue };
            let report = index.judge(&known.group.packages);
            if report == known.report {
                continue;
            }
            match report.is_empty() {
                true => changes.gone.push(known.digest),
                false => changes.put.push((known.digest, report.clone())),
            }
            self.learn(tally, id, report);
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
    pub(super) fn report(&self, set: &Digest) -> Report {
        Report::of_groups(self.carried(set).map(|known| &known.report))
    }

    fn carried(&self, set: &Digest) -> impl Iterator<Item = &Known> {
        let ids = self.sets.get(set).into_iter().flatten();
        ids.filter_map(|id| self.groups.get(id))
    }

    /// The tally cells of servers with this package set, kernel and running code.
    pub(super) fn cells(
        &self,
        tally: &mut Tally,
        set: &Digest,
        (kernel, runs): (&str, &Runs),
    ) -> Vec<Cell> {
        let mut cells = Vec::new();
        let has_old_code = runs.since.is_some();
        let (mut findings, mut packages) = (Vec::new(), Vec::new());
        for known in self.carried(set) {
            if !known.is_kernel && !has_old_code {
                cells.extend_from_slice(&known.cells);
                continue;
            }
            findings.extend(known.report.findings.iter().cloned());
            packages.extend(known.group.packages.iter().cloned());
        }
        if findings.is_empty() && !has_old_code {
            return cells;
        }
        let before = runs.since.map(|since| self.report(&since)).unwrap_or_default();
        let settled = settled(&self.base, before, &findings, &packages, (kernel, runs));
        cells.extend(settled.iter().map(|one| tally.cell((&one.finding).into())));
        cells
    }
}

/// What findings mean with this kernel and running code. Hidden findings are left out. `before` is
/// the report of the package set from which outdated processes run.
pub(super) fn settled(
    base: &Ecosystem,
    before: Report,
    findings: &[Finding],
    packages: &[Installed],
    (kernel, runs): (&str, &Runs),
) -> Vec<Settled> {
    let kernel = running_kernel(kernel, runs);
    let open = |finding| Settled { finding, exposure: Exposure::Open };
    let before: Vec<Settled> = before.findings.into_iter().map(open).collect();
    let running = Running { kernel, old_code: &runs.old_code };
    let mut settled = settle(base.family(), &before, findings, packages, &running);
    settled.retain(|one| !one.finding.state.is_hidden());
    settled
}

pub(super) fn running_kernel<'a>(kernel: &'a str, runs: &Runs) -> Kernel<'a> {
    match kernel {
        _ if runs.foreign_kernel => Kernel::Foreign,
        "" => Kernel::Unknown,
        release => Kernel::Release(release),
    }
}

fn shown(findings: &[Finding]) -> impl Iterator<Item = &Finding> {
    findings.iter().filter(|finding| !finding.state.is_hidden())
}
