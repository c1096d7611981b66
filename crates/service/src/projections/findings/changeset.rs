//! Writes the changes of a round, in as few transactions as possible, each short enough not to
//! block other writers.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use domain::finding::exposure_counts::ExposureCounts;
use jiff::Timestamp;
use serde_json::json;
use store::findings::{self, AssessedSet, Carrier, Cve, CveChange, KindCounts, Summary};
use store::{Topic, Tx};
use vocab::{Digest, OrgId};

use super::package_groups::GroupChanges;
use crate::projections::patches::severity_at;
use crate::{App, EventKind, Result, emit};

/// The approximate number of rows written in one transaction.
const ROWS_PER_TRANSACTION: usize = 4_000;

/// The actor in events.
const ACTOR: &str = "engine";

/// All changes of a round.
#[derive(Debug, Default)]
pub(super) struct Changeset {
    /// By base ecosystem.
    pub(super) groups: Vec<(String, GroupChanges)>,
    pub(super) assessed_sets: Vec<AssessedSet>,
    pub(super) sets_gone: Vec<(String, Vec<Digest>)>,
    /// Reports of the package sets from which outdated processes run.
    pub(super) kept_reports: Vec<(String, Digest, domain::finding::MatchReport)>,
    /// Server kinds that have findings now and had none before, and the reverse.
    pub(super) carriers: Vec<Carrier>,
    pub(super) carriers_gone: Vec<u32>,
    /// The server kinds that gained and lost a CVE, by the CVE's index in the tally.
    cve_changes: HashMap<u32, CveChange>,
    pub(super) counts: Vec<(Digest, KindCounts)>,
    pub(super) counts_gone: Vec<Digest>,
    pub(super) vendor_reported: Vec<(Arc<str>, Digest)>,
    pub(super) vendor_reported_gone: Vec<Digest>,
    pub(super) rows: BTreeSet<Arc<str>>,
    pub(super) rows_gone: Vec<String>,
}

impl Changeset {
    /// The entry that collects which server kinds gain and lose a CVE.
    pub(super) fn cve_change(&mut self, cve_index: u32, tally: &ExposureCounts) -> &mut CveChange {
        self.cve_changes.entry(cve_index).or_insert_with(|| {
            let cve = tally.cve(cve_index).clone();
            CveChange { cve, gained: Vec::new(), lost: Vec::new() }
        })
    }

    /// Deletes package sets and groups that no server has anymore.
    pub(super) fn drop_sets(&mut self, base: &str, sets: Vec<Digest>, groups: Vec<Digest>) {
        self.sets_gone.push((base.to_owned(), sets));
        let changes = GroupChanges { removed: groups, ..GroupChanges::default() };
        self.groups.push((base.to_owned(), changes));
    }
}

/// Splits the writes into transactions of limited size.
struct ChunkedTransaction<'a> {
    app: &'a App,
    seen: &'a Summary,
    tx: Option<Tx>,
    rows: usize,
}

