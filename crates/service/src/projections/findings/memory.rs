//! The in-memory state of an organization's findings. A round compares with it to find what
//! changed, instead of reading everything again.
//!
//! A *server kind* is a group of servers with the same package set, OS release, kernel and running
//! code: they have the same findings.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use domain::advisory::{Advisory, Ecosystem};
use domain::finding::Finding;
use domain::finding::tally::{Cell, Mention, Tally};
use store::findings::{Carrier, Counts, Cve, Judged, Kind, Tallied};
use vocab::{Assessment, Digest};

use super::Aside;
use super::shelf::Shelf;
use super::writing::Writes;
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
pub(super) struct Walked {
    pub(super) kinds: Vec<Kind>,
    /// Identifies this list of kinds.
    pub(super) basis: Digest,
}

impl Walked {
    pub(super) fn new(kinds: Vec<Kind>) -> Walked {
        let mut bytes = Vec::new();
        for kind in &kinds {
            bytes.extend_from_slice(kind.alike().as_bytes());
            bytes.extend_from_slice(&kind.servers.to_be_bytes());
        }
        Walked { basis: Digest::of(&bytes), kinds }
    }
}

/// The findings, and what of them is stored in the database.
#[derive(Debug)]
pub(super) struct Memory {
    /// The generation of the stored summary.
    pub(super) generation: i64,
    pub(super) revision: i64,
    pub(super) walked: Arc<Walked>,
    pub(super) aside: Aside,
    pub(super) shelves: BTreeMap<Ecosystem, Shelf>,
    /// The CVEs that the package manager reports, by update set, for the update sets that were
    /// read.
    pub(super) told: BTreeMap<Digest, Vec<Cell>>,
    /// The update sets whose reported CVEs are stored in the database.
    pub(super) telling: BTreeSet<Digest>,
    /// The package sets from which outdated processes still run. Their reports are kept.
    pub(super) since: BTreeSet<(Ecosystem, Digest)>,
    /// The server kinds that are counted together, by the key under which they are counted.
    alike: BTreeMap<Digest, Kind>,
    /// The server kinds with findings from feeds.
    carried: BTreeMap<Digest, Carried>,
    numbers: Numbers,
    pub(super) counts: BTreeMap<Digest, Tallied>,
    /// The rows as stored in the database.
    pub(super) rows: HashMap<Arc<str>, Box<Cve>>,
    pub(super) exploited: BTreeSet<String>,
    pub(super) exploited_count: i64,
    pub(super) tally: Tally,
    is_new: bool,
}

/// A server kind with findings, as stored in the database.
#[derive(Debug, Default)]
struct Carried {
    number: u32,
    /// Indexes of the CVEs in the tally, sorted.
    flaws: Vec<u32>,
}

/// Allocates the numbers of server kinds. Free numbers are reused first, so that they stay small.
#[derive(Debug, Default)]
struct Numbers {
    next: u32,
    free: BTreeSet<u32>,
    /// Numbers that become free once the pending changes are written.
    given_back: BTreeSet<u32>,
}

impl Numbers {
    fn take(&mut self) -> u32 {
        self.free.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// Marks a number as used that was allocated earlier.
    fn note(&mut self, number: u32) {
        self.free.extend(self.next..number);
        self.free.remove(&number);
        self.next = self.next.max(number + 1);
    }
}

/// The input of a round.
pub(super) struct News {
    pub(super) revision: i64,
    pub(super) walked: Arc<Walked>,
    pub(super) aside: Aside,
    /// The advisories that name a package which must be assessed.
    pub(super) advisories: BTreeMap<Ecosystem, Vec<Advisory>>,
}

impl Memory {
    pub(super) fn new(generation: i64, revision: i64, aside: Aside) -> Memory {
        Memory {
            generation,
            revision,
            walked: Arc::new(Walked::new(Vec::new())),
            aside,
            shelves: BTreeMap::new(),
            told: BTreeMap::new(),
            telling: BTreeSet::new(),
            since: BTreeSet::new(),
            alike: BTreeMap::new(),
            carried: BTreeMap::new(),
            numbers: Numbers::default(),
            counts: BTreeMap::new(),
            rows: HashMap::new(),
            exploited: BTreeSet::new(),
            exploited_count: -1,
            tally: Tally::default(),
            is_new: true,
        }
    }

