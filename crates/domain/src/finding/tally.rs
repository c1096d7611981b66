//! Number of servers affected by each CVE, updated incrementally.
//!
//! Servers with identical packages, kernels and running code form one group, and a group is added
//! with all of its CVEs. Its previous entries are removed first, but only those that differ: one
//! new CVE in a thousand groups takes a thousand steps, however many other CVEs they have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use vocab::{Digest, Severity};

use super::Finding;
use super::subject::Map;

/// A CVE in a source package, with what lists show about it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mention {
    /// The first field, because the most severe of several is shown.
    pub severity: Severity,
    pub cve: Arc<str>,
    pub source: Arc<str>,
    pub severity_source: Option<Arc<str>>,
    /// The CVSS vector.
    pub cvss: Option<Arc<str>>,
    pub published: Option<Timestamp>,
}

impl From<&Finding> for Mention {
    fn from(finding: &Finding) -> Mention {
        Mention {
            severity: finding.severity,
            cve: finding.cve.clone(),
            source: Arc::from(finding.package.source.as_str()),
            severity_source: finding.severity_source.clone(),
            cvss: finding.cvss.as_ref().map(|score| Arc::from(score.vector())),
            published: finding.published,
        }
    }
}

/// The id of a [`Mention`] within one [`Tally`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    /// Index of the CVE. The first field, so that the sorted ids of one CVE are adjacent.
    flaw: u32,
    place: u32,
}

impl Cell {
    /// Index of the CVE within the [`Tally`].
    pub fn flaw(self) -> u32 {
        self.flaw
    }
}

/// A CVE on the servers of a group, and whether it counts or is suppressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Mark {
    cell: Cell,
    counts: bool,
}

/// The exposure to one CVE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row<'a> {
    /// Number of servers where it is not suppressed.
    pub servers: u64,
    /// Number of servers where it is suppressed.
    pub suppressed: u64,
    /// The most severe occurrence.
    pub worst: &'a Mention,
    /// The affected source packages.
    pub packages: BTreeSet<&'a str>,
}

#[derive(Debug, Default)]
struct Total {
    servers: u64,
    suppressed: u64,
    /// Number of groups for each occurrence.
    kinds: BTreeMap<u32, u32>,
}

#[derive(Debug, Default)]
struct Held {
    servers: u64,
    marks: Vec<Mark>,
}

/// Which groups of servers have which CVEs, and the number of servers for each CVE.
#[derive(Debug, Default)]
pub struct Tally {
    places: Map<Arc<Mention>, Cell>,
    mentions: Vec<Arc<Mention>>,
    flaw_ids: Map<Arc<str>, u32>,
    flaws: Vec<Arc<str>>,
    totals: Vec<Total>,
    kinds: BTreeMap<Digest, Held>,
    changed: BTreeSet<u32>,
}

impl Tally {
    /// Returns the id of an occurrence, and registers it if it is new.
    pub fn cell(&mut self, mention: Mention) -> Cell {
        if let Some(known) = self.places.get(&mention) {
            return *known;
        }
        let flaw = self.flaw(&mention.cve);
        let cell = Cell { flaw, place: self.mentions.len() as u32 };
        let mention = Arc::new(mention);
        self.mentions.push(mention.clone());
        self.places.insert(mention, cell);
        cell
    }

    /// Returns the index of a CVE, and registers it if it is new.
    pub fn flaw(&mut self, cve: &Arc<str>) -> u32 {
        if let Some(known) = self.flaw_ids.get(cve) {
            return *known;
        }
        let new = self.flaws.len() as u32;
        self.flaw_ids.insert(cve.clone(), new);
        self.flaws.push(cve.clone());
        self.totals.push(Total::default());
        new
    }

    pub fn mention(&self, cell: Cell) -> &Mention {
        &self.mentions[cell.place as usize]
    }

    /// Returns the distinct CVEs of these ids, sorted by index.
    pub fn flaws(cells: impl IntoIterator<Item = Cell>) -> Vec<u32> {
        let mut flaws: Vec<u32> = cells.into_iter().map(|cell| cell.flaw).collect();
        flaws.sort_unstable();
        flaws.dedup();
        flaws
    }