impl ChunkedTransaction<'_> {
    /// The transaction for the next `rows` rows.
    async fn tx(&mut self, rows: usize) -> Result<&mut Tx> {
        if self.rows + rows > ROWS_PER_TRANSACTION
            && let Some(full) = self.tx.take()
        {
            full.commit().await?;
            self.rows = 0;
        }
        self.rows += rows;
        if self.tx.is_none() {
            let mut tx = self.app.db.begin().await?;
            findings::lock_summary(&mut tx, self.seen).await?;
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
    all: &Changeset,
    rows: &HashMap<Arc<str>, Box<Cve>>,
) -> Result<()> {
    let org = seen.org_id;
    let mut writer = ChunkedTransaction { app, seen, tx: None, rows: 0 };
    write_package_sets(&mut writer, org, all).await?;
    write_kinds(&mut writer, org, all).await?;
    let changed: Vec<&Cve> =
        all.rows.iter().filter_map(|id| rows.get(id).map(AsRef::as_ref)).collect();
    let now = app.clock.now();
    for some in changed.chunks(ROWS_PER_TRANSACTION / 4) {
        let tx = writer.tx(some.len()).await?;
        emit_changes(tx, org, some, now).await?;
        findings::update_rows(tx, org, some, &[]).await?;
    }
    let tx = writer.tx(all.rows_gone.len()).await?;
    for id in &all.rows_gone {
        emit(tx, org, now, ACTOR, EventKind::CveClosed, id, json!({"cve": id}));
    }
    findings::update_rows(tx, org, &[], &all.rows_gone).await?;
    findings::save_summary(tx, next).await?;
    tx.notify(Topic::Findings);
    if let Some(last) = writer.tx.take() {
        last.commit().await?;
    }
    Ok(())
}

/// Emits an event for each CVE that affected no server until now, or that is now known to be
/// exploited.
async fn emit_changes(tx: &mut Tx, org: OrgId, rows: &[&Cve], now: Timestamp) -> Result<()> {
    const EXPLOITED: i64 = 0;
    let ids: Vec<String> = rows.iter().map(|row| row.id.clone()).collect();
    let known: HashMap<String, i64> = findings::by_ids(tx, org, &ids)
        .await?
        .into_iter()
        .map(|row| (row.id, row.kev_order))
        .collect();
    for row in rows {
        let kind = match known.get(&row.id) {
            None => EventKind::CveOpened,
            Some(before) if *before != EXPLOITED && row.kev_order == EXPLOITED => {
                EventKind::CveExploited
            }
            Some(_) => continue,
        };
        let data = json!({"cve": row.id, "severity": severity_at(row.severity_order),
            "kev": row.kev_order == EXPLOITED, "affected_servers": row.servers_order.abs(),
            "suppressed_servers": row.suppressed, "packages": row.packages});
        emit(tx, org, now, ACTOR, kind, &row.id, data);
    }
    Ok(())
}

async fn write_package_sets(
    chunked_tx: &mut ChunkedTransaction<'_>,
    org: OrgId,
    all: &Changeset,
) -> Result<()> {
    for (base, changes) in &all.groups {
        for some in changes.changed.chunks(ROWS_PER_TRANSACTION / 8) {
            let some: Vec<_> = some.iter().map(|(digest, report)| (*digest, report)).collect();
            findings::put_groups(chunked_tx.tx(some.len()).await?, org, base, &some).await?;
        }
        for some in changes.removed.chunks(ROWS_PER_TRANSACTION) {
            findings::delete_groups(chunked_tx.tx(some.len()).await?, org, base, some).await?;
        }
    }
    for some in all.assessed_sets.chunks(ROWS_PER_TRANSACTION) {
        findings::put_assessed(chunked_tx.tx(some.len()).await?, org, some).await?;
    }
    for (base, sets) in all.sets_gone.iter().filter(|(_, sets)| !sets.is_empty()) {
        findings::delete_assessed(chunked_tx.tx(sets.len()).await?, org, base, sets).await?;
    }
    for (base, set, report) in &all.kept_reports {
        let tx = chunked_tx.tx(report.findings.len() / 10 + 1).await?;
        findings::save_report(tx, org, *set, base, report).await?;
    }
    Ok(())
}

async fn write_kinds(
    writer: &mut ChunkedTransaction<'_>,
    org: OrgId,
    all: &Changeset,
) -> Result<()> {
    for some in all.carriers.chunks(ROWS_PER_TRANSACTION) {
        findings::put_carriers(writer.tx(some.len()).await?, org, some).await?;
    }
    write_cve_changes(writer, org, &all.cve_changes).await?;
    // Only now: no CVE may refer to a server kind that no longer exists.
    for some in all.carriers_gone.chunks(ROWS_PER_TRANSACTION) {
        findings::delete_carriers(writer.tx(some.len()).await?, org, some).await?;
    }
    for some in all.counts.chunks(ROWS_PER_TRANSACTION) {
        findings::put_counts(writer.tx(some.len()).await?, org, some).await?;
    }
    for some in all.counts_gone.chunks(ROWS_PER_TRANSACTION) {
        findings::delete_counts(writer.tx(some.len()).await?, org, some).await?;
    }
    for some in all.vendor_reported_gone.chunks(ROWS_PER_TRANSACTION / 10) {
        findings::delete_vendor_reported(writer.tx(some.len() * 10).await?, org, some).await?;
    }
    for some in all.vendor_reported.chunks(ROWS_PER_TRANSACTION) {
        findings::put_vendor_reported(writer.tx(some.len()).await?, org, some).await?;
    }
    Ok(())
}

async fn write_cve_changes(
    chunked_tx: &mut ChunkedTransaction<'_>,
    org: OrgId,
    all: &HashMap<u32, CveChange>,
) -> Result<()> {
    // In table order, so that adjacent rows are written together.
    let mut all: Vec<&CveChange> = all.values().collect();
    all.sort_unstable_by(|a, b| a.cve.cmp(&b.cve));
    let weight = |one: &&CveChange| 1 + (one.gained.len() + one.lost.len()) / 16;
    let mut rest = all.as_slice();
    while !rest.is_empty() {
        let mut rows = 0;
        let together = rest.iter().take_while(|one| {
            rows += weight(one);
            rows <= ROWS_PER_TRANSACTION
        });
        let (some, others) = rest.split_at(together.count().max(1));
        let rows = some.iter().map(weight).sum();
        findings::apply_cve_changes(chunked_tx.tx(rows).await?, org, some).await?;
        rest = others;
    }
    Ok(())
}