    /// Applies the changes of a round and collects the rows to write in `writes`. The caller adds
    /// which CVEs are exploited.
    pub(super) fn learn(&mut self, mut news: News, writes: &mut Writes) {
        self.numbers.free.append(&mut self.numbers.given_back);
        let touched = self.judge(&mut news, writes);
        let all = self.is_new || self.aside.ids() != news.aside.ids();
        let same_servers = Arc::ptr_eq(&self.walked, &news.walked) && !self.is_new;
        (self.aside, self.revision) = (news.aside, news.revision);
        let before = match same_servers {
            true => None,
            false => {
                self.walked = news.walked;
                let alike = self.gather();
                Some(std::mem::replace(&mut self.alike, alike))
            }
        };
        let known = |alike: &Digest| match &before {
            Some(before) => before.get(alike),
            None => self.alike.get(alike),
        };
        let affected = |kind: &Kind| {
            let Some(base) = Ecosystem::of(&kind.os) else { return false };
            let Some(sets) = touched.get(&base) else { return false };
            super::carried(kind).any(|set| sets.contains(&set))
        };
        let changed: Vec<Digest> = self
            .alike
            .iter()
            .filter(|(alike, kind)| {
                all || known(alike).is_none_or(|was| was.servers != kind.servers) || affected(kind)
            })
            .map(|(alike, _)| *alike)
            .collect();
        for alike in changed {
            self.count(alike, writes);
        }
        if let Some(before) = before {
            self.forget(&before, writes);
        }
        self.tell(writes);
        self.change_rows(writes);
        self.is_new = false;
    }

    /// Assesses the groups that need it. Returns the package sets whose findings changed.
    fn judge(
        &mut self,
        news: &mut News,
        writes: &mut Writes,
    ) -> BTreeMap<Ecosystem, BTreeSet<Digest>> {
        let mut touched = BTreeMap::new();
        let mut since: BTreeSet<(Ecosystem, Digest)> = BTreeSet::new();
        for kind in &news.walked.kinds {
            let old = host_facts::runs_of(&kind.runs).since;
            since.extend(Ecosystem::of(&kind.os).zip(old));
        }
        for (base, shelf) in &mut self.shelves {
            let advisories = news.advisories.remove(base).unwrap_or_default();
            let changes = shelf.judge(&mut self.tally, advisories);
            let judged = changes.sets.iter().map(|set| Judged {
                package_set: *set,
                base: base.as_str().to_owned(),
                changed: news.revision,
            });
            writes.judged.extend(judged);
            touched.insert(base.clone(), changes.sets.clone());
            writes.groups.push((base.as_str().to_owned(), changes));
        }
        for (base, set) in &since {
            let is_new = !self.since.contains(&(base.clone(), *set));
            let is_touched = touched.get(base).is_some_and(|sets| sets.contains(set));
            if let Some(shelf) = self.shelves.get(base).filter(|_| is_new || is_touched) {
                writes.kept.push((base.as_str().to_owned(), *set, shelf.report(set)));
            }
        }
        self.since = since;
        touched
    }

    /// Merges the server kinds that are counted together. Update sets that report no CVE do not
    /// separate kinds.
    fn gather(&self) -> BTreeMap<Digest, Kind> {
        let mut alike: BTreeMap<Digest, Kind> = BTreeMap::new();
        for kind in &self.walked.kinds {
            let mut kind = kind.clone();
            kind.update_set = kind
                .update_set
                .filter(|set| self.told.get(set).is_some_and(|cells| !cells.is_empty()));
            alike
                .entry(kind.alike())
                .and_modify(|known| known.servers += kind.servers)
                .or_insert(kind);
        }
        alike
    }