    pub fn name(&self, flaw: u32) -> &Arc<str> {
        &self.flaws[flaw as usize]
    }

    pub fn kinds(&self) -> impl Iterator<Item = &Digest> {
        self.kinds.keys()
    }

    /// Adds a group, or replaces what was known about it: its number of servers and its CVEs, each
    /// with whether it counts. Returns the number of CVEs that count on each of its servers, by
    /// severity. A server has a CVE once, however many of its packages are affected.
    pub fn put(
        &mut self,
        kind: Digest,
        servers: u64,
        cells: impl IntoIterator<Item = (Cell, bool)>,
    ) -> BTreeMap<Severity, u32> {
        let mut marks: Vec<Mark> =
            cells.into_iter().map(|(cell, counts)| Mark { cell, counts }).collect();
        marks.sort_unstable();
        marks.dedup();
        let before = self.kinds.remove(&kind).unwrap_or_default();
        let mut counts = BTreeMap::new();
        for some in by_flaw(&marks) {
            let counting = some.iter().filter(|mark| mark.counts);
            let worst = counting.map(|mark| self.mention(mark.cell).severity).max();
            if let Some(severity) = worst {
                *counts.entry(severity).or_insert(0) += 1;
            }
        }
        let after = Held { servers, marks };
        self.exchange(&before, &after);
        self.kinds.insert(kind, after);
        counts
    }

    pub fn remove(&mut self, kind: &Digest) {
        if let Some(before) = self.kinds.remove(kind) {
            self.exchange(&before, &Held::default());
        }
    }

    /// Returns the CVEs that changed since the last call, each with its current exposure, or `None`
    /// if no server has it any more.
    pub fn changes(&mut self) -> Vec<(Arc<str>, Option<Row<'_>>)> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|flaw| (self.name(flaw).clone(), self.row(flaw))).collect()
    }

    /// Whether most of the registered occurrences are no longer used, so that it should be rebuilt.
    pub fn is_worn(&self) -> bool {
        let live: usize = self.totals.iter().map(|total| total.kinds.len()).sum();
        self.mentions.len() > live + live / 2 + 10_000
    }

    fn row(&self, flaw: u32) -> Option<Row<'_>> {
        let total = &self.totals[flaw as usize];
        let mentions = || total.kinds.keys().map(|place| self.mentions[*place as usize].as_ref());
        Some(Row {
            servers: total.servers,
            suppressed: total.suppressed,
            worst: mentions().max()?,
            packages: mentions().map(|mention| mention.source.as_ref()).collect(),
        })
    }

    fn exchange(&mut self, before: &Held, after: &Held) {
        let same_servers = before.servers == after.servers;
        let (mut old, mut new) =
            (by_flaw(&before.marks).peekable(), by_flaw(&after.marks).peekable());
        loop {
            let next = |some: Option<&&[Mark]>| some.map_or(u32::MAX, |some| some[0].cell.flaw);
            let (first, second) = (next(old.peek()), next(new.peek()));
            let flaw = first.min(second);
            let was = old.next_if(|_| first == flaw).unwrap_or_default();
            let is = new.next_if(|_| second == flaw).unwrap_or_default();
            if was.is_empty() && is.is_empty() {
                return;
            }
            if was == is && same_servers {
                continue;
            }
            let total = &mut self.totals[flaw as usize];
            total.take_out(was, before.servers);
            total.put_in(is, after.servers);
            self.changed.insert(flaw);
        }
    }
}

impl Total {
    fn put_in(&mut self, marks: &[Mark], servers: u64) {
        for mark in marks {
            *self.kinds.entry(mark.cell.place).or_insert(0) += 1;
        }
        *self.side(marks) += if marks.is_empty() { 0 } else { servers };
    }

    fn take_out(&mut self, marks: &[Mark], servers: u64) {
        for mark in marks {
            let left = self.kinds.get_mut(&mark.cell.place).map(|kinds| {
                *kinds -= 1;
                *kinds
            });
            if left == Some(0) {
                self.kinds.remove(&mark.cell.place);
            }
        }
        *self.side(marks) -= if marks.is_empty() { 0 } else { servers };
    }

