//! What is known of an organization's flaws, in memory: what changed is found by comparing with it, and not by reading
//! everything again.

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

/// How many packages one row names.
pub(super) const PACKAGES_MAX: usize = 100;

/// The kinds of servers, as they were counted at one time.
#[derive(Debug)]
pub(super) struct Walked {
    pub(super) kinds: Vec<Kind>,
    /// Stands for all of it.
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

/// What is known, and what of it is written down.
#[derive(Debug)]
pub(super) struct Memory {
    /// As what was written down says of itself.
    pub(super) generation: i64,
    pub(super) revision: i64,
    pub(super) walked: Arc<Walked>,
    pub(super) aside: Aside,
    pub(super) shelves: BTreeMap<Ecosystem, Shelf>,
    /// What the lists of pending updates say, as far as it was looked at.
    pub(super) told: BTreeMap<Digest, Vec<Cell>>,
    /// Those of them that are written down.
    pub(super) telling: BTreeSet<Digest>,
    /// The lists that old code is from and that are kept for it.
    pub(super) since: BTreeSet<(Ecosystem, Digest)>,
    /// What is counted together, by what it is counted by.
    alike: BTreeMap<Digest, Kind>,
    /// The kinds that have flaws, as feeds know them.
    carried: BTreeMap<Digest, Carried>,
    numbers: Numbers,
    pub(super) counts: BTreeMap<Digest, Tallied>,
    /// The rows as they are written down.
    pub(super) rows: HashMap<Arc<str>, Box<Cve>>,
    pub(super) exploited: BTreeSet<String>,
    pub(super) exploited_count: i64,
    pub(super) tally: Tally,
    is_new: bool,
}

/// A kind that has flaws, as it is written down.
#[derive(Debug, Default)]
struct Carried {
    number: u32,
    /// As the tally knows them, sorted.
    flaws: Vec<u32>,
}

/// Who is to have which number. They stay small, because those that are free again are given first.
#[derive(Debug, Default)]
struct Numbers {
    next: u32,
    free: BTreeSet<u32>,
    /// Those that become free when what is to be written has been.
    given_back: BTreeSet<u32>,
}

impl Numbers {
    fn take(&mut self) -> u32 {
        self.free.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// This one is in use, whoever gave it.
    fn note(&mut self, number: u32) {
        self.free.extend(self.next..number);
        self.free.remove(&number);
        self.next = self.next.max(number + 1);
    }
}

/// What has changed around it.
pub(super) struct News {
    pub(super) revision: i64,
    pub(super) walked: Arc<Walked>,
    pub(super) aside: Aside,
    /// The advisories that name anything which has to be judged.
    pub(super) advisories: BTreeMap<Ecosystem, Vec<Advisory>>,
}

impl Memory {
    /// Nothing yet.
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

    /// Takes the news in. What is to be written is in `writes`; whether flaws are exploited is for the caller to add.
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

    /// Judges what has to be. Which lists that concerns.
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

    /// What is counted together. Lists of updates that say nothing of flaws keep nobody apart.
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
        // Where a feed speaks of a flaw, the package manager need not.
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

    /// How many servers are in each state, if feeds cover these bases. Servers that have not reported
    /// their packages are not among them.
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

    /// Counts a kind that has these, for whoever wants no more than [the rows](Memory::into_rows).
    pub(super) fn add<'a>(&mut self, kind: &Kind, has: impl Iterator<Item = &'a Finding>) {
        let cells: Vec<Cell> = has.map(|finding| self.tally.cell(finding.into())).collect();
        self.put(kind.alike(), kind, &cells);
    }

    /// The rows, in no order. Whether flaws are exploited is for the caller to add.
    pub(super) fn into_rows(mut self) -> Vec<Cve> {
        let mut writes = Writes::default();
        self.change_rows(&mut writes);
        self.rows.into_values().map(|row| *row).collect()
    }

    /// What is written down: who has which flaws.
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

    /// Notes which flaws a kind has.
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

    /// Notes what a carrier gained and lost. One that has nothing any more is one no longer.
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

    /// Takes out what is no more.
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

    /// Notes which lists of updates name which flaws.
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
        // Whoever is new here does not know what was counted before.
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

    /// These flaws are exploited, of those in `asked`.
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
