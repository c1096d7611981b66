//! How many servers have each flaw, kept up by differences.
//!
//! Servers that are alike are one kind, and a kind is put in with all that it has. What it had before is
//! taken out first, but only where that was something else: one new flaw on a thousand kinds costs
//! a thousand steps, however many other flaws they have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use vocab::{Digest, Severity};

use super::Finding;
use super::subject::Map;

/// A flaw in a source, as it is told: what a list shows of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mention {
    /// How bad it is. First, because the worst of several is shown.
    pub severity: Severity,
    /// The flaw.
    pub cve: Arc<str>,
    /// The source package.
    pub source: Arc<str>,
    /// Who says how bad it is.
    pub severity_source: Option<Arc<str>>,
    /// The vector of its CVSS score.
    pub cvss: Option<Arc<str>>,
    /// When it was first published.
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

/// A [`Mention`] that a tally knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    /// Which flaw. First, so that sorted cells of one flaw lie together.
    flaw: u32,
    place: u32,
}

impl Cell {
    /// Which flaw it is of, as the tally knows it.
    pub fn flaw(self) -> u32 {
        self.flaw
    }
}

/// What servers of a kind have of a flaw, and whether that counts or was set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Mark {
    cell: Cell,
    counts: bool,
}

/// One flaw, wherever it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row<'a> {
    /// How many servers have it where it was not set aside.
    pub servers: u64,
    /// How many have it where it was.
    pub suppressed: u64,
    /// The worst that is said of it.
    pub worst: &'a Mention,
    /// The sources that it is in.
    pub packages: BTreeSet<&'a str>,
}

#[derive(Debug, Default)]
struct Total {
    servers: u64,
    suppressed: u64,
    /// How many kinds have it in which form.
    kinds: BTreeMap<u32, u32>,
}

#[derive(Debug, Default)]
struct Held {
    servers: u64,
    marks: Vec<Mark>,
}

/// Which kinds of servers have which flaws, and how many servers that makes for each.
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
    /// What a finding is counted by.
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

    /// What a flaw is known by here.
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

    /// What stands behind a cell.
    pub fn mention(&self, cell: Cell) -> &Mention {
        &self.mentions[cell.place as usize]
    }

    /// The flaws of these cells, each once, sorted by what they are known by here.
    pub fn flaws(cells: impl IntoIterator<Item = Cell>) -> Vec<u32> {
        let mut flaws: Vec<u32> = cells.into_iter().map(|cell| cell.flaw).collect();
        flaws.sort_unstable();
        flaws.dedup();
        flaws
    }

    /// The name of a flaw.
    pub fn name(&self, flaw: u32) -> &Arc<str> {
        &self.flaws[flaw as usize]
    }

    /// The kinds that are in.
    pub fn kinds(&self) -> impl Iterator<Item = &Digest> {
        self.kinds.keys()
    }

    /// Puts a kind in, in the place of what was known of it: how many servers are of it, and what they have, each with
    /// whether it counts. Answers with how many flaws of each severity count on each of them: however many of its
    /// packages have it, a server has a flaw once.
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

    /// Takes a kind out.
    pub fn remove(&mut self, kind: &Digest) {
        if let Some(before) = self.kinds.remove(kind) {
            self.exchange(&before, &Held::default());
        }
    }

    /// The flaws of which something changed since this was last asked: what is to be said of each now, or
    /// nothing, because no server has it any more.
    pub fn changes(&mut self) -> Vec<(Arc<str>, Option<Row<'_>>)> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|flaw| (self.name(flaw).clone(), self.row(flaw))).collect()
    }

    /// Whether most of what it remembers is about nothing any more: then it is time for a new one.
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

    /// A flaw counts where it was not set aside in all of its packages.
    fn side(&mut self, marks: &[Mark]) -> &mut u64 {
        match marks.iter().any(|mark| mark.counts) {
            true => &mut self.servers,
            false => &mut self.suppressed,
        }
    }
}

/// Sorted marks, those of one flaw together.
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
        /// Whoever follows the changes knows what counting everything anew would tell.
        #[test]
        fn differences_come_to_the_same_as_counting_anew(steps in steps()) {
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
    fn a_server_has_a_flaw_once_and_it_counts_where_it_was_not_set_aside_in_all_its_packages() {
        let mut tally = Tally::default();
        let curl = tally.cell(mention(0, true, 1));
        let vim = tally.cell(mention(0, false, 2));
        let counts = tally.put(key(1), 3, [(curl, true), (vim, false)]);
        assert_eq!(counts, BTreeMap::from([(Severity::ALL[1], 1)]));
        assert!(tally.put(key(2), 5, [(curl, false)]).is_empty());
        let changes = tally.changes();
        let row = changes[0].1.as_ref().expect("somebody has it");
        assert_eq!((row.servers, row.suppressed), (3, 5));
        assert_eq!(row.worst.severity, Severity::ALL[2], "how bad it is does not depend on that");
        assert_eq!(row.packages, BTreeSet::from(["curl", "vim"]));
        assert!(tally.changes().is_empty(), "nothing changed since");
    }
}