    fn count(&mut self, alike: Digest, writes: &mut Writes) {
        let Some(kind) = self.alike.get(&alike).cloned() else { return };
        let shelf = Ecosystem::of(&kind.os).and_then(|base| self.shelves.get(&base));
        let (mut cells, unassessed) = match shelf {
            Some(shelf) => {
                let runs = host_facts::runs_of(&kind.runs);
                let running = (kind.kernel.as_str(), &runs);
                let cells = shelf.cells(&mut self.tally, &kind.package_set, running);
                (cells, shelf.unassessed(&kind.package_set, running))
            }
            None => (Vec::new(), 0),
        };
        let flaws = Tally::flaws(cells.iter().copied());
        // A finding from a feed takes precedence over the package manager's report of the same CVE.
        let told = kind.update_set.and_then(|set| self.told.get(&set)).into_iter().flatten();
        cells.extend(told.filter(|cell| flaws.binary_search(&cell.flaw()).is_err()));
        let tallied = Tallied { cves: self.put(alike, &kind, &cells), unassessed };
        match tallied.is_empty() {
            true if self.counts.remove(&alike).is_some() => writes.counts_gone.push(alike),
            false if self.counts.get(&alike) != Some(&tallied) => {
                self.counts.insert(alike, tallied.clone());
                writes.counts.push((alike, tallied));
            }
            _ => {}
        }
        self.carry(kind, flaws, writes);
    }

    /// The number of servers per assessment, if feeds cover these base ecosystems. Does not include
    /// servers that have not reported their packages.
    pub(super) fn assessments(&self, covered: &BTreeSet<Ecosystem>) -> BTreeMap<Assessment, u64> {
        let mut servers = BTreeMap::new();
        for (alike, kind) in &self.alike {
            let unassessed = self.counts.get(alike).map_or(0, |tallied| tallied.unassessed);
            let is_covered = Ecosystem::of(&kind.os).is_some_and(|base| covered.contains(&base));
            *servers.entry(assessment(is_covered, unassessed)).or_default() += kind.servers;
        }
        servers
    }

    fn put(&mut self, alike: Digest, kind: &Kind, cells: &[Cell]) -> Counts {
        let Memory { aside, tally, .. } = self;
        let counts_here = |mention: &Mention| {
            aside.covering(kind.environment.as_ref(), &mention.cve, &mention.source).is_none()
        };
        let marks: Vec<(Cell, bool)> = cells
            .iter()
            .map(|cell| (*cell, aside.is_empty() || counts_here(tally.mention(*cell))))
            .collect();
        tally.put(alike, kind.servers, marks)
    }

    /// Counts a server kind with these findings, for a caller that only needs [the
    /// rows](Memory::into_rows).
    pub(super) fn add<'a>(&mut self, kind: &Kind, has: impl Iterator<Item = &'a Finding>) {
        let cells: Vec<Cell> = has.map(|finding| self.tally.cell(finding.into())).collect();
        self.put(kind.alike(), kind, &cells);
    }

    /// The rows, unordered. The caller adds which CVEs are exploited.
    pub(super) fn into_rows(mut self) -> Vec<Cve> {
        let mut writes = Writes::default();
        self.change_rows(&mut writes);
        self.rows.into_values().map(|row| *row).collect()
    }

    /// Loads which server kinds have which CVEs according to the database.
    pub(super) fn carried_before(
        &mut self,
        carriers: Vec<Carrier>,
        flaws: Vec<(String, Vec<u32>)>,
    ) {
        let mut by_number: HashMap<u32, Vec<u32>> = HashMap::new();
        for (cve, numbers) in flaws {
            let flaw = self.tally.flaw(&Arc::from(cve));
            for number in numbers {
                by_number.entry(number).or_default().push(flaw);
            }
        }
        for carrier in carriers {
            let number = carrier.number;
            self.numbers.note(number);
            let mut flaws = by_number.remove(&number).unwrap_or_default();
            flaws.sort_unstable();
            self.carried.insert(carrier.digest(), Carried { number, flaws });
        }
    }