    /// A CVE counts on a server unless it is suppressed in all of its packages.
    fn side(&mut self, marks: &[Mark]) -> &mut u64 {
        match marks.iter().any(|mark| mark.counts) {
            true => &mut self.servers,
            false => &mut self.suppressed,
        }
    }
}

/// Splits sorted entries by CVE.
fn by_flaw(marks: &[Mark]) -> impl Iterator<Item = &[Mark]> {
    marks.chunk_by(|a, b| a.cell.flaw == b.cell.flaw)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAMES: [&str; 4] = ["CVE-1", "CVE-2", "CVE-3", "CVE-4"];

    fn mention(cve: usize, source: bool, severity: usize) -> Mention {
        Mention {
            severity: Severity::ALL[severity],
            cve: Arc::from(NAMES[cve]),
            source: Arc::from(if source { "curl" } else { "vim" }),
            severity_source: None,
            cvss: None,
            published: None,
        }
    }

    type Has = (u8, u64, Vec<(usize, bool, usize, bool)>);

    fn steps() -> impl Strategy<Value = Vec<Has>> {
        let has =
            proptest::collection::vec((0..4_usize, any::<bool>(), 0..3_usize, any::<bool>()), 0..6);
        proptest::collection::vec((0..4_u8, 0..5_u64, has), 0..12)
    }

    fn key(kind: u8) -> Digest {
        Digest::of(&[kind])
    }

    fn put(tally: &mut Tally, (kind, servers, has): &Has) {
        let cells: Vec<(Cell, bool)> = has
            .iter()
            .map(|(cve, source, severity, counts)| {
                (tally.cell(mention(*cve, *source, *severity)), *counts)
            })
            .collect();
        match servers {
            0 => tally.remove(&key(*kind)),
            servers => drop(tally.put(key(*kind), *servers, cells)),
        }
    }

    fn shown(tally: &Tally) -> Vec<String> {
        let mut rows: Vec<String> = (0..tally.flaws.len() as u32)
            .filter_map(|flaw| Some(format!("{} {:?}", tally.name(flaw), tally.row(flaw)?)))
            .collect();
        rows.sort();
        rows
    }

    proptest! {
        /// Following the changes gives the same result as counting everything again.
        #[test]
        fn incremental_counts_equal_full_recount(steps in steps()) {
            let mut tally = Tally::default();
            let mut followed: BTreeMap<Arc<str>, String> = BTreeMap::new();
            for step in &steps {
                put(&mut tally, step);
                for (cve, row) in tally.changes() {
                    match row {
                        Some(row) => drop(followed.insert(cve.clone(), format!("{cve} {row:?}"))),
                        None => drop(followed.remove(&cve)),
                    }
                }
            }
            let last: BTreeMap<u8, &Has> = steps.iter().map(|step| (step.0, step)).collect();
            let mut anew = Tally::default();
            last.values().for_each(|step| put(&mut anew, step));
            prop_assert_eq!(shown(&tally), shown(&anew));
            prop_assert_eq!(followed.into_values().collect::<Vec<_>>(), shown(&anew));
        }
    }

    #[test]
    fn cve_counts_once_per_server_unless_fully_suppressed() {
        let mut tally = Tally::default();
        let curl = tally.cell(mention(0, true, 1));
        let vim = tally.cell(mention(0, false, 2));
        let counts = tally.put(key(1), 3, [(curl, true), (vim, false)]);
        assert_eq!(counts, BTreeMap::from([(Severity::ALL[1], 1)]));
        assert!(tally.put(key(2), 5, [(curl, false)]).is_empty());
        let changes = tally.changes();
        let row = changes[0].1.as_ref().expect("a server has it");
        assert_eq!((row.servers, row.suppressed), (3, 5));
        assert_eq!(
            row.worst.severity,
            Severity::ALL[2],
            "suppression does not affect the severity"
        );
        assert_eq!(row.packages, BTreeSet::from(["curl", "vim"]));
        assert!(tally.changes().is_empty(), "nothing changed since");
    }
}
