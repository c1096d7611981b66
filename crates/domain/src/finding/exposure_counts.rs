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
use super::lookup_key::Map;

/// A CVE in a source package, with what lists show about it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Occurrence {
    /// The first field, because the most severe of several is shown.
    pub severity: Severity,
    pub cve: Arc<str>,
    pub source: Arc<str>,
    pub severity_source: Option<Arc<str>>,
    /// The CVSS vector.
    pub cvss: Option<Arc<str>>,
    pub published: Option<Timestamp>,
}

impl From<&Finding> for Occurrence {
    fn from(finding: &Finding) -> Occurrence {
        Occurrence {
            severity: finding.severity,
            cve: finding.cve.clone(),
            source: Arc::from(finding.package.source.as_str()),
            severity_source: finding.severity_source.clone(),
            cvss: finding.cvss.as_ref().map(|score| Arc::from(score.vector())),
            published: finding.published,
        }
    }
}

/// The id of a [`Occurrence`] within one [`ExposureCounts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OccurrenceId {
    /// Index of the CVE. The first field, so that the sorted ids of one CVE are adjacent.
    cve: u32,
    index: u32,
}

impl OccurrenceId {
    /// Index of the CVE within the [`ExposureCounts`].
    pub fn cve(self) -> u32 {
        self.cve
    }
}

/// A CVE on the servers of a group, and whether it counts or is suppressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct GroupEntry {
    occurrence_id: OccurrenceId,
    counts: bool,
}

/// The exposure to one CVE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CveExposure<'a> {
    /// Number of servers where it is not suppressed.
    pub servers: u64,
    /// Number of servers where it is suppressed.
    pub suppressed: u64,
    /// The most severe occurrence.
    pub worst: &'a Occurrence,
    /// The affected source packages.
    pub packages: BTreeSet<&'a str>,
}

#[derive(Debug, Default)]
struct CveTotal {
    servers: u64,
    suppressed: u64,
    /// Number of groups for each occurrence.
    occurrences: BTreeMap<u32, u32>,
}

#[derive(Debug, Default)]
struct GroupState {
    servers: u64,
    entries: Vec<GroupEntry>,
}

/// Which groups of servers have which CVEs, and the number of servers for each CVE.
#[derive(Debug, Default)]
pub struct ExposureCounts {
    ids: Map<Arc<Occurrence>, OccurrenceId>,
    occurrences: Vec<Arc<Occurrence>>,
    cve_indexes: Map<Arc<str>, u32>,
    cves: Vec<Arc<str>>,
    totals: Vec<CveTotal>,
    groups: BTreeMap<Digest, GroupState>,
    changed: BTreeSet<u32>,
}

impl ExposureCounts {
    /// Returns the id of an occurrence, and registers it if it is new.
    pub fn register(&mut self, occurrence: Occurrence) -> OccurrenceId {
        if let Some(known) = self.ids.get(&occurrence) {
            return *known;
        }
        let cve_index = self.cve_index(&occurrence.cve);
        let occurrence_id = OccurrenceId { cve: cve_index, index: self.occurrences.len() as u32 };
        let mention = Arc::new(occurrence);
        self.occurrences.push(mention.clone());
        self.ids.insert(mention, occurrence_id);
        occurrence_id
    }

    /// Returns the index of a CVE, and registers it if it is new.
    pub fn cve_index(&mut self, cve: &Arc<str>) -> u32 {
        if let Some(known) = self.cve_indexes.get(cve) {
            return *known;
        }
        let new = self.cves.len() as u32;
        self.cve_indexes.insert(cve.clone(), new);
        self.cves.push(cve.clone());
        self.totals.push(CveTotal::default());
        new
    }

    pub fn occurrence(&self, occurrence_id: OccurrenceId) -> &Occurrence {
        &self.occurrences[occurrence_id.index as usize]
    }

    /// Returns the distinct CVEs of these ids, sorted by index.
    pub fn distinct_cves(cells: impl IntoIterator<Item = OccurrenceId>) -> Vec<u32> {
        let mut cve_indexes: Vec<u32> =
            cells.into_iter().map(|occurrence_id| occurrence_id.cve).collect();
        cve_indexes.sort_unstable();
        cve_indexes.dedup();
        cve_indexes
    }