    /// Updates which CVEs a server kind has.
    fn carry(&mut self, kind: Kind, flaws: Vec<u32>, writes: &mut Writes) {
        let digest = kind.digest();
        let before = match self.carried.remove(&digest) {
            None if flaws.is_empty() => return,
            None => {
                let number = self.numbers.take();
                let Kind { package_set, os_release, kernel, runs, .. } = kind;
                writes.carriers.push(Carrier { number, package_set, os_release, kernel, runs });
                Carried { number, flaws: Vec::new() }
            }
            Some(known) => known,
        };
        let number = before.number;
        self.shift(before, &flaws, writes);
        if !flaws.is_empty() {
            self.carried.insert(digest, Carried { number, flaws });
        }
    }

    /// Records the CVEs that a server kind gained and lost. A kind without CVEs is no longer
    /// stored.
    fn shift(&mut self, before: Carried, flaws: &[u32], writes: &mut Writes) {
        let Carried { number, flaws: had } = before;
        for flaw in flaws.iter().filter(|flaw| had.binary_search(flaw).is_err()) {
            writes.shift(*flaw, &self.tally).gained.push(number);
        }
        for flaw in had.iter().filter(|flaw| flaws.binary_search(flaw).is_err()) {
            writes.shift(*flaw, &self.tally).lost.push(number);
        }
        if flaws.is_empty() {
            writes.carriers_gone.push(number);
            self.numbers.given_back.insert(number);
        }
    }

    /// Removes the server kinds that no longer exist.
    fn forget(&mut self, before: &BTreeMap<Digest, Kind>, writes: &mut Writes) {
        for alike in before.keys().filter(|alike| !self.alike.contains_key(alike)) {
            self.tally.remove(alike);
        }
        let gone: Vec<Digest> =
            self.counts.keys().filter(|alike| !self.alike.contains_key(alike)).copied().collect();
        gone.iter().for_each(|alike| drop(self.counts.remove(alike)));
        writes.counts_gone.extend(gone);
        let kinds: BTreeSet<Digest> = self.alike.values().map(Kind::digest).collect();
        let gone: Vec<Digest> =
            self.carried.keys().filter(|kind| !kinds.contains(kind)).copied().collect();
        for kind in gone.iter().filter_map(|kind| self.carried.remove(kind)).collect::<Vec<_>>() {
            self.shift(kind, &[], writes);
        }
    }

    /// Updates which update sets report which CVEs.
    fn tell(&mut self, writes: &mut Writes) {
        let telling: BTreeSet<Digest> =
            self.alike.values().filter_map(|kind| kind.update_set).collect();
        for set in telling.difference(&self.telling) {
            let cells = self.told.get(set).into_iter().flatten().copied();
            let named = Tally::flaws(cells).into_iter().map(|flaw| self.tally.name(flaw).clone());
            writes.telling.extend(named.map(|cve| (cve, *set)));
        }
        writes.telling_gone.extend(self.telling.difference(&telling));
        self.telling = telling;
    }

    fn change_rows(&mut self, writes: &mut Writes) {
        let changes = self.tally.changes();
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
                writes.rows.insert(id);
            }
        }
        let gone = unknown.into_iter().filter_map(|id| self.rows.remove(&id));
        writes.rows_gone.extend(gone.map(|row| row.id));
    }

    /// Marks these CVEs as exploited.
    pub(super) fn exploit(&mut self, exploited: BTreeSet<String>, writes: &mut Writes) {
        for id in &exploited {
            let id: Arc<str> = Arc::from(id.as_str());
            if let Some(row) = self.rows.get_mut(&id).filter(|row| row.kev_order != 0) {
                row.kev_order = 0;
                writes.rows.insert(id);
            }
        }
        self.exploited.extend(exploited);
    }
}
