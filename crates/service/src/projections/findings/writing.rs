//! Writes the changes of a round, in as few transactions as possible, each short enough not to
//! block other writers.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use domain::finding::tally::Tally;
use store::findings::{self, Carrier, Cve, Judged, Shift, Summary, Tallied};
use store::{Topic, Tx};
use vocab::{Digest, OrgId};

use super::shelf::Changes;
use crate::App;
use crate::Result;

/// The approximate number of rows written in one transaction.
const TOGETHER: usize = 4_000;

/// All changes of a round.
#[derive(Debug, Default)]
pub(super) struct Writes {
    /// By base ecosystem.
    pub(super) groups: Vec<(String, Changes)>,
    pub(super) judged: Vec<Judged>,
    pub(super) sets_gone: Vec<(String, Vec<Digest>)>,
    /// Reports of the package sets from which outdated processes run.
    pub(super) kept: Vec<(String, Digest, domain::finding::Report)>,
    /// Server kinds that have findings now and had none before, and the reverse.
    pub(super) carriers: Vec<Carrier>,
    pub(super) carriers_gone: Vec<u32>,
    /// The server kinds that gained and lost a CVE, by the CVE's index in the tally.
    shifts: HashMap<u32, Shift>,
    pub(super) counts: Vec<(Digest, Tallied)>,
    pub(super) counts_gone: Vec<Digest>,
    pub(super) telling: Vec<(Arc<str>, Digest)>,
    pub(super) telling_gone: Vec<Digest>,
    pub(super) rows: BTreeSet<Arc<str>>,
    pub(super) rows_gone: Vec<String>,
}

impl Writes {
    /// The entry that collects which server kinds gain and lose a CVE.
    pub(super) fn shift(&mut self, flaw: u32, tally: &Tally) -> &mut Shift {
        self.shifts.entry(flaw).or_insert_with(|| {
            let cve = tally.name(flaw).clone();
            Shift { cve, gained: Vec::new(), lost: Vec::new() }
        })
    }

    /// Deletes package sets and groups that no server has any more.
    pub(super) fn forget(&mut self, base: &str, sets: Vec<Digest>, groups: Vec<Digest>) {
        self.sets_gone.push((base.to_owned(), sets));
        let changes = Changes { gone: groups, ..Changes::default() };
        self.groups.push((base.to_owned(), changes));
    }
}

/// Splits the writes into transactions of limited size.
struct Pen<'a> {
    app: &'a App,
    seen: &'a Summary,
    tx: Option<Tx>,
    rows: usize,
}

impl Pen<'_> {
    /// The transaction for the next `rows` rows.
    async fn tx(&mut self, rows: usize) -> Result<&mut Tx> {
        if self.rows + rows > TOGETHER
            && let Some(full) = self.tx.take()
        {
            full.commit().await?;
            self.rows = 0;
        }
        self.rows += rows;
        if self.tx.is_none() {
            let mut tx = self.app.db.begin().await?;
            findings::hold(&mut tx, self.seen).await?;
            self.tx = Some(tx);
        }
        Ok(self.tx.as_mut().expect("the transaction was just begun"))
    }
}

/// Writes all changes, and finally the summary `next`. Returns `Stale` if another replica has
/// written since `seen`.
pub(super) async fn write(
    app: &App,
    seen: &Summary,
    next: &Summary,
    all: &Writes,
    rows: &HashMap<Arc<str>, Box<Cve>>,
) -> Result<()> {
    let org = seen.org_id;
    let mut pen = Pen { app, seen, tx: None, rows: 0 };
    write_lists(&mut pen, org, all).await?;
    write_kinds(&mut pen, org, all).await?;
    let changed: Vec<&Cve> =
        all.rows.iter().filter_map(|id| rows.get(id).map(AsRef::as_ref)).collect();
    for some in changed.chunks(TOGETHER / 4) {
        findings::change(pen.tx(some.len()).await?, org, some, &[]).await?;
    }
    let tx = pen.tx(all.rows_gone.len()).await?;
    findings::change(tx, org, &[], &all.rows_gone).await?;
    findings::begin(tx, next).await?;
    tx.ring(Topic::Findings);
    if let Some(last) = pen.tx.take() {
        last.commit().await?;
    }
    Ok(())
}

async fn write_lists(pen: &mut Pen<'_>, org: OrgId, all: &Writes) -> Result<()> {
    for (base, changes) in &all.groups {
        for some in changes.put.chunks(TOGETHER / 8) {
            let some: Vec<_> = some.iter().map(|(digest, report)| (*digest, report)).collect();
            findings::put_groups(pen.tx(some.len()).await?, org, base, &some).await?;
        }
        for some in changes.gone.chunks(TOGETHER) {
            findings::drop_groups(pen.tx(some.len()).await?, org, base, some).await?;
        }
    }
    for some in all.judged.chunks(TOGETHER) {
        findings::put_judged(pen.tx(some.len()).await?, org, some).await?;
    }
    for (base, sets) in all.sets_gone.iter().filter(|(_, sets)| !sets.is_empty()) {
        findings::drop_judged(pen.tx(sets.len()).await?, org, base, sets).await?;
    }
    for (base, set, report) in &all.kept {
        let tx = pen.tx(report.findings.len() / 10 + 1).await?;
        findings::keep_report(tx, org, *set, base, report).await?;
    }
    Ok(())
}

async fn write_kinds(pen: &mut Pen<'_>, org: OrgId, all: &Writes) -> Result<()> {
    for some in all.carriers.chunks(TOGETHER) {
        findings::put_carriers(pen.tx(some.len()).await?, org, some).await?;
    }
    write_shifts(pen, org, &all.shifts).await?;
    // Only now: no CVE may refer to a server kind that no longer exists.
    for some in all.carriers_gone.chunks(TOGETHER) {
        findings::drop_carriers(pen.tx(some.len()).await?, org, some).await?;
    }
    for some in all.counts.chunks(TOGETHER) {
        findings::put_counts(pen.tx(some.len()).await?, org, some).await?;
    }
    for some in all.counts_gone.chunks(TOGETHER) {
        findings::drop_counts(pen.tx(some.len()).await?, org, some).await?;
    }
    for some in all.telling_gone.chunks(TOGETHER / 10) {
        findings::drop_telling(pen.tx(some.len() * 10).await?, org, some).await?;
    }
    for some in all.telling.chunks(TOGETHER) {
        findings::put_telling(pen.tx(some.len()).await?, org, some).await?;
    }
    Ok(())
}

async fn write_shifts(pen: &mut Pen<'_>, org: OrgId, all: &HashMap<u32, Shift>) -> Result<()> {
    // In table order, so that adjacent rows are written together.
    let mut all: Vec<&Shift> = all.values().collect();
    all.sort_unstable_by(|a, b| a.cve.cmp(&b.cve));
    let weight = |one: &&Shift| 1 + (one.gained.len() + one.lost.len()) / 16;
    let mut rest = all.as_slice();
    while !rest.is_empty() {
        let mut rows = 0;
        let together = rest.iter().take_while(|one| {
            rows += weight(one);
            rows <= TOGETHER
        });
        let (some, others) = rest.split_at(together.count().max(1));
        let rows = some.iter().map(weight).sum();
        findings::shift(pen.tx(rows).await?, org, some).await?;
        rest = others;
    }
    Ok(())
}