    pub fn cve(&self, cve_index: u32) -> &Arc<str> {
        &self.cves[cve_index as usize]
    }

    pub fn groups(&self) -> impl Iterator<Item = &Digest> {
        self.groups.keys()
    }

    /// Adds a group, or replaces what was known about it: its number of servers and its CVEs, each
    /// with whether it counts. Returns the number of CVEs that count on each of its servers, by
    /// severity. A server has a CVE once, however many of its packages are affected.
    pub fn set_group(
        &mut self,
        kind: Digest,
        servers: u64,
        cells: impl IntoIterator<Item = (OccurrenceId, bool)>,
    ) -> BTreeMap<Severity, u32> {
        let mut group_entries: Vec<GroupEntry> = cells
            .into_iter()
            .map(|(occurrence_id, counts)| GroupEntry { occurrence_id, counts })
            .collect();
        group_entries.sort_unstable();
        group_entries.dedup();
        let before = self.groups.remove(&kind).unwrap_or_default();
        let mut counts = BTreeMap::new();
        for some in by_cve(&group_entries) {
            let counting = some.iter().filter(|mark| mark.counts);
            let worst = counting.map(|mark| self.occurrence(mark.occurrence_id).severity).max();
            if let Some(severity) = worst {
                *counts.entry(severity).or_insert(0) += 1;
            }
        }
        let after = GroupState { servers, entries: group_entries };
        self.replace(&before, &after);
        self.groups.insert(kind, after);
        counts
    }

    pub fn remove_group(&mut self, kind: &Digest) {
        if let Some(before) = self.groups.remove(kind) {
            self.replace(&before, &GroupState::default());
        }
    }

    /// Returns the CVEs that changed since the last call, each with its current exposure, or `None`
    /// if no server has it anymore.
    pub fn take_changes(&mut self) -> Vec<(Arc<str>, Option<CveExposure<'_>>)> {
        let changed = std::mem::take(&mut self.changed);
        changed
            .into_iter()
            .map(|cve_index| (self.cve(cve_index).clone(), self.exposure(cve_index)))
            .collect()
    }

    /// Whether most of the registered occurrences are no longer used, so that it should be rebuilt.
    pub fn needs_rebuild(&self) -> bool {
        let live: usize = self.totals.iter().map(|total| total.occurrences.len()).sum();
        self.occurrences.len() > live + live / 2 + 10_000
    }

    fn exposure(&self, cve_index: u32) -> Option<CveExposure<'_>> {
        let total = &self.totals[cve_index as usize];
        let mentions =
            || total.occurrences.keys().map(|place| self.occurrences[*place as usize].as_ref());
        Some(CveExposure {
            servers: total.servers,
            suppressed: total.suppressed,
            worst: mentions().max()?,
            packages: mentions().map(|mention| mention.source.as_ref()).collect(),
        })
    }

    fn replace(&mut self, before: &GroupState, after: &GroupState) {
        let same_servers = before.servers == after.servers;
        let (mut old, mut new) =
            (by_cve(&before.entries).peekable(), by_cve(&after.entries).peekable());
        loop {
            let next = |some: Option<&&[GroupEntry]>| {
                some.map_or(u32::MAX, |some| some[0].occurrence_id.cve)
            };
            let (first, second) = (next(old.peek()), next(new.peek()));
            let cve_index = first.min(second);
            let was = old.next_if(|_| first == cve_index).unwrap_or_default();
            let is = new.next_if(|_| second == cve_index).unwrap_or_default();
            if was.is_empty() && is.is_empty() {
                return;
            }
            if was == is && same_servers {
                continue;
            }
            let total = &mut self.totals[cve_index as usize];
            total.remove(was, before.servers);
            total.add(is, after.servers);
            self.changed.insert(cve_index);
        }
    }
}

impl CveTotal {
    fn add(&mut self, entries: &[GroupEntry], servers: u64) {
        for mark in entries {
            *self.occurrences.entry(mark.occurrence_id.index).or_insert(0) += 1;
        }
        *self.counter_mut(entries) += if entries.is_empty() { 0 } else { servers };
    }

    fn remove(&mut self, entries: &[GroupEntry], servers: u64) {
        for mark in entries {
            let left = self.occurrences.get_mut(&mark.occurrence_id.index).map(|kinds| {
                *kinds -= 1;
                *kinds
            });
            if left == Some(0) {
                self.occurrences.remove(&mark.occurrence_id.index);
            }
        }
        *self.counter_mut(entries) -= if entries.is_empty() { 0 } else { servers };
    }

    /// A CVE counts on a server unless it is suppressed in all of its packages.
    fn counter_mut(&mut self, entries: &[GroupEntry]) -> &mut u64 {
        match entries.iter().any(|mark| mark.counts) {
            true => &mut self.servers,
            false => &mut self.suppressed,
        }
    }
}

/// Splits sorted entries by CVE.
fn by_cve(entries: &[GroupEntry]) -> impl Iterator<Item = &[GroupEntry]> {
    entries.chunk_by(|a, b| a.occurrence_id.cve == b.occurrence_id.cve)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAMES: [&str; 4] = ["CVE-1", "CVE-2", "CVE-3", "CVE-4"];

    fn mention(cve: usize, source: bool, severity: usize) -> Occurrence {
        Occurrence {
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
        Digest::compute(&[kind])
    }

    fn put(tally: &mut ExposureCounts, (kind, servers, has): &Has) {
        let cells: Vec<(OccurrenceId, bool)> = has
            .iter()
            .map(|(cve, source, severity, counts)| {
                (tally.register(mention(*cve, *source, *severity)), *counts)
            })
            .collect();
        match servers {
            0 => tally.remove_group(&key(*kind)),
            servers => drop(tally.set_group(key(*kind), *servers, cells)),
        }
    }

    fn describe(tally: &ExposureCounts) -> Vec<String> {
        let mut rows: Vec<String> = (0..tally.cves.len() as u32)
            .filter_map(|cve_index| {
                Some(format!("{} {:?}", tally.cve(cve_index), tally.exposure(cve_index)?))
            })
            .collect();
        rows.sort();
        rows
    }

    proptest! {
        /// Following the changes gives the same result as counting everything again.
        #[test]
        fn incremental_counts_equal_full_recount(steps in steps()) {
            let mut tally = ExposureCounts::default();
            let mut followed: BTreeMap<Arc<str>, String> = BTreeMap::new();
            for step in &steps {
                put(&mut tally, step);
                for (cve, row) in tally.take_changes() {
                    match row {
                        Some(row) => drop(followed.insert(cve.clone(), format!("{cve} {row:?}"))),
                        None => drop(followed.remove(&cve)),
                    }
                }
            }
            let last: BTreeMap<u8, &Has> = steps.iter().map(|step| (step.0, step)).collect();
            let mut recounted = ExposureCounts::default();
            last.values().for_each(|step| put(&mut recounted, step));
            prop_assert_eq!(describe(&tally), describe(&recounted));
            prop_assert_eq!(followed.into_values().collect::<Vec<_>>(), describe(&recounted));
        }
    }

    #[test]
    fn cve_counts_once_per_server_unless_fully_suppressed() {
        let mut tally = ExposureCounts::default();
        let curl = tally.register(mention(0, true, 1));
        let vim = tally.register(mention(0, false, 2));
        let counts = tally.set_group(key(1), 3, [(curl, true), (vim, false)]);
        assert_eq!(counts, BTreeMap::from([(Severity::ALL[1], 1)]));
        assert!(tally.set_group(key(2), 5, [(curl, false)]).is_empty());
        let changes = tally.take_changes();
        let row = changes[0].1.as_ref().expect("a server has it");
        assert_eq!((row.servers, row.suppressed), (3, 5));
        assert_eq!(
            row.worst.severity,
            Severity::ALL[2],
            "suppression does not affect the severity"
        );
        assert_eq!(row.packages, BTreeSet::from(["curl", "vim"]));
        assert!(tally.take_changes().is_empty(), "nothing changed since");
    }
}
